// The sentence for each stage of a calculation, and the facts about its result.

import {
  bitLength,
  brief,
  compare,
  counted,
  encode,
  exactly,
  fieldBits,
  firstDigits,
  fraction,
  hexCode,
  leading,
  numberText,
  roundsAway,
  sizeOf,
  times,
} from "../exact/numbers.js";
import { topOf } from "./sheet.js";

/** @import { Format, Fraction, Reading } from "../exact/numbers.js" */
/** @import { Name, Operation, Sheet, Term } from "./sheet.js" */

/** @type {Record<Operation, { sign: string, result: string }>} */
export const OPERATIONS = {
  add: { sign: "+", result: "sum" },
  multiply: { sign: "×", result: "product" },
};
export const MINUS = "\u2212";
/** @type {Name[]} */
export const NAMES = ["a", "b"];

// --- numbers -------------------------------------------------------------------------------------

/** @param {Term} term */
export function signOf({ negative, significand }) {
  return negative && significand ? MINUS : "";
}

/**
 * Return a fraction in decimal, with "…" behind the digits if more follow.
 *
 * @param {Fraction} x
 * @param {number} [digits]
 */
function exactNumber(x, digits = 24) {
  return (x.n < 0n ? MINUS : "") + leading(sizeOf(x), digits, -5);
}

/**
 * Return the bit of a term in a place.
 *
 * @param {Term} term
 * @param {number} place
 */
export function bitAt({ significand, exponent }, place) {
  return place < exponent ? "0" : String((significand >> BigInt(place - exponent)) & 1n);
}

/**
 * Return the bits of a term from a place down to another.
 *
 * @param {Term} term
 * @param {number} top
 * @param {number} last
 */
function bitsDown(term, top, last) {
  let bits = "";
  for (let place = top; place >= last; place--) bits += bitAt(term, place);
  return bits;
}

/**
 * Return the significand of a term down to a place, with the point behind another place.
 *
 * @param {Term} term
 * @param {number} point
 * @param {number} [last]
 */
function significandText(term, point, last = term.exponent) {
  const first = term.exponent + bitLength(term.significand) - 1;
  const bits = bitsDown(term, Math.max(point, first), last);
  const whole = bits.length - (point - last);
  if (bits.length <= whole) return bits;
  return `${bits.slice(0, whole)}.${bits.slice(whole)}`;
}

/**
 * Return an error in ulps, with its sign: three decimals, or two digits and a power of ten.
 *
 * @param {Fraction} error
 */
function ulpsSigned(error) {
  if (!error.n) return "0 ulp";
  const size = sizeOf(error);
  const sign = error.n < 0n ? MINUS : "+";
  if (compare(size, fraction(1n, 1000n)) < 0) {
    const [digits, power] = firstDigits(size, 2);
    return `${sign}${digits[0]}.${digits[1]}e${power} ulp`;
  }
  const { n, d } = times(size, fraction(1000n));
  const floor = n / d;
  const odd = (floor & 1n) === 1n;
  const up = roundsAway({ n: n % d, d }, odd, false, "NEAREST_EVEN");
  const thousandths = up ? floor + 1n : floor;
  const part = String(thousandths % 1000n).padStart(3, "0");
  const text = `${thousandths / 1000n}.${part}`.replace(/0+$/, "");
  return `${sign}${text} ulp`;
}

/**
 * Return a code with capital digits: 0x3C00.
 *
 * @param {bigint} code
 * @param {Format} format
 */
function codeText(code, format) {
  return hexCode(code, format).toUpperCase().replace("0X", "0x");
}

// --- sentences -----------------------------------------------------------------------------------

/**
 * Return the operand that a sum swallowed: the result is the other one, although this is not 0.
 *
 * @param {Sheet} sheet
 * @returns {Name | null}
 */
function lostOperand({ operation, error, values: [a, b], value }) {
  if (operation !== "add" || !error?.n) return null;
  if (value === a && b !== 0) return "b";
  return value === b && a !== 0 ? "a" : null;
}

/** @param {Sheet} sheet */
export function writeText(sheet) {
  return `${NAMES.map((_, i) => writtenText(sheet, i)).join(" and ")}.`;
}

/**
 * Return what a or b is in the format.
 *
 * @param {Sheet} sheet
 * @param {number} i 0 for a, 1 for b
 */
function writtenText({ readings, terms, format, exponents }, i) {
  const name = NAMES[i];
  const { value, exact } = readings[i];
  if (!Number.isFinite(value)) return `${name} is ${numberText(value)}`;
  const becomes = exact && compare(exact, exactly(value)) ? `, rounded to ${format.name},` : "";
  const sign = terms[name].negative ? MINUS : "";
  const bits = significandText(terms[name], exponents[i]);
  return `${name}${becomes} is ${sign}${bits} × 2^${exponents[i]}`;
}

/** @param {Sheet} sheet */
export function alignText({ values, terms, shift, home, format }) {
  const precision = format.p + 1;
  if (values.includes(0)) return "One of them is 0: there is nothing to align.";
  if (!shift) return `Both are written with 2^${home} already: nothing moves.`;
  const name = terms.a.exponent < terms.b.exponent ? "a" : "b";
  const begin =
    `${name} has the smaller exponent. ` +
    `To be written with 2^${home} it moves ${counted(shift, "place")} to the right`;
  const beyond = `beyond the ${precision} places that ${format.name} keeps`;
  if (shift >= precision) return `${begin}, and all its ${precision} bits now lie ${beyond}.`;
  const passed = terms[name].significand & ((1n << BigInt(shift)) - 1n);
  if (!passed) return `${begin}; only zeros pass ${beyond}.`;
  const lie = shift > 1 ? "lie" : "lies";
  return `${begin}, and ${shift} of its ${precision} bits now ${lie} ${beyond}.`;
}

/** @param {Sheet} sheet */
export function addText({ terms, total, home, format }) {
  const low = home - format.p;
  const kept = significandText(total, home, Math.max(low, total.exponent));
  const rest = bitsDown(total, low - 1, total.exponent).replace(/0+$/, "");
  const differ = terms.a.negative !== terms.b.negative;
  const what = differ ? "The signs differ, so one is subtracted: the result" : "The sum";
  const beyond = rest ? `beyond the places kept ${rest}` : "nothing beyond the places kept";
  return `${what} is ${signOf(total)}${kept}, and ${beyond}.`;
}

/** @param {Sheet} sheet */
export function multiplyText({ total, home, exponents: [first, second], format }) {
  const sign = total.negative ? MINUS : "";
  const digits = significandText(total, home).replace(/\.?0+$/, "") || "0";
  const added = `${first} + ${second < 0 ? `(${second})` : second}`;
  const precision = format.p + 1;
  return (
    `The significands are multiplied, ${sign}${digits}, ` +
    `and the exponents added, ${added} = ${home}. ` +
    `${precision} bits times ${precision} bits give up to ${2 * precision}: nothing is lost yet.`
  );
}

/** @param {Sheet} sheet */
export function normaliseText({ operation, total, window, home, cut, format }) {
  const what = OPERATIONS[operation].result;
  const places = format.p + 1;
  if (!total.significand) return `The ${what} is exactly 0: there is nothing to normalise.`;
  const top = topOf(total) - 1;
  const begins = `The ${what} begins at 2^${top}`;
  if (top < window) {
    return (
      `${begins}, but ${format.name} has no exponent below ${format.emin}: ` +
      `the ${places} places stay at 2^${window} and begin with zeros, a subnormal number.`
    );
  }
  if (window === home) {
    return `${begins}: the ${places} places that ${format.name} keeps are already there.`;
  }
  if (window > home) {
    return (
      `The ${what} begins one place further left, ` +
      `so the ${places} places move there and the point with them.`
    );
  }
  const gone = home - window > 1 ? `${home - window} leading bits` : "The leading bit";
  const filled = cut.dropped < 0 ? ", and zeros fill up from the right" : "";
  return `${gone} cancelled: the ${places} places move to 2^${window}${filled}.`;
}

/** @param {Sheet} sheet */
export function decideText(sheet) {
  const { guard, round, sticky } = sheet.cut;
  const bits = `Guard ${Number(guard)}, round ${Number(round)}, sticky ${Number(sticky)}`;
  if (!guard && !round && !sticky) {
    const so = sheet.overflows ? "nothing is rounded" : "the result is exact";
    return `${bits}: nothing lies beyond the places kept, so ${so}.`;
  }
  const reason = reasonText(sheet);
  const lost = lostOperand(sheet);
  return lost ? `${bits}: ${reason}; ${lost} is lost.` : `${bits}: ${reason}.`;
}

/**
 * Return why the result is rounded up or down.
 *
 * @param {Sheet} sheet
 */
function reasonText({ cut, final }) {
  if (!cut.guard) return "less than half of the last place, so round down";
  if (cut.round || cut.sticky) return "more than half of the last place, so round up";
  const last = cut.kept.significand & 1n;
  const parity = last ? "odd" : "even";
  const way = final.up ? "up" : "down";
  return `exactly half. The last bit kept is ${last} (${parity}), so to be even round ${way}`;
}

/** @param {Sheet} sheet */
export function roundText(sheet) {
  const { operation, values, value, format, exact, error } = sheet;
  const [a, b] = values;
  const { sign, result } = OPERATIONS[operation];
  const right = b < 0 || Object.is(b, -0) ? `(${numberText(b)})` : numberText(b);
  const equation = `${numberText(a)} ${sign} ${right} = ${numberText(value)} in ${format.name}`;
  // A result that overflows has no error in ulps.
  if (!error) {
    const largest = `the largest value, ${brief(exactly(format.max), 6)}`;
    return `${equation}: the ${result}, ${exactNumber(exact, 8)}, is beyond ${largest}.`;
  }
  if (!error.n) return `${equation}, exactly.`;
  const lost = lostOperand(sheet);
  const trace = lost ? `; ${lost} left no trace.` : ".";
  const size = `The exact ${result} is ${exactNumber(exact, 12)}`;
  return `${equation}. ${size}, so the error is ${ulpsSigned(error)}${trace}`;
}

/**
 * Return the sentence about a calculation with an infinity or a NaN.
 *
 * @param {Sheet} sheet
 */
export function ruledText({ operation, values: [a, b], value }) {
  const term = `${numberText(a)} ${OPERATIONS[operation].sign} ${numberText(b)}`;
  const why = "with an infinity or a NaN a rule decides, and no bits are added";
  return `${term} = ${numberText(value)}: ${why}.`;
}

// --- beside the paper ----------------------------------------------------------------------------

/**
 * Return the hint about a typed number: its value and code in the format.
 *
 * @param {Reading} reading
 * @param {Format} format
 */
export function hintOf({ value, exact, code }, format) {
  const shown = numberText(value);
  const hex = codeText(code, format);
  if (!exact) return `${shown}, ${hex}`;
  const same = Number.isFinite(value) && compare(exact, exactly(value)) === 0;
  return same ? `${shown} exactly, ${hex}` : `rounded to ${shown}, ${hex}`;
}

/**
 * Return the facts about the result.
 *
 * @param {Sheet} sheet
 * @returns {[name: string, text: string][]}
 */
export function factsOf({ value, format, finite, exact, error, operation }) {
  const code = encode(value, format);
  const text = Number.isFinite(value) ? exactNumber(exactly(value)) : numberText(value);
  /** @type {[string, string][]} */
  const facts = [
    ["bits", fieldBits(code, format).join(" ")],
    ["code", codeText(code, format)],
    ["value", text],
  ];
  if (finite) facts.push([`exact ${OPERATIONS[operation].result}`, exactNumber(exact)]);
  if (error) facts.push(["error", ulpsSigned(error)]);
  return facts;
}
