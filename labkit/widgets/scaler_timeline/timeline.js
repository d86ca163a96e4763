// One loss scaler on a recorded trace of gradients: its four settings, and its scale at each step.

import { figure } from "../base/canvas.js";
import { nearest, sentence, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { watch } from "../base/model.js";
import {
  inkDot,
  inkFrame,
  inkLine,
  inkNames,
  inkSkips,
  inkSteps,
  inkWindow,
  inkZoneNames,
  levelIn,
  stairs,
  stepAt,
  stepPlot,
} from "../base/plot.js";
import { colours } from "../base/theme.js";
import { counted } from "../exact/numbers.js";
import { hoverStep } from "./hover.js";
import { drawHovered, drawScale, rangeOf, scaleTicks, stepText, windowOf } from "./plot.js";
import { KNOB_PLACES, placeText, replayOf, replaySentence, skipsOf } from "./replay.js";

/** @import { Pen } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { ScaleWindow, StepPlot } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Knob, Replay } from "./replay.js" */
/** @import { TimelineTraits } from "./view.js" */

/**
 * The state of the widget.
 *
 * @typedef {object} Timeline
 * @property {Model<TimelineTraits>} model
 * @property {ScaleWindow} bounds
 * @property {Palette} palette
 * @property {Replay} replay
 * @property {Replay | null} before The replay from before a knob began to move.
 * @property {number} changed When a knob last moved, in ms.
 */

// The places of both panels, in pixels.
const SCALE = { top: 30, height: 252 };
const TRACKER = { top: SCALE.top + SCALE.height + 42, height: 54 };
const TIMELINE_HEIGHT = TRACKER.top + TRACKER.height + 32;
// After a rest of this length, a move of a knob is a new change, compared with the scale before it.
const REST_MS = 700;
const LABEL =
  "The loss scale of each step before the window between underflow and overflow; " +
  "the sentence above says how it fares";
const KNOBS = /** @type {Knob[]} */ (Object.keys(KNOB_PLACES));

/**
 * Replay the scaler on the trace with these knobs.
 *
 * @param {Model<TimelineTraits>} model
 */
function replayWithKnobs(model) {
  const config = {
    ...model.get("_about").config,
    init_scale: 2 ** model.get("init_log2_scale"),
    growth_factor: model.get("growth_factor"),
    backoff_factor: model.get("backoff_factor"),
    growth_interval: model.get("growth_interval"),
  };
  return replayOf(config, model.get("_trace"));
}

// --- the picture ---------------------------------------------------------------------------------

/**
 * Draw the panel of the scale, and below it that of the growth tracker.
 *
 * @param {Timeline} timeline
 * @param {Pen} pen
 * @param {number} width
 * @param {number | null} hovered the step under the pointer
 */
function drawTimeline(timeline, pen, width, hovered) {
  const { model, replay, before, bounds, palette } = timeline;
  const { steps } = model.get("_about");
  const plot = stepPlot(pen, width, palette, { total: steps });
  const [low, high] = rangeOf(before ? [replay, before] : [replay], [0, 32]);
  /** @type {[number, number]} */
  const range = [Math.min(0, 4 * Math.floor(low / 4)), Math.max(34, high + 1)];
  const y = levelIn(SCALE, range);
  inkWindow(plot, SCALE, bounds, y);
  inkFrame(plot, SCALE, "Loss scale", scaleTicks(range), y);
  if (before) drawBefore(plot, before, y);
  drawScale(plot, replay, y);
  inkZoneNames(plot, SCALE);
  if (before) nameBefore(plot, y(before.scale[steps - 1]));
  inkSkips(plot, SCALE, counted(skipsOf(replay), "skipped step"), palette.ink);
  drawTracker(plot, replay, model.get("growth_interval"));
  inkSteps(plot, TRACKER.top + TRACKER.height);
  if (!hovered) return;
  drawHovered(plot, hovered, SCALE, TRACKER);
  inkDot(plot, plot.x(hovered), y(replay.scale[hovered - 1]), 3.5, palette.fp16);
}

/**
 * Draw the scale from before a knob began to move, as a thin dashed line.
 *
 * @param {StepPlot} plot
 * @param {Replay} before
 * @param {(value: number) => number} y
 */
function drawBefore(plot, before, y) {
  const style = { colour: plot.tint.ink2, width: 1.25, crosses: 0, dash: [3, 4] };
  drawScale(plot, before, y, style);
}

/**
 * Write the name of that line at its end.
 *
 * @param {StepPlot} plot
 * @param {number} y the end of the line
 */
function nameBefore(plot, y) {
  const name = { name: "before", fill: plot.tint.ink2, x: plot.end + 5, y };
  inkNames(plot, [name], 15, SCALE.top, SCALE.top + SCALE.height);
}

/**
 * Draw the panel of the growth tracker.
 *
 * @param {StepPlot} plot
 * @param {Replay} replay
 * @param {number} interval the clean steps after which the scale grows
 */
function drawTracker(plot, { tracker }, interval) {
  const most = Math.max(1, interval - 1);
  const y = levelIn(TRACKER, [0, most]);
  const when = `at ${interval.toLocaleString("en-US")} the scale grows`;
  /** @type {[number, string][]} */
  const ticks = [[0, "0"]];
  if (interval > 1) ticks.push([most, String(most)]);
  inkFrame(plot, TRACKER, `Growth tracker: clean steps in a row; ${when}`, ticks, y);
  inkLine(plot, stairs(plot, tracker, y), plot.tint.ink2, 1.25);
}

// --- the view ------------------------------------------------------------------------------------

/**
 * Return the slider of a trait. If Python sets the trait to a value between two positions, the
 * slider is at the nearest one, with the value itself as text.
 *
 * @param {Model<TimelineTraits>} model
 * @param {Knob} name
 */
function knobSlider(model, name) {
  const values = KNOB_PLACES[name];
  const control = slider({
    label: name.replace("log2_", ""),
    min: 0,
    max: values.length - 1,
    page: 4,
    value: nearest(values, model.get(name)),
    text: (i) => placeText(name, values[i]),
    onInput(i) {
      model.set(name, values[i]);
      model.save_changes();
    },
  });
  control.element.dataset.knob = name;
  return {
    element: control.element,
    show() {
      const value = model.get(name);
      control.set(nearest(values, value));
      if (values.includes(value)) return;
      control.output.replaceChildren(String(value));
      control.input.setAttribute("aria-valuetext", String(value));
    },
  };
}

/**
 * Fill the root of `ScalerTimeline`.
 *
 * @param {HTMLElement} root
 * @param {Model<TimelineTraits>} model
 * @param {Life} life
 */
export function fillTimeline(root, model, life) {
  const { steps, source } = model.get("_about");
  /** @type {Timeline} */
  const timeline = {
    model,
    bounds: windowOf(model.get("_trace")),
    palette: colours(root, life, () => picture.redraw()),
    replay: replayWithKnobs(model),
    before: null,
    changed: performance.now(),
  };
  const knobs = KNOBS.map((name) => knobSlider(model, name));
  const picture = figure({
    life,
    label: LABEL,
    height: TIMELINE_HEIGHT,
    draw: (pen, width) => drawTimeline(timeline, pen, width, hover.step),
  });
  const words = sentence(model);
  const title = h("span", { class: "lk-title", text: "The loss scale, step by step" });
  root.append(
    h("div", { class: "lk-head" }, title, h("span", { class: "lk-quiet", text: source })),
    h("div", { class: "st-knobs" }, ...knobs.map(({ element }) => element)),
    words.element,
    picture.element,
  );
  const hover = hoverStep(
    life,
    picture,
    (x) => stepAt(picture, x, { total: steps }),
    (step) => stepText(timeline.replay, timeline.bounds, step),
  );

  function follow() {
    const now = performance.now();
    if (now - timeline.changed > REST_MS) timeline.before = timeline.replay;
    timeline.changed = now;
    timeline.replay = replayWithKnobs(model);
    show();
  }

  function show() {
    for (const knob of knobs) knob.show();
    words.say(replaySentence(timeline.replay));
    // The figure is drawn at once, so that it follows the knob without the delay of a frame.
    picture.drawNow();
  }

  watch(life, model, KNOBS, follow);
  show();
}
