// Text of numbers and shares for people to read.

/**
 * Return the text of a power of two.
 *
 * @param {number | string} exponent
 */
export function power(exponent) {
  return `2^${exponent}`;
}

/**
 * Return a number with three significant digits, or all digits of a whole number below 10^7.
 *
 * @param {number} x
 */
export function decimal(x) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "inf" : "-inf";
  if (x === 0) return "0";
  const size = Math.abs(x);
  if (Number.isInteger(x) && size < 1e7) return x.toLocaleString("en-US");
  if (size >= 1e-3 && size < 1e6) return String(Number(x.toPrecision(3)));
  const [digits, exponent] = x.toExponential(2).split("e");
  return `${Number(digits)}e${Number(exponent)}`;
}

/**
 * Return a share from 0 to 1 in percent. Only 0 gives "0%", and only 1 gives "100%".
 *
 * @param {number} share
 */
export function percent(share) {
  const p = 100 * share;
  if (Number.isNaN(p)) return "NaN%";
  if (p === 0) return "0%";
  if (p < 0.01) return "<0.01%";
  if (p < 1) return `${p.toFixed(2)}%`;
  if (p < 9.95) return `${p.toFixed(1)}%`;
  if (p < 99) return `${p.toFixed(0)}%`;
  if (p <= 99.9) return `${p.toFixed(1)}%`;
  return p < 100 ? ">99.9%" : "100%";
}

const RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";

/**
 * Return an integer in superscript characters, for text without HTML elements.
 *
 * @param {number | string} digits
 */
export function superscript(digits) {
  return String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : RAISED[Number(c)]));
}
