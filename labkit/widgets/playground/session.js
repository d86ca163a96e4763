// A training and its twin that run in slices of time, so that no knob waits for them.
//
// A worker would take 1.2 to 1.6 times the steps a second (tests/benchmarks/bench_playground.py,
// two cores, Chromium). It needs the text of all these modules a second time, since a page from
// file:// has no address to load them from, and a copy of the session in the page. The slices reach
// what is asked of them, and work in every page, so there is no worker.

import { outputsOf, trainStep, twinOf } from "./trainer.js";

/** @import { Report, Training } from "./trainer.js" */

const SLICE_MS = 8;
const CHUNK = 64; // samples of a portrait in one go
export const MOST_STEPS = 5000;

/**
 * What both networks make of some samples, brought up to date a part at a time.
 *
 * @typedef {object} Portrait
 * @property {Float32Array} inputs
 * @property {number} count The number of samples.
 * @property {Float32Array[]} outputs The outputs of the training, and those of the twin.
 * @property {number} next The sample that is next.
 */

/**
 * @typedef {object} Session
 * @property {Training} training
 * @property {Training} twin
 * @property {Report | null} last
 * @property {Report | null} lastTwin
 * @property {number[]} losses
 * @property {number[]} twinLosses
 * @property {number[]} scales The log2 of the scales.
 * @property {number[]} skipped The steps that were skipped.
 * @property {number} skips The number of steps in a row that were skipped up to now.
 * @property {{ step: number, name: string } | null} broken The first parameter that held inf or
 *   NaN, and after which step.
 * @property {Portrait} portrait
 */

/**
 * @param {Training} training that has not begun
 * @param {Float32Array} inputs of the portrait
 * @returns {Session}
 */
export function newSession(training, inputs) {
  const twin = twinOf(training);
  twin.method = { ...training.method };
  const count = inputs.length / training.problem.shape.sizes[0];
  const outputs = [training, twin].map((one) => outputsOf(one, inputs));
  return {
    training,
    twin,
    last: null,
    lastTwin: null,
    losses: [],
    twinLosses: [],
    scales: [],
    skipped: [],
    skips: 0,
    broken: null,
    portrait: { inputs, count, outputs, next: 0 },
  };
}

/**
 * Take one step with both.
 *
 * @param {Session} session changed in place
 */
export function stepBoth(session) {
  halfStep(session);
  if (session.twinLosses.length < session.losses.length) halfStep(session);
}

/**
 * Take one step with the training, or with the twin where that is behind.
 *
 * @param {Session} session changed in place
 */
function halfStep(session) {
  if (session.twinLosses.length < session.losses.length) {
    session.lastTwin = trainStep(session.twin);
    session.twinLosses.push(session.lastTwin.loss);
    return;
  }
  const report = trainStep(session.training);
  session.last = report;
  session.losses.push(report.loss);
  session.scales.push(Math.log2(report.scale));
  session.skips = report.skipped ? session.skips + 1 : 0;
  if (report.skipped) session.skipped.push(session.losses.length);
  if (report.broken) session.broken ??= { step: session.losses.length, name: report.broken };
}

/**
 * Train for a slice of time, but no further than some steps.
 *
 * @param {Session} session changed in place
 * @param {number} most steps
 * @param {number} [goal] the last step
 */
export function trainSlice(session, most, goal = MOST_STEPS) {
  const end = performance.now() + SLICE_MS;
  const last = Math.min(goal, session.twinLosses.length + most);
  while (session.twinLosses.length < last && performance.now() < end) halfStep(session);
}

/**
 * Bring a part of the portrait up to date.
 *
 * @param {Session} session changed in place
 * @returns {boolean} whether that was its last part
 */
export function portraySome({ training, twin, portrait }) {
  const wide = training.problem.shape.sizes[0];
  const from = portrait.next;
  const to = Math.min(portrait.count, from + CHUNK);
  const some = portrait.inputs.subarray(from * wide, to * wide);
  for (const [i, one] of [training, twin].entries()) {
    const made = outputsOf(one, some);
    portrait.outputs[i].set(made, (from * made.length) / (to - from));
  }
  portrait.next = to % portrait.count;
  return portrait.next === 0;
}
