// The field for a number, which is typed or chosen on a logarithmic line. Once the truth is known,
// the line shows both numbers and the distance between them.

import { slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { decimal } from "../base/number_words.js";

/** @import { Asked, Asking, Ruler } from "./view.js" */

// The steps of the slider in each power of ten.
const STEPS = 20;
const MOST_TICKS = 8;
// The rounding error of the logarithm of a power of ten is smaller than this.
const SLACK = 1e-9;

/** @typedef {{ value: number, kind: "tick" | "guess" | "truth", text: string }} Mark */

/**
 * Return a typed text as a number, such as 24, 24 %, 1e-3, 1,000 or 2^-10; NaN if it is none.
 *
 * @param {string} text
 * @param {string} unit
 */
function typedNumber(text, unit) {
  const bare = text.trim().replace(unit.trim(), "").trim();
  // Only groups of three digits are separated by commas; in 0,125 the comma is a decimal one.
  const grouped = /^[1-9]\d{0,2}(,\d{3})+(\.\d*)?$/.test(bare);
  const plain = grouped ? bare.replaceAll(",", "") : bare;
  const raised = plain.match(/^(\d+)\^(-?\d+)$/);
  if (raised) return Number(raised[1]) ** Number(raised[2]);
  return plain === "" ? NaN : Number(plain);
}

/**
 * Return a ruler as a line of equal steps on a logarithmic scale.
 *
 * @param {Ruler} ruler
 */
function logLine({ low, high }) {
  const from = Math.log10(low);
  const to = Math.log10(high);
  return {
    last: Math.round(STEPS * (to - from)),
    /** @param {number} step */
    valueAt(step) {
      // An end with more digits would be rounded to a number beyond it.
      const rounded = Number((low * 10 ** (step / STEPS)).toPrecision(2));
      return Math.min(high, Math.max(low, rounded));
    },
    /** @param {number} value */
    stepOf: (value) => Math.round(STEPS * (Math.log10(value) - from)),
    /**
     * Return the position of a value, in percent of the line.
     *
     * @param {number} value
     */
    shareOf(value) {
      const share = (100 * (Math.log10(value) - from)) / (to - from);
      return Math.min(100, Math.max(0, share));
    },
    /** Return the powers of ten on the line, at most MOST_TICKS of them. */
    ticks() {
      const first = Math.ceil(from - SLACK);
      const count = Math.floor(to + SLACK) - first + 1;
      const every = Math.ceil(count / MOST_TICKS);
      const powers = Array.from({ length: count }, (_, i) => first + i);
      const kept = powers.filter((power) => (power - first) % every === 0);
      return kept.map((power) => Number(`1e${power}`));
    },
  };
}

/**
 * Return a field and a slider for a number.
 *
 * @param {Asking} asking
 * @param {Ruler} ruler
 * @returns {Asked}
 */
export function numberAsked({ model, life, pick }, ruler) {
  const { low, high, unit } = ruler;
  const line = logLine(ruler);
  /** @param {number} value */
  const words = (value) => `${decimal(value)}${unit}`;
  const range = `from ${words(low)} to ${words(high)}`;
  const field = h("input", {
    type: "text",
    class: "lk-guess",
    "aria-label": `Your number${unit && `, in ${unit}`}, ${range}`,
    autocomplete: "off",
  });
  const problem = h("span", { class: "lk-error", role: "alert" });
  const slid = slider({
    label: `Your number on a logarithmic line ${range}`,
    min: 0,
    max: line.last,
    page: STEPS,
    value: line.last / 2,
    labelled: false,
    text: (step) => words(line.valueAt(step)),
    onInput(step) {
      const value = line.valueAt(step);
      if (take(value, false)) field.value = decimal(value);
    },
  });
  const marks = h("div", { class: "lk-marks", "aria-hidden": "true" });

  /**
   * Take a number if it is on the ruler, else show a message. Return whether it was taken.
   *
   * @param {number} value
   * @param {boolean} empty whether the field is empty, which needs no message
   */
  function take(value, empty) {
    const fits = value >= low && value <= high;
    const point = field.value.includes(",") ? ", with a decimal point, not a comma" : "";
    problem.textContent = fits || empty ? "" : `Write a number ${range}${point}.`;
    field.setAttribute("aria-invalid", String(!fits && !empty));
    pick(fits ? String(value) : "");
    return fits;
  }
  life.listen(field, "input", () => {
    const value = typedNumber(field.value, unit);
    if (take(value, field.value.trim() === "")) slid.set(line.stepOf(value));
  });

  /**
   * Show the committed number. It may come from another view or an earlier visit; a text that
   * already means it stays as it was typed.
   *
   * @param {number} guess
   */
  function showCommitted(guess) {
    problem.textContent = "";
    field.setAttribute("aria-invalid", "false");
    if (typedNumber(field.value, unit) === guess) return;
    field.value = decimal(guess);
    slid.set(line.stepOf(guess));
  }

  /**
   * @param {number} truth
   * @returns {Mark[]}
   */
  function knownMarks(truth) {
    const guess = Number(model.get("choice"));
    const measured = Number(truth.toPrecision(3));
    return [
      { value: guess, kind: "guess", text: `you: ${words(guess)}` },
      { value: truth, kind: "truth", text: `it: ${words(measured)}` },
    ];
  }

  return {
    element: h(
      "div",
      { class: "lk-number-asked" },
      h("div", { class: "lk-row" }, field, h("span", { text: unit.trim() }), problem),
      slid.element,
      marks,
    ),
    show(done) {
      const truth = model.get("truth");
      const known = done && truth > 0;
      if (done) showCommitted(Number(model.get("choice")));
      field.disabled = done;
      slid.enable(!done);
      slid.element.hidden = known;
      drawMarks(marks, line, unit, known ? knownMarks(truth) : []);
    },
  };
}

/**
 * Draw the ticks of the line and, once the truth is known, both numbers and the bar between them.
 *
 * @param {HTMLElement} marks the element in which they are drawn
 * @param {ReturnType<typeof logLine>} line
 * @param {string} unit
 * @param {Mark[]} known the guess and the truth; empty until the truth is known
 */
function drawMarks(marks, line, unit, known) {
  // A longer unit would make the marks overlap; it is shown beside the field.
  const shortUnit = unit.length > 1 ? "" : unit;
  const ticks = line.ticks().map((value) => {
    const text = `${decimal(value)}${shortUnit}`;
    return lineMark({ value, kind: "tick", text }, line.shareOf(value));
  });
  const ends = known.map(({ value }) => line.shareOf(value));
  marks.replaceChildren(...ticks);
  if (known.length) {
    const style = { "--lk-at": String(Math.min(...ends)), "--lk-to": String(Math.max(...ends)) };
    marks.append(h("span", { class: "lk-between", style }));
    marks.append(...known.map((mark, i) => lineMark(mark, ends[i])));
  }
  marks.dataset.known = String(known.length > 0);
}

/**
 * @param {Mark} mark
 * @param {number} share its position, in percent of the line
 */
function lineMark({ kind, text }, share) {
  const about = { class: "lk-mark", data: { kind }, style: { "--lk-at": String(share) } };
  return h("span", about, rich(text));
}
