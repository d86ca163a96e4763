// One training step in eight stages. Python takes the step and sends a summary of every tensor at
// each stage, so that moving between stages needs no kernel. The bar of a tensor that two stages
// share slides from its old range to the new one. Values that changed since the last stage with the
// tensor are marked, and an outline shows the old range.

import { button, headed, segmented, sentence, slider, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { power } from "../base/number_words.js";
import { view } from "../base/root.js";
import { FATES } from "../base/theme.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {number} stage The index of the stage, from 0.
 * @property {string} recipe_name
 * @property {number} log2_scale
 * @property {string} sentence
 * @property {Taken} _view
 * @property {About} _about
 */

/**
 * A step that was taken.
 *
 * @typedef {object} Taken
 * @property {number} step
 * @property {boolean} stepped Whether the optimizer stepped.
 * @property {Tensor[][]} stages
 * @property {string[]} sentences The sentences of each stage.
 */

/**
 * @typedef {object} About
 * @property {string[]} stages The names of the stages.
 * @property {string[]} recipes
 * @property {number} most The largest log2 of a scale.
 * @property {string} task
 * @property {[exponent: number, at: number][]} ticks The ticks of the axis; a position on it goes
 *   from 0 to 1.
 * @property {Record<string, number>} edges The limits of FP16.
 */

/**
 * A tensor at a stage.
 *
 * @typedef {object} Tensor
 * @property {string} name
 * @property {string} format
 * @property {string} elements The number of elements.
 * @property {Ends | null} bar null: it has no finite number but 0.
 * @property {string} smallest
 * @property {string} largest
 * @property {string} zeros
 * @property {string} non_finite
 */

/** @typedef {[from: number, to: number]} Ends Of a bar, on the axis from 0 to 1. */

/**
 * Tensors as an earlier stage had them, by name, with the name of that stage.
 *
 * @typedef {Record<string, { tensor: Tensor, stage: string }>} Earlier
 */

// --- changes ---------------------------------------------------------------------------------

/** @typedef {"dtype" | "range" | "zeros" | "inf or NaN"} Change */

/** @type {Record<Change, (keyof Tensor)[]>} */
const FIELDS = {
  dtype: ["format"],
  range: ["smallest", "largest"],
  zeros: ["zeros"],
  "inf or NaN": ["non_finite"],
};
const CHANGES = /** @type {Change[]} */ (Object.keys(FIELDS));

/**
 * Return the tensors of a stage as the last stage before it had them.
 *
 * @param {readonly Tensor[][]} stages
 * @param {readonly string[]} names
 * @param {number} stage
 */
function earlierOf(stages, names, stage) {
  /** @type {Earlier} */
  const earlier = {};
  // Later stages overwrite what earlier ones had.
  for (let i = 0; i < stage; i++) {
    for (const tensor of stages[i]) {
      if (stages[stage].some(({ name }) => name === tensor.name)) {
        earlier[tensor.name] = { tensor, stage: names[i] };
      }
    }
  }
  return earlier;
}

/** @type {Record<Change, string>} */
const CHANGE_WORDS = {
  dtype: "another dtype",
  range: "another range",
  zeros: "another number of zeros",
  "inf or NaN": "another number of inf or NaN",
};

/**
 * Return in what a tensor differs from an earlier stage.
 *
 * @param {Tensor} now
 * @param {Tensor} before
 */
function changesOf(now, before) {
  return CHANGES.filter((what) => FIELDS[what].some((field) => now[field] !== before[field]));
}

/**
 * Return a sentence about the changes in a stage.
 *
 * @param {readonly Tensor[]} tensors
 * @param {Earlier} earlier
 */
function changesText(tensors, earlier) {
  const known = tensors.filter(({ name }) => earlier[name]);
  if (!known.length) return "Every tensor of this stage is new.";
  const changed = known.flatMap((now) => changesOf(now, earlier[now.name].tensor));
  const sentences = [];
  for (const what of CHANGES) {
    const count = changed.filter((one) => one === what).length;
    const who = count === 1 ? "tensor has" : "tensors have";
    if (count) sentences.push(`${count} ${who} ${CHANGE_WORDS[what]}.`);
  }
  if (!sentences.length) sentences.push("No tensor has changed.");
  const newCount = tensors.length - known.length;
  if (newCount) sentences.push(`${newCount} ${newCount === 1 ? "is" : "are"} new here.`);
  const first = earlier[known[0].name].stage;
  return `Compared with the stage \u201c${first}\u201d: ${sentences.join(" ")}`;
}

// --- the table -----------------------------------------------------------------------------------

const HEADS = ["tensor", "dtype", "", "smallest \u2026 largest |x|", "zeros", "inf, NaN"];
const COLUMNS = ["name", "dtype", "range", "span", "zeros", "broken"];

/** @param {About} about */
function stageAxis(about) {
  const ticks = about.ticks.map(([exponent, at]) =>
    h("span", { style: { left: `${100 * at}%` } }, rich(`2^${exponent}`)),
  );
  return h("div", { class: "sd-axis", "aria-hidden": "true" }, ...ticks);
}

/**
 * Place a bar on the axis, or hide it.
 *
 * @param {HTMLElement} bar
 * @param {Ends | null} ends
 */
function placeBar(bar, ends) {
  bar.hidden = !ends;
  if (!ends) return;
  bar.style.left = `${100 * ends[0]}%`;
  bar.style.width = `max(5px, ${100 * (ends[1] - ends[0])}%)`;
}

/**
 * Return the range of magnitudes as text; a dash if the tensor has no finite number but 0.
 *
 * @param {Tensor} tensor
 */
function spanText({ bar, smallest, largest }) {
  if (!bar) return "\u2013";
  return smallest === largest ? largest : `${smallest} \u2026 ${largest}`;
}

/**
 * Return an empty row of the table for a tensor; `set` fills it.
 *
 * @param {string} name the name of the tensor
 */
function stageRow(name) {
  const chip = h("span", { class: "lk-chip lk-filled" });
  const bar = h("i", { class: "sd-bar" });
  const before = h("i", { class: "sd-before" });
  const dtype = h("td", {}, chip);
  const span = h("td", { class: "sd-span" });
  const zeros = h("td", { class: "sd-zeros" });
  const broken = h("td", { class: "sd-broken" });
  /** @type {Record<Change, HTMLElement>} */
  const cells = { dtype, range: span, zeros, "inf or NaN": broken };
  const track = h("div", { class: "sd-track", "aria-hidden": "true" }, before, bar);
  const element = h(
    "tr",
    {},
    h("th", { scope: "row" }, h("span", { class: "sd-name", text: name })),
    dtype,
    h("td", { class: "sd-range" }, track),
    span,
    zeros,
    broken,
  );
  return {
    element,
    /** @param {Ends | null} ends */
    placeBar: (ends) => placeBar(bar, ends),
    /**
     * @param {Tensor} now
     * @param {Tensor | undefined} earlier
     */
    set(now, earlier) {
      const changes = earlier ? changesOf(now, earlier) : [];
      for (const what of CHANGES) {
        cells[what].classList.toggle("sd-changed", changes.includes(what));
      }
      const outline = earlier && changes.includes("range") ? earlier.bar : null;
      placeBar(before, outline);
      const range = now.bar ? `, |x| from ${now.smallest} to ${now.largest}` : "";
      element.title = `${now.elements} numbers${range}`;
      chip.textContent = now.format;
      chip.dataset.format = now.format;
      bar.dataset.format = now.format;
      placeBar(bar, now.bar);
      span.replaceChildren(spanText(now));
      zeros.textContent = now.zeros;
      broken.textContent = now.non_finite;
    },
  };
}

/** @param {About} about */
function stageTable(about) {
  const columns = COLUMNS.map((name) => h("col", { class: `sd-c-${name}` }));
  const { element, body, heads } = headed("sd-table", HEADS, h("colgroup", {}, ...columns));
  heads[2].append(stageAxis(about));
  for (const [name, at] of Object.entries(about.edges)) {
    element.style.setProperty(`--sd-${name}`, `${100 * at}%`);
  }
  /**
   * The bars that are shown now, by the tensor's name.
   *
   * @type {Map<string, Ends | null>}
   */
  let shownBars = new Map();
  return {
    element,
    /**
     * @param {readonly Tensor[]} tensors
     * @param {Earlier} earlier
     */
    set(tensors, earlier) {
      const rows = tensors.map((tensor) => stageRow(tensor.name));
      body.replaceChildren(...rows.map((row) => row.element));
      for (const [i, { name, bar }] of tensors.entries()) {
        const oldEnds = shownBars.get(name);
        if (bar && oldEnds) rows[i].placeBar(oldEnds);
      }
      // This lays out the bars in their old places, so that the CSS transition starts there.
      body.getBoundingClientRect();
      for (const [i, tensor] of tensors.entries()) {
        rows[i].set(tensor, earlier[tensor.name]?.tensor);
      }
      shownBars = new Map(tensors.map(({ name, bar }) => [name, bar]));
    },
  };
}

// --- the view ------------------------------------------------------------------------------------

/**
 * Return the controls above the table.
 *
 * @param {Model<Traits>} model
 * @param {(stage: number) => void} go Shows a stage.
 */
function stageControls(model, go) {
  const { recipes, most, stages } = model.get("_about");
  return {
    recipe: traitChoice(model, "recipe_name", "recipe", recipes),
    scale: slider({
      label: "loss scale",
      min: 0,
      max: most,
      value: model.get("log2_scale"),
      text: power,
      onInput: (value) => put(model, { log2_scale: value }),
    }),
    strip: segmented({
      label: "Stage",
      options: stages.map((name, i) => ({ value: String(i), label: `${i + 1} ${name}` })),
      value: String(model.get("stage")),
      onChange: (i) => go(Number(i)),
      labelled: false,
    }),
    back: button({
      label: "Previous",
      title: "one stage back",
      onPress: () => go(model.get("stage") - 1),
    }),
    next: button({
      label: "Next",
      title: "one stage on",
      kind: "primary",
      onPress: () => go(model.get("stage") + 1),
    }),
    another: button({
      label: "Another step",
      title: "take this step for good, and look at the next one",
      onPress: () => model.send({ do: "step" }),
    }),
    reset: button({
      label: "Reset",
      title: "back to the first step",
      onPress: () => model.send({ do: "reset" }),
    }),
  };
}

/** Return the key to the colours behind the bars: the fates of numbers in FP16. */
function zoneKey() {
  const zones = FATES.map((fate) =>
    h("span", { class: "sd-zone", style: { "--sd-fate": `var(--lk-${fate})` }, text: fate }),
  );
  return h("div", { class: "lk-row lk-quiet sd-zones" }, "In FP16: ", ...zones);
}

/**
 * Build the widget.
 *
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillStages(root, model, life) {
  const about = model.get("_about");
  const controls = stageControls(model, go);
  const { recipe, scale, strip, back, next, another, reset } = controls;
  const place = h("span", { class: "lk-quiet sd-place" });
  const table = stageTable(about);
  const words = sentence();
  const since = h("p", { class: "lk-quiet sd-since" });
  const zones = zoneKey();
  const title = h("span", { class: "lk-title", text: "One training step" });
  const buttons = [back.element, next.element, another.element, reset.element];
  strip.element.classList.add("sd-strip");
  root.append(
    h("div", { class: "lk-row" }, title, place, recipe.element, scale.element),
    strip.element,
    h("div", { class: "lk-row sd-buttons" }, ...buttons),
    words.element,
    since,
    table.element,
    zones,
  );

  /** @param {number} stage */
  function go(stage) {
    put(model, { stage: Math.min(about.stages.length - 1, Math.max(0, stage)) });
    show();
  }

  function show() {
    const { stages, sentences, step, stepped } = model.get("_view");
    const stage = model.get("stage");
    const earlier = earlierOf(stages, about.stages, stage);
    place.textContent = `${about.task}, step ${step}`;
    recipe.set(model.get("recipe_name"));
    scale.set(model.get("log2_scale"));
    strip.set(String(stage));
    strip.element.classList.toggle("sd-skipped", !stepped);
    back.enable(stage > 0, next);
    next.enable(stage < about.stages.length - 1, back);
    table.set(stages[stage], earlier);
    since.textContent = changesText(stages[stage], earlier);
    words.say(sentences[stage]);
    root.dataset.stage = about.stages[stage];
  }

  if (model.onPage) {
    for (const one of [recipe, scale, another, reset]) one.element.hidden = true;
    zones.append(
      " This step was taken when the page was written. " +
        "In the lab you choose recipe and scale, and take more steps.",
    );
  }
  watch(life, model, ["_view", "stage"], show);
  show();
}

export default view(
  {
    label: "One training step, stage by stage",
    kind: "stages",
    alone: (model) => Boolean(model.onPage),
  },
  fillStages,
);
