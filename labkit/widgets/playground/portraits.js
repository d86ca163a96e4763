// Pictures of a network's results: the plane that it divides, the picture that it paints, or its
// predictions beside the targets.

import { penOf } from "../base/canvas.js";
import { h } from "../base/elements.js";
import { inkDot, inkSegment, inkText } from "../base/plot.js";
import { DIGIT_SIDE, testDigits } from "./digits.js";
import { lowerTestDigits } from "./fine_tuning.js";
import { pixelInputs, SMALL } from "./problems.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Problem } from "./problems.js" */

// The number of places along a side of a plane or a painted picture.
const GRID = 32;
// The largest coordinate in the picture of a plane; the points of the spirals are within 1.
const EDGE_OF_PLANE = 1.1;
// The number of predictions that are drawn, and the largest target in their picture.
const DOTS = 200;
const EDGE_OF_TARGETS = 3 * SMALL;
// The number of digits along a side.
const SHOWN = 6;
// The side of a digit, as a share of its cell; the rest is for the network's answer.
const DIGIT_SHARE = 0.72;

/**
 * Digits that are drawn, by problem; the networks are not trained on them.
 *
 * @type {Record<string, () => { inputs: Float32Array, targets: Float32Array }>}
 */
const DRAWN_DIGITS = { digits: testDigits, fine_tuning: lowerTestDigits };

/**
 * A square in a picture, in pixels.
 *
 * @typedef {object} Frame
 * @property {Pen} pen
 * @property {Palette} tint
 * @property {number} left
 * @property {number} top
 * @property {number} size The length of a side.
 */

/**
 * Return the inputs of the samples whose outputs are drawn.
 *
 * @param {Problem} problem
 */
export function portraitInputs({ name, inputs, shape }) {
  if (name === "targets") return inputs.slice(0, DOTS * shape.sizes[0]);
  if (name in DRAWN_DIGITS) {
    return DRAWN_DIGITS[name]().inputs.slice(0, SHOWN * SHOWN * shape.sizes[0]);
  }
  const edge = name === "picture" ? 1 : EDGE_OF_PLANE;
  const places = Array.from({ length: GRID }, (_, i) => edge * ((2 * i) / (GRID - 1) - 1));
  const grid = places.flatMap((y) => {
    return places.flatMap((x) => (name === "picture" ? pixelInputs(x, y) : [x, y]));
  });
  return Float32Array.from(grid);
}

/**
 * Draw the outputs of a network for the samples of `portraitInputs`.
 *
 * @param {Frame} frame
 * @param {Problem} problem
 * @param {Float32Array} outputs
 */
export function drawPortrait(frame, problem, outputs) {
  const { pen, tint, left, top, size } = frame;
  if (problem.name === "targets") drawPredictions(frame, problem, outputs);
  else if (problem.name === "picture") drawPixels(frame, problem, outputs);
  else if (problem.name in DRAWN_DIGITS) drawDigits(frame, problem, outputs);
  else drawPlane(frame, problem, outputs);
  pen.strokeStyle = tint.line;
  pen.lineWidth = 1;
  pen.strokeRect(left + 0.5, top + 0.5, size - 1, size - 1);
}

/**
 * Fill a frame with a grid of colours.
 *
 * @param {Frame} frame
 * @param {(place: number) => string} colourAt returns the colour of a place, row by row
 */
function drawGrid({ pen, left, top, size }, colourAt) {
  const cell = size / GRID;
  for (let i = 0; i < GRID * GRID; i++) {
    const x = Math.floor(left + (i % GRID) * cell);
    const y = Math.floor(top + Math.floor(i / GRID) * cell);
    pen.fillStyle = colourAt(i);
    pen.fillRect(x, y, Math.ceil(cell) + 1, Math.ceil(cell) + 1);
  }
}

/**
 * Draw the picture that a network paints; a pixel that is NaN has a colour.
 *
 * @param {Frame} frame
 * @param {Problem} problem
 * @param {Float32Array} outputs
 */
function drawPixels(frame, { targets }, outputs) {
  const darkest = Math.min(...targets);
  const range = Math.max(...targets) - darkest;
  drawGrid(frame, (i) => {
    const share = (outputs[i] - darkest) / range;
    if (Number.isNaN(share)) return frame.tint.overflowed;
    const grey = Math.round(255 * Math.min(1, Math.max(0, share)));
    return `rgb(${grey} ${grey} ${grey})`;
  });
}

/**
 * Draw the points of two classes over the plane, in which each place has the colour of the class
 * that the network predicts, stronger the surer it is.
 *
 * @param {Frame} frame
 * @param {Problem} problem
 * @param {Float32Array} outputs two for each place, of which the larger one is the class
 */
function drawPlane(frame, { inputs, targets }, outputs) {
  const { tint, left, top, size } = frame;
  const classes = [tint.fp16, tint.fp8];
  drawGrid(frame, (i) => {
    const chance = 1 / (1 + Math.exp(outputs[2 * i] - outputs[2 * i + 1]));
    if (Number.isNaN(chance)) return tint.overflowed;
    const share = Math.round(100 * Math.abs(chance - 0.5));
    return `color-mix(in srgb, ${classes[Number(chance > 0.5)]} ${share}%, ${tint.surface})`;
  });
  /** @param {number} x */
  const place = (x) => (size * (x / EDGE_OF_PLANE + 1)) / 2;
  for (const [i, target] of targets.entries()) {
    const x = left + place(inputs[2 * i]);
    const y = top + place(inputs[2 * i + 1]);
    inkDot(frame, x, y, 2.2, tint.surface);
    inkDot(frame, x, y, 1.6, classes[target]);
  }
}

/**
 * Draw a dot for each prediction over its target; right ones lie on the diagonal.
 *
 * @param {Frame} frame
 * @param {Problem} problem
 * @param {Float32Array} outputs
 */
function drawPredictions(frame, { targets }, outputs) {
  const { pen, tint, left, top, size } = frame;
  /** @param {number} x */
  const place = (x) => (size * (x / EDGE_OF_TARGETS + 1)) / 2;
  inkSegment(frame, [left, top + size], [left + size, top], tint.line, 1, { dash: [3, 3] });
  pen.save();
  pen.beginPath();
  pen.rect(left, top, size, size);
  pen.clip();
  for (const [i, output] of outputs.entries()) {
    inkDot(frame, left + place(targets[i]), top + size - place(output), 2, tint.fp16);
  }
  pen.restore();
  inkText(frame, "target", left + size - 6, top + size - 6, { align: "right" });
  inkText(frame, "prediction", left + 6, top + 15);
}

/**
 * Return the class that a network predicts for each sample; -1 if one of its outputs is NaN.
 *
 * @param {Float32Array} outputs
 * @param {number} classes
 */
function namedClasses(outputs, classes) {
  return Array.from({ length: outputs.length / classes }, (_, i) => {
    const row = outputs.subarray(i * classes, (i + 1) * classes);
    return row.indexOf(row.reduce((a, b) => Math.max(a, b)));
  });
}

/**
 * Return how many of the digits that are drawn a network predicts right, as text; "" for problems
 * without digits.
 *
 * @param {Problem} problem
 * @param {Float32Array} outputs
 */
export function portraitScore({ name, shape }, outputs) {
  if (!(name in DRAWN_DIGITS)) return "";
  const { targets } = DRAWN_DIGITS[name]();
  const named = namedClasses(outputs, shape.sizes[shape.sizes.length - 1]);
  const right = named.filter((digit, i) => digit === targets[i]).length;
  return `: ${right} of ${named.length} right`;
}

/** @type {Map<string, HTMLCanvasElement>} */
const digitSheets = new Map();

/**
 * Return a canvas with the digits that are drawn, side by side, in the colour of texts. It is made
 * once for each colour.
 *
 * @param {string} name of the problem
 * @param {Palette} tint
 */
function digitSheet(name, tint) {
  const key = `${name} ${tint.ink}`;
  const known = digitSheets.get(key);
  if (known) return known;
  const { inputs } = DRAWN_DIGITS[name]();
  const wide = SHOWN * DIGIT_SIDE;
  const sheet = h("canvas", { width: wide, height: wide });
  const pen = penOf(sheet);
  pen.fillStyle = tint.ink;
  for (let i = 0; i < wide * wide; i++) {
    const digit = Math.floor(i / DIGIT_SIDE ** 2);
    const pixel = i % DIGIT_SIDE ** 2;
    const x = (digit % SHOWN) * DIGIT_SIDE + (pixel % DIGIT_SIDE);
    const y = Math.floor(digit / SHOWN) * DIGIT_SIDE + Math.floor(pixel / DIGIT_SIDE);
    pen.globalAlpha = inputs[i];
    pen.fillRect(x, y, 1, 1);
  }
  digitSheets.set(key, sheet);
  return sheet;
}

/**
 * Draw digits with the class that the network predicts beside each, and a frame around mistakes.
 *
 * @param {Frame} frame
 * @param {Problem} problem
 * @param {Float32Array} outputs
 */
function drawDigits(frame, { name, shape }, outputs) {
  const { pen, tint, left, top, size } = frame;
  const { targets } = DRAWN_DIGITS[name]();
  const named = namedClasses(outputs, shape.sizes[shape.sizes.length - 1]);
  const cell = size / SHOWN;
  const side = cell * DIGIT_SHARE;
  const sheet = digitSheet(name, tint);
  pen.imageSmoothingEnabled = false;
  for (const [i, digit] of named.entries()) {
    const x = left + (i % SHOWN) * cell;
    const y = top + Math.floor(i / SHOWN) * cell;
    const right = digit === targets[i];
    const [column, row] = [i % SHOWN, Math.floor(i / SHOWN)].map((at) => at * DIGIT_SIDE);
    pen.drawImage(sheet, column, row, DIGIT_SIDE, DIGIT_SIDE, x + 2, y + 2, side, side);
    const words = digit === -1 ? "NaN" : String(digit);
    const fill = right ? tint.ink2 : tint.bad;
    inkText(frame, words, x + cell - 3, y + cell - 4, { fill, bold: !right, align: "right" });
    if (right) continue;
    pen.strokeStyle = tint.bad;
    pen.lineWidth = 1.5;
    pen.strokeRect(x + 1.5, y + 1.5, cell - 3, cell - 3);
  }
}
