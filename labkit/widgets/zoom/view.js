// From a network to the sixteen bits of one gradient: a film (the counts of every layer at a few
// steps, and a piece of every tensor) from four distances.

import { figure, hovering } from "../base/canvas.js";
import { button, sentence, slider } from "../base/controls.js";
import { h, placeOf, required } from "../base/elements.js";
import { floats, put, watch } from "../base/model.js";
import { decimal, percent } from "../base/number_words.js";
import { inkLine, inkText } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours, reducedMotion } from "../base/theme.js";
import { fieldsOf } from "../bits/explored.js";
import { bitRow } from "../bits/row.js";
import { derived, encode, roundValue } from "../exact/numbers.js";
import { layerList } from "../underflow/layers.js";
import {
  areaBetween,
  areaInside,
  drawBars,
  drawHistogram,
  drawLayers,
  drawZones,
  fateOf,
  fatePatterns,
  fractions,
  prepared,
  ROW,
} from "../underflow/plot.js";
import { DEEPEST, DISTANCES } from "./distances.js";
import { glider } from "./glide.js";
import { cellName, zoomSentence } from "./words.js";

/** @import { Figure, Pen, Spot } from "../base/canvas.js" */
/** @import { Slider } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Format, FormatRow } from "../exact/numbers.js" */
/** @import { Area, PreparedRow } from "../underflow/plot.js" */
/** @import { LayerRow, Windows } from "../underflow/view.js" */
/** @import { Arrive, Box } from "./glide.js" */

/**
 * @typedef {object} Traits
 * @property {number} zoom The distance: 0 network, 1 layer, 2 tensor, 3 gradient.
 * @property {number} frame The index of a step.
 * @property {string} layer
 * @property {number} row Of the part of the layer's tensor that is shown.
 * @property {number} column
 * @property {number} log2_scale
 * @property {string} sentence
 * @property {{ step: number, rows: LayerRow[] }[]} _film All layers together first.
 * @property {DataView} _cells float32: frame after frame, layer after layer, row after row.
 * @property {Windows} _windows
 * @property {About} _about
 * @property {FormatRow} _format FP16.
 */

/**
 * @typedef {object} About
 * @property {string} kind Of gradients.
 * @property {number[][]} shapes Of each layer's tensor.
 * @property {[rows: number, columns: number][]} tables Of the part of it that is shown.
 */

/** @typedef {{ step: number, rows: PreparedRow[] }} Frame */

/**
 * What the pictures are drawn from.
 *
 * @typedef {object} State
 * @property {Model<Traits>} model
 * @property {About} about
 * @property {Frame[]} film
 * @property {string[]} names Of the layers.
 * @property {Format} format
 * @property {Windows} limits
 * @property {Float32Array} cells
 * @property {Palette} tint
 */

/** @typedef {(change: Partial<Traits>) => void} Choose sets traits, and shows it */

/**
 * The part of a tensor that is shown.
 *
 * @typedef {object} Table
 * @property {number} rows
 * @property {number} columns
 * @property {Float32Array} values
 * @property {(row: number, column: number) => number} value
 */

/** @typedef {{ row: number, column: number }} Cell */

const STRIP = 64; // height of a picture of the film
const MOST_LOG2_SCALE = 30;
const LARGEST_CELL = 40; // pixels

// What is said below each distance.
const LEGENDS = [
  "Zones, from the left: to zero, subnormal, normal, to inf. " +
    "Choose a layer, and zoom in: with the slider, with Enter, or with a double click.",
  "Click the picture for the layer's tensor.",
  "Grey cells are zero in FP32. Click a cell, or choose one with the arrow keys, for its bits.",
  "Double the scale, and watch which bits move.",
];

// --- what is looked at ---------------------------------------------------------------------------

/**
 * @param {Model<Traits>} model
 * @param {Palette} tint
 * @returns {State}
 */
function stateOf(model, tint) {
  const film = model.get("_film").map(({ step, rows }) => ({ step, rows: prepared(rows) }));
  return {
    model,
    about: model.get("_about"),
    film,
    names: film[0].rows.slice(1).map((row) => row.name),
    format: derived(model.get("_format")),
    limits: model.get("_windows"),
    cells: floats(model.get("_cells")),
    tint,
  };
}

/** @param {State} state */
function frameOf({ model, film }) {
  return film[model.get("frame")];
}

/**
 * The index of the chosen layer.
 *
 * @param {State} state
 */
function layerOf({ model, names }) {
  return names.indexOf(model.get("layer"));
}

/**
 * The counts of the chosen layer in a frame.
 *
 * @param {State} state
 * @param {Frame} frame
 */
function rowOf(state, frame) {
  return frame.rows[1 + layerOf(state)];
}

/**
 * The table of the chosen layer.
 *
 * @param {State} state
 * @returns {Table}
 */
function tableOf(state) {
  const { tables } = state.about;
  const at = layerOf(state);
  const sizes = tables.map(([rows, columns]) => rows * columns);
  /** @param {number[]} numbers */
  const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
  const from = state.model.get("frame") * sum(sizes) + sum(sizes.slice(0, at));
  const values = state.cells.subarray(from, from + sizes[at]);
  const [rows, columns] = tables[at];
  return { rows, columns, values, value: (row, column) => values[row * columns + column] };
}

/**
 * How wide and tall a cell is drawn, in pixels of the picture.
 *
 * @param {Figure} grid
 * @param {Table} table
 */
function sideOf(grid, { rows, columns }) {
  return Math.min(grid.width / columns, grid.height / rows, LARGEST_CELL);
}

// --- pictures ------------------------------------------------------------------------------------

/**
 * The film, a picture for each step; a click chooses one.
 *
 * @param {State} state
 * @param {Life} life
 * @param {Choose} choose
 */
function filmFigure(state, life, choose) {
  const { film } = state;
  const strip = figure({
    life,
    label: "The film: the same gradients at each step; the slider of the steps chooses one",
    height: STRIP,
    draw(pen, width, height) {
      for (let frame = 0; frame < film.length; frame++) drawFrame(state, frame, pen, width, height);
    },
  });
  life.listen(strip.canvas, "click", (event) => {
    const frame = Math.floor((strip.at(event).x / strip.width) * film.length);
    choose({ frame: Math.min(film.length - 1, frame) });
  });
  return strip;
}

/**
 * @param {State} state
 * @param {number} frame
 * @param {Pen} pen
 * @param {number} width
 * @param {number} height
 */
function drawFrame(state, frame, pen, width, height) {
  const { model, film, limits, tint } = state;
  const room = width / film.length;
  const left = frame * room + 4;
  const right = (frame + 1) * room - 4;
  const { step, rows } = film[frame];
  const row = model.get("zoom") ? rowOf(state, film[frame]) : rows[0];
  const log2Scale = model.get("log2_scale");
  const chosen = frame === model.get("frame");
  const picture = { pen, tint, limits, log2Scale, area: areaBetween(left, right) };
  drawZones(picture, 4, height - 18);
  drawBars(picture, row, tint, { bottom: height - 18, height: height - 26, gap: 0 });
  if (chosen) drawBox(picture, left, 2, right, height - 16, tint.accent, 2);
  const lost = percent(fractions(row, log2Scale, limits).underflowed);
  const style = { fill: tint.ink, align: /** @type {const} */ ("center"), bold: chosen };
  inkText(picture, `step ${step}: ${lost} lost`, (left + right) / 2, height - 3, style);
}

/**
 * @param {{ pen: Pen }} ink
 * @param {number} left
 * @param {number} top
 * @param {number} right
 * @param {number} bottom
 * @param {string} colour
 * @param {number} width
 */
function drawBox(ink, left, top, right, bottom, colour, width) {
  /** @type {[number, number][]} */
  const corners = [
    [left, top],
    [right, top],
    [right, bottom],
    [left, bottom],
    [left, top],
  ];
  inkLine(ink, corners, colour, width);
}

/**
 * The histogram of the chosen layer.
 *
 * @param {State} state
 * @param {Life} life
 */
function mainFigure(state, life) {
  const areaAt = areaCache();
  /** @type {Figure} */
  const main = figure({
    life,
    label: "How many gradients of this layer lie in each power of two",
    height: 230,
    draw(pen, width, height) {
      const picture = pictureOf(state, pen, areaAt(main, width));
      drawHistogram(picture, rowOf(state, frameOf(state)), height);
    },
  });
  main.element.classList.add("uf-main");
  return main;
}

/**
 * The histograms of all layers, in the list of them.
 *
 * @param {State} state
 * @param {Figure} main whose place beside the axis they share
 * @param {Life} life
 */
function stripsFigure(state, main, life) {
  const areaAt = areaCache();
  const strips = figure({
    life,
    label: "",
    height: ROW * state.names.length,
    draw(pen, width, height) {
      const picture = pictureOf(state, pen, areaAt(main, width));
      drawLayers(picture, frameOf(state).rows.slice(1), height);
    },
  });
  strips.canvas.setAttribute("aria-hidden", "true");
  return strips;
}

/** The area of a figure: measured anew where its width or the page's type changes. */
function areaCache() {
  /** @type {{ width: number, grown: number, area: Area } | null} */
  let last = null;
  /**
   * @param {Figure} main
   * @param {number} width
   */
  return (main, width) => {
    const { grown } = main;
    if (last?.width !== width || last.grown !== grown) {
      last = { width, grown, area: areaInside(width, main) };
    }
    return last.area;
  };
}

/**
 * What a histogram is drawn with.
 *
 * @param {State} state
 * @param {Pen} pen
 * @param {Area} area
 */
function pictureOf({ model, limits, tint }, pen, area) {
  return { pen, tint, limits, area, log2Scale: model.get("log2_scale") };
}

// --- the tensor, cell by cell --------------------------------------------------------------------

/**
 * The table of the chosen layer; a click on a cell goes to its bits, arrow keys choose one.
 *
 * @param {State} state
 * @param {Life} life
 * @param {Choose} choose
 */
function gridFigure(state, life, choose) {
  /** @type {Figure} */
  const grid = figure({
    life,
    label:
      "A piece of the tensor, each cell coloured by what FP16 makes of it; " +
      "arrow keys choose a cell",
    height: (width) => Math.min(420, width * 0.5),
    draw: (pen) => drawGrid(state, grid, pen),
  });
  grid.canvas.tabIndex = 0;
  life.listen(grid.canvas, "click", (event) => {
    const cell = cellAt(state, grid, grid.at(event));
    if (cell) choose({ ...cell, zoom: DEEPEST });
  });
  life.listen(grid.canvas, "keydown", (event) => {
    const by = CELL_KEYS[event.key];
    if (!by) return;
    event.preventDefault();
    choose(cellBeside(state, ...by));
  });
  hovering(life, grid, (spot) => {
    const cell = spot && !spot.held ? cellAt(state, grid, spot) : null;
    return spot && cell && [spot.x, spot.y, decimal(tableOf(state).value(cell.row, cell.column))];
  });
  return grid;
}

/** @type {Record<string, [rows: number, columns: number]>} */
const CELL_KEYS = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};

/**
 * @param {State} state
 * @param {Figure} grid
 * @param {Pick<Spot, "x" | "y">} spot
 * @returns {Cell | null}
 */
function cellAt(state, grid, { x, y }) {
  const table = tableOf(state);
  const side = sideOf(grid, table);
  const row = Math.floor(y / side);
  const column = Math.floor(x / side);
  const inside = row >= 0 && row < table.rows && column >= 0 && column < table.columns;
  return inside ? { row, column } : null;
}

/**
 * @param {State} state
 * @param {number} down
 * @param {number} right
 * @returns {Cell}
 */
function cellBeside(state, down, right) {
  const { rows, columns } = tableOf(state);
  const row = state.model.get("row") + down;
  const column = state.model.get("column") + right;
  return {
    row: Math.min(rows - 1, Math.max(0, row)),
    column: Math.min(columns - 1, Math.max(0, column)),
  };
}

/**
 * @param {State} state
 * @param {Figure} grid
 * @param {Pen} pen
 */
function drawGrid(state, grid, pen) {
  const { model, limits, tint } = state;
  const table = tableOf(state);
  const side = sideOf(grid, table);
  const log2Scale = model.get("log2_scale");
  const fills = side < 9 ? tint : fatePatterns(pen, tint);
  for (let row = 0; row < table.rows; row++) {
    for (let column = 0; column < table.columns; column++) {
      const size = Math.abs(table.value(row, column));
      const fate = fateOf(Math.floor(Math.log2(size)) + log2Scale, limits);
      pen.fillStyle = size === 0 ? tint.surface2 : fills[fate];
      pen.fillRect(column * side, row * side, side - 1, side - 1);
    }
  }
  const left = model.get("column") * side;
  const top = model.get("row") * side;
  drawBox({ pen }, left, top, left + side, top + side, tint.ink, 3);
}

// --- nearer and farther: the sliders, a click, the wheel, Enter and Esc --------------------------

/** @typedef {"zoom" | "frame" | "log2_scale"} Lever a trait with a slider */

/**
 * @param {State} state
 * @returns {Record<Lever, { label: string, max: number, text: (value: number) => string }>}
 */
function levers({ film }) {
  return {
    zoom: { label: "Zoom", max: DEEPEST, text: (at) => DISTANCES[at] },
    frame: { label: "Step", max: film.length - 1, text: (at) => String(film[at].step) },
    log2_scale: {
      label: "Scale",
      max: MOST_LOG2_SCALE,
      text: (k) => `2^${k} = ${decimal(2 ** k)}`,
    },
  };
}

/**
 * The sliders, and the buttons that double and halve the scale.
 *
 * @param {State} state
 * @param {Choose} choose
 */
function leverPanel(state, choose) {
  const { model } = state;
  const about = levers(state);
  /** @param {Lever} trait */
  const lever = (trait) =>
    slider({
      ...about[trait],
      min: 0,
      value: model.get(trait),
      page: 4,
      onInput: (value) => choose({ [trait]: value }),
    });
  const sliders = { zoom: lever("zoom"), frame: lever("frame"), log2_scale: lever("log2_scale") };
  /** @param {number} by */
  function scaleBy(by) {
    const wanted = model.get("log2_scale") + by;
    choose({ log2_scale: Math.min(MOST_LOG2_SCALE, Math.max(0, wanted)) });
  }
  const halve = { label: "\u00f7 2", title: "Halve the scale", onPress: () => scaleBy(-1) };
  const double = { label: "\u00d7 2", title: "Double the scale", onPress: () => scaleBy(1) };
  const element = h(
    "div",
    { class: "gz-levers" },
    sliders.zoom.element,
    sliders.frame.element,
    sliders.log2_scale.element,
    h("div", { class: "lk-row" }, button(halve).element, button(double).element),
  );
  return { element, sliders };
}

/**
 * How many distances a key goes: Enter nearer, Esc back; 0 for any other.
 *
 * @param {KeyboardEvent} event
 */
function nearerBy(event) {
  if (event.key === "Escape") return -1;
  if (event.key !== "Enter" || placeOf(event).closest("button")) return 0;
  return event.shiftKey || event.ctrlKey || event.metaKey || event.altKey ? 0 : 1;
}

/**
 * The ways to go nearer and farther that are no controls.
 *
 * @param {HTMLElement} root
 * @param {Parts} parts
 * @param {Model<Traits>} model
 * @param {Life} life
 * @param {Choose} choose
 */
function listenForZoom(root, parts, model, life, choose) {
  const { stage, list, main, sliders } = parts;
  /** @param {number} zoom */
  const zoomTo = (zoom) => choose({ zoom: Math.min(DEEPEST, Math.max(0, zoom)) });
  /** @param {WheelEvent} event */
  function turn(event) {
    if (!event.ctrlKey) return; // a bare wheel scrolls the page
    event.preventDefault();
    zoomTo(model.get("zoom") + (event.deltaY < 0 ? 1 : -1));
  }
  /** @param {KeyboardEvent} event */
  function press(event) {
    const by = nearerBy(event);
    if (!by || (by < 0 && model.get("zoom") === 0)) return;
    event.preventDefault(); // Esc goes one step back; from the network it leaves the widget
    zoomTo(model.get("zoom") + by);
    sliders.zoom.input.focus({ preventScroll: true });
  }
  life.listen(main.canvas, "click", () => zoomTo(2));
  life.listen(list.element, "dblclick", () => zoomTo(1));
  life.listen(stage, "wheel", turn, { passive: false });
  life.listen(root, "keydown", press, true);
}

/**
 * What of the picture at a distance the next one shows: a layer's row, the middle of its histogram,
 * a cell.
 *
 * @param {State} state
 * @param {Parts} parts
 * @param {number} zoom
 * @returns {Box}
 */
function pieceOf(state, { list, main, grid }, zoom) {
  if (zoom === 0) {
    return required(list.element, ".uf-layer:has(:checked)").getBoundingClientRect();
  }
  if (zoom === 1) {
    const { left, top, width, height } = main.canvas.getBoundingClientRect();
    return {
      left: left + width / 4,
      top: top + height / 4,
      width: width / 2,
      height: height / 2,
    };
  }
  const { left, top } = grid.canvas.getBoundingClientRect();
  const side = sideOf(grid, tableOf(state)) * grid.grown;
  return {
    left: left + state.model.get("column") * side,
    top: top + state.model.get("row") * side,
    width: side,
    height: side,
  };
}

// --- the widget ----------------------------------------------------------------------------------

/**
 * What stands in the root.
 *
 * @typedef {object} Parts
 * @property {Record<Lever, Slider>} sliders
 * @property {Figure} strip The film.
 * @property {Figure} strips The layers' histograms.
 * @property {ReturnType<typeof layerList>} list
 * @property {Figure} main
 * @property {Figure} grid
 * @property {ReturnType<typeof bitRow>} bits
 * @property {HTMLElement} stage Where one of the distances is on show.
 */

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillZoom(root, model, life) {
  const state = stateOf(
    model,
    colours(root, life, () => show()),
  );
  const { film } = state;
  const panel = leverPanel(state, choose);
  const strip = filmFigure(state, life, choose);
  const words = sentence(model);
  const main = mainFigure(state, life);
  const strips = stripsFigure(state, main, life);
  const layers = film[0].rows.slice(1);
  const list = layerList(layers, (layer) => choose({ layer }), strips.element);
  const grid = gridFigure(state, life, choose);
  const bits = bitRow(() => show()); // they are looked at, not turned
  const distances = [list.element, main.element, grid.element, bits.element];
  const stage = h("div", { class: "gz-stage" }, ...distances);
  const glide = glider(stage);
  const legend = h("p", { class: "lk-quiet gz-legend" });
  /** @type {Parts} */
  const parts = { sliders: panel.sliders, strip, strips, list, main, grid, bits, stage };
  root.append(panel.element, strip.element, words.element, stage, glide.veil, legend);
  panel.sliders.frame.element.hidden = film.length < 2;
  strip.element.hidden = film.length < 2;
  /** @type {number | null} */
  let shownAt = null; // the distance that is on show

  /** @type {Choose} */
  function choose(change) {
    put(model, change);
    show();
  }

  function show() {
    const zoom = model.get("zoom");
    const before = shownAt;
    shownAt = zoom;
    if (before === null || before === zoom || reducedMotion()) {
      fillParts(zoom);
      return;
    }
    const nearer = zoom > before;
    const arrive = glide.leave(distances[before]);
    const left = nearer ? pieceOf(state, parts, zoom - 1) : null;
    fillParts(zoom);
    // What was hidden had no size.
    for (const one of [strips, main, grid]) if (one.element.offsetParent) one.measure();
    arrive(distances[zoom], left ?? pieceOf(state, parts, zoom), nearer);
  }

  /** @param {number} zoom */
  function fillParts(zoom) {
    for (const [i, one] of distances.entries()) one.hidden = i !== zoom;
    showTraits(state, parts);
    words.say(sentenceOf(state));
    legend.textContent = LEGENDS[zoom];
    root.dataset.zoom = DISTANCES[zoom];
    for (const one of [strip, strips, main, grid]) if (one.element.offsetParent) one.redraw();
  }

  listenForZoom(root, parts, model, life, choose);
  watch(life, model, ["zoom", "frame", "layer", "row", "column", "log2_scale"], show);
  show();
}

/**
 * Let the controls, the list and the bits follow the traits.
 *
 * @param {State} state
 * @param {Parts} parts
 */
function showTraits(state, { sliders, list, bits }) {
  const { model, format, limits, names } = state;
  const log2Scale = model.get("log2_scale");
  sliders.zoom.set(model.get("zoom"));
  sliders.log2_scale.set(log2Scale);
  sliders.frame.set(model.get("frame"));
  const shares = frameOf(state)
    .rows.slice(1)
    .map((row) => fractions(row, log2Scale, limits));
  list.set(names[layerOf(state)], shares);
  stayInside(state);
  if (model.get("zoom") !== DEEPEST) return;
  const value = roundValue(gradientOf(state) * 2 ** log2Scale, format);
  bits.set("FP16", fieldsOf(encode(value, format), format));
}

/**
 * Another layer's table may be smaller.
 *
 * @param {State} state
 */
function stayInside(state) {
  const { model } = state;
  const { row, column } = cellBeside(state, 0, 0);
  if (row !== model.get("row") || column !== model.get("column")) put(model, { row, column });
}

/**
 * The gradient in the chosen cell, as it is in FP32.
 *
 * @param {State} state
 */
function gradientOf(state) {
  const { model } = state;
  return tableOf(state).value(model.get("row"), model.get("column"));
}

/** @param {State} state */
function sentenceOf(state) {
  const { model, about, format, limits, names } = state;
  const at = layerOf(state);
  const zoom = model.get("zoom");
  const log2Scale = model.get("log2_scale");
  const frame = frameOf(state);
  const shown = frame.rows[zoom ? 1 + at : 0];
  const { values } = tableOf(state);
  return zoomSentence({
    zoom,
    format,
    log2Scale,
    kind: about.kind,
    step: frame.step,
    layer: zoom ? shown.name : null,
    shares: fractions(shown, log2Scale, limits),
    cells: values.length,
    zeros: values.filter((one) => one === 0).length / values.length,
    name: cellName(names[at], about.shapes[at], model.get("row"), model.get("column")),
    gradient: gradientOf(state),
  });
}

export default view(
  {
    label: (model) => `${model.get("_about").kind}, from the network to the bits`,
    kind: "zoom",
    alone: true,
  },
  fillZoom,
);
