// A page without a kernel plays a recorded training: its steps appear faster than they were
// trained. If forks were recorded, the scale can be switched on while it plays.

import { player, segmented, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { schedule } from "./store.js";

/** @import { Option } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Parts } from "./face.js" */
/** @import { DrivenState, Frame, Store } from "./store.js" */

/**
 * A recorded run whose scaling was switched on at a step.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Variant
 * @property {number} origin The number of steps before the switch.
 * @property {Points} points The points of all steps.
 * @property {State} state The state after the last step.
 */

/**
 * Returns the recorded run whose scaling was switched on last before a step, or else first of all;
 * null if there is none.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {(whole: Points, content: State, buffers: DataView[], step: number)
 *   => Variant<State, Points> | null} Switch
 */

// The time in which a whole run is played, and that between two frames.
const PLAY_MS = 8000;
const FRAME_MS = 40;
/** @type {Option<string>[]} */
const SCALING = [
  { value: "off", label: "off" },
  { value: "static", label: "static" },
];

/**
 * Play the run of the page's frame.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {HTMLElement} root
 * @param {Parts} parts
 * @param {Life} life
 * @param {Switch<State, Points>} [switchOn]
 */
export function playRecord(store, root, parts, life, switchOn) {
  const frame = /** @type {Frame<State>} */ (store.model.get("_frame"));
  const { content, buffers } = frame;
  const whole = store.kind.empty();
  store.kind.take(whole, content, buffers);
  const total = longest(whole);
  let points = whole;
  let state = content;
  // The number of steps that are shown: at first all of them.
  let shown = total;

  /** @param {number} count */
  function show(count) {
    shown = count;
    store.points = firstOf(points, count);
    store.state = { ...state, step: count };
    where.set(count);
    schedule(store);
  }
  function advance() {
    const from = shown === total ? 0 : shown;
    show(Math.min(total, from + Math.ceil((total * FRAME_MS) / PLAY_MS)));
    return shown < total;
  }
  /** @param {string} scaling */
  function turn(scaling) {
    // At the end of a run no step would follow. Then the earliest recorded switch is taken, and the
    // run continues from there.
    const at = shown === total ? 0 : shown;
    const variant = scaling === "off" ? null : switchOn?.(whole, content, buffers, at);
    points = variant?.points ?? whole;
    state = variant?.state ?? content;
    show(variant && shown === total ? variant.origin : shown);
    if (variant) play.start();
  }

  const play = player({ title: "play the recorded run", pace: FRAME_MS, advance, life });
  const where = slider({
    label: "Step",
    min: 0,
    max: total,
    page: Math.ceil(total / 10),
    value: total,
    onInput(step) {
      play.stop();
      show(step);
    },
  });
  const canSwitch = switchOn?.(whole, content, buffers, 0) != null;
  const given = { label: "Loss scaling", options: SCALING, value: "off", onChange: turn };
  const knob = canSwitch ? segmented(given).element : null;
  const source = content.recorded.replace("recorded: ", "");
  const text = `A run on record: ${source}. In the lab you train it yourself.`;
  root.classList.add("run-plays");
  parts.head.after(h("div", { class: "lk-row run-record" }, play.element, where.element, knob));
  parts.picture.element.after(h("p", { class: "lk-quiet run-record", text }));
  show(total);
}

/**
 * Return the recorded curves as [name, values]. On a page, those of the learner are empty.
 *
 * @param {object} points
 * @returns {[name: string, values: unknown[]][]}
 */
function recordedCurves(points) {
  return Object.entries(points).filter(([name]) => name.startsWith("recorded"));
}

/**
 * Return the number of steps of the longest recorded curve.
 *
 * @param {object} points
 */
function longest(points) {
  return Math.max(...recordedCurves(points).map(([, values]) => values.length));
}

/**
 * Return the points of the first steps.
 *
 * @template {object} Points
 * @param {Points} points
 * @param {number} count
 * @returns {Points}
 */
function firstOf(points, count) {
  const cut = recordedCurves(points).map(([name, values]) => [name, values.slice(0, count)]);
  return { ...points, ...Object.fromEntries(cut) };
}
