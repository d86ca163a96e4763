// --- fractions ----------------------------------------------------------------------------------------------------------

export const fraction = (n, d = 1n) => (d < 0n ? { n: -n, d: -d } : { n, d });
export const plus = (a, b) => fraction(a.n * b.d + b.n * a.d, a.d * b.d);
export const minus = (a, b) => plus(a, { n: -b.n, d: b.d });
export const times = (a, b) => fraction(a.n * b.n, a.d * b.d);
export const over = (a, b) => fraction(a.n * b.d, a.d * b.n);
export const sizeOf = ({ n, d }) => ({ n: n < 0n ? -n : n, d });
export const compare = (a, b) => Number(a.n * b.d > b.n * a.d) - Number(a.n * b.d < b.n * a.d);
export const twoTo = (k) =>
  k < 0 ? { n: 1n, d: 1n << BigInt(-k) } : { n: 1n << BigInt(k), d: 1n };
export const bitLength = (n) => (n ? n.toString(2).length : 0);

// |x| = significand * 2^exponent of a finite number.
export function parts(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, x);
  const bits = view.getBigUint64(0);
  const field = Number((bits >> 52n) & 0x7ffn);
  const stored = bits & ((1n << 52n) - 1n);
  return {
    negative: bits >> 63n === 1n,
    field,
    stored,
    significand: field ? stored | (1n << 52n) : stored,
    exponent: Math.max(field, 1) - 1075,
  };
}

export function exactly(x) {
  const { negative, significand, exponent } = parts(x);
  return times(fraction(negative ? -significand : significand), twoTo(exponent));
}

// The largest k with 2^k <= x, of a positive fraction.
export function binadeOf({ n, d }) {
  const k = bitLength(n) - bitLength(d);
  return compare({ n, d }, twoTo(k)) < 0 ? k - 1 : k;
}

export function powerOf(x) {
  const size = sizeOf(x);
  if (!size.n) return null;
  const k = binadeOf(size);
  return compare(size, twoTo(k)) === 0 ? k : null;
}

// --- formats --------------------------------------------------------------------------------------------------------------

export const ROUNDINGS = [
  "NEAREST_EVEN",
  "NEAREST_AWAY",
  "TOWARD_ZERO",
  "TOWARD_POSITIVE",
  "TOWARD_NEGATIVE",
  "STOCHASTIC",
];

export function derived(row) {
  const { exponent_bits: e, significand_bits: p, specials, signed, has_zero } = row;
  const bias = 2 ** (e - 1) - 1;
  const reserved = { IEEE: 1n << BigInt(p), FN: 1n, NONE: 0n }[specials];
  const maxCode = (1n << BigInt(e + p)) - 1n - reserved;
  const format = {
    ...row,
    p,
    bias,
    bits: signed + e + p,
    maxCode,
    emin: has_zero - bias,
    emax: Number(maxCode >> BigInt(p)) - bias,
  };
  format.signMask = signed ? 1n << BigInt(e + p) : 0n;
  format.infinityCode = specials === "IEEE" ? maxCode + 1n : null;
  format.nanCode =
    specials === "NONE" ? null : maxCode + 1n + (specials === "IEEE" ? 1n << BigInt(p - 1) : 0n);
  format.max = decode(maxCode, format);
  format.least = 2 ** (format.emin - (has_zero ? p : 0)); // the smallest positive value
  return format;
}

export function decode(code, format) {
  const { p, emin, bias, signMask, maxCode, has_zero } = format;
  const size = signMask ? code & (signMask - 1n) : code;
  const sign = code & signMask ? -1 : 1;
  if (size > maxCode) return size === format.infinityCode ? sign * Infinity : NaN;
  const field = Number(size >> BigInt(p));
  const stored = Number(size & ((1n << BigInt(p)) - 1n));
  const normal = field > 0 || !has_zero;
  return sign * (stored + (normal ? 2 ** p : 0)) * 2 ** ((normal ? field - bias : emin) - p);
}

export function encode(value, format) {
  const { p, emin, bias, signMask, has_zero } = format;
  if (Number.isNaN(value)) return format.nanCode;
  const sign = Object.is(value, -0) || value < 0 ? signMask : 0n;
  if (!Number.isFinite(value)) return sign | format.infinityCode;
  if (value === 0) return sign;
  const size = sizeOf(exactly(value));
  const e = Math.max(binadeOf(size), emin);
  const { n, d } = times(size, twoTo(p - e));
  const whole = n / d;
  const normal = whole >> BigInt(p);
  return (
    sign |
    (normal ? (BigInt(e + bias) << BigInt(p)) + whole - (1n << BigInt(p)) : has_zero ? whole : 0n)
  );
}

// The next value in a direction, +1 or -1; null where there is none.
export function neighbour(value, format, direction) {
  if (Number.isNaN(value)) return null;
  const code = encode(value, format);
  const size = format.signMask ? code & (format.signMask - 1n) : code;
  const last = format.infinityCode ?? format.maxCode;
  const sign = code & format.signMask;
  if (size === 0n && format.has_zero)
    return direction > 0 || format.signed
      ? decode(1n | (direction > 0 ? 0n : format.signMask), format)
      : null;
  const outward = direction > 0 === (sign === 0n);
  const next = outward ? size + 1n : size - 1n;
  return next < 0n || next > last ? null : decode(sign | next, format);
}

export function classOf(code, format) {
  const size = format.signMask ? code & (format.signMask - 1n) : code;
  if (size > format.maxCode) return size === format.infinityCode ? "infinity" : "nan";
  if (!format.has_zero || size >> BigInt(format.p)) return "normal";
  return size ? "subnormal" : "zero";
}

// The spacing of a format's values in the binade of a value.
export function ulpOf(value, format) {
  const e =
    value === 0
      ? format.emin
      : Number.isFinite(value)
        ? binadeOf(sizeOf(exactly(value)))
        : format.emax;
  return 2 ** (Math.min(format.emax, Math.max(format.emin, e)) - format.p);
}

// Whether a size between two neighbours is rounded away from zero; `rest` is the part of the gap beyond the lower one.
export function roundsAway(rest, odd, negative, mode) {
  if (!rest.n) return false;
  const half = compare(rest, { n: 1n, d: 2n });
  if (mode === "NEAREST_EVEN") return half > 0 || (half === 0 && odd);
  if (mode === "NEAREST_AWAY") return half >= 0;
  if (mode === "AWAY") return compare(rest, twoTo(-32)) >= 0; // as far as the 32 random bits of stochastic rounding go
  return mode === "TOWARD_POSITIVE" ? !negative : mode === "TOWARD_NEGATIVE" && negative;
}

// A fraction rounded to a format, once; `AWAY` is the other neighbour that stochastic rounding may take.
export function roundExact(x, format, mode = "NEAREST_EVEN", negative = x.n < 0n) {
  const { p, emin, max, specials, signed, has_zero } = format;
  const sign = negative ? -1 : 1;
  if ((negative && !signed && x.n) || (!x.n && !has_zero)) return NaN;
  if (!x.n) return sign * 0;
  const size = sizeOf(x);
  const e = Math.max(binadeOf(size), emin);
  const { n, d } = times(size, twoTo(p - e));
  const whole = n / d;
  const rounded = whole + BigInt(roundsAway({ n: n % d, d }, whole & 1n, negative, mode));
  const beyond = { IEEE: Infinity, FN: NaN, NONE: max }[specials];
  const inward =
    mode === "TOWARD_ZERO" || mode === (negative ? "TOWARD_POSITIVE" : "TOWARD_NEGATIVE");
  const value = bitLength(rounded) + e - p > 1024 ? Infinity : Number(rounded) * 2 ** (e - p);
  if (value > max) return sign * (inward ? max : beyond);
  return sign * (has_zero ? value : Math.max(value, format.least));
}

export function roundValue(x, format, mode) {
  if (Number.isFinite(x)) return roundExact(exactly(x), format, mode, Object.is(x, -0) || x < 0);
  return Number.isNaN(x)
    ? NaN
    : Math.sign(x) * { IEEE: Infinity, FN: NaN, NONE: format.max }[format.specials];
}

// --- text -------------------------------------------------------------------------------------------------------------------

const LONGEST = 1200; // characters
const NUMBER = "(\\d+\\.?\\d*|\\.\\d+)";
const SHAPES = {
  code: /^(0x[0-9a-f]+|0b[01]+)$/,
  "hex-float": /^0x(?=\.?[0-9a-f])([0-9a-f]*)\.?([0-9a-f]*)p([+-]?\d+)$/,
  decimal: new RegExp(`^${NUMBER}(?:e([+-]?\\d+))?$`),
  "power of two": new RegExp(`^(?:${NUMBER}\\s*[*x·]\\s*)?2(?:\\^|\\*\\*)\\(?([+-]?\\d+)\\)?$`),
  fraction: /^(\d+)\s*\/\s*(\d+)$/,
  special: /^(inf|infinity|∞|nan)$/,
};
const KNOWN =
  "Known forms: 0.1, 1e-7, 0x1.8p-3, 2^-24, 1.5*2^-14, 1/3, inf, nan; a code as 0x3c00 or 0b0011110000000000.";

// What is typed, read exactly and rounded once: {kind, exact, value, code}; exact is null where it is no number. Throws an
// Error whose message says what would do.
export function parse(text, format) {
  const cleaned = text.trim().toLowerCase().replaceAll("−", "-").replaceAll("×", "x");
  const [, sign, body] = cleaned.match(/^([+-]?)\s*([^]*)$/);
  const compact = /^0[bx]/.test(body) ? body.replace(/[\s_]/g, "") : body;
  const negative = sign === "-";
  for (const [kind, shape] of Object.entries(SHAPES)) {
    const found = text.length <= LONGEST && compact.match(shape);
    if (!found) continue;
    if (kind === "code") return readCode(sign + compact, compact, sign, format);
    const exact = kind === "special" ? null : readExact(kind, found, negative);
    const special = found[1] === "nan" ? NaN : negative ? -Infinity : Infinity;
    if (kind === "special" && found[1] === "nan" && format.nanCode === null) {
      throw new Error(
        `${format.name} has no NaN, and the values have one. Replace it first, by nan_to_num perhaps.`,
      );
    }
    const value = exact
      ? roundExact(exact, format, "NEAREST_EVEN", negative)
      : roundValue(special, format);
    return { kind, exact, value, code: encode(value, format) };
  }
  throw new Error(noNumber(text, body));
}

function readCode(shown, text, sign, format) {
  if (sign)
    throw new Error(
      `'${shown}': a code has no sign in front, its first bit is the sign. -1.0 in FP16 is 0xbc00.`,
    );
  const code = BigInt(text);
  if (code >> BigInt(format.bits))
    throw new Error(
      `'${shown}' has ${bitLength(code)} bits; ${format.name} codes have ${format.bits}.`,
    );
  const value = decode(code, format);
  return { kind: "code", exact: Number.isFinite(value) ? exactly(value) : null, value, code };
}

function readExact(kind, [, first, second, third], negative) {
  const exponent = Number((kind === "hex-float" ? third : kind === "fraction" ? 0 : second) ?? 0);
  if (Math.abs(exponent) > 5000)
    throw new Error("the exponent is beyond 5000; no format comes near that. Give a smaller one.");
  if (kind === "fraction" && !BigInt(second))
    throw new Error("a fraction over 0 is no number; for infinity write inf.");
  const decimalOf = (digits) => {
    const [whole, part = ""] = digits.split(".");
    return fraction(BigInt(whole + part), 10n ** BigInt(part.length));
  };
  const size = {
    "hex-float": () =>
      times(fraction(BigInt(`0x${first}${second}`)), twoTo(exponent - 4 * second.length)),
    fraction: () => fraction(BigInt(first), BigInt(second)),
    decimal: () =>
      times(
        decimalOf(first),
        exponent < 0 ? { n: 1n, d: 10n ** BigInt(-exponent) } : fraction(10n ** BigInt(exponent)),
      ),
    "power of two": () => times(decimalOf(first ?? "1"), twoTo(exponent)),
  }[kind]();
  return negative ? { n: -size.n, d: size.d } : size;
}

function noNumber(text, body) {
  if (text.length > LONGEST)
    return `this text has ${text.length} characters, ${LONGEST} is the most a number needs. ${KNOWN}`;
  let hint = "";
  if (/^\d+,\d+(e[+-]?\d+)?$/.test(body))
    hint = `Write a decimal point, not a comma: ${text.replaceAll(",", ".").trim()}. `;
  else if (/^0x[0-9a-f]*\.[0-9a-f]*$/.test(body))
    hint = `A hex-float ends in p and a power of two: ${text.trim()}p0. `;
  else if (/^[0-9a-f]+$/.test(body)) hint = `For a code write 0x${body}. `;
  return `'${text}' is no number. ${hint}${KNOWN}`;
}

export function exactDecimal(x) {
  const { negative, significand, exponent } = parts(x);
  let [digits, places] = [significand, 0];
  if (exponent > 0) digits <<= BigInt(exponent);
  else {
    let drop = 0n;
    while (drop < BigInt(-exponent) && significand && !((significand >> drop) & 1n)) drop += 1n;
    places = significand ? -exponent - Number(drop) : 0;
    digits = (significand >> drop) * 5n ** BigInt(places);
  }
  const text = String(digits).padStart(places + 1, "0");
  return `${negative ? "-" : ""}${places ? `${text.slice(0, -places)}.${text.slice(-places)}` : text}`;
}

const specialText = (x) => (Number.isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf");

export function hexFloat(x) {
  if (!Number.isFinite(x)) return specialText(x);
  const { negative, field, stored } = parts(x);
  const digits = stored.toString(16).padStart(13, "0").replace(/0+$/, "");
  const e = field ? field - 1023 : stored ? -1022 : 0;
  return `${negative ? "-" : ""}0x${field ? 1 : 0}${digits && `.${digits}`}p${e < 0 ? "" : "+"}${e}`;
}

export const bitsText = (code, width) => code.toString(2).padStart(width, "0");
export const hexCode = (code, format) =>
  `0x${code.toString(16).padStart(Math.ceil(format.bits / 4), "0")}`;
export const widthsOf = (format) => [Number(format.signed), format.exponent_bits, format.p];

// The fields of a code from the high bit to the low, as bits.
export function fieldBits(code, format) {
  const text = bitsText(code, format.bits);
  let from = 0;
  return widthsOf(format).map((width) => text.slice(from, (from += width)));
}

// --- numbers in words -------------------------------------------------------------------------------------------------------

// The first digits of a positive fraction and its power of ten: [digits, power, whether more follow]; rounded half to even, or cut.
export function firstDigits(x, count, cut = false) {
  let power = String(x.n).length - String(x.d).length;
  const ten = (k) => (k < 0 ? { n: 1n, d: 10n ** BigInt(-k) } : fraction(10n ** BigInt(k)));
  if (compare(x, ten(power)) < 0) power -= 1;
  const { n, d } = times(x, ten(count - 1 - power));
  let digits = n / d;
  if (!cut && roundsAway({ n: n % d, d }, digits & 1n, false, "NEAREST_EVEN")) digits += 1n;
  if (String(digits).length > count) [digits, power] = [digits / 10n, power + 1];
  return [String(digits), power, n % d !== 0n];
}

function placed(digits, power, plain) {
  if (!plain) return digits.length > 1 ? `${digits[0]}.${digits.slice(1)}` : digits;
  if (power < 0) return `0.${"0".repeat(-power - 1)}${digits}`;
  const padded = digits.padEnd(power + 1, "0");
  return padded.length > power + 1
    ? `${padded.slice(0, power + 1)}.${padded.slice(power + 1)}`
    : padded;
}

const trimmed = (digits) => digits.replace(/0+$/, "") || "0";

// A few digits; whole numbers below ten million keep all of theirs.
export function brief(x, digits = 3) {
  const sign = x.n < 0n ? "-" : "";
  const size = sizeOf(x);
  if (size.n % size.d === 0n && size.n / size.d < 10n ** 7n) return `${sign}${size.n / size.d}`;
  const [first, power] = firstDigits(size, digits);
  const plain = power >= -3 && power < 6;
  return `${sign}${placed(trimmed(first), power, plain)}${plain ? "" : `e${power}`}`;
}

// The first digits, not rounded, and "…" where more follow.
export function leading(x, digits = 12, plainFrom = -3) {
  if (!x.n) return "0";
  const [first, power, more] = firstDigits(sizeOf(x), digits, true);
  const plain = power >= plainFrom && power < digits;
  return `${x.n < 0n ? "-" : ""}${placed(more ? first : trimmed(first), power, plain)}${more ? "…" : ""}${plain ? "" : `e${power}`}`;
}

// For a sentence: a power of two with its exponent.
export function spaced(x) {
  const k = powerOf(x);
  if (k === null || (k >= 0 && k <= 3)) return brief(x); // 1, 2, 4 and 8 need no explanation
  return `${x.n < 0n ? "-" : ""}2^${k} = ${brief(x)}`;
}

// Five digits, as a person reads them: 65,504 or 1.0002e-4.
export function numberText(x, count = 5) {
  const sign = x < 0 || Object.is(x, -0) ? "\u2212" : "";
  const size = Math.abs(x);
  if (!Number.isFinite(size)) return Number.isNaN(size) ? "NaN" : `${sign}inf`;
  if (Number.isInteger(size) && size < 1e7) return sign + size.toLocaleString("en-US");
  const [first, power] = firstDigits(exactly(size), count);
  const plain = size >= 1e-3 && power < count;
  return `${sign}${placed(trimmed(first), power, plain)}${plain ? "" : `e${power}`}`;
}

// A value as text that every format reads exactly: in decimal where that is short, else as a hex-float.
export function exactText(x) {
  if (!Number.isFinite(x)) return specialText(x);
  const text = exactDecimal(x);
  return text.length <= 24 ? text : hexFloat(x);
}

export function nameOf(x) {
  if (!Number.isFinite(x)) return Number.isNaN(x) ? "NaN" : x > 0 ? "infinity" : "minus infinity";
  const text = exactText(x);
  if (!/^-?0x/.test(text)) return text;
  const exact = exactly(x);
  return powerOf(exact) === null ? leading(exact) : spaced(exact);
}

export const withMinus = (text) => text.replaceAll("-", "\u2212");
export const listed = (names) =>
  names.length < 2 ? names.join() : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
export const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
