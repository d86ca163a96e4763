// The bit explorer. Flipping a bit, typing, stepping and choosing a format make a new state
// (explored.js), and the whole widget shows it.

import { button, choice, fact, headed, newName, sentence } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { knownFormats } from "../exact/known.js";
import { derived, hexCode, widthsOf } from "../exact/numbers.js";
import { afterTyping, explore, exploredView, inFormat, stepped, withCode } from "./explored.js";
import { bitRow } from "./row.js";

/** @import { Button } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { KnownFormats } from "../exact/known.js" */
/** @import { Format, FormatRow } from "../exact/numbers.js" */
/** @import { ComparisonRow, Explored, ExploredView, Piece } from "./explored.js" */

/**
 * @typedef {object} Traits
 * @property {string} text The content of the text box.
 * @property {string} code The code in hexadecimal: JavaScript's numbers are exact only up to 2^53.
 * @property {string} format The name of the format.
 * @property {string} sentence
 * @property {FormatRow[]} _formats All formats that can be chosen.
 * @property {string[]} _compare The names of the formats that are compared.
 */

/** @typedef {(change: (now: Explored) => Explored) => void} Become makes a new state */

const HINT =
  "Click a bit, or type a number: a decimal 0.1, a code 0x3c00, a hex-float 0x1.8p-3, " +
  "a power 2^-24 or a fraction 1/3";

// --- the number ----------------------------------------------------------------------------------

/**
 * Return the text box, the steps to the neighbours and the choice of the format, with a hint below.
 *
 * @param {KnownFormats<Format>} formats
 * @param {Become} become
 */
function inputRow(formats, become) {
  const id = newName("be");
  const box = numberBox(id, become);
  /** @param {number} direction */
  const step = (direction) => become((now) => stepped(now, direction));
  const before = button({ label: "\u25c2 previous", onPress: () => step(-1) });
  const after = button({ label: "next \u25b8", onPress: () => step(1) });
  const format = choice({
    label: "Format",
    onChange: (name) => become((now) => inFormat(now, formats.called(name))),
  });
  const hint = h("p", { class: "be-hint lk-quiet", id: `${id}-hint`, role: "status" });
  const label = h("label", { for: id, text: "Number" });
  const number = h("div", { class: "lk-row lk-tight be-number" }, label, box);
  const about = { role: "group", "aria-label": "Representable neighbours" };
  const steps = h("div", { class: "lk-row lk-tight", ...about }, before.element, after.element);
  const row = h("div", { class: "lk-row" }, number, steps, format.element);
  return {
    element: h("div", { class: "be-top" }, row, hint),
    /** @param {ExploredView} view */
    set(view) {
      const { name } = view.format;
      if (box.value !== view.text) box.value = view.text;
      const options = formats.names().map((other) => formatOption(formats.called(other)));
      format.show(options, name);
      showNeighbour(before, view.before, "smaller", name);
      showNeighbour(after, view.after, "larger", name);
      box.setAttribute("aria-invalid", String(view.problem !== ""));
      showHint(hint, view.problem);
    },
  };
}

/**
 * @param {string} id
 * @param {Become} become
 */
function numberBox(id, become) {
  const box = h("input", {
    id,
    class: "be-box",
    type: "text",
    spellcheck: "false",
    autocomplete: "off",
    "aria-describedby": `${id}-hint`,
  });
  /** @type {Record<string, number>} */
  const directions = { ArrowUp: 1, ArrowDown: -1 };
  box.addEventListener("input", () => become((now) => afterTyping(now, box.value)));
  box.addEventListener("keydown", (event) => {
    const direction = directions[event.key];
    if (!direction) return;
    event.preventDefault();
    become((now) => stepped(now, direction));
  });
  return box;
}

/**
 * @param {Format} format
 * @returns {[value: string, text: string]}
 */
function formatOption(format) {
  return [format.name, `${format.name}  (${widthsOf(format).join(" + ")} bits)`];
}

/**
 * Show which number a step leads to. A button without a neighbour is not disabled, since it would
 * lose the focus.
 *
 * @param {Button} step
 * @param {string | null} next
 * @param {"smaller" | "larger"} word
 * @param {string} format
 */
function showNeighbour({ element }, next, word, format) {
  const none = `${format} has no ${word} value`;
  element.setAttribute("aria-disabled", String(next === null));
  element.title = next === null ? none : `the next ${word} ${format} number, ${next}`;
}

/**
 * @param {HTMLElement} hint
 * @param {string} problem
 */
function showHint(hint, problem) {
  hint.classList.toggle("lk-error", problem !== "");
  if (problem) {
    hint.replaceChildren(h("b", { text: "\u2717 " }), rich(problem));
  } else {
    hint.replaceChildren(rich(HINT));
  }
}

// --- the value and its formula -------------------------------------------------------------------

// Longer values have a smaller type.
const LONG_VALUE = 30;

/** Return the element with the value of the code, and its formula. */
function reading() {
  const value = h("output", { class: "be-value", "aria-live": "off" });
  const about = h("div", { class: "lk-quiet" });
  const holds = h("div", { class: "lk-quiet" });
  const formula = h("div", { class: "be-formula", role: "img" });
  const result = h("div", { class: "be-result" }, holds, value, about);
  return {
    element: h("div", { class: "lk-row be-reading lk-answer" }, result, formula),
    /** @param {ExploredView} view */
    set(view) {
      holds.textContent = `${view.format.name} holds`;
      value.textContent = view.valueText;
      value.classList.toggle("be-long", view.valueText.length > LONG_VALUE);
      about.replaceChildren(rich(view.about));
      formula.replaceChildren(...view.formula.map(formulaLine));
      formula.setAttribute("aria-label", view.formula.map(spokenLine).join(" = "));
    },
  };
}

/**
 * @param {Piece[]} line
 * @param {number} i
 */
function formulaLine(line, i) {
  const equals = i ? "= " : h("span", { class: "be-blank", text: "= " });
  const pieces = line.map(([text, field, raised]) => {
    const data = { field: field ?? "" };
    return h(raised ? "sup" : "span", { class: field && "be-piece", data, text });
  });
  return h("div", {}, equals, ...pieces);
}

/**
 * Return a line of the formula for screen readers, with "^" before exponents.
 *
 * @param {Piece[]} line
 */
function spokenLine(line) {
  return line.map(([text, , raised]) => (raised ? `^${text}` : text)).join("");
}

// --- the same number in several formats ----------------------------------------------------------

const COLUMNS = ["format", "bits", "holds", "error", "relative", "in ulps"];

function comparison() {
  const caption = h("caption", { class: "lk-quiet", text: "The same number in other formats" });
  const { element, body } = headed("be-table", COLUMNS, caption);
  return {
    element,
    /** @param {ExploredView} view */
    set(view) {
      body.replaceChildren(...view.rows.map((row) => tableRow(row, view.format.name)));
    },
  };
}

/**
 * @param {ComparisonRow} row
 * @param {string} current the format that is explored
 */
function tableRow(row, current) {
  const head = h("th", { scope: "row", data: { format: row.format }, text: row.format });
  const bits = row.bits.map(([field, text]) =>
    h("span", { class: "be-strip", data: { field }, text }),
  );
  const properties = {
    class: row.format === current ? "be-this" : undefined,
    data: { row: row.format },
  };
  return h(
    "tr",
    properties,
    head,
    h("td", { class: "be-strips" }, ...bits),
    h("td", { class: "be-holds", title: row.full }, rich(row.value)),
    h("td", { class: "be-error" }, rich(row.error)),
    h("td", { class: "be-relative" }, rich(row.relative)),
    h("td", { class: "be-ulps" }, rich(row.ulps)),
  );
}

// --- the widget ----------------------------------------------------------------------------------

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillBits(root, model, life) {
  const formats = knownFormats(model, derived);
  let state = stateOf(model, formats);
  let following = false;

  const top = inputRow(formats, become);
  const bits = bitRow((bit) =>
    become(({ format, code }) => withCode(format, code ^ (1n << BigInt(bit)))),
  );
  const read = reading();
  const facts = h("div", { class: "lk-row lk-facts", role: "list", "aria-label": "Facts" });
  const words = sentence(model);
  const table = comparison();
  for (const element of [bits.element, facts, words.element, table.element]) {
    element.classList.add("lk-answer");
  }
  root.append(top.element, bits.element, read.element, facts, words.element, table.element);

  /** @type {Become} */
  function become(change) {
    state = change(state);
    const { format, code, text, problem } = state;
    if (!problem) put(model, { format: format.name, code: `0x${code.toString(16)}`, text });
    show();
  }

  // Python code or another view may have set the traits.
  function follow() {
    following = false;
    if (agrees(state, model)) return;
    state = stateOf(model, formats);
    show();
  }

  // The traits change one after the other. The first of these changes may leave a text that is
  // not valid in the new format, so that `follow` waits for the last one.
  function followLater() {
    if (following) return;
    following = true;
    queueMicrotask(follow);
  }

  function show() {
    const compared = model.get("_compare").map((name) => formats.called(name));
    const view = exploredView(state, compared);
    top.set(view);
    bits.set(view.format.name, view.fields);
    read.set(view);
    facts.replaceChildren(...view.facts.map(([label, text]) => fact(label, rich(text))));
    words.say(view.sentence);
    table.set(view);
    root.dataset.code = hexCode(view.code, view.format);
  }

  watch(life, model, ["format", "code", "text"], followLater);
  show();
}

/**
 * Return the state that the traits mean. If text and code differ, the code counts.
 *
 * @param {Model<Traits>} model
 * @param {KnownFormats<Format>} formats
 * @returns {Explored}
 */
function stateOf(model, formats) {
  const format = formats.called(model.get("format"));
  const code = BigInt(model.get("code"));
  const text = model.get("text");
  const explored = explore(text, format);
  return explored.code === code ? explored : { ...withCode(format, code), text };
}

/**
 * Return whether a state is what the traits mean.
 *
 * @param {Explored} state
 * @param {Model<Traits>} model
 */
function agrees({ format, code, text, problem }, model) {
  if (problem || format.name !== model.get("format")) return false;
  return code === BigInt(model.get("code")) && text === model.get("text");
}

export default view({ label: "Bit explorer", kind: "bits", alone: true }, fillBits);
