// The drawn graph beside its table: a node for each operation, a line for each tensor from the
// operation that returns it to those that read it, and a diamond for each cast. A tensor keeps its
// lane until its last reader.

import { h, required } from "../base/elements.js";

/** @import { Cast, Row } from "./view.js" */

// Lengths in pixels: the distance of two lanes, the height above an operation at which a line
// leaves its lane, and the position of the weights, left of all lanes.
const LANE = 26;
const BEND = 14;
const WEIGHTS = 10;

/**
 * The number of passes that have visited an operation after each pass. What a pass finds is shown
 * from then on.
 */
export const AFTER_PASS = { colour: 1, propagate: 2, insert: 3, cancel: 4, hoist: 5 };

// --- lanes ---------------------------------------------------------------------------------------

/**
 * Return the lane of each tensor, by the index of the operation that returns it, and the number of
 * lanes. Inputs of the network have the indices -1, -2, ...
 *
 * @param {readonly Pick<Row, "takes">[]} rows
 */
export function lanesOf(rows) {
  const lastReader = lastReaders(rows);
  const inputs = [...new Set(rows.flatMap(({ takes }) => takes))]
    .filter((from) => from < 0)
    .sort((a, b) => b - a);
  /** @type {(number | null)[]} the tensor in each lane; null if the lane is free */
  const busy = [...inputs];
  /** @type {Record<number, number>} */
  const lane = Object.fromEntries(inputs.map((from, i) => [from, i]));
  for (const [i, { takes }] of rows.entries()) {
    for (const [at, from] of busy.entries()) {
      if (from !== null && (lastReader[from] ?? -1) <= i) busy[at] = null;
    }
    // A result takes the lane of an input that this operation is the last to read, if there is one.
    const own = takes.map((from) => lane[from]).filter((at) => busy[at] === null);
    const free = own.length ? Math.min(...own) : busy.indexOf(null);
    lane[i] = free < 0 ? busy.length : free;
    busy[lane[i]] = i;
  }
  return { lane, count: busy.length, inputs };
}

/**
 * Return the index of the last operation that reads each tensor.
 *
 * @param {readonly Pick<Row, "takes">[]} rows
 */
function lastReaders(rows) {
  /** @type {Record<number, number>} */
  const last = {};
  for (const [i, { takes }] of rows.entries()) {
    for (const from of takes) last[from] = i;
  }
  return last;
}

// --- shapes --------------------------------------------------------------------------------------

/**
 * The line of a tensor.
 *
 * @typedef {object} Line
 * @property {Element} element
 * @property {number | null} from The index of the tensor; null for a weight.
 * @property {boolean} shared Whether it connects an operation with the cast of a weight that an
 *   earlier operation made.
 */

/** @typedef {{ node: Element, lines: Line[], casts: [Cast, Element][] }} DrawnRow an operation */

/**
 * A graph that is being drawn.
 *
 * @typedef {object} Sheet
 * @property {SVGSVGElement} element
 * @property {readonly Row[]} rows
 * @property {(from: number) => number} x The horizontal position of a tensor's lane.
 * @property {(from: number) => number} y The vertical position at which a tensor begins.
 * @property {Map<string, number>} castAt The position of the first cast of a weight to a format.
 */

function emptySvg() {
  const holder = h("div");
  // The browser's parser gives the element the namespace of SVG.
  holder.innerHTML = "<svg></svg>";
  /** @type {SVGSVGElement} */
  const svg = required(holder, "svg");
  svg.setAttribute("class", "gr-graph");
  svg.setAttribute("aria-hidden", "true");
  return svg;
}

/**
 * Add a shape to a sheet.
 *
 * @param {Sheet} sheet
 * @param {string} tag
 * @param {Record<string, string | number>} attributes
 */
function addShape({ element }, tag, attributes) {
  const shape = document.createElementNS(element.namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) shape.setAttribute(name, String(value));
  element.append(shape);
  return shape;
}

/**
 * Draw two lines for each tensor that an operation reads: down the tensor's lane, and from there to
 * the operation.
 *
 * @param {Sheet} sheet
 * @param {number} i the operation's row
 * @returns {Line[]}
 */
function drawInputs(sheet, i) {
  const { rows, x, y } = sheet;
  const { takes, casts } = rows[i];
  const bend = y(i) - BEND;
  return takes.flatMap((from) => {
    const format = from < 0 ? "FP32" : rows[from].result;
    const to = casts.find((cast) => cast.origin === from)?.to ?? format;
    const down = `M${x(from)} ${y(from)}V${bend}`;
    const over = `M${x(from)} ${bend}Q${x(from)} ${y(i)} ${x(i)} ${y(i)}`;
    return [tensorLine(sheet, from, format, down), tensorLine(sheet, from, to, over)];
  });
}

/**
 * @param {Sheet} sheet
 * @param {number} from
 * @param {string} format
 * @param {string} d the path
 * @returns {Line}
 */
function tensorLine(sheet, from, format, d) {
  const about = { class: "gr-line", "data-from": from, "data-format": format, d };
  return { element: addShape(sheet, "path", about), from, shared: false };
}

/**
 * Draw the line of a weight.
 *
 * @param {Sheet} sheet
 * @param {string} format
 * @param {string} d the path
 * @param {boolean} shared
 * @returns {Line}
 */
function weightLine(sheet, format, d, shared) {
  const name = shared ? "gr-line gr-shared" : "gr-line";
  const about = { class: name, "data-weight": "", "data-format": format, d };
  return { element: addShape(sheet, "path", about), from: null, shared };
}

/**
 * Draw the casts of an operation, and the lines of its weights.
 *
 * @param {Sheet} sheet
 * @param {number} i the operation's row
 */
function drawCasts(sheet, i) {
  const { x, y, castAt } = sheet;
  /** @type {Line[]} */
  const lines = [];
  /** @type {[Cast, Element][]} */
  const knots = [];
  const { casts } = sheet.rows[i];
  if (casts.some((cast) => cast.origin === null)) {
    lines.push(weightLine(sheet, "FP32", `M${WEIGHTS} ${y(i)}H${x(i)}`, false));
  }
  for (const cast of casts) {
    if (cast.origin !== null) {
      knots.push([cast, castKnot(sheet, x(cast.origin), y(i) - BEND, cast)]);
      continue;
    }
    const key = `${cast.tensor} ${cast.to}`;
    const first = castAt.get(key);
    if (first === undefined) {
      castAt.set(key, y(i));
    } else if (first !== y(i)) {
      lines.push(weightLine(sheet, cast.to, `M${WEIGHTS} ${first}V${y(i)}`, true));
    }
    knots.push([cast, castKnot(sheet, WEIGHTS + 1, y(i), cast)]);
  }
  return { lines, knots };
}

/**
 * Draw a cast as a diamond.
 *
 * @param {Sheet} sheet
 * @param {number} x
 * @param {number} y
 * @param {Cast} cast
 */
function castKnot(sheet, x, y, cast) {
  const d = `M${x} ${y - 6}l6 6-6 6-6-6z`;
  return addShape(sheet, "path", { class: "gr-knot", d, "data-format": cast.to });
}

// --- the graph -----------------------------------------------------------------------------------

/** @param {readonly Row[]} rows */
export function drawnGraph(rows) {
  const { lane, count, inputs } = lanesOf(rows);
  const element = emptySvg();
  const width = WEIGHTS + LANE * (count + 1);
  /** @param {number} from */
  const x = (from) => WEIGHTS + LANE * (lane[from] + 1);
  /** @type {DrawnRow[]} empty until the graph is drawn */
  let shown = [];
  element.style.width = `${width}px`;

  return {
    element,
    width,
    /**
     * @param {readonly number[]} ys the vertical positions of the rows
     * @param {number} top the vertical position of the inputs of the network
     */
    draw(ys, top) {
      /** @type {Sheet} */
      const sheet = {
        element,
        rows,
        x,
        y: (from) => (from < 0 ? top : ys[from]),
        castAt: new Map(),
      };
      element.replaceChildren();
      element.style.height = `${ys[ys.length - 1] + LANE}px`;
      const connected = rows.map((_, i) => {
        const lines = drawInputs(sheet, i);
        const weights = drawCasts(sheet, i);
        return { lines: [...lines, ...weights.lines], casts: weights.knots };
      });
      for (const from of inputs) {
        const place = { x: x(from) - 5, y: top - 5, width: 10, height: 10 };
        addShape(sheet, "rect", { class: "gr-input", ...place });
      }
      // Nodes lie over all lines.
      shown = connected.map((parts, i) => {
        const place = { cx: x(i), cy: ys[i], r: 6.5 };
        const format = rows[i].result || "none";
        const about = { class: "gr-node", ...place, "data-format": format };
        return { ...parts, node: addShape(sheet, "circle", about) };
      });
    },
    /**
     * @param {readonly number[]} done the number of passes that have visited each operation
     * @param {number} now the index of the operation that a pass visits; -1 for none
     */
    set(done, now) {
      for (const [i, row] of shown.entries()) {
        row.node.classList.toggle("gr-told", done[i] >= AFTER_PASS.propagate);
        row.node.classList.toggle("gr-looked", i === now);
        for (const { element: line, from, shared } of row.lines) {
          // The format of a result is known with its operation; weights and inputs have none.
          const source = from === null || from < 0 ? i : from;
          line.classList.toggle("gr-told", done[source] >= AFTER_PASS.propagate);
          if (shared) line.classList.toggle("gr-unseen", done[i] < AFTER_PASS.hoist);
        }
        for (const [cast, knot] of row.casts) {
          const isOut = done[i] < AFTER_PASS.insert || castGone(cast, done[i]);
          knot.classList.toggle("gr-out", isOut);
        }
      }
    },
  };
}

/**
 * Return whether a pass has removed a cast.
 *
 * @param {Cast} cast
 * @param {number} done the number of passes that have visited its operation
 */
export function castGone(cast, done) {
  if (cast.fate === "cancelled" && done >= AFTER_PASS.cancel) return true;
  return cast.times === 0 && done >= AFTER_PASS.hoist;
}
