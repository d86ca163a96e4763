// A page without a kernel plays the run on record: its steps appear one after another, faster than
// they were trained.

import { player, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { schedule } from "./store.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Parts } from "./face.js" */
/** @import { DrivenState, Frame, Store } from "./store.js" */

const PLAY_MS = 8000; // a whole run
const FRAME_MS = 40;

/**
 * Play the run of the page's frame.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {HTMLElement} root
 * @param {Parts} parts
 * @param {Life} life
 */
export function playRecord(store, root, parts, life) {
  const frame = /** @type {Frame<State>} */ (store.model.get("_frame"));
  const { content } = frame;
  const whole = store.kind.empty();
  store.kind.take(whole, content, frame.buffers);
  const total = longest(whole);
  let shown = total; // the whole picture first

  /** @param {number} count */
  function show(count) {
    shown = count;
    store.points = firstOf(whole, count);
    store.state = { ...content, step: count };
    where.set(count);
    schedule(store);
  }
  function advance() {
    const from = shown === total ? 0 : shown;
    show(Math.min(total, from + Math.ceil((total * FRAME_MS) / PLAY_MS)));
    return shown < total;
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
  const source = content.recorded.replace("recorded: ", "");
  const text = `A run on record: ${source}. In the lab you train it yourself.`;
  root.classList.add("run-plays");
  parts.head.after(h("div", { class: "lk-row run-record" }, play.element, where.element));
  parts.picture.element.after(h("p", { class: "lk-quiet run-record", text }));
  show(total);
}

/**
 * The curves on record, as [name, values]; the learner's own are empty on a page.
 *
 * @param {object} points
 * @returns {[name: string, values: unknown[]][]}
 */
function recordedCurves(points) {
  return Object.entries(points).filter(([name]) => name.startsWith("recorded"));
}

/** @param {object} points */
function longest(points) {
  return Math.max(...recordedCurves(points).map(([, values]) => values.length));
}

/**
 * The points as they were after `count` steps.
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
