// Mouse, wheel and keys on the number line, and its controls.

import { button, choice, newName, segmented } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put } from "../base/model.js";
import { derived, parse, ROUNDINGS, withMinus } from "../exact/numbers.js";
import { MODE_NAMES } from "./rounding.js";
import { asText, EDGE } from "./scale.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { KnownFormats } from "../exact/known.js" */
/** @import { Rounding } from "../exact/numbers.js" */
/** @import { LineFormat, RoundedView } from "./rounding.js" */
/** @import { Ends, Lens } from "./scale.js" */
/** @import { Traits } from "./view.js" */

/** @typedef {"everything" | "subnormals" | "x"} Sight what can be looked at */

/**
 * What hands can do.
 *
 * @typedef {object} Acts
 * @property {() => Lens} lens What is seen.
 * @property {(value: number) => void} moveTo Move x to a value.
 * @property {(pixels: number) => void} step Move x along.
 * @property {(pixels: number) => void} pan Move the window.
 * @property {(factor: number, place?: number) => void} zoom Widen the window about a place, in u.
 * @property {(ends: Ends) => void} frame Set the window, in u.
 * @property {(sight: Sight) => void} look
 * @property {(scale: "log" | "linear") => void} rescale
 * @property {(text: string) => string} type Set x; returns why the text is no place, or "".
 */

// --- mouse and keys ------------------------------------------------------------------------------

/**
 * What is held: x, or the line.
 *
 * @typedef {object} Held
 * @property {"x" | "line"} what
 * @property {number} start Where it was taken, in pixels.
 * @property {boolean} moved
 * @property {Lens} lens What was seen then.
 */

const CLICK = 3; // pixels: a press that moves less is a click
const NEAR = 8; // pixels from x: a press takes it

/**
 * @param {Figure} line
 * @param {HTMLElement} handle
 * @param {Life} life
 * @param {Acts} acts
 */
export function pointing(line, handle, life, acts) {
  /** @type {Held | null} */
  let held = null;
  /** @param {MouseEvent} event */
  const placeIn = (event) =>
    (event.clientX - line.element.getBoundingClientRect().left) / line.grown;

  /**
   * @param {PointerEvent} event
   * @param {HTMLElement} target
   * @param {"x" | "line"} what
   */
  function grab(event, target, what) {
    held = { what, start: placeIn(event), moved: false, lens: acts.lens() };
    target.setPointerCapture(event.pointerId);
    event.preventDefault();
    (what === "x" ? handle : line.canvas).focus({ preventScroll: true });
  }
  /** @param {PointerEvent} event */
  function drag(event) {
    if (!held) return;
    const place = placeIn(event);
    const by = place - held.start;
    if (Math.abs(by) > CLICK) held.moved = true;
    if (!held.moved) return;
    const { from, to, perPixel } = held.lens;
    if (held.what === "line") acts.frame([from - by * perPixel, to - by * perPixel]);
    else acts.moveTo(acts.lens().at(Math.min(line.width - EDGE, Math.max(EDGE, place))));
  }
  /** @param {PointerEvent} event */
  function release(event) {
    if (held?.what === "line" && !held.moved) acts.moveTo(acts.lens().at(placeIn(event)));
    held = null;
  }
  function drop() {
    held = null;
  }
  /** @param {WheelEvent} event */
  function turn(event) {
    const ours = line.element.contains(document.activeElement) || event.ctrlKey || event.metaKey;
    if (!ours) return; // a page that is scrolled past keeps scrolling
    event.preventDefault();
    const { deltaX, deltaY } = event;
    if (Math.abs(deltaX) > Math.abs(deltaY)) {
      acts.pan(deltaX);
      return;
    }
    const seen = acts.lens();
    const octaves = Math.sign(deltaY) * Math.min(1, Math.abs(deltaY) / 200);
    acts.zoom(2 ** octaves, seen.u(seen.at(placeIn(event))));
  }

  life.listen(handle, "pointerdown", (event) => grab(event, handle, "x"));
  life.listen(line.canvas, "pointerdown", (event) => {
    const x = Number(handle.getAttribute("aria-valuenow"));
    const near = Math.abs(placeIn(event) - acts.lens().x(x)) < NEAR;
    grab(event, line.canvas, near ? "x" : "line");
  });
  for (const target of [handle, line.canvas]) {
    life.listen(target, "pointermove", drag);
    life.listen(target, "pointerup", release);
    life.listen(target, "pointercancel", drop);
  }
  life.listen(line.element, "wheel", turn, { passive: false });
}

/** @typedef {Record<string, (pixels: number) => void>} Keys what each does; Shift goes farther */

/**
 * @param {Figure} line
 * @param {HTMLElement} handle
 * @param {Life} life
 * @param {Acts} acts
 */
export function keyboard(line, handle, life, { step, zoom, look, pan }) {
  /** @type {Keys} */
  const shared = {
    "+": () => zoom(0.5),
    "=": () => zoom(0.5),
    "-": () => zoom(2),
    Home: () => look("everything"),
  };
  /** @type {Keys} */
  const lineKeys = { ArrowLeft: () => pan(-60), ArrowRight: () => pan(60), ...shared };
  /** @type {Keys} */
  const handleKeys = {
    ArrowLeft: (pixels) => step(-pixels),
    ArrowDown: (pixels) => step(-pixels),
    ArrowRight: (pixels) => step(pixels),
    ArrowUp: (pixels) => step(pixels),
    PageUp: () => step(50),
    PageDown: () => step(-50),
    ...shared,
  };
  life.listen(line.canvas, "keydown", (event) => press(event, lineKeys));
  life.listen(handle, "keydown", (event) => press(event, handleKeys));
}

/**
 * @param {KeyboardEvent} event
 * @param {Keys} keys
 */
function press(event, keys) {
  const act = keys[event.key];
  if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event.shiftKey ? 25 : 4);
}

// --- controls ------------------------------------------------------------------------------------

/**
 * Buttons that change what is seen.
 *
 * @type {{ label: string, title: string, act: (acts: Acts) => void }[]}
 */
const SIGHTS = [
  { label: "\u2212", title: "zoom out (minus key)", act: (acts) => acts.zoom(2) },
  { label: "+", title: "zoom in (plus key)", act: (acts) => acts.zoom(0.5) },
  {
    label: "everything",
    title: "all numbers of the format (Home)",
    act: (acts) => acts.look("everything"),
  },
  {
    label: "subnormals",
    title: "where the exponent field is 0",
    act: (acts) => acts.look("subnormals"),
  },
  {
    label: "around x",
    title: "close enough to see single numbers",
    act: (acts) => acts.look("x"),
  },
];

/**
 * @param {Model<Traits>} model
 * @param {KnownFormats<LineFormat>} formats
 * @param {Acts} acts
 */
export function controlsRow(model, formats, acts) {
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
    onChange: acts.rescale,
  });
  const buttons = SIGHTS.map(({ label, title, act }) =>
    button({ label, title, onPress: () => act(acts) }),
  );
  const sights = h(
    "div",
    { class: "lk-row lk-tight", role: "group", "aria-label": "What is seen" },
    ...buttons.map(({ element }) => element),
  );
  const problem = h("p", { class: "nl-problem lk-error", id: `${id}-problem`, role: "status" });
  const number = h("div", { class: "lk-row lk-tight" }, h("label", { for: id, text: "x" }), box);
  const row = h("div", { class: "lk-row" }, number, format.element, scale.element, sights);

  /** @param {string} wrong why the text is no place, or "" */
  function say(wrong) {
    box.setAttribute("aria-invalid", String(wrong !== ""));
    problem.replaceChildren(rich(wrong && `\u2717 ${wrong}`));
  }
  box.addEventListener("input", () => say(acts.type(box.value)));
  return {
    element: h("div", {}, row, problem),
    /** Follow the traits. */
    set() {
      /** @type {[string, string][]} */
      const options = formats.names().map((name) => [name, name]);
      const x = model.get("x");
      format.show(options, model.get("format"));
      scale.set(model.get("scale"));
      if (readPlace(box.value).x !== x) box.value = asText(x);
      say("");
    },
  };
}

const FP64 = derived({
  name: "FP64",
  exponent_bits: 11,
  significand_bits: 52,
  specials: "IEEE",
  signed: true,
  has_zero: true,
});

/**
 * What is typed as a place on the line, or why it is none.
 *
 * @param {string} text
 * @returns {{ x: number, problem: "" } | { x: null, problem: string }}
 */
export function readPlace(text) {
  if (!text.trim()) return { x: null, problem: "Nothing is typed. Give a number, such as 0.1." };
  try {
    const { value } = parse(text, FP64);
    if (Number.isFinite(value)) return { x: value, problem: "" };
    const why = "has no place on this line. Give a finite number, such as 65520.";
    return { x: null, problem: `${text.trim()} ${why}` };
  } catch (error) {
    return { x: null, problem: error instanceof Error ? error.message : String(error) };
  }
}

// --- the table of roundings ----------------------------------------------------------------------

const HEADINGS = ["x is rounded", "and becomes", "error or odds"];

/** @param {(mode: Rounding) => void} onChoose */
export function modes(onChoose) {
  const group = newName("nl-modes");
  const rows = ROUNDINGS.map((mode) => modeChoice(mode, group, onChoose));
  const heads = HEADINGS.map((text) => h("span", { text }));
  const about = { role: "radiogroup", "aria-label": "Rounding whose interval is shaded" };
  const element = h(
    "fieldset",
    { class: "nl-modes", ...about },
    h("div", { class: "nl-mode nl-heads lk-quiet", "aria-hidden": "true" }, ...heads),
    ...rows.map((row) => row.element),
  );
  return {
    element,
    /** @param {RoundedView} answer */
    set({ rounding, rows: answers }) {
      for (const [i, { input, value, error }] of rows.entries()) {
        const { mode, value: becomes, error: off } = answers[i];
        input.checked = mode === rounding;
        value.replaceChildren(rich(withMinus(becomes).replaceAll("^\u2212", "^-")));
        error.textContent = withMinus(off);
      }
    },
  };
}

/**
 * @param {Rounding} mode
 * @param {string} group
 * @param {(mode: Rounding) => void} onChoose
 */
function modeChoice(mode, group, onChoose) {
  const input = h("input", { type: "radio", name: group, value: mode });
  const name = h("span", {}, input, withMinus(MODE_NAMES[mode]));
  const value = h("b", { class: "nl-value" });
  const error = h("span", { class: "nl-error" });
  input.addEventListener("change", () => onChoose(mode));
  return { element: h("label", { class: "nl-mode" }, name, value, error), input, value, error };
}
