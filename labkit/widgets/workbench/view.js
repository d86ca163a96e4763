// The workbench: the curves, the knobs of a run or its fork beside them, the bytes that runs keep,
// the run as a program of plain torch, and buttons that save and copy.

import { button, choice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { tell } from "../driven/store.js";
import { exposeRuns, metricText } from "../live_training/knobs.js";
import { drawRuns, HOVER, panels, RUN_POINTS } from "../live_training/plot.js";
import { forkControls, makeKnobs, showKnobs, workbenchOffers } from "./controls.js";
import { memoryBars } from "./memory.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Parts } from "../driven/face.js" */
/** @import { RunStore } from "../live_training/knobs.js" */
/** @import { RunState } from "../live_training/plot.js" */
/** @import { Knobs } from "./controls.js" */
/** @import { MemoryRow } from "./memory.js" */

/** @typedef {import("../live_training/knobs.js").RunTraits} Traits */

/**
 * The state that the kernel sends (`Workbench.state`).
 *
 * @typedef {RunState & {
 *   task: string,
 *   tasks: string[],
 *   recipe: string,
 *   recipes: string[],
 *   memory: MemoryRow[],
 *   lines: string,
 *   opens: string,
 * }} WorkbenchState
 */

// The curve of FP32 is broad, so that it is visible behind curves that cover it.
const PLACE = panels(
  { loss: 150, scale: 62, underflow: 44, swallowed: 44 },
  { width: 5, alpha: 0.45 },
);

/** @param {RunState} state */
function whole(state) {
  return /** @type {WorkbenchState} */ (state);
}

/**
 * @param {RunStore} store
 * @param {Parts} parts
 * @param {Life} _
 * @param {HTMLElement} root
 */
function layout(store, parts, _, root) {
  const task = choice({ label: "Task", onChange: (to) => tell(store, { do: "choose", task: to }) });
  const recipe = choice({
    label: "Recipe",
    onChange: (to) => tell(store, { do: "choose", recipe: to }),
  });
  const buttons = pressButtons(store, ["start", "step", "reset"]);
  const knobs = makeKnobs(store);
  const fork = forkControls(store);
  const memory = memoryBars(workbenchOffers(store).categories);
  const take = takeAlong(store);
  // Beside the picture, so that a knob is turned and the curve watched at the same time.
  const turned = h("div", { class: "run-trains" }, knobGroups(knobs), fork.element, parts.notice);
  const lines = h("pre", { class: "wb-lines", tabindex: "0" });
  const title = h("summary", { text: "The same in plain torch" });
  root.append(
    parts.head,
    h("div", { class: "lk-row wb-choices" }, task.element, recipe.element, ...buttons.elements),
    parts.words.element,
    h("div", { class: "wb-panels run-panels" }, parts.picture.element, turned),
    parts.place.element,
    memory.element,
    take.element,
    h("details", { class: "wb-details" }, title, lines),
  );

  /** @param {RunState} running */
  function show(running) {
    const state = whole(running);
    buttons.show(state);
    parts.metric.textContent = metricText(state);
    task.show(named(state.tasks), state.task, "your own");
    recipe.show(named(state.recipes), state.recipe, "your own");
    fork.show(state);
    take.show(state);
    showKnobs(store, state, knobs);
    memory.show(state.memory);
    if (lines.textContent !== state.lines) lines.textContent = state.lines;
  }
  return show;
}

/**
 * Return names as options of a list.
 *
 * @param {readonly string[]} names
 * @returns {[value: string, text: string][]}
 */
function named(names) {
  return names.map((name) => [name, name.replaceAll("_", " ")]);
}

/** @param {Knobs} knobs */
function knobGroups(knobs) {
  const { format, autocast, norms_fp32: norms, accumulator } = knobs;
  const { scaling, log2_scale: scale, masters, epsilon, log2_lr: rate } = knobs;
  return h(
    "div",
    { class: "wb-groups" },
    group("A format: turning it begins the run again", [format, autocast, norms, accumulator]),
    group("May change on the way", [scaling, scale, masters, epsilon, rate]),
  );
}

/**
 * @param {string} title
 * @param {{ element: HTMLElement }[]} made
 */
function group(title, made) {
  const legend = h("legend", { class: "lk-quiet", text: title });
  return h("fieldset", { class: "lk-row wb-group" }, legend, ...made.map(({ element }) => element));
}

/**
 * Return the controls that save the record and the picture, and copy the line that opens this
 * workbench.
 *
 * @param {RunStore} store
 */
function takeAlong(store) {
  /** @param {string} what */
  const save = (what) => {
    const onPress = () => tell(store, { do: "save", what });
    return button({ label: `Save ${what}`, onPress });
  };
  const record = save("record");
  const picture = save("picture");
  const open = h("input", {
    type: "text",
    class: "wb-open",
    readonly: true,
    "aria-label": "A line that opens this workbench",
  });
  const copied = h("span", { class: "lk-quiet", role: "status" });
  const copy = button({
    label: "Copy a line that opens this",
    title: "For somebody else, or for next time: task, recipe, seed and knobs",
    onPress: copyLine,
  });

  async function copyLine() {
    const done = await copyText(open.value);
    copied.textContent = done ? "Copied." : "Press Ctrl+C to copy it.";
    if (done) return;
    // If the page may not use the clipboard, the learner can copy the selected line by Ctrl+C.
    open.focus();
    open.select();
  }
  const made = [record.element, picture.element, copy.element, open, copied];
  return {
    element: h("div", { class: "lk-row wb-export" }, ...made),
    /** @param {WorkbenchState} state */
    show({ step, opens }) {
      record.enable(step > 0);
      picture.enable(step > 0);
      if (open.value !== opens) copied.textContent = "";
      open.value = opens;
      open.hidden = !opens;
      copy.element.hidden = !opens;
    },
  };
}

/**
 * Write a text to the clipboard; return whether that succeeded.
 *
 * @param {string} text
 */
async function copyText(text) {
  if (!navigator.clipboard) return false;
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

export default drivenView({
  label: "Workbench",
  kind: "workbench",
  picture: "Loss, scale, underflow and swallowed updates by step",
  points: RUN_POINTS,
  height: PLACE.height,
  hover: HOVER,
  paint: (scene, step) => drawRuns(scene, PLACE, step),
  layout,
  expose(state, points) {
    const { task, recipe } = whole(state);
    return { ...exposeRuns(state, points), task, recipe };
  },
});
