// The positions of a format's numbers, and the numbers that are in the window.

import { decimal } from "../base/number_words.js";

/** @import { Format } from "../exact/numbers.js" */

/**
 * Numbers of equal spacing.
 *
 * @typedef {object} Stretch
 * @property {number} from
 * @property {number} to
 * @property {number} spacing
 * @property {boolean} subnormal
 */

/** @typedef {[low: number, high: number]} Ends */

/**
 * What is seen of the line; u is the value itself, or its base-2 logarithm.
 *
 * @typedef {object} Lens
 * @property {number} from The left end, in u.
 * @property {number} to The right end, in u.
 * @property {number} width The width, in pixels.
 * @property {number} perPixel The length of a pixel, in u.
 * @property {(u: number) => number} value
 * @property {(value: number) => number} u
 * @property {(value: number) => number} x The position of a value, in pixels.
 * @property {(x: number) => number} at The value at a place.
 */

export const EDGE = 10; // CSS pixels left and right of the line

/**
 * From zero up: the subnormals (on a logarithmic scale by powers of two), then binade after binade.
 *
 * @param {Format} format
 * @param {boolean} log
 * @returns {Stretch[]}
 */
export function stretches(format, log) {
  const { emin, emax, p, max } = format;
  const least = 2 ** (emin - p);
  /** @type {Stretch[]} */
  const found = [];
  if (format.has_zero && log) {
    for (let e = emin - p; e < emin; e++) {
      found.push({ from: 2 ** e, to: 2 ** (e + 1), spacing: least, subnormal: true });
    }
  } else if (format.has_zero) {
    found.push({ from: 0, to: 2 ** emin, spacing: least, subnormal: true });
  }
  for (let e = emin; e <= emax; e++) {
    const spacing = 2 ** (e - p);
    const to = Math.min(2 * 2 ** e, max + spacing);
    found.push({ from: 2 ** e, to, spacing, subnormal: false });
  }
  return found;
}

/**
 * The same below zero.
 *
 * @template {{ from: number, to: number }} Part
 * @param {readonly Part[]} parts
 * @returns {Part[]}
 */
export function mirrored(parts) {
  return parts.map((part) => ({ ...part, from: -part.to, to: -part.from })).reverse();
}

/**
 * @param {number} value not 0
 * @param {Format} format
 */
export function spacingAt(value, format) {
  const e = Math.floor(Math.log2(Math.abs(value)));
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.p);
}

/**
 * The window that shows all numbers of a format.
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

/** @param {number} value */
function itself(value) {
  return value;
}

/**
 * @param {number} low
 * @param {number} high
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
    x: (v) => (log && v <= 0 ? -1e6 : EDGE + ((u(v) - from) / (to - from)) * across),
    at: (x) => value(from + ((x - EDGE) / across) * (to - from)),
  };
}

/**
 * A window that stays inside the line, and is not too narrow for it.
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
 * As few digits as a pixel can tell: what a hand sets is a short number.
 *
 * @param {number} value
 * @param {Lens} seen
 * @param {boolean} log
 */
export function tidy(value, { perPixel }, log) {
  if (log) {
    const wanted = Math.ceil(-Math.log10(perPixel * 0.7));
    return Number(value.toPrecision(Math.min(17, Math.max(2, wanted))));
  }
  const digits = -Math.floor(Math.log10(perPixel));
  if (digits >= 0) return Number(value.toFixed(Math.min(100, digits))) || 0;
  return Math.round(value / 10 ** -digits) * 10 ** -digits || 0;
}

// --- words ---------------------------------------------------------------------------------------

/**
 * The stretch around a value, in words; null where there is none.
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
 * @param {number} size
 * @param {string} sign
 */
function endText(size, sign) {
  if (size === 0) return "0";
  const exponent = Math.log2(size);
  const text = `${sign}${decimal(size)}`;
  return Number.isInteger(exponent) ? `${sign}2^${exponent} = ${text}` : text;
}

/**
 * The fewest digits that mean x.
 *
 * @param {number} x
 */
export function asText(x) {
  const size = Math.abs(x);
  if (x !== 0 && (size < 1e-4 || size >= 1e16)) return x.toExponential().replace("e+", "e");
  return String(x);
}

/**
 * A number without an exponent, as attributes of accessibility ask for it.
 *
 * @param {number} x
 */
export function plainDecimal(x) {
  if (Number.isInteger(x)) return BigInt(x).toString();
  return Number.isFinite(x) ? x.toFixed(60).replace(/0+$/, "") : String(x);
}
