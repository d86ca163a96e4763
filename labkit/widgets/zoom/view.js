// The zoom from a network to the sixteen bits of one gradient, at four distances. The film has the
// counts of every layer at a few steps, and a part of every tensor.

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
  fateOfNumber,
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
 * The traits of `GradientZoom`.
 *
 * @typedef {object} Traits
 * @property {number} zoom The distance: 0 network, 1 layer, 2 tensor, 3 gradient.
 * @property {number} frame The index of a step.
 * @property {string} layer
 * @property {number} row The row of the part of the layer's tensor that is shown.
 * @property {number} column
 * @property {number} log2_scale
 * @property {string} sentence
 * @property {{ step: number, rows: LayerRow[] }[]} _film All layers together first.
 * @property {DataView} _cells float32: frame after frame, layer after layer, row after row.
 * @property {Windows} _windows
 * @property {About} _about
 * @property {FormatRow} _format The format FP16.
 */

/**
 * The tensors of the film.
 *
 * @typedef {object} About
 * @property {string} kind The name of the tensors, "weight gradients" for example.
 * @property {number[][]} shapes The shape of each layer's tensor.
 * @property {[rows: number, columns: number][]} tables The size of the part that is shown.
 */

/** @typedef {{ step: number, rows: PreparedRow[] }} Frame A step; all layers together first. */

/**
 * The data that the pictures are drawn from.
 *
 * @typedef {object} State
 * @property {Model<Traits>} model
 * @property {About} about
 * @property {Frame[]} film
 * @property {string[]} names The names of the layers.
 * @property {Format} format
 * @property {Windows} limits
 * @property {Float32Array} cells
 * @property {Palette} tint
 */

/** @typedef {(change: Partial<Traits>) => void} Choose Sets traits, and redraws. */

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

// Heights and widths in pixels.
const STRIP_HEIGHT = 64;
const MAIN_HEIGHT = 230;
const TALLEST_GRID = 420;
const LARGEST_CELL = 40;
// Patterns cannot be told apart in smaller cells: these have plain colours.
const SMALLEST_PATTERNED_CELL = 9;

const MOST_LOG2_SCALE = 30;

// The text below each distance.
const LEGENDS = [
  "Zones, from the left: to zero, subnormal, normal, to inf. " +
    "Choose a layer, and zoom in: with the slider, with Enter, or with a double click.",
  "Click the picture for the layer's tensor.",
  "Grey cells are zero in FP32. Click a cell, or choose one with the arrow keys, for its bits.",
  "Double the scale, and watch which bits move.",
];

// --- the state -----------------------------------------------------------------------------------

/**
 * Return the data of the traits, prepared for drawing.
 *
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

/**
 * Return the chosen step of the film.
 *
 * @param {State} state
 */
function frameOf({ model, film }) {
  return film[model.get("frame")];
}

/**
 * Return the index of the chosen layer.
 *
 * @param {State} state
 */
function layerOf({ model, names }) {
  return names.indexOf(model.get("layer"));
}

/**
 * Return the counts of the chosen layer in a frame.
 *
 * @param {State} state
 * @param {Frame} frame
 */
function rowOf(state, frame) {
  return frame.rows[1 + layerOf(state)];
}

/**
 * Return the table of the chosen layer in the chosen frame.
 *
 * @param {State} state
 * @returns {Table}
 */
function tableOf(state) {
  const { tables } = state.about;
  const layer = layerOf(state);
  const sizes = tables.map(([rows, columns]) => rows * columns);
  // The cells hold frame after frame, and in each frame layer after layer.
  const frameStart = state.model.get("frame") * sum(sizes);
  const start = frameStart + sum(sizes.slice(0, layer));
  const values = state.cells.subarray(start, start + sizes[layer]);
  const [rows, columns] = tables[layer];
  return { rows, columns, values, value: (row, column) => values[row * columns + column] };
}

/**
 * Return the sum of numbers.
 *
 * @param {number[]} numbers
 */
function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

/**
 * Return the width and height of a cell, in pixels of the picture.
 *
 * @param {Figure} grid
 * @param {Table} table
 */
function sideOf(grid, { rows, columns }) {
  return Math.min(grid.width / columns, grid.height / rows, LARGEST_CELL);
}

// --- pictures ------------------------------------------------------------------------------------

/**
 * Return the figure of the film: a picture for each step; a click chooses one.
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
    height: STRIP_HEIGHT,
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
 * Draw one step of the film: the zones, the bars, and a line with the share that is lost.
 *
 * @param {State} state
 * @param {number} frame
 * @param {Pen} pen
 * @param {number} width
 * @param {number} height
 */
function drawFrame(state, frame, pen, width, height) {
  const { model, film, limits, tint } = state;
  const frameWidth = width / film.length;
  const left = frame * frameWidth + 4;
  const right = (frame + 1) * frameWidth - 4;
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
 * Draw the outline of a box.
 *
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
 * Return the figure of the chosen layer's histogram.
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
    height: MAIN_HEIGHT,
    draw(pen, width, height) {
      const picture = pictureOf(state, pen, areaAt(main, width));
      drawHistogram(picture, rowOf(state, frameOf(state)), height);
    },
  });
  main.element.classList.add("uf-main");
  return main;
}

/**
 * Return the figure of all layers' histograms, which lies in the list of layers.
 *
 * @param {State} state
 * @param {Figure} main the figure whose horizontal axis they share
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

/** Return a function that measures a figure again only when its width or type size changes. */
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
 * Return what a histogram is drawn with.
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
 * Return the figure of the chosen layer's table. A click on a cell shows its bits; the arrow keys
 * choose a cell.
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
    height: (width) => Math.min(TALLEST_GRID, width * 0.5),
    draw: (pen) => drawGrid(state, grid, pen),
  });
  grid.canvas.tabIndex = 0;
  life.listen(grid.canvas, "click", (event) => {
    const cell = cellAt(state, grid, grid.at(event));
    if (cell) choose({ ...cell, zoom: DEEPEST });
  });
  life.listen(grid.canvas, "keydown", (event) => {
    const offset = CELL_KEYS[event.key];
    if (!offset) return;
    event.preventDefault();
    choose(cellBeside(state, ...offset));
  });
  hovering(life, grid, (spot) => {
    if (!spot || spot.held) return null;
    const cell = cellAt(state, grid, spot);
    if (!cell) return null;
    return [spot.x, spot.y, decimal(tableOf(state).value(cell.row, cell.column))];
  });
  return grid;
}

/**
 * For each key, the offset from the chosen cell to the next one.
 *
 * @type {Record<string, [rows: number, columns: number]>}
 */
const CELL_KEYS = {
  ArrowLeft: [0, -1],
  ArrowRight: [0, 1],
  ArrowUp: [-1, 0],
  ArrowDown: [1, 0],
};

/**
 * Return the cell at a place of the figure; null outside the table.
 *
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
 * Return the cell at an offset from the chosen one, kept inside the table.
 *
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
 * Draw the table's cells, coloured by what FP16 makes of their values, and frame the chosen one.
 *
 * @param {State} state
 * @param {Figure} grid
 * @param {Pen} pen
 */
function drawGrid(state, grid, pen) {
  const { model, limits, tint } = state;
  const table = tableOf(state);
  const side = sideOf(grid, table);
  const log2Scale = model.get("log2_scale");
  const fills = side < SMALLEST_PATTERNED_CELL ? tint : fatePatterns(pen, tint);
  for (let row = 0; row < table.rows; row++) {
    for (let column = 0; column < table.columns; column++) {
      const size = Math.abs(table.value(row, column));
      const fate = fateOfNumber(size * 2 ** log2Scale, limits);
      pen.fillStyle = size === 0 ? tint.surface2 : fills[fate];
      pen.fillRect(column * side, row * side, side - 1, side - 1);
    }
  }
  const left = model.get("column") * side;
  const top = model.get("row") * side;
  drawBox({ pen }, left, top, left + side, top + side, tint.ink, 3);
}

// --- nearer and farther: the sliders, a click, the wheel, Enter and Esc --------------------------

/** @typedef {"zoom" | "frame" | "log2_scale"} Lever A trait with a slider. */

/**
 * Return the label, the range and the texts of each slider.
 *
 * @param {State} state
 * @returns {Record<Lever, { label: string, max: number, text: (value: number) => string }>}
 */
function levers({ film }) {
  return {
    zoom: { label: "Zoom", max: DEEPEST, text: (zoom) => DISTANCES[zoom] },
    frame: { label: "Step", max: film.length - 1, text: (frame) => String(film[frame].step) },
    log2_scale: {
      label: "Scale",
      max: MOST_LOG2_SCALE,
      text: (k) => `2^${k} = ${decimal(2 ** k)}`,
    },
  };
}

/**
 * Return the sliders, and the buttons that double and halve the scale.
 *
 * @param {State} state
 * @param {Choose} choose
 */
function leverPanel(state, choose) {
  const { model } = state;
  const about = levers(state);
  /** @param {Lever} trait */
  function lever(trait) {
    return slider({
      ...about[trait],
      min: 0,
      value: model.get(trait),
      page: 4,
      onInput: (value) => choose({ [trait]: value }),
    });
  }
  const sliders = { zoom: lever("zoom"), frame: lever("frame"), log2_scale: lever("log2_scale") };
  /** @param {number} change */
  function changeScale(change) {
    const wanted = model.get("log2_scale") + change;
    choose({ log2_scale: Math.min(MOST_LOG2_SCALE, Math.max(0, wanted)) });
  }
  const halve = { label: "\u00f7 2", title: "Halve the scale", onPress: () => changeScale(-1) };
  const double = { label: "\u00d7 2", title: "Double the scale", onPress: () => changeScale(1) };
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
 * Return the change of the distance for a key: 1 for Enter, -1 for Esc, 0 for all others.
 *
 * @param {KeyboardEvent} event
 */
function zoomChange(event) {
  if (event.key === "Escape") return -1;
  if (event.key !== "Enter" || placeOf(event).closest("button")) return 0;
  return event.shiftKey || event.ctrlKey || event.metaKey || event.altKey ? 0 : 1;
}

/**
 * Zoom by a click, a double click, the wheel, Enter and Esc.
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
  function onWheel(event) {
    // Without Ctrl the wheel scrolls the page.
    if (!event.ctrlKey) return;
    event.preventDefault();
    zoomTo(model.get("zoom") + (event.deltaY < 0 ? 1 : -1));
  }
  /** @param {KeyboardEvent} event */
  function onKey(event) {
    const change = zoomChange(event);
    // At the network, Esc keeps its usual meaning: it leaves the widget.
    if (change === 0 || (change < 0 && model.get("zoom") === 0)) return;
    event.preventDefault();
    zoomTo(model.get("zoom") + change);
    sliders.zoom.input.focus({ preventScroll: true });
  }
  life.listen(main.canvas, "click", () => zoomTo(2));
  life.listen(list.element, "dblclick", () => zoomTo(1));
  life.listen(stage, "wheel", onWheel, { passive: false });
  life.listen(root, "keydown", onKey, true);
}

/**
 * Return the part of the picture at a distance that the next distance shows: a layer's row, the
 * middle of its histogram, or a cell.
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
 * The parts of the widget.
 *
 * @typedef {object} Parts
 * @property {Record<Lever, Slider>} sliders
 * @property {Figure} strip The element of the film.
 * @property {Figure} strips The layers' histograms.
 * @property {ReturnType<typeof layerList>} list
 * @property {Figure} main
 * @property {Figure} grid
 * @property {ReturnType<typeof bitRow>} bits
 * @property {HTMLElement} stage The element that shows one of the distances.
 */

/**
 * Fill the root of the zoom.
 *
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
  const bits = bitRow(null);
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
  let shownZoom = null;

  /** @type {Choose} */
  function choose(change) {
    put(model, change);
    show();
  }

  function show() {
    const zoom = model.get("zoom");
    const before = shownZoom;
    shownZoom = zoom;
    if (before === null || before === zoom || reducedMotion()) {
      fillParts(zoom);
      return;
    }
    const nearer = zoom > before;
    const arrive = glide.leave(distances[before]);
    const left = nearer ? pieceOf(state, parts, zoom - 1) : null;
    fillParts(zoom);
    // Figures that were hidden had no size until now.
    for (const shownFigure of [strips, main, grid]) {
      if (shownFigure.element.offsetParent) shownFigure.measure();
    }
    arrive(distances[zoom], left ?? pieceOf(state, parts, zoom), nearer);
  }

  /** @param {number} zoom */
  function fillParts(zoom) {
    for (const [i, element] of distances.entries()) element.hidden = i !== zoom;
    showTraits(state, parts);
    words.say(sentenceOf(state));
    legend.textContent = LEGENDS[zoom];
    root.dataset.zoom = DISTANCES[zoom];
    for (const shownFigure of [strip, strips, main, grid]) {
      if (shownFigure.element.offsetParent) shownFigure.redraw();
    }
  }

  listenForZoom(root, parts, model, life, choose);
  watch(life, model, ["zoom", "frame", "layer", "row", "column", "log2_scale"], show);
  show();
}

/**
 * Update the controls, the list and the bits from the traits.
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
 * Move the chosen cell into the table: another layer's table may be smaller.
 *
 * @param {State} state
 */
function stayInside(state) {
  const { model } = state;
  const { row, column } = cellBeside(state, 0, 0);
  if (row !== model.get("row") || column !== model.get("column")) put(model, { row, column });
}

/**
 * Return the FP32 gradient in the chosen cell.
 *
 * @param {State} state
 */
function gradientOf(state) {
  const { model } = state;
  return tableOf(state).value(model.get("row"), model.get("column"));
}

/**
 * Return the sentence for the present traits.
 *
 * @param {State} state
 */
function sentenceOf(state) {
  const { model, about, format, limits, names } = state;
  const layer = layerOf(state);
  const zoom = model.get("zoom");
  const log2Scale = model.get("log2_scale");
  const frame = frameOf(state);
  // The first row counts all layers together.
  const shown = frame.rows[zoom ? 1 + layer : 0];
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
    zeros: values.filter((value) => value === 0).length / values.length,
    name: cellName(names[layer], about.shapes[layer], model.get("row"), model.get("column")),
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
