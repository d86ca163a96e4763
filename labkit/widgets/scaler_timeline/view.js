// A scaler on a trace: either one scaler with four knobs, or the presets of six frameworks.

import { view } from "../base/root.js";
import { fillPresets } from "./presets.js";
import { fillTimeline } from "./timeline.js";

/** @import { Model } from "../base/model.js" */
/** @import { Place } from "../base/root.js" */
/** @import { Config, Trace } from "./replay.js" */

/**
 * The traits of `ScalerTimeline`.
 *
 * @typedef {object} TimelineTraits
 * @property {number} init_log2_scale
 * @property {number} growth_factor
 * @property {number} backoff_factor
 * @property {number} growth_interval
 * @property {string} sentence
 * @property {"timeline"} _kind
 * @property {Trace} _trace
 * @property {{ steps: number, source: string, config: Config }} _about
 */

/**
 * The traits of `ScalerPresets`.
 *
 * @typedef {object} PresetTraits
 * @property {boolean} alike Whether all presets start at the same scale, with the same interval.
 * @property {string} selected The name of a preset.
 * @property {string} sentence
 * @property {"presets"} _kind
 * @property {Trace} _trace
 * @property {AboutPresets} _about
 */

/** @typedef {"alike" | "shipped"} Mode */

/**
 * The presets, and the training that they are replayed on.
 *
 * @typedef {object} AboutPresets
 * @property {string} source The source of the trace.
 * @property {Record<Mode, number>} steps The number of steps that are replayed.
 * @property {Record<Mode, Record<string, Config>>} configs The configurations, by the name of the
 *   preset.
 */

const TIMELINE = view(
  { label: "Scaler timeline", kind: "scaler-timeline", alone: true },
  fillTimeline,
);
const PRESETS = view(
  { label: "Six scalers on one training", kind: "scaler-presets", alone: true },
  fillPresets,
);

/**
 * Return whether a model is that of `ScalerTimeline`.
 *
 * @param {Model<TimelineTraits> | Model<PresetTraits>} model
 * @returns {model is Model<TimelineTraits>}
 */
function isTimeline(model) {
  // The type of the trait that both have: `get` of a union of models has no type of its own.
  /** @type {{ get: (name: "_kind") => string }} */
  const either = model;
  return either.get("_kind") === "timeline";
}

export default {
  /** @param {Place<TimelineTraits> | Place<PresetTraits>} place */
  render({ model, el, live }) {
    if (isTimeline(model)) return TIMELINE.render({ model, el, live });
    return PRESETS.render({ model, el, live });
  },
  /** @param {Model<TimelineTraits> | Model<PresetTraits>} model */
  answers: (model) => (isTimeline(model) ? TIMELINE.answers(model) : PRESETS.answers(model)),
};
