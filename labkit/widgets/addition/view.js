// An addition on paper, bit by bit. Each step of it is a scene (scenes.js), which learners know as
// a station; the bits move from scene to scene (paper.js).

import {
  button,
  fact,
  newName,
  segmented,
  sentence,
  traitChoice,
  walker,
} from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { reducedMotion } from "../base/theme.js";
import { knownFormats } from "../exact/known.js";
import { derived, parse } from "../exact/numbers.js";
import { makePaper } from "./paper.js";
import { paperOf } from "./scenes.js";
import { NAMES } from "./words.js";

/** @import { Segmented } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { KnownFormats } from "../exact/known.js" */
/** @import { Format, FormatRow } from "../exact/numbers.js" */
/** @import { Paper } from "./scenes.js" */
/** @import { Name, Operation } from "./sheet.js" */

/**
 * @typedef {object} Traits
 * @property {string} a
 * @property {string} b
 * @property {string} format_name
 * @property {Operation} operation
 * @property {number} step The index of the scene.
 * @property {string} sentence
 * @property {FormatRow[]} _formats All formats that can be chosen.
 */

// The time between two scenes while playing.
const PACE_MS = 1900;

// --- controls ------------------------------------------------------------------------------------

/**
 * Return the text field of a or b, with a hint about the number in the format.
 *
 * @param {Name} name
 * @param {string} alertId the id of the element that shows problems
 * @param {(text: string) => void} onType
 */
function numberField(name, alertId, onType) {
  const id = newName(`ad-${name}`);
  const input = h("input", {
    id,
    type: "text",
    class: "ad-input",
    autocomplete: "off",
    spellcheck: "false",
    "aria-describedby": `${id}-hint ${alertId}`,
  });
  const hint = h("span", { id: `${id}-hint`, class: "lk-quiet ad-hint" });
  /** @type {string | null} */
  let lastText = null;
  let wasWrong = false;
  input.addEventListener("change", () => onType(input.value));
  return {
    element: h("div", { class: "ad-field" }, h("label", { for: id, text: name }), input, hint),
    /**
     * @param {string} text
     * @param {boolean} wrong whether the input is not a number
     * @param {string} words the hint about the number in the format
     */
    set(text, wrong, words) {
      // An unfinished input must stay while scenes are played, and one that is not a number as long
      // as its problem is shown.
      if (text !== lastText || (wasWrong && !wrong)) input.value = text;
      lastText = text;
      wasWrong = wrong;
      input.setAttribute("aria-invalid", String(wrong));
      hint.textContent = wrong ? "not understood" : words;
    },
  };
}

/**
 * Return the choice of a scene. Its options depend on the calculation.
 *
 * @param {(step: number) => void} onChoose
 */
function sceneChoice(onChoose) {
  const element = h("div", { class: "ad-stations" });
  let titles = "";
  /** @type {Segmented<string> | null} */
  let control = null;

  /**
   * @param {string[]} names
   * @param {number} step
   */
  function build(names, step) {
    const focused = element.contains(document.activeElement);
    control = segmented({
      label: "Station",
      options: names.map((label, i) => ({ value: String(i), label })),
      value: String(step),
      onChange: (i) => onChoose(Number(i)),
      labelled: false,
    });
    element.replaceChildren(control.element);
    /** @type {HTMLElement | null} */
    const checked = element.querySelector("input:checked");
    if (focused) checked?.focus();
  }

  return {
    element,
    /**
     * @param {string[]} names
     * @param {number} step
     */
    set(names, step) {
      if (titles !== names.join()) build(names, step);
      titles = names.join();
      control?.set(String(step));
    },
  };
}

/**
 * Return the buttons that go from scene to scene.
 *
 * @param {HTMLElement} play
 * @param {() => number} now
 * @param {(step: number) => void} move
 */
function sceneButtons(play, now, move) {
  const first = button({
    label: "First",
    title: "back to the numbers as they are written",
    onPress: () => move(0),
  });
  const back = button({ label: "Back", title: "one station back", onPress: () => move(now() - 1) });
  const next = button({ label: "Next", title: "one station on", onPress: () => move(now() + 1) });
  const last = button({ label: "Last", title: "to the result", onPress: () => move(Infinity) });
  const all = [first.element, back.element, play, next.element, last.element];
  return {
    element: h("div", { class: "lk-row lk-tight ad-buttons" }, ...all),
    /**
     * @param {boolean} atStart
     * @param {boolean} atEnd
     */
    set(atStart, atEnd) {
      first.enable(!atStart, next);
      back.enable(!atStart, next);
      next.enable(!atEnd, back);
      last.enable(!atEnd, back);
    },
  };
}

/** Return the list of facts about the result, which is hidden before the last station. */
function factList() {
  const element = h("div", { class: "lk-row lk-facts", role: "list", "aria-label": "Facts" });
  return {
    element,
    /**
     * @param {Paper["facts"]} facts
     * @param {boolean} known
     */
    set(facts, known) {
      const elements = facts.map(([name, text]) =>
        fact(name, name === "bits" ? fieldParts(text) : rich(text)),
      );
      element.classList.toggle("ad-unknown", !known);
      element.replaceChildren(...elements);
    },
  };
}

/**
 * Return the bits of sign, exponent and significand, each with its name as a title.
 *
 * @param {string} bits with a space between fields
 */
function fieldParts(bits) {
  const fragment = document.createDocumentFragment();
  const [sign, exponent, significand] = bits.split(" ");
  fragment.append(
    fieldPart("sign", sign),
    " ",
    fieldPart("exponent", exponent),
    " ",
    fieldPart("significand", significand),
  );
  return fragment;
}

/**
 * @param {string} title
 * @param {string} text
 */
function fieldPart(title, text) {
  return h("span", { class: "ad-field-bits", tabindex: "0", title, text });
}

// --- the widget ----------------------------------------------------------------------------------

const OPERATION_CHOICES = [
  { value: /** @type {const} */ ("add"), label: "+", title: "add" },
  { value: /** @type {const} */ ("multiply"), label: "×", title: "multiply" },
];

/**
 * Return why a text is not a number; "" if it is one.
 *
 * @param {string} text
 * @param {Format} format
 */
function problemIn(text, format) {
  try {
    parse(text, format);
    return "";
  } catch (error) {
    return error instanceof Error ? error.message : String(error);
  }
}

/**
 * The calculation that is shown.
 *
 * @typedef {object} Addition
 * @property {Model<Traits>} model
 * @property {KnownFormats<Format>} formats
 * @property {Paper} paper The paper of a and b, as the traits have them.
 * @property {Map<Name | "format", string>} problems Why a typed number or a chosen format was not
 *   taken.
 */

/** @param {Pick<Addition, "model" | "formats">} addition */
function chosenFormat({ model, formats }) {
  return formats.called(model.get("format_name"));
}

/** @param {Pick<Addition, "model" | "formats">} addition */
function computePaper(addition) {
  const { model } = addition;
  const format = chosenFormat(addition);
  return paperOf(model.get("a"), model.get("b"), format, model.get("operation"));
}

/**
 * Take a typed number, or note why it is not one.
 *
 * @param {Addition} addition
 * @param {Name} name
 * @param {string} text
 */
function takeText(addition, name, text) {
  const { model, problems } = addition;
  const problem = problemIn(text, chosenFormat(addition));
  if (problem) {
    problems.set(name, problem);
    return;
  }
  problems.delete(name);
  problems.delete("format");
  put(model, { [name]: text });
}

/**
 * Take a format in which a and b are numbers. A code may have too many bits for it.
 *
 * @param {Addition} addition
 * @param {string} name
 */
function takeFormat({ model, formats, problems }, name) {
  const texts = NAMES.map((operand) => model.get(operand));
  const problem = texts.map((text) => problemIn(text, formats.called(name))).find(Boolean);
  if (problem) {
    problems.set("format", problem);
  } else {
    put(model, { format_name: name });
  }
}

/**
 * Return the row in which the calculation is chosen, and the line of its problems.
 *
 * @param {Addition} addition
 * @param {() => void} update shows the calculation
 */
function calculationControls(addition, update) {
  const { model, formats, problems } = addition;
  const alertId = newName("ad-problem");
  const alert = h("p", { class: "ad-problem lk-error", id: alertId, role: "alert" });
  /** @param {Name} name */
  const field = (name) =>
    numberField(name, alertId, (text) => {
      takeText(addition, name, text);
      update();
    });
  const fields = { a: field("a"), b: field("b") };
  const operation = traitChoice(model, "operation", "Operation", OPERATION_CHOICES, {
    labelled: false,
  });
  const format = traitChoice(model, "format_name", "Format", formats.names(), {
    labelled: false,
    onChange(name) {
      takeFormat(addition, name);
      update();
    },
  });
  const parts = [fields.a.element, operation.element, fields.b.element, format.element];
  return {
    elements: [h("div", { class: "lk-row ad-inputs" }, ...parts), alert],
    show() {
      const { hints } = addition.paper;
      for (const name of NAMES) {
        fields[name].set(model.get(name), problems.has(name), hints[name]);
      }
      const problem = [...problems].map(([name, text]) => `${name}: ${text}`).join(" ");
      // Screen readers read an alert each time it is set.
      if (alert.textContent !== problem) alert.textContent = problem;
      operation.set(model.get("operation"));
      format.set(model.get("format_name"));
    },
  };
}

/**
 * Fill the root of the addition.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillAddition(root, model, life) {
  const formats = knownFormats(model, derived);
  const paper = computePaper({ model, formats });
  /** @type {Addition} */
  const addition = { model, formats, paper, problems: new Map() };
  let width = 0;
  const controls = calculationControls(addition, update);
  const title = h("span", { class: "lk-title" });
  const progress = h("span", { class: "lk-quiet" });
  const playing = { title: "play the stations one after the other", pace: PACE_MS, life };
  const lastStep = () => addition.paper.scenes.length - 1;
  const { play, now, move } = walker(model, "step", lastStep, playing);
  const buttons = sceneButtons(play.element, now, move);
  const scenes = sceneChoice(move);
  const paperView = makePaper();
  const words = sentence(model);
  const facts = factList();
  for (const part of [paperView, words, facts]) part.element.classList.add("lk-answer");
  root.append(
    h("div", { class: "lk-head" }, title, progress),
    ...controls.elements,
    h("div", { class: "lk-row ad-bar" }, buttons.element, scenes.element),
    paperView.element,
    words.element,
    facts.element,
  );

  /** @param {boolean} [still] whether bits jump to their new places instead of moving */
  function update(still = false) {
    const shown = addition.paper;
    const last = lastStep();
    const step = Math.min(now(), last);
    const adds = model.get("operation") === "add";
    controls.show();
    title.textContent = adds ? "An addition on paper" : "A multiplication on paper";
    progress.textContent = `station ${step + 1} of ${shown.scenes.length}`;
    const titles = shown.scenes.map((scene) => scene.title);
    scenes.set(titles, step);
    buttons.set(step === 0, step === last);
    if (width) paperView.draw(shown, step, width, still || reducedMotion());
    words.say(shown.scenes[step].sentence);
    facts.set(shown.facts, step === last);
  }

  function recalculate() {
    addition.problems.clear();
    addition.paper = computePaper(addition);
    const step = Math.min(now(), lastStep());
    if (step !== now()) put(model, { step });
    update();
  }

  const observer = new ResizeObserver(() => {
    width = paperView.element.clientWidth;
    update(true);
  });
  observer.observe(paperView.element);
  life.add(() => observer.disconnect());
  watch(life, model, ["a", "b", "operation", "format_name"], recalculate);
  watch(life, model, ["step"], () => update());
  recalculate();
}

export default view(
  { label: "An addition, step by step", kind: "addition", alone: true },
  fillAddition,
);
