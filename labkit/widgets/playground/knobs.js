// The playground's knobs: problem, recipe with its parts, and optimizer. A knob shows a part of the
// setting, and reports its change to the playground, which then shows the new setting.

import { choice, segmented, slider, toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { power } from "../base/number_words.js";
import { bytesPerWeight } from "./memory.js";
import { problemNamed } from "./problems.js";
import { changesOf, RECIPE_PRESETS } from "./recipe.js";
import { formatNamed, PLAYGROUND_FORMATS } from "./rounding.js";
import { SCENES } from "./scenes.js";

/** @import { Slider } from "../base/controls.js" */
/** @import { Setting } from "./address.js" */
/** @import { Method, Recipe } from "./recipe.js" */

/**
 * What the knobs call.
 *
 * @typedef {object} Callbacks
 * @property {(parts: Partial<Setting>) => void} change Changes parts of the setting.
 * @property {(scene: string) => void} begin Starts another problem.
 */

/** @typedef {{ element: HTMLElement, show: (recipe: Recipe, method: Method) => void }} Knob */
/** @typedef {(fields: Partial<Recipe>) => void} ChangeRecipe Changes fields of the recipe. */
/** @typedef {(fields: Partial<Method>) => void} ChangeMethod Changes fields of the optimizer. */

// The format that the choice "own" starts with.
const OWN_FORMAT = "e5m10";
// The growth interval at the right end of its slider: the default of torch's GradScaler. The other
// positions i are 2^i.
const LAST_INTERVAL = { position: 11, steps: 2000 };
/** @type {["weights" | "activations" | "gradients" | "optimizer", string, string][]} */
const PARTS = [
  ["weights", "weights", "The format of the weights that the network computes with"],
  ["activations", "activations", "The format of what goes into a layer, and of what comes out"],
  ["gradients", "gradients", "The format of the derivatives that the backward pass computes"],
  ["optimizer", "optimizer state", "The format of the means that the optimizer keeps"],
];
const MASTER_TITLE = "A copy of the weights in FP32, which the optimizer changes";
const ROUNDING_TITLE = "To the nearest number, or at random to one of the two neighbours";
const SUMS_TITLE = "The format in which products are added up";
const SCALING_TITLE =
  "The loss is multiplied by it, and with it all gradients. They are divided by it before the step";
const GROWTH_TITLE = "After so many steps without infinity the dynamic scale doubles";
const EPSILON_TITLE = "Adam adds it to what it divides by";

/**
 * Return all knobs. Their `show` shows another setting.
 *
 * @param {Setting} first
 * @param {Callbacks} callbacks
 */
export function knobs(first, { change, begin }) {
  let setting = first;
  /** @type {ChangeRecipe} */
  function changeRecipe(fields) {
    change({ changes: changesOf(setting.preset, { ...setting.changes, ...fields }) });
  }
  /** @type {ChangeMethod} */
  function changeMethod(fields) {
    change({ method: { ...setting.method, ...fields } });
  }
  const scene = choice({ label: "problem", onChange: begin });
  const preset = choice({
    label: "recipe",
    onChange: (name) => change({ preset: name, changes: {} }),
  });
  for (const { element } of [scene, preset]) element.classList.add("pg-wide");
  const parts = [
    ...PARTS.map(([part, label, title]) => formatKnob(part, label, title, changeRecipe)),
    ownFormatKnobs(changeRecipe),
    switches(changeRecipe),
    scaleKnobs(changeRecipe),
    optimizerKnobs(changeMethod),
  ];
  const elements = parts.map(({ element }) => element);
  const self = {
    element: h("div", { class: "pg-parts" }, scene.element, preset.element, ...elements),
    /** @param {Setting} next */
    show(next) {
      setting = next;
      const { changes, method } = next;
      const recipe = /** @type {Recipe} */ ({ ...RECIPE_PRESETS[next.preset], ...changes });
      const defaults = problemNamed(SCENES[next.scene].problem).method;
      scene.show(
        Object.entries(SCENES).map(([name, { title }]) => [name, title]),
        next.scene,
      );
      const isChanged = Object.keys(changes).length > 0;
      preset.show(
        Object.keys(RECIPE_PRESETS).map((name) => {
          const label = isChanged && name === next.preset ? `${name}, changed` : name;
          return [name, label];
        }),
        next.preset,
      );
      for (const part of parts) part.show(recipe, { ...defaults, ...method });
    },
  };
  self.show(first);
  return self;
}

/**
 * Return whether a format is one of the learner's own.
 *
 * @param {string} format its name
 */
function isOwn(format) {
  return !Object.hasOwn(PLAYGROUND_FORMATS, format);
}

/**
 * Return the own format of the first part that has one.
 *
 * @param {Recipe} recipe
 */
function ownFormat(recipe) {
  return PARTS.map(([part]) => recipe[part]).find(isOwn);
}

/**
 * Return the choice of a format for one part of the training.
 *
 * @param {typeof PARTS[number][0]} part
 * @param {string} label
 * @param {string} title
 * @param {ChangeRecipe} changeRecipe
 * @returns {Knob}
 */
function formatKnob(part, label, title, changeRecipe) {
  const control = choice({ label, onChange: (name) => changeRecipe({ [part]: name }) });
  control.element.classList.add("pg-format");
  control.element.title = title;
  return {
    element: control.element,
    show(recipe) {
      const own = isOwn(recipe[part]) ? recipe[part] : (ownFormat(recipe) ?? OWN_FORMAT);
      /** @type {[string, string][]} */
      const known = Object.keys(PLAYGROUND_FORMATS).map((name) => [name, name]);
      control.show([...known, [own, `own: ${own}`]], recipe[part]);
    },
  };
}

/**
 * Return the sliders for the bits of an own format, which are hidden while no part has one.
 *
 * @param {ChangeRecipe} changeRecipe
 * @returns {Knob}
 */
function ownFormatKnobs(changeRecipe) {
  /** @type {Recipe | null} */
  let recipe = null;
  // The sliders set the format of all parts with an own one. Only an address can name several own
  // formats; then the sliders begin with the first.
  function changeFormat() {
    if (!recipe) return;
    const name = `e${exponent.value}m${significand.value}`;
    /** @type {Partial<Recipe>} */
    const fields = {};
    for (const [part] of PARTS) {
      if (isOwn(recipe[part])) fields[part] = name;
    }
    changeRecipe(fields);
  }
  const exponent = slider({
    label: "exponent bits",
    min: 2,
    max: 8,
    value: 5,
    onInput: changeFormat,
  });
  const significand = slider({
    label: "significand",
    min: 1,
    max: 23,
    value: 10,
    onInput: changeFormat,
  });
  const element = h("div", { class: "pg-group" }, exponent.element, significand.element);
  return {
    element,
    show(next) {
      recipe = next;
      const own = ownFormat(next);
      element.hidden = own === undefined;
      if (own === undefined) return;
      const format = formatNamed(own);
      if (!format) return;
      exponent.set(format.exponentBits);
      significand.set(format.significandBits);
    },
  };
}

/**
 * Return the switches for master weights, rounding and accumulator.
 *
 * @param {ChangeRecipe} changeRecipe
 * @returns {Knob}
 */
function switches(changeRecipe) {
  const master = toggle({
    label: "FP32 master weights",
    value: true,
    onChange: (on) => changeRecipe({ master: on }),
  });
  /** @type {ReturnType<typeof segmented<Recipe["rounding"]>>} */
  const rounding = segmented({
    label: "rounding",
    options: ["nearest", "stochastic"],
    value: "nearest",
    onChange: (value) => changeRecipe({ rounding: value }),
  });
  /** @type {ReturnType<typeof segmented<Recipe["accumulator"]>>} */
  const accumulator = segmented({
    label: "sums in",
    options: ["FP32", { value: "format", label: "the format" }],
    value: "FP32",
    onChange: (value) => changeRecipe({ accumulator: value }),
  });
  master.element.title = MASTER_TITLE;
  rounding.element.title = ROUNDING_TITLE;
  accumulator.element.title = SUMS_TITLE;
  return {
    element: h("div", { class: "pg-group" }, master.element, rounding.element, accumulator.element),
    show(recipe) {
      master.set(recipe.master);
      rounding.set(recipe.rounding);
      rounding.element.hidden = recipe.master;
      accumulator.set(recipe.accumulator);
    },
  };
}

/**
 * Return the knobs of the loss scale.
 *
 * @param {ChangeRecipe} changeRecipe
 * @returns {Knob}
 */
function scaleKnobs(changeRecipe) {
  /** @type {ReturnType<typeof segmented<Recipe["scaling"]>>} */
  const scaling = segmented({
    label: "loss scale",
    options: ["none", "static", "dynamic"],
    value: "none",
    onChange: (value) => changeRecipe({ scaling: value }),
  });
  const growth = slider({
    label: "growth after",
    min: 0,
    max: LAST_INTERVAL.position,
    value: LAST_INTERVAL.position,
    text: (position) => String(growthInterval(position)),
    onInput: (position) => changeRecipe({ growth_interval: growthInterval(position) }),
  });
  scaling.element.title = SCALING_TITLE;
  growth.element.title = GROWTH_TITLE;
  return {
    element: h("div", { class: "pg-group" }, scaling.element, growth.element),
    show(recipe) {
      scaling.set(recipe.scaling);
      growth.set(Math.round(Math.log2(recipe.growth_interval)));
      setText(growth, String(recipe.growth_interval));
      growth.element.hidden = recipe.scaling !== "dynamic";
    },
  };
}

/**
 * Replace the text of a slider whose value lies between its positions, or beyond them.
 *
 * @param {Slider} slider
 * @param {string} text
 */
function setText({ input, output }, text) {
  output.textContent = text;
  input.setAttribute("aria-valuetext", text);
}

/**
 * Return the growth interval at a position of its slider.
 *
 * @param {number} position
 */
function growthInterval(position) {
  return position === LAST_INTERVAL.position ? LAST_INTERVAL.steps : 2 ** position;
}

/**
 * Return the knobs of the optimizer, with the bytes that the training keeps for each weight.
 *
 * @param {ChangeMethod} changeMethod
 * @returns {Knob}
 */
function optimizerKnobs(changeMethod) {
  /** @type {ReturnType<typeof segmented<Method["kind"]>>} */
  const kind = segmented({
    label: "method",
    options: ["SGD", "Adam"],
    value: "SGD",
    onChange: (value) => changeMethod({ kind: value }),
  });
  const rate = slider({
    label: "learning rate",
    min: -20,
    max: 2,
    value: -8,
    text: power,
    onInput: (value) => changeMethod({ rate: 2 ** value }),
  });
  const epsilon = slider({
    label: "epsilon",
    min: -30,
    max: -7,
    value: -27,
    text: power,
    onInput: (value) => changeMethod({ epsilon: 2 ** value }),
  });
  const momentum = toggle({
    label: "momentum 0.9",
    value: true,
    onChange: (on) => changeMethod({ momentum: on ? 0.9 : 0 }),
  });
  epsilon.element.title = EPSILON_TITLE;
  const bytes = h("p", { class: "lk-quiet pg-bytes" });
  const parts = [kind, rate, momentum, epsilon].map(({ element }) => element);
  return {
    element: h("div", { class: "pg-group" }, ...parts, bytes),
    show(recipe, method) {
      kind.set(method.kind);
      // The sliders move by powers of two; the text beside them states the value that is used.
      rate.set(Math.round(Math.log2(method.rate)));
      const rounded = Number(method.rate.toPrecision(3));
      setText(rate, rounded < 1e-3 ? method.rate.toExponential(1) : String(rounded));
      momentum.set(method.momentum > 0);
      // An address can name another momentum.
      momentum.name(`momentum ${method.momentum || 0.9}`);
      momentum.element.hidden = method.kind !== "SGD";
      epsilon.set(Math.round(Math.log2(method.epsilon)));
      setText(epsilon, method.epsilon.toExponential(1));
      epsilon.element.hidden = method.kind !== "Adam";
      const { model, master, state, total } = bytesPerWeight(recipe, method);
      const summands = `model ${model}, master ${master}, state ${state}`;
      bytes.textContent = `Bytes for each weight: ${total} (${summands})`;
    },
  };
}
