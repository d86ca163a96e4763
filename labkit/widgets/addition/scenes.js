// The stations of a calculation, as rows of bits on paper with a sentence for each.

import { numberText, parse } from "../exact/numbers.js";
import { sheetOf, topOf } from "./sheet.js";
import {
  addText,
  alignText,
  bitAt,
  decideText,
  factsOf,
  hintOf,
  MINUS,
  multiplyText,
  NAMES,
  normaliseText,
  OPERATIONS,
  roundText,
  ruledText,
  signOf,
  writeText,
} from "./words.js";

/** @import { Format } from "../exact/numbers.js" */
/** @import { Name, Operation, Sheet } from "./sheet.js" */

/**
 * What a bit is: kept by the format, a zero that is filled in, beyond the places kept, or beyond
 * those that sticky stands for. A word is no bit.
 *
 * @typedef {"kept" | "zero" | "rest" | "fallen" | "word"} CellKind
 */

/**
 * A bit on the paper.
 *
 * @typedef {object} Cell
 * @property {string} key The same bit has the same key at each station.
 * @property {string} text
 * @property {number} place Its exponent of 2 where the row has that of the paper.
 * @property {CellKind} kind
 */

/**
 * A number on the paper.
 *
 * @typedef {object} Row
 * @property {string} name
 * @property {string} before What stands before it: +, × or =.
 * @property {string} sign
 * @property {Cell[]} cells
 * @property {number | null} point The place before the point.
 * @property {number | null} exponent What the point stands for.
 */

/** @typedef {[first: number, last: number]} Places from left to right */

/**
 * A station.
 *
 * @typedef {object} Scene
 * @property {string} title
 * @property {string} sentence
 * @property {Row[]} rows
 * @property {Places} window Those that the format keeps.
 * @property {number | null} sticky The last place that sticky stands for; null: no guard, round and
 *   sticky are shown.
 * @property {boolean} named Whether the powers of two are.
 */

/**
 * Everything that the paper shows.
 *
 * @typedef {object} Paper
 * @property {Scene[]} scenes
 * @property {(number | null)[]} columns From left to right; null is a gap.
 * @property {[name: string, text: string][]} facts
 * @property {Record<Name, string>} hints What the format holds of a and b.
 * @property {number} places How many the format keeps.
 * @property {string} format Its name.
 */

const MOST_COLUMNS = 58; // more would be too small to read on a narrow page
const STICKY = 3; // guard, round and the first sticky place are 1 to 3 behind the last one kept

/**
 * Places from one down to another.
 *
 * @param {number} from
 * @param {number} to
 */
function range(from, to) {
  return Array.from({ length: Math.max(0, from - to + 1) }, (_, i) => from - i);
}

/**
 * @param {number} first
 * @param {Format} format
 * @returns {Places}
 */
function windowAt(first, format) {
  return [first, first - format.p];
}

/**
 * @param {number} place
 * @param {number} last of the places kept
 */
function keptOrRest(place, last) {
  return place >= last ? "kept" : "rest";
}

// --- rows ----------------------------------------------------------------------------------------

/**
 * a or b with its own exponent, its bits from a column on.
 *
 * @param {Sheet} sheet
 * @param {Name} name
 * @param {number} first
 * @returns {Row & { exponent: number }}
 */
function operandRow({ terms, exponents, format, operation }, name, first) {
  const own = exponents[NAMES.indexOf(name)];
  const cells = range(own, own - format.p).map((place, i) => ({
    key: `${name}${i}`,
    text: bitAt(terms[name], place),
    place: first - i,
    kind: /** @type {const} */ ("kept"),
  }));
  return {
    name,
    before: name === "b" ? OPERATIONS[operation].sign : "",
    sign: terms[name].negative ? MINUS : "",
    cells,
    point: first,
    exponent: own,
  };
}

/**
 * a or b with the exponent of the larger one: zeros in front, behind the sticky bit what fell off.
 *
 * @param {Sheet} sheet
 * @param {Name} name
 * @returns {Row}
 */
function alignedRow(sheet, name) {
  const { home, format } = sheet;
  const row = operandRow(sheet, name, home);
  if (!sheet.terms[name].significand) return { ...row, exponent: home };
  const term = sheet.aligned[name];
  const [, low] = windowAt(home, format);
  const own = new Map(row.cells.map((cell) => [cell.place + row.exponent - home, cell]));
  const highest = Math.max(...own.keys());
  /** @type {Cell[]} */
  const cells = [];
  for (const place of range(home, Math.min(term.exponent, ...own.keys()))) {
    const cell = own.get(place);
    if (place < term.exponent) {
      if (cell) cells.push({ ...cell, place, kind: "fallen" });
      continue;
    }
    const text = bitAt(term, place);
    const filled = !cell && text === "0";
    if (filled && place < highest) continue;
    const kind = filled ? "zero" : keptOrRest(place, low);
    cells.push({ key: cell ? cell.key : `${name}@${place}`, text, place, kind });
  }
  return { ...row, cells, exponent: home };
}

/**
 * The exact result with its point; the window keeps some of its bits.
 *
 * @param {Sheet} sheet
 * @param {number} point
 * @param {Places} window
 * @returns {Row}
 */
function totalRow({ total, operation }, point, [, last]) {
  const top = topOf(total) - 1;
  const places = range(Math.max(point, top), Math.min(total.exponent, last - STICKY));
  const cells = places.map((place) => {
    const filled = place < total.exponent || place > Math.max(top, point);
    /** @type {CellKind} */
    const kind = filled ? "zero" : keptOrRest(place, last);
    return { key: `t@${place}`, text: bitAt(total, place), place, kind };
  });
  return {
    name: OPERATIONS[operation].result,
    before: "=",
    sign: signOf(total),
    cells,
    point,
    exponent: point,
  };
}

/**
 * The one that is added to round up.
 *
 * @param {Sheet} sheet
 * @returns {Row}
 */
function oneRow({ cut }) {
  const place = cut.kept.exponent;
  return {
    name: "",
    before: "+",
    sign: "",
    cells: [{ key: "one", text: "1", place, kind: "kept" }],
    point: null,
    exponent: null,
  };
}

/**
 * @param {Sheet} sheet
 * @param {Places} window
 * @returns {Row}
 */
function resultRow({ final }, [first, last]) {
  const cells = range(first, last).map((place) => ({
    key: `r@${place}`,
    text: bitAt(final.term, place),
    place,
    kind: /** @type {const} */ ("kept"),
  }));
  return {
    name: "result",
    before: "=",
    sign: signOf(final.term),
    cells,
    point: first,
    exponent: first,
  };
}

/**
 * A number that has no bits to add, in a word.
 *
 * @param {string} name
 * @param {number} value
 * @returns {Row}
 */
function wordRow(name, value) {
  return {
    name,
    before: name === "result" ? "=" : "",
    sign: "",
    cells: [{ key: name, text: numberText(value), place: 0, kind: "word" }],
    point: null,
    exponent: null,
  };
}

// --- stations ------------------------------------------------------------------------------------

/**
 * The paper at every station, with its sentence.
 *
 * @param {Sheet} sheet
 * @returns {Scene[]}
 */
function scenesOf(sheet) {
  if (!sheet.finite) return specialScenes(sheet);
  const { home, format, window, final } = sheet;
  const before = windowAt(home, format);
  const kept = windowAt(window, format);
  const last = windowAt(window + Number(final.carried), format);
  const cut = totalRow(sheet, window, kept);
  // Factors need no place of their own.
  const adds = sheet.operation === "add";
  const operands = NAMES.map((name) =>
    adds ? alignedRow(sheet, name) : operandRow(sheet, name, window),
  );
  const rows = [...operands, cut];
  const after = { window: kept, sticky: stickyAt(sheet, kept), named: true };
  const raised = final.up ? [oneRow(sheet)] : [];
  return [
    writtenScene(
      sheet,
      NAMES.map((name) => operandRow(sheet, name, home)),
    ),
    ...(adds ? addedScenes(sheet, operands, before) : [multipliedScene(sheet, before)]),
    { title: "Normalise", sentence: normaliseText(sheet), rows, ...after },
    { title: "Guard, round, sticky", sentence: decideText(sheet), rows, ...after },
    {
      title: "Round",
      sentence: roundText(sheet),
      rows: [...rows, ...raised, resultRow(sheet, last)],
      ...after,
      window: last,
    },
  ];
}

/**
 * Of a calculation with an infinity or a NaN.
 *
 * @param {Sheet} sheet
 * @returns {Scene[]}
 */
function specialScenes(sheet) {
  const rows = NAMES.map((name, i) => wordRow(name, sheet.values[i]));
  const written = writtenScene(sheet, rows);
  const all = [...rows, wordRow("result", sheet.value)];
  return [written, { ...written, title: "Result", sentence: ruledText(sheet), rows: all }];
}

/**
 * a and b as they are written.
 *
 * @param {Sheet} sheet
 * @param {Row[]} rows
 * @returns {Scene}
 */
function writtenScene(sheet, rows) {
  const window = windowAt(sheet.home, sheet.format);
  const sentence = writeText(sheet);
  return { title: "Write", sentence, rows, window, sticky: null, named: false };
}

/**
 * @param {Sheet} sheet
 * @param {Row[]} aligned
 * @param {Places} window
 * @returns {Scene[]}
 */
function addedScenes(sheet, aligned, window) {
  const about = { window, sticky: stickyAt(sheet, window), named: true };
  const total = totalRow(sheet, sheet.home, window);
  return [
    { title: "Align", sentence: alignText(sheet), rows: aligned, ...about },
    { title: "Add", sentence: addText(sheet), rows: [...aligned, total], ...about },
  ];
}

/**
 * @param {Sheet} sheet
 * @param {Places} window
 * @returns {Scene}
 */
function multipliedScene(sheet, window) {
  const factors = NAMES.map((name) => operandRow(sheet, name, sheet.home));
  const rows = [...factors, totalRow(sheet, sheet.home, window)];
  const sentence = multiplyText(sheet);
  return { title: "Multiply", sentence, rows, window, sticky: null, named: true };
}

/**
 * The last place that sticky stands for.
 *
 * @param {Sheet} sheet
 * @param {Places} window
 */
function stickyAt({ operation, aligned, total }, [, last]) {
  const lowest = operation === "add" ? aligned.a.exponent : total.exponent;
  return Math.min(lowest, last - STICKY);
}

// --- the paper -----------------------------------------------------------------------------------

/**
 * The places from left to right that the paper needs; null is a gap, where many only hold filled-in
 * zeros. The last column is cut off where the paper would become too wide to read.
 *
 * @param {Scene[]} scenes
 */
function columnsOf(scenes) {
  const cells = scenes.flatMap(({ rows }) => rows.flatMap((row) => row.cells));
  if (!cells.length) return [];
  const edges = scenes.flatMap(({ window: [first, last] }) => [first, last - STICKY]);
  const places = cells.map(({ place }) => place);
  const all = range(Math.max(...edges, ...places), Math.min(...edges, ...places));
  if (all.length <= MOST_COLUMNS) return all;
  const needed = neededPlaces(scenes, cells);
  /** @type {(number | null)[]} */
  const kept = [];
  for (const place of all) {
    const near = needed.has(place - 1) || needed.has(place) || needed.has(place + 1);
    if (near || !kept.length) kept.push(place);
    else if (kept.at(-1) !== null) kept.push(null);
  }
  return kept.length <= MOST_COLUMNS ? kept : [...kept.slice(0, MOST_COLUMNS - 1), null];
}

/**
 * The places that hold more than filled-in zeros.
 *
 * @param {Scene[]} scenes
 * @param {Cell[]} cells
 */
function neededPlaces(scenes, cells) {
  const needed = new Set(cells.filter(({ kind }) => kind !== "zero").map(({ place }) => place));
  for (const { window } of scenes) {
    const [first, last] = window;
    for (const place of range(first, last - STICKY)) needed.add(place);
  }
  return needed;
}

/**
 * Everything that the paper shows of two texts; throws where one of them is no number.
 *
 * @param {string} a
 * @param {string} b
 * @param {Format} format
 * @param {Operation} operation
 * @returns {Paper}
 */
export function paperOf(a, b, format, operation) {
  const readings = [a, b].map((text) => parse(text, format));
  const sheet = sheetOf(readings, format, operation);
  const scenes = scenesOf(sheet);
  return {
    scenes,
    columns: columnsOf(scenes),
    facts: factsOf(sheet),
    hints: { a: hintOf(readings[0], format), b: hintOf(readings[1], format) },
    places: format.p + 1,
    format: format.name,
  };
}
