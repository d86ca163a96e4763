// What a number becomes in a format under each rounding, and the sentence of it.

import {
  ROUNDINGS,
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
  roundValue,
  sizeOf,
  spaced,
  times,
  ulpOf,
} from "../exact/numbers.js";
import { as_text } from "./scale.js";

const MODES = {
  NEAREST_EVEN: "to nearest, ties to even",
  NEAREST_AWAY: "to nearest, ties away from 0",
  TOWARD_ZERO: "toward 0",
  TOWARD_POSITIVE: "toward +infinity",
  TOWARD_NEGATIVE: "toward -infinity",
  STOCHASTIC: "stochastic",
};
const ONE = { n: 1n, d: 1n };

// One value, or two for stochastic rounding, the lower one first: [{value, odds}].
function outcomesOf(x, format, mode) {
  const inner = roundValue(x, format, mode);
  if (mode !== "STOCHASTIC") return [{ value: inner, odds: ONE }];
  const outer = roundValue(x, format, "AWAY");
  const { n, d } = over(sizeOf(exactly(x)), exactly(ulpOf(x, format)));
  const away = { n: n % d, d };
  if (Object.is(inner, outer) || Number.isNaN(inner) || !away.n)
    return [{ value: inner, odds: ONE }];
  const both = [
    { value: inner, odds: minus(ONE, away) },
    { value: outer, odds: away },
  ];
  return x > 0 ? both : both.reverse();
}

// The real numbers that round as x does, an infinite end being null; for stochastic rounding the gap that x lies in.
function intervalOf(x, format, mode) {
  const values = outcomesOf(x, format, mode).map(({ value }) => value);
  const finite = (value) => (Number.isFinite(value) ? value : null);
  if (values.some(Number.isNaN)) return null;
  if (mode === "STOCHASTIC")
    return { low: finite(values[0]), high: finite(values.at(-1)), low_in: true, high_in: true };
  const [value] = values;
  const comesHere = (point) => roundValue(point, format, mode) === value;
  // Numbers round to a value as far as infinity, its neighbour, half-way, or not beyond itself: points between show which.
  const [low, high] = [-1, 1].map((direction) => {
    const place = Number.isFinite(value)
      ? value
      : Math.sign(value) * (format.max + ulpOf(format.max, format));
    let next = neighbour(value, format, direction);
    if (!Number.isFinite(next) || next === null) next = place + direction * ulpOf(value, format);
    if (comesHere(direction * Number.MAX_VALUE)) return direction * Infinity;
    if (comesHere((place + 3 * next) / 4)) return next;
    return comesHere((3 * place + next) / 4) ? (place + next) / 2 : value;
  });
  return { low: finite(low), high: finite(high), low_in: comesHere(low), high_in: comesHere(high) };
}

// What can happen is never 0%, and what may fail is never 100%.
function oddsText(share) {
  if (!share.n) return "0%";
  if (compare(share, ONE) === 0) return "100%";
  if (compare(share, fraction(1n, 1000n)) < 0) return "<0.1%";
  return compare(share, fraction(999n, 1000n)) > 0
    ? ">99.9%"
    : `${brief(times(share, fraction(100n)))}%`;
}

// One rounding in words: what x becomes, and by how much it is off.
function modeRow(x, format, mode) {
  const found = outcomesOf(x, format, mode);
  const error = Number.isFinite(found[0].value) ? minus(exactly(found[0].value), exactly(x)) : null;
  const off = !error ? "" : !error.n ? "exact" : `${error.n > 0n ? "+" : ""}${brief(error)}`;
  return {
    mode,
    name: MODES[mode],
    value: found.map(({ value }) => nameOf(value)).join(" or "),
    error: found.length > 1 ? found.map(({ odds }) => oddsText(odds)).join(" or ") : off,
  };
}

export function becomes(mode, found) {
  if (found.length > 1)
    return `stochastic rounding makes it ${found.map(({ value, odds }) => `${nameOf(value)} in ${oddsText(odds)}`).join(" and ")} of the draws`;
  return `${mode === "STOCHASTIC" ? "by stochastic rounding" : MODES[mode]}, it becomes ${nameOf(found[0].value)}`;
}

function roundingSentence(x, format, mode) {
  const [low, high] = ["TOWARD_NEGATIVE", "TOWARD_POSITIVE"].map((way) =>
    roundValue(x, format, way),
  );
  const [name, number] = [format.name, as_text(x)];
  if (Number.isNaN(low))
    return `${number} becomes NaN: ${name} has ${x === 0 ? "no zero." : "no sign, so nothing below 0."}`;
  if (low === x && high === x) return `${number} is exact in ${name}: every rounding keeps it.`;
  const found = becomes(mode, outcomesOf(x, format, mode));
  if (Math.abs(x) > format.max)
    return `${number} lies beyond the last ${name} number, ${nameOf(Math.sign(x) * format.max)}; ${found}.`;
  const gap = minus(exactly(high), exactly(low));
  const half = compare(times(exactly(x), fraction(2n)), plus(exactly(low), exactly(high))) === 0;
  return `${number} lies ${half ? "half-way between" : "between"} the ${name} numbers ${nameOf(low)} and ${nameOf(high)}, ${spaced(gap)} apart; ${found}.`;
}

// Everything that is shown of a number: a row for each rounding, and the interval of the chosen one.
export function roundedView(x, format, mode) {
  const values = outcomesOf(x, format, mode).map(({ value, odds }) => ({
    at: Number.isFinite(value) ? value : null,
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

// Where numbers begin to round to zero and to what lies beyond the largest one.
export function lineFormat(row) {
  const format = derived(row);
  const beyond = { IEEE: "to infinity", FN: "to NaN", NONE: "to max" }[row.specials];
  const end = row.specials === "NONE" ? null : format.max + ulpOf(format.max, format) / 2;
  return { ...format, zero_to: row.has_zero ? format.least / 2 : 0, ends_from: end, beyond };
}
