// The workbench: every knob of a recipe, a fork, and what can be taken along.

import { button, choice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { tell } from "../driven/store.js";
import { exposeRuns, metricText } from "../live_training/knobs.js";
import { HOVER, RUN_POINTS, drawRuns, panels } from "../live_training/plot.js";
import { forkControls, makeKnobs, showKnobs } from "./controls.js";

// FP32 is broad here: it is seen under curves that cover it.
const PLACE = panels(
  { loss: 216, scale: 62, underflow: 50, swallowed: 50 },
  { width: 5, alpha: 0.45 },
);

const PARTS = ["#56b4e9", "#b9b9b9", "#e8c15a", "#8fd0b5"]; // the colours of what memory is kept for, as `categories` has them

// Bytes as bars on one scale; a letter in each part, so that colour is not the only sign.
function showMemory(store, memory) {
  const rows = store.state.memory;
  const { categories } = store.model.get("_offers");
  const key = JSON.stringify(rows);
  if (memory.dataset.rows === key) return;
  memory.dataset.rows = key;
  const letter = (i) => categories[i][0].toUpperCase();
  const most = Math.max(1, ...rows.map((row) => row.bytes.reduce((a, b) => a + b, 0)));
  const share = (row, bytes, i) =>
    h("span", {
      title: row.texts[i],
      tabindex: "0",
      data: { part: i },
      style: { background: PARTS[i], width: `${(100 * bytes) / most}%` },
      text: letter(i),
    });
  const bar = (row) =>
    h(
      "div",
      { class: "wb-bar", role: "img", "aria-label": `${row.name}: ${row.texts.join(", ")}` },
      ...row.bytes.map((bytes, i) => (bytes ? share(row, bytes, i) : null)),
    );
  const legend = h(
    "div",
    { class: "lk-row lk-quiet wb-legend" },
    h("span", { text: "Bytes kept between steps (no activations):" }),
  );
  categories.forEach((name, i) =>
    legend.append(
      h(
        "span",
        { class: "lk-row lk-tight wb-key" },
        h("span", { data: { part: i }, style: { background: PARTS[i] }, text: letter(i) }),
        name,
      ),
    ),
  );
  const lines = rows.map((row) => [
    h("span", { class: "wb-name", text: row.name }),
    bar(row),
    h("span", { text: row.total }),
  ]);
  memory.replaceChildren(
    ...(rows.length ? [legend, h("div", { class: "wb-bars" }, ...lines.flat())] : []),
  );
}

function layout(store, parts, life, root) {
  const choose = (what) => (to) => tell(store, { do: "choose", [what]: to });
  const save = (what) =>
    button({ label: `Save ${what}`, onPress: () => tell(store, { do: "save", what }) });
  const group = (title, ...made) =>
    h(
      "fieldset",
      { class: "lk-row wb-group" },
      h("legend", { class: "lk-quiet", text: title }),
      ...made.map((k) => k.element),
    );
  const [task, recipe] = [
    choice({ label: "Task", onChange: choose("task") }),
    choice({ label: "Recipe", onChange: choose("recipe") }),
  ];
  const [record, picture] = [save("record"), save("picture")];
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
    open.select(); // where the page may not use the clipboard, the line is ready for Ctrl+C
    const done = await navigator.clipboard?.writeText(open.value).then(
      () => true,
      () => false,
    );
    copied.textContent = done ? "Copied." : "Press Ctrl+C to copy it.";
  }
  const buttons = pressButtons(store, ["start", "step", "reset"]);
  const fork = forkControls(store);
  const knobs = makeKnobs(store);
  const memory = h("div", { class: "wb-memory" });
  const lines = h("pre", { class: "wb-lines", tabindex: "0" });
  root.append(
    parts.head,
    h("div", { class: "lk-row wb-choices" }, task.element, recipe.element, ...buttons.elements),
    h(
      "div",
      { class: "wb-groups" },
      group(
        "A format: turning it begins the run again",
        knobs.format,
        knobs.autocast,
        knobs.norms_fp32,
        knobs.accumulator,
      ),
      group(
        "May change on the way",
        knobs.scaling,
        knobs.log2_scale,
        knobs.masters,
        knobs.epsilon,
        knobs.log2_lr,
      ),
    ),
    fork.element,
    parts.notice,
    parts.words.element,
    parts.picture.element,
    parts.place.element,
    memory,
    h(
      "div",
      { class: "lk-row wb-export" },
      record.element,
      picture.element,
      copy.element,
      open,
      copied,
    ),
    h("details", { class: "wb-details" }, h("summary", { text: "The same in plain torch" }), lines),
  );
  const named = (names) => names.map((name) => [name, name.replaceAll("_", " ")]);
  return () => {
    const { state } = store;
    buttons.show(state);
    parts.metric.textContent = metricText(state);
    task.show(named(state.tasks), state.task, "your own");
    recipe.show(named(state.recipes), state.recipe, "your own");
    fork.show(state);
    for (const one of [record, picture]) one.enable(state.step > 0);
    if (open.value !== state.opens) copied.textContent = "";
    open.value = state.opens;
    open.hidden = copy.element.hidden = !state.opens;
    showKnobs(store, knobs);
    showMemory(store, memory);
    if (lines.textContent !== state.lines) lines.textContent = state.lines;
  };
}

export default drivenView({
  label: "Workbench",
  kind: "workbench",
  picture: "Loss, scale, underflow and swallowed updates by step",
  points: RUN_POINTS,
  height: PLACE.height,
  hover: HOVER,
  paint: (page, step) => drawRuns(page, PLACE, step),
  layout,
  expose: (store) => ({ ...exposeRuns(store), task: store.state.task, recipe: store.state.recipe }),
});
