// The live training: three knobs over curves that grow.

import { toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { decimal } from "../base/number_words.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { upToDate } from "../driven/store.js";
import { exposeRuns, metricText, scaleKnob, scalingKnob, turn } from "./knobs.js";
import { HOVER, RUN_POINTS, drawRuns, panels } from "./plot.js";

const PLACE = panels({ loss: 238, scale: 84, underflow: 72 }, { width: 1.5 });

export default drivenView({
  label: "Live training",
  kind: "live",
  picture: "Loss, loss scale and underflow by step",
  points: RUN_POINTS,
  height: PLACE.height,
  hover: HOVER,
  paint: (page, step) => drawRuns(page, PLACE, step),
  layout(store, parts, life, root) {
    const buttons = pressButtons(store, ["start", "step", "stop", "reset"]);
    const scaling = scalingKnob(store);
    const scale = scaleKnob(store, (e, off) =>
      off ? "2^0 = 1, off" : `2^${e} = ${decimal(2 ** e)}`,
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
    return () => {
      const { state } = store;
      buttons.show(state);
      parts.metric.textContent = metricText(state);
      rule.textContent = state.rule;
      if (!upToDate(store)) return; // this frame is older than what the learner just did
      scaling.set(state.knobs.scaling);
      scale.show(state);
      masters.set(state.knobs.masters === "kept");
      masters.enable(!state.fixed.masters);
      masters.element.title =
        state.fixed.masters ||
        "off: after each step, what FP16 cannot hold of a weight is forgotten";
    };
  },
  expose: exposeRuns,
});
