// The sketch of a loss: its strokes, its loss at a step, and its comparison with a run.

import { decimal } from "../base/number_words.js";

/** @import { Sketch } from "./knobs.js" */
/** @import { RunRow } from "./plot.js" */
/** @import { Pen } from "./sketch_pen.js" */

/**
 * Return a sketch with a straight stroke, which replaces what was sketched between its ends.
 *
 * @param {Sketch} sketch
 * @param {Pick<Pen, "step" | "loss">} from
 * @param {Pick<Pen, "step" | "loss">} to
 * @returns {Sketch}
 */
export function withStroke(sketch, from, to) {
  const [first, last] = from.step <= to.step ? [from, to] : [to, from];
  /** @type {Sketch} */
  const stroke = [[last.step, last.loss]];
  if (last.step > first.step) stroke.unshift([first.step, first.loss]);
  const before = sketch.filter(([step]) => step < first.step);
  const after = sketch.filter(([step]) => step > last.step);
  return [...before, ...stroke, ...after];
}

/**
 * Return the loss that was sketched at a step; NaN outside the sketch.
 *
 * @param {Sketch} sketch
 * @param {number} step
 */
export function drawnAt(sketch, step) {
  const next = sketch.findIndex(([at]) => at >= step);
  if (next < 0) return NaN;
  const [end, loss] = sketch[next];
  if (end === step) return loss;
  if (next === 0) return NaN;
  const [begin, before] = sketch[next - 1];
  // A line that is straight on the logarithmic axis.
  return before * (loss / before) ** ((step - begin) / (end - begin));
}

/**
 * Return a sentence about the ends of a sketch; "" without one.
 *
 * @param {Sketch} sketch
 */
export function sketchWords(sketch) {
  if (!sketch.length) return "";
  const [first, last] = [sketch[0], sketch[sketch.length - 1]];
  const start = `You drew a loss of ${decimal(first[1])} at step ${first[0]}`;
  return last === first ? `${start}.` : `${start}, and ${decimal(last[1])} at step ${last[0]}.`;
}

/**
 * Return sentences that compare a sketch with the losses of a run; "" if they have no step in
 * common.
 *
 * @param {Sketch} sketch
 * @param {readonly RunRow[]} rows
 */
export function comparison(sketch, rows) {
  const both = rows
    .map(({ step, loss }) => ({ step, loss, drawn: drawnAt(sketch, step) }))
    .filter(({ drawn }) => !Number.isNaN(drawn));
  if (!both.length) return "";
  const end = both[both.length - 1];
  const words = `You drew ${decimal(end.drawn)} at step ${end.step}; it is ${decimal(end.loss)}.`;
  const finite = both.filter(({ loss }) => loss > 0 && Number.isFinite(loss));
  if (finite.length < 2) return words;
  const [furthest] = finite.toSorted((a, b) => apart(b) - apart(a));
  if (furthest.step === end.step) return words;
  const there = `${decimal(furthest.drawn)} drawn, ${decimal(furthest.loss)} trained`;
  return `${words} Furthest apart at step ${furthest.step}: ${there}.`;
}

/**
 * Return the distance of two losses on a logarithmic axis.
 *
 * @param {{ loss: number, drawn: number }} both
 */
function apart({ loss, drawn }) {
  return Math.abs(Math.log(loss / drawn));
}
