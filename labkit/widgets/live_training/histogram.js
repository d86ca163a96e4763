// The histogram of a layer's gradients at the current loss scale. Its handle sets the scale.

import { figure, pointed } from "../base/canvas.js";
import { choice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { decimal, percent } from "../base/number_words.js";
import { reducedMotion } from "../base/theme.js";
import { picking } from "../driven/face.js";
import { derived } from "../exact/numbers.js";
import { scaleMotion } from "../underflow/motion.js";
import {
  AXIS,
  anchorOf,
  areaBetween,
  BOTTOM,
  drawHistogram,
  fractions,
  prepared,
} from "../underflow/plot.js";
import { exampleOf, followedGradient } from "./follow.js";
import { offersOf } from "./knobs.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { FormatRow } from "../exact/numbers.js" */
/** @import { Area, Picture, PreparedRow } from "../underflow/plot.js" */
/** @import { LayerRow, Windows } from "../underflow/view.js" */
/** @import { RunStore, ScaleKnob } from "./knobs.js" */
/** @import { Followed } from "./follow.js" */
/** @import { RunState } from "./plot.js" */

/**
 * How many FP32 gradients of each layer lie in each power of two (`LiveTraining._gradients`).
 *
 * @typedef {object} Gradients
 * @property {number} step The step that was measured.
 * @property {LayerRow[]} layers All layers together first.
 * @property {Windows} windows The representable ranges of the run's format.
 * @property {Record<string, ([index: number, value: number] | null)[]>} examples
 *   For each layer one gradient of each power of two.
 * @property {[FormatRow, FormatRow]} formats FP32, and the format of the run.
 */

// Lengths in pixels of the picture. On both sides of the axis of exponents is room for the shares
// of elements beyond its ends, and on the left for the axis of shares, too.
const PICTURE_HEIGHT = 236;
const SHARES_ROOM = 62;
const INF_ROOM = 48;
// The upper end of a marked bar, below the names of the windows.
const MARK_TOP = 60;
// The width of the slider's thumb in CSS pixels, as in base.css.
const THUMB = 20;
// The opacity of the mark over a bar.
const MARK_ALPHA = 0.25;
const NOT_MEASURED = "The gradients appear here with the first step.";

/**
 * The histogram: what it shows, and its parts.
 *
 * @typedef {object} GradientView
 * @property {RunStore} store
 * @property {readonly [least: number, most: number]} range Of the scales, as log2.
 * @property {PreparedRow[]} layers Empty until the first gradients are shown.
 * @property {LayerRow[] | null} preparedFrom The rows from which `layers` was prepared.
 * @property {string} chosen The name of the layer that is shown; all layers if there is none.
 * @property {Followed | null} followed The gradient that is followed.
 * @property {number | null} pointedAt The exponent of the bar under the pointer, at the scale that
 *   is shown.
 * @property {ReturnType<typeof scaleMotion>} motion
 */

/**
 * Return the histogram of one layer's gradients at the present scale, with the handle of the scale
 * on its axis and the panel of a gradient that is followed.
 *
 * @param {RunStore} store
 * @param {Life} life
 * @param {Palette} tint
 * @param {ScaleKnob} handle the knob of the scale, which is put on the axis
 */
export function gradientHistogram(store, life, tint, handle) {
  /** @type {GradientView} */
  const gradientView = {
    store,
    range: offersOf(store).log2_scale,
    layers: [],
    preparedFrom: null,
    chosen: "",
    followed: null,
    pointedAt: null,
    motion: scaleMotion(),
  };
  const picture = histogramFigure(gradientView, life, tint);
  handle.element.classList.add("lt-handle");
  const empty = h("p", { class: "lk-quiet lt-empty", text: NOT_MEASURED });
  picture.element.append(handle.element, empty);
  const layer = choice({
    label: "Gradients of",
    onChange(name) {
      gradientView.chosen = name;
      showLast();
    },
  });
  const drop = skipNotice();
  const label = scaleLabel(handle);
  const labelled = [layer.element, drop.element, ...label.elements];
  const words = h("p", { class: "lk-quiet lt-fates" });
  const panel = followedGradient(() => follow(null));
  picking(life, picture.canvas, () => {
    const one = pointedExample(gradientView);
    if (one) follow(one);
  });

  /**
   * Follow a gradient, or none.
   *
   * @param {Followed | null} one
   */
  function follow(one) {
    gradientView.followed = one;
    showLast();
    if (!one) picture.canvas.focus();
  }

  function showLast() {
    if (store.state) show(store.state);
  }

  /** @param {RunState} state */
  function show(state) {
    const { gradients } = state;
    const log2Scale = scaleShown(store, state);
    takeGradients(gradientView, gradients);
    const { followed, layers } = gradientView;
    empty.hidden = gradients !== null;
    for (const element of [handle.element, layer.element, words]) {
      element.hidden = gradients === null;
    }
    panel.element.hidden = followed === null;
    label.show(log2Scale, state.knobs.scaling === "off" && store.wish === null);
    if (gradients) {
      const row = chosenRow(gradientView);
      layer.show(
        layers.map(({ name }) => [name, name]),
        row.name,
      );
      words.replaceChildren(rich(fateText(row, log2Scale, gradients)));
      const [single, format] = gradients.formats;
      if (followed) panel.show(followed, log2Scale, [derived(single), derived(format)]);
    }
    drop.show(state.skipped);
    picture.drawNow();
  }

  const element = h(
    "div",
    { class: "lt-gradients run-trains" },
    h("div", { class: "lk-row lt-head" }, ...labelled),
    picture.element,
    words,
  );
  return { element, followed: panel.element, show };
}

/**
 * Return the row of the chosen layer, or that of all layers.
 *
 * @param {GradientView} gradientView
 */
function chosenRow({ layers, chosen }) {
  return layers.find(({ name }) => name === chosen) ?? layers[0];
}

/**
 * Return the scale to which the handle was moved, or that of the next step, as log2.
 *
 * @param {RunStore} store
 * @param {RunState} state
 */
function scaleShown(store, state) {
  return store.wish ?? Math.round(state.scale);
}

/**
 * Prepare the rows of new gradients.
 *
 * @param {GradientView} gradientView
 * @param {Gradients | null} gradients null before the first step
 */
function takeGradients(gradientView, gradients) {
  if (!gradients) {
    // A run without gradients is a new one, so nothing of the old run is shown any longer.
    gradientView.followed = null;
    gradientView.layers = [];
    gradientView.preparedFrom = null;
  } else if (gradientView.preparedFrom !== gradients.layers) {
    gradientView.preparedFrom = gradients.layers;
    gradientView.layers = prepared(gradients.layers);
  }
}

/**
 * Return a gradient of the bar under the pointer; null if it has none.
 *
 * @param {GradientView} gradientView
 */
function pointedExample(gradientView) {
  const { store, layers, pointedAt } = gradientView;
  const { state } = store;
  // Between the arrival of the first gradients and `show`, there are no layers.
  if (!state?.gradients || !layers.length || pointedAt === null) return null;
  const exponent = pointedAt - scaleShown(store, state);
  return exampleOf(state.gradients, chosenRow(gradientView).name, exponent);
}

/**
 * Return the figure of the histogram, which notes the bar under the pointer.
 *
 * @param {GradientView} gradientView
 * @param {Life} life
 * @param {Palette} tint
 */
function histogramFigure(gradientView, life, tint) {
  /** @type {Figure} */
  const picture = figure({
    life,
    label:
      "How many gradients lie in each power of two; the line below says the same. " +
      "Enter follows one gradient of the bar that the arrow keys point at",
    height: PICTURE_HEIGHT,
    draw(pen, width, height) {
      drawGradients(gradientView, { pen, tint }, picture, width, height);
    },
  });
  picture.element.classList.add("lt-histogram");
  pointed(life, picture, (spot) => {
    const area = areaBetween(SHARES_ROOM, picture.width - INF_ROOM);
    gradientView.pointedAt = null;
    if (spot && spot.x >= area.left && spot.x < area.right) {
      gradientView.pointedAt = Math.floor((spot.x - area.left) / area.binade) + AXIS.lo;
    }
    picture.redraw();
  });
  return picture;
}

/**
 * Draw the histogram, with marks over the bars that are pointed at and followed.
 *
 * @param {GradientView} gradientView
 * @param {Pick<Picture, "pen" | "tint">} drawing
 * @param {Figure} picture
 * @param {number} width
 * @param {number} height
 */
function drawGradients(gradientView, { pen, tint }, picture, width, height) {
  const { store, layers, range, followed, pointedAt, motion } = gradientView;
  const { state } = store;
  const gradients = state?.gradients;
  // Between the arrival of the first gradients and `show`, there are no layers.
  if (!state || !gradients || !layers.length) return;
  const area = areaBetween(SHARES_ROOM, width - INF_ROOM);
  const row = chosenRow(gradientView);
  const held = picture.element.matches(":active");
  const limits = gradients.windows;
  const scale = scaleShown(store, state);
  const { log2Scale, falls, moving } = motion.at(row, limits, scale, held, performance.now());
  placeHandle(picture, area, anchorOf(row, range[1]), range);
  drawHistogram({ pen, tint, area, limits, log2Scale }, row, height, falls);
  const bars = [pointedAt, followed && followed.exponent + log2Scale];
  for (const bar of bars) markBar({ pen, tint, area }, bar, height - BOTTOM);
  if (moving) picture.redraw();
}

/**
 * Return the label of the scale and its value, which are above the picture.
 *
 * @param {ScaleKnob} handle
 */
function scaleLabel(handle) {
  const name = h("label", { for: handle.input.id, text: "Loss scale" });
  const value = h("output", { class: "lt-scale", for: handle.input.id });
  return {
    elements: [name, value],
    /**
     * Show a scale.
     *
     * @param {number} log2Scale
     * @param {boolean} off whether the loss is not scaled
     */
    show(log2Scale, off) {
      const number = h("span", { class: "lk-quiet", text: ` = ${decimal(2 ** log2Scale)}` });
      value.replaceChildren(rich(`2^${log2Scale}`), number, off ? ", off" : "");
    },
  };
}

/**
 * Put the track of the handle on the axis. The handle moves along with the highest bar: its track
 * begins below the bar's place at the least scale, and ends below that at the largest one.
 *
 * @param {Figure} picture
 * @param {Area} area
 * @param {number} anchor the exponent of the highest bar at scale 1
 * @param {readonly [least: number, most: number]} range of the scales, as log2
 */
function placeHandle({ element, grown }, area, anchor, [least, most]) {
  const start = area.x(anchor) + least * area.binade;
  const length = area.binade * (most - least);
  element.style.setProperty("--lt-at", `${start * grown - THUMB / 2}px`);
  element.style.setProperty("--lt-track", `${length * grown + THUMB}px`);
  element.style.setProperty("--lt-axis", `${BOTTOM * grown}px`);
}

/**
 * Mark a bar from top to bottom.
 *
 * @param {Pick<Picture, "pen" | "tint" | "area">} picture
 * @param {number | null} exponent null for none
 * @param {number} bottom
 */
function markBar({ pen, tint, area }, exponent, bottom) {
  if (exponent === null) return;
  pen.globalAlpha = MARK_ALPHA;
  pen.fillStyle = tint.accent;
  pen.fillRect(area.x(exponent), MARK_TOP, area.binade, bottom - MARK_TOP);
  pen.globalAlpha = 1;
}

// The time in which the note of a skipped step falls.
const DROP_MS = 900;

/** Return a note that falls beside the scale when a step was skipped. */
function skipNotice() {
  const text = "inf: skipped";
  const element = h("span", { class: "lt-drop", "aria-hidden": "true", text });
  // Nothing falls for the steps that were skipped before the widget is shown.
  let known = Infinity;
  return {
    element,
    /** @param {number} skipped steps so far */
    show(skipped) {
      const dropped = skipped > known && !reducedMotion();
      known = skipped;
      if (!dropped) return;
      const from = { opacity: 1, transform: "translateY(-12px)" };
      const to = { opacity: 0, transform: "translateY(14px)" };
      // The note is opaque until it is almost down, so that it can be read.
      const down = { ...from, transform: "translateY(8px)", offset: 0.8 };
      element.animate([from, down, to], { duration: DROP_MS, easing: "ease-in" });
    },
  };
}

/**
 * Return the shares of the gradients that the format changes, in a line that does not wrap.
 *
 * @param {PreparedRow} row
 * @param {number} log2Scale
 * @param {Gradients} gradients
 */
function fateText(row, log2Scale, { step, windows }) {
  const { underflowed, subnormal, overflowed } = fractions(row, log2Scale, windows);
  const parts = [`${percent(underflowed)} to zero`, `${percent(subnormal)} lose bits`];
  if (overflowed) parts.push(`${percent(overflowed)} to inf`);
  return `Step ${step}, in ${windows.format}: ${parts.join(", ")}.`;
}
