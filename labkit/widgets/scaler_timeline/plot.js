// What both pictures of a scaler on a trace share: the window between underflow and overflow, the
// line of the scale, and the texts about a step.

import { power } from "../base/number_words.js";
import { inkCross, inkLine, stairs } from "../base/plot.js";
import { OVERFLOWS_FROM } from "./replay.js";

/** @import { Ink, Panel, Point, ScaleWindow, StepPlot } from "../base/plot.js" */
/** @import { Replay, Trace } from "./replay.js" */

/**
 * Return the scales from which each step overflows, and from which it keeps its gradients, as log2.
 *
 * @param {Trace} trace
 * @returns {ScaleWindow}
 */
export function windowOf({ largest, keeps_from }) {
  return { top: largest.map((size) => Math.log2(OVERFLOWS_FROM / size)), low: keeps_from };
}

/**
 * Return the lowest and the highest scale of some replays, as log2.
 *
 * @param {readonly Pick<Replay, "scale">[]} replays
 * @param {readonly [low: number, high: number]} [least] a range that the result includes
 * @returns {[low: number, high: number]}
 */
export function rangeOf(replays, least = [Infinity, -Infinity]) {
  let [low, high] = least;
  for (const { scale } of replays) {
    for (const e of scale) {
      low = Math.min(low, e);
      high = Math.max(high, e);
    }
  }
  return [low, high];
}

/**
 * The style of the line of a scale.
 *
 * @typedef {object} ScaleStyle
 * @property {string} [colour]
 * @property {number} [width] In pixels.
 * @property {number} [crosses] Half the width of a cross in pixels; 0 for no crosses. Rings are
 *   only drawn around crosses larger than 4.
 * @property {number[]} [dash]
 */

/**
 * Draw the scale of each step, with a cross at each skipped step, and a ring around it if
 * hysteresis kept the scale.
 *
 * @param {StepPlot} plot
 * @param {Replay} replay
 * @param {(value: number) => number} y
 * @param {ScaleStyle} [style]
 */
export function drawScale(plot, replay, y, style = {}) {
  const { colour = plot.tint.fp16, width = 2.25, crosses = 4, dash = [] } = style;
  inkLine(plot, stairs(plot, replay.scale, y), colour, width, { dash });
  if (!crosses) return;
  const end = Math.min(replay.scale.length, plot.first + plot.total);
  for (let i = plot.first; i < end; i++) {
    if (!replay.skipped[i]) continue;
    const px = plot.x(i + 1);
    const py = y(replay.scale[i]);
    if (px < plot.left || px > plot.end) continue;
    if (replay.skipped[i] > 1 && crosses > 4) drawHeld(plot, px, py);
    inkCross(plot, px, py, crosses, plot.tint.ink, 1.75);
  }
}

/**
 * Draw the ring of a skipped step at which hysteresis kept the scale.
 *
 * @param {Ink} ink
 * @param {number} x
 * @param {number} y
 */
export function drawHeld({ pen, tint }, x, y) {
  pen.beginPath();
  pen.arc(x, y, 9, 0, 2 * Math.PI);
  pen.strokeStyle = tint.ink;
  pen.lineWidth = 1.5;
  pen.stroke();
}

/**
 * Draw a line from the top of one panel to the foot of another, at the step under the pointer.
 *
 * @param {StepPlot} plot
 * @param {number} step
 * @param {Panel} upper
 * @param {Panel} [lower]
 */
export function drawHovered(plot, step, upper, lower = upper) {
  const x = plot.x(step);
  /** @type {Point[]} */
  const ends = [
    [x, upper.top],
    [x, lower.top + lower.height],
  ];
  inkLine(plot, ends, plot.tint.ink, 1, { alpha: 0.6 });
}

const TICK_STEPS = [1, 2, 4, 8, 16, 32];
const MOST_TICKS = 6;

/**
 * Return the ticks of an axis of scales, as log2; their labels are exponents.
 *
 * @param {readonly [low: number, high: number]} range
 * @returns {[value: number, exponent: number][]}
 */
export function scaleTicks([low, high]) {
  const every = TICK_STEPS.find((step) => (high - low) / step <= MOST_TICKS) ?? 64;
  const first = Math.ceil(low / every) * every;
  const count = Math.floor((high - first) / every) + 1;
  return Array.from({ length: count }, (_, i) => [first + i * every, first + i * every]);
}

/**
 * Return the text about a step: its scale, what happened, and the window of good scales.
 *
 * @param {Replay} replay
 * @param {ScaleWindow} bounds
 * @param {number} step
 */
export function stepText(replay, bounds, step) {
  const i = step - 1;
  const scale = power(Number(replay.scale[i].toFixed(1)));
  const top = bounds.top[i];
  // Gradients that are all 0 overflow at no scale.
  const overflow = top === Infinity ? "no overflow" : `overflow from 2^${top.toFixed(1)}`;
  const fate = fateOfStep(replay, i);
  return `step ${step}: scale ${scale}, ${fate} (${overflow}, losses below 2^${bounds.low[i]})`;
}

/**
 * Return what happened in a step, as text.
 *
 * @param {Replay} replay
 * @param {number} i the index of the step, from 0
 */
function fateOfStep({ skipped, lossy }, i) {
  if (skipped[i] > 1) return "inf, skipped, and hysteresis keeps the scale";
  if (skipped[i]) return "inf, skipped";
  return lossy[i] ? "loses gradients" : "clean";
}
