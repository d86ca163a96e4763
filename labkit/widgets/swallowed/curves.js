// Repeated updates of a weight by six methods, and the sentence about their results.

import { binadeOf, exactly, firstDigits, listed, numberText } from "../exact/numbers.js";
import { CURVES } from "./plot.js";

/**
 * What rounding needs of a format.
 *
 * @typedef {object} Narrow
 * @property {number} p The stored bits of the significand.
 * @property {number} emin The exponent of the smallest normal number.
 * @property {number} max The largest finite number.
 */

/** @typedef {Float64Array<ArrayBuffer>} Curve the weight before the first update and after each */

/** @typedef {(x: number) => number} Round rounds a number to a format */

/**
 * A row of the table.
 *
 * @typedef {object} CurveRow
 * @property {string} name The name of the method.
 * @property {string} end The weight after the last update.
 * @property {string} off How far that is from the exact sum.
 * @property {string} moved The number of steps in which the weight changed.
 */

/** @type {Narrow} */
const HALF = { p: 10, emin: -14, max: 65504 };
/** @type {Narrow} */
const BRAIN = { p: 7, emin: -126, max: (2 - 2 ** -7) * 2 ** 127 };
// The sum of this number and a number below 2^51 is rounded to a whole number, half to even, since
// float64 numbers of this size have a spacing of 1.
const WHOLE = 1.5 * 2 ** 52;
// A float64 number, and its bits as two words. All machines with browsers are little-endian, so the
// second word has the sign, the 11 bits of the exponent and the first 20 bits of the significand.
const words64 = new Float64Array(1);
const fields64 = new Uint32Array(words64.buffer);

// --- rounding ------------------------------------------------------------------------------------

// `roundValue` of exact/numbers.js is exact but too slow here: a position of the sliders needs
// thousands of roundings. These functions use float64 arithmetic. A test compares their curves with
// those of curves.py.

/**
 * Return the spacing of a format's values in the binade of a number.
 *
 * @param {Narrow} format
 * @param {number} x
 */
function spacingIn({ p, emin }, x) {
  words64[0] = x;
  const exponent = ((fields64[1] >>> 20) & 0x7ff) - 1023;
  return 2 ** (Math.max(exponent, emin) - p);
}

/**
 * Return a rounded number, or infinity if it is beyond the format's largest.
 *
 * @param {Narrow} format
 * @param {number} x
 */
function limited({ max }, x) {
  return Math.abs(x) > max ? Math.sign(x) * Infinity : x;
}

/**
 * @param {Narrow} format
 * @param {number} x
 */
function nearestIn(format, x) {
  if (!Number.isFinite(x)) return x;
  const spacing = spacingIn(format, x);
  return limited(format, (x / spacing + WHOLE - WHOLE) * spacing);
}

/** @type {Round} */
function toHalf(x) {
  return nearestIn(HALF, x);
}

/** @type {Round} */
function toBrain(x) {
  return nearestIn(BRAIN, x);
}

/**
 * Stochastic rounding to FP16.
 *
 * @param {number} x
 * @param {number} random 32 random bits
 */
function byChance(x, random) {
  if (!Number.isFinite(x)) return x;
  const spacing = spacingIn(HALF, x);
  const whole = Math.trunc(x / spacing);
  const away = random < Math.floor(Math.abs(x / spacing - whole) * 2 ** 32);
  return limited(HALF, (whole + (away ? Math.sign(x) : 0)) * spacing);
}

// --- curves --------------------------------------------------------------------------------------

/**
 * Return the curve of a method.
 *
 * @param {number} weight
 * @param {number} update
 * @param {number} steps
 * @param {Round} round rounds to the format of the weight
 * @param {(now: number, minus: number, step: number) => number} [next] returns the weight after a
 *   step; by default a rounded difference
 * @returns {Curve}
 */
function weights(weight, update, steps, round, next = (now, minus) => round(now - minus)) {
  const curve = new Float64Array(steps + 1);
  const minus = round(update);
  curve[0] = round(weight);
  for (let i = 1; i <= steps; i++) curve[i] = next(curve[i - 1], minus, i - 1);
  return curve;
}

/**
 * Return a function that subtracts in FP16, and compensates the rounding error of each subtraction
 * in the next one (W. Kahan, 1965).
 *
 * @returns {(total: number, minus: number) => number}
 */
function kahan() {
  let lost = 0;
  return (total, minus) => {
    const corrected = toHalf(-minus - lost);
    const raised = toHalf(total + corrected);
    lost = toHalf(toHalf(raised - total) - corrected);
    return raised;
  };
}

/**
 * Return the curves of all methods, in the order of CURVES.
 *
 * @param {number} weight
 * @param {number} update
 * @param {number} steps
 * @param {ArrayLike<number>} random 32 random bits for each step
 * @returns {Curve[]}
 */
export function curvesOf(weight, update, steps, random) {
  const single = weights(weight, update, steps, Math.fround);
  return [
    single,
    weights(weight, update, steps, toHalf),
    weights(weight, update, steps, toBrain),
    weights(weight, update, steps, toHalf, kahan()),
    weights(weight, update, steps, toHalf, (now, minus, i) => byChance(now - minus, random[i])),
    single.map(toHalf),
  ];
}

/**
 * Return the number of steps in which a weight changed.
 *
 * @param {Curve} curve
 */
function movesIn(curve) {
  let moves = 0;
  for (let i = 1; i < curve.length; i++) {
    const bothNaN = Number.isNaN(curve[i]) && Number.isNaN(curve[i - 1]);
    if (curve[i] !== curve[i - 1] && !bothNaN) moves += 1;
  }
  return moves;
}

/**
 * Return the weight after the last update.
 *
 * @param {Curve} curve
 */
export function endOfCurve(curve) {
  return curve[curve.length - 1];
}

// --- numbers -------------------------------------------------------------------------------------

/** @param {number} x */
function fourDigits(x) {
  if (!x || !Number.isFinite(x)) return numberText(x);
  const [digits, power] = firstDigits(exactly(Math.abs(x)), 4);
  return numberText(Math.sign(x) * Number(`${digits}e${power - 3}`));
}

/**
 * Return a number in decimal; if it is 1, 1.25, 1.5 or 1.75 times a power of two, also as such:
 * "1.25 × 2^-9 = 0.002441".
 *
 * @param {number} x above 0
 */
export function quarters(x) {
  const k = binadeOf(exactly(x));
  const times4 = (4 * x) / 2 ** k;
  if (!Number.isInteger(times4)) return fourDigits(x);
  return `${times4 === 4 ? "" : `${times4 / 4} × `}2^${k} = ${fourDigits(x)}`;
}

/**
 * Return the row of each method: its end value, the difference from the exact sum, and the number
 * of steps in which the weight changed.
 *
 * @param {readonly Curve[]} curves
 * @param {number} exact
 * @returns {CurveRow[]}
 */
export function curveRows(curves, exact) {
  return CURVES.map(({ name }, i) => {
    const end = endOfCurve(curves[i]);
    return {
      name,
      end: fourDigits(end),
      off: (end > exact ? "+" : "") + fourDigits(end - exact),
      moved: movesIn(curves[i]).toLocaleString("en-US"),
    };
  });
}

// --- the sentence --------------------------------------------------------------------------------

/**
 * Where a method ends: at the exact sum, near it, at the first weight, before the sum or beyond it,
 * or in NaN, as Kahan's sum does after an overflow.
 *
 * @typedef {"arrive" | "near" | "still" | "short" | "far" | "nan"} Outcome
 */

// The largest differences from the exact sum, as shares of the way of the weight. One ulp of FP16
// is subtracted from a difference before.
const ARRIVES = 0.02;
const COMES_NEAR = 0.1;

/**
 * @param {Curve} curve
 * @param {number} exact the exact sum
 * @param {number} way the difference between the first weight and the exact sum
 * @returns {Outcome}
 */
function outcomeOf(curve, exact, way) {
  if (!movesIn(curve)) return "still";
  const end = endOfCurve(curve);
  if (Number.isNaN(end)) return "nan";
  const missing = Math.abs(end - exact) - spacingIn(HALF, Math.min(Math.abs(end), HALF.max));
  if (missing <= ARRIVES * way) return "arrive";
  if (missing <= COMES_NEAR * way) return "near";
  return end > exact ? "short" : "far";
}

/**
 * Return the sentence about the methods that reach the exact sum, those that never move, and the
 * ends of the others. It does not explain them: finding the rule is the learner's task.
 *
 * @param {readonly Curve[]} curves
 * @param {number} weight
 * @param {number} update
 * @param {number} steps
 */
export function swallowedSentence(curves, weight, update, steps) {
  const exact = weight - steps * update;
  const methods = CURVES.map(({ name }, i) => ({
    name,
    outcome: outcomeOf(curves[i], exact, steps * update),
    end: fourDigits(endOfCurve(curves[i])),
  }));
  /** @param {Outcome} outcome */
  const those = (outcome) => methods.filter((method) => method.outcome === outcome);
  const said = [
    ...togetherText(those("arrive"), "arrives", "arrive"),
    ...those("near").map(({ name, end }) => `${name} comes near at ${end}`),
    ...togetherText(those("still"), "has not moved once", "have not moved once"),
    ...those("short").map(({ name, end }) => `${name} ends at ${end}, too short a way`),
    ...those("far").map(({ name, end }) => `${name} ends at ${end}, too far`),
    ...those("nan").map(({ name, end }) => `${name} ends at ${end}`),
  ];
  const updates = `${steps.toLocaleString("en-US")} ${steps === 1 ? "update" : "updates"}`;
  const [size] = quarters(update).split(" = ");
  const way = `from ${fourDigits(weight)} to ${fourDigits(exact)}`;
  return `${updates} of ${size} should take the weight ${way}: ${said.join(", ")}.`;
}

/**
 * Return the part of the sentence about several methods, in an array; an empty one without methods.
 *
 * @param {readonly { name: string }[]} methods
 * @param {string} one the verb for one method
 * @param {string} several the verb for several methods
 */
function togetherText(methods, one, several) {
  if (!methods.length) return [];
  const names = listed(methods.map(({ name }) => name));
  return [`${names} ${methods.length === 1 ? one : several}`];
}
