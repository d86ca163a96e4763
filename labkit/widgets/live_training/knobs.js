// What the workbench and the live training have in common beside the picture: knobs, the metric, and what a page may know.

import { segmented } from "../base/controls.js";
import { heldSlider } from "../driven/controls.js";
import { tell, tellLatest, wishFor } from "../driven/store.js";

export function turn(store, knob, to) {
  tell(store, { do: "turn", knob, to });
}

export function scalingKnob(store) {
  const options = store.model.get("_offers").scaling.map((value) => ({ value, label: value }));
  const onChange = (to) => {
    wishFor(store, to === "off" ? 0 : store.state.knobs.log2_scale);
    turn(store, "scaling", to);
  };
  return segmented({ label: "Loss scaling", options, value: "off", onChange });
}

// With scaling off it stays where it is. `text` says what a scale is called here.
export function scaleKnob(store, text) {
  const [min, max] = store.model.get("_offers").log2_scale;
  const made = heldSlider({
    label: "Scale",
    min,
    max,
    page: 4,
    value: min,
    text: (e) => text(e, store.state?.knobs.scaling === "off"),
    onInput() {
      if (made.input.getAttribute("aria-disabled") === "true") return made.set(min);
      wishFor(store, made.value);
      tellLatest(store, { do: "turn", knob: "log2_scale", to: made.value });
    },
  });
  made.show = ({ knobs, scale }) => {
    made.input.setAttribute("aria-disabled", String(knobs.scaling === "off"));
    if (!made.held) made.set(knobs.scaling === "static" ? knobs.log2_scale : Math.round(scale));
  };
  return made;
}

export function metricText({ metric_name, fp32_metric, branches }) {
  const metrics = [
    ["FP32", fp32_metric],
    ...branches.map(({ name, metric }) => [name, metric]),
  ].filter(([, m]) => m);
  return metrics.length ? `${metric_name}: ${metrics.map((m) => m.join(" ")).join(", ")}` : "";
}

export function exposeRuns(store) {
  const { state, branches } = store;
  const [last, forked] = branches.map((rows) => rows.at(-1));
  return {
    step: branches[0].length,
    scaling: state.knobs.scaling,
    scale: last?.scale ?? "",
    loss: last?.loss ?? "",
    fp32: store.fp32[branches[0].length - 1] ?? "",
    underflow: branches[0].findLast((row) => !Number.isNaN(row.underflow))?.underflow ?? NaN,
    skipped: state.skipped,
    marks: state.branches[0].marks.map((mark) => `${mark.step}: ${mark.label}`).join("; "),
    previous: store.previous.length,
    fork: branches[1].length,
    forkLoss: forked?.loss ?? "",
    origin: state.branches[1]?.origin ?? "",
    active: state.active,
  };
}
