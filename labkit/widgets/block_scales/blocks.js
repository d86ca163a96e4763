// Rounding to a block format, as by labkit.formats.round_blocks, and the sentences about it.
//
// Quotients are FP64 divisions, as in numpy; everything else is exact or rounded once.

import { percent, power } from "../base/number_words.js";
import {
  brief,
  derived,
  exactly,
  leading,
  over,
  powerOf,
  roundExact,
  roundValue,
  ulpOf,
  withMinus,
} from "../exact/numbers.js";

/** @import { Format, FormatRow, Mode } from "../exact/numbers.js" */

/**
 * A block format: each `size` elements share a scale.
 *
 * @template Numbers
 * @typedef {object} Blocks
 * @property {string} name
 * @property {number} size
 * @property {Numbers} element
 * @property {Numbers} scale
 * @property {number | null} tensor_top The value that the largest number of a tensor is scaled to;
 *   null if the tensor has no scale of its own.
 */

/** @typedef {Blocks<FormatRow>} BlockRow as Python sends it */
/** @typedef {Blocks<Format>} BlockFormat */

/**
 * How a row is rounded.
 *
 * @typedef {object} Ways
 * @property {boolean} up Whether a scale is rounded up.
 * @property {readonly number[] | null} random A random number below 2^32 for each number; null
 *   rounds to nearest.
 * @property {readonly number[][] | null} matrix The 16 x 16 rotation; null rotates nothing.
 */

/**
 * The stochastic rounding of a number.
 *
 * @typedef {object} Chance
 * @property {number} element The rounded number.
 * @property {number} share The probability of the upper neighbour.
 * @property {number} lower
 * @property {number} upper
 */

/** @typedef {"zero" | "cut" | "kept"} NumberFate cut: it was beyond the largest element */

/** @typedef {ReturnType<typeof roundRow>} RoundedRow */

// The smallest number of E8M0, the format of scales that are powers of two.
const LEAST_E8M0 = 2 ** -127;
const SIDE_OF_MATRIX = 16;

/**
 * Return a block format from its row, with all that follows from its element and scale formats.
 *
 * @param {BlockRow} row
 * @returns {BlockFormat}
 */
export function blockFormat(row) {
  return { ...row, element: derived(row.element), scale: derived(row.scale) };
}

/**
 * Return the largest magnitude; 0 without values.
 *
 * @param {readonly number[]} values
 */
export function largestOf(values) {
  return values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}

// --- rounding ------------------------------------------------------------------------------------

/**
 * Round a number; beyond the largest value of the format it becomes this value.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Mode} [mode]
 */
function saturated(x, format, mode) {
  return Math.abs(x) >= format.max ? Math.sign(x) * format.max : roundValue(x, format, mode);
}

/**
 * Round a number stochastically: away from zero if the random number is below the number's distance
 * from its lower neighbour, as a share of the gap.
 *
 * @param {number} x
 * @param {Format} format
 * @param {number} random below 2^32
 * @returns {Chance}
 */
function byChance(x, format, random) {
  const lower = saturated(x, format, "TOWARD_ZERO");
  const gap = ulpOf(x, format);
  const upper = lower + (x < 0 ? -gap : gap);
  const share = (Math.abs(x) - Math.abs(lower)) / gap;
  const away = Math.abs(x) < format.max && random < Math.floor(share * 2 ** 32);
  return { element: away ? upper : lower, share: Math.min(1, share), lower, upper };
}

/**
 * Return the scale of a block.
 *
 * @param {number} largest the largest magnitude in the block
 * @param {BlockFormat} format
 * @param {boolean} up whether a scale that is a power of two is rounded up
 */
function scaleOf(largest, { element, scale, tensor_top }, up) {
  if (tensor_top) return Math.max(saturated(largest / element.max, scale), scale.least);
  if (!up) {
    const wanted = Math.max(largest / 2 ** element.emax, LEAST_E8M0);
    return roundValue(wanted, scale, "TOWARD_ZERO");
  }
  const size = exactly(Math.max(largest, element.max * LEAST_E8M0));
  return roundExact(over(size, exactly(element.max)), scale, "TOWARD_POSITIVE");
}

/**
 * Multiply each 16 numbers by the matrix, or by its transpose, which rotates them back. Sums of 16
 * FP16 numbers are exact.
 *
 * @param {readonly number[]} values
 * @param {readonly number[][]} matrix
 * @param {boolean} [back]
 */
function rotated(values, matrix, back = false) {
  return values.map((_, i) => {
    const k = i % SIDE_OF_MATRIX;
    const start = i - k;
    let sum = 0;
    for (const [j, row] of matrix.entries()) {
      const factor = back ? row[k] : matrix[k][j];
      sum += factor * values[start + j];
    }
    return sum;
  });
}

/**
 * Return the scales of the blocks of a row.
 *
 * @param {readonly number[]} scaled
 * @param {BlockFormat} format
 * @param {boolean} up
 */
function scalesOf(scaled, format, up) {
  const scales = [];
  for (let start = 0; start < scaled.length; start += format.size) {
    const block = scaled.slice(start, start + format.size);
    scales.push(scaleOf(largestOf(block), format, up));
  }
  return scales;
}

/**
 * Round a row of numbers, and return all steps: the rotated and scaled numbers, the scales, the
 * quotients, the elements, and the values that they stand for.
 *
 * @param {readonly number[]} given
 * @param {BlockFormat} format
 * @param {Ways} ways
 */
export function roundRow(given, format, { up, random, matrix }) {
  const numbers = matrix ? rotated(given, matrix).map(Math.fround) : given;
  const largest = largestOf(numbers);
  const tensorScale = format.tensor_top && largest ? Math.fround(format.tensor_top / largest) : 1;
  const scaled = numbers.map((x) => Math.fround(x * tensorScale));
  const scales = scalesOf(scaled, format, up);
  /** @param {number} i */
  const scale = (i) => scales[Math.floor(i / format.size)];
  const quotients = scaled.map((x, i) => x / scale(i));
  const chances = random && quotients.map((x, i) => byChance(x, format.element, random[i]));
  const elements = chances
    ? chances.map(({ element }) => element)
    : quotients.map((x) => saturated(x, format.element));
  const products = elements.map((x, i) => x * scale(i));
  const stored = products.map((x) => x / tensorScale);
  // Rotated back before the division: these sums are exact.
  const values = matrix ? rotated(products, matrix, true).map((x) => x / tensorScale) : stored;
  return {
    given,
    format,
    numbers,
    tensorScale,
    scaled,
    scales,
    scale,
    quotients,
    chances,
    elements,
    stored,
    values,
    turned: Boolean(matrix),
  };
}

/**
 * Return whether a number was rounded to zero, cut to the largest element, or neither.
 *
 * @param {RoundedRow} row
 * @param {number} i
 * @returns {NumberFate}
 */
export function fateOfNumber({ numbers, quotients, elements, format }, i) {
  if (!numbers[i]) return "kept";
  if (!elements[i]) return "zero";
  return Math.abs(quotients[i]) > format.element.max ? "cut" : "kept";
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return a number with up to six digits.
 *
 * @param {number} x
 */
export function asNumber(x) {
  return withMinus(leading(exactly(x), 6));
}

/**
 * Return a scale as text: as a power of two in formats whose scales are all powers of two.
 *
 * @param {number} x
 * @param {BlockFormat} format
 */
export function scaleText(x, { scale }) {
  const k = powerOf(exactly(x));
  // A format without bits of significand has powers of two only.
  return scale.p || k === null ? asNumber(x) : power(k);
}

/**
 * Return the root mean square of the errors, relative to that of the numbers.
 *
 * @param {readonly number[]} given
 * @param {readonly number[]} values
 */
export function offBy(given, values) {
  /** @param {readonly number[]} numbers */
  const sumOfSquares = (numbers) => numbers.reduce((sum, x) => sum + x * x, 0);
  const size = sumOfSquares(given);
  if (!size) return 0;
  const errors = values.map((x, i) => x - given[i]);
  return Math.sqrt(sumOfSquares(errors) / size);
}

/**
 * Return the sentence about a row: what became 0, what decided the scales, and the error.
 *
 * @param {RoundedRow} row
 */
export function rowSentence(row) {
  const { given, numbers, stored, values } = row;
  const size = largestOf(numbers);
  if (size === 0) return "All numbers are 0. Drag one up.";
  const largest = numbers.findIndex((x) => Math.abs(x) === size);
  const sentences = [zerosText(row), scalesText(row, largest)];
  if (fateOfNumber(row, largest) === "cut") {
    sentences.push(`It is cut to ${asNumber(stored[largest])}.`);
  }
  const anyZero = values.some((x, i) => x === 0 && given[i] !== 0);
  if (row.turned && !anyZero) sentences.push("Rotated back, none is 0.");
  const error = percent(offBy(given, values));
  sentences.push(`The error of the whole row is ${error} (root mean square).`);
  return sentences.join(" ");
}

/** @param {RoundedRow} row */
function zerosText(row) {
  const { numbers } = row;
  const zeros = numbers.filter((_, i) => fateOfNumber(row, i) === "zero").length;
  const become = zeros > 1 ? "become" : "becomes";
  if (row.turned) return `Rotated, ${zeros || "none"} of ${numbers.length} numbers ${become} 0.`;
  return `${zeros || "None"} of ${numbers.length} numbers ${become} 0.`;
}

/**
 * Return the sentence about the scales, which the largest number decides.
 *
 * @param {RoundedRow} row
 * @param {number} largest the index of the largest number
 */
function scalesText({ format, numbers, scales, turned }, largest) {
  const size = asNumber(numbers[largest]);
  const number = turned ? `the largest rotated number, ${size},` : `x[${largest}] = ${size}`;
  const texts = scales.map((x) => scaleText(x, format));
  if (texts.length === 1) {
    const subject = turned ? number.replace("the", "The") : number;
    return `${subject} makes the scale ${texts[0]}.`;
  }
  const where = largest < format.size ? "first" : "second";
  return `The scales of the blocks are ${texts.join(" and ")}; ${number} is in the ${where}.`;
}

/**
 * Return the arithmetic of one number as a sentence.
 *
 * @param {RoundedRow} row
 * @param {number} i
 */
export function arithmeticText(row, i) {
  const { given, values } = row;
  const difference = values[i] - given[i];
  let error = "no error";
  if (difference !== 0) error = `error ${withMinus(brief(exactly(difference), 6))}`;
  const steps = `${quotientText(row, i)}; ${elementText(row, i)}; ${productText(row, i)}`;
  let text = `x[${i}] = ${steps}: ${error}.`;
  if (row.turned) {
    text =
      `x[${i}] = ${asNumber(given[i])}. Rotated number ${i}: ${steps}. ` +
      `Rotated back, x[${i}] is ${asNumber(values[i])}: ${error}.`;
  }
  // No full stop behind the ellipsis of a long number.
  return text.replaceAll("\u2026.", "\u2026");
}

/**
 * @param {RoundedRow} row
 * @param {number} i
 */
function quotientText(row, i) {
  const { format, numbers, tensorScale, scaled } = row;
  const number = asNumber(numbers[i]);
  const divided = asNumber(scaled[i]);
  const quotient = `/ ${scaleText(row.scale(i), format)} = ${asNumber(row.quotients[i])}`;
  if (!format.tensor_top) return `${number} ${quotient}`;
  return `${number} × ${asNumber(tensorScale)} = ${divided}; ${divided} ${quotient}`;
}

/**
 * @param {RoundedRow} row
 * @param {number} i
 */
function elementText(row, i) {
  const element = `${row.format.element.name} has ${asNumber(row.elements[i])}`;
  const chance = row.chances?.[i];
  if (!chance || !(chance.share > 0) || fateOfNumber(row, i) === "cut") return element;
  const upper = `${asNumber(chance.upper)} in ${percent(chance.share)} of draws`;
  return `${element} (${upper}, else ${asNumber(chance.lower)})`;
}

/**
 * @param {RoundedRow} row
 * @param {number} i
 */
function productText(row, i) {
  const { format, elements, tensorScale, stored } = row;
  const product = `${asNumber(elements[i])} × ${scaleText(row.scale(i), format)}`;
  const divided = format.tensor_top ? ` / ${asNumber(tensorScale)}` : "";
  return `${product}${divided} = ${asNumber(stored[i])}`;
}
