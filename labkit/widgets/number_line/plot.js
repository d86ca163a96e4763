// The picture of the number line: zones, marks (a band where they are too many), axis, and what x
// becomes.

import { inkRich } from "../base/canvas.js";
import { power } from "../base/number_words.js";
import { inkLine, inkSegment, niceStep } from "../base/plot.js";
import { EDGE, mirrored, stretches } from "./scale.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Fate, Palette } from "../base/theme.js" */
/** @import { LineFormat, RoundedView } from "./rounding.js" */
/** @import { Lens, Stretch } from "./scale.js" */

/**
 * What the line is drawn with.
 *
 * @typedef {object} Scene
 * @property {Pen} pen
 * @property {Palette} tint
 * @property {Lens} lens
 * @property {LineFormat} format
 * @property {boolean} log
 */

/** @typedef {{ fate: Fate, from: number, to: number, names: string[] }} Zone names: long first */

export const TOP = 62; // the marks stand between TOP
const LINE = 110; // and the line itself
export const TALL = 164;
export const CLOSEST = 4; // marks nearer than this many pixels are drawn as a band
const MARK = 24; // height of a mark
const POWER_MARK = 34; // and of that of a power of two
const ARROW = 46; // from the top to the arrow of x
const OCTAVES = [1, 2, 4, 8, 16, 32, 64, 128];

// --- the numbers of the format -------------------------------------------------------------------

/**
 * @param {LineFormat} format
 * @returns {Zone[]}
 */
function zonesOf(format) {
  const { zero_to: zero, ends_from: end, beyond } = format;
  const first = format.has_zero ? 2 ** format.emin : 0; // where the normal numbers begin
  const last = end ?? Infinity;
  /** @type {Zone[]} */
  const up = [
    { fate: "subnormal", from: zero, to: first, names: ["subnormal", "sub"] },
    { fate: "normal", from: first, to: last, names: ["normal"] },
    { fate: "overflowed", from: last, to: Infinity, names: [beyond, beyond.slice(3, 6)] },
  ];
  /** @type {Zone} */
  const zeros = {
    fate: "underflowed",
    from: format.signed ? -zero : 0,
    to: zero,
    names: ["to 0", "0"],
  };
  return format.signed ? [...mirrored(up), zeros, ...up] : [zeros, ...up];
}

/** @param {Scene} scene */
export function drawZones({ pen, tint, lens, format }) {
  for (const { fate, from, to, names } of zonesOf(format)) {
    const left = clampX(lens, lens.x(from));
    const right = clampX(lens, lens.x(to));
    if (!(right - left > 0.5)) continue;
    pen.globalAlpha = fate === "normal" ? 0.12 : 0.2;
    pen.fillStyle = tint[fate];
    pen.fillRect(left, TOP, right - left, LINE - TOP);
    pen.globalAlpha = 1;
    pen.fillStyle = tint.ink2;
    pen.textAlign = "left";
    const name = names.find((one) => pen.measureText(one).width + 10 < right - left);
    if (name) pen.fillText(name, left + 5, TOP + 13);
  }
}

/**
 * @param {Lens} lens
 * @param {number} x
 */
function clampX({ width }, x) {
  return Math.min(width, Math.max(0, x));
}

/**
 * The stretches of both signs, where the scale has both.
 *
 * @param {Scene} scene
 */
function stretchesOf({ format, log }) {
  const up = stretches(format, log);
  return log || !format.signed ? up : [...mirrored(up), ...up];
}

/**
 * A mark for each number.
 *
 * @param {Scene} scene
 * @returns {number} how many pixels the closest are apart
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
    if (gap >= CLOSEST) drawSingle(pen, lens, stretch, first, end);
    else drawBand(pen, lens.x(first), lens.x(end), gap);
    pen.globalAlpha = 1;
  }
  return tightest;
}

/**
 * The numbers of a stretch between two ends, one by one.
 *
 * @param {Pen} pen
 * @param {Lens} lens
 * @param {Stretch} stretch
 * @param {number} first
 * @param {number} end
 */
function drawSingle(pen, lens, { from, to, spacing }, first, end) {
  const farEnd = to > 0 ? to : from; // it is the next stretch's first
  pen.globalAlpha = 0.8;
  pen.beginPath();
  for (let k = Math.ceil(first / spacing); k * spacing <= end; k++) {
    const value = k * spacing;
    if (value === farEnd) continue;
    const x = Math.round(lens.x(value)) + 0.5;
    const isPower = Number.isInteger(Math.log2(Math.abs(value)));
    pen.moveTo(x, LINE - (isPower ? POWER_MARK : MARK));
    pen.lineTo(x, LINE);
  }
  pen.stroke();
}

/**
 * Numbers that are too close to be drawn one by one.
 *
 * @param {Pen} pen
 * @param {number} left
 * @param {number} right
 * @param {number} gap between numbers, in pixels
 */
function drawBand(pen, left, right, gap) {
  const apart = right - left > 12 ? 1 : 0; // wide bands stand apart from each other
  pen.globalAlpha = 0.32 + 0.43 * Math.min(1, Math.log2(CLOSEST / gap) / 14);
  pen.fillRect(left, LINE - MARK, Math.max(0.6, right - left - apart), MARK);
}

/**
 * How many numbers a stretch has, where there is room to say it.
 *
 * @param {Scene} scene
 */
export function drawCounts(scene) {
  const { pen, tint, lens } = scene;
  pen.fillStyle = tint.ink2;
  for (const stretch of stretchesOf(scene)) {
    const left = Math.max(EDGE, lens.x(stretch.from));
    const right = Math.min(lens.width - EDGE, lens.x(stretch.to));
    if (right - left < 70) continue;
    const words = countText(stretch, right - left > 165);
    inkRich(pen, words, (left + right) / 2, LINE + 46, "center");
    pen.globalAlpha = 0.5;
    pen.fillRect(left + 3, LINE + 31, right - left - 6, 1);
    pen.globalAlpha = 1;
  }
}

/**
 * @param {Stretch} stretch
 * @param {boolean} roomy
 */
function countText({ from, to, spacing }, roomy) {
  const count = Math.round((to - from) / spacing);
  const many = `${count.toLocaleString("en-US")} number${count === 1 ? "" : "s"}`;
  if (!roomy || count <= 1) return many;
  const apart = spacing >= 1 && spacing <= 1024 ? String(spacing) : power(Math.log2(spacing));
  return `${many}, ${apart} apart`;
}

// --- the axis ------------------------------------------------------------------------------------

/** @param {Scene} scene */
export function drawAxis(scene) {
  const { pen, tint, lens, log } = scene;
  pen.fillStyle = tint.ink2;
  pen.strokeStyle = tint.ink2;
  pen.fillRect(EDGE - 4, LINE, lens.width - 2 * EDGE + 8, 1.5);
  if (log && lens.to - lens.from > 4) drawPowers(scene);
  else drawNumbers(scene);
}

/** @param {Scene} scene */
function drawPowers({ pen, lens }) {
  const step = OCTAVES.find((octaves) => octaves / lens.perPixel > 46) ?? 256;
  for (let e = Math.ceil(lens.from / step) * step; e <= lens.to; e += step) {
    const x = lens.x(2 ** e);
    pen.fillRect(x, LINE, 1, 5);
    inkRich(pen, power(e), Math.min(lens.width - 14, Math.max(14, x)), LINE + 21, "center");
  }
}

/** @param {Scene} scene */
function drawNumbers({ pen, lens }) {
  const low = lens.value(lens.from);
  const high = lens.value(lens.to);
  const step = niceStep((high - low) / Math.max(2, Math.floor(lens.width / 90)));
  const size = Math.max(Math.abs(low), Math.abs(high));
  for (let k = Math.ceil(low / step); k * step <= high; k++) {
    const x = lens.x(k * step);
    const label = stepText(k * step, step, size).replaceAll("-", "\u2212");
    const half = pen.measureText(label).width / 2;
    pen.fillRect(x, LINE, 1, 5);
    pen.textAlign = "center";
    pen.fillText(label, Math.min(lens.width - half, Math.max(half, x)), LINE + 21);
  }
}

/**
 * A number of the axis, in the digits that tell it from the next.
 *
 * @param {number} value
 * @param {number} step
 * @param {number} size of the largest that is seen
 */
function stepText(value, step, size) {
  const digits = Math.min(100, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  if (size >= 1e-4 && size < 1e7) return value.toFixed(digits);
  if (value === 0) return "0";
  const wanted =
    size < 1 ? Math.floor(Math.log10(size)) + digits : Math.round(Math.log10(size / step));
  return value.toExponential(Math.min(15, Math.max(0, wanted))).replace("e+", "e");
}

// --- what x becomes ------------------------------------------------------------------------------

/**
 * @param {Scene} scene
 * @param {RoundedView} answer
 * @param {string} colour
 */
export function drawOutcome(scene, answer, colour) {
  const { tint, lens } = scene;
  if (answer.interval) drawInterval(scene, answer.interval, colour);
  const here = lens.x(answer.x);
  if (here >= 0 && here <= lens.width) {
    inkSegment(scene, [here, 22], [here, LINE], tint.ink, 1.5);
  }
  for (const i of answer.values.keys()) drawBecomes(scene, answer, i, colour);
}

/**
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
 * The end of an interval: a filled dot belongs to it.
 *
 * @param {Scene} scene
 * @param {number | null} value
 * @param {boolean} included
 * @param {string} colour
 */
function drawEnd({ pen, tint, lens }, value, included, colour) {
  if (value === null || lens.x(value) < 0 || lens.x(value) > lens.width) return;
  pen.beginPath();
  pen.arc(lens.x(value), TOP - 8, 3.5, 0, 7);
  pen.fillStyle = included ? colour : tint.surface;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.5;
  pen.fill();
  pen.stroke();
}

/**
 * One of the values that x becomes: a bar, an arrow to it, and its name.
 *
 * @param {Scene} scene
 * @param {RoundedView} answer
 * @param {number} i its index
 * @param {string} colour
 */
function drawBecomes(scene, answer, i, colour) {
  const { pen, tint, lens } = scene;
  const { at, text, odds } = answer.values[i];
  const alone = answer.values.length === 1;
  const here = clampX(lens, lens.x(answer.x));
  const beyond = answer.x > 0 ? lens.width - 2 : 2;
  const target = at === null ? beyond : clampX(lens, lens.x(at));
  pen.fillStyle = colour;
  pen.strokeStyle = colour;
  if (at !== null && lens.x(at) >= 0 && lens.x(at) <= lens.width) {
    pen.fillRect(target - 1.5, TOP - 8, 3, LINE - TOP + 8);
  }
  drawArrow(scene, here, target, colour);
  const label = alone ? text : `${text}: ${odds}`;
  pen.font = `600 ${tint.size}px ${tint.font}`;
  pen.fillStyle = tint.ink;
  if (alone) drawAlone(scene, label, lens.x(answer.x), target);
  else drawBeside(scene, label, target, i === 0);
  pen.font = `${tint.size - 1}px ${tint.font}`;
}

/**
 * The name of the only value: beyond it as seen from x, and never across the stem of x.
 *
 * @param {Scene} scene
 * @param {string} label
 * @param {number} x
 * @param {number} target
 */
function drawAlone({ pen, lens }, label, x, target) {
  const width = labelWidth(pen, label);
  const here = clampX(lens, x);
  const room = {
    left: Math.min(target, here) - 6,
    right: lens.width - Math.max(target, here) - 6,
  };
  const wanted = target < x ? "left" : "right";
  const other = target < x ? "right" : "left";
  const side = room[wanted] < width ? other : wanted;
  const leftEnd = Math.max(width + 2, room.left);
  const rightEnd = Math.min(lens.width - width - 2, lens.width - room.right);
  if (side === "left") inkRich(pen, label, leftEnd, TOP - 22, "right");
  else inkRich(pen, label, rightEnd, TOP - 22, "left");
}

/**
 * The name of one of two values, on its outer side.
 *
 * @param {Scene} scene
 * @param {string} label
 * @param {number} target
 * @param {boolean} lower whether it is the lower one
 */
function drawBeside({ pen, lens }, label, target, lower) {
  const width = labelWidth(pen, label);
  if (lower) inkRich(pen, label, Math.max(width + 2, target - 6), TOP - 22, "right");
  else inkRich(pen, label, Math.min(lens.width - width - 2, target + 6), TOP - 22, "left");
}

/**
 * @param {Pen} pen
 * @param {string} label
 */
function labelWidth(pen, label) {
  return pen.measureText(label.replace("^", "")).width;
}

/**
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
