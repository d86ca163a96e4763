// The field for a number, which is typed or chosen on a logarithmic line. Once the truth is known,
// the line shows both numbers and the distance between them.

import { slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { decimal } from "../base/number_words.js";

/** @import { Asked, Asking, Ruler } from "./view.js" */

const STEPS = 20; // of the slider, in a power of ten
const MOST_TICKS = 8;
const SLACK = 1e-9; // the logarithm of a power of ten is off by less

/** @typedef {{ value: number, kind: "tick" | "guess" | "truth", text: string }} Mark */

/**
 * What a person types: 24, 24 %, 1e-3, 1,000, 2^-10. NaN where it is none.
 *
 * @param {string} text
 * @param {string} unit
 */
function typedNumber(text, unit) {
  const bare = text.trim().replace(unit.trim(), "").trim();
  const plain = bare.replace(/,(?=\d{3}\b)/g, "");
  const raised = plain.match(/^(\d+)\^(-?\d+)$/);
  if (raised) return Number(raised[1]) ** Number(raised[2]);
  return plain === "" ? NaN : Number(plain);
}

/**
 * A ruler as a line of equal steps.
 *
 * @param {Ruler} ruler
 */
function logLine({ low, high }) {
  const from = Math.log10(low);
  const to = Math.log10(high);
  return {
    last: Math.round(STEPS * (to - from)),
    /** @param {number} step */
    valueAt: (step) => Math.min(high, Number((low * 10 ** (step / STEPS)).toPrecision(2))),
    /** @param {number} value */
    stepOf: (value) => Math.round(STEPS * (Math.log10(value) - from)),
    /**
     * Where a value lies, in percent of the line.
     *
     * @param {number} value
     */
    shareOf(value) {
      const share = (100 * (Math.log10(value) - from)) / (to - from);
      return Math.min(100, Math.max(0, share));
    },
    /** Powers of ten, a few of them where there are many. */
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
 * A field and a slider for a number.
 *
 * @param {Asking} asking
 * @param {Ruler} ruler
 * @returns {Asked}
 */
export function numberAsked({ model, life, picked, pick }, ruler) {
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
  const said = h("span", { class: "lk-error", role: "alert" });
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
   * Take a number that is on the ruler; say so where it is not. Return whether it is.
   *
   * @param {number} value
   * @param {boolean} empty whether nothing is written
   */
  function take(value, empty) {
    const fits = value >= low && value <= high;
    said.textContent = fits || empty ? "" : `Write a number ${range}.`;
    field.setAttribute("aria-invalid", String(!fits && !empty));
    pick(fits ? String(value) : "");
    return fits;
  }
  life.listen(field, "input", () => {
    const value = typedNumber(field.value, unit);
    if (take(value, field.value.trim() === "")) slid.set(line.stepOf(value));
  });
  if (picked) {
    field.value = decimal(Number(picked));
    slid.set(line.stepOf(Number(picked)));
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
      h("div", { class: "lk-row" }, field, h("span", { text: unit.trim() }), said),
      slid.element,
      marks,
    ),
    show(done) {
      const truth = model.get("truth");
      const known = done && truth > 0;
      field.disabled = done;
      slid.enable(!done);
      slid.element.hidden = known;
      drawMarks(marks, line, unit, known ? knownMarks(truth) : []);
    },
  };
}

/**
 * @param {HTMLElement} marks where they are drawn
 * @param {ReturnType<typeof logLine>} line
 * @param {string} unit
 * @param {Mark[]} known
 */
function drawMarks(marks, line, unit, known) {
  // A longer unit stands beside the field alone: marks stand close.
  const shortUnit = unit.length > 1 ? "" : unit;
  const ticks = line.ticks().map((value) => {
    const text = `${decimal(value)}${shortUnit}`;
    return lineMark({ value, kind: "tick", text }, line.shareOf(value));
  });
  const ends = known.map(({ value }) => line.shareOf(value));
  const told = known.map((mark, i) => lineMark(mark, ends[i]));
  const from = String(Math.min(...ends));
  const to = String(Math.max(...ends));
  const stretch = { class: "lk-between", style: { "--lk-at": from, "--lk-to": to } };
  const between = known.length ? [h("span", stretch)] : [];
  marks.replaceChildren(...ticks, ...between, ...told);
  marks.dataset.known = String(known.length > 0);
}

/**
 * @param {Mark} mark
 * @param {number} share where it stands, in percent
 */
function lineMark({ kind, text }, share) {
  const about = { class: "lk-mark", data: { kind }, style: { "--lk-at": String(share) } };
  return h("span", about, rich(text));
}
