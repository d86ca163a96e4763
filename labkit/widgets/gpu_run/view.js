// A button that starts or stops a run on a GPU, its progress, its output, and the pictures that it
// fills.

import { button, sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { watch } from "../base/model.js";
import { view } from "../base/root.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {"no gpu" | "ready" | "running" | "done" | "stopped" | "failed"} phase
 * @property {number} part The number of the part that runs, from 1; 0 before the first one.
 * @property {number} parts The number of all parts.
 * @property {string} sentence
 * @property {string} printed The last lines that the command printed.
 * @property {Picture[]} pictures
 * @property {string[]} paces A sentence about the speed of each task.
 */

/** @typedef {{ src: string, alt: string }} Picture src: a data URL; "" if it could not be drawn */

const START = "Measure my GPU (3 minutes)";

/** @param {Picture} picture */
function pictureOf({ src, alt }) {
  return src ? h("img", { src, alt }) : h("p", { text: alt });
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillGpuRun(root, model, life) {
  const press = button({
    label: START,
    kind: "primary",
    onPress: () => model.send({ do: model.get("phase") === "running" ? "stop" : "start" }),
  });
  const bar = h("progress", { "aria-label": "Parts done", max: 1, value: 0 });
  const words = sentence();
  const printed = h("pre");
  const summary = h("summary", { text: "What the command prints" });
  const details = h("details", { hidden: true }, summary, printed);
  const paces = h("ul");
  const pictures = h("div");

  function showProgress() {
    const phase = model.get("phase");
    root.dataset.phase = phase;
    press.setLabel(phase === "running" ? "Stop" : START);
    press.enable(phase !== "no gpu");
    bar.hidden = phase !== "running";
    bar.max = Math.max(1, model.get("parts"));
    // The part that is running is not done.
    bar.value = Math.max(0, model.get("part") - 1);
    words.say(model.get("sentence"));
    details.hidden = !model.get("printed");
    printed.textContent = model.get("printed");
  }

  function showResults() {
    paces.replaceChildren(...model.get("paces").map((text) => h("li", { text })));
    pictures.replaceChildren(...model.get("pictures").map(pictureOf));
  }

  const row = h("div", { class: "lk-row" }, press.element, bar);
  root.append(row, words.element, details, paces, pictures);
  watch(life, model, ["phase", "part", "parts", "sentence", "printed"], showProgress);
  watch(life, model, ["pictures", "paces"], showResults);
  showProgress();
  showResults();
}

export default view({ label: "Measure this GPU", kind: "gpu-run" }, fillGpuRun);
