// The sentence of the zoom: what the format makes of a layer, or of one gradient.

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
 * What the sentence is about.
 *
 * @typedef {object} Looked
 * @property {number} zoom The distance.
 * @property {number} step
 * @property {string | null} layer null for all layers together.
 * @property {Shares} shares What the format makes of them.
 * @property {string} kind Of gradients.
 * @property {number} log2Scale
 * @property {Format} format
 * @property {number} cells How many of the tensor are shown.
 * @property {number} zeros The share of zeros among them.
 * @property {string} name Of the chosen gradient.
 * @property {number} gradient
 */

/**
 * What FP16 makes of a gradient at a scale, and what twice the scale would change.
 *
 * @param {number} gradient
 * @param {number} log2Scale
 * @param {Format} format FP16
 */
function gradientSentence(gradient, log2Scale, format) {
  if (gradient === 0) return "It is exactly zero already in FP32: no scale changes that.";
  const value = gradient * 2 ** log2Scale;
  const code = encode(roundValue(value, format), format);
  const twice = encode(roundValue(2 * value, format), format);
  const off = percent(Math.abs(decode(code, format) / value - 1));
  return `${heldText(classOf(code, format), off)} ${doubledText(code, twice, format)}`;
}

/**
 * @param {NumberClass} kind
 * @param {string} off how far it is from the gradient
 */
function heldText(kind, off) {
  if (kind === "zero") return "FP16 makes it 0: it is below 2^-25, half of the smallest number.";
  if (kind === "infinity") return "FP16 makes it inf: it is 65520 or more.";
  if (kind === "subnormal") return `FP16 holds it as a subnormal number, ${off} off.`;
  return "FP16 holds it, in full precision.";
}

/**
 * What twice the scale would change.
 *
 * @param {bigint} code
 * @param {bigint} twice the code of twice the number
 * @param {Format} format
 */
function doubledText(code, twice, format) {
  const kind = classOf(code, format);
  const kindOfTwice = classOf(twice, format);
  if (kindOfTwice === "zero") return "Times two, it is 0 as well.";
  if (kindOfTwice === "infinity") return "Times two, it is inf.";
  if (kind === "zero") {
    const size = spaced(exactly(Math.abs(decode(twice, format))));
    return `Times two, it is rounded up to ${size} and is not lost.`;
  }
  if (kind === "subnormal") {
    return (
      "Times two, its significand bits move one place to the left, " +
      "and one more bit of the gradient fits."
    );
  }
  const before = exponentField(code, format);
  const after = exponentField(twice, format);
  return (
    `Times two, only the exponent field moves, from ${before} to ${after}: ` +
    "the significand stays."
  );
}

/**
 * @param {bigint} code
 * @param {Format} format
 */
function exponentField(code, format) {
  return parseInt(fieldBits(code, format)[1], 2);
}

/**
 * layer[index, ...] of a cell of the table that is shown, as its tensor is indexed.
 *
 * @param {string} layer
 * @param {readonly number[]} shape
 * @param {number} row
 * @param {number} column
 */
export function cellName(layer, shape, row, column) {
  const lead = [];
  let rest = row;
  for (const size of shape.slice(0, -1).reverse()) {
    lead.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return `${layer}[${[...lead, column].join(", ")}]`;
}

/** @param {Looked} looked */
export function zoomSentence(looked) {
  const { zoom, shares, log2Scale, layer, kind, format } = looked;
  if (zoom === DEEPEST) return nearestSentence(looked);
  const said = sayFate(shares, log2Scale, layer, kind, format.name);
  if (zoom < DEEPEST - 1) return said;
  const count = looked.cells.toLocaleString("en-US");
  return `${said} Of the ${count} shown, ${percent(looked.zeros)} are zero already in FP32.`;
}

/** @param {Looked} looked */
function nearestSentence({ name, step, gradient, log2Scale, format }) {
  const at = `${name} at step ${step}`;
  if (!Number.isFinite(gradient)) {
    return `${at} is ${nameOf(gradient)} already in FP32: no scale changes that.`;
  }
  const size = spaced(exactly(gradient));
  const scaledSize = spaced(exactly(gradient * 2 ** log2Scale));
  const scaled = log2Scale && gradient ? `, times 2^${log2Scale} ${scaledSize}` : "";
  const said = gradientSentence(gradient, log2Scale, format);
  return `${at} is ${size}${scaled}. ${said}`;
}
