// Numbers in a block format, as labkit.formats.round_blocks has them, and what is said of them.
//
// A quotient is one division of FP64, as in numpy; everything else is exact or rounded once.

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
 * A block format: as many elements as its size share a scale.
 *
 * @template Numbers
 * @typedef {object} Blocks
 * @property {string} name
 * @property {number} size
 * @property {Numbers} element
 * @property {Numbers} scale
 * @property {number | null} tensor_top What the largest number of a tensor is scaled to, where the
 *   tensor has a scale too.
 */

/** @typedef {Blocks<FormatRow>} BlockRow as Python sends it */
/** @typedef {Blocks<Format>} BlockFormat */

/**
 * How a row is rounded.
 *
 * @typedef {object} Ways
 * @property {boolean} up Whether a scale is rounded up.
 * @property {readonly number[] | null} random A number below 2^32 for each; null: to the nearest.
 * @property {readonly number[][] | null} matrix What rotates the numbers, 16 x 16; null: nothing.
 */

/**
 * Where a number rounds to by chance.
 *
 * @typedef {object} Chance
 * @property {number} element What it became.
 * @property {number} share How often it is the upper one.
 * @property {number} lower
 * @property {number} upper
 */

/** @typedef {"zero" | "cut" | "kept"} NumberFate cut: beyond the largest element */

/** @typedef {ReturnType<typeof roundRow>} RoundedRow */

const TINY = 2 ** -127; // the least scale of E8M0
const SIDE_OF_MATRIX = 16;

/**
 * @param {BlockRow} row
 * @returns {BlockFormat}
 */
export function blockFormat(row) {
  return { ...row, element: derived(row.element), scale: derived(row.scale) };
}

/** @param {readonly number[]} values */
export function largestOf(values) {
  return values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
}

// --- rounding ------------------------------------------------------------------------------------

/**
 * @param {number} x
 * @param {Format} format
 * @param {Mode} [mode]
 */
function saturated(x, format, mode) {
  return Math.abs(x) >= format.max ? Math.sign(x) * format.max : roundValue(x, format, mode);
}

/**
 * Away from zero where the random number is below the part of the gap that lies beyond the lower
 * neighbour.
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
 * The scale of a block.
 *
 * @param {number} largest
 * @param {BlockFormat} format
 * @param {boolean} up
 */
function scaleOf(largest, { element, scale, tensor_top }, up) {
  if (tensor_top) return Math.max(saturated(largest / element.max, scale), scale.least);
  if (!up) return roundValue(Math.max(largest / 2 ** element.emax, TINY), scale, "TOWARD_ZERO");
  const size = exactly(Math.max(largest, element.max * TINY));
  return roundExact(over(size, exactly(element.max)), scale, "TOWARD_POSITIVE");
}

/**
 * Each 16 numbers times the matrix, or its transpose, which turns them back. Sums of 16 FP16
 * numbers are exact.
 *
 * @param {readonly number[]} values
 * @param {readonly number[][]} matrix
 * @param {boolean} [back]
 */
function turned(values, matrix, back = false) {
  return values.map((_, i) => {
    const at = i % SIDE_OF_MATRIX;
    let sum = 0;
    for (const [j, row] of matrix.entries()) {
      sum += (back ? row[at] : matrix[at][j]) * values[i - at + j];
    }
    return sum;
  });
}

/**
 * The scales of the blocks of a row.
 *
 * @param {readonly number[]} scaled
 * @param {BlockFormat} format
 * @param {boolean} up
 */
function scalesOf(scaled, format, up) {
  const scales = [];
  for (let from = 0; from < scaled.length; from += format.size) {
    scales.push(scaleOf(largestOf(scaled.slice(from, from + format.size)), format, up));
  }
  return scales;
}

/**
 * What is rounded, at which scales, and what it becomes.
 *
 * @param {readonly number[]} given
 * @param {BlockFormat} format
 * @param {Ways} ways
 */
export function roundRow(given, format, { up, random, matrix }) {
  const numbers = matrix ? turned(given, matrix).map(Math.fround) : given;
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
  const values = matrix ? turned(products, matrix, true).map((x) => x / tensorScale) : stored;
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
 * What became of one of the numbers that are rounded.
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

/** @param {number} x */
export function asNumber(x) {
  return withMinus(leading(exactly(x), 6));
}

/**
 * @param {number} x
 * @param {BlockFormat} format
 */
export function scaleText(x, { scale }) {
  const k = powerOf(exactly(x));
  const isNumber = scale.p || k === null || Math.abs(x) === 448;
  return isNumber ? asNumber(x) : power(k);
}

/**
 * The root mean square of the errors, as a share of that of the numbers.
 *
 * @param {readonly number[]} given
 * @param {readonly number[]} values
 */
export function offBy(given, values) {
  /** @param {readonly number[]} all */
  const square = (all) => all.reduce((sum, x) => sum + x * x, 0);
  const size = square(given);
  return size ? Math.sqrt(square(values.map((x, i) => x - given[i])) / size) : 0;
}

/**
 * What was lost in all, and what decided it.
 *
 * @param {RoundedRow} row
 */
export function rowSentence(row) {
  const { given, numbers, stored, values } = row;
  const all = numbers.map((_, i) => i);
  const [first] = all.toSorted((i, j) => Math.abs(numbers[j]) - Math.abs(numbers[i]));
  if (!numbers[first]) return "All numbers are 0. Drag one up.";
  const isCut = fateOfNumber(row, first) === "cut";
  const noneIsZero = row.turned && !values.some((x, i) => !x && given[i]);
  const cut = isCut ? ` It is cut to ${asNumber(stored[first])}.` : "";
  const back = noneIsZero ? " Rotated back, none is 0." : "";
  const error = percent(offBy(given, values));
  return (
    `${zerosText(row)} ${scalesText(row, first)}${cut}${back} ` +
    `The error of the whole row is ${error} (root mean square).`
  );
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
 * What the largest number makes of the scales.
 *
 * @param {RoundedRow} row
 * @param {number} first where the largest number is
 */
function scalesText({ format, numbers, scales, turned: isTurned }, first) {
  const size = asNumber(numbers[first]);
  const rotated = `largest rotated number, ${size},`;
  const plain = `x[${first}] = ${size}`;
  const texts = scales.map((x) => scaleText(x, format));
  if (texts.length === 1) {
    return `${isTurned ? `The ${rotated}` : plain} makes the scale ${texts[0]}.`;
  }
  const subject = isTurned ? `the ${rotated}` : plain;
  const where = ["first", "second"][Math.floor(first / format.size)];
  return `The scales of the blocks are ${texts.join(" and ")}; ${subject} is in the ${where}.`;
}

/**
 * The arithmetic of one number.
 *
 * @param {RoundedRow} row
 * @param {number} i
 */
export function arithmeticText(row, i) {
  const { given, values } = row;
  const off = values[i] - given[i];
  const error = off === 0 ? "no error" : `error ${withMinus(brief(exactly(off), 6))}`;
  const way = `${quotientText(row, i)}; ${elementText(row, i)}; ${productText(row, i)}`;
  if (!row.turned) return ended(`x[${i}] = ${way}: ${error}.`);
  return ended(
    `x[${i}] = ${asNumber(given[i])}. Rotated number ${i}: ${way}. ` +
      `Rotated back, x[${i}] is ${asNumber(values[i])}: ${error}.`,
  );
}

/**
 * An ellipsis ends a sentence, too.
 *
 * @param {string} text
 */
function ended(text) {
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
  const said = `${row.format.element.name} has ${asNumber(row.elements[i])}`;
  const chance = row.chances?.[i];
  if (!chance || !(chance.share > 0) || fateOfNumber(row, i) === "cut") return said;
  const share = percent(chance.share);
  return `${said} (${asNumber(chance.upper)} in ${share} of draws, else ${asNumber(chance.lower)})`;
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
