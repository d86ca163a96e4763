// One block of a Tensor Core's sum, as in labkit.gemm.explain: its arithmetic, its sentence, and
// its sheet of bits with one column for each power of two.

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
 * The arithmetic of a GPU's Tensor Cores.
 *
 * @typedef {object} Spec
 * @property {string} name The name of the GPU.
 * @property {number} block_length The number of products that are added at once.
 * @property {number} fraction_bits The bits behind the point that aligned terms keep.
 * @property {number} result_significand_bits The stored significand bits of an FP32 result.
 */

/** @typedef {[a: number[], b: number[], c: number]} Terms the sum c + a[0] * b[0] + ... */

/**
 * A product, or C: |value| = significand * 2^(exponent - bits).
 *
 * @typedef {object} WholeTerm
 * @property {number} value
 * @property {bigint} significand
 * @property {number} exponent
 * @property {number} bits The bits behind the point of the significand.
 */

/** @typedef {ReturnType<typeof aligned>} Term an aligned term */
/** @typedef {ReturnType<typeof blockSum>} Block */

// Terms are never aligned to a smaller exponent: the smallest normal one of FP32.
const LEAST_EXPONENT = -126;

/** @param {string} bits */
function withoutTrailingZeros(bits) {
  return bits.replace(/0+$/, "");
}

/**
 * Return the whole significand and the exponent of |x| = significand * 2^(exponent - p).
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
 * Cut the last binary places off a whole number.
 *
 * @param {bigint} whole
 * @param {number} places if negative, so many zeros are appended instead
 */
function cutOff(whole, places) {
  if (places <= 0) return { kept: whole << BigInt(-places), rest: 0n };
  const mask = (1n << BigInt(places)) - 1n;
  return { kept: whole >> BigInt(places), rest: whole & mask };
}

// --- a block -------------------------------------------------------------------------------------

/**
 * Return the products of a block, and C as the last term.
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
 * Align a term to an exponent, and cut off the bits that lie behind its last place.
 *
 * @param {WholeTerm} term
 * @param {number} exponent
 * @param {number} fractionBits
 */
function aligned(term, exponent, fractionBits) {
  const { value, significand, bits } = term;
  // The exponent of a zero means nothing.
  const shift = value ? exponent - term.exponent : 0;
  const places = bits + shift - fractionBits;
  const { kept, rest } = cutOff(significand, places);
  return {
    value,
    negative: value < 0 || Object.is(value, -0),
    kept,
    // A product of two significands below 2 has two places before the point.
    keptBits: bitsText(kept, fractionBits + 2),
    cut: places > 0 ? withoutTrailingZeros(bitsText(rest, places)) : "",
  };
}

/**
 * Return the sum c + a[0] * b[0] + ... of one block, with its aligned terms.
 *
 * @param {Terms} numbers
 * @param {Spec} spec
 * @param {Format} operands the format of a and b
 * @param {Format} out that of c and the result
 */
function blockSum(numbers, spec, operands, out) {
  const whole = wholeTerms(numbers, operands, out);
  const present = whole.filter(({ value }) => value);
  const exponent = Math.max(LEAST_EXPONENT, ...present.map((term) => term.exponent));
  const terms = whole.map((term) => aligned(term, exponent, spec.fraction_bits));
  const total = terms.reduce((sum, { negative, kept }) => (negative ? sum - kept : sum + kept), 0n);
  const unit = exponent - spec.fraction_bits;
  return { spec, out, terms, exponent, unit, total, ...roundedTotal(total, unit, spec, out) };
}

/**
 * Return a total of units as a number of a format: FP16 rounds to nearest even, FP32 cuts off.
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
  // Half to even: the 1 added for an odd number decides ties.
  const lastPlace = 1n << BigInt(Math.max(places, 0));
  const up = out.name === "FP16" && 2n * rest + (kept & 1n) > lastPlace;
  const magnitude = Number(kept + BigInt(up)) * 2 ** (resultExponent - bits);
  const result = (total < 0n ? -1 : 1) * (magnitude <= out.max ? magnitude : Infinity);
  const dropped = rest ? withoutTrailingZeros(bitsText(rest, places)) : "";
  return { size, resultExponent, kept, bits, dropped, up, result };
}

/**
 * Return the blocks of a sum in order. The result of each block is the C of the next one.
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
  for (let start = 0; start < a.length; start += spec.block_length) {
    const end = start + spec.block_length;
    const block = blockSum([a.slice(start, end), b.slice(start, end), sum], spec, operands, out);
    blocks.push(block);
    sum = block.result;
  }
  return blocks;
}

// --- words ---------------------------------------------------------------------------------------

// Larger whole numbers are written with fewer digits.
const MOST_WHOLE = 10n ** 6n;
// 1 + 2^-4 and coarser numbers are short in decimal.
const LEAST_SHORT_POWER = -4;

/**
 * Return a fraction as text in which powers of two show, else with some digits: 2^-8, 1 + 2^-20,
 * 0.1.
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
 * Return a fraction as a whole number plus or minus a power of two; null if it is not such a sum.
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
  if (k === null || k >= LEAST_SHORT_POWER) return null;
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
 * Return the sentence about what alignment cuts off.
 *
 * @param {readonly Block[]} blocks
 * @param {number} index
 */
function alignedText(blocks, index) {
  const { spec, terms, exponent, unit } = blocks[index];
  const where = blocks.length > 1 ? `, block ${index + 1} of ${blocks.length},` : "";
  const products = counted(terms.length - 1, "product");
  const alignment =
    `The ${spec.name}${where} aligns ${products} and C to 2^${exponent} ` +
    `and keeps ${spec.fraction_bits} bits behind the point, down to 2^${unit}`;
  return `${alignment}: ${lossText(terms.filter(({ cut }) => cut))}.`;
}

/** @param {readonly Term[]} cutTerms */
function lossText(cutTerms) {
  if (!cutTerms.length) return "nothing is cut off";
  const gone = cutTerms.filter(({ kept }) => !kept).length;
  const shortened = cutTerms.length - gone;
  if (!shortened) {
    const are = gone === 1 ? "is" : "are";
    return `${counted(gone, "term")} ${are} cut off altogether`;
  }
  const lose = shortened === 1 ? "loses" : "lose";
  const most = counted(Math.max(...cutTerms.map(({ cut }) => cut.length)), "bit");
  const others = gone ? `, and ${gone} all of theirs` : "";
  return `${counted(shortened, "term")} ${lose} up to ${most}${others}`;
}

/**
 * Return the sentence about what rounding drops; "" if it drops nothing.
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
 * Return the sentence about the result D.
 *
 * @param {readonly Block[]} blocks
 * @param {Fraction} exact
 */
function resultText(blocks, exact) {
  const { result, out } = blocks[blocks.length - 1];
  const all = blocks.length === 2 ? "both" : `all ${blocks.length}`;
  const when = blocks.length === 1 ? "" : `After ${all} blocks `;
  const begin = `${when}D = ${shownValue(result)},`;
  const error = minus(exactly(result), exact);
  const sum = shownNumber(exact);
  if (!error.n) return `${begin} exactly.`;
  if (exact.n % exact.d === 0n || sum.includes("^")) {
    return `${begin} where the exact sum is ${sum}.`;
  }
  const ulps = brief(over(sizeOf(error), exactly(ulpOf(result, out))), 2);
  const side = error.n < 0n ? "below" : "above";
  return `${begin} ${ulps} ulp ${side} the exact sum.`;
}

/**
 * Return the sentence about the GPUs with another result.
 *
 * @param {Record<string, number>} results GPU -> its D
 * @param {number} result
 */
function othersText(results, result) {
  /** @type {Map<number, string[]>} */
  const gpusByResult = new Map();
  for (const [gpu, value] of Object.entries(results)) {
    if (value === result) continue;
    const gpus = gpusByResult.get(value) ?? [];
    gpusByResult.set(value, [...gpus, gpu]);
  }
  if (!gpusByResult.size) return "All generations agree.";
  const others = [...gpusByResult].map(([value, gpus]) => {
    const get = gpus.length === 1 ? "gets" : "get";
    return `${listed(gpus)} ${get} ${shownValue(value)}`;
  });
  return `${others.join("; ")}.`;
}

/**
 * Return the sentences about what a block does to its terms, the result D, and GPUs with another D.
 *
 * @param {readonly Block[]} blocks
 * @param {number} index
 * @param {Fraction} exact
 * @param {Record<string, number>} results GPU -> its D
 */
export function blockSentence(blocks, index, exact, results) {
  const { result } = blocks[blocks.length - 1];
  const sentences = [
    alignedText(blocks, index),
    roundedText(blocks[index]),
    resultText(blocks, exact),
    othersText(results, result),
  ];
  return sentences.filter(Boolean).join(" ");
}

// --- the sheet -----------------------------------------------------------------------------------

// The number of columns behind the edge.
const LEAST_CUT = 8;
const MOST_CUT = 14;

/**
 * A row of a sheet, with a bit and a letter for its kind in each column: k is a kept bit, z a zero
 * before or behind the kept bits, c a bit that alignment cuts, d one that rounding drops.
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
 * The columns of a sheet.
 *
 * @typedef {object} Columns
 * @property {number} top The exponent of the first column.
 * @property {number} low The exponent of the last column.
 */

/**
 * Return the kinds of kept bits: k from the first 1 to the last, z around them.
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
 * Return the row of an aligned term.
 *
 * @param {Block} block
 * @param {Columns} columns
 * @param {Term} term
 * @param {string} name
 * @param {string} role
 * @returns {SheetRow}
 */
function termRow({ exponent, unit }, { top, low }, term, name, role) {
  // Aligned terms have two places before the point.
  const blanks = " ".repeat(top - exponent - 1);
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
 * Return the row of the sum of all terms.
 *
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
 * Return the row of the rounded result, with the bits that rounding drops.
 *
 * @param {Block} block
 * @param {Columns} columns
 * @returns {SheetRow}
 */
function resultRow({ total, resultExponent, kept, bits, dropped, up, result }, { top, low }) {
  const significand = bitsText(kept + BigInt(up), bits + 1);
  // Rounding up may have carried into one more place.
  const carryPlaces = significand.length - bits - 1;
  const before = top - resultExponent - carryPlaces;
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
 * Return the rows of a block and their columns. The first `edge` columns are kept by alignment, the
 * others are cut.
 *
 * @param {Block} block
 * @param {number} first the index of its first product in the whole sum
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
