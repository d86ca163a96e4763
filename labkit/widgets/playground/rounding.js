// Rounding of numbers to any format with at most 8 exponent bits and 24 bits of precision, fast
// enough for each step of a training.
//
// The definition is exact/numbers.js, which rounds fractions of any size. This file gives the same
// results for JavaScript's numbers, by two additions: the sum of a number and 1.5 * 2^52 units has
// no bits below the unit, so the processor rounds it, ties to even. Subtracting the same number
// leaves the rounded value.
//
// Source: IEEE 754-2019, 4.3 (rounding); Boldo and Melquiond 2008 (round to odd).

/**
 * A format and the tables for rounding to it.
 *
 * @typedef {object} RoundingFormat
 * @property {string} name
 * @property {number} exponentBits
 * @property {number} significandBits The number of stored bits.
 * @property {number} emin
 * @property {number} max
 * @property {number} beyond The result of an overflow: infinity or NaN.
 * @property {Float64Array} units The unit in the last place for each exponent field of a float64.
 * @property {Float64Array} magic 1.5 * 2^52 of these units; 0 for numbers that overflow in any
 * case.
 */

// The number of exponent fields of a float64.
const FIELDS = 2048;
const FLOAT64_BIAS = 1023;
const DOUBLE = new Float64Array(1);
const WORDS = new Int32Array(DOUBLE.buffer);
const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;
const HIGH = LITTLE_ENDIAN ? 1 : 0;
const LOW = 1 - HIGH;

/**
 * Return a format with its tables.
 *
 * @param {string} name
 * @param {number} exponentBits 2 to 8
 * @param {number} significandBits 1 to 23
 * @param {boolean} infinities false: the largest codes are numbers, and one is NaN (OCP's E4M3)
 * @returns {RoundingFormat}
 */
export function roundingFormat(name, exponentBits, significandBits, infinities = true) {
  const bias = 2 ** (exponentBits - 1) - 1;
  const emin = 1 - bias;
  const emax = infinities ? bias : bias + 1;
  // The units between 2^(emax + 1) and the largest value.
  const cut = infinities ? 1 : 2;
  const max = (2 - cut * 2 ** -significandBits) * 2 ** emax;
  const units = new Float64Array(FIELDS);
  const magic = new Float64Array(FIELDS);
  for (let field = 0; field < FIELDS; field++) {
    const exponent = Math.min(Math.max(field - FLOAT64_BIAS, emin), emax);
    units[field] = 2 ** (exponent - significandBits);
    // Beyond 2^(emax + 1) a number overflows, whatever its last bits are.
    if (field - FLOAT64_BIAS <= emax) magic[field] = 1.5 * 2 ** 52 * units[field];
  }
  const beyond = infinities ? Infinity : NaN;
  return { name, exponentBits, significandBits, emin, max, beyond, units, magic };
}

/** @type {Record<string, RoundingFormat>} */
export const PLAYGROUND_FORMATS = {
  FP32: roundingFormat("FP32", 8, 23),
  FP16: roundingFormat("FP16", 5, 10),
  BF16: roundingFormat("BF16", 8, 7),
  E4M3: roundingFormat("E4M3", 4, 3, false),
  E5M2: roundingFormat("E5M2", 5, 2),
};

/** @type {Map<string, RoundingFormat>} */
const ownFormats = new Map();

/**
 * Return the format of a name, such as FP16, or e5m10 for one with 5 exponent and 10 significand
 * bits; null for any other text.
 *
 * @param {string} name
 */
export function formatNamed(name) {
  if (Object.hasOwn(PLAYGROUND_FORMATS, name)) return PLAYGROUND_FORMATS[name];
  const found = /^e([2-8])m(\d{1,2})$/.exec(name);
  const significandBits = Number(found?.[2]);
  if (!found || significandBits < 1 || significandBits > 23) return null;
  const made = ownFormats.get(name) ?? roundingFormat(name, Number(found[1]), significandBits);
  ownFormats.set(name, made);
  return made;
}

/**
 * Round a number to the nearest value of a format, ties to even.
 *
 * @param {number} x
 * @param {RoundingFormat} format
 */
export function toNearest(x, format) {
  DOUBLE[0] = x;
  const magic = format.magic[(WORDS[HIGH] >>> 20) & 0x7ff];
  const rounded = x + magic - magic;
  if (rounded > format.max) return format.beyond;
  if (rounded < -format.max) return -format.beyond;
  // The sum has lost the sign of a number that becomes 0; x * 0 has it.
  return rounded === 0 ? x * 0 : rounded;
}

/**
 * Round a number to one of its two neighbours, by 32 random bits. It is rounded away from zero if
 * these bits, as a fraction, are below the part of the unit that would be cut off.
 *
 * @param {number} x
 * @param {RoundingFormat} format
 * @param {number} bits 0 to 2^32 - 1
 */
export function toRandom(x, format, bits) {
  if (!Number.isFinite(x)) return x < 0 ? -format.beyond : x * format.beyond;
  DOUBLE[0] = x;
  const unit = format.units[(WORDS[HIGH] >>> 20) & 0x7ff];
  const ratio = x / unit;
  const whole = Math.trunc(ratio);
  const away = bits < Math.floor(Math.abs(ratio - whole) * 2 ** 32) ? Math.sign(x) : 0;
  const rounded = (whole + away) * unit;
  if (rounded > format.max) return format.beyond;
  if (rounded < -format.max) return -format.beyond;
  return rounded === 0 ? x * 0 : rounded;
}

/**
 * Round all numbers of an array, in place.
 *
 * @param {Float32Array} values
 * @param {RoundingFormat} format
 * @returns {Float32Array} the same array
 */
export function roundAll(values, format) {
  if (format === PLAYGROUND_FORMATS.FP32) return values;
  for (let i = 0; i < values.length; i++) values[i] = toNearest(values[i], format);
  return values;
}

/**
 * Return the sum of two numbers, rounded to odd: if it is inexact, the neighbour whose last bit is
 * 1. Such a sum is never a tie of a narrower format, so rounding it again equals one rounding.
 *
 * @param {number} x
 * @param {number} y
 */
export function addOdd(x, y) {
  const total = x + y;
  const part = total - x;
  const missed = x - (total - part) + (y - part);
  if (missed === 0 || !Number.isFinite(total)) return total;
  DOUBLE[0] = total;
  if (WORDS[LOW] & 1) return total;
  // The exact sum lies beyond `total` (+1) or before it (-1), seen from zero.
  const towards = missed < 0 === total < 0 ? 1 : -1;
  if (towards < 0 && WORDS[LOW] === 0) WORDS[HIGH] -= 1;
  WORDS[LOW] += towards;
  return DOUBLE[0];
}

/**
 * Return x * y + z of FP32 numbers, rounded once to FP32, like a fused multiply-add.
 *
 * @param {number} x
 * @param {number} y
 * @param {number} z
 */
export function fusedFp32(x, y, z) {
  // Exact: the product of two numbers of 24 bits has at most 48.
  const product = x * y;
  const total = product + z;
  const rounded = Math.fround(total);
  const twice = total + (total - rounded);
  // If the point twice as far from `rounded` is an FP32 number, `total` is a tie between the two,
  // and the exact sum may not be.
  if (twice !== rounded && Math.fround(twice) === twice) return Math.fround(addOdd(product, z));
  return rounded;
}

/**
 * Return a whole number from 0 to 2^32 - 1, each bit of which depends on each bit of the key (the
 * last step of murmur3).
 *
 * @param {number} key
 */
export function mixed(key) {
  let x = key | 0;
  x = Math.imul(x ^ (x >>> 16), 0x85ebca6b);
  x = Math.imul(x ^ (x >>> 13), 0xc2b2ae35);
  return (x ^ (x >>> 16)) >>> 0;
}

/**
 * Return the key of a stream of random bits, from whole numbers such as a seed and a step.
 *
 * @param {...number} parts
 */
export function streamKey(...parts) {
  return parts.reduce((key, part) => mixed(key + 0x9e3779b9 + part), 0);
}

/**
 * Return element i of a stream: 32 random bits, as a whole number.
 *
 * @param {number} key
 * @param {number} i
 */
export function randomBitsAt(key, i) {
  return mixed(mixed(i + 0x9e3779b9) ^ key);
}
