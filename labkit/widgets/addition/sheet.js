// The arithmetic of an addition or a multiplication in a format, with all intermediate results.

import {
  binadeOf,
  bitLength,
  exactly,
  minus,
  over,
  plus,
  roundValue,
  sizeOf,
  times,
  twoTo,
} from "../exact/numbers.js";

/** @import { Format, Fraction, Reading } from "../exact/numbers.js" */

/** @typedef {"add" | "multiply"} Operation */
/** @typedef {"a" | "b"} Name the name of an operand */

/**
 * A number as it is written on paper: significand * 2^exponent, with a sign.
 *
 * @typedef {object} Term
 * @property {boolean} negative
 * @property {bigint} significand The significand as a whole number, at least 0.
 * @property {number} exponent The exponent of the last place.
 */

/**
 * A result cut to the places of the format.
 *
 * @typedef {object} Cut
 * @property {Term} kept
 * @property {number} dropped The number of places cut off; negative if zeros are filled in.
 * @property {boolean} guard Whether the first place behind those kept is 1.
 * @property {boolean} round Whether the second one is 1.
 * @property {boolean} sticky Whether any other one is 1.
 */

/**
 * The cut, rounded.
 *
 * @typedef {object} Final
 * @property {boolean} up Whether 1 was added to the last place.
 * @property {boolean} carried Whether this made the significand one place longer.
 * @property {Term} term
 */

/**
 * A calculation with all intermediate results. `home` and `window` are the exponents of the first
 * place kept, before and after the result is normalised.
 *
 * @typedef {object} Sheet
 * @property {Operation} operation
 * @property {Format} format
 * @property {Reading[]} readings The parsed texts of a and b.
 * @property {number[]} values a and b, rounded to the format.
 * @property {boolean} finite Whether both values are finite.
 * @property {Record<Name, Term>} terms
 * @property {Record<Name, Term>} aligned The terms with the same exponent.
 * @property {Term} total The exact result, except for bits that sticky summarises.
 * @property {Cut} cut
 * @property {Final} final
 * @property {boolean} overflows Whether the rounded result is beyond the format's largest value.
 * @property {number} value The rounded result; if it overflows, what the format has instead.
 * @property {number[]} exponents The exponents of the first places of a and b.
 * @property {number} home
 * @property {number} window
 * @property {number} shift The difference of the exponents of a and b.
 * @property {Fraction} exact The exact result; 0 if a or b is not finite.
 * @property {Fraction | null} error The error in ulps; null if a or b is not finite, or if the
 *   result overflows.
 */

// The places behind those kept: guard, round, sticky, and one that a carry needs.
const EXTRA_PLACES = 4;

/**
 * Shift a significand, and drop the bits shifted out.
 *
 * @param {bigint} significand
 * @param {number} places to the left; below 0 to the right
 */
function shifted(significand, places) {
  return places >= 0 ? significand << BigInt(places) : significand >> BigInt(-places);
}

/**
 * Return the exponent of the place before the first 1; -Infinity for 0.
 *
 * @param {Term} term
 */
export function topOf({ significand, exponent }) {
  return significand ? exponent + bitLength(significand) : -Infinity;
}

/**
 * Return a value of a format as a term.
 *
 * @param {number} x a value of the format; infinities and NaN count as 0
 * @param {Format} format
 * @returns {Term}
 */
function termOf(x, format) {
  const finite = Number.isFinite(x) ? x : 0;
  const size = sizeOf(exactly(finite));
  const exponent = Math.max(size.n ? binadeOf(size) : format.emin, format.emin) - format.p;
  const { n, d } = times(size, twoTo(-exponent));
  return { negative: finite < 0 || Object.is(finite, -0), significand: n / d, exponent };
}

/**
 * Return a term with another exponent. If a 1 is shifted out, the last bit becomes 1 (sticky).
 *
 * @param {Term} term
 * @param {number} to
 * @returns {Term}
 */
function withExponent({ negative, significand, exponent }, to) {
  const moved = shifted(significand, exponent - to);
  const lost = shifted(moved, to - exponent) !== significand;
  return { negative, significand: lost ? moved | 1n : moved, exponent: to };
}

/**
 * @param {Term} a
 * @param {Term} b with the same exponent
 * @returns {Term}
 */
function sumOf(a, b) {
  const left = a.negative ? -a.significand : a.significand;
  const right = b.negative ? -b.significand : b.significand;
  const sum = left + right;
  // A zero sum is positive unless both terms are negative.
  const negative = sum ? sum < 0n : a.negative && b.negative;
  return { negative, significand: sum < 0n ? -sum : sum, exponent: a.exponent };
}

/**
 * @param {Term} a
 * @param {Term} b
 * @returns {Term}
 */
function productOf(a, b) {
  return {
    negative: a.negative !== b.negative,
    significand: a.significand * b.significand,
    exponent: a.exponent + b.exponent,
  };
}

/**
 * Cut a term to the places that the format keeps, with guard, round and sticky.
 *
 * @param {Term} term
 * @param {Format} format
 * @returns {Cut}
 */
function normalised(term, format) {
  const exponent = Math.max(topOf(term) - format.p - 1, format.emin - format.p);
  const dropped = exponent - term.exponent;
  const kept = shifted(term.significand, -dropped);
  const rest = term.significand - shifted(kept, dropped);
  /** @param {number} place 1 is the first place behind those kept */
  const isOne = (place) => (shifted(rest, place - dropped) & 1n) === 1n;
  return {
    kept: { ...term, significand: kept, exponent },
    dropped,
    guard: isOne(1),
    round: isOne(2),
    sticky: shifted(shifted(rest, 2 - dropped), dropped - 2) !== rest,
  };
}

/**
 * Round to nearest, ties to even.
 *
 * @param {Cut} cut
 * @param {Format} format
 * @returns {Final}
 */
function roundedCut(cut, format) {
  const { significand } = cut.kept;
  const odd = (significand & 1n) === 1n;
  const up = cut.guard && (cut.round || cut.sticky || odd);
  const raised = up ? significand + 1n : significand;
  return {
    up,
    carried: up && raised === 1n << BigInt(format.p + 1),
    term: { ...cut.kept, significand: raised },
  };
}

/**
 * Return the exponent of the first place that is kept, before the result is normalised.
 *
 * @param {Operation} operation
 * @param {number[]} values
 * @param {number[]} exponents
 */
function homeOf(operation, values, [first, second]) {
  if (operation === "multiply") return first + second;
  // The exponent of a zero means nothing.
  if (values[0] === 0) return second;
  return values[1] === 0 ? first : Math.max(first, second);
}

/**
 * Return the value of the rounded result, and whether it overflows: then the value is infinity, NaN
 * or the largest one, depending on the format.
 *
 * @param {Term} term the rounded result
 * @param {Format} format
 */
function resultOf({ negative, significand, exponent }, format) {
  const size = Number(significand) * 2 ** exponent;
  const overflows = size > format.max;
  const limited = overflows ? Math.abs(roundValue(Infinity, format)) : size;
  return { overflows, value: negative ? -limited : limited };
}

/**
 * Calculate a + b or a * b, with all intermediate results.
 *
 * @param {Reading[]} readings
 * @param {Format} format
 * @param {Operation} operation
 * @returns {Sheet}
 */
export function sheetOf(readings, format, operation) {
  const adds = operation === "add";
  const values = readings.map(({ value }) => value);
  const finite = values.every(Number.isFinite);
  const [a, b] = values.map((value) => termOf(value, format));
  // Bits below the extra places only matter for sticky.
  const lowest = Math.max(topOf(a), topOf(b)) - format.p - EXTRA_PLACES;
  const exponent = Math.max(Math.min(a.exponent, b.exponent), lowest);
  const aligned = { a: withExponent(a, exponent), b: withExponent(b, exponent) };
  const total = adds ? sumOf(aligned.a, aligned.b) : productOf(a, b);
  const cut = normalised(total, format);
  const final = roundedCut(cut, format);
  const special = adds ? values[0] + values[1] : values[0] * values[1];
  const { overflows, value } = finite
    ? resultOf(final.term, format)
    : { overflows: false, value: roundValue(special, format) };
  const exponents = [a.exponent + format.p, b.exponent + format.p];
  const home = homeOf(operation, values, exponents);
  const exact = finite ? exactOf(operation, values) : { n: 0n, d: 1n };
  const hasError = finite && !overflows;
  return {
    operation,
    format,
    readings,
    values,
    finite,
    terms: { a, b },
    aligned,
    total,
    cut,
    final,
    overflows,
    value,
    exponents,
    home,
    window: total.significand ? cut.kept.exponent + format.p : home,
    shift: Math.abs(a.exponent - b.exponent),
    exact,
    error: hasError ? over(minus(exactly(value), exact), twoTo(cut.kept.exponent)) : null,
  };
}

/**
 * @param {Operation} operation
 * @param {number[]} values finite ones
 */
function exactOf(operation, [a, b]) {
  return operation === "add" ? plus(exactly(a), exactly(b)) : times(exactly(a), exactly(b));
}
