// The stages of an addition or multiplication: rows of bits on paper, and a sentence for each
// stage.

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
 * The kind of a cell: a bit that the format keeps, a zero that is filled in, a bit behind the
 * places kept, a bit that sticky summarises, or a word instead of bits.
 *
 * @typedef {"kept" | "zero" | "rest" | "fallen" | "word"} CellKind
 */

/**
 * A bit on the paper.
 *
 * @typedef {object} Cell
 * @property {string} key The same bit has the same key in each scene.
 * @property {string} text
 * @property {number} place The column: the exponent of 2 in rows that are aligned to the paper.
 * @property {CellKind} kind
 */

/**
 * A number on the paper.
 *
 * @typedef {object} Row
 * @property {string} name
 * @property {string} before The symbol before the number: +, × or =.
 * @property {string} sign
 * @property {Cell[]} cells
 * @property {number | null} point The place before the point.
 * @property {number | null} exponent The exponent of the place before the point.
 */

/** @typedef {[first: number, last: number]} Places from left to right */

/**
 * A stage of the calculation.
 *
 * @typedef {object} Scene
 * @property {string} title
 * @property {string} sentence
 * @property {Row[]} rows
 * @property {Places} window The places that the format keeps.
 * @property {number | null} sticky The last place that sticky summarises; null hides guard, round
 *   and sticky.
 * @property {boolean} named Whether the columns are labelled with their powers of two.
 */

/**
 * Everything that the paper shows.
 *
 * @typedef {object} Paper
 * @property {Scene[]} scenes
 * @property {(number | null)[]} columns The columns from left to right; null is a gap.
 * @property {[name: string, text: string][]} facts
 * @property {Record<Name, string>} hints What the format holds of a and b.
 * @property {number} places The number of places that the format keeps.
 * @property {string} format The name of the format.
 */

// More columns would be too small to read on a narrow page.
const MOST_COLUMNS = 58;
// Guard, round and the first sticky place are the places 1 to 3 behind the last one kept.
const STICKY = 3;

/**
 * Return the places from one down to another.
 *
 * @param {number} from
 * @param {number} to
 */
function range(from, to) {
  return Array.from({ length: Math.max(0, from - to + 1) }, (_, i) => from - i);
}

/**
 * Return the places that a format keeps from a first one on.
 *
 * @param {number} first
 * @param {Format} format
 * @returns {Places}
 */
function windowAt(first, format) {
  return [first, first - format.p];
}

/**
 * @param {number} place
 * @param {number} last the last place kept
 */
function keptOrRest(place, last) {
  return place >= last ? "kept" : "rest";
}

// --- rows ----------------------------------------------------------------------------------------

/**
 * Return the row of a or b with its own exponent.
 *
 * @param {Sheet} sheet
 * @param {Name} name
 * @param {number} first the column of its first bit
 * @returns {Row & { exponent: number }}
 */
function operandRow({ terms, exponents, format, operation }, name, first) {
  const exponent = exponents[NAMES.indexOf(name)];
  const cells = range(exponent, exponent - format.p).map((place, i) => ({
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
    exponent,
  };
}

/**
 * Return the row of a or b, aligned to the larger exponent: with zeros in front, and behind the
 * sticky bit the bits that it summarises.
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
  // The operand's own bits by their places after the shift.
  const shifted = new Map(row.cells.map((cell) => [cell.place + row.exponent - home, cell]));
  const highest = Math.max(...shifted.keys());
  /** @type {Cell[]} */
  const cells = [];
  for (const place of range(home, Math.min(term.exponent, ...shifted.keys()))) {
    const cell = shifted.get(place);
    // The aligned term ends here: its last place is the sticky bit.
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
 * Return the row of the exact result, whose bits inside the window are kept.
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
    const isOutside = place < total.exponent || place > Math.max(top, point);
    // A product far below the format's least number has zeros between the window and its first 1.
    const isBetween = place < last - STICKY && place > top;
    const filled = isOutside || isBetween;
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
 * Return the row of the 1 that is added to round up.
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
 * Return the row of the rounded result.
 *
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
 * Return the row of a number without bits to add, such as infinity, as a word.
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

// --- scenes --------------------------------------------------------------------------------------

/**
 * Return the paper at every stage, with its sentence.
 *
 * @param {Sheet} sheet
 * @returns {Scene[]}
 */
function scenesOf(sheet) {
  if (!sheet.finite) return specialScenes(sheet);
  const { home, format, window, final } = sheet;
  const homeWindow = windowAt(home, format);
  const normalised = windowAt(window, format);
  const rounded = windowAt(window + Number(final.carried), format);

  const written = NAMES.map((name) => operandRow(sheet, name, home));
  const scenes = [writtenScene(sheet, written)];
  /** @type {Row[]} */
  let operands;
  if (sheet.operation === "add") {
    operands = NAMES.map((name) => alignedRow(sheet, name));
    scenes.push(...addedScenes(sheet, operands, homeWindow));
  } else {
    // Factors need no alignment: they move with the window.
    operands = NAMES.map((name) => operandRow(sheet, name, window));
    scenes.push(multipliedScene(sheet, homeWindow));
  }

  const rows = [...operands, totalRow(sheet, window, normalised)];
  const about = { window: normalised, sticky: stickyAt(sheet, normalised), named: true };
  scenes.push(
    { title: "Normalise", sentence: normaliseText(sheet), rows, ...about },
    { title: "Guard, round, sticky", sentence: decideText(sheet), rows, ...about },
  );
  const roundedRows = [...rows];
  if (final.up) roundedRows.push(oneRow(sheet));
  roundedRows.push(resultRow(sheet, rounded));
  scenes.push({
    title: "Round",
    sentence: roundText(sheet),
    rows: roundedRows,
    ...about,
    window: rounded,
  });
  return scenes;
}

/**
 * Return the scenes of a calculation with an infinity or a NaN.
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
 * Return the scene with a and b as they are written.
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
 * Return the scenes that align and add a and b.
 *
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
 * Return the scene that multiplies a and b.
 *
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
 * Return the last place that sticky summarises.
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
 * Return the columns of the paper from left to right. A gap (null) replaces places that hold only
 * filled-in zeros. Columns on the right are cut off if the paper were too wide to read, but none
 * that the format keeps in one of the scenes.
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
    if (near || !kept.length) {
      kept.push(place);
    } else if (kept.at(-1) !== null) {
      kept.push(null);
    }
  }
  const lowestKept = Math.min(...scenes.map(({ window: [, last] }) => last));
  const most = Math.max(MOST_COLUMNS, kept.indexOf(lowestKept) + 2);
  return kept.length <= most ? kept : [...kept.slice(0, most - 1), null];
}

/**
 * Return the places that hold more than filled-in zeros.
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
 * Return everything that the paper shows for two texts. Throw if one of them is not a number.
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
