// Recorded forks. On a page that cannot train, switching the loss scale on plays the fork that was
// recorded from that step.

import { rowsOf } from "../driven/store.js";
import { mapRow } from "./map.js";
import { takeRows } from "./plot.js";

/** @import { Variant } from "../driven/record.js" */
/** @import { RunPoints, RunState } from "./plot.js" */
/** @import { Painted } from "./results.js" */

/**
 * A recorded fork (`LiveTraining.page_records`).
 *
 * @typedef {object} RecordedFork
 * @property {number} origin The steps before the switch.
 * @property {string} label The change of the scaling.
 * @property {number} buffer The number of the buffer of its points.
 * @property {{ buffer: number, log2_scales: number[] }} map The number of the buffer of its map.
 * @property {string} metric The metric after the last step.
 * @property {Painted[]} pictures The pictures that its network painted.
 */

/** @typedef {RunState & { forks?: RecordedFork[] }} RecordedState */

/**
 * Return the run with its scale switched on at the last recorded fork at or before a step; if there
 * is none, at the first fork.
 *
 * @param {RunPoints} whole the run without a scale
 * @param {RunState} content
 * @param {DataView[]} buffers
 * @param {number} step
 * @returns {Variant<RunState, RunPoints> | null} null without recorded forks
 */
export function switchedOn(whole, content, buffers, step) {
  const { forks = [] } = /** @type {RecordedState} */ (content);
  if (!forks.length) return null;
  const fork = forks.findLast(({ origin }) => origin <= step) ?? forks[0];
  const recorded = whole.recorded.slice(0, fork.origin);
  const after = /** @type {typeof recorded} */ ([]);
  takeRows(after, fork.origin, buffers[fork.buffer]);
  const columns = 1 + 2 * fork.map.log2_scales.length;
  const later = rowsOf(buffers[fork.map.buffer], columns).map(mapRow);
  const map = [...whole.map.filter((row) => row.step <= fork.origin), ...later];
  return {
    origin: fork.origin,
    points: { ...whole, recorded: [...recorded, ...after], map },
    state: stateOf(content, fork),
  };
}

/**
 * Return the state of the run with a fork: its sentence, mark, scaling, metric and pictures.
 *
 * @param {RunState} content
 * @param {RecordedFork} fork
 * @returns {RunState}
 */
function stateOf(content, fork) {
  const [run] = content.branches;
  const mark = { step: fork.origin + 1, label: fork.label };
  const result = content.result && {
    ...content.result,
    runs: content.result.runs.map((one) => {
      if (one.name !== run.name) return one;
      const before = one.pictures.filter(({ step }) => step <= fork.origin);
      return { ...one, pictures: [...before, ...fork.pictures] };
    }),
  };
  const end = `${content.metric_name} ${fork.metric} at the end`;
  return {
    ...content,
    sentence: `The same training, with ${fork.label} after step ${fork.origin}: ${end}.`,
    branches: [{ ...run, marks: [mark], metric: fork.metric }],
    knobs: { ...content.knobs, scaling: "static" },
    result,
  };
}
