// The sentence of the zoom: the shares of a layer's fates in FP16, or the rounding of one gradient.

import { percent } from "../base/number_words.js";
import {
  classOf,
  decode,
  encode,
  exactly,
  fieldBits,
  nameOf,
  roundValue,
  spaced,
} from "../exact/numbers.js";
import { sayFate } from "../underflow/layers.js";
import { DEEPEST } from "./distances.js";

/** @import { Format, NumberClass } from "../exact/numbers.js" */
/** @import { Shares } from "../underflow/plot.js" */

/**
 * The facts that the sentence is made of.
 *
 * @typedef {object} SentenceInput
 * @property {number} zoom The index into DISTANCES.
 * @property {number} step
 * @property {string | null} layer null for all layers together.
 * @property {Shares} shares The shares of the four fates in the format.
 * @property {string} kind The name of the tensors, such as "weight gradients".
 * @property {number} log2Scale
 * @property {Format} format
 * @property {number} cells The number of gradients that are shown.
 * @property {number} zeros The share of zeros among them.
 * @property {string} name The name of the chosen gradient.
 * @property {number} gradient Its FP32 value.
 */

/**
 * Return sentences about the rounding of a gradient to FP16 at a scale, and at twice the scale.
 *
 * @param {number} gradient
 * @param {number} log2Scale
 * @param {Format} format always FP16, which the sentences name
 */
function gradientSentence(gradient, log2Scale, format) {
  if (gradient === 0) return "It is exactly zero already in FP32: no scale changes that.";
  const value = gradient * 2 ** log2Scale;
  const code = encode(roundValue(value, format), format);
  const doubledCode = encode(roundValue(2 * value, format), format);
  const off = percent(Math.abs(decode(code, format) / value - 1));
  return `${heldText(classOf(code, format), off)} ${doubledText(code, doubledCode, format)}`;
}

/**
 * Return the sentence about the rounding of a gradient.
 *
 * @param {NumberClass} numberClass the class of the scaled gradient in FP16
 * @param {string} off its relative error in percent
 */
function heldText(numberClass, off) {
  // A tie at 2^-25 is rounded to 0, which is even, and one at 65520 to the next power of two.
  if (numberClass === "zero") {
    return "FP16 makes it 0: its size is at most 2^-25, half of the smallest number.";
  }
  if (numberClass === "infinity") return "FP16 makes it inf: its size is 65520 or more.";
  if (numberClass === "subnormal") return `FP16 holds it as a subnormal number, ${off} off.`;
  return "FP16 holds it, in full precision.";
}

/**
 * Return the sentence about the change of a gradient's bits at twice the scale.
 *
 * @param {bigint} code
 * @param {bigint} doubledCode the code of twice the number
 * @param {Format} format
 */
function doubledText(code, doubledCode, format) {
  const numberClass = classOf(code, format);
  const doubledClass = classOf(doubledCode, format);
  if (doubledClass === "zero") return "Times two, it is 0 as well.";
  if (doubledClass === "infinity") return "Times two, it is inf.";
  if (numberClass === "zero") {
    const size = spaced(exactly(Math.abs(decode(doubledCode, format))));
    return `Times two, its size in FP16 is ${size}, and it is not lost.`;
  }
  if (numberClass === "subnormal") {
    return (
      "Times two, its significand bits move one place to the left, " +
      "and one more bit of the gradient fits."
    );
  }
  // Just below the least normal number, a gradient is rounded up to it, and its double is not.
  if (fieldBits(code, format)[2] !== fieldBits(doubledCode, format)[2]) {
    return "Times two, less of it is rounded off, and its significand bits change.";
  }
  const before = exponentField(code, format);
  const after = exponentField(doubledCode, format);
  return (
    `Times two, only the exponent field moves, from ${before} to ${after}: ` +
    "the significand stays."
  );
}

/**
 * Return the exponent field of a code, as a whole number.
 *
 * @param {bigint} code
 * @param {Format} format
 */
function exponentField(code, format) {
  return parseInt(fieldBits(code, format)[1], 2);
}

/**
 * Return the name of a cell, such as w[1, 0, 2]: its index in the tensor, whose leading dimensions
 * the table lays out as rows.
 *
 * @param {string} layer
 * @param {readonly number[]} shape
 * @param {number} row
 * @param {number} column
 */
export function cellName(layer, shape, row, column) {
  const lead = [];
  // The row is a number whose digits are the leading indices; the last one changes the fastest.
  let rest = row;
  for (const size of shape.slice(0, -1).reverse()) {
    lead.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `${layer}[${[...lead, column].join(", ")}]`;
}

/**
 * Return the sentence for a distance of the zoom.
 *
 * @param {SentenceInput} input
 */
export function zoomSentence(input) {
  const { zoom, shares, log2Scale, layer, kind, format } = input;
  if (zoom === DEEPEST) return nearestSentence(input);
  const text = sayFate(shares, log2Scale, layer, kind, format.name);
  if (zoom < DEEPEST - 1) return text;
  const count = input.cells.toLocaleString("en-US");
  return `${text} Of the ${count} shown, ${percent(input.zeros)} are zero already in FP32.`;
}

/**
 * Return the sentence about one gradient.
 *
 * @param {SentenceInput} input
 */
function nearestSentence({ name, step, gradient, log2Scale, format }) {
  const subject = `${name} at step ${step}`;
  if (!Number.isFinite(gradient)) {
    return `${subject} is ${nameOf(gradient)} already in FP32: no scale changes that.`;
  }
  const size = spaced(exactly(gradient));
  const scaledSize = spaced(exactly(gradient * 2 ** log2Scale));
  const scaled = log2Scale && gradient ? `, times 2^${log2Scale} ${scaledSize}` : "";
  return `${subject} is ${size}${scaled}. ${gradientSentence(gradient, log2Scale, format)}`;
}
