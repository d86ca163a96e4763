// Numbers as a person reads them.

export function power(exponent) {
  return `2^${exponent}`;
}

export function decimal(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "inf" : "-inf";
  const size = Math.abs(x);
  if (x === 0) return "0";
  if (Number.isInteger(x) && size < 1e7) return x.toLocaleString("en-US");
  if (size >= 1e-3 && size < 1e6) return String(Number(x.toPrecision(3)));
  const [digits, exponent] = x.toExponential(2).split("e");
  return `${Number(digits)}e${Number(exponent)}`;
}

// The twin of `percent` in labkit/widgets/base/number_words.py; a browser test holds them together.
export function percent(share) {
  const p = 100 * share;
  if (p === 0) return "0%";
  if (p < 0.01) return "<0.01%";
  if (p < 1) return `${p.toFixed(2)}%`;
  if (p < 9.95) return `${p.toFixed(1)}%`;
  if (p < 99) return `${p.toFixed(0)}%`;
  if (p < 99.9) return `${p.toFixed(1)}%`;
  return p < 100 ? ">99.9%" : "100%";
}

export function superscript(digits) {
  const raised = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079";
  return String(digits).replace(/[-\d]/g, (c) => (c === "-" ? "\u207b" : raised[c]));
}
