// Mouse, wheel and keys on the number line, and its controls.

import { button, choice, newName, segmented } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put } from "../base/model.js";
import { derived, parse, withMinus } from "../exact/numbers.js";
import { EDGE, as_text } from "./scale.js";

const FP64 = derived({
  name: "FP64",
  exponent_bits: 11,
  significand_bits: 52,
  specials: "IEEE",
  signed: true,
  has_zero: true,
});

export function pointing(line, handle, life, { view, moveTo, pan, zoom, frame }) {
  let held = null;
  const place = (event) => (event.clientX - line.element.getBoundingClientRect().left) / line.grown;
  const grab = (event, what) => {
    held = { what, start: place(event), moved: false, view: view() };
    event.currentTarget.setPointerCapture(event.pointerId);
    event.preventDefault();
    (what === "x" ? handle : line.canvas).focus({ preventScroll: true });
  };
  const near = (event) =>
    Math.abs(place(event) - view().x(Number(handle.getAttribute("aria-valuenow")))) < 8;
  life.listen(handle, "pointerdown", (event) => grab(event, "x"));
  life.listen(line.canvas, "pointerdown", (event) => grab(event, near(event) ? "x" : "line"));
  for (const target of [handle, line.canvas]) {
    life.listen(target, "pointermove", (event) => {
      if (!held) return;
      const by = place(event) - held.start;
      held.moved ||= Math.abs(by) > 3;
      if (!held.moved) return;
      if (held.what === "x")
        moveTo(view().at(Math.min(line.width - EDGE, Math.max(EDGE, place(event)))));
      else
        frame([held.view.from - by * held.view.perPixel, held.view.to - by * held.view.perPixel]);
    });
    life.listen(target, "pointerup", (event) => {
      if (held?.what === "line" && !held.moved) moveTo(view().at(place(event)));
      held = null;
    });
    life.listen(target, "pointercancel", () => (held = null));
  }
  const wheel = (event) => {
    const ours = line.element.contains(document.activeElement) || event.ctrlKey || event.metaKey;
    if (!ours) return; // a page that is scrolled past keeps scrolling
    event.preventDefault();
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(event.deltaX * view().perPixel);
    else
      zoom(
        2 ** (Math.sign(event.deltaY) * Math.min(1, Math.abs(event.deltaY) / 200)),
        view().u(view().at(place(event))),
      );
  };
  life.listen(line.element, "wheel", wheel, { passive: false });
}

export function keyboard(line, handle, life, { step, zoom, look, pan }) {
  const shared = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Home: () => look("everything"),
  };
  const keys = {
    line: { ArrowLeft: () => pan(-60), ArrowRight: () => pan(60), ...shared },
    x: {
      ArrowLeft: (far) => step(-far),
      ArrowDown: (far) => step(-far),
      ArrowRight: (far) => step(far),
      ArrowUp: (far) => step(far),
      PageUp: () => step(50),
      PageDown: () => step(-50),
      ...shared,
    },
  };
  const press = (set) => (event) => {
    const act = event.ctrlKey || event.metaKey || event.altKey ? null : set[event.key];
    if (!act) return;
    event.preventDefault();
    act(event.shiftKey ? 25 : 4);
  };
  life.listen(line.canvas, "keydown", press(keys.line));
  life.listen(handle, "keydown", press(keys.x));
}

export function controlsRow(model, formats, act) {
  const id = newName("nl");
  const box = h("input", {
    id,
    class: "nl-box",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": `${id}-problem`,
  });
  const format = choice({ label: "Format", onChange: (name) => put(model, { format: name }) });
  const scale = segmented({
    label: "Scale",
    labelled: false,
    options: [
      { value: "log", label: "log", title: "positive numbers, by powers of two" },
      "linear",
    ],
    value: model.get("scale"),
    onChange: act.rescale,
  });
  const make = (label, title, onPress) => button({ label, title, onPress }).element;
  const zooms = h(
    "div",
    { class: "lk-row lk-tight", role: "group", "aria-label": "What is seen" },
    make("\u2212", "zoom out (minus key)", () => act.zoom(2)),
    make("+", "zoom in (plus key)", () => act.zoom(0.5)),
    make("everything", "all numbers of the format (Home)", () => act.look("everything")),
    make("subnormals", "where the exponent field is 0", () => act.look("subnormals")),
    make("around x", "close enough to see single numbers", () => act.look("x")),
  );
  const problem = h("p", { class: "nl-problem lk-error", id: `${id}-problem`, role: "status" });
  box.addEventListener("input", () => set(act.type(box.value), box.value));
  const number = h("div", { class: "lk-row lk-tight" }, h("label", { for: id, text: "x" }), box);
  function set(wrong = "", text = null) {
    format.show(
      [...formats.keys()].map((name) => [name, name]),
      model.get("format"),
    );
    scale.set(model.get("scale"));
    if (text === null && readPlace(box.value).x !== model.get("x"))
      box.value = as_text(model.get("x"));
    box.setAttribute("aria-invalid", String(wrong !== ""));
    problem.replaceChildren(rich(wrong && `\u2717 ${wrong}`));
  }
  return {
    element: h(
      "div",
      {},
      h("div", { class: "lk-row" }, number, format.element, scale.element, zooms),
      problem,
    ),
    set,
  };
}

// What is typed as a place on the line, {x}, or why it is none, {problem}.
export function readPlace(text) {
  try {
    const { value } = parse(text, FP64);
    if (Number.isFinite(value)) return { x: value };
    return {
      problem: `${text.trim()} has no place on this line. Give a finite number, such as 65520.`,
    };
  } catch (error) {
    return {
      problem: text.trim() ? error.message : "Nothing is typed. Give a number, such as 0.1.",
    };
  }
}

export function modes(onChoose) {
  const name = newName("nl-modes");
  const parts = new Map();
  const element = h("fieldset", {
    class: "nl-modes",
    role: "radiogroup",
    "aria-label": "Rounding whose interval is shaded",
  });
  const heads = ["x is rounded", "and becomes", "error or odds"].map((text) => h("span", { text }));
  element.append(h("div", { class: "nl-mode nl-heads lk-quiet", "aria-hidden": "true" }, ...heads));
  return {
    element,
    set(answer) {
      for (const row of answer.rows) {
        if (!parts.has(row.mode)) {
          const input = h("input", { type: "radio", name, value: row.mode });
          const [value, error] = [h("b", { class: "nl-value" }), h("span", { class: "nl-error" })];
          input.addEventListener("change", () => onChoose(row.mode));
          element.append(
            h(
              "label",
              { class: "nl-mode" },
              h("span", {}, input, row.name.replace("-", "\u2212")),
              value,
              error,
            ),
          );
          parts.set(row.mode, { input, value, error });
        }
        const { input, value, error } = parts.get(row.mode);
        input.checked = row.mode === answer.rounding;
        value.replaceChildren(rich(withMinus(row.value).replaceAll("^\u2212", "^-")));
        error.textContent = withMinus(row.error);
      }
    },
  };
}
