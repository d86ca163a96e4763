// One block of a Tensor Core's sum, as labkit.gemm.explain has it: rows of bits, one column for
// each power of two, and the sentence.

import {
  binadeOf,
  bitLength,
  bitsText,
  brief,
  counted,
  exactly,
  fraction,
  listed,
  minus,
  over,
  plus,
  powerOf,
  roundsAway,
  sizeOf,
  times,
  twoTo,
  ulpOf,
} from "../exact/numbers.js";

/** @import { Format, Fraction } from "../exact/numbers.js" */

/**
 * How a Tensor Core adds up.
 *
 * @typedef {object} Spec
 * @property {string} name Of the GPU.
 * @property {number} block_length How many products are added at once.
 * @property {number} fraction_bits What is kept behind the point.
 * @property {number} result_significand_bits Of an FP32 result.
 */

/** @typedef {[a: number[], b: number[], c: number]} Terms of a sum c + a[0] * b[0] + ... */

/**
 * A product, or C: |value| = significand * 2^(exponent - bits).
 *
 * @typedef {object} WholeTerm
 * @property {number} value
 * @property {bigint} significand
 * @property {number} exponent
 * @property {number} bits Behind the point of the significand.
 */

/** @typedef {ReturnType<typeof aligned>} Term an aligned one */
/** @typedef {ReturnType<typeof blockSum>} Block */

const ZERO_EXPONENT = -126; // nothing is aligned to less

/** @param {string} bits */
function stripped(bits) {
  return bits.replace(/0+$/, "");
}

/**
 * The whole significand and the exponent of |x| = significand * 2^(exponent - p).
 *
 * @param {number} x
 * @param {Format} format
 */
function significandOf(x, format) {
  const size = sizeOf(exactly(x));
  const exponent = Math.max(size.n ? binadeOf(size) : -1, format.emin);
  const { n, d } = times(size, twoTo(format.p - exponent));
  return { significand: n / d, exponent };
}

/**
 * The last places of a whole number, cut off.
 *
 * @param {bigint} whole
 * @param {number} places below 0: as many are filled in
 */
function cutOff(whole, places) {
  if (places <= 0) return { kept: whole << BigInt(-places), rest: 0n };
  const mask = (1n << BigInt(places)) - 1n;
  return { kept: whole >> BigInt(places), rest: whole & mask };
}

// --- a block -------------------------------------------------------------------------------------

/**
 * The products of a block, and C at the end.
 *
 * @param {Terms} terms
 * @param {Format} operands
 * @param {Format} out
 * @returns {WholeTerm[]}
 */
function wholeTerms([a, b, c], operands, out) {
  const products = a.map((x, i) => {
    const left = significandOf(x, operands);
    const right = significandOf(b[i], operands);
    return {
      value: x * b[i],
      significand: left.significand * right.significand,
      exponent: left.exponent + right.exponent,
      bits: 2 * operands.p,
    };
  });
  return [...products, { value: c, ...significandOf(c, out), bits: out.p }];
}

/**
 * A term without the bits that lie behind the unit.
 *
 * @param {WholeTerm} term
 * @param {number} exponent what it is aligned to
 * @param {number} fractionBits
 */
function aligned({ value, significand, exponent: own, bits }, exponent, fractionBits) {
  const places = bits + (value ? exponent - own : 0) - fractionBits;
  const { kept, rest } = cutOff(significand, places);
  return {
    value,
    negative: value < 0 || Object.is(value, -0),
    kept,
    keptBits: bitsText(kept, fractionBits + 2),
    cut: places > 0 ? stripped(bitsText(rest, places)) : "",
  };
}

/**
 * A sum c + a[0] * b[0] + ... of one block.
 *
 * @param {Terms} numbers
 * @param {Spec} spec
 * @param {Format} operands the format of a and b
 * @param {Format} out that of c and the result
 */
function blockSum(numbers, spec, operands, out) {
  const whole = wholeTerms(numbers, operands, out);
  const present = whole.filter(({ value }) => value);
  const exponent = Math.max(ZERO_EXPONENT, ...present.map((term) => term.exponent));
  const terms = whole.map((term) => aligned(term, exponent, spec.fraction_bits));
  const total = terms.reduce((sum, { negative, kept }) => (negative ? sum - kept : sum + kept), 0n);
  const unit = exponent - spec.fraction_bits;
  return { spec, out, terms, exponent, unit, total, ...roundedTotal(total, unit, spec, out) };
}

/**
 * A total of units as a number of a format: FP16 rounds to the nearest, FP32 cuts off.
 *
 * @param {bigint} total
 * @param {number} unit the exponent of a unit
 * @param {Spec} spec
 * @param {Format} out
 */
function roundedTotal(total, unit, spec, out) {
  const size = total < 0n ? -total : total;
  const bits = out.name === "FP32" ? spec.result_significand_bits : out.p;
  const resultExponent = Math.max(unit + bitLength(size) - 1, out.emin);
  const places = resultExponent - bits - unit;
  const { kept, rest } = cutOff(size, places);
  const half = 1n << BigInt(Math.max(places, 0));
  const up = out.name === "FP16" && 2n * rest + (kept & 1n) > half;
  const magnitude = Number(kept + BigInt(up)) * 2 ** (resultExponent - bits);
  const result = (total < 0n ? -1 : 1) * (magnitude <= out.max ? magnitude : Infinity);
  const dropped = rest ? stripped(bitsText(rest, places)) : "";
  return { size, resultExponent, kept, bits, dropped, up, result };
}

/**
 * Every block of a sum, in order: each takes the last one's result as its C.
 *
 * @param {Terms} terms
 * @param {Spec} spec
 * @param {Format} operands
 * @param {Format} out
 */
export function blocksOf([a, b, c], spec, operands, out) {
  /** @type {Block[]} */
  const blocks = [];
  let sum = c;
  for (let from = 0; from < a.length; from += spec.block_length) {
    const end = from + spec.block_length;
    const block = blockSum([a.slice(from, end), b.slice(from, end), sum], spec, operands, out);
    blocks.push(block);
    sum = block.result;
  }
  return blocks;
}

// --- words ---------------------------------------------------------------------------------------

const MOST_WHOLE = 10n ** 6n; // larger whole numbers are written with fewer digits

/**
 * A fraction so that powers of two show, any other with so many digits: 2^-8, 1 + 2^-20, 0.1.
 *
 * @param {Fraction} x
 * @param {number} [digits]
 */
export function shownNumber(x, digits = 8) {
  const size = sizeOf(x);
  if (size.n % size.d === 0n && size.n / size.d < MOST_WHOLE) return String(x.n / x.d);
  const k = powerOf(x);
  if (k !== null) return `${x.n < 0n ? "-" : ""}2^${k}`;
  return besideWhole(x) ?? brief(x, digits);
}

/**
 * A fraction as a whole number and a power of two beside it; null where it is none.
 *
 * @param {Fraction} x
 */
function besideWhole(x) {
  const size = sizeOf(x);
  const floor = size.n / size.d;
  const beyond = { n: size.n % size.d, d: size.d };
  const away = roundsAway(beyond, (floor & 1n) === 1n, false, "NEAREST_EVEN");
  const nearest = floor + BigInt(away);
  if (!nearest || nearest >= MOST_WHOLE) return null;
  const whole = x.n < 0n ? -nearest : nearest;
  const rest = minus(x, fraction(whole));
  const k = powerOf(rest);
  if (k === null || k >= -4) return null;
  return `${whole} ${rest.n > 0n ? "+" : "-"} 2^${k}`;
}

/**
 * @param {number} x
 * @param {number} [digits]
 */
export function shownValue(x, digits) {
  return shownNumber(exactly(x), digits);
}

/** @param {Terms} terms */
export function exactSum([a, b, c]) {
  return a.reduce((sum, x, i) => plus(sum, times(exactly(x), exactly(b[i]))), exactly(c));
}

/**
 * What alignment cuts off.
 *
 * @param {readonly Block[]} blocks
 * @param {number} index
 */
function alignedText(blocks, index) {
  const { spec, terms, exponent, unit } = blocks[index];
  const where = blocks.length > 1 ? `, block ${index + 1} of ${blocks.length},` : "";
  const products = counted(terms.length - 1, "product");
  const said =
    `The ${spec.name}${where} aligns ${products} and C to 2^${exponent} ` +
    `and keeps ${spec.fraction_bits} bits behind the point, down to 2^${unit}`;
  return `${said}: ${lossText(terms.filter(({ cut }) => cut))}.`;
}

/** @param {readonly Term[]} lost */
function lossText(lost) {
  const gone = lost.filter(({ kept }) => !kept).length;
  const part = lost.length - gone;
  if (!lost.length) return "nothing is cut off";
  if (!part) return `${counted(gone, "term")} ${gone === 1 ? "is" : "are"} cut off altogether`;
  const most = counted(Math.max(...lost.map(({ cut }) => cut.length)), "bit");
  const others = gone ? `, and ${gone} all of theirs` : "";
  return `${counted(part, "term")} ${part === 1 ? "loses" : "lose"} up to ${most}${others}`;
}

/**
 * What rounding drops; "" where that is nothing.
 *
 * @param {Block} block
 */
function roundedText({ dropped, out, up }) {
  if (!dropped) return "";
  const bits = counted(dropped.length, "more bit");
  if (out.name === "FP16") {
    return `The sum has ${bits} than FP16 holds and is rounded ${up ? "up" : "down"}.`;
  }
  const they = dropped.length > 1 ? "they are" : "it is";
  return `The sum has ${bits} than FP32 holds; ${they} cut off.`;
}

/**
 * What D is at the end.
 *
 * @param {readonly Block[]} blocks
 * @param {Fraction} exact
 */
function resultText(blocks, exact) {
  const { result, out } = blocks[blocks.length - 1];
  const all = blocks.length === 2 ? "both" : `all ${blocks.length}`;
  const when = blocks.length === 1 ? "" : `After ${all} blocks `;
  const said = `${when}D = ${shownValue(result)},`;
  const error = minus(exactly(result), exact);
  const sum = shownNumber(exact);
  if (!error.n) return `${said} exactly.`;
  if (exact.n % exact.d === 0n || sum.includes("^"))
    return `${said} where the exact sum is ${sum}.`;
  const ulps = brief(over(sizeOf(error), exactly(ulpOf(result, out))), 2);
  return `${said} ${ulps} ulp ${error.n < 0n ? "below" : "above"} the exact sum.`;
}

/**
 * Which GPUs get something else.
 *
 * @param {Record<string, number>} found GPU -> its D
 * @param {number} result
 */
function othersText(found, result) {
  /** @type {Map<number, string[]>} */
  const elsewhere = new Map();
  for (const [gpu, value] of Object.entries(found)) {
    if (value !== result) elsewhere.set(value, [...(elsewhere.get(value) ?? []), gpu]);
  }
  if (!elsewhere.size) return "All generations agree.";
  const others = [...elsewhere].map(([value, gpus]) => {
    const get = gpus.length === 1 ? "gets" : "get";
    return `${listed(gpus)} ${get} ${shownValue(value)}`;
  });
  return `${others.join("; ")}.`;
}

/**
 * What a block does to its terms, what D is at the end, and which GPUs get something else.
 *
 * @param {readonly Block[]} blocks
 * @param {number} index
 * @param {Fraction} exact
 * @param {Record<string, number>} found GPU -> its D
 */
export function blockSentence(blocks, index, exact, found) {
  const { result } = blocks[blocks.length - 1];
  const sentences = [
    alignedText(blocks, index),
    roundedText(blocks[index]),
    resultText(blocks, exact),
    othersText(found, result),
  ];
  return sentences.filter(Boolean).join(" ");
}

// --- the sheet -----------------------------------------------------------------------------------

const LEAST_CUT = 8; // columns behind the edge
const MOST_CUT = 14;

/**
 * A row of a sheet: bits and their kinds, a letter for each column; `kinds` has z and k for kept
 * bits, c for cut ones, d for dropped ones.
 *
 * @typedef {object} SheetRow
 * @property {string} name
 * @property {string} role
 * @property {string} value
 * @property {string} sign
 * @property {string} bits
 * @property {string} kinds
 */

/**
 * Which columns a sheet has.
 *
 * @typedef {object} Columns
 * @property {number} top The exponent of the first.
 * @property {number} low That of the last.
 */

/**
 * Kinds of kept bits: k from the first 1 to the last, z around them.
 *
 * @param {string} bits
 */
function keptKinds(bits) {
  const inner = bits.replace(/^0+|0+$/g, "");
  const lead = inner ? bits.indexOf(inner) : 0;
  return ("z".repeat(lead) + "k".repeat(inner.length)).padEnd(bits.length, "z");
}

/**
 * @param {Block} block
 * @returns {Columns}
 */
function columnsOf({ terms, exponent, unit, size, resultExponent }) {
  const top = Math.max(exponent + 1, unit + bitLength(size) - 1, resultExponent);
  const cut = Math.max(LEAST_CUT, ...terms.map((term) => term.cut.length));
  return { top, low: unit - Math.min(cut, MOST_CUT) };
}

/**
 * @param {Block} block
 * @param {Columns} columns
 * @param {Term} term
 * @param {string} name
 * @param {string} role
 * @returns {SheetRow}
 */
function termRow({ exponent, unit }, { top, low }, term, name, role) {
  const blanks = " ".repeat(top - exponent - 1); // aligned terms have two places before the point
  const room = unit - low;
  const shown = term.cut.length <= room ? term.cut : `${term.cut.slice(0, room - 1)}…`;
  return {
    name,
    role,
    value: shownValue(term.value, 5),
    sign: term.negative && term.value ? "−" : "",
    bits: blanks + term.keptBits + shown,
    kinds: blanks + keptKinds(term.keptBits) + "c".repeat(shown.length),
  };
}

/**
 * @param {Block} block
 * @param {Columns} columns
 * @returns {SheetRow}
 */
function sumRow({ total, size, unit }, { top }) {
  const bits = bitsText(size, top - unit + 1);
  return {
    name: "sum",
    role: "sum",
    value: shownNumber(times(fraction(total), twoTo(unit))),
    sign: total < 0n ? "−" : "",
    bits,
    kinds: keptKinds(bits),
  };
}

/**
 * @param {Block} block
 * @param {Columns} columns
 * @returns {SheetRow}
 */
function resultRow({ total, resultExponent, kept, bits, dropped, up, result }, { top, low }) {
  const significand = bitsText(kept + BigInt(up), bits + 1);
  const before = top - resultExponent - (significand.length - bits - 1); // a carry comes in front
  const shown = significand.slice(0, Math.max(1, top - low + 1 - before));
  const blank = " ".repeat(before);
  const kinds = blank + "k".repeat(shown.length) + "d".repeat(dropped.length);
  return {
    name: "D",
    role: "D",
    value: shownValue(result),
    sign: total < 0n ? "−" : "",
    bits: total ? blank + shown + dropped : "",
    kinds: total ? kinds : "",
  };
}

/**
 * The rows of a block and their columns: `edge` columns are kept, the others lie behind the edge.
 *
 * @param {Block} block
 * @param {number} first the number of its first product
 */
export function blockSheet(block, first) {
  const { terms, exponent, unit, spec } = block;
  const ends = columnsOf(block);
  const columns = ends.top - ends.low + 1;
  const products = terms.slice(0, -1).map((term, i) => {
    const name = `a${first + i}·b${first + i}`;
    return termRow(block, ends, term, name, "product");
  });
  const rows = [
    termRow(block, ends, terms[terms.length - 1], "C", "C"),
    ...products,
    sumRow(block, ends),
    resultRow(block, ends),
  ];
  /** @param {string} text */
  const wide = (text) => text.padEnd(columns).slice(0, columns);
  return {
    rows: rows.map((row) => ({ ...row, bits: wide(row.bits), kinds: wide(row.kinds) })),
    columns,
    edge: ends.top - unit + 1,
    lead: ends.top - exponent,
    first: `2^${exponent}`,
    last: `2^${unit}`,
    keeps: `${spec.fraction_bits} bits behind the point`,
  };
}
