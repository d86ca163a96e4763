// The paper of the addition player: one column for each power of two, one line for each number.

import { h, rich } from "../base/elements.js";

/** @import { Paper, Row, Scene } from "./scenes.js" */

/**
 * The columns of a scene, in pixels.
 *
 * @typedef {object} Ruler
 * @property {number} column The width of a column.
 * @property {number} left The x of the first column.
 * @property {(place: number) => boolean} has Return whether a place has a column.
 * @property {(place: number) => number} x Return the x of a place's column.
 * @property {number} gap The index of the column that is a gap; -1 without one.
 * @property {number} sheetEnd The x of the paper's end.
 * @property {number} lowest The last place with a bit.
 * @property {number} end The x behind the last bit.
 */

/**
 * The elements on the paper, which stay from scene to scene.
 *
 * @typedef {object} PaperParts
 * @property {(key: string, kind: string, x: number, y: number, width?: number) => HTMLElement} put
 * @property {(key: string, words: string, kind: string, x: number, y: number, width?: number)
 *   => HTMLElement} text
 * @property {() => void} removeOthers Remove elements that were not put since the last call.
 */

// Lengths in pixels.
const ROW = 30;
// The height of the powers of two, and of the letters G, R, S.
const HEAD = 46;
const WIDEST_COLUMN = 21;
// On pages too narrow for such columns, the paper scrolls.
const NARROWEST_COLUMN = 8;
// Pages of less width have less space on both sides of the columns.
const NARROW_PAGE = 560;
// The space for the names and signs of the rows.
const LEFT = { narrow: 84, wide: 100 };
// The space for the powers of two behind the rows.
const RIGHT = { narrow: 52, wide: 72 };
// The width of a sign with the space behind it.
const SIGN = 18;

/**
 * Return the columns of a scene. Spaces separate the places that the format keeps, guard, round and
 * sticky, and the bits that fell off.
 *
 * @param {Paper} paper
 * @param {Scene} scene
 * @param {number} width
 * @returns {Ruler}
 */
function ruler({ columns }, scene, width) {
  const size = width < NARROW_PAGE ? "narrow" : "wide";
  const left = LEFT[size];
  const room = width - left - RIGHT[size];
  const column = Math.min(WIDEST_COLUMN, Math.max(NARROWEST_COLUMN, room / (columns.length + 1.6)));
  const space = column * 0.8;
  const index = new Map(columns.map((place, i) => [place, i]));
  const [, last] = scene.window;
  const sticky = scene.sticky ?? -Infinity;
  const places = scene.rows.flatMap((row) => row.cells.map(({ place }) => place));
  const written = places.filter((place) => index.has(place));
  const lowest = Math.min(...written);
  /** @param {number} place */
  const x = (place) => {
    let start = left + (index.get(place) ?? NaN) * column;
    if (place < last) start += space;
    if (place < sticky) start += space;
    return start;
  };
  return {
    column,
    left,
    has: (place) => index.has(place),
    x,
    gap: columns.indexOf(null),
    sheetEnd: left + columns.length * column + 2 * space,
    lowest,
    end: written.length ? x(lowest) + column : left,
  };
}

/**
 * Return functions that put elements on the paper, and move those that are already there.
 *
 * @param {HTMLElement} element
 * @returns {PaperParts}
 */
function partsIn(element) {
  /** @type {Map<string, HTMLElement>} */
  const parts = new Map();
  /** @type {Set<string>} the keys of the elements that belong to the scene that is drawn */
  let current = new Set();

  /** @type {PaperParts["put"]} */
  function put(key, kind, x, y, width) {
    const known = parts.get(key);
    const part = known ?? h("span");
    part.className = `ad-part ad-${kind}`;
    if (!known) {
      element.append(part);
      parts.set(key, part);
      part.style.opacity = "0";
    }
    part.style.transform = `translate(${x.toFixed(2)}px, ${y}px)`;
    if (width !== undefined) part.style.width = `${width.toFixed(2)}px`;
    // Reading the layout makes the browser apply the place and opacity of a new element. So it
    // fades in at its place, and does not move there.
    if (!known) part.getBoundingClientRect();
    part.style.opacity = "";
    current.add(key);
    return part;
  }

  return {
    put,
    text(key, words, kind, x, y, width) {
      const part = put(key, kind, x, y, width);
      if (part.dataset.text !== words) part.replaceChildren(rich(words));
      part.dataset.text = words;
      return part;
    },
    removeOthers() {
      for (const [key, part] of parts) {
        if (current.has(key)) continue;
        part.remove();
        parts.delete(key);
      }
      current = new Set();
    },
  };
}

// --- the window ----------------------------------------------------------------------------------

/**
 * Draw the box around the places that the format keeps, its labels, and guard, round and sticky.
 *
 * @param {PaperParts} parts
 * @param {Scene} scene
 * @param {Paper} paper
 * @param {Ruler} columns
 * @param {number} height
 */
function drawWindow(parts, scene, paper, columns, height) {
  const [first, last] = scene.window;
  const x = columns.x(first);
  const width = columns.x(last) + columns.column - x;
  const box = parts.put("window", "window", x - 3, HEAD - 4, width + 6);
  box.style.height = `${height}px`;
  const label = scene.named
    ? `${paper.places} places of ${paper.format}`
    : `${paper.format}: ${paper.places} places`;
  parts.text("keeps", width > 120 ? label : paper.format, "keeps", x, 0, width);
  if (scene.named) {
    parts.text("first", `2^${first}`, "power", x, 21, 40);
    if (width > 66) parts.text("last", `2^${last}`, "power ad-right", x + width - 40, 21, 40);
  }
  if (scene.sticky === null) return;
  drawBox(parts, columns, "G", "guard", last - 1, last - 1, height);
  drawBox(parts, columns, "R", "round", last - 2, last - 2, height);
  drawBox(parts, columns, "S", "sticky", last - 3, scene.sticky, height);
  drawFallen(parts, columns, scene.sticky - 1);
}

/**
 * Draw the box around guard, round or sticky.
 *
 * @param {PaperParts} parts
 * @param {Ruler} columns
 * @param {string} letter
 * @param {string} name
 * @param {number} from
 * @param {number} to
 * @param {number} height
 */
function drawBox(parts, columns, letter, name, from, to, height) {
  if (!columns.has(from)) return;
  const start = columns.x(from);
  // Sticky may end beyond the columns.
  const end = columns.has(to) ? columns.x(to) + columns.column : columns.sheetEnd;
  const width = end - start;
  const box = parts.put(`box ${letter}`, "box", start + 1, HEAD - 4, width - 2);
  box.style.height = `${height}px`;
  parts.text(`name ${letter}`, width > 42 ? name : letter, "letter", start, 21, width);
}

/**
 * Write the label above the bits that fell off, if there is room.
 *
 * @param {PaperParts} parts
 * @param {Ruler} columns
 * @param {number} first the first place of these bits
 */
function drawFallen(parts, columns, first) {
  const room = columns.has(first) && columns.lowest <= first ? columns.end - columns.x(first) : 0;
  if (room <= 100) return;
  const words = room > 190 ? "fell off, remembered in S only" : "fell off";
  parts.text("fell", words, "power", columns.x(first), 21);
}

// --- rows ----------------------------------------------------------------------------------------

/**
 * @param {PaperParts} parts
 * @param {Row} row
 * @param {number} y
 * @param {Ruler} columns
 */
function drawRow(parts, row, y, columns) {
  const { name, before, sign, point, exponent } = row;
  const kind = name === "result" ? "result" : "row";
  const signs = columns.left - SIGN;
  parts.text(`${name}${before} name`, name, `name ad-${kind}`, 0, y, signs - 16);
  parts.text(`${name}${before} before`, before, "sign", signs - 16, y, 16);
  parts.text(`${name} sign`, sign, "sign", signs, y, 16);
  drawCells(parts, row, kind, y, columns);
  const fallen = row.cells.some((cell) => cell.kind === "fallen");
  if (fallen && columns.gap >= 0) {
    const x = columns.left + columns.gap * columns.column + columns.column * 1.6;
    parts.text(`${name} gap`, "⋯", "bit ad-zero", x, y, columns.column);
  }
  if (point !== null && row.cells.length && columns.has(point)) {
    const x = columns.x(point) + columns.column / 2;
    parts.text(`${name} point`, ".", `bit ad-point ad-${kind}`, x, y, columns.column);
  }
  if (exponent !== null) {
    parts.text(`${name} power`, `× 2^${exponent}`, `times ad-${kind}`, columns.end + 8, y, 72);
  }
}

/**
 * @param {PaperParts} parts
 * @param {Row} row
 * @param {string} rowKind
 * @param {number} y
 * @param {Ruler} columns
 */
function drawCells(parts, { cells }, rowKind, y, columns) {
  for (const { key, text, place, kind } of cells) {
    if (kind === "word") {
      parts.text(key, text, "word", columns.left, y);
    } else if (columns.has(place)) {
      const classes = `bit ad-${kind} ad-${rowKind}`;
      const part = parts.text(key, text, classes, columns.x(place), y, columns.column);
      // Bits that fell off are lower and tilted.
      if (kind === "fallen") part.style.transform += " translateY(5px) rotate(12deg)";
    }
  }
}

// --- the paper -----------------------------------------------------------------------------------

// These rows have a line above them.
const RESULT_ROWS = ["sum", "product", "result"];

/** Return the paper, whose bits move when it is drawn at another station. */
export function makePaper() {
  const element = h("div", { class: "ad-paper", "aria-hidden": "true" });
  const parts = partsIn(element);
  return {
    element,
    /**
     * @param {Paper} paper
     * @param {number} step the index of the scene
     * @param {number} width
     * @param {boolean} still whether bits jump to their new places instead of moving
     */
    draw(paper, step, width, still) {
      const scene = paper.scenes[step];
      const columns = ruler(paper, scene, width);
      const most = Math.max(...paper.scenes.map(({ rows }) => rows.length));
      element.classList.toggle("still", still);
      element.dataset.station = scene.title;
      element.style.height = `${HEAD + most * ROW + 12}px`;
      element.style.setProperty(
        "--ad-digit",
        `${Math.min(17, columns.column * 1.36).toFixed(1)}px`,
      );
      element.dataset.format = paper.format;
      const height = scene.rows.length * ROW + 10;
      if (paper.columns.length) drawWindow(parts, scene, paper, columns, height);
      for (const [i, row] of scene.rows.entries()) {
        const y = HEAD + i * ROW;
        if (RESULT_ROWS.includes(row.name)) {
          parts.put(
            `rule ${row.name}`,
            "rule",
            columns.left - 20,
            y,
            columns.end - columns.left + 22,
          );
        }
        drawRow(parts, row, y, columns);
      }
      parts.removeOthers();
    },
  };
}
