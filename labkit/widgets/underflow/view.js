// The underflow histogram. The scale shifts the counts of every layer; plot.js draws them, and
// layers.js describes them.

import { figure, hovering, patternImage } from "../base/canvas.js";
import { sentence, slider } from "../base/controls.js";
import { h, isMainButton, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal, percent } from "../base/number_words.js";
import { view } from "../base/root.js";
import { colours, FATES } from "../base/theme.js";
import { layerList, noteOf, sayFate } from "./layers.js";
import { scaleMotion } from "./motion.js";
import {
  AXIS,
  anchorOf,
  areaInside,
  BOTTOM,
  drawHistogram,
  drawLayers,
  fateOf,
  fractions,
  MEANING,
  prepared,
  ROW,
} from "./plot.js";

/** @import { Figure, Pen, Spot } from "../base/canvas.js" */
/** @import { Slider } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Fate, Palette } from "../base/theme.js" */
/** @import { Area, Picture, PreparedRow, Shares } from "./plot.js" */

/**
 * The traits of `UnderflowHistogram`.
 *
 * @typedef {object} Traits
 * @property {number} log2_scale
 * @property {string} layer The name of the chosen layer.
 * @property {string} sentence
 * @property {LayerRow[]} _rows All layers together first.
 * @property {Windows} _windows
 * @property {About} _about
 */

/**
 * The gradients of a layer (`rows` of underflow/widget.py).
 *
 * @typedef {object} LayerRow
 * @property {string} name
 * @property {number} lo The exponent of the first count.
 * @property {number[]} counts The number of gradients for each power of two.
 * @property {number} elements
 * @property {number} zeros
 * @property {number} non_finite
 * @property {number | null} observed The share of zeros that was counted inside the FP16 pass.
 */

/**
 * The exponents at which a format's zones begin (`windows` of underflow/widget.py).
 *
 * @typedef {object} Windows
 * @property {string} format The name of the format.
 * @property {number} survives_from The least exponent that does not become zero.
 * @property {number} emin The least exponent of a normal number.
 * @property {number} emax The largest exponent.
 * @property {number} overflows_from The least value that overflows, not its exponent.
 */

/**
 * The source of the gradients, and the range of the scale.
 *
 * @typedef {object} About
 * @property {string} kind The name of what is counted, "weight gradients" for example.
 * @property {number} step The step of the training.
 * @property {number} observed_log2_scale The scale of the FP16 pass with the `observed` shares.
 * @property {number} max_log2_scale The largest log2 of a scale.
 */

/** @typedef {(change: Partial<Traits>) => void} Choose Sets traits, and redraws. */

/**
 * The state of the widget.
 *
 * @typedef {object} State
 * @property {HTMLElement} root
 * @property {PreparedRow[]} layers All layers together first.
 * @property {PreparedRow} row The chosen layer.
 * @property {number} log2Scale
 * @property {Windows} limits
 * @property {About} about
 * @property {Palette} tint
 * @property {ReturnType<typeof scaleMotion>} motion
 * @property {(Area & { width: number }) | null} area The area for the last width drawn.
 */

// The width of the slider's thumb in pixels, as in base.css.
const THUMB_WIDTH = 20;

// --- shares as texts and bars --------------------------------------------------------------------

/** Return the shares of the four fates, as a bar and as numbers. */
function fateBar() {
  const bar = h("div", { class: "uf-bar", "aria-hidden": "true" });
  const legend = h("div", { class: "uf-legend" });
  const parts = FATES.map((fate) => {
    const segment = h("span");
    const swatch = h("span", { class: "uf-swatch" });
    const share = h("span", { class: "uf-share", data: { fate } });
    bar.append(segment);
    legend.append(h("div", {}, swatch, h("span", { text: fate }), share));
    return { fate, segment, swatch, share };
  });
  return {
    element: h("div", { class: "uf-fates" }, bar, legend),
    /**
     * Show the shares of the chosen layer.
     *
     * @param {Shares} shares
     * @param {Palette} tint
     */
    set(shares, tint) {
      for (const { fate, segment, swatch, share } of parts) {
        paint(segment, fate, tint);
        paint(swatch, fate, tint);
        segment.style.width = `${100 * shares[fate]}%`;
        segment.classList.toggle("some", shares[fate] > 0);
        share.textContent = percent(shares[fate]);
        share.dataset.share = String(shares[fate]);
      }
    },
  };
}

/**
 * Fill an element with the colour or pattern of a fate.
 *
 * @param {HTMLElement} element
 * @param {Fate} fate
 * @param {Palette} tint
 */
function paint(element, fate, tint) {
  element.style.background =
    fate === "normal" ? tint.normal : `url(${patternImage(fate, tint).url})`;
  element.style.backgroundSize = "8px 8px";
}

/**
 * Return the bar of the zeros that an FP16 pass had. It is hidden if they were not counted.
 *
 * @param {State} state
 */
function observedBar({ layers, about }) {
  const fill = h("span");
  const track = h("div", { class: "uf-observed-track" }, fill);
  const words = h("div", { class: "lk-quiet" });
  const element = h("div", { class: "uf-observed" }, track, words);
  const counted = `zeros counted inside the FP16 pass at scale 2^${about.observed_log2_scale}: `;
  element.hidden = layers[0].observed === null;
  return {
    element,
    /**
     * Show the share of a layer.
     *
     * @param {PreparedRow} row
     */
    set({ observed }) {
      if (observed === null) return;
      const share = h("b", { text: percent(observed) });
      fill.style.width = `${100 * observed}%`;
      words.replaceChildren(rich(counted), share, " of all elements");
    },
  };
}

// --- the scale -----------------------------------------------------------------------------------

/**
 * Return the handle of the scale, which lies in the histogram, and the label above it.
 *
 * @param {State} state
 * @param {Choose} choose
 */
function scaleControl({ log2Scale, about }, choose) {
  const handle = slider({
    label: "Loss scale",
    min: 0,
    max: about.max_log2_scale,
    value: log2Scale,
    labelled: false,
    text: (k) => `2^${k} = ${decimal(2 ** k)}`,
    onInput: (k) => choose({ log2_scale: k }),
  });
  handle.element.classList.add("uf-handle");
  const label = h("label", { for: handle.input.id, text: "Loss scale" });
  const value = h("output", { class: "uf-value", for: handle.input.id });
  const text = "drag the handle under the bars, or press the arrow keys";
  const hint = h("span", { class: "lk-quiet", text });
  return {
    handle,
    element: h("div", { class: "lk-row uf-scale" }, label, value, hint),
    /**
     * Show a scale.
     *
     * @param {number} k its log2
     */
    set(k) {
      const whole = h("span", { class: "lk-quiet", text: ` = ${decimal(2 ** k)}` });
      handle.set(k);
      value.replaceChildren(rich(`2^${k}`), whole);
    },
  };
}

/**
 * Let the bars be dragged: each binade is a step of the scale.
 *
 * @param {Life} life
 * @param {Figure} main
 * @param {State} state
 * @param {Slider} handle
 * @param {Choose} choose
 */
function dragging(life, main, state, handle, choose) {
  /** @type {{ x: number, log2Scale: number } | null} */
  let start = null;
  life.listen(main.canvas, "pointerdown", (event) => {
    if (!isMainButton(event)) return;
    start = { x: event.clientX, log2Scale: state.log2Scale };
    main.canvas.setPointerCapture(event.pointerId);
    event.preventDefault();
    // After dragging, the arrow keys move the handle.
    handle.input.focus({ preventScroll: true });
  });
  life.listen(main.canvas, "pointermove", (event) => {
    if (!start) return;
    const step = areaOf(state, main, main.width).binade * main.grown;
    const wanted = start.log2Scale + Math.round((event.clientX - start.x) / step);
    const next = Math.min(state.about.max_log2_scale, Math.max(0, wanted));
    if (next !== state.log2Scale) choose({ log2_scale: next });
  });
  const end = () => {
    start = null;
  };
  life.listen(main.canvas, "pointerup", end);
  life.listen(main.canvas, "pointercancel", end);
}

// --- pictures ------------------------------------------------------------------------------------

/**
 * Return the area of a picture, and fit the length of the handle's track to it.
 *
 * @param {State} state
 * @param {Figure} main
 * @param {number} width
 */
function areaOf(state, main, width) {
  if (state.area?.width === width) return state.area;
  const area = { ...areaInside(width, main), width };
  const track = area.binade * state.about.max_log2_scale * main.grown + THUMB_WIDTH;
  state.root.style.setProperty("--uf-track", `${track}px`);
  state.area = area;
  return area;
}

/**
 * Return the state of the bars' motion. While a pointer drags them, they follow it without delay.
 *
 * @param {State} state
 * @param {Figure} main
 */
function momentOf({ motion, row, limits, log2Scale }, main) {
  const held = main.element.matches(":active");
  return motion.at(row, limits, log2Scale, held, performance.now());
}

/**
 * Return the pen, the colours and the axis that a histogram is drawn with, at the moving scale.
 *
 * @param {State} state
 * @param {Figure} main
 * @param {Pen} pen
 * @param {number} width
 * @returns {Picture}
 */
function pictureOf(state, main, pen, width) {
  const { tint, limits } = state;
  const { log2Scale } = momentOf(state, main);
  return { pen, tint, limits, log2Scale, area: areaOf(state, main, width) };
}

/**
 * Return the figure of the chosen layer's histogram, with the handle of the scale on its axis.
 *
 * @param {State} state
 * @param {Life} life
 */
function mainFigure(state, life) {
  const { root, about } = state;
  /** @type {Figure} */
  const main = figure({
    life,
    label:
      `How many ${about.kind} lie in each power of two; ` +
      "the numbers below and the sentence above say the same",
    height: (width) => Math.round(Math.min(270, Math.max(230, width * 0.22))),
    draw(pen, width, height) {
      const picture = pictureOf(state, main, pen, width);
      const anchor = picture.area.x(anchorOf(state.row, about.max_log2_scale));
      root.style.setProperty("--uf-at", `${anchor * main.grown - THUMB_WIDTH / 2}px`);
      root.style.setProperty("--uf-axis", `${BOTTOM * main.grown}px`);
      const { falls, moving } = momentOf(state, main);
      drawHistogram(picture, state.row, height, falls);
      if (moving) main.redraw();
    },
  });
  main.element.classList.add("uf-main", "lk-drag");
  return main;
}

/**
 * Return the figure of all layers' histograms, one below the other.
 *
 * @param {State} state
 * @param {Figure} main
 * @param {Life} life
 */
function stripsFigure(state, main, life) {
  const strips = figure({
    life,
    label: "",
    height: ROW * state.layers.length,
    draw(pen, width, height) {
      drawLayers(pictureOf(state, main, pen, width), state.layers, height);
      if (momentOf(state, main).moving) strips.redraw();
    },
  });
  strips.canvas.setAttribute("aria-hidden", "true");
  return strips;
}

/**
 * Return the label for the power of two under the pointer, and its place.
 *
 * @param {State} state
 * @param {Figure} main
 * @param {Spot | null} spot
 * @returns {[x: number, y: number, text: string] | null}
 */
function hoverLabel(state, main, spot) {
  if (!spot || spot.held) return null;
  const { row, log2Scale, limits } = state;
  const area = areaOf(state, main, main.width);
  const e = Math.floor((spot.x - area.left) / area.binade) + AXIS.lo;
  if (e < AXIS.lo || e >= AXIS.hi) return null;
  const count = row.counts[e - log2Scale - row.lo] ?? 0;
  const share = percent(row.total ? count / row.total : 0);
  const range = `2^${e} = ${decimal(2 ** e)} to 2^${e + 1}`;
  const amount = `${share} (${count.toLocaleString("en-US")})`;
  const fate = MEANING[fateOf(e, limits)].name;
  return [area.x(e + 0.5), spot.y, `${range}: ${amount}, ${fate}`];
}

// --- the widget ----------------------------------------------------------------------------------

/**
 * Return what the histogram counts, with a capital letter.
 *
 * @param {Model<Traits>} model
 */
function kindOf(model) {
  return model.get("_about").kind.replace(/^./, (first) => first.toUpperCase());
}

/**
 * Return the note about elements that the chosen layer's histogram leaves out.
 *
 * @param {State} state
 */
function noteOfState({ row, layers }) {
  if (row !== layers[0]) return noteOf(row, row.name, []);
  const allZero = layers.filter(({ elements, zeros }) => elements && zeros === elements);
  const names = allZero.map(({ name }) => name);
  return noteOf(row, null, names);
}

/**
 * Fill the root of the underflow histogram.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillUnderflow(root, model, life) {
  const layers = prepared(model.get("_rows"));
  /** @type {State} */
  const state = {
    root,
    layers,
    row: layers[0],
    log2Scale: 0,
    limits: model.get("_windows"),
    about: model.get("_about"),
    tint: colours(root, life, () => show()),
    motion: scaleMotion(),
    area: null,
  };
  readTraits();

  const title = `${kindOf(model)}, step ${state.about.step}`;
  const chosen = h("span", { class: "lk-quiet" });
  const head = h(
    "div",
    { class: "lk-head" },
    h("span", { class: "lk-title", text: title }),
    chosen,
  );
  const scale = scaleControl(state, choose);
  const words = sentence(model);
  const main = mainFigure(state, life);
  const bar = fateBar();
  const observed = observedBar(state);
  const strips = stripsFigure(state, main, life);
  const list = layerList(layers, (name) => choose({ layer: name }), strips.element);
  const note = h("p", { class: "lk-quiet uf-note" });
  main.element.prepend(scale.handle.element);
  bar.element.append(observed.element);
  root.append(head, scale.element, words.element, main.element, bar.element, list.element, note);

  function readTraits() {
    const name = model.get("layer");
    state.log2Scale = model.get("log2_scale");
    state.row = layers.find((candidate) => candidate.name === name) ?? state.row;
  }

  function show() {
    const { row, log2Scale, limits, about, tint } = state;
    const shares = fractions(row, log2Scale, limits);
    const layer = row === layers[0] ? null : row.name;
    const sharesOfLayers = layers.map((other) => fractions(other, log2Scale, limits));
    scale.set(log2Scale);
    chosen.textContent = layer === null ? row.name : `layer ${layer}`;
    bar.set(shares, tint);
    observed.set(row);
    list.set(row.name, sharesOfLayers);
    words.say(sayFate(shares, log2Scale, layer, about.kind, limits.format));
    note.textContent = noteOfState(state);
    main.redraw();
    strips.redraw();
  }

  function follow() {
    readTraits();
    show();
  }

  /** @type {Choose} */
  function choose(change) {
    put(model, change);
    follow();
  }

  watch(life, model, ["log2_scale", "layer"], follow);
  dragging(life, main, state, scale.handle, choose);
  hovering(life, main, (spot) => hoverLabel(state, main, spot));
  show();
}

export default view(
  { label: (model) => `${kindOf(model)} and the loss scale`, kind: "underflow", alone: true },
  fillUnderflow,
);
