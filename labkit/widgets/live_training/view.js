// The live training as one picture. On the left are loss and scale by step; on the right the
// histogram of gradients, whose handle sets the scale, and below it the results of the networks.

import { toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { decimal } from "../base/number_words.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { tell, upToDate } from "../driven/store.js";
import { gradientHistogram } from "./histogram.js";
import { exposeRuns, metricText, scaleKnob, scalingKnob, turn } from "./knobs.js";
import { drawRuns, HOVER, lossesOnShow, panels, RIGHT, RUN_POINTS } from "./plot.js";
import { switchedOn } from "./recorded_forks.js";
import { resultPictures } from "./results.js";
import { sketchPad } from "./sketch_pad.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Parts } from "../driven/face.js" */
/** @import { RunStore } from "./knobs.js" */
/** @import { RunPoints, RunState } from "./plot.js" */

/** @typedef {import("./knobs.js").RunTraits} Traits The traits of this widget. */

// The line of FP32.
const THIN = { width: 1.5 };
// Both have the same height, so that nothing moves when the panels change during a training.
const GRADIENTS = panels({ loss: 158, scale: 132 }, THIN);
const UPDATES = panels({ loss: 118, scale: 82, swallowed: 52 }, THIN);
const FORGETS = "off: after each step, what FP16 cannot hold of a weight is forgotten";

/**
 * Put the parts of the widget into its root.
 *
 * @param {RunStore} store
 * @param {Parts} parts
 * @param {Life} life
 * @param {HTMLElement} root
 * @returns {(state: RunState) => void} shows a state
 */
function layout(store, parts, life, root) {
  const buttons = pressButtons(store, ["start", "step", "stop", "reset"]);
  const scaling = scalingKnob(store);
  const text = (/** @type {number} */ log2Scale) => `2^${log2Scale} = ${decimal(2 ** log2Scale)}`;
  const scale = scaleKnob(store, text, false);
  const masters = toggle({
    label: "FP32 master weights",
    value: true,
    onChange: (on) => turn(store, "masters", on),
  });
  const gradients = gradientHistogram(store, life, parts.tint, scale);
  const results = resultPictures(Boolean(store.model.onPage));
  const rule = h("p", { class: "lk-quiet lt-rule" });
  const curves = h("div", { class: "lt-curves" }, parts.picture.element);
  const beside = h("div", { class: "lt-beside" }, gradients.element, results.element);
  const sketch = sketchPad(store, life, {
    picture: parts.picture,
    panel: () => (store.state ? panelsFor(store.state) : GRADIENTS).loss,
    right: RIGHT,
    losses: lossesOnShow,
  });
  const controls = h("div", { class: "lk-row lt-controls" }, ...buttons.elements);
  controls.append(scaling.element, masters.element);
  root.append(parts.head, controls);
  // A page without a kernel shows no controls of a training, but one can predict there.
  if (sketch && store.model.onPage) {
    root.append(h("div", { class: "lk-row run-record" }, ...sketch.controls));
  } else if (sketch) {
    controls.append(...sketch.controls);
  }
  root.append(
    parts.notice,
    parts.words.element,
    h("div", { class: "lt-panels run-panels" }, curves, beside),
    gradients.followed,
    ...(sketch ? [sketch.words] : []),
    rule,
    parts.place.element,
  );

  /** @param {RunState} state */
  function show(state) {
    buttons.show(state);
    parts.metric.textContent = metricText(state);
    rule.textContent = state.rule;
    gradients.show(state);
    results.show(state);
    sketch?.show(state);
    // The knobs keep the learner's last positions until the kernel has them.
    if (!upToDate(store)) return;
    scaling.set(state.knobs.scaling);
    scale.show(state);
    masters.set(state.knobs.masters === "kept");
    masters.enable(!state.fixed.masters);
    masters.element.title = state.fixed.masters || FORGETS;
  }
  return show;
}

/**
 * Return the panels for the shares of a run.
 *
 * @param {RunState} state
 */
function panelsFor({ shares }) {
  return shares.includes("swallowed") ? UPDATES : GRADIENTS;
}

/**
 * Put the run back to a step that was done. The steps after it stay as a ghost.
 *
 * @param {RunStore} store
 * @param {RunState} state
 * @param {number} step
 */
function goBack(store, state, step) {
  if (store.model.onPage || step >= state.step) return;
  tell(store, { do: "back", step });
}

/**
 * Return the text about the step under the pointer.
 *
 * @param {RunState} state
 * @param {RunPoints} points
 * @param {number} step
 */
function hoverWords(state, points, step) {
  const words = HOVER.text(state, points, step);
  return !state.recorded && step < state.step ? `${words}. Click: back to this step` : words;
}

export default drivenView({
  label: "Live training",
  kind: "live",
  picture: "Loss and loss scale by step; Enter goes back to the step that the arrow keys point at",
  points: RUN_POINTS,
  height: GRADIENTS.height,
  hover: { ...HOVER, text: hoverWords },
  paint: (scene, step) => drawRuns(scene, panelsFor(scene.state), step),
  layout,
  pick: goBack,
  switchOn: switchedOn,
  expose: exposeRuns,
});
