// From a network to the sixteen bits of one gradient: a film (the counts of every layer at a few steps, and a piece of every
// tensor) from four distances.

import { figure, hovering, pattern } from "../base/canvas.js";
import { button, sentence, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { floats, put, watch } from "../base/model.js";
import { decimal, percent } from "../base/number_words.js";
import { inkLine, inkText } from "../base/plot.js";
import { view } from "../base/root.js";
import { FATES, colours, reducedMotion } from "../base/theme.js";
import { fieldsOf } from "../bits/explored.js";
import { bitRow } from "../bits/row.js";
import { derived, encode, roundValue } from "../exact/numbers.js";
import { layerList } from "../underflow/layers.js";
import {
  AXIS,
  ROW,
  drawBars,
  drawHistogram,
  drawLayers,
  drawZones,
  fateOf,
  fractions,
  plot,
  prepared,
} from "../underflow/plot.js";
import { glider } from "./glide.js";
import { DEEPEST, DISTANCES } from "./distances.js";
import { cellName, zoomSentence } from "./words.js";

const STRIP = 64; // height of a picture of the film

const labelOf = (model) => `${model.get("_about").kind}, from the network to the bits`;

export default view({ label: labelOf, kind: "zoom", alone: true }, (root, model, life) => {
  const { shapes, tables, kind } = model.get("_about");
  const format = derived(model.get("_format"));
  const limits = model.get("_windows");
  const film = model.get("_film").map(({ step, rows }) => ({ step, rows: prepared(rows) }));
  const names = film[0].rows.slice(1).map((row) => row.name);
  const cells = floats(model.get("_cells"));
  const perFrame = tables.reduce((sum, [rows, columns]) => sum + rows * columns, 0);
  const palette = colours(root, life, () => show());
  const get = (name) => model.get(name);
  const now = () => ({
    at: names.indexOf(get("layer")),
    shot: film[get("frame")],
    k: get("log2_scale"),
  });
  const set = (change) => {
    put(model, change);
    show();
  };
  const zoomTo = (zoom) => set({ zoom: Math.min(DEEPEST, Math.max(0, zoom)) });

  const lever = (label, trait, max, text) =>
    slider({
      label,
      min: 0,
      max,
      value: get(trait),
      page: 4,
      text,
      onInput: (value) => set({ [trait]: value }),
    });
  const distance = lever("Zoom", "zoom", DEEPEST, (at) => DISTANCES[at]);
  const scale = lever("Scale", "log2_scale", 30, (k) => `2^${k} = ${decimal(2 ** k)}`);
  const step = lever("Step", "frame", film.length - 1, (at) => String(film[at].step));
  const double = button({
    label: "\u00d7 2",
    title: "Double the scale",
    onPress: () => set({ log2_scale: Math.min(30, get("log2_scale") + 1) }),
  });
  const halve = button({
    label: "\u00f7 2",
    title: "Halve the scale",
    onPress: () => set({ log2_scale: Math.max(0, get("log2_scale") - 1) }),
  });
  const levers = h(
    "div",
    { class: "gz-levers" },
    distance.element,
    step.element,
    scale.element,
    h("div", { class: "lk-row" }, halve.element, double.element),
  );

  const strip = figure({
    life,
    label: "The film: the same gradients at each step; the slider of the steps chooses one",
    height: STRIP,
    draw: drawFilm,
  });
  life.listen(strip.canvas, "click", (event) =>
    set({
      frame: Math.min(film.length - 1, Math.floor((strip.at(event).x / strip.width) * film.length)),
    }),
  );
  const words = sentence(model);

  const strips = figure({ life, label: "", height: ROW * names.length, draw: drawStrips });
  strips.canvas.setAttribute("aria-hidden", "true");
  const list = layerList(film[0].rows.slice(1), (layer) => set({ layer }), strips.element);
  const main = figure({
    life,
    label: "How many gradients of this layer lie in each power of two",
    height: 230,
    draw: drawMain,
  });
  main.element.classList.add("uf-main");
  const grid = figure({
    life,
    label:
      "A piece of the tensor, each cell coloured by what FP16 makes of it; arrow keys choose a cell",
    height: (width) => Math.min(420, width * 0.5),
    draw: drawGrid,
  });
  grid.canvas.tabIndex = 0;
  const bits = bitRow(() => show()); // they are looked at, not turned
  const stage = h(
    "div",
    { class: "gz-stage" },
    list.element,
    main.element,
    grid.element,
    bits.element,
  );
  const glide = glider(stage);
  let shownAt = null; // the distance that is on show
  const legend = h("p", { class: "lk-quiet gz-legend" });
  root.append(levers, strip.element, words.element, stage, glide.veil, legend);

  const areas = new Map();
  function areaOf(one, width) {
    if (areas.get(one)?.width !== width) areas.set(one, plot(width, one === strips ? main : one));
    return areas.get(one);
  }

  function drawFilm(pen, width, height) {
    const room = width / film.length;
    film.forEach(({ step: number, rows }, i) => {
      const [left, right] = [i * room + 4, (i + 1) * room - 4];
      const area = {
        left,
        right,
        binade: (right - left) / (AXIS.hi - AXIS.lo),
        x: (e) => left + ((e - AXIS.lo) * (right - left)) / (AXIS.hi - AXIS.lo),
      };
      const chosen = get("zoom") ? rows[1 + now().at] : rows[0];
      drawZones(pen, area, limits, palette, 4, height - 18);
      drawBars(
        pen,
        area,
        chosen,
        get("log2_scale"),
        limits,
        palette,
        palette,
        height - 18,
        height - 26,
        0,
      );
      if (i === get("frame"))
        inkLine(
          { pen },
          [
            [left, 2],
            [right, 2],
            [right, height - 16],
            [left, height - 16],
            [left, 2],
          ],
          palette.accent,
          2,
        );
      const said = `step ${number}: ${percent(fractions(chosen, get("log2_scale"), limits).underflowed)} lost`;
      inkText({ pen, tint: palette }, said, (left + right) / 2, height - 3, {
        fill: palette.ink,
        align: "center",
        bold: i === get("frame"),
      });
    });
  }

  function drawStrips(pen, width, height) {
    drawLayers(
      pen,
      areaOf(strips, width),
      now().shot.rows.slice(1),
      now().k,
      limits,
      palette,
      height,
    );
  }

  function drawMain(pen, width, height) {
    drawHistogram(
      pen,
      areaOf(main, width),
      now().shot.rows[1 + now().at],
      now().k,
      limits,
      palette,
      height,
    );
  }

  // --- the tensor, cell by cell ---

  function tableOf(at) {
    const [rows, columns] = tables[at];
    const from =
      get("frame") * perFrame + tables.slice(0, at).reduce((sum, [r, c]) => sum + r * c, 0);
    const side = Math.min(grid.width / columns, grid.height / rows, 40);
    return {
      rows,
      columns,
      side,
      values: cells.subarray(from, from + rows * columns),
      value: (row, column) => cells[from + row * columns + column],
    };
  }

  const fateAt = (value, k) =>
    value === 0 ? null : fateOf(Math.floor(Math.log2(Math.abs(value))) + k, limits);

  function drawGrid(pen) {
    const { at, k } = now();
    const { rows, columns, side, value } = tableOf(at);
    const fills = Object.fromEntries(
      FATES.map((fate) => [fate, side < 9 ? palette[fate] : pattern(pen, fate, palette)]),
    );
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const fate = fateAt(value(row, column), k);
        pen.fillStyle = fate ? fills[fate] : palette.surface2;
        pen.fillRect(column * side, row * side, side - 1, side - 1);
      }
    }
    const [x, y] = [get("column") * side, get("row") * side];
    inkLine(
      { pen },
      [
        [x, y],
        [x + side, y],
        [x + side, y + side],
        [x, y + side],
        [x, y],
      ],
      palette.ink,
      3,
    );
  }

  const cellAt = (point) => {
    const { rows, columns, side } = tableOf(now().at);
    const [row, column] = [Math.floor(point.y / side), Math.floor(point.x / side)];
    return row >= 0 && row < rows && column >= 0 && column < columns ? { row, column } : null;
  };
  life.listen(grid.canvas, "click", (event) => {
    const cell = cellAt(grid.at(event));
    if (cell) set({ ...cell, zoom: DEEPEST });
  });
  life.listen(grid.canvas, "keydown", (event) => {
    const by = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[
      event.key
    ];
    if (!by) return;
    event.preventDefault();
    const { rows, columns } = tableOf(now().at);
    const inside = (value, size) => Math.min(size - 1, Math.max(0, value));
    set({ row: inside(get("row") + by[0], rows), column: inside(get("column") + by[1], columns) });
  });
  hovering(life, grid, (point) => {
    const cell = point && !point.held ? cellAt(point) : null;
    return cell && [point.x, point.y, decimal(tableOf(now().at).value(cell.row, cell.column))];
  });

  // --- nearer and farther: the slider, a click, the wheel, Enter and Esc ---

  life.listen(main.canvas, "click", () => zoomTo(2));
  life.listen(list.element, "dblclick", () => zoomTo(1));
  life.listen(
    stage,
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // a bare wheel scrolls the page
      event.preventDefault();
      zoomTo(get("zoom") + (event.deltaY < 0 ? 1 : -1));
    },
    { passive: false },
  );
  life.listen(
    root,
    "keydown",
    (event) => {
      const bare =
        !(event.shiftKey || event.ctrlKey || event.metaKey || event.altKey) &&
        !event.target.closest("button");
      const by = event.key === "Escape" ? -1 : event.key === "Enter" && bare ? 1 : 0;
      if (!by || (by < 0 && get("zoom") === 0)) return;
      event.preventDefault(); // Esc goes one step back; from the network it leaves the widget
      zoomTo(get("zoom") + by);
      distance.input.focus({ preventScroll: true });
    },
    true,
  );

  const LEGENDS = [
    "Zones, from the left: to zero, subnormal, normal, to inf. Choose a layer, and zoom in: with the slider, with Enter, or with a double click.",
    "Click the picture for the layer's tensor.",
    "Grey cells are zero in FP32. Click a cell, or choose one with the arrow keys, for its bits.",
    "Double the scale, and watch which bits move.",
  ];

  // What of the picture at a distance the next one shows: a layer's row, the middle of its histogram, a cell.
  function pieceOf(zoom) {
    const { left, top, width, height } = [
      list.element.querySelector(".uf-layer:has(:checked)"),
      main.canvas,
      grid.canvas,
    ][zoom].getBoundingClientRect();
    if (zoom === 0) return { left, top, width, height };
    if (zoom === 1)
      return {
        left: left + width / 4,
        top: top + height / 4,
        width: width / 2,
        height: height / 2,
      };
    const side = tableOf(now().at).side * grid.grown;
    return {
      left: left + get("column") * side,
      top: top + get("row") * side,
      width: side,
      height: side,
    };
  }

  function show() {
    const { at, shot, k } = now();
    const zoom = get("zoom");
    const distances = [list.element, main.element, grid.element, bits.element];
    const nearer = zoom > shownAt;
    const arrive =
      shownAt === null || shownAt === zoom || reducedMotion()
        ? null
        : glide.leave(distances[shownAt]);
    const left = arrive && nearer ? pieceOf(zoom - 1) : null;
    distance.set(zoom);
    scale.set(k);
    step.set(get("frame"));
    step.element.hidden = strip.element.hidden = film.length < 2;
    distances.forEach((one, i) => (one.hidden = i !== zoom));
    list.set(
      names[at],
      shot.rows.slice(1).map((row) => fractions(row, k, limits)),
    );
    const { rows, columns, value, values } = tableOf(at);
    const [row, column] = [Math.min(get("row"), rows - 1), Math.min(get("column"), columns - 1)];
    if (row !== get("row") || column !== get("column")) put(model, { row, column });
    const gradient = value(row, column);
    if (zoom === DEEPEST)
      bits.set("FP16", fieldsOf(encode(roundValue(gradient * 2 ** k, format), format), format));
    const shown = shot.rows[zoom ? 1 + at : 0];
    words.say(
      zoomSentence({
        zoom,
        gradient,
        format,
        kind,
        log2Scale: k,
        step: shot.step,
        name: cellName(names[at], shapes[at], row, column),
        layer: zoom ? shown.name : null,
        shares: fractions(shown, k, limits),
        cells: values.length,
        zeros: values.filter((one) => one === 0).length / values.length,
      }),
    );
    legend.textContent = LEGENDS[zoom];
    root.dataset.zoom = DISTANCES[zoom];
    for (const one of [strip, strips, main, grid]) if (one.element.offsetParent) one.redraw();
    if (arrive) for (const one of [strips, main, grid]) if (one.element.offsetParent) one.measure(); // it was hidden, and had no size
    arrive?.(distances[zoom], left ?? pieceOf(zoom), nearer);
    shownAt = zoom;
  }

  watch(life, model, ["zoom", "frame", "layer", "row", "column", "log2_scale"], show);
  show();
});
