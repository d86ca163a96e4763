// An addition on paper: bits under each other, one scene for each station (sheet.js), between which they move (paper.js).

import {
  button,
  newName,
  fact,
  segmented,
  sentence,
  traitChoice,
  walker,
} from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { reducedMotion } from "../base/theme.js";
import { derived, parse } from "../exact/numbers.js";
import { makePaper } from "./paper.js";
import { paperOf } from "./sheet.js";

const PACE_MS = 1900; // between two stations while playing

// --- controls -------------------------------------------------------------------------------------------------------

function numberField(name, alert, onType) {
  const id = newName(`ad-${name}`);
  const input = h("input", {
    id,
    type: "text",
    class: "ad-input",
    autocomplete: "off",
    spellcheck: "false",
  });
  const hint = h("span", { id: `${id}-hint`, class: "lk-quiet ad-hint" });
  input.setAttribute("aria-describedby", `${id}-hint ${alert.id}`);
  let shown = null; // the text of the trait that was shown last
  input.addEventListener("change", () => onType(input.value));
  return {
    element: h("div", { class: "ad-field" }, h("label", { for: id, text: name }), input, hint),
    set(text, problem, words) {
      if (text !== shown) input.value = text; // what is being typed stays while the player plays
      shown = text;
      input.setAttribute("aria-invalid", String(Boolean(problem)));
      hint.textContent = problem ? "not understood" : words;
    },
  };
}

function stations(onChoose) {
  const element = h("div", { class: "ad-stations" });
  let titles = "";
  let control = null;
  return {
    element,
    set(names, step) {
      if (titles !== names.join()) {
        titles = names.join();
        const options = names.map((name, i) => ({ value: String(i), label: name }));
        const focused = element.contains(document.activeElement);
        control = segmented({
          label: "Station",
          options,
          value: String(step),
          onChange: (i) => onChoose(Number(i)),
          labelled: false,
        });
        element.replaceChildren(control.element);
        if (focused) element.querySelector("input:checked")?.focus();
      }
      control.set(String(step));
    },
  };
}

function factList() {
  const element = h("div", { class: "lk-row lk-facts", role: "list", "aria-label": "Facts" });
  return {
    element,
    set(facts, known) {
      element.classList.toggle("ad-unknown", !known);
      element.replaceChildren(
        ...facts.map(([name, text]) => fact(name, name === "bits" ? fields(text) : rich(text))),
      );
    },
  };
}

function fields(bits) {
  const fragment = document.createDocumentFragment();
  bits.split(" ").forEach((field, i) => {
    fragment.append(
      h("span", {
        class: "ad-field-bits",
        tabindex: "0",
        title: ["sign", "exponent", "significand"][i],
        text: field,
      }),
    );
    fragment.append(i < 2 ? " " : "");
  });
  return fragment;
}

// --- the widget -----------------------------------------------------------------------------------------------------

export default view(
  { label: "An addition, step by step", kind: "addition", alone: true },
  (root, model, life) => {
    const formats = new Map(model.get("_formats").map((row) => [row.name, derived(row)]));
    const problems = {}; // "a" or "b" -> what is wrong with the text in that field
    let sheet = null;
    const type = (name) => (text) => {
      delete problems[name];
      try {
        parse(text, formats.get(model.get("format_name")));
        put(model, { [name]: text });
      } catch (error) {
        problems[name] = error.message;
      }
      follow();
    };
    const alert = h("p", {
      class: "ad-problem lk-error",
      id: newName("ad-problem"),
      role: "alert",
    });
    const typed = {
      a: numberField("a", alert, type("a")),
      b: numberField("b", alert, type("b")),
    };
    const signs = [
      { value: "add", label: "+", title: "add" },
      { value: "multiply", label: "×", title: "multiply" },
    ];
    const operation = traitChoice(model, "operation", "Operation", signs, { labelled: false });
    const choices = traitChoice(model, "format_name", "Format", [...formats.keys()], {
      labelled: false,
    });
    const title = h("span", { class: "lk-title" });
    const place = h("span", { class: "lk-quiet" });
    const head = h("div", { class: "lk-head" }, title, place);
    const inputs = h(
      "div",
      { class: "lk-row ad-inputs" },
      typed.a.element,
      operation.element,
      typed.b.element,
      choices.element,
    );

    const playing = { title: "play the stations one after the other", pace: PACE_MS, life };
    const { play, now, move } = walker(model, "step", () => sheet.scenes.length - 1, playing);
    const first = button({
      label: "First",
      title: "back to the numbers as they are written",
      onPress: () => move(0),
    });
    const back = button({
      label: "Back",
      title: "one station back",
      onPress: () => move(now() - 1),
    });
    const next = button({ label: "Next", title: "one station on", onPress: () => move(now() + 1) });
    const last = button({ label: "Last", title: "to the result", onPress: () => move(Infinity) });
    const steps = stations(move);
    const buttons = h(
      "div",
      { class: "lk-row lk-tight ad-buttons" },
      ...[first, back, play, next, last].map(({ element }) => element),
    );
    const bar = h("div", { class: "lk-row ad-bar" }, buttons, steps.element);

    const paper = makePaper();
    const words = sentence(model);
    const facts = factList();
    for (const one of [paper, words, facts]) one.element.classList.add("lk-answer");
    root.append(head, inputs, alert, bar, paper.element, words.element, facts.element);

    let width = 0;
    function follow(still = false) {
      const step = Math.min(now(), sheet.scenes.length - 1);
      const atEnd = step === sheet.scenes.length - 1;
      for (const name of ["a", "b"])
        typed[name].set(model.get(name), problems[name], sheet.hints[name]);
      const problem = Object.entries(problems)
        .map(([name, said]) => `${name}: ${said}`)
        .join(" ");
      if (alert.textContent !== problem) alert.textContent = problem;
      title.textContent =
        model.get("operation") === "add" ? "An addition on paper" : "A multiplication on paper";
      place.textContent = `station ${step + 1} of ${sheet.scenes.length}`;
      operation.set(model.get("operation"));
      choices.set(model.get("format_name"));
      steps.set(
        sheet.scenes.map((scene) => scene.title),
        step,
      );
      for (const one of [first, back]) one.enable(step > 0, next);
      for (const one of [next, last]) one.enable(!atEnd, back);
      if (width) paper.draw(sheet, step, width, still || reducedMotion());
      words.say(sheet.scenes[step].sentence);
      facts.set(sheet.facts, atEnd);
    }

    function calculate() {
      for (const name of ["a", "b"]) delete problems[name];
      sheet = paperOf(
        model.get("a"),
        model.get("b"),
        formats.get(model.get("format_name")),
        model.get("operation"),
      );
      const step = Math.min(now(), sheet.scenes.length - 1);
      if (step !== now()) put(model, { step });
      follow();
    }

    const observer = new ResizeObserver(() => {
      width = paper.element.clientWidth;
      follow(true);
    });
    observer.observe(paper.element);
    life.add(() => observer.disconnect());
    watch(life, model, ["a", "b", "operation", "format_name"], calculate);
    watch(life, model, ["step"], () => follow());
    calculate();
  },
);
