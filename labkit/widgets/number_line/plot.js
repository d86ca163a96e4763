// The picture of the number line: its zones, a mark for each number (or a band if they are too
// close), the axis, and the values that x is rounded to.

import { inkRich } from "../base/canvas.js";
import { power } from "../base/number_words.js";
import { inkLine, inkSegment, niceStep } from "../base/plot.js";
import { EDGE, mirrored, stretches } from "./scale.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Fate, Palette } from "../base/theme.js" */
/** @import { LineFormat, RoundedView } from "./rounding.js" */
/** @import { Lens, Stretch } from "./scale.js" */

/**
 * What all parts of the line are drawn with.
 *
 * @typedef {object} Scene
 * @property {Pen} pen
 * @property {Palette} tint
 * @property {Lens} lens
 * @property {LineFormat} format
 * @property {boolean} log Whether the scale is logarithmic.
 */

/**
 * A part of the line whose numbers have the same fate. The longest of its names comes first.
 *
 * @typedef {{ fate: Fate, from: number, to: number, names: string[] }} Zone
 */

// All lengths are in pixels. The zones and marks lie between TOP and LINE, the y of the line.
export const TOP = 62;
const LINE = 110;
export const TALL = 164;
// Marks that are closer together are drawn as a band.
export const CLOSEST = 4;
// The heights of marks.
const MARK = 24;
const POWER_MARK = 34;
// The y of the arrow from x to its rounded value.
const ARROW = 46;
// The least width of a stretch for its count.
const COUNT_WIDTH = 70;
// The distances of labels on an axis of powers of two.
const OCTAVES = [1, 2, 4, 8, 16, 32, 64, 128];
const LEAST_LABEL_DISTANCE = 46;

// --- the numbers of the format -------------------------------------------------------------------

/**
 * Return the zones of a format from left to right.
 *
 * @param {LineFormat} format
 * @returns {Zone[]}
 */
function zonesOf(format) {
  const { zero_to: zero, ends_from: end, beyond } = format;
  const first = format.has_zero ? 2 ** format.emin : 0;
  const last = end ?? Infinity;
  // "to infinity", "to NaN" or "to max" in three letters.
  const beyondInShort = beyond.slice(3, 6);
  /** @type {Zone[]} */
  const positive = [
    { fate: "subnormal", from: zero, to: first, names: ["subnormal", "sub"] },
    { fate: "normal", from: first, to: last, names: ["normal"] },
    { fate: "overflowed", from: last, to: Infinity, names: [beyond, beyondInShort] },
  ];
  /** @type {Zone} */
  const zeros = {
    fate: "underflowed",
    from: format.signed ? -zero : 0,
    to: zero,
    names: ["to 0", "0"],
  };
  return format.signed ? [...mirrored(positive), zeros, ...positive] : [zeros, ...positive];
}

/**
 * Draw the zones as coloured areas with their names.
 *
 * @param {Scene} scene
 */
export function drawZones({ pen, tint, lens, format }) {
  for (const { fate, from, to, names } of zonesOf(format)) {
    const left = clampX(lens, lens.x(from));
    const right = clampX(lens, lens.x(to));
    if (right - left <= 0.5) continue;
    pen.globalAlpha = fate === "normal" ? 0.12 : 0.2;
    pen.fillStyle = tint[fate];
    pen.fillRect(left, TOP, right - left, LINE - TOP);
    pen.globalAlpha = 1;
    pen.fillStyle = tint.ink2;
    pen.textAlign = "left";
    const name = names.find((text) => pen.measureText(text).width + 10 < right - left);
    if (name) pen.fillText(name, left + 5, TOP + 13);
  }
}

/**
 * Return the x in the picture that is nearest to an x.
 *
 * @param {Lens} lens
 * @param {number} x
 */
function clampX({ width }, x) {
  return Math.min(width, Math.max(0, x));
}

/**
 * Return the stretches of equally spaced numbers, of both signs if the scale has both.
 *
 * @param {Scene} scene
 */
function stretchesOf({ format, log }) {
  const positive = stretches(format, log);
  return log || !format.signed ? positive : [...mirrored(positive), ...positive];
}

/**
 * Draw a mark for each number, or a band where they are too close.
 *
 * @param {Scene} scene
 * @returns {number} the least distance of two numbers, in pixels
 */
export function drawMarks(scene) {
  const { pen, tint, lens, log } = scene;
  const low = lens.value(lens.from);
  const high = lens.value(lens.to);
  let tightest = Infinity;
  pen.lineWidth = 1;
  pen.strokeStyle = tint.ink;
  pen.fillStyle = tint.ink;
  for (const stretch of stretchesOf(scene)) {
    const { from, to, spacing } = stretch;
    if (to < low || from > high) continue;
    const first = Math.max(from, low);
    const end = Math.min(to, high);
    const last = Math.max(first, end - spacing);
    const gap = log ? lens.x(last + spacing) - lens.x(last) : spacing / lens.perPixel;
    tightest = Math.min(tightest, gap);
    if (gap >= CLOSEST) {
      drawSingle(pen, lens, stretch, first, end);
    } else {
      drawBand(pen, lens.x(first), lens.x(end), gap);
    }
    pen.globalAlpha = 1;
  }
  return tightest;
}

/**
 * Return whether a number other than 0 is 2^k or -2^k.
 *
 * @param {number} value
 */
export function isPowerOfTwo(value) {
  // A logarithm alone is rounded: that of 2^64 + 2^16 is 64, too.
  return 2 ** Math.round(Math.log2(Math.abs(value))) === Math.abs(value);
}

/**
 * Draw the numbers of a stretch between two ends, one by one.
 *
 * @param {Pen} pen
 * @param {Lens} lens
 * @param {Stretch} stretch
 * @param {number} first
 * @param {number} end
 */
function drawSingle(pen, lens, { from, to, spacing }, first, end) {
  // The end farther from zero is the first number of the next stretch.
  const farEnd = to > 0 ? to : from;
  pen.globalAlpha = 0.8;
  pen.beginPath();
  for (let k = Math.ceil(first / spacing); k * spacing <= end; k++) {
    const value = k * spacing;
    if (value === farEnd) continue;
    const x = Math.round(lens.x(value)) + 0.5;
    pen.moveTo(x, LINE - (isPowerOfTwo(value) ? POWER_MARK : MARK));
    pen.lineTo(x, LINE);
  }
  pen.stroke();
}

/**
 * Draw a band for numbers that are too close for marks.
 *
 * @param {Pen} pen
 * @param {number} left
 * @param {number} right
 * @param {number} gap the distance of two numbers, in pixels
 */
function drawBand(pen, left, right, gap) {
  // A gap of a pixel separates wide bands.
  const apart = right - left > 12 ? 1 : 0;
  // The denser the numbers, the darker the band.
  pen.globalAlpha = 0.32 + 0.43 * Math.min(1, Math.log2(CLOSEST / gap) / 14);
  pen.fillRect(left, LINE - MARK, Math.max(0.6, right - left - apart), MARK);
}

/**
 * Write the count of numbers below each stretch that is wide enough.
 *
 * @param {Scene} scene
 */
export function drawCounts(scene) {
  const { pen, tint, lens } = scene;
  pen.fillStyle = tint.ink2;
  for (const stretch of stretchesOf(scene)) {
    const left = Math.max(EDGE, lens.x(stretch.from));
    const right = Math.min(lens.width - EDGE, lens.x(stretch.to));
    if (right - left < COUNT_WIDTH) continue;
    const texts = countTexts(stretch);
    const words = texts.find((text) => labelWidth(pen, text) + 6 < right - left) ?? "";
    inkRich(pen, words, (left + right) / 2, LINE + 46, "center");
    pen.globalAlpha = 0.5;
    pen.fillRect(left + 3, LINE + 31, right - left - 6, 1);
    pen.globalAlpha = 1;
  }
}

/**
 * Return texts for the count of numbers in a stretch. The longest, with their spacing, comes first.
 *
 * @param {Stretch} stretch
 */
function countTexts({ from, to, spacing }) {
  const count = Math.round((to - from) / spacing);
  if (count === 1) return ["1 number", "1"];
  const digits = count.toLocaleString("en-US");
  const apart = spacing >= 1 && spacing <= 1024 ? String(spacing) : power(Math.log2(spacing));
  return [`${digits} numbers, ${apart} apart`, `${digits} numbers`, digits];
}

// --- the axis ------------------------------------------------------------------------------------

/**
 * Draw the axis, with powers of two on a logarithmic scale of more than four of them.
 *
 * @param {Scene} scene
 */
export function drawAxis(scene) {
  const { pen, tint, lens, log } = scene;
  pen.fillStyle = tint.ink2;
  pen.strokeStyle = tint.ink2;
  pen.fillRect(EDGE - 4, LINE, lens.width - 2 * EDGE + 8, 1.5);
  if (log && lens.to - lens.from > 4) {
    drawPowers(scene);
  } else {
    drawNumbers(scene);
  }
}

/**
 * Draw ticks at powers of two.
 *
 * @param {Scene} scene
 */
function drawPowers({ pen, lens }) {
  const step = OCTAVES.find((octaves) => octaves / lens.perPixel > LEAST_LABEL_DISTANCE) ?? 256;
  for (let e = Math.ceil(lens.from / step) * step; e <= lens.to; e += step) {
    const x = lens.x(2 ** e);
    pen.fillRect(x, LINE, 1, 5);
    inkRich(pen, power(e), Math.min(lens.width - 14, Math.max(14, x)), LINE + 21, "center");
  }
}

/**
 * Draw ticks at round decimal numbers.
 *
 * @param {Scene} scene
 */
function drawNumbers({ pen, lens }) {
  const low = lens.value(lens.from);
  const high = lens.value(lens.to);
  const step = niceStep((high - low) / Math.max(2, Math.floor(lens.width / 90)));
  const size = Math.max(Math.abs(low), Math.abs(high));
  const first = Math.ceil(low / step);
  // By a count: in a window of a few float64 numbers, adding 1 to a large k would not change it.
  const count = Math.floor(high / step) - first + 1;
  for (let i = 0; i < count; i++) {
    const value = (first + i) * step;
    const x = lens.x(value);
    const label = stepText(value, step, size).replaceAll("-", "\u2212");
    const half = pen.measureText(label).width / 2;
    pen.fillRect(x, LINE, 1, 5);
    pen.textAlign = "center";
    pen.fillText(label, Math.min(lens.width - half, Math.max(half, x)), LINE + 21);
  }
}

/**
 * Return the label of a number on the axis, with as many digits as tell it from the next one.
 *
 * @param {number} value
 * @param {number} step
 * @param {number} size the largest magnitude on the axis
 */
function stepText(value, step, size) {
  // 1e-9 corrects a log10 that is just below a whole number. toFixed allows 100 digits.
  const digits = Math.min(100, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  if (size >= 1e-4 && size < 1e7) return value.toFixed(digits);
  if (value === 0) return "0";
  let wanted = Math.round(Math.log10(size / step));
  if (size < 1) wanted = Math.floor(Math.log10(size)) + digits;
  return value.toExponential(Math.min(15, Math.max(0, wanted))).replace("e+", "e");
}

// --- the rounded values of x ---------------------------------------------------------------------

/**
 * Draw x, the values that it is rounded to, and the interval that is rounded to the same value.
 *
 * @param {Scene} scene
 * @param {RoundedView} answer
 * @param {string} colour
 */
export function drawOutcome(scene, answer, colour) {
  const { tint, lens } = scene;
  if (answer.interval) drawInterval(scene, answer.interval, colour);
  const stem = lens.x(answer.x);
  if (stem >= 0 && stem <= lens.width) {
    inkSegment(scene, [stem, 22], [stem, LINE], tint.ink, 1.5);
  }
  for (const i of answer.values.keys()) drawRounded(scene, answer, i, colour);
}

/**
 * Shade the interval that is rounded to the same value, and mark its ends.
 *
 * @param {Scene} scene
 * @param {NonNullable<RoundedView["interval"]>} interval
 * @param {string} colour
 */
function drawInterval(scene, { low, high, low_in, high_in }, colour) {
  const { pen, lens } = scene;
  const left = low === null ? 0 : clampX(lens, lens.x(low));
  const right = high === null ? lens.width : clampX(lens, lens.x(high));
  pen.globalAlpha = 0.24;
  pen.fillStyle = colour;
  pen.fillRect(left, TOP - 8, Math.max(1, right - left), LINE - TOP + 8);
  pen.globalAlpha = 1;
  drawEnd(scene, low, low_in, colour);
  drawEnd(scene, high, high_in, colour);
}

/**
 * Draw the end of an interval: a filled dot if the end belongs to the interval, else a ring.
 *
 * @param {Scene} scene
 * @param {number | null} value
 * @param {boolean} included
 * @param {string} colour
 */
function drawEnd({ pen, tint, lens }, value, included, colour) {
  if (value === null || lens.x(value) < 0 || lens.x(value) > lens.width) return;
  pen.beginPath();
  pen.arc(lens.x(value), TOP - 8, 3.5, 0, 2 * Math.PI);
  pen.fillStyle = included ? colour : tint.surface;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

/**
 * Draw one of the values that x is rounded to: a bar, an arrow to it, and its name.
 *
 * @param {Scene} scene
 * @param {RoundedView} answer
 * @param {number} i the index of the value
 * @param {string} colour
 */
function drawRounded(scene, answer, i, colour) {
  const { pen, tint, lens } = scene;
  const { at, text, odds } = answer.values[i];
  const alone = answer.values.length === 1;
  const stem = clampX(lens, lens.x(answer.x));
  // Infinity and NaN have no place on the line: the arrow goes to its end.
  const end = answer.x > 0 ? lens.width - 2 : 2;
  const target = at === null ? end : clampX(lens, lens.x(at));
  pen.fillStyle = colour;
  pen.strokeStyle = colour;
  if (at !== null && lens.x(at) >= 0 && lens.x(at) <= lens.width) {
    pen.fillRect(target - 1.5, TOP - 8, 3, LINE - TOP + 8);
  }
  drawArrow(scene, stem, target, colour);
  const label = alone ? text : `${text}: ${odds}`;
  pen.font = `600 ${tint.size}px ${tint.font}`;
  pen.fillStyle = tint.ink;
  if (alone) {
    labelOnly(scene, label, lens.x(answer.x), target);
  } else {
    labelOneOfTwo(scene, label, target, i === 0);
  }
  pen.font = `${tint.size - 1}px ${tint.font}`;
}

/**
 * Write the name of the only value, on its side away from x if there is room, else on the other.
 *
 * @param {Scene} scene
 * @param {string} label
 * @param {number} x
 * @param {number} target
 */
function labelOnly({ pen, lens }, label, x, target) {
  const width = labelWidth(pen, label);
  const stem = clampX(lens, x);
  const room = {
    left: Math.min(target, stem) - 6,
    right: lens.width - Math.max(target, stem) - 6,
  };
  const wanted = target < x ? "left" : "right";
  const other = target < x ? "right" : "left";
  const side = room[wanted] < width ? other : wanted;
  const leftEnd = Math.max(width + 2, room.left);
  const rightEnd = Math.min(lens.width - width - 2, lens.width - room.right);
  if (side === "left") {
    inkRich(pen, label, leftEnd, TOP - 22, "right");
  } else {
    inkRich(pen, label, rightEnd, TOP - 22, "left");
  }
}

/**
 * Write the name of one of two values, on its outer side.
 *
 * @param {Scene} scene
 * @param {string} label
 * @param {number} target
 * @param {boolean} lower whether it is the lower value
 */
function labelOneOfTwo({ pen, lens }, label, target, lower) {
  const width = labelWidth(pen, label);
  if (lower) {
    inkRich(pen, label, Math.max(width + 2, target - 6), TOP - 22, "right");
  } else {
    inkRich(pen, label, Math.min(lens.width - width - 2, target + 6), TOP - 22, "left");
  }
}

/**
 * Return approximately the width of a label with raised exponents.
 *
 * @param {Pen} pen
 * @param {string} label
 */
function labelWidth(pen, label) {
  return pen.measureText(label.replace("^", "")).width;
}

/**
 * Draw a horizontal arrow, unless it would be shorter than its head.
 *
 * @param {Scene} scene
 * @param {number} from
 * @param {number} to
 * @param {string} colour
 */
function drawArrow(scene, from, to, colour) {
  if (Math.abs(to - from) < 9) return;
  const back = Math.sign(from - to);
  const point = to + back * 4;
  const barb = to + back * 9;
  inkSegment(scene, [from, ARROW], [point, ARROW], colour, 1.5);
  /** @type {[number, number][]} */
  const head = [
    [barb, ARROW - 4],
    [point, ARROW],
    [barb, ARROW + 4],
  ];
  inkLine(scene, head, colour, 1.5);
}
