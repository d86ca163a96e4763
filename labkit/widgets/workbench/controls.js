// The knobs of a run. Each sends its name and its position, and shows the kernel's.

import { button, segmented, slider, toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { heldSlider } from "../driven/controls.js";
import { schedule, tell, tellLatest, upToDate } from "../driven/store.js";
import { scaleKnob, scalingKnob, turn } from "../live_training/knobs.js";

const HINTS = {
  format: "what matrix products read",
  autocast:
    "on: weights stay FP32, each operation casts by the lists. off: the model itself is converted",
  norms_fp32: "a converted model keeps its normalisation layers in FP32",
  accumulator:
    "what matrix products add up in: FP32, FP16, or a GPU's Tensor Core, emulated to the bit",
  masters:
    "kept: FP32 between steps. forgotten: the step is FP32, its result is rounded. none: the optimizer is 16-bit too",
  scaling: "what the loss is multiplied by",
  log2_scale: "where the scale stays, or starts",
  log2_lr: "the task's own learning rate, times",
  epsilon: "what Adam adds to the root it divides by",
};

export function makeKnobs(store) {
  const offers = store.model.get("_offers");
  const pick = (knob, label) =>
    segmented({
      label,
      options: offers[knob],
      value: null,
      onChange: (to) => turn(store, knob, to),
    });
  const flip = (knob, label) =>
    toggle({ label, value: false, onChange: (to) => turn(store, knob, to) });
  const [min, max] = offers.log2_lr;
  const knobs = {
    format: pick("format", "Format"),
    autocast: flip("autocast", "Autocast"),
    norms_fp32: flip("norms_fp32", "Norms in FP32"),
    accumulator: pick("accumulator", "Sums"),
    masters: pick("masters", "FP32 masters"),
    scaling: scalingKnob(store),
    log2_scale: scaleKnob(store, (e, off) => (off ? "off" : `2^${e}`)),
    log2_lr: heldSlider({
      label: "Learning rate ×",
      min,
      max,
      page: 4,
      value: 0,
      text: (e) => (e < 0 ? `1/${2 ** -e}` : String(2 ** e)),
      onInput: (to) => tellLatest(store, { do: "turn", knob: "log2_lr", to }),
    }),
    epsilon: pick("epsilon", "Epsilon"),
  };
  for (const [name, knob] of Object.entries(knobs)) {
    knob.element.dataset.knob = name;
    knob.element.title = HINTS[name];
  }
  return knobs;
}

export function showKnobs(store, knobs) {
  const { state } = store;
  if (!upToDate(store)) return; // this frame is older than what the learner just did
  for (const [name, knob] of Object.entries(knobs)) {
    const why = state.fixed[name];
    const still = why && !(name === "accumulator" && state.knobs.format === "BF16");
    knob.enable(!still);
    knob.element.dataset.fixed = Boolean(still);
    knob.element.title = why || HINTS[name];
    if (knob.show) knob.show(state);
    else if (!knob.held) knob.set(state.knobs[name]);
  }
}

// Where the run is forked, and whose knobs are on show.
export function forkControls(store) {
  const at = slider({
    label: "Fork after step",
    min: 0,
    max: 1,
    page: 20,
    value: 0,
    text: String,
    onInput: () => (at.touched = true),
  });
  at.input.addEventListener("input", () => schedule(store));
  const fork = button({
    label: "Fork",
    title: "let a second run leave here",
    onPress: () => tell(store, { do: "fork", step: at.value }),
  });
  fork.element.dataset.button = "fork";
  const options = [
    { value: "0", label: "run" },
    { value: "1", label: "fork" },
  ];
  const onChange = (to) => tell(store, { do: "choose", branch: Number(to) });
  const active = segmented({ label: "Knobs of the", options, value: "0", onChange });
  return {
    element: h("div", { class: "lk-row wb-fork" }, at.element, fork.element, active.element),
    show({ step, total, branches, active: of }) {
      const most = Math.max(Math.min(step, total - 1), 1);
      const value = at.touched ? Math.min(at.value, most) : Math.floor(most / 2);
      if (Number(at.input.max) !== most || at.value !== value) {
        at.limit(most);
        at.set(value);
      }
      for (const one of [at, fork]) one.enable(step > 0);
      active.element.hidden = branches.length < 2;
      if (upToDate(store)) active.set(String(of));
    },
  };
}
