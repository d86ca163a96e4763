// The results of rounding a number to a format in each rounding mode, and the sentence about it.

import {
  brief,
  compare,
  derived,
  exactly,
  fraction,
  minus,
  nameOf,
  neighbour,
  over,
  plus,
  ROUNDINGS,
  roundValue,
  sizeOf,
  spaced,
  times,
  ulpOf,
} from "../exact/numbers.js";
import { asText } from "./scale.js";

/** @import { Format, FormatRow, Fraction, Rounding } from "../exact/numbers.js" */

/**
 * The ends of the range in which rounding to nearest neither underflows nor overflows.
 *
 * @typedef {object} RoundingEnds
 * @property {number} zero_to Numbers up to this one are rounded to zero.
 * @property {number | null} ends_from Numbers from this one on overflow; null if none does.
 * @property {string} beyond The result of an overflow, as text: "to infinity", for example.
 */

/** @typedef {Format & RoundingEnds} LineFormat A format, and the ends of its range. */

/** @typedef {{ value: number, odds: Fraction }} Outcome A possible result, and its probability. */

/**
 * The real numbers that round to the same value; an infinite end is null.
 *
 * @typedef {object} Interval
 * @property {number | null} low
 * @property {number | null} high
 * @property {boolean} low_in Whether the end itself rounds to the value.
 * @property {boolean} high_in The same for the other end.
 */

/**
 * A row of the table of rounding modes.
 *
 * @typedef {{ mode: Rounding, name: string, value: string, error: string }} ModeRow
 */

/**
 * Everything that is shown for a number.
 *
 * @typedef {object} RoundedView
 * @property {number} x
 * @property {Rounding} rounding
 * @property {{ at: number | null, text: string, odds: string }[]} values The values that x is
 *   rounded to; `at` is null for infinity and NaN, which are not on the line.
 * @property {Interval | null} interval
 * @property {ModeRow[]} rows
 * @property {string} sentence
 */

/** @type {Record<Rounding, string>} */
export const MODE_NAMES = {
  NEAREST_EVEN: "to nearest, ties to even",
  NEAREST_AWAY: "to nearest, ties away from 0",
  TOWARD_ZERO: "toward 0",
  TOWARD_POSITIVE: "toward +infinity",
  TOWARD_NEGATIVE: "toward -infinity",
  STOCHASTIC: "stochastic",
};
const ONE = fraction(1n);

/**
 * Return the format of a row, with the ends of its range.
 *
 * @param {FormatRow} row
 * @returns {LineFormat}
 */
export function lineFormat(row) {
  const format = derived(row);
  const results = { IEEE: "to infinity", FN: "to NaN", NONE: "to max" };
  const beyond = results[row.specials];
  const end = row.specials === "NONE" ? null : format.max + ulpOf(format.max, format) / 2;
  return { ...format, zero_to: row.has_zero ? format.least / 2 : 0, ends_from: end, beyond };
}

/**
 * Return the rounded value, or both possible values of stochastic rounding, the lower one first.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Rounding} mode
 * @returns {Outcome[]}
 */
function outcomesOf(x, format, mode) {
  const inner = roundValue(x, format, mode);
  if (mode !== "STOCHASTIC") return [{ value: inner, odds: ONE }];
  const outer = roundValue(x, format, "AWAY");
  const { n, d } = over(sizeOf(exactly(x)), exactly(ulpOf(x, format)));
  const away = { n: n % d, d };
  if (Object.is(inner, outer) || Number.isNaN(inner) || !away.n) {
    return [{ value: inner, odds: ONE }];
  }
  const both = [
    { value: inner, odds: minus(ONE, away) },
    { value: outer, odds: away },
  ];
  return x > 0 ? both : both.reverse();
}

/**
 * Return the real numbers that round to the same value as x; for stochastic rounding, the gap that
 * x lies in. null if x becomes NaN.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Rounding} mode
 * @returns {Interval | null}
 */
function intervalOf(x, format, mode) {
  const values = outcomesOf(x, format, mode).map(({ value }) => value);
  if (values.some(Number.isNaN)) return null;
  const [value] = values;
  if (mode === "STOCHASTIC") {
    const last = values[values.length - 1];
    return { low: finite(value), high: finite(last), low_in: true, high_in: true };
  }
  /** @param {number} point */
  const comesHere = (point) => roundValue(point, format, mode) === value;
  const low = endOf(value, format, comesHere, -1);
  const high = endOf(value, format, comesHere, 1);
  return { low: finite(low), high: finite(high), low_in: comesHere(low), high_in: comesHere(high) };
}

/**
 * Return a finite number; null for infinity and NaN.
 *
 * @param {number} value
 */
function finite(value) {
  return Number.isFinite(value) ? value : null;
}

/**
 * Return the end, in a direction, of the numbers that round to a value: infinity, the value's
 * neighbour, half-way to it, or the value itself. Rounding points in between shows which.
 *
 * @param {number} value
 * @param {Format} format
 * @param {(point: number) => boolean} comesHere whether a point rounds to the value
 * @param {number} direction +1 or -1
 */
function endOf(value, format, comesHere, direction) {
  const beyond = Math.sign(value) * (format.max + ulpOf(format.max, format));
  const place = Number.isFinite(value) ? value : beyond;
  let next = neighbour(value, format, direction);
  if (next === null || !Number.isFinite(next)) next = place + direction * ulpOf(value, format);
  if (comesHere(direction * Number.MAX_VALUE)) return direction * Infinity;
  if (comesHere((place + 3 * next) / 4)) return next;
  return comesHere((3 * place + next) / 4) ? (place + next) / 2 : value;
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return a probability in percent. Only an impossible outcome is 0%, and only a certain one 100%.
 *
 * @param {Fraction} share
 */
function oddsText(share) {
  if (!share.n) return "0%";
  if (compare(share, ONE) === 0) return "100%";
  if (compare(share, fraction(1n, 1000n)) < 0) return "<0.1%";
  if (compare(share, fraction(999n, 1000n)) > 0) return ">99.9%";
  return `${brief(times(share, fraction(100n)))}%`;
}

/**
 * Return the row of a rounding mode: the value or values of x, and the error or the odds.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Rounding} mode
 * @returns {ModeRow}
 */
function modeRow(x, format, mode) {
  const outcomes = outcomesOf(x, format, mode);
  let error = offText(outcomes[0].value, x);
  if (outcomes.length > 1) error = outcomes.map(({ odds }) => oddsText(odds)).join(" or ");
  return {
    mode,
    name: MODE_NAMES[mode],
    value: outcomes.map(({ value }) => nameOf(value)).join(" or "),
    error,
  };
}

/**
 * Return the error of a rounded value as text, "exact" without one; "" for infinity and NaN.
 *
 * @param {number} value
 * @param {number} x
 */
function offText(value, x) {
  if (!Number.isFinite(value)) return "";
  const error = minus(exactly(value), exactly(x));
  if (!error.n) return "exact";
  return `${error.n > 0n ? "+" : ""}${brief(error)}`;
}

/**
 * Return what x becomes, as a part of a sentence.
 *
 * @param {Rounding} mode
 * @param {readonly Outcome[]} outcomes
 */
function becomesText(mode, outcomes) {
  if (outcomes.length > 1) {
    const draws = outcomes.map(({ value, odds }) => `${nameOf(value)} in ${oddsText(odds)}`);
    return `stochastic rounding makes it ${draws.join(" and ")} of the draws`;
  }
  const how = mode === "STOCHASTIC" ? "by stochastic rounding" : MODE_NAMES[mode];
  return `${how}, it becomes ${nameOf(outcomes[0].value)}`;
}

/**
 * Return the sentence about a number: its neighbours in the format, and its rounded value.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Rounding} mode
 */
function roundingSentence(x, format, mode) {
  const { name, max } = format;
  const number = asText(x);
  const low = roundValue(x, format, "TOWARD_NEGATIVE");
  const high = roundValue(x, format, "TOWARD_POSITIVE");
  if (Number.isNaN(low)) {
    const why = x === 0 ? "no zero." : "no sign, so nothing below 0.";
    return `${number} becomes NaN: ${name} has ${why}`;
  }
  if (low === x && high === x) return `${number} is exact in ${name}: every rounding keeps it.`;
  const result = becomesText(mode, outcomesOf(x, format, mode));
  if (Math.abs(x) > max) {
    const last = `the last ${name} number, ${nameOf(Math.sign(x) * max)}`;
    return `${number} lies beyond ${last}; ${result}.`;
  }
  const gap = minus(exactly(high), exactly(low));
  const half = compare(times(exactly(x), fraction(2n)), plus(exactly(low), exactly(high))) === 0;
  const between = half ? "half-way between" : "between";
  const ends = `the ${name} numbers ${nameOf(low)} and ${nameOf(high)}`;
  return `${number} lies ${between} ${ends}, ${spaced(gap)} apart; ${result}.`;
}

/**
 * Return everything that is shown for a number: a row for each mode, and the interval of one mode.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Rounding} mode
 * @returns {RoundedView}
 */
export function roundedView(x, format, mode) {
  const values = outcomesOf(x, format, mode).map(({ value, odds }) => ({
    at: finite(value),
    text: nameOf(value),
    odds: oddsText(odds),
  }));
  return {
    x,
    rounding: mode,
    values,
    interval: intervalOf(x, format, mode),
    rows: ROUNDINGS.map((each) => modeRow(x, format, each)),
    sentence: roundingSentence(x, format, mode),
  };
}
