// The state of the bit explorer, and the texts that it shows for a number in a format.

import {
  brief,
  classOf,
  compare,
  decode,
  encode,
  exactDecimal,
  exactly,
  exactText,
  fieldBits,
  fraction,
  hexCode,
  hexFloat,
  leading,
  minus,
  nameOf,
  neighbour,
  over,
  parse,
  plus,
  sizeOf,
  spaced,
  times,
  twoTo,
  ulpOf,
  withMinus,
} from "../exact/numbers.js";

/** @import { Format, Fraction } from "../exact/numbers.js" */

/**
 * A number in a format.
 *
 * @typedef {object} Explored
 * @property {Format} format
 * @property {bigint} code
 * @property {string} number The number before rounding, as it would be typed in any format.
 * @property {string} text The content of the text box: the number, or a code of the format.
 * @property {string} problem Why the last input is not a number; "" if it is one.
 */

/**
 * A number in a format, with its value in the format and, if finite, its exact value.
 *
 * @typedef {Explored & { value: number, exact: Fraction | null }} Known
 */

/** @typedef {"S" | "E" | "F"} Letter the field: sign, exponent, significand (fraction) */

/**
 * A field of a code.
 *
 * @typedef {object} Field
 * @property {Letter} letter
 * @property {string} name
 * @property {Bit[]} bits The bits, from the highest to the lowest.
 * @property {string} says The meaning of the bits.
 */

/** @typedef {{ bit: number, on: boolean, weight: string }} Bit bit: its index, 0 is the last one */

/** @typedef {[text: string, field?: Letter | "", raised?: boolean]} Piece of a formula */

/**
 * The number in a format of the comparison.
 *
 * @typedef {object} ComparisonRow
 * @property {string} format
 * @property {[Letter, string][]} bits The bits of each field.
 * @property {string} value The first digits of the rounded value.
 * @property {string} full The rounded value, exactly.
 * @property {string} error
 * @property {string} relative
 * @property {string} ulps
 */

/**
 * Everything that the widget shows for a number.
 *
 * @typedef {Known & {
 *   fields: Field[],
 *   valueText: string,
 *   about: string,
 *   formula: Piece[][],
 *   facts: [name: string, text: string][],
 *   before: string | null,
 *   after: string | null,
 *   sentence: string,
 *   rows: ComparisonRow[],
 * }} ExploredView
 */

/** @type {Letter[]} */
const LETTERS = ["S", "E", "F"];
const FIELD_NAMES = { S: "sign", E: "exponent", F: "significand" };
const EMPTY = "Nothing is typed. Give a number, such as 0.1, or a code, such as 0x1.";

// --- from one number to the next -----------------------------------------------------------------

/**
 * Parse a text as a number. Throw an Error if it is not one.
 *
 * @param {string} text
 * @param {Format} format
 * @returns {Explored}
 */
export function explore(text, format) {
  const reading = parse(text, format);
  return {
    format,
    code: reading.code,
    number: reading.kind === "code" ? exactText(reading.value) : text,
    text,
    problem: "",
  };
}

/**
 * Return the result of a step; if it throws, the former state with the error's message.
 *
 * @param {Explored} state
 * @param {() => Explored} step
 * @returns {Explored}
 */
function attempt(state, step) {
  try {
    return step();
  } catch (error) {
    return { ...state, problem: error instanceof Error ? error.message : String(error) };
  }
}

/**
 * Return the state after a text was typed.
 *
 * @param {Explored} state
 * @param {string} text
 * @returns {Explored}
 */
export function afterTyping(state, text) {
  if (!text.trim()) return { ...state, text, problem: EMPTY };
  return attempt({ ...state, text }, () => explore(text, state.format));
}

/**
 * Return the same number in another format.
 *
 * @param {Explored} state
 * @param {Format} format
 */
export function inFormat(state, format) {
  return attempt(state, () => explore(state.number, format));
}

/**
 * Return the state that shows a code of a format.
 *
 * @param {Format} format
 * @param {bigint} code
 * @returns {Explored}
 */
export function withCode(format, code) {
  const number = exactText(decode(code, format));
  return { format, code, number, text: number, problem: "" };
}

/**
 * Return the state after a step to the next value in a direction.
 *
 * @param {Explored} state
 * @param {number} direction +1 or -1
 * @returns {Explored}
 */
export function stepped(state, direction) {
  const { format, code } = state;
  const value = decode(code, format);
  const next = neighbour(value, format, direction);
  if (next !== null) return withCode(format, encode(next, format));
  const word = direction > 0 ? "larger" : "smaller";
  return { ...state, problem: `${format.name} has no ${word} value than ${nameOf(value)}.` };
}

// --- the sentence --------------------------------------------------------------------------------

// Longer inputs are not repeated in sentences.
const LONGEST_INPUT = 40;

/**
 * Return an error in units of the last place of a value.
 *
 * @param {Fraction} error
 * @param {number} value
 * @param {Format} format
 */
function ulpsText(error, value, format) {
  return `${brief(over(sizeOf(error), exactly(ulpOf(value, format))), 2)} ulp`;
}

/**
 * Return the number before rounding: as it was typed if that is short and not a hex-float.
 *
 * @param {string} number
 * @param {Fraction} exact
 */
function meantText(number, exact) {
  const typed = number.trim();
  const unclear = /^-?0x/i.test(typed) || number.length > LONGEST_INPUT;
  return unclear ? spaced(exact) : typed;
}

/**
 * Return why a format makes NaN of a number, or of infinity if `exact` is null.
 *
 * @param {Format} format
 * @param {Fraction | null} exact
 */
function whyNan(format, exact) {
  if (exact && exact.n < 0n && !format.signed) return `${format.name} has no sign`;
  if (exact && !exact.n) return `${format.name} has no zero`;
  return `${format.name} ends at ${nameOf(format.max)} and has no infinity`;
}

/**
 * Return the sentence for a number that was infinity or NaN before rounding.
 *
 * @param {Known} known
 */
function specialSentence({ format, code, number, value }) {
  const { name } = format;
  const kind = classOf(code, format);
  const hex = hexCode(code, format);
  if (kind === "infinity") {
    const why = `the result of rounding beyond ${nameOf(format.max)}`;
    return `${hex} is ${nameOf(value)} in ${name}: ${why}.`;
  }
  if (kind !== "nan") {
    return (
      `An infinity becomes ${nameOf(value)}, the largest ${name} number: ` +
      `${name} has no infinity and no NaN.`
    );
  }
  const meant = number.trim().toLowerCase();
  if (/inf|∞/.test(meant)) {
    const infinity = /^[-−]/.test(meant) ? "Minus infinity" : "Infinity";
    return `${infinity} becomes NaN, ${hex}: ${whyNan(format, null)}.`;
  }
  return (
    `${hex} is NaN in ${name}, not a number: ` +
    "the result of 0/0, and equal to nothing, not even to itself."
  );
}

/**
 * Return the sentence about a number in a format.
 *
 * @param {Known} known
 */
function exploredSentence(known) {
  const { format, exact, value } = known;
  if (!exact) return specialSentence(known);
  const meant = meantText(known.number, exact);
  if (Number.isNaN(value)) return `${meant} becomes NaN: ${whyNan(format, exact)}.`;
  const atEnd = Math.abs(value) === format.max;
  if (!Number.isFinite(value) || (atEnd && compare(sizeOf(exact), exactly(format.max)) > 0)) {
    const end = Number.isFinite(value) ? "becomes that" : "becomes infinity";
    const largest = `the largest ${format.name} number, ${nameOf(format.max)}`;
    return `${meant} is beyond ${largest}, and ${end}.`;
  }
  const error = minus(exactly(value), exact);
  return error.n ? roundedSentence(known, meant, error) : exactSentence(known, meant);
}

/**
 * @param {Known} known
 * @param {string} meant
 */
function exactSentence({ format, code, value }, meant) {
  const begin = `${meant} is exact in ${format.name}`;
  if (value === 0 && !format.signed) return `${begin}: the code whose bits are all 0.`;
  if (value === 0) return `${begin}: zero has a code for each sign, and +0 equals -0.`;
  const ulp = spaced(exactly(ulpOf(value, format)));
  return `${begin}: a ${classOf(code, format)} number, whose ulp is ${ulp}.`;
}

/**
 * @param {Known} known
 * @param {string} meant
 * @param {Fraction} error
 */
function roundedSentence({ format, code, value }, meant, error) {
  const { name } = format;
  if (value === 0) {
    const least = spaced(exactly(format.least));
    const why = `the smallest number above 0 is ${least}`;
    return `${meant} underflows in ${name}: it becomes 0, since ${why}.`;
  }
  const side = error.n > 0n ? "above" : "below";
  const far = `${brief(sizeOf(error))} ${side} it (${ulpsText(error, value, format)})`;
  const lost = classOf(code, format) === "subnormal" ? ", subnormal," : ",";
  const nearest = `the nearest one is ${nameOf(value)}${lost} which is ${far}`;
  return `${meant} is not a value of ${name}: ${nearest}.`;
}

// --- bits ----------------------------------------------------------------------------------------

/**
 * Return bits as a whole number; no bits are 0.
 *
 * @param {string} bits
 */
function wholeOf(bits) {
  return BigInt(`0b${bits || 0}`);
}

/**
 * Return the fields of a code from the high one to the low, without fields that have no bits.
 *
 * @param {bigint} code
 * @param {Format} format
 * @returns {Field[]}
 */
export function fieldsOf(code, format) {
  const texts = fieldBits(code, format);
  const says = meaningsOf(code, format);
  /** @type {Field[]} */
  const fields = [];
  let lowestBit = format.bits;
  for (const [i, letter] of LETTERS.entries()) {
    const width = texts[i].length;
    lowestBit -= width;
    if (!width) continue;
    const bits = [...texts[i]].map((digit, k) => {
      const place = width - 1 - k;
      return { bit: lowestBit + place, on: digit === "1", weight: weightOf(letter, place, width) };
    });
    fields.push({ letter, name: FIELD_NAMES[letter], bits, says: says[letter] });
  }
  return fields;
}

/**
 * Return the weight of a bit in its field, as text.
 *
 * @param {Letter} letter
 * @param {number} place in the field, 0 is the last one
 * @param {number} width
 */
function weightOf(letter, place, width) {
  if (letter === "S") return "±";
  if (letter === "F") return `2^${place - width}`;
  return place < 10 ? String(2 ** place) : `2^${place}`;
}

/**
 * Return the meaning of each field of a code.
 *
 * @param {bigint} code
 * @param {Format} format
 * @returns {Record<Letter, string>}
 */
function meaningsOf(code, format) {
  const kind = classOf(code, format);
  const [sign, field, bits] = fieldBits(code, format);
  const S = sign === "1" ? "minus" : "plus";
  const exponent = Number(wholeOf(field));
  if (kind === "infinity" || kind === "nan") {
    const F = kind === "infinity" ? "0: infinity" : "NaN";
    return { S, E: `${exponent}: the last exponent`, F };
  }
  const denominator = format.p <= 12 ? String(2 ** format.p) : `2^${format.p}`;
  const part = `${Number(wholeOf(bits))}/${denominator}`;
  if (kind !== "normal") {
    const E = `0: exponent stays ${withMinus(String(format.emin))}`;
    return { S, E, F: `hidden bit 0, plus ${part}` };
  }
  const E = `${exponent} − ${format.bias} = ${withMinus(String(exponent - format.bias))}`;
  return { S, E, F: `hidden bit 1, plus ${part}` };
}

// --- the formula ---------------------------------------------------------------------------------

/**
 * Return the formula (-1)^sign * 2^(exponent - bias) * 1.significand. Subnormal numbers have
 * 2^emin * 0.significand.
 *
 * @param {string} sign
 * @param {string} exponent
 * @param {string} significand
 * @param {Format} format
 * @param {boolean} subnormal
 * @returns {Piece[]}
 */
function productPieces(sign, exponent, significand, format, subnormal) {
  /** @type {Piece[]} */
  const pieces = [];
  if (format.signed) pieces.push(["(−1)"], [sign, "S", true], [" × "]);
  if (subnormal) {
    pieces.push(["2"], [withMinus(String(format.emin)), "E", true]);
  } else {
    pieces.push(["2"], [exponent, "E", true], [` − ${format.bias}`, "", true]);
  }
  if (format.p) {
    const hiddenBit = subnormal ? "0" : "1";
    pieces.push([` × ${hiddenBit}.`], [significand, "F"]);
  }
  return pieces;
}

/**
 * Return the lines of a code's formula: with letters, with its bits, and with numbers. Zero,
 * infinity and NaN have a line of text instead.
 *
 * @param {bigint} code
 * @param {Format} format
 * @returns {Piece[][]}
 */
function formulaOf(code, format) {
  const [sign, field, bits] = fieldBits(code, format);
  /** @type {Piece} */
  const minusPiece = [sign === "1" ? "−" : "", "S"];
  const words = formulaWords(code, format);
  if (words) return [[minusPiece, [words]]];
  const subnormal = classOf(code, format) === "subnormal";
  const exponent = Number(wholeOf(field));
  const hiddenBit = fraction(subnormal ? 0n : 1n);
  const significand = plus(hiddenBit, times(fraction(wholeOf(bits)), twoTo(-format.p)));
  const power = withMinus(String(subnormal ? format.emin : exponent - format.bias));
  const withLetters = productPieces("S", "E", "F", format, subnormal);
  const signDigit = String(Number(sign || 0));
  const withBits = productPieces(signDigit, String(exponent), bits, format, subnormal);
  if (bits) withBits.push([" (binary)"]);
  /** @type {Piece[]} */
  const withNumbers = [
    minusPiece,
    ["2"],
    [power, "E", true],
    [" × "],
    [leading(significand, 20), "F"],
  ];
  // A positive number has no piece for its sign, a format without significand none for that.
  return [withLetters, withBits, withNumbers].map((line) => line.filter(([text]) => text));
}

/**
 * Return the text for a code without a formula; null if the code has one.
 *
 * @param {bigint} code
 * @param {Format} format
 */
function formulaWords(code, format) {
  const kind = classOf(code, format);
  if (kind === "infinity") return "infinity: all bits of E are 1 and all bits of F are 0";
  if (kind === "zero") return "0: all bits of E and F are 0, and the formula would give 0 too";
  if (kind !== "nan") return null;
  if (format.infinityCode !== null) {
    return "NaN, not a number: all bits of E are 1 and F is not 0";
  }
  const fields = format.p ? "E and F" : "E";
  return `NaN, not a number: all bits of ${fields} are 1 (${format.name} has no infinity)`;
}

// --- the comparison ------------------------------------------------------------------------------

/**
 * Return the row of the comparison for a format.
 *
 * @param {Known} known
 * @param {Format} format
 * @returns {ComparisonRow}
 */
function comparisonRow(known, format) {
  const nothing = { value: "", full: "", error: "", relative: "", ulps: "" };
  const other = format === known.format ? known : inFormat(known, format);
  if (other.format !== format) {
    return { ...nothing, format: format.name, bits: [], error: "no NaN" };
  }
  const value = decode(other.code, format);
  const finite = Number.isFinite(value);
  return {
    ...nothing,
    format: format.name,
    bits: letteredBits(other.code, format),
    value: withMinus(finite && value ? leading(exactly(value)) : nameOf(value)),
    full: exactText(value),
    ...(known.exact ? errorTexts(value, known.exact, format) : {}),
  };
}

/**
 * Return the bits of each field with its letter, without fields that have no bits.
 *
 * @param {bigint} code
 * @param {Format} format
 */
function letteredBits(code, format) {
  /** @type {[Letter, string][]} */
  const lettered = fieldBits(code, format).map((bits, i) => [LETTERS[i], bits]);
  return lettered.filter(([, bits]) => bits);
}

/**
 * Return the error of a rounded value: the difference, relative to the number, and in ulps.
 *
 * @param {number} value
 * @param {Fraction} exact
 * @param {Format} format
 * @returns {Partial<ComparisonRow>}
 */
function errorTexts(value, exact, format) {
  if (Number.isNaN(value)) return { error: "no number" };
  if (!Number.isFinite(value)) return { error: "overflows" };
  const error = minus(exactly(value), exact);
  if (!error.n) return { error: "exact" };
  const inside = Math.abs(value) > 0 && Math.abs(value) < format.max;
  const sign = error.n > 0n ? "+" : "−";
  return {
    error: sign + withMinus(brief(sizeOf(error))),
    relative: shareText(over(sizeOf(error), sizeOf(exact))),
    ulps: inside ? ulpsText(error, value, format) : "",
  };
}

/** @param {Fraction} share */
function shareText(share) {
  if (compare(share, fraction(10n)) > 0) return ">1000%";
  return `${withMinus(brief(times(share, fraction(100n)), 2))}%`;
}

// --- the whole view ------------------------------------------------------------------------------

// A longer decimal is followed by a shorter approximation.
const LONG_TEXT = 18;

/**
 * Return everything that the widget shows for a number, and the same number in other formats.
 *
 * @param {Explored} state
 * @param {readonly Format[]} others
 * @returns {ExploredView}
 */
export function exploredView(state, others) {
  const { format, code } = state;
  const value = decode(code, format);
  const known = { ...state, value, exact: parse(state.number, format).exact };
  const finite = Number.isFinite(value);
  const text = finite ? exactDecimal(value) : nameOf(value);
  const compared = [format, ...others.filter(({ name }) => name !== format.name)];
  return {
    ...known,
    fields: fieldsOf(code, format),
    valueText: withMinus(text),
    about: finite && text.length > LONG_TEXT ? withMinus(`≈ ${brief(exactly(value))}`) : "",
    formula: formulaOf(code, format),
    facts: factsOf(code, format),
    before: neighbourName(value, format, -1),
    after: neighbourName(value, format, 1),
    sentence: exploredSentence(known),
    rows: compared.map((other) => comparisonRow(known, other)),
  };
}

/**
 * @param {bigint} code
 * @param {Format} format
 * @returns {[name: string, text: string][]}
 */
function factsOf(code, format) {
  const value = decode(code, format);
  const kind = classOf(code, format);
  return [
    ["class", kind === "nan" ? "NaN" : kind],
    ["code", hexCode(code, format)],
    ["binary", fieldBits(code, format).filter(Boolean).join(" ")],
    ["hex-float", hexFloat(value)],
    ["ulp", Number.isFinite(value) ? spaced(exactly(ulpOf(value, format))) : "none"],
  ];
}

/**
 * @param {number} value
 * @param {Format} format
 * @param {number} direction
 */
function neighbourName(value, format, direction) {
  const next = neighbour(value, format, direction);
  return next === null ? null : nameOf(next);
}
