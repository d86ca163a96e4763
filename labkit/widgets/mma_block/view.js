// One block of a Tensor Core's sum (sum.js), for one element of a product of matrices.

import { segmented, sentence, slider, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { power } from "../base/number_words.js";
import { view } from "../base/root.js";
import { compare, derived, exactly } from "../exact/numbers.js";
import { makeSheet } from "./sheet.js";
import { blockSentence, blockSheet, blocksOf, exactSum, shownNumber, shownValue } from "./sum.js";

/** @import { Segmented, Slider } from "../base/controls.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { FormatRow, Fraction } from "../exact/numbers.js" */
/** @import { Block, Spec, Terms } from "./sum.js" */

/**
 * @typedef {object} Traits
 * @property {string} preset
 * @property {string} gpu
 * @property {number} knob
 * @property {number} block The index of the block.
 * @property {string} result The format of C and D.
 * @property {string} sentence
 * @property {SumChoices} _choices
 */

/**
 * @typedef {object} SumChoices
 * @property {Preset[]} presets
 * @property {Spec[]} specs
 * @property {FormatRow[]} formats The format of A and B, then the choices for C and D.
 */

/**
 * A sum with a knob.
 *
 * @typedef {object} Preset
 * @property {string} name
 * @property {string} knob The label of the knob.
 * @property {number} low
 * @property {number} high
 * @property {number} start
 * @property {string} result The format of C and D that suits it.
 * @property {boolean} power Whether the knob is an exponent of 2.
 * @property {Record<number, Terms>} terms The terms for each position of the knob.
 */

/**
 * Return the choice of the GPU, with each GPU's result below its name.
 *
 * @param {readonly string[]} names
 * @param {(name: string) => void} onChange
 */
function generations(names, onChange) {
  const control = segmented({ label: "Tensor Core of", options: names, value: names[0], onChange });
  const labels = control.element.querySelectorAll(".lk-segment > span");
  const ends = [...labels].map((label) => {
    const end = h("span", { class: "mm-end" });
    label.append(end);
    return end;
  });
  control.element.classList.add("mm-gpus");
  return {
    element: control.element,
    /**
     * @param {string} name the chosen GPU
     * @param {Record<string, number>} resultOf GPU -> its D
     * @param {Fraction} exact the exact sum
     */
    set(name, resultOf, exact) {
      control.set(name);
      for (const [i, gpu] of names.entries()) {
        const text = shownValue(resultOf[gpu]);
        ends[i].replaceChildren(rich(text.replace(/^-/, "−")));
        // Not by the texts, which have eight digits.
        ends[i].dataset.exact = String(compare(exactly(resultOf[gpu]), exact) === 0);
      }
    },
  };
}

/**
 * Return the knob of the preset. It is replaced when the preset changes.
 *
 * @param {Model<Traits>} model
 */
function presetKnob(model) {
  const element = h("div", { class: "mm-knob" });
  let knobOf = "";
  /** @type {Slider | null} */
  let knob = null;

  /** @param {Preset} preset */
  function make({ name, knob: label, low, high, power: isPower }) {
    knobOf = name;
    const made = slider({
      label,
      min: low,
      max: high,
      page: 4,
      value: model.get("knob"),
      text: (value) => (isPower ? power(value) : String(value)),
      onInput: (value) => put(model, { knob: value }),
    });
    element.replaceChildren(made.element);
    return made;
  }
  return {
    element,
    /** @param {Preset} preset */
    show(preset) {
      if (!knob || preset.name !== knobOf) knob = make(preset);
      knob.set(model.get("knob"));
    },
  };
}

/**
 * Return the choice of the block that is shown.
 *
 * @param {Model<Traits>} model
 */
function blockChoice(model) {
  const element = h("div", { class: "lk-row mm-blocks" });
  const about = h("span", { class: "lk-quiet" });
  let count = 0;
  /** @type {Segmented<string> | null} */
  let choice = null;

  /** @param {number} index the block that is shown */
  function make(index) {
    const numbers = Array.from({ length: count }, (_, i) => i);
    const made = segmented({
      label: "Block",
      options: numbers.map((i) => ({ value: String(i), label: String(i + 1) })),
      value: String(index),
      onChange: (i) => put(model, { block: Number(i) }),
    });
    element.replaceChildren(made.element, about);
    return made;
  }
  return {
    element,
    /**
     * @param {readonly Block[]} blocks
     * @param {number} index
     */
    show(blocks, index) {
      if (!choice || count !== blocks.length) {
        count = blocks.length;
        choice = make(index);
      }
      const more = count > 1 ? "; each takes the last one's D as its C" : "";
      choice.set(String(index));
      about.textContent = `${blocks[0].spec.block_length} products in a block${more}`;
    },
  };
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillSum(root, model, life) {
  const { presets, specs, formats } = model.get("_choices");
  const [operands, ...results] = formats.map((row) => derived(row));
  const presetOf = Object.fromEntries(presets.map((preset) => [preset.name, preset]));
  const outOf = Object.fromEntries(results.map((format) => [format.name, format]));
  // The traits change one after the other; `follow` must not see a half of the change.
  let putting = false;

  /** @param {string} name */
  function begin(name) {
    const { start, result } = presetOf[name];
    putting = true;
    try {
      put(model, { preset: name, knob: start, result });
    } finally {
      putting = false;
    }
    follow();
  }
  const preset = segmented({
    label: "Add",
    options: presets.map(({ name }) => name),
    value: model.get("preset"),
    onChange: begin,
  });
  const resultNames = results.map(({ name }) => name);
  const gpuNames = specs.map(({ name }) => name);
  const result = traitChoice(model, "result", "C and D in", resultNames);
  const gpu = generations(gpuNames, (name) => put(model, { gpu: name }));
  const knob = presetKnob(model);
  const block = blockChoice(model);
  const exact = h("span", { class: "lk-quiet" });
  const paper = makeSheet();
  const words = sentence(model);
  root.append(
    h("div", { class: "lk-title", text: "One element of D = A·B + C, inside a Tensor Core" }),
    h("div", { class: "lk-row" }, preset.element, result.element),
    h("div", { class: "lk-row" }, knob.element, exact),
    gpu.element,
    words.element,
    block.element,
    paper.element,
  );

  /** @param {Terms} terms */
  function blocksOfEach(terms) {
    const out = outOf[model.get("result")];
    /** @type {Record<string, Block[]>} */
    const blocksByGpu = {};
    for (const spec of specs) blocksByGpu[spec.name] = blocksOf(terms, spec, operands, out);
    return blocksByGpu;
  }

  function follow() {
    if (putting) return;
    const chosen = presetOf[model.get("preset")];
    const terms = chosen.terms[model.get("knob")];
    // The knob is still that of the former preset; a new value follows.
    if (!terms) return;
    const blocksByGpu = blocksOfEach(terms);
    const blocks = blocksByGpu[model.get("gpu")];
    const index = Math.min(model.get("block"), blocks.length - 1);
    if (index !== model.get("block")) put(model, { block: index });
    /** @type {Record<string, number>} */
    const resultOf = {};
    for (const [name, gpuBlocks] of Object.entries(blocksByGpu)) {
      resultOf[name] = gpuBlocks[gpuBlocks.length - 1].result;
    }
    const sum = exactSum(terms);
    root.dataset.result = model.get("result");
    preset.set(chosen.name);
    result.set(model.get("result"));
    gpu.set(model.get("gpu"), resultOf, sum);
    knob.show(chosen);
    block.show(blocks, index);
    exact.replaceChildren("exact sum: ", rich(shownNumber(sum)));
    paper.draw(blockSheet(blocks[index], index * blocks[0].spec.block_length), model.get("result"));
    words.say(blockSentence(blocks, index, sum, resultOf));
  }

  watch(life, model, ["preset", "gpu", "knob", "result", "block"], follow);
  follow();
}

export default view(
  { label: "One block of a Tensor Core's sum", kind: "mma", alone: true },
  fillSum,
);
