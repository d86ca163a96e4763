// The knobs of a run. A knob sends its name and its new position to the kernel, and shows the
// position in the kernel's state.

import { button, segmented, slider, toggle } from "../base/controls.js";
import { h, required } from "../base/elements.js";
import { heldSlider } from "../driven/controls.js";
import { tell, tellLatest, upToDate } from "../driven/store.js";
import { offersOf, scaleKnob, scalingKnob, turn } from "../live_training/knobs.js";

/** @import { Option } from "../base/controls.js" */
/** @import { RunOffers, RunStore } from "../live_training/knobs.js" */
/** @import { Position, RunState } from "../live_training/plot.js" */

/** @typedef {"format" | "accumulator" | "masters" | "epsilon"} Picked knobs with named positions */
/** @typedef {"autocast" | "norms_fp32"} Flipped knobs that are on or off */
/** @typedef {Picked | Flipped | "scaling" | "log2_scale" | "log2_lr"} KnobName */

/**
 * The positions of the workbench's knobs, and the categories of the memory bars.
 *
 * @typedef {RunOffers & Record<Picked, string[]> & {
 *   log2_lr: [number, number],
 *   categories: string[],
 * }} WorkbenchOffers
 */

/**
 * A knob on the page.
 *
 * @typedef {object} Knob
 * @property {HTMLElement} element
 * @property {(on: boolean) => void} enable
 * @property {(state: RunState) => void} show
 */

/** @typedef {Record<KnobName, Knob>} Knobs */

/** @type {Record<KnobName, string>} */
const HINTS = {
  format: "what matrix products read",
  autocast:
    "on: weights stay FP32, each operation casts by the lists. off: the model itself is converted",
  norms_fp32: "a converted model keeps its normalisation layers in FP32",
  accumulator:
    "what matrix products add up in: FP32, FP16, or a GPU's Tensor Core, emulated to the bit",
  masters:
    "kept: FP32 between steps. forgotten: the step is FP32, its result is rounded. " +
    "none: the optimizer is 16-bit too",
  scaling: "what the loss is multiplied by",
  log2_scale: "where the scale stays, or starts",
  log2_lr: "the task's own learning rate, times",
  epsilon: "what Adam adds to the root it divides by",
};

/** @param {RunStore} store */
export function workbenchOffers(store) {
  return /** @type {WorkbenchOffers} */ (offersOf(store));
}

/**
 * @param {RunStore} store
 * @returns {Knobs}
 */
export function makeKnobs(store) {
  const scaling = scalingKnob(store);
  const scale = scaleKnob(store, (log2Scale, off) => (off ? "off" : `2^${log2Scale}`));
  /** @type {Knobs} */
  const knobs = {
    format: formatKnob(store),
    autocast: flipped(store, "autocast", "Autocast"),
    norms_fp32: flipped(store, "norms_fp32", "Norms in FP32"),
    accumulator: picked(store, "accumulator", "Sums"),
    masters: picked(store, "masters", "FP32 masters"),
    scaling: { ...scaling, show: ({ knobs: at }) => scaling.set(at.scaling) },
    log2_scale: scale,
    log2_lr: learningRate(store),
    epsilon: picked(store, "epsilon", "Epsilon"),
  };
  for (const name of namesOf(knobs)) {
    knobs[name].element.dataset.knob = name;
    knobs[name].element.title = HINTS[name];
  }
  return knobs;
}

/** @param {Knobs} knobs */
function namesOf(knobs) {
  return /** @type {KnobName[]} */ (Object.keys(knobs));
}

/**
 * @param {RunStore} store
 * @param {Picked} name
 * @param {string} label
 * @returns {Knob}
 */
function picked(store, name, label) {
  const made = segmented({
    label,
    options: workbenchOffers(store)[name],
    value: "",
    onChange: (to) => turn(store, name, to),
  });
  return { ...made, show: ({ knobs }) => made.set(String(knobs[name])) };
}

// The value of the segment for a format that is not a position of the knob, such as FP8 or TF32.
const OPERANDS = "operands";

/**
 * Return the knob of the format. Under an FP32 recipe, layers may multiply numbers of another
 * format (FP8, TF32). Then an additional segment shows that format, and FP32 chooses the recipe
 * FP32.
 *
 * @param {RunStore} store
 * @returns {Knob}
 */
function formatKnob(store) {
  const positions = workbenchOffers(store).format;
  const made = segmented({
    label: "Format",
    options: [...positions, OPERANDS],
    value: "",
    onChange(to) {
      const leaves = to === "FP32" && store.state?.knobs.format === "FP32";
      if (leaves) tell(store, { do: "choose", recipe: "FP32" });
      else if (to !== OPERANDS) turn(store, "format", to);
    },
  });
  const other = required(made.element, ".lk-segment:last-child");
  return {
    ...made,
    show({ branches, active }) {
      const operands = branches[active].format;
      other.hidden = positions.includes(operands);
      required(other, "span").textContent = operands;
      made.set(other.hidden ? operands : OPERANDS);
    },
  };
}

/**
 * @param {RunStore} store
 * @param {Flipped} name
 * @param {string} label
 * @returns {Knob}
 */
function flipped(store, name, label) {
  const made = toggle({ label, value: false, onChange: (to) => turn(store, name, to) });
  return { ...made, show: ({ knobs }) => made.set(Boolean(knobs[name])) };
}

/**
 * @param {RunStore} store
 * @returns {Knob}
 */
function learningRate(store) {
  const [min, max] = workbenchOffers(store).log2_lr;
  const made = heldSlider({
    label: "Learning rate \u00d7",
    min,
    max,
    page: 4,
    value: 0,
    text: (exponent) => (exponent < 0 ? `1/${2 ** -exponent}` : String(2 ** exponent)),
    onInput: (to) => tellLatest(store, { do: "turn", knob: "log2_lr", to }),
  });
  return {
    element: made.element,
    enable: made.enable,
    show({ knobs }) {
      if (!made.held) made.set(Number(knobs.log2_lr));
    },
  };
}

/**
 * Show the kernel's positions, and which knobs cannot be turned now.
 *
 * @param {RunStore} store
 * @param {RunState} state
 * @param {Knobs} knobs
 */
export function showKnobs(store, state, knobs) {
  // An older frame would undo what the learner has just done.
  if (!upToDate(store)) return;
  for (const name of namesOf(knobs)) {
    const knob = knobs[name];
    const why = state.fixed[name];
    // In BF16 the accumulator has one position, but the knob is not disabled: after a click on
    // another position, the kernel sends the reason.
    const explains = name === "accumulator" && state.knobs.format === "BF16";
    const isFixed = Boolean(why) && !explains;
    knob.enable(!isFixed);
    knob.element.dataset.fixed = String(isFixed);
    knob.element.title = why || HINTS[name];
    knob.show(state);
  }
}

/**
 * Return the controls of the fork: the step, the button, and the choice whose knobs are shown.
 *
 * @param {RunStore} store
 */
export function forkControls(store) {
  let touched = false;
  const at = slider({
    label: "Fork after step",
    min: 0,
    max: 1,
    page: 20,
    value: 0,
    onInput() {
      touched = true;
    },
  });
  const fork = button({
    label: "Fork",
    title: "let a second run leave here",
    onPress: () => tell(store, { do: "fork", step: at.value }),
  });
  fork.element.dataset.button = "fork";
  /** @type {Option<string>[]} */
  const options = [
    { value: "0", label: "run" },
    { value: "1", label: "fork" },
  ];
  const active = segmented({
    label: "Knobs of the",
    options,
    value: "0",
    onChange: (to) => tell(store, { do: "choose", branch: Number(to) }),
  });
  return {
    element: h("div", { class: "lk-row wb-fork" }, at.element, fork.element, active.element),
    /** @param {RunState} state */
    show(state) {
      const most = Math.max(Math.min(state.step, state.total - 1), 1);
      const value = touched ? Math.min(at.value, most) : Math.floor(most / 2);
      if (Number(at.input.max) !== most || at.value !== value) {
        at.limit(most);
        at.set(value);
      }
      at.enable(state.step > 0);
      fork.enable(state.step > 0);
      active.element.hidden = state.branches.length < 2;
      if (upToDate(store)) active.set(String(state.active));
    },
  };
}
