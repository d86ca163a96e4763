// The playground's knobs: the scene, the recipe and its parts, and the optimizer.

import { choice, segmented, slider, toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { power } from "../base/number_words.js";
import { bytesPerWeight } from "./memory.js";
import { problemNamed } from "./problems.js";
import { RECIPE_PRESETS } from "./recipe.js";
import { formatNamed, PLAYGROUND_FORMATS } from "./rounding.js";
import { SCENES } from "./scenes.js";

/** @import { Setting } from "./address.js" */
/** @import { Method, Recipe } from "./recipe.js" */

/**
 * What knobs do.
 *
 * @typedef {object} Turned
 * @property {(changed: Partial<Setting>) => void} change
 * @property {(scene: string) => void} begin
 */

/** @typedef {{ element: HTMLElement, show: (recipe: Recipe, method: Method) => void }} Knob */

const OWN_FORMAT = "e5m10";
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
  "The loss is multiplied by it, so all gradients are; they are divided by it before the step";
const GROWTH_TITLE = "After so many steps without infinity the dynamic scale doubles";
const EPSILON_TITLE = "Adam adds it to what it divides by";

/**
 * All knobs; `show` lets them follow a setting.
 *
 * @param {Setting} first
 * @param {Turned} turned
 */
export function knobs(first, { change, begin }) {
  let setting = first;
  /** @param {Partial<Recipe>} changed */
  const turn = (changed) => change({ changes: { ...setting.changes, ...changed } });
  /** @param {Partial<Method>} changed */
  const steer = (changed) => change({ method: { ...setting.method, ...changed } });
  const scene = choice({ label: "problem", onChange: begin });
  const preset = choice({
    label: "recipe",
    onChange: (name) => change({ preset: name, changes: {} }),
  });
  for (const { element } of [scene, preset]) element.classList.add("pg-wide");
  const parts = [
    ...PARTS.map(([part, label, title]) => formatKnob(part, label, title, turn)),
    ownBits(turn),
    switches(turn),
    scaleKnobs(turn),
    optimizerKnobs(steer),
  ];
  const elements = parts.map(({ element }) => element);
  const self = {
    element: h("div", { class: "pg-parts" }, scene.element, preset.element, ...elements),
    /** @param {Setting} next */
    show(next) {
      setting = next;
      const { changes, method } = next;
      const recipe = /** @type {Recipe} */ ({ ...RECIPE_PRESETS[next.preset], ...changes });
      const begun = problemNamed(SCENES[next.scene].problem).method;
      scene.show(
        Object.entries(SCENES).map(([name, { title }]) => [name, title]),
        next.scene,
      );
      const changed = Object.keys(changes).length > 0;
      preset.show(
        Object.keys(RECIPE_PRESETS).map((name) => {
          return [name, changed && name === next.preset ? `${name}, changed` : name];
        }),
        next.preset,
      );
      for (const part of parts) part.show(recipe, { ...begun, ...method });
    },
  };
  self.show(first);
  return self;
}

/**
 * The format of a part of the training.
 *
 * @param {typeof PARTS[number][0]} part
 * @param {string} label
 * @param {string} title
 * @param {(changed: Partial<Recipe>) => void} turn
 * @returns {Knob}
 */
function formatKnob(part, label, title, turn) {
  const control = choice({ label, onChange: (name) => turn({ [part]: name }) });
  control.element.classList.add("pg-format");
  control.element.title = title;
  return {
    element: control.element,
    show(recipe) {
      const own = Object.hasOwn(PLAYGROUND_FORMATS, recipe[part]) ? OWN_FORMAT : recipe[part];
      /** @type {[string, string][]} */
      const known = Object.keys(PLAYGROUND_FORMATS).map((name) => [name, name]);
      control.show([...known, [own, `own: ${own}`]], recipe[part]);
    },
  };
}

/**
 * The bits of one's own format; shown where a part has one.
 *
 * @param {(changed: Partial<Recipe>) => void} turn
 * @returns {Knob}
 */
function ownBits(turn) {
  /** @type {Recipe | null} */
  let recipe = null;
  function take() {
    if (!recipe) return;
    const name = `e${exponent.value}m${significand.value}`;
    /** @type {Partial<Recipe>} */
    const changed = {};
    for (const [part] of PARTS) {
      if (!Object.hasOwn(PLAYGROUND_FORMATS, recipe[part])) changed[part] = name;
    }
    turn(changed);
  }
  const exponent = slider({ label: "exponent bits", min: 2, max: 8, value: 5, onInput: take });
  const significand = slider({ label: "significand", min: 1, max: 23, value: 10, onInput: take });
  const element = h("div", { class: "pg-group" }, exponent.element, significand.element);
  return {
    element,
    show(now) {
      recipe = now;
      const own = PARTS.map(([part]) => now[part]).find((name) => {
        return !Object.hasOwn(PLAYGROUND_FORMATS, name);
      });
      element.hidden = own === undefined;
      const format = own === undefined ? null : formatNamed(own);
      if (!format) return;
      exponent.set(format.exponentBits);
      significand.set(format.significandBits);
    },
  };
}

/**
 * Masters, rounding and accumulator.
 *
 * @param {(changed: Partial<Recipe>) => void} turn
 * @returns {Knob}
 */
function switches(turn) {
  const master = toggle({
    label: "FP32 master weights",
    value: true,
    onChange: (on) => turn({ master: on }),
  });
  /** @type {ReturnType<typeof segmented<Recipe["rounding"]>>} */
  const rounding = segmented({
    label: "rounding",
    options: ["nearest", "stochastic"],
    value: "nearest",
    onChange: (value) => turn({ rounding: value }),
  });
  /** @type {ReturnType<typeof segmented<Recipe["accumulator"]>>} */
  const accumulator = segmented({
    label: "sums in",
    options: ["FP32", { value: "format", label: "the format" }],
    value: "FP32",
    onChange: (value) => turn({ accumulator: value }),
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
 * How the loss is scaled.
 *
 * @param {(changed: Partial<Recipe>) => void} turn
 * @returns {Knob}
 */
function scaleKnobs(turn) {
  /** @type {ReturnType<typeof segmented<Recipe["scaling"]>>} */
  const scaling = segmented({
    label: "loss scale",
    options: ["none", "static", "dynamic"],
    value: "none",
    onChange: (value) => turn({ scaling: value }),
  });
  const growth = slider({
    label: "growth after",
    min: 0,
    max: 11,
    value: 11,
    text: (i) => String(growthAt(i)),
    onInput: (i) => turn({ growth_interval: growthAt(i) }),
  });
  scaling.element.title = SCALING_TITLE;
  growth.element.title = GROWTH_TITLE;
  return {
    element: h("div", { class: "pg-group" }, scaling.element, growth.element),
    show(recipe) {
      scaling.set(recipe.scaling);
      growth.set(Math.round(Math.log2(recipe.growth_interval)));
      growth.output.textContent = String(recipe.growth_interval);
      growth.element.hidden = recipe.scaling !== "dynamic";
    },
  };
}

/** @param {number} i */
function growthAt(i) {
  return i === 11 ? 2000 : 2 ** i;
}

/**
 * The optimizer, its rate, momentum and epsilon, and what is kept of each weight.
 *
 * @param {(changed: Partial<Method>) => void} steer
 * @returns {Knob}
 */
function optimizerKnobs(steer) {
  /** @type {ReturnType<typeof segmented<Method["kind"]>>} */
  const kind = segmented({
    label: "method",
    options: ["SGD", "Adam"],
    value: "SGD",
    onChange: (value) => steer({ kind: value }),
  });
  const rate = slider({
    label: "learning rate",
    min: -20,
    max: 2,
    value: -8,
    text: power,
    onInput: (value) => steer({ rate: 2 ** value }),
  });
  const epsilon = slider({
    label: "epsilon",
    min: -30,
    max: -7,
    value: -27,
    text: power,
    onInput: (value) => steer({ epsilon: 2 ** value }),
  });
  const momentum = toggle({
    label: "momentum 0.9",
    value: true,
    onChange: (on) => steer({ momentum: on ? 0.9 : 0 }),
  });
  epsilon.element.title = EPSILON_TITLE;
  const bytes = h("p", { class: "lk-quiet pg-bytes" });
  const parts = [kind, rate, momentum, epsilon].map(({ element }) => element);
  return {
    element: h("div", { class: "pg-group" }, ...parts, bytes),
    show(recipe, method) {
      momentum.set(method.momentum > 0);
      momentum.element.hidden = method.kind !== "SGD";
      const { model, master, state, total } = bytesPerWeight(recipe, method);
      bytes.textContent =
        `Bytes for each weight: ${total} ` + `(model ${model}, master ${master}, state ${state})`;
      kind.set(method.kind);
      rate.set(Math.round(Math.log2(method.rate)));
      const round = Number(method.rate.toPrecision(3));
      rate.output.textContent = round < 1e-3 ? method.rate.toExponential(1) : String(round);
      epsilon.set(Math.round(Math.log2(method.epsilon)));
      epsilon.output.textContent = method.epsilon.toExponential(0);
      epsilon.element.hidden = method.kind !== "Adam";
    },
  };
}
