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

const TINY = 2 ** -127; // the least scale of E8M0

export const blockFormat = (row) => ({
  ...row,
  element: derived(row.element),
  scale: derived(row.scale),
});
export const largestOf = (values) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0);

function saturated(x, format, mode) {
  return Math.abs(x) >= format.max ? Math.sign(x) * format.max : roundValue(x, format, mode);
}

// Away from zero where the random number, below 2^32, is below the part of the gap that lies beyond the lower neighbour.
function byChance(x, format, random) {
  const lower = saturated(x, format, "TOWARD_ZERO");
  const gap = ulpOf(x, format);
  const share = (Math.abs(x) - Math.abs(lower)) / gap;
  const away = Math.abs(x) < format.max && random < Math.floor(share * 2 ** 32);
  return {
    element: away ? lower + (x < 0 ? -gap : gap) : lower,
    share: Math.min(1, share),
    lower,
    upper: lower + (x < 0 ? -gap : gap),
  };
}

function scaleOf(largest, { element, scale, tensor_top }, up) {
  if (tensor_top) return Math.max(saturated(largest / element.max, scale), scale.least);
  if (up)
    return roundExact(
      over(exactly(Math.max(largest, element.max * TINY)), exactly(element.max)),
      scale,
      "TOWARD_POSITIVE",
    );
  return roundValue(Math.max(largest / 2 ** element.emax, TINY), scale, "TOWARD_ZERO");
}

// Each 16 numbers times the matrix, or its transpose, which turns them back. Sums of 16 FP16 numbers are exact.
function turned(values, matrix, back = false) {
  return values.map((_, i) => {
    const first = i - (i % 16);
    return matrix.reduce(
      (sum, row, j) => sum + (back ? row[i % 16] : matrix[i % 16][j]) * values[first + j],
      0,
    );
  });
}

// {numbers, tensorScale, scales, quotients, elements, stored, values}: what is rounded, at which scales, and what it becomes;
// `random` and `matrix` may be null.
export function roundRow(given, format, { up, random, matrix }) {
  const numbers = matrix ? turned(given, matrix).map(Math.fround) : given;
  const largest = largestOf(numbers);
  const tensorScale = format.tensor_top && largest ? Math.fround(format.tensor_top / largest) : 1;
  const scaled = numbers.map((x) => Math.fround(x * tensorScale));
  const scales = [];
  for (let from = 0; from < scaled.length; from += format.size)
    scales.push(scaleOf(largestOf(scaled.slice(from, from + format.size)), format, up));
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

// "zero", "cut" (beyond the largest element) or "kept", of the numbers that are rounded.
export function fateOfNumber({ numbers, quotients, elements, format }, i) {
  if (numbers[i] && !elements[i]) return "zero";
  return Math.abs(quotients[i]) > format.element.max && numbers[i] ? "cut" : "kept";
}

// --- words ------------------------------------------------------------------------------------------------------------------

const ended = (text) => text.replaceAll("\u2026.", "\u2026"); // an ellipsis ends a sentence, too
export const asNumber = (x) => withMinus(leading(exactly(x), 6));
const asScale = (x) => {
  const k = powerOf(exactly(x));
  return k === null || Math.abs(x) === 448 ? asNumber(x) : power(k);
};
export const scaleText = (x, { scale }) => (scale.p ? asNumber(x) : asScale(x));

export function offBy(given, values) {
  const square = (all) => all.reduce((sum, x) => sum + x * x, 0);
  const size = square(given);
  return size ? Math.sqrt(square(values.map((x, i) => x - given[i])) / size) : 0;
}

// What was lost in all, and what decided it.
export function rowSentence(row) {
  const { given, format, numbers, scales, values, stored, turned: isTurned } = row;
  const all = numbers.map((_, i) => i);
  const zeros = all.filter((i) => fateOfNumber(row, i) === "zero").length;
  const [first] = all.toSorted((i, j) => Math.abs(numbers[j]) - Math.abs(numbers[i]));
  if (!numbers[first]) return "All numbers are 0. Drag one up.";
  const lost = `${isTurned ? "Rotated, " : ""}${zeros || (isTurned ? "none" : "None")} of ${numbers.length} numbers ${zeros > 1 ? "become" : "becomes"} 0.`;
  const life = isTurned
    ? `The largest rotated number, ${asNumber(numbers[first])},`
    : `x[${first}] = ${asNumber(numbers[first])}`;
  const cut = fateOfNumber(row, first) === "cut" ? ` It is cut to ${asNumber(stored[first])}.` : "";
  const where = ["first", "second"][Math.floor(first / format.size)];
  const sets =
    scales.length > 1
      ? `The scales of the blocks are ${scales.map((x) => scaleText(x, format)).join(" and ")}; ${life.replace(/^The/, "the")} is in the ${where}.`
      : `${life} makes the scale ${scaleText(scales[0], format)}.`;
  const back =
    isTurned && !values.some((x, i) => !x && given[i]) ? " Rotated back, none is 0." : "";
  return `${lost} ${sets}${cut}${back} The error of the whole row is ${percent(offBy(given, values))} (root mean square).`;
}

// The arithmetic of one number.
export function arithmeticText(row, i) {
  const {
    given,
    format,
    numbers,
    tensorScale,
    scaled,
    quotients,
    chances,
    elements,
    stored,
    values,
    turned: isTurned,
  } = row;
  const scale = scaleText(row.scale(i), format);
  const many = format.tensor_top ? ` × ${asNumber(tensorScale)} = ${asNumber(scaled[i])};` : "";
  const from = `${asNumber(numbers[i])}${many}${many ? ` ${asNumber(scaled[i])}` : ""} / ${scale} = ${asNumber(quotients[i])}`;
  const chance = chances?.[i];
  const odds =
    chance?.share > 0 && fateOfNumber(row, i) !== "cut"
      ? ` (${asNumber(chance.upper)} in ${percent(chance.share)} of draws, else ${asNumber(chance.lower)})`
      : "";
  const element = `${format.element.name} has ${asNumber(elements[i])}${odds}`;
  const to = `${asNumber(elements[i])} × ${scale}${many ? ` / ${asNumber(tensorScale)}` : ""} = ${asNumber(stored[i])}`;
  const error = (value) =>
    value === given[i] ? "no error" : `error ${withMinus(brief(exactly(value - given[i]), 6))}`;
  if (!isTurned) return ended(`x[${i}] = ${from}; ${element}; ${to}: ${error(values[i])}.`);
  return ended(
    `x[${i}] = ${asNumber(given[i])}. Rotated number ${i}: ${from}; ${element}; ${to}. Rotated back, x[${i}] is ${asNumber(values[i])}: ${error(values[i])}.`,
  );
}
