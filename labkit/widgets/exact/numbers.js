// Exact arithmetic on fractions, number formats and their codes, and the text of numbers. Bigints
// keep JavaScript's own float64 rounding out of every result.

// --- fractions -----------------------------------------------------------------------------------

/**
 * The number n / d; d is above 0.
 *
 * @typedef {object} Fraction
 * @property {bigint} n
 * @property {bigint} d
 */

/**
 * Return n / d with a positive denominator. The fraction is not reduced.
 *
 * @param {bigint} n
 * @param {bigint} [d] not 0
 * @returns {Fraction}
 */
export function fraction(n, d = 1n) {
  return d < 0n ? { n: -n, d: -d } : { n, d };
}

/**
 * @param {Fraction} a
 * @param {Fraction} b
 */
export function plus(a, b) {
  return fraction(a.n * b.d + b.n * a.d, a.d * b.d);
}

/**
 * @param {Fraction} a
 * @param {Fraction} b
 */
export function minus(a, b) {
  return plus(a, { n: -b.n, d: b.d });
}

/**
 * @param {Fraction} a
 * @param {Fraction} b
 */
export function times(a, b) {
  return fraction(a.n * b.n, a.d * b.d);
}

/**
 * @param {Fraction} a
 * @param {Fraction} b not 0
 */
export function over(a, b) {
  return fraction(a.n * b.d, a.d * b.n);
}

/**
 * Return the absolute value of a fraction.
 *
 * @param {Fraction} x
 * @returns {Fraction}
 */
export function sizeOf({ n, d }) {
  return { n: n < 0n ? -n : n, d };
}

/**
 * @param {Fraction} a
 * @param {Fraction} b
 * @returns {-1 | 0 | 1} 1 if a is larger, -1 if b is larger
 */
export function compare(a, b) {
  const left = a.n * b.d;
  const right = b.n * a.d;
  if (left === right) return 0;
  return left > right ? 1 : -1;
}

/**
 * Return 2^k.
 *
 * @param {number} k
 * @returns {Fraction}
 */
export function twoTo(k) {
  return k < 0 ? { n: 1n, d: 1n << BigInt(-k) } : { n: 1n << BigInt(k), d: 1n };
}

/**
 * Return 10^k.
 *
 * @param {number} k
 * @returns {Fraction}
 */
function tenTo(k) {
  return k < 0 ? { n: 1n, d: 10n ** BigInt(-k) } : { n: 10n ** BigInt(k), d: 1n };
}

/**
 * Return the number of bits of a whole number; 0 has none.
 *
 * @param {bigint} n not below 0
 */
export function bitLength(n) {
  return n ? n.toString(2).length : 0;
}

// float64 (IEEE 754 binary64): a sign bit, 11 bits of exponent, 52 stored bits of significand.
const BINARY64_BITS = 52;
const BINARY64_BIAS = 1023;
const BINARY64_EXPONENT_MASK = 0x7ffn;
const BINARY64_HIDDEN_BIT = 1n << BigInt(BINARY64_BITS);

/**
 * Return the parts of a finite number as float64 stores them: |x| = significand * 2^exponent.
 *
 * @param {number} x
 */
export function parts(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  const bits = view.getBigUint64(0);
  const field = Number((bits >> BigInt(BINARY64_BITS)) & BINARY64_EXPONENT_MASK);
  const stored = bits & (BINARY64_HIDDEN_BIT - 1n);
  return {
    negative: bits >> 63n === 1n,
    field,
    stored,
    significand: field ? stored | BINARY64_HIDDEN_BIT : stored,
    // Subnormals (field 0) have the exponent of the smallest normal numbers (field 1).
    exponent: Math.max(field, 1) - BINARY64_BIAS - BINARY64_BITS,
  };
}

/**
 * Return a finite number as a fraction, without an error.
 *
 * @param {number} x
 */
export function exactly(x) {
  const { negative, significand, exponent } = parts(x);
  return times(fraction(negative ? -significand : significand), twoTo(exponent));
}

/**
 * Return the largest k with 2^k <= x.
 *
 * @param {Fraction} x above 0
 */
export function binadeOf({ n, d }) {
  // The difference of the bit lengths is the exponent, or one more: 0 for 3/2 and for 2/3.
  const k = bitLength(n) - bitLength(d);
  return compare({ n, d }, twoTo(k)) < 0 ? k - 1 : k;
}

/**
 * Return k if a fraction is 2^k or -2^k, else null.
 *
 * @param {Fraction} x
 */
export function powerOf(x) {
  const size = sizeOf(x);
  if (!size.n) return null;
  const k = binadeOf(size);
  return compare(size, twoTo(k)) === 0 ? k : null;
}

// --- formats -------------------------------------------------------------------------------------

/**
 * A format as Python sends it (exact/rows.py, `format_row`).
 *
 * @typedef {object} FormatRow
 * @property {string} name
 * @property {number} exponent_bits
 * @property {number} significand_bits The number of stored bits, without the hidden one.
 * @property {"IEEE" | "FN" | "NONE"} specials
 * @property {boolean} signed
 * @property {boolean} has_zero false: no zero and no subnormals.
 */

/**
 * How the codes of a format are laid out.
 *
 * @typedef {object} CodeLayout
 * @property {number} p The stored bits of the significand.
 * @property {number} bias
 * @property {number} bits The bits of a code: sign, exponent and significand.
 * @property {bigint} maxCode The code of the largest finite value.
 * @property {number} emin The exponent of the smallest normal number.
 * @property {number} emax The exponent of the largest finite number.
 * @property {bigint} signMask The sign bit; 0n in a format without one.
 * @property {bigint | null} infinityCode
 * @property {bigint | null} nanCode
 */

/**
 * The values at the ends of a format.
 *
 * @typedef {object} FormatEnds
 * @property {number} max The largest finite value.
 * @property {number} least The smallest value above 0.
 */

/** @typedef {FormatRow & CodeLayout & FormatEnds} Format as `derived` makes it */

/**
 * @typedef {"NEAREST_EVEN" | "NEAREST_AWAY" | "TOWARD_ZERO" | "TOWARD_POSITIVE" | "TOWARD_NEGATIVE"
 *   | "STOCHASTIC"} Rounding
 */

/**
 * How `roundExact` rounds. Stochastic rounding takes one of two neighbours: STOCHASTIC gives the
 * one nearer to zero, AWAY the one farther from it.
 *
 * @typedef {Rounding | "AWAY"} Mode
 */

/** @type {Rounding[]} */
export const ROUNDINGS = [
  "NEAREST_EVEN",
  "NEAREST_AWAY",
  "TOWARD_ZERO",
  "TOWARD_POSITIVE",
  "TOWARD_NEGATIVE",
  "STOCHASTIC",
];

/**
 * Return a format's row with its code layout and its largest and smallest value.
 *
 * @template {FormatRow} Row
 * @param {Row} row
 * @returns {Row & CodeLayout & FormatEnds}
 */
export function derived(row) {
  const layout = layoutOf(row);
  const max = decode(layout.maxCode, { ...row, ...layout });
  const least = 2 ** (layout.emin - (row.has_zero ? layout.p : 0));
  return { ...row, ...layout, max, least };
}

/**
 * @param {FormatRow} row
 * @returns {CodeLayout}
 */
function layoutOf({ exponent_bits: e, significand_bits: p, specials, signed, has_zero }) {
  const bias = 2 ** (e - 1) - 1;
  const reserved = { IEEE: 1n << BigInt(p), FN: 1n, NONE: 0n }[specials];
  const maxCode = (1n << BigInt(e + p)) - 1n - reserved;
  // NaNs are written as quiet ones: the first bit of the significand is set.
  const quiet = specials === "IEEE" ? 1n << BigInt(p - 1) : 0n;
  return {
    p,
    bias,
    bits: Number(signed) + e + p,
    maxCode,
    emin: Number(has_zero) - bias,
    emax: Number(maxCode >> BigInt(p)) - bias,
    signMask: signed ? 1n << BigInt(e + p) : 0n,
    infinityCode: specials === "IEEE" ? maxCode + 1n : null,
    nanCode: specials === "NONE" ? null : maxCode + 1n + quiet,
  };
}

/**
 * Return a code without its sign bit.
 *
 * @param {bigint} code
 * @param {Pick<Format, "signMask">} format
 */
function unsigned(code, { signMask }) {
  return signMask ? code & (signMask - 1n) : code;
}

/**
 * Return the value of a code.
 *
 * @param {bigint} code
 * @param {FormatRow & CodeLayout} format
 */
export function decode(code, format) {
  const { p, emin, bias, signMask, maxCode, has_zero } = format;
  const size = unsigned(code, format);
  const sign = code & signMask ? -1 : 1;
  if (size > maxCode) return size === format.infinityCode ? sign * Infinity : NaN;
  const field = Number(size >> BigInt(p));
  const stored = Number(size & ((1n << BigInt(p)) - 1n));
  const normal = field > 0 || !has_zero;
  const exponent = normal ? field - bias : emin;
  return sign * (stored + (normal ? 2 ** p : 0)) * 2 ** (exponent - p);
}

/**
 * Return the code of a value.
 *
 * @param {number} value one of the format's
 * @param {Format} format
 * @returns {bigint}
 */
export function encode(value, format) {
  const { p, emin, bias, signMask, has_zero } = format;
  if (Number.isNaN(value)) return existing(format.nanCode, "NaN", format);
  const sign = Object.is(value, -0) || value < 0 ? signMask : 0n;
  if (!Number.isFinite(value)) return sign | existing(format.infinityCode, "infinity", format);
  if (value === 0) return sign;
  const size = sizeOf(exactly(value));
  const e = Math.max(binadeOf(size), emin);
  const { n, d } = times(size, twoTo(p - e));
  const whole = n / d;
  // The hidden bit of a normal number's significand adds 1 to the exponent field below it.
  if (whole >> BigInt(p)) return sign | ((BigInt(e + bias - 1) << BigInt(p)) + whole);
  return has_zero ? sign | whole : sign;
}

/**
 * Return the code of a special value; throw if the format has no such value.
 *
 * @param {bigint | null} code
 * @param {string} what
 * @param {Format} format
 */
function existing(code, what, format) {
  if (code === null) {
    throw new Error(`expected a value of ${format.name}, got ${what}: it has none`);
  }
  return code;
}

/**
 * Return the next value in a direction.
 *
 * @param {number} value
 * @param {Format} format
 * @param {number} direction +1 or -1
 * @returns {number | null} null at the end of the format, and for NaN
 */
export function neighbour(value, format, direction) {
  if (Number.isNaN(value)) return null;
  const code = encode(value, format);
  const size = unsigned(code, format);
  const last = format.infinityCode ?? format.maxCode;
  const sign = code & format.signMask;
  if (size === 0n && format.has_zero) {
    if (direction > 0) return decode(1n, format);
    return format.signed ? decode(1n | format.signMask, format) : null;
  }
  const outward = direction > 0 === (sign === 0n);
  const next = outward ? size + 1n : size - 1n;
  return next < 0n || next > last ? null : decode(sign | next, format);
}

/** @typedef {"zero" | "subnormal" | "normal" | "infinity" | "nan"} NumberClass */

/**
 * Return the class of the number with a code.
 *
 * @param {bigint} code
 * @param {Format} format
 * @returns {NumberClass}
 */
export function classOf(code, format) {
  const size = unsigned(code, format);
  if (size > format.maxCode) return size === format.infinityCode ? "infinity" : "nan";
  if (!format.has_zero || size >> BigInt(format.p)) return "normal";
  return size ? "subnormal" : "zero";
}

/**
 * Return the spacing of a format's values in the binade of a value.
 *
 * @param {number} value
 * @param {Format} format
 */
export function ulpOf(value, format) {
  let e = format.emax;
  if (value === 0) {
    e = format.emin;
  } else if (Number.isFinite(value)) {
    e = binadeOf(sizeOf(exactly(value)));
  }
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.p);
}

// Stochastic rounding compares with 32 random bits; a smaller rest is never rounded up.
const LEAST_CHANCE = twoTo(-32);
const ONE_HALF = twoTo(-1);

/**
 * Return whether a magnitude between two neighbours is rounded away from zero.
 *
 * @param {Fraction} rest the part of the gap that lies beyond the lower neighbour, 0 to 1
 * @param {boolean} odd whether the lower neighbour's significand is odd
 * @param {boolean} negative
 * @param {Mode} mode
 */
export function roundsAway(rest, odd, negative, mode) {
  if (!rest.n) return false;
  const half = compare(rest, ONE_HALF);
  if (mode === "NEAREST_EVEN") return half > 0 || (half === 0 && odd);
  if (mode === "NEAREST_AWAY") return half >= 0;
  if (mode === "AWAY") return compare(rest, LEAST_CHANCE) >= 0;
  return mode === (negative ? "TOWARD_NEGATIVE" : "TOWARD_POSITIVE");
}

/**
 * Return the value that a format gives to a number beyond its largest.
 *
 * @param {Format} format
 */
function beyondMax({ specials, max }) {
  return { IEEE: Infinity, FN: NaN, NONE: max }[specials];
}

/**
 * Return a fraction rounded to a format, once. NaN means that the format has no such value: a
 * negative number in an unsigned format, or zero in a format without zero.
 *
 * @param {Fraction} x
 * @param {Format} format
 * @param {Mode} [mode]
 * @param {boolean} [negative] the sign of a zero
 */
export function roundExact(x, format, mode = "NEAREST_EVEN", negative = x.n < 0n) {
  const { p, emin, max, signed, has_zero } = format;
  const sign = negative ? -1 : 1;
  if ((negative && !signed && x.n) || (!x.n && !has_zero)) return NaN;
  if (!x.n) return sign * 0;
  const size = sizeOf(x);
  // In units of the gap between the format's values here; below 2^emin the gap no longer shrinks.
  const e = Math.max(binadeOf(size), emin);
  const { n, d } = times(size, twoTo(p - e));
  const whole = n / d;
  const away = roundsAway({ n: n % d, d }, (whole & 1n) === 1n, negative, mode);
  const rounded = away ? whole + 1n : whole;
  const beyondFloat64 = bitLength(rounded) + e - p > BINARY64_BIAS + 1;
  const value = beyondFloat64 ? Infinity : Number(rounded) * 2 ** (e - p);
  if (value > max) {
    const inward =
      mode === "TOWARD_ZERO" || mode === (negative ? "TOWARD_POSITIVE" : "TOWARD_NEGATIVE");
    return sign * (inward ? max : beyondMax(format));
  }
  return sign * (has_zero ? value : Math.max(value, format.least));
}

/**
 * Return a number rounded to a format, once.
 *
 * @param {number} x
 * @param {Format} format
 * @param {Mode} [mode]
 */
export function roundValue(x, format, mode) {
  if (Number.isFinite(x)) return roundExact(exactly(x), format, mode, Object.is(x, -0) || x < 0);
  return Number.isNaN(x) ? NaN : Math.sign(x) * beyondMax(format);
}

// --- text ----------------------------------------------------------------------------------------

/** @typedef {"hex-float" | "decimal" | "power of two" | "fraction"} NumberKind */
/** @typedef {NumberKind | "code" | "special"} TextKind */

/**
 * A text, parsed as a number of a format.
 *
 * @typedef {object} Reading
 * @property {TextKind} kind
 * @property {Fraction | null} exact The number before rounding; null for infinity and NaN.
 * @property {number} value The number rounded to the format.
 * @property {bigint} code
 */

// The longest text that is parsed, in characters: FP64's longest exact decimal has about 1100.
const LONGEST = 1200;
// The largest exponent of 2 or 10 that is computed, as in labkit.formats.text. Larger ones would
// need very long bigints.
const LARGEST_EXPONENT = 3000;
// Digits with or without a point: 1, 1., 1.5, .5
const NUMBER = "(\\d+\\.?\\d*|\\.\\d+)";
// The forms of a text in lower case, without its sign. A text has one form at most.
/** @type {[kind: TextKind, shape: RegExp][]} */
const SHAPES = [
  ["code", /^(0x[0-9a-f]+|0b[01]+)$/],
  ["hex-float", /^0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)p([+-]?\d+)$/],
  ["decimal", new RegExp(`^${NUMBER}(?:e([+-]?\\d+))?$`)],
  ["power of two", new RegExp(`^(?:${NUMBER}\\s*[*x·]\\s*)?2(?:\\^|\\*\\*)\\(?([+-]?\\d+)\\)?$`)],
  ["fraction", /^(\d+)\s*\/\s*(\d+)$/],
  ["special", /^(inf|infinity|∞|nan)$/],
];
const KNOWN =
  "Known forms: 0.1, 1e-7, 0x1.8p-3, 2^-24, 1.5*2^-14, 1/3, inf, nan; " +
  "a code as 0x3c00 or 0b0011110000000000.";

/**
 * Parse a text exactly and round it once. Throw an Error whose message says what would be valid.
 *
 * @param {string} text
 * @param {Format} format
 * @returns {Reading}
 */
export function parse(text, format) {
  const cleaned = text.trim().toLowerCase().replaceAll("−", "-").replaceAll("×", "x");
  const sign = /^[+-]/.test(cleaned) ? cleaned[0] : "";
  const body = cleaned.slice(sign.length).trimStart();
  const compact = /^0[bx]/.test(body) ? body.replace(/[\s_]/g, "") : body;
  const negative = sign === "-";
  if (text.length > LONGEST) {
    throw new Error(
      `this text has ${text.length} characters, ${LONGEST} is the most a number needs. ${KNOWN}`,
    );
  }
  for (const [kind, shape] of SHAPES) {
    const groups = compact.match(shape);
    if (!groups) continue;
    if (kind === "code") return readCode(sign, compact, format, compact !== body);
    if (kind === "special") return readSpecial(groups[1], negative, format);
    const size = READERS[kind](groups);
    const exact = { n: negative ? -size.n : size.n, d: size.d };
    const value = roundExact(exact, format, "NEAREST_EVEN", negative);
    return { kind, exact, value, code: encode(value, format) };
  }
  throw new Error(noNumber(text, body));
}

/**
 * @param {string} sign
 * @param {string} text
 * @param {Format} format
 * @param {boolean} grouped whether blanks separated its fields
 * @returns {Reading}
 */
function readCode(sign, text, format, grouped) {
  if (sign) {
    throw new Error(
      `'${sign}${text}': a code has no sign in front, its first bit is the sign. ` +
        "-1.0 in FP16 is 0xbc00.",
    );
  }
  const code = BigInt(text);
  // With one digit too many, fields that are written apart would be read as others.
  const digits = grouped && text.startsWith("0b") ? text.length - "0b".length : 0;
  const bits = Math.max(bitLength(code), digits);
  if (bits > format.bits) {
    throw new Error(`'${text}' has ${bits} bits; ${format.name} codes have ${format.bits}.`);
  }
  const value = decode(code, format);
  return { kind: "code", exact: Number.isFinite(value) ? exactly(value) : null, value, code };
}

/**
 * @param {string} name "nan", "inf", "infinity" or "∞"
 * @param {boolean} negative
 * @param {Format} format
 * @returns {Reading}
 */
function readSpecial(name, negative, format) {
  if (name === "nan" && format.nanCode === null) {
    throw new Error(
      `${format.name} has no NaN, and the values have one. ` +
        "Replace it first, by nan_to_num for instance.",
    );
  }
  const infinity = negative ? -Infinity : Infinity;
  const value = roundValue(name === "nan" ? NaN : infinity, format);
  return { kind: "special", exact: null, value, code: encode(value, format) };
}

/**
 * For each kind of text, a function from the groups of its regular expression to its number.
 *
 * @type {Record<NumberKind, (groups: RegExpMatchArray) => Fraction>}
 */
const READERS = {
  "hex-float"([, whole, part, power]) {
    // Each hexadecimal digit behind the point is worth four bits.
    const exponent = exponentIn(power) - 4 * part.length;
    return times(fraction(BigInt(`0x${whole}${part}`)), twoTo(exponent));
  },
  decimal([, digits, power]) {
    return times(tenths(digits), tenTo(exponentIn(power)));
  },
  "power of two"([, digits, power]) {
    return times(tenths(digits ?? "1"), twoTo(exponentIn(power)));
  },
  fraction([, above, below]) {
    if (!BigInt(below)) {
      throw new Error("a fraction over 0 is not a number; for infinity write inf.");
    }
    return fraction(BigInt(above), BigInt(below));
  },
};

/** @param {string | undefined} digits undefined is 0 */
function exponentIn(digits) {
  const exponent = Number(digits ?? 0);
  if (Math.abs(exponent) > LARGEST_EXPONENT) {
    throw new Error(
      `the exponent is beyond ${LARGEST_EXPONENT}; no format comes near that. Give a smaller one.`,
    );
  }
  return exponent;
}

/**
 * Return the number of decimal digits with or without a point.
 *
 * @param {string} digits
 */
function tenths(digits) {
  const [whole, part = ""] = digits.split(".");
  return fraction(BigInt(whole + part), 10n ** BigInt(part.length));
}

/**
 * Return the message for a text that is not a number, with a hint for common mistakes.
 *
 * @param {string} text
 * @param {string} body the same, cleaned and without its sign
 */
function noNumber(text, body) {
  let hint = "";
  if (/^\d+,\d+(e[+-]?\d+)?$/.test(body)) {
    hint = `Write a decimal point, not a comma: ${text.replaceAll(",", ".").trim()}. `;
  } else if (/^0x[0-9a-f]*\.[0-9a-f]*$/.test(body)) {
    hint = `A hex-float ends in p and a power of two: ${text.trim()}p0. `;
  } else if (body.startsWith("0b")) {
    hint = "A code in binary has only the digits 0 and 1. ";
  } else if (/^[0-9a-f]+$/.test(body)) {
    hint = `For a code write 0x${body}. `;
  }
  return `'${text}' is not a number. ${hint}${KNOWN}`;
}

/**
 * Return a finite number in decimal, with all of its digits.
 *
 * @param {number} x
 */
export function exactDecimal(x) {
  const { negative, significand, exponent } = parts(x);
  const sign = negative ? "-" : "";
  if (!significand) return `${sign}0`;
  if (exponent > 0) return `${sign}${significand << BigInt(exponent)}`;
  let digits = significand;
  let places = -exponent;
  while (places > 0 && !(digits & 1n)) {
    digits >>= 1n;
    places -= 1;
  }
  // digits / 2^places = digits * 5^places / 10^places
  const text = String(digits * 5n ** BigInt(places)).padStart(places + 1, "0");
  return sign + (places ? `${text.slice(0, -places)}.${text.slice(-places)}` : text);
}

/** @param {number} x not finite */
function specialText(x) {
  if (Number.isNaN(x)) return "nan";
  return x > 0 ? "inf" : "-inf";
}

/**
 * Return a number in hexadecimal, as Python's float.hex does.
 *
 * @param {number} x
 */
export function hexFloat(x) {
  if (!Number.isFinite(x)) return specialText(x);
  const { negative, field, stored } = parts(x);
  const digits = stored
    .toString(16)
    .padStart(BINARY64_BITS / 4, "0")
    .replace(/0+$/, "");
  let exponent = 0;
  if (field) {
    exponent = field - BINARY64_BIAS;
  } else if (stored) {
    exponent = 1 - BINARY64_BIAS;
  }
  const sign = negative ? "-" : "";
  const hiddenBit = field ? "1" : "0";
  const significand = digits ? `${hiddenBit}.${digits}` : hiddenBit;
  const exponentSign = exponent < 0 ? "" : "+";
  return `${sign}0x${significand}p${exponentSign}${exponent}`;
}

/**
 * @param {bigint} code
 * @param {number} width the number of bits
 */
export function bitsText(code, width) {
  return code.toString(2).padStart(width, "0");
}

/**
 * @param {bigint} code
 * @param {Pick<Format, "bits">} format
 */
export function hexCode(code, format) {
  return `0x${code.toString(16).padStart(Math.ceil(format.bits / 4), "0")}`;
}

/**
 * Return the number of bits of sign, exponent and significand.
 *
 * @param {Format} format
 */
export function widthsOf(format) {
  return [Number(format.signed), format.exponent_bits, format.p];
}

/**
 * Return the bits of sign, exponent and significand of a code, each as a text.
 *
 * @param {bigint} code
 * @param {Format} format
 */
export function fieldBits(code, format) {
  const text = bitsText(code, format.bits);
  const [sign, exponent] = widthsOf(format);
  const significandFrom = sign + exponent;
  return [text.slice(0, sign), text.slice(sign, significandFrom), text.slice(significandFrom)];
}

// --- numbers in words ----------------------------------------------------------------------------

/**
 * Return the first digits of a number and its power of ten, rounded half to even or cut.
 *
 * @param {Fraction} x above 0
 * @param {number} count
 * @param {boolean} [cut]
 * @returns {[digits: string, power: number, more: boolean]} more: whether digits other than 0
 * follow
 */
export function firstDigits(x, count, cut = false) {
  let power = String(x.n).length - String(x.d).length;
  if (compare(x, tenTo(power)) < 0) power -= 1;
  const { n, d } = times(x, tenTo(count - 1 - power));
  const more = n % d !== 0n;
  let digits = n / d;
  const odd = (digits & 1n) === 1n;
  if (!cut && roundsAway({ n: n % d, d }, odd, false, "NEAREST_EVEN")) digits += 1n;
  // 9.99 may have become 10.0.
  if (String(digits).length > count) {
    digits /= 10n;
    power += 1;
  }
  return [String(digits), power, more];
}

/**
 * Return digits with a decimal point, plainly (0.00123) or with a power of ten (1.23e-3).
 *
 * @param {string} digits
 * @param {number} power of the first digit
 * @param {boolean} plain
 * @param {string} [end] text to put behind the digits
 */
function placed(digits, power, plain, end = "") {
  return plain ? withPoint(digits, power) + end : `${withPoint(digits, 0)}${end}e${power}`;
}

/**
 * @param {string} digits
 * @param {number} power of the first digit
 */
function withPoint(digits, power) {
  if (power < 0) return `0.${"0".repeat(-power - 1)}${digits}`;
  const padded = digits.padEnd(power + 1, "0");
  const part = padded.slice(power + 1);
  return part ? `${padded.slice(0, power + 1)}.${part}` : padded;
}

/** @param {string} digits */
function trimmed(digits) {
  return digits.replace(/0+$/, "") || "0";
}

/**
 * Return a number with a few digits; whole numbers below ten million keep all of theirs.
 *
 * @param {Fraction} x
 * @param {number} [digits]
 */
export function brief(x, digits = 3) {
  const sign = x.n < 0n ? "-" : "";
  const size = sizeOf(x);
  if (size.n % size.d === 0n && size.n / size.d < 10n ** 7n) return `${sign}${size.n / size.d}`;
  const [first, power] = firstDigits(size, digits);
  return sign + placed(trimmed(first), power, power >= -3 && power < 6);
}

/**
 * Return the first digits of a number, not rounded, and "…" if more follow.
 *
 * @param {Fraction} x
 * @param {number} [digits]
 * @param {number} [plainFrom] the least power of ten that is not written with an exponent
 */
export function leading(x, digits = 12, plainFrom = -3) {
  if (!x.n) return "0";
  const [first, power, more] = firstDigits(sizeOf(x), digits, true);
  const plain = power >= plainFrom && power < digits;
  const shown = more ? first : trimmed(first);
  return (x.n < 0n ? "-" : "") + placed(shown, power, plain, more ? "…" : "");
}

/**
 * Return a number for a sentence; powers of two also show their exponent, "2^-14 = 6.1e-5".
 *
 * @param {Fraction} x
 */
export function spaced(x) {
  const k = powerOf(x);
  // 1, 2, 4 and 8 need no explanation.
  if (k === null || (k >= 0 && k <= 3)) return brief(x);
  return `${x.n < 0n ? "-" : ""}2^${k} = ${brief(x)}`;
}

/**
 * Return a number with a few digits for people: 65,504 or 1.0002e-4.
 *
 * @param {number} x
 * @param {number} [count]
 */
export function numberText(x, count = 5) {
  const sign = x < 0 || Object.is(x, -0) ? "\u2212" : "";
  const size = Math.abs(x);
  if (!Number.isFinite(size)) return Number.isNaN(size) ? "NaN" : `${sign}inf`;
  if (Number.isInteger(size) && size < 1e7) return sign + size.toLocaleString("en-US");
  const [first, power] = firstDigits(exactly(size), count);
  return sign + placed(trimmed(first), power, size >= 1e-3 && power < count);
}

// In characters. Longer decimals are written as hex-floats.
const LONGEST_DECIMAL = 24;

/**
 * Return a value as text that parses to exactly this value: a short decimal, or a hex-float.
 *
 * @param {number} x
 */
export function exactText(x) {
  if (!Number.isFinite(x)) return specialText(x);
  const text = exactDecimal(x);
  return text.length <= LONGEST_DECIMAL ? text : hexFloat(x);
}

/**
 * Return a value for a sentence: exactly if that is short, else with its first digits.
 *
 * @param {number} x
 */
export function nameOf(x) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "infinity" : "minus infinity";
  const text = exactText(x);
  if (!/^-?0x/.test(text)) return text;
  const exact = exactly(x);
  return powerOf(exact) === null ? leading(exact) : spaced(exact);
}

/**
 * Replace hyphens by minus signs.
 *
 * @param {string} text
 */
export function withMinus(text) {
  return text.replaceAll("-", "\u2212");
}

/**
 * Join names for a sentence: "A, B and C".
 *
 * @param {readonly string[]} names
 */
export function listed(names) {
  if (names.length < 2) return names.join();
  return `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/**
 * Return a count with its noun: "1 bit", "3 bits".
 *
 * @param {number} count
 * @param {string} noun
 */
export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
