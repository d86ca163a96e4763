// The picture of the swallowed updates: axes, curves, and a name at the end of each.

import { inkSegment, inkText, niceStep } from "../base/plot.js";

/** @import { Ink } from "../base/plot.js" */

/**
 * How the curve of a method is drawn.
 *
 * @typedef {object} CurveStyle
 * @property {string} name The name of the method.
 * @property {"fp32" | "fp16" | "bf16"} colour
 * @property {number} width
 * @property {number[]} dash
 * @property {number} [casing] The width of an edge in the surface's colour, on each side.
 */

/**
 * The area of the curves in the picture. Positions are in pixels.
 *
 * @typedef {object} Place
 * @property {number} low The weight at the bottom.
 * @property {number} high The weight at the top.
 * @property {number} left
 * @property {number} right
 * @property {number} top
 * @property {number} bottom
 * @property {boolean} roomy Whether there is space for the end values beside the names.
 * @property {number} steps The number of updates.
 * @property {(step: number) => number} x Returns the position of a step.
 * @property {(weight: number) => number} y Returns the position of a weight.
 */

/** @typedef {Ink & Place} CurveArea */

// Lengths in pixels: the least space around the curves, the space between a tick's text and the
// axis, the least distance between two names, and the line from the end of a curve to its name.
export const AXES = { left: 62, bottom: 34, top: 16 };
export const TICK_GAP = 8;
export const LABEL_GAP = 17;
export const LEADER = 20;
// In the order of the table, and of METHODS in curves.py. Broad curves are drawn first, so that
// they do not hide others.
/** @type {CurveStyle[]} */
export const CURVES = [
  { name: "FP32", colour: "fp32", width: 4, dash: [] },
  { name: "FP16", colour: "fp16", width: 2.2, dash: [], casing: 0.6 },
  { name: "BF16", colour: "bf16", width: 7, dash: [] },
  { name: "FP16 + Kahan", colour: "fp16", width: 2, dash: [9, 4] },
  { name: "FP16 + stochastic", colour: "fp16", width: 2, dash: [2, 3] },
  { name: "FP16 + FP32 master", colour: "fp16", width: 2, dash: [11, 3, 2, 3] },
];

// --- axes ----------------------------------------------------------------------------------------

/**
 * Return round numbers between two numbers, and their distance.
 *
 * @param {number} low
 * @param {number} high
 * @param {number} most the largest number of steps between them
 */
function roundTicks(low, high, most) {
  const step = niceStep((high - low) / most, [1, 2, 2.5, 5, 10]);
  const ticks = [];
  for (let i = Math.ceil(low / step); i * step <= high; i++) ticks.push(i * step);
  return { ticks, step };
}

// Smaller ticks have a power of ten: there is no room for their zeros.
const LEAST_PLAIN_TICK = 1e-4;
// The smallest update is 2^-24. Over it the smallest step of the ticks is 2e-8.
const MOST_PLACES = 9;

/**
 * Return a tick as text, with as many decimal places as the step has.
 *
 * @param {number} value
 * @param {number} step
 */
function tickText(value, step) {
  let places = 0;
  while (places < MOST_PLACES && !isWhole(step * 10 ** places)) places += 1;
  const size = Math.abs(value);
  let text = value.toFixed(places);
  if (size > step / 2 && size < LEAST_PLAIN_TICK) {
    text = value.toExponential(Math.max(0, places + Math.floor(Math.log10(size))));
  }
  return text.replaceAll("-", "\u2212");
}

/**
 * Return whether a number is 1, 2, 3, ... but for rounding errors.
 *
 * @param {number} x above 0
 */
function isWhole(x) {
  const nearest = Math.round(x);
  return nearest > 0 && Math.abs(x - nearest) <= 1e-6;
}

/**
 * Return the ticks of the axis of weights, each with its text.
 *
 * @param {number} low
 * @param {number} high
 * @returns {[value: number, text: string][]}
 */
export function weightTicks(low, high) {
  const { ticks, step } = roundTicks(low, high, 5);
  return ticks.map((value) => [value, tickText(value, step)]);
}

/** @param {CurveArea} area */
export function drawAxes(area) {
  const { pen, tint, left, right, bottom, steps } = area;
  for (const [value, words] of weightTicks(area.low, area.high)) {
    const y = Math.round(area.y(value)) + 0.5;
    inkSegment(area, [left, y], [right, y], tint.line2, 1);
    inkText(area, words, left - TICK_GAP, y + 4, { align: "right" });
  }
  inkSegment(area, [left, bottom + 0.5], [right, bottom + 0.5], tint.line, 1);
  /** @param {number} count */
  const text = (count) => count.toLocaleString("en-US");
  const most = right - left < 320 ? 2 : 4;
  const marks = roundTicks(0, steps, most).ticks.filter(Number.isInteger);
  for (const mark of marks) {
    inkText(area, text(mark), area.x(mark), bottom + 18, { align: "center" });
  }
  inkText(area, "updates", right + pen.measureText(text(steps)).width / 2 + 5, bottom + 18);
}

// --- curves --------------------------------------------------------------------------------------

/**
 * Return the path of a curve, with points only where it bends: many steps on a straight line are
 * one line.
 *
 * @param {CurveArea} area
 * @param {ArrayLike<number>} values
 */
function outline(area, values) {
  const path = new Path2D();
  const last = values.length - 1;
  /** @param {number} i */
  const x = (i) => area.x((area.steps * i) / last);
  path.moveTo(x(0), area.y(values[0]));
  for (let i = 1; i < last; i++) {
    const bends = values[i + 1] - values[i] !== values[i] - values[i - 1];
    if (bends) path.lineTo(x(i), area.y(values[i]));
  }
  path.lineTo(x(last), area.y(values[last]));
  return path;
}

/**
 * @param {CurveArea} area
 * @param {ArrayLike<number>} values
 * @param {CurveStyle} style
 * @param {boolean} faded
 */
export function drawCurve(area, values, style, faded) {
  const { pen, tint } = area;
  const path = outline(area, values);
  pen.globalAlpha = faded ? 0.2 : 1;
  pen.lineCap = "butt";
  if (style.casing) {
    pen.strokeStyle = tint.surface;
    pen.lineWidth = style.width + 2 * style.casing;
    pen.stroke(path);
  }
  pen.strokeStyle = tint[style.colour];
  pen.lineWidth = style.width;
  pen.setLineDash(style.dash);
  pen.stroke(path);
  pen.setLineDash([]);
  pen.globalAlpha = 1;
}

/**
 * Draw the name of a curve, with a line from the curve's end.
 *
 * @param {CurveArea} area
 * @param {CurveStyle} style
 * @param {number} end the weight after the last update
 * @param {number} y where the name goes
 * @param {string} words the end value
 * @param {boolean} faded
 */
export function drawLabel(area, style, end, y, words, faded) {
  const { pen, tint, right } = area;
  const x = right + LEADER;
  const alpha = faded ? 0.5 : 1;
  const colour = tint[style.colour];
  inkSegment(area, [right + 2, area.y(end)], [x - 4, y], colour, 1, { alpha });
  pen.globalAlpha = alpha;
  const wide = inkText(area, style.name, x, y + 4, { fill: colour, bold: true });
  if (area.roomy) inkText(area, words, x + wide + 7, y + 4);
  pen.globalAlpha = 1;
}
