// Where the numbers of a format lie, and which of them are in the window.

import { decimal } from "../base/number_words.js";

export const EDGE = 10; // CSS pixels left and right of the line

// Stretches of equal spacing, from zero up: the subnormals, then binade after binade. `power` is the exponent of the start.
export function stretches(format, log) {
  const { emin, emax, significand_bits: p, max } = format;
  const found = [];
  if (format.has_zero && !log)
    found.push({ from: 0, to: 2 ** emin, spacing: 2 ** (emin - p), subnormal: true });
  if (format.has_zero && log) {
    for (let e = emin - p; e < emin; e++)
      found.push({ from: 2 ** e, to: 2 ** (e + 1), spacing: 2 ** (emin - p), subnormal: true });
  }
  for (let e = emin; e <= emax; e++)
    found.push({
      from: 2 ** e,
      to: Math.min(2 * 2 ** e, max + 2 ** (e - p)),
      spacing: 2 ** (e - p),
    });
  return found;
}

export function mirrored(parts) {
  return parts.map((part) => ({ ...part, from: -part.to, to: -part.from })).reverse();
}

export function spacingAt(value, format) {
  const e = Math.floor(Math.log2(Math.abs(value)));
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.significand_bits);
}

export function wholeOf(format, log) {
  const least = 2 ** (format.emin - (format.has_zero ? format.significand_bits : 0));
  if (log) return [least / 8, format.max * 4];
  return [format.signed ? -1.15 * format.max : -0.1 * format.max, 1.15 * format.max];
}

// --- the window: u is the value itself, or its base-2 logarithm -----------------------------------------------------------

export function lens(low, high, log, width) {
  const u = log ? Math.log2 : (value) => value;
  const value = log ? (place) => 2 ** place : (place) => place;
  const [from, to] = [u(low), u(high)];
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

export function inside([from, to], format, log) {
  const u = log ? Math.log2 : (value) => value;
  const [first, last] = wholeOf(format, log).map(u);
  const middle = (from + to) / 2;
  const least = log
    ? 2 ** -format.significand_bits / 2
    : spacingAt(middle || 2 ** format.emin, format) / 2;
  const span = Math.min(last - first, Math.max(least, to - from));
  const start = Math.min(last - span, Math.max(first, middle - span / 2));
  return [start, start + span];
}

// As few digits as a pixel can tell: what a hand sets is a short number.
export function tidy(value, view, log) {
  if (log)
    return Number(
      value.toPrecision(Math.min(17, Math.max(2, Math.ceil(-Math.log10(view.perPixel * 0.7))))),
    );
  const digits = -Math.floor(Math.log10(view.perPixel));
  if (digits >= 0) return Number(value.toFixed(Math.min(100, digits))) || 0;
  return Math.round(value / 10 ** -digits) * 10 ** -digits || 0;
}

export function nearby(value, format, log) {
  const size = Math.abs(value);
  const part = stretches(format, log).find(({ from, to }) => size >= from && size < to);
  if (!part || (value < 0 && !format.signed)) return null;
  const minus = value < 0 ? "\u2212" : "";
  const name = (v) =>
    v === 0
      ? "0"
      : Number.isInteger(Math.log2(v))
        ? `${minus}2^${Math.log2(v)} = ${minus}${decimal(v)}`
        : minus + decimal(v);
  const count = Math.round((part.to - part.from) / part.spacing);
  const kind = part.subnormal ? "subnormal " : "";
  return `${name(part.from)} to ${name(part.to)}: ${count.toLocaleString("en-US")} ${kind}numbers, 2^${Math.log2(part.spacing)} apart`;
}

// The fewest digits that mean x.
export function as_text(x) {
  const size = Math.abs(x);
  return x !== 0 && (size < 1e-4 || size >= 1e16)
    ? x.toExponential().replace("e+", "e")
    : String(x);
}

// A number without an exponent, as attributes of accessibility ask for it.
export function plainDecimal(x) {
  if (Number.isInteger(x)) return BigInt(x).toString();
  return Number.isFinite(x) ? x.toFixed(60).replace(/0+$/, "") : String(x);
}
