// Rounding of numbers to any format of at most 8 exponent bits and 24 bits of precision, fast
// enough for each step of a training.
//
// exact/numbers.js rounds fractions of any size and is the definition; this file gives the same
// results for JavaScript's numbers, with two additions. Adding 1.5 * 2^52 units to a number leaves
// no room for bits below the unit, so that the processor itself rounds it, ties to even.
//
// Source: IEEE 754-2019, 4.3 (rounding); Boldo and Melquiond 2008 (round to odd).

/**
 * A format with what its rounding needs.
 *
 * @typedef {object} RoundingFormat
 * @property {string} name
 * @property {number} exponentBits
 * @property {number} significandBits Without the hidden one.
 * @property {number} emin
 * @property {number} max
 * @property {number} beyond What is beyond max becomes: infinity, or NaN.
 * @property {Float64Array} units The unit in the last place, by the exponent field of a float64.
 * @property {Float64Array} magic 1.5 * 2^52 of these units; 0 where rounding changes nothing.
 */

const FIELDS = 2048; // exponent fields of a float64
const FLOAT64_BIAS = 1023;
const DOUBLE = new Float64Array(1);
const WORDS = new Int32Array(DOUBLE.buffer);
const LITTLE_ENDIAN = new Uint8Array(new Uint16Array([1]).buffer)[0] === 1;
const HIGH = LITTLE_ENDIAN ? 1 : 0;
const LOW = 1 - HIGH;

/**
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
  const cut = infinities ? 1 : 2; // units between 2^(emax + 1) and the largest value
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
 * The format of a name: a known one, or e5m10 for a format of one's own; null for any other text.
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
 * A number rounded to a format, to the nearest value, ties to even.
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
  // The sum forgets the sign of what becomes 0.
  return rounded === 0 ? x * 0 : rounded;
}

/**
 * A number rounded to one of its two neighbours: away from zero where 32 random bits are below the
 * part of the unit by which it exceeds the lower one.
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
 * The sum of two numbers, rounded to odd: where it is inexact, the neighbour whose last bit is 1.
 * Such a sum is no tie of a narrower format, so that rounding it again is as one rounding.
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
 * x * y + z of FP32 numbers, rounded once to FP32, as a fused multiply-add has it.
 *
 * @param {number} x
 * @param {number} y
 * @param {number} z
 */
export function fusedFp32(x, y, z) {
  const product = x * y; // exact: twice 24 bits
  const total = product + z;
  const rounded = Math.fround(total);
  const twice = total + (total - rounded);
  // Twice as far from `rounded` lies another FP32 number: `total` may be a tie that the exact sum
  // is not.
  if (twice !== rounded && Math.fround(twice) === twice) return Math.fround(addOdd(product, z));
  return rounded;
}

/**
 * A whole number, 0 to 2^32 - 1, in which each bit depends on each bit of the key (murmur3's last
 * step).
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
 * The key of a stream of random bits, from whole numbers such as a seed and a step.
 *
 * @param {...number} parts
 */
export function streamKey(...parts) {
  return parts.reduce((key, part) => mixed(key + 0x9e3779b9 + part), 0);
}

/**
 * Number i of a stream: 32 random bits, as a whole number.
 *
 * @param {number} key
 * @param {number} i
 */
export function randomBitsAt(key, i) {
  return mixed(mixed(i + 0x9e3779b9) ^ key);
}
