// The positions of a format's numbers, the window of the line, and texts about both.

import { decimal } from "../base/number_words.js";

/** @import { Format } from "../exact/numbers.js" */

/**
 * A part of the line in which numbers have equal spacing.
 *
 * @typedef {object} Stretch
 * @property {number} from
 * @property {number} to The first number of the next stretch.
 * @property {number} spacing
 * @property {boolean} subnormal Whether the numbers are subnormal.
 */

/** @typedef {[low: number, high: number]} Ends The ends of a window. */

/**
 * The projection of the line onto the picture. u is the coordinate along the line: the value
 * itself, or its base-2 logarithm on a logarithmic scale.
 *
 * @typedef {object} Lens
 * @property {number} from The left end, in u.
 * @property {number} to The right end, in u.
 * @property {number} width The width, in pixels.
 * @property {number} perPixel The length of a pixel, in u.
 * @property {(u: number) => number} value Return the value at a u.
 * @property {(value: number) => number} u Return the u of a value.
 * @property {(value: number) => number} x Return the position of a value, in pixels.
 * @property {(x: number) => number} at Return the value at a position.
 */

// The space on the left and on the right of the line, in pixels.
export const EDGE = 10;
// A position far on the left of the picture, for numbers that a logarithmic scale does not have.
const OUTSIDE = -1e6;

/**
 * Return the stretches of the positive numbers in ascending order: the subnormal numbers (on a
 * logarithmic scale a stretch for each power of two), then a stretch for each binade.
 *
 * @param {Format} format
 * @param {boolean} log
 * @returns {Stretch[]}
 */
export function stretches(format, log) {
  const { emin, emax, p, max } = format;
  const least = 2 ** (emin - p);
  /** @type {Stretch[]} */
  const all = [];
  if (format.has_zero && log) {
    for (let e = emin - p; e < emin; e++) {
      all.push({ from: 2 ** e, to: 2 ** (e + 1), spacing: least, subnormal: true });
    }
  } else if (format.has_zero) {
    all.push({ from: 0, to: 2 ** emin, spacing: least, subnormal: true });
  }
  for (let e = emin; e <= emax; e++) {
    const spacing = 2 ** (e - p);
    const to = Math.min(2 * 2 ** e, max + spacing);
    all.push({ from: 2 ** e, to, spacing, subnormal: false });
  }
  return all;
}

/**
 * Return the same parts of the line below zero, in ascending order.
 *
 * @template {{ from: number, to: number }} Part
 * @param {readonly Part[]} parts
 * @returns {Part[]}
 */
export function mirrored(parts) {
  return parts.map((part) => ({ ...part, from: -part.to, to: -part.from })).reverse();
}

/**
 * Return the spacing of a format's numbers around a value.
 *
 * @param {number} value not 0
 * @param {Format} format
 */
export function spacingAt(value, format) {
  const e = Math.floor(Math.log2(Math.abs(value)));
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.p);
}

/**
 * Return the window that shows all numbers of a format.
 *
 * @param {Format} format
 * @param {boolean} log
 * @returns {Ends}
 */
export function wholeOf(format, log) {
  if (log) return [format.least / 8, format.max * 4];
  return [format.signed ? -1.15 * format.max : -0.1 * format.max, 1.15 * format.max];
}

// --- the window ----------------------------------------------------------------------------------

/**
 * Return a value: the projection of a linear scale.
 *
 * @param {number} value
 */
function itself(value) {
  return value;
}

/**
 * Return the lens of a window.
 *
 * @param {number} low the left end of the window, a value
 * @param {number} high the right end
 * @param {boolean} log
 * @param {number} width in pixels
 * @returns {Lens}
 */
export function lens(low, high, log, width) {
  const u = log ? Math.log2 : itself;
  const value = log ? (/** @type {number} */ place) => 2 ** place : itself;
  const from = u(low);
  const to = u(high);
  const across = width - 2 * EDGE;
  return {
    from,
    to,
    value,
    u,
    width,
    perPixel: (to - from) / across,
    x: (v) => (log && v <= 0 ? OUTSIDE : EDGE + ((u(v) - from) / (to - from)) * across),
    at: (x) => value(from + ((x - EDGE) / across) * (to - from)),
  };
}

/**
 * Return the window nearest to a wanted one that is inside the line and shows at least half the
 * spacing of two numbers.
 *
 * @param {Ends} ends in u
 * @param {Format} format
 * @param {boolean} log
 * @returns {Ends}
 */
export function inside([from, to], format, log) {
  const u = log ? Math.log2 : itself;
  const [low, high] = wholeOf(format, log);
  const first = u(low);
  const last = u(high);
  const middle = (from + to) / 2;
  const least = log ? 2 ** -format.p / 2 : spacingAt(middle || 2 ** format.emin, format) / 2;
  const span = Math.min(last - first, Math.max(least, to - from));
  const start = Math.min(last - span, Math.max(first, middle - span / 2));
  return [start, start + span];
}

/**
 * Return a value rounded to as many decimal digits as a pixel of the line has, so that a number
 * that is set by a drag is short.
 *
 * @param {number} value
 * @param {Lens} current
 * @param {boolean} log
 */
export function tidy(value, { perPixel }, log) {
  if (log) {
    const wanted = Math.ceil(-Math.log10(perPixel * 0.7));
    return Number(value.toPrecision(Math.min(17, Math.max(2, wanted))));
  }
  const digits = -Math.floor(Math.log10(perPixel));
  // Adding 0 makes 0 of -0. toFixed allows 100 digits.
  if (digits >= 0) return Number(value.toFixed(Math.min(100, digits))) + 0;
  const unit = 10 ** -digits;
  return Math.round(value / unit) * unit + 0;
}

// --- words ---------------------------------------------------------------------------------------

/**
 * Return a text about the stretch around a value; null if the format has no numbers there.
 *
 * @param {number} value
 * @param {Format} format
 * @param {boolean} log
 */
export function nearby(value, format, log) {
  const size = Math.abs(value);
  const part = stretches(format, log).find(({ from, to }) => size >= from && size < to);
  if (!part || (value < 0 && !format.signed)) return null;
  const sign = value < 0 ? "\u2212" : "";
  const count = Math.round((part.to - part.from) / part.spacing).toLocaleString("en-US");
  const numbers = part.subnormal ? "subnormal numbers" : "numbers";
  const range = `${endText(part.from, sign)} to ${endText(part.to, sign)}`;
  return `${range}: ${count} ${numbers}, 2^${Math.log2(part.spacing)} apart`;
}

/**
 * Return the end of a stretch as text.
 *
 * @param {number} size its magnitude
 * @param {string} sign "" or a minus sign
 */
function endText(size, sign) {
  if (size === 0) return "0";
  const exponent = Math.log2(size);
  const text = `${sign}${decimal(size)}`;
  return Number.isInteger(exponent) ? `${sign}2^${exponent} = ${text}` : text;
}

/**
 * Return the shortest text that is parsed as x.
 *
 * @param {number} x
 */
export function asText(x) {
  const size = Math.abs(x);
  if (x !== 0 && (size < 1e-4 || size >= 1e16)) return x.toExponential().replace("e+", "e");
  return String(x);
}

/**
 * Return a number without an exponent, as ARIA attributes require it.
 *
 * @param {number} x
 */
export function plainDecimal(x) {
  if (Number.isInteger(x)) return BigInt(x).toString();
  return Number.isFinite(x) ? x.toFixed(60).replace(/\.?0+$/, "") : String(x);
}
