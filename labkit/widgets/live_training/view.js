// The live training: three knobs over curves that grow.

import { toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { decimal } from "../base/number_words.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { upToDate } from "../driven/store.js";
import { exposeRuns, metricText, scaleKnob, scalingKnob, turn } from "./knobs.js";
import { drawRuns, HOVER, panels, RUN_POINTS } from "./plot.js";

/** @import { Parts } from "../driven/face.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { RunStore } from "./knobs.js" */
/** @import { RunState } from "./plot.js" */

/** @typedef {import("../driven/store.js").DrivenTraits} Traits */

const PLACE = panels({ loss: 238, scale: 84, underflow: 72 }, { width: 1.5 });
const FORGETS = "off: after each step, what FP16 cannot hold of a weight is forgotten";

/**
 * @param {RunStore} store
 * @param {Parts} parts
 * @param {Life} _
 * @param {HTMLElement} root
 */
function layout(store, parts, _, root) {
  const buttons = pressButtons(store, ["start", "step", "stop", "reset"]);
  const scaling = scalingKnob(store);
  const scale = scaleKnob(store, (log2Scale, off) =>
    off ? "2^0 = 1, off" : `2^${log2Scale} = ${decimal(2 ** log2Scale)}`,
  );
  const masters = toggle({
    label: "FP32 master weights",
    value: true,
    onChange: (on) => turn(store, "masters", on),
  });
  const rule = h("div", { class: "lk-quiet" });
  root.append(
    parts.head,
    h("div", { class: "lk-row" }, ...buttons.elements),
    h("div", { class: "lk-row" }, scaling.element, scale.element, masters.element),
    rule,
    parts.notice,
    parts.words.element,
    parts.picture.element,
    parts.place.element,
  );

  /** @param {RunState} state */
  function show(state) {
    buttons.show(state);
    parts.metric.textContent = metricText(state);
    rule.textContent = state.rule;
    if (!upToDate(store)) return; // this frame is older than what the learner just did
    scaling.set(state.knobs.scaling);
    scale.show(state);
    masters.set(state.knobs.masters === "kept");
    masters.enable(!state.fixed.masters);
    masters.element.title = state.fixed.masters || FORGETS;
  }
  return show;
}

export default drivenView({
  label: "Live training",
  kind: "live",
  picture: "Loss, loss scale and underflow by step",
  points: RUN_POINTS,
  height: PLACE.height,
  hover: HOVER,
  paint: (scene, step) => drawRuns(scene, PLACE, step),
  layout,
  expose: exposeRuns,
});
