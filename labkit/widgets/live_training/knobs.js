// What the workbench and the live training share beside the picture: knobs, the metric, and the
// data for a page without a kernel.

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
 * What a run's knobs may be turned to, and whether the loss is sketched first.
 *
 * @typedef {Offers & {
 *   scaling: Scaling[],
 *   log2_scale: [number, number],
 *   sketch: boolean,
 * }} RunOffers
 */

/** @typedef {(readonly [step: number, loss: number])[]} Sketch by step */

/**
 * The traits of a run that is driven (`LiveTraining`).
 *
 * @typedef {object} RunTraits
 * @property {RunOffers} _offers
 * @property {Sketch} sketched The losses that the learner sketched; empty without a sketch.
 * @property {Frame<RunState>} [_frame] The first frame, on a page without a kernel.
 * @property {string} [run] The page's own note of the run, for the saved notebook.
 */

/** @param {RunStore} store */
export function offersOf(store) {
  return /** @type {RunOffers} */ (store.model.get("_offers"));
}

/**
 * @param {RunStore} store
 * @param {string} knob
 * @param {unknown} to
 */
export function turn(store, knob, to) {
  tell(store, { do: "turn", knob, to });
}

/** @param {RunStore} store */
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

/** @typedef {HeldSlider & { show: (state: RunState) => void }} ScaleKnob */

/**
 * The handle of the scale; with scaling off it stays where it is.
 *
 * @param {RunStore} store
 * @param {(log2Scale: number, off: boolean) => string} text what a scale is called here
 * @param {boolean} [labelled] false: screen readers alone are told its label
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
 * The metrics that are known, as "Accuracy: FP32 0.997, FP16 0.113".
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
 * What tests may know of what was drawn last.
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
