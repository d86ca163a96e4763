// What the workbench and the live training share beside the picture: knobs, the metric, and the
// values that tests read.

import { segmented } from "../base/controls.js";
import { heldSlider } from "../driven/controls.js";
import { tell, tellLatest, wishFor } from "../driven/store.js";

/** @import { Option } from "../base/controls.js" */
/** @import { HeldSlider } from "../driven/controls.js" */
/** @import { Frame, Offers, Store } from "../driven/store.js" */
/** @import { RunPoints, RunState } from "./plot.js" */

/** @typedef {Store<RunState, RunPoints>} RunStore */
/** @typedef {"off" | "static" | "dynamic"} Scaling */

/**
 * The positions of a run's knobs, and whether the loss is sketched first.
 *
 * @typedef {Offers & {
 *   scaling: Scaling[],
 *   log2_scale: [number, number],
 *   sketch: boolean,
 * }} RunOffers
 */

/** @typedef {(readonly [step: number, loss: number])[]} Sketch A sketched loss, by step. */

/**
 * The traits of a run that is driven (`LiveTraining`).
 *
 * @typedef {object} RunTraits
 * @property {RunOffers} _offers
 * @property {Sketch} sketched The losses that the learner sketched; empty without a sketch.
 * @property {Frame<RunState>} [_frame] The first frame, on a page without a kernel.
 * @property {string} [run] The points of the run as text, for the saved notebook.
 */

/**
 * Return the positions of the knobs of a run.
 *
 * @param {RunStore} store
 */
export function offersOf(store) {
  return /** @type {RunOffers} */ (store.model.get("_offers"));
}

/**
 * Turn a knob of the run in the kernel.
 *
 * @param {RunStore} store
 * @param {string} knob its name
 * @param {unknown} to its new position
 */
export function turn(store, knob, to) {
  tell(store, { do: "turn", knob, to });
}

/**
 * Return the choice of the kind of loss scaling.
 *
 * @param {RunStore} store
 */
export function scalingKnob(store) {
  /** @type {Option<Scaling>[]} */
  const options = offersOf(store).scaling.map((value) => ({ value, label: value }));
  /** @param {Scaling} to */
  const onChange = (to) => {
    wishFor(store, to === "off" ? 0 : (store.state?.knobs.log2_scale ?? 0));
    turn(store, "scaling", to);
  };
  return segmented({ label: "Loss scaling", options, value: "off", onChange });
}

/** @typedef {HeldSlider & { show: (state: RunState) => void }} ScaleKnob The scale's slider. */

/**
 * Return the slider of the scale. With scaling off it does not move.
 *
 * @param {RunStore} store
 * @param {(log2Scale: number, off: boolean) => string} text returns the text of a scale
 * @param {boolean} [labelled] false: the label is for screen readers only
 * @returns {ScaleKnob}
 */
export function scaleKnob(store, text, labelled = true) {
  const [min, max] = offersOf(store).log2_scale;
  const made = /** @type {ScaleKnob} */ (
    heldSlider({
      label: labelled ? "Scale" : "Loss scale",
      labelled,
      min,
      max,
      page: 4,
      value: min,
      text: (log2Scale) => text(log2Scale, store.state?.knobs.scaling === "off"),
      onInput() {
        if (made.input.getAttribute("aria-disabled") === "true") {
          made.set(min);
          return;
        }
        wishFor(store, made.value);
        tellLatest(store, { do: "turn", knob: "log2_scale", to: made.value });
      },
    })
  );
  made.show = ({ knobs, scale }) => {
    made.input.setAttribute("aria-disabled", String(knobs.scaling === "off"));
    if (!made.held) made.set(knobs.scaling === "static" ? knobs.log2_scale : Math.round(scale));
  };
  return made;
}

/**
 * Return the metrics that are known, as "Accuracy: FP32 0.997, FP16 0.113"; "" before the first.
 *
 * @param {RunState} state
 */
export function metricText({ metric_name, fp32_metric, branches }) {
  const sides = [{ name: "FP32", metric: fp32_metric }, ...branches];
  const known = sides.filter(({ metric }) => metric);
  if (!known.length) return "";
  return `${metric_name}: ${known.map(({ name, metric }) => `${name} ${metric}`).join(", ")}`;
}

/**
 * Return the values that were drawn last, for tests in a browser.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 */
export function exposeRuns(state, points) {
  const [run, fork] = points.branches;
  const last = run[run.length - 1];
  const measured = run.findLast((row) => !Number.isNaN(row.underflow));
  const marks = state.branches[0].marks.map(({ step, label }) => `${step}: ${label}`);
  return {
    step: run.length,
    scaling: state.knobs.scaling,
    scale: last?.scale ?? "",
    loss: last?.loss ?? "",
    fp32: points.fp32[run.length - 1] ?? "",
    underflow: measured?.underflow ?? NaN,
    skipped: state.skipped,
    marks: marks.join("; "),
    previous: points.previous.length,
    ghosts: points.ghosts.filter((rows) => rows.length > 0).length,
    measured: points.map.length,
    fork: fork.length,
    forkLoss: fork[fork.length - 1]?.loss ?? "",
    origin: state.branches[1]?.origin ?? "",
    active: state.active,
  };
}
