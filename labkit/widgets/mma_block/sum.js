// One block of a Tensor Core's sum, as labkit.gemm.explain has it: rows of bits, one column for each power of two, and the
// sentence.

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

const ZERO_EXPONENT = -126; // nothing is aligned to less
const CUT = [8, 14]; // columns behind the edge: at least and at most

const stripped = (bits) => bits.replace(/0+$/, "");

// (whole significand, exponent) with |x| = significand * 2^(exponent - p).
function significandOf(x, format) {
  const size = sizeOf(exactly(x));
  const exponent = Math.max(size.n ? binadeOf(size) : -1, format.emin);
  const { n, d } = times(size, twoTo(format.p - exponent));
  return [n / d, exponent];
}

// A sum c + a[0] * b[0] + ... of one block; `operands` is the format of a and b, `out` that of c and the result.
function blockSum(a, b, c, spec, operands, out) {
  const F = spec.fraction_bits;
  const whole = a.map((x, i) => {
    const [[left, e], [right, f]] = [x, b[i]].map((one) => significandOf(one, operands));
    return { value: x * b[i], significand: left * right, exponent: e + f, bits: 2 * operands.p };
  });
  const [significand, power] = significandOf(c, out);
  whole.push({ value: c, significand, exponent: power, bits: out.p });
  const exponent = Math.max(
    ZERO_EXPONENT,
    ...whole.filter(({ value }) => value).map((term) => term.exponent),
  );
  const terms = whole.map((term) => {
    const places = term.bits + (term.value ? exponent - term.exponent : 0) - F; // behind the unit: these are cut
    const kept =
      places > 0 ? term.significand >> BigInt(places) : term.significand << BigInt(-places);
    const cut =
      places > 0
        ? stripped(bitsText(term.significand & ((1n << BigInt(places)) - 1n), places))
        : "";
    const negative = term.value < 0 || Object.is(term.value, -0);
    return { value: term.value, negative, kept, keptBits: bitsText(kept, F + 2), cut };
  });
  const total = terms.reduce((sum, { negative, kept }) => (negative ? sum - kept : sum + kept), 0n);
  const size = total < 0n ? -total : total;
  const unit = exponent - F;
  const bits = out.name === "FP32" ? spec.result_significand_bits : out.p;
  const resultExponent = Math.max(unit + bitLength(size) - 1, out.emin);
  const places = resultExponent - bits - unit;
  const kept = places > 0 ? size >> BigInt(places) : size << BigInt(-places);
  const rest = places > 0 ? size & ((1n << BigInt(places)) - 1n) : 0n;
  const up = out.name === "FP16" && 2n * rest + (kept & 1n) > 1n << BigInt(Math.max(places, 0));
  const magnitude = Number(kept + BigInt(up)) * 2 ** (resultExponent - bits);
  const result = (total < 0n ? -1 : 1) * (magnitude <= out.max ? magnitude : Infinity);
  return {
    spec,
    out,
    terms,
    exponent,
    unit,
    total,
    size,
    resultExponent,
    kept,
    bits,
    dropped: rest ? stripped(bitsText(rest, places)) : "",
    up,
    result,
  };
}

// Every block of a sum, in order: each takes the last one's result as its C.
export function blocksOf([a, b, c], spec, operands, out) {
  const blocks = [];
  for (let from = 0; from < a.length; from += spec.block_length) {
    const part = [a, b].map((all) => all.slice(from, from + spec.block_length));
    blocks.push(blockSum(...part, blocks.length ? blocks.at(-1).result : c, spec, operands, out));
  }
  return blocks;
}

// --- words ----------------------------------------------------------------------------------------------------------------

// A fraction so that powers of two show, any other with so many digits: 2^-8, 1 + 2^-20, 0.1.
export function shownNumber(x, digits = 8) {
  const size = sizeOf(x);
  if (size.n % size.d === 0n && size.n / size.d < 10n ** 6n) return String(x.n / x.d);
  const k = powerOf(x);
  if (k !== null) return `${x.n < 0n ? "-" : ""}2^${k}`;
  const floor = size.n / size.d;
  const whole =
    (floor +
      BigInt(roundsAway({ n: size.n % size.d, d: size.d }, floor & 1n, false, "NEAREST_EVEN"))) *
    (x.n < 0n ? -1n : 1n);
  const rest = minus(x, fraction(whole));
  const small = whole ? powerOf(rest) : null;
  if (small !== null && small < -4 && (whole < 0n ? -whole : whole) < 10n ** 6n)
    return `${whole} ${rest.n > 0n ? "+" : "-"} 2^${small}`;
  return brief(x, digits);
}

export const shownValue = (x, digits) => shownNumber(exactly(x), digits);
export const exactSum = ([a, b, c]) =>
  a.reduce((sum, x, i) => plus(sum, times(exactly(x), exactly(b[i]))), exactly(c));

function alignedText(blocks, index) {
  const { spec, terms, exponent, unit } = blocks[index];
  const where = blocks.length > 1 ? `, block ${index + 1} of ${blocks.length},` : "";
  const said = `The ${spec.name}${where} aligns ${counted(terms.length - 1, "product")} and C to 2^${exponent} and keeps ${spec.fraction_bits} bits behind the point, down to 2^${unit}`;
  const lost = terms.filter(({ cut }) => cut);
  const gone = lost.filter(({ kept }) => !kept).length;
  if (!lost.length) return `${said}: nothing is cut off.`;
  if (gone === lost.length)
    return `${said}: ${counted(gone, "term")} ${gone === 1 ? "is" : "are"} cut off altogether.`;
  const part = lost.length - gone;
  const most = Math.max(...lost.map(({ cut }) => cut.length));
  return `${said}: ${counted(part, "term")} ${part === 1 ? "loses" : "lose"} up to ${counted(most, "bit")}${gone ? `, and ${gone} all of theirs` : ""}.`;
}

function roundedText({ dropped, out, up }) {
  if (!dropped) return [];
  const bits = counted(dropped.length, "more bit");
  if (out.name === "FP16")
    return [`The sum has ${bits} than FP16 holds and is rounded ${up ? "up" : "down"}.`];
  return [
    `The sum has ${bits} than FP32 holds; ${dropped.length > 1 ? "they are" : "it is"} cut off.`,
  ];
}

// What a block does to its terms, what D is at the end, and which GPUs get something else; `found` is GPU -> its D.
export function blockSentence(blocks, index, exact, found) {
  const { result, out } = blocks.at(-1);
  const when =
    blocks.length === 1
      ? ""
      : `After ${blocks.length === 2 ? "both" : `all ${blocks.length}`} blocks `;
  const error = minus(exactly(result), exact);
  const sum = shownNumber(exact);
  let end = `${when}D = ${shownValue(result)}, ${brief(over(sizeOf(error), exactly(ulpOf(result, out))), 2)} ulp ${error.n < 0n ? "below" : "above"} the exact sum.`;
  if (!error.n) end = `${when}D = ${shownValue(result)}, exactly.`;
  else if (exact.n % exact.d === 0n || sum.includes("^"))
    end = `${when}D = ${shownValue(result)}, where the exact sum is ${sum}.`;
  const elsewhere = new Map();
  for (const [gpu, value] of Object.entries(found))
    if (value !== result) elsewhere.set(value, [...(elsewhere.get(value) ?? []), gpu]);
  const others = [...elsewhere].map(
    ([value, gpus]) => `${listed(gpus)} ${gpus.length === 1 ? "gets" : "get"} ${shownValue(value)}`,
  );
  return [
    alignedText(blocks, index),
    ...roundedText(blocks[index]),
    end,
    others.length ? `${others.join("; ")}.` : "All generations agree.",
  ].join(" ");
}

// --- the sheet --------------------------------------------------------------------------------------------------------------

// Kinds of kept bits: k from the first 1 to the last, z around them.
function keptKinds(bits) {
  const inner = bits.replace(/^0+|0+$/g, "");
  const lead = inner ? bits.indexOf(inner) : 0;
  return ("z".repeat(lead) + "k".repeat(inner.length)).padEnd(bits.length, "z");
}

// The rows of a block and their columns: `edge` columns are kept, the others lie behind the edge.
export function blockSheet(block, first) {
  const {
    terms,
    exponent,
    unit,
    total,
    size,
    resultExponent,
    kept,
    bits,
    dropped,
    up,
    result,
    spec,
  } = block;
  const top = Math.max(exponent + 1, unit + bitLength(size) - 1, resultExponent);
  const low = unit - Math.min(Math.max(CUT[0], ...terms.map(({ cut }) => cut.length)), CUT[1]);
  const columns = top - low + 1;
  const wide = (text) => text.padEnd(columns).slice(0, columns);
  const row = (name, role, value, negative, text, kinds) => ({
    name,
    role,
    value,
    sign: negative ? "−" : "",
    bits: wide(text),
    kinds: wide(kinds),
  });
  const termRow = ({ value, negative, keptBits, cut }, name, role) => {
    const blanks = " ".repeat(top - exponent - 1); // aligned terms have two places before the point
    const shown = cut.length <= unit - low ? cut : `${cut.slice(0, unit - low - 1)}…`;
    return row(
      name,
      role,
      shownValue(value, 5),
      negative && value,
      blanks + keptBits + shown,
      blanks + keptKinds(keptBits) + "c".repeat(shown.length),
    );
  };
  const sumBits = bitsText(size, top - unit + 1);
  const significand = bitsText(kept + BigInt(up), bits + 1);
  const before = top - resultExponent - (significand.length - bits - 1); // a carry comes in front
  const shown = significand.slice(0, Math.max(1, columns - before));
  const blank = " ".repeat(before);
  const sumValue = times(fraction(total), twoTo(unit));
  const products = terms
    .slice(0, -1)
    .map((term, i) => termRow(term, `a${first + i}·b${first + i}`, "product"));
  return {
    rows: [
      termRow(terms.at(-1), "C", "C"),
      ...products,
      row("sum", "sum", shownNumber(sumValue), total < 0n, sumBits, keptKinds(sumBits)),
      row(
        "D",
        "D",
        shownValue(result),
        total < 0n,
        total ? blank + shown + dropped : "",
        total ? blank + "k".repeat(shown.length) + "d".repeat(dropped.length) : "",
      ),
    ],
    columns,
    edge: top - unit + 1,
    lead: top - exponent,
    first: `2^${exponent}`,
    last: `2^${unit}`,
    keeps: `${spec.fraction_bits} bits behind the point`,
  };
}
