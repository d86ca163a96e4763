// The paper of the addition player: one column for each power of two, one line for each number.

import { h, rich } from "../base/elements.js";

/** @import { Paper, Row, Scene } from "./scenes.js" */

/**
 * Where columns stand in a scene, in pixels.
 *
 * @typedef {object} Ruler
 * @property {number} column The width of a column.
 * @property {number} left Where the first begins.
 * @property {(place: number) => boolean} has Whether a place has a column.
 * @property {(place: number) => number} x Where it begins.
 * @property {number} gap The index of the column that is a gap; -1 without one.
 * @property {number} sheetEnd The end of the paper.
 * @property {number} lowest The last place that is written.
 * @property {number} end The end of what is written.
 */

/**
 * The elements on the paper, which stay from scene to scene.
 *
 * @typedef {object} PaperParts
 * @property {(key: string, kind: string, x: number, y: number, width?: number) => HTMLElement} put
 * @property {(key: string, words: string, kind: string, x: number, y: number, width?: number)
 *   => HTMLElement} text
 * @property {() => void} removeOthers Remove those that were not put since the last call.
 */

const ROW = 30;
const HEAD = 46; // powers of two and the letters G, R, S
const WIDEST_COLUMN = 21;
const NARROWEST_COLUMN = 8; // where the page is narrower than that, the paper scrolls
const NARROW = 560;
const LEFT = { narrow: 84, wide: 100 }; // room for the names and signs of the rows
const RIGHT = { narrow: 52, wide: 72 }; // and for their powers
const SIGN = 18; // width of a sign, and of the space after it

/**
 * Where columns stand: the format's window, then guard, round and sticky, then what fell off, with
 * a space between.
 *
 * @param {Paper} paper
 * @param {Scene} scene
 * @param {number} width
 * @returns {Ruler}
 */
function ruler({ columns }, scene, width) {
  const size = width < NARROW ? "narrow" : "wide";
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
    const apart = (place < last ? space : 0) + (place < sticky ? space : 0);
    return left + (index.get(place) ?? NaN) * column + apart;
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
 * @param {HTMLElement} element
 * @returns {PaperParts}
 */
function partsIn(element) {
  /** @type {Map<string, HTMLElement>} */
  const parts = new Map();
  /** @type {Set<string>} */
  let seen = new Set();

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
    // So that appearing is a transition, and starts where it belongs.
    if (!known) part.getBoundingClientRect();
    part.style.opacity = "";
    seen.add(key);
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
        if (seen.has(key)) continue;
        part.remove();
        parts.delete(key);
      }
      seen = new Set();
    },
  };
}

// --- the window ----------------------------------------------------------------------------------

/**
 * The places that the format keeps, with what is said above them.
 *
 * @param {PaperParts} parts
 * @param {Scene} scene
 * @param {Paper} paper
 * @param {Ruler} at
 * @param {number} height
 */
function drawWindow(parts, scene, paper, at, height) {
  const [first, last] = scene.window;
  const x = at.x(first);
  const width = at.x(last) + at.column - x;
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
  drawBox(parts, at, "G", "guard", last - 1, last - 1, height);
  drawBox(parts, at, "R", "round", last - 2, last - 2, height);
  drawBox(parts, at, "S", "sticky", last - 3, scene.sticky, height);
  drawFallen(parts, at, scene.sticky - 1);
}

/**
 * A box around guard, round or sticky.
 *
 * @param {PaperParts} parts
 * @param {Ruler} at
 * @param {string} letter
 * @param {string} name
 * @param {number} from
 * @param {number} to
 * @param {number} height
 */
function drawBox(parts, at, letter, name, from, to, height) {
  if (!at.has(from)) return;
  const start = at.x(from);
  const wide = (at.has(to) ? at.x(to) + at.column : at.sheetEnd) - start;
  const box = parts.put(`box ${letter}`, "box", start + 1, HEAD - 4, wide - 2);
  box.style.height = `${height}px`;
  parts.text(`name ${letter}`, wide > 42 ? name : letter, "letter", start, 21, wide);
}

/**
 * What is said above the bits that fell off.
 *
 * @param {PaperParts} parts
 * @param {Ruler} at
 * @param {number} first their first place
 */
function drawFallen(parts, at, first) {
  const room = at.has(first) && at.lowest <= first ? at.end - at.x(first) : 0;
  if (room <= 100) return;
  const words = room > 190 ? "fell off, remembered in S only" : "fell off";
  parts.text("fell", words, "power", at.x(first), 21);
}

// --- rows ----------------------------------------------------------------------------------------

/**
 * @param {PaperParts} parts
 * @param {Row} row
 * @param {number} y
 * @param {Ruler} at
 */
function drawRow(parts, row, y, at) {
  const { name, before, sign, point, exponent } = row;
  const kind = name === "result" ? "result" : "row";
  const signs = at.left - SIGN;
  parts.text(`${name}${before} name`, name, `name ad-${kind}`, 0, y, signs - 16);
  parts.text(`${name}${before} before`, before, "sign", signs - 16, y, 16);
  parts.text(`${name} sign`, sign, "sign", signs, y, 16);
  drawCells(parts, row, kind, y, at);
  const fallen = row.cells.some((cell) => cell.kind === "fallen");
  if (fallen && at.gap >= 0) {
    const x = at.left + at.gap * at.column + at.column * 1.6;
    parts.text(`${name} gap`, "⋯", "bit ad-zero", x, y, at.column);
  }
  if (point !== null && row.cells.length && at.has(point)) {
    const x = at.x(point) + at.column / 2;
    parts.text(`${name} point`, ".", `bit ad-point ad-${kind}`, x, y, at.column);
  }
  if (exponent !== null) {
    parts.text(`${name} power`, `× 2^${exponent}`, `times ad-${kind}`, at.end + 8, y, 72);
  }
}

/**
 * @param {PaperParts} parts
 * @param {Row} row
 * @param {string} rowKind
 * @param {number} y
 * @param {Ruler} at
 */
function drawCells(parts, { cells }, rowKind, y, at) {
  for (const { key, text, place, kind } of cells) {
    if (kind === "word") parts.text(key, text, "word", at.left, y);
    else if (at.has(place)) {
      const look = `bit ad-${kind} ad-${rowKind}`;
      const part = parts.text(key, text, look, at.x(place), y, at.column);
      // Over the edge, and down.
      if (kind === "fallen") part.style.transform += " translateY(5px) rotate(12deg)";
    }
  }
}

// --- the paper -----------------------------------------------------------------------------------

const UNDERLINED = ["sum", "product", "result"]; // rows with a line above

export function makePaper() {
  const element = h("div", { class: "ad-paper", "aria-hidden": "true" });
  const parts = partsIn(element);
  return {
    element,
    /**
     * @param {Paper} paper
     * @param {number} step the station
     * @param {number} width
     * @param {boolean} still whether nothing moves
     */
    draw(paper, step, width, still) {
      const scene = paper.scenes[step];
      const at = ruler(paper, scene, width);
      const most = Math.max(...paper.scenes.map(({ rows }) => rows.length));
      element.classList.toggle("still", still);
      element.dataset.station = scene.title;
      element.style.height = `${HEAD + most * ROW + 12}px`;
      element.style.setProperty("--ad-digit", `${Math.min(17, at.column * 1.36).toFixed(1)}px`);
      element.dataset.format = paper.format;
      const height = scene.rows.length * ROW + 10;
      if (paper.columns.length) drawWindow(parts, scene, paper, at, height);
      for (const [i, row] of scene.rows.entries()) {
        const y = HEAD + i * ROW;
        if (UNDERLINED.includes(row.name)) {
          parts.put(`rule ${row.name}`, "rule", at.left - 20, y, at.end - at.left + 22);
        }
        drawRow(parts, row, y, at);
      }
      parts.removeOthers();
    },
  };
}
