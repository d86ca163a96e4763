// Numbers in blocks (blocks.js) as bars. Each number can be dragged, and a mark shows its rounded
// value.

import { button, segmented, sentence, toggle, traitChoice } from "../base/controls.js";
import { h } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { barAxis, barHands, makeBars } from "./bars.js";
import {
  arithmeticText,
  asNumber,
  blockFormat,
  fateOfNumber,
  largestOf,
  roundRow,
  rowSentence,
} from "./blocks.js";
import { makePicture } from "./picture.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { BlockRow, RoundedRow, Ways } from "./blocks.js" */

/**
 * @typedef {object} Traits
 * @property {number[]} values
 * @property {string} format The name of a block format.
 * @property {boolean} scale_up
 * @property {boolean} stochastic
 * @property {number} draw The index of the random numbers.
 * @property {boolean} rotated
 * @property {number} selected The index of the bar that keys move.
 * @property {string} sentence
 * @property {BlockChoices} _choices
 */

/**
 * @typedef {object} BlockChoices
 * @property {BlockRow[]} formats
 * @property {number[][]} rotation A Hadamard matrix, 16 x 16.
 * @property {number[][]} random The random numbers of each draw.
 * @property {number[]} picture The pixels, row by row.
 * @property {number[]} [first] The numbers that Reset restores.
 * @property {number} top The end of the axis.
 */

const ROTATED = "Rotated: these are rounded. Above are the same numbers, rotated back.";
const HANDS = "Drag a bar, or press Up and Down; Left and Right choose another.";

/** @type {(keyof Traits)[]} */
const FOLLOWED = ["values", "format", "scale_up", "stochastic", "draw", "rotated", "selected"];

const SCALE_ROUNDINGS = [
  {
    value: "down",
    label: "down",
    title: "as OCP's standard has it: the largest number may be cut",
  },
  { value: "up", label: "up", title: "as NVIDIA's recipe has it: no number is cut" },
];

/** @param {Model<Traits>} model */
function blockControls(model) {
  // a notebook that an earlier version saved has no first numbers
  const { formats, random, first = model.get("values") } = model.get("_choices");
  const names = formats.map(({ name }) => name);
  return {
    format: traitChoice(model, "format", "Format", names),
    scaleRounding: segmented({
      label: "Scale rounded",
      options: SCALE_ROUNDINGS,
      value: "down",
      onChange: (to) => put(model, { scale_up: to === "up" }),
    }),
    rotation: toggle({
      label: "Hadamard rotation",
      value: false,
      onChange: (on) => put(model, { rotated: on }),
    }),
    stochastic: toggle({
      label: "Stochastic rounding",
      value: false,
      onChange: (on) => put(model, { stochastic: on }),
    }),
    roundAgain: button({
      label: "Round again",
      title: "by chance, with other random numbers",
      onPress: () => put(model, { draw: (model.get("draw") + 1) % random.length }),
    }),
    reset: button({ label: "Reset", onPress: () => put(model, { values: first }) }),
  };
}

function barLegend() {
  /**
   * @param {string} fate
   * @param {string} text
   */
  const entry = (fate, text) =>
    h("span", { class: "bs-key" }, h("span", { class: "bs-swatch", data: { fate } }), text);
  return h(
    "div",
    { class: "lk-row lk-quiet bs-legend" },
    entry("kept", "a number"),
    entry("mark", "what it becomes"),
    entry("zero", "becomes 0"),
    entry("cut", "cut to the largest"),
    HANDS,
  );
}

/**
 * Return the text about a format, and about the scale of the whole tensor.
 *
 * @param {RoundedRow} row
 */
function tensorWords({ format, numbers, tensorScale }) {
  const { element, scale, tensor_top } = format;
  if (!tensor_top) {
    const most = `elements are ${element.name}, at most ${element.max}.`;
    return [`Scales are powers of two (${scale.name}); ${most}`];
  }
  const from = tensorScale === 1 ? "" : ` = ${tensor_top} / ${asNumber(largestOf(numbers))}`;
  const names = `Scales are ${scale.name}, elements ${element.name}.`;
  const tensor = h("b", { text: asNumber(tensorScale) });
  return [`${names} The whole tensor has a scale too, in FP32: `, tensor, `${from}.`];
}

/**
 * Let each bar be a slider for screen readers and keys.
 *
 * @param {readonly HTMLElement[]} items
 * @param {number} top
 */
function makeSliders(items, top) {
  for (const [i, item] of items.entries()) {
    item.setAttribute("role", "slider");
    item.setAttribute("aria-label", `x[${i}]`);
    item.setAttribute("aria-orientation", "vertical");
    item.setAttribute("aria-valuemin", String(-top));
    item.setAttribute("aria-valuemax", String(top));
  }
}

/**
 * Update the sliders' values and texts, and let Tab reach only the selected one.
 *
 * @param {readonly HTMLElement[]} items
 * @param {RoundedRow} row
 * @param {number} selected
 */
function setSliders(items, row, selected) {
  for (const [i, item] of items.entries()) {
    const text = `${asNumber(row.given[i])}, becomes ${asNumber(row.values[i])}`;
    item.tabIndex = i === selected ? 0 : -1;
    item.classList.toggle("bs-selected", i === selected);
    item.setAttribute("aria-valuenow", String(row.given[i]));
    item.setAttribute("aria-valuetext", text);
  }
}

/**
 * Return the bars, and below them the bars of the rotated numbers.
 *
 * @param {number} count
 * @param {ReturnType<typeof barAxis>} axis
 */
function barField(count, axis) {
  const bars = makeBars(count, axis);
  const turnedBars = makeBars(count, axis);
  const about = h("div", { class: "lk-quiet", text: ROTATED });
  const second = h("div", { class: "bs-second", "aria-hidden": "true" }, about, turnedBars.element);
  return {
    bars,
    second,
    /** @param {RoundedRow} row */
    draw(row) {
      const { given, values, numbers, stored } = row;
      const fates = numbers.map((_, i) => fateOfNumber(row, i));
      const back = values.map((x, i) => (given[i] && !x ? "zero" : "kept"));
      bars.draw(row, given, values, row.turned ? back : fates);
      turnedBars.draw(row, numbers, stored, fates);
      second.hidden = !row.turned;
    },
  };
}

/**
 * Return how the numbers are rounded, from the traits.
 *
 * @param {Model<Traits>} model
 * @returns {Ways}
 */
function waysOf(model) {
  const { random, rotation } = model.get("_choices");
  return {
    up: model.get("scale_up"),
    random: model.get("stochastic") ? random[model.get("draw")] : null,
    matrix: model.get("rotated") ? rotation : null,
  };
}

/** The view of the numbers: it follows the traits, and changes them by pointer and keys. */
class BlockView {
  /**
   * @param {HTMLElement} root
   * @param {Model<Traits>} model
   */
  constructor(root, model) {
    const { formats, random, top, picture } = model.get("_choices");
    this.root = root;
    this.model = model;
    this.top = top;
    this.formats = Object.fromEntries(formats.map((row) => [row.name, blockFormat(row)]));
    this.count = model.get("values").length;
    this.axis = barAxis(top);
    this.controls = blockControls(model);
    this.field = barField(this.count, this.axis);
    this.tensor = h("div", { class: "lk-quiet bs-tensor" });
    this.sentence = sentence(model);
    this.arithmetic = sentence();
    this.picture = makePicture(picture, random);
    this.row = this.rounded();
    // The bar under the pointer.
    /** @type {number | null} */
    this.pointed = null;
  }

  /** Return the numbers as they are rounded now. */
  rounded() {
    const { model } = this;
    return roundRow(model.get("values"), this.formats[model.get("format")], waysOf(model));
  }

  /**
   * Set a number.
   *
   * @param {number} i
   * @param {number} value
   */
  change(i, value) {
    const values = this.model.get("values");
    if (value === values[i]) return;
    put(this.model, { values: values.with(i, value) });
  }

  /**
   * Move a bar to another place of the axis.
   *
   * @param {number} i
   * @param {number} steps infinity moves to the end of the axis
   */
  move(i, steps) {
    const direction = Math.sign(steps);
    if (!Number.isFinite(steps)) {
      this.change(i, direction * this.top);
      return;
    }
    let value = this.model.get("values")[i];
    for (let k = 0; k < Math.abs(steps); k += 1) value = this.axis.next(value, direction);
    this.change(i, value);
  }

  /** @param {number} i the bar that keys move from now on */
  select(i) {
    if (i !== this.model.get("selected")) put(this.model, { selected: i });
  }

  /**
   * Show the arithmetic of the bar under the pointer; without one, of the selected bar.
   *
   * @param {number | null} i
   */
  pointAt(i) {
    this.pointed = i;
    this.arithmetic.say(arithmeticText(this.row, i ?? this.model.get("selected")));
  }

  /** Show the traits. */
  follow() {
    const { model, field, controls } = this;
    const row = this.rounded();
    this.row = row;
    this.picture.draw({ format: row.format, ways: waysOf(model), draw: model.get("draw") });
    controls.format.set(row.format.name);
    controls.scaleRounding.set(model.get("scale_up") ? "up" : "down");
    controls.scaleRounding.enable(!row.format.tensor_top);
    controls.stochastic.set(model.get("stochastic"));
    controls.roundAgain.enable(model.get("stochastic"));
    controls.rotation.set(row.turned);
    this.root.dataset.turned = String(row.turned);
    field.draw(row);
    setSliders(field.bars.items, row, model.get("selected"));
    this.tensor.replaceChildren(...tensorWords(row));
    this.sentence.say(rowSentence(row));
    this.pointAt(this.pointed);
  }

  /** Append all parts to the root. */
  layout() {
    const { controls, field } = this;
    const { format, scaleRounding, rotation, stochastic, roundAgain, reset } = controls;
    const title = `${this.count} numbers in blocks that share a scale`;
    const choices = [format.element, scaleRounding.element, rotation.element, stochastic.element];
    const buttons = h("div", { class: "lk-row" }, roundAgain.element, reset.element);
    this.arithmetic.element.classList.add("bs-detail");
    makeSliders(field.bars.items, this.top);
    this.root.append(
      h("div", { class: "lk-title", text: title }),
      h("div", { class: "lk-row" }, ...choices),
      h("div", { class: "lk-row bs-about" }, this.tensor, buttons),
      field.bars.element,
      field.second,
      barLegend(),
      this.sentence.element,
      this.arithmetic.element,
      this.picture.element,
    );
  }

  /** @param {Life} life */
  listen(life) {
    const { axis } = this;
    barHands(this.field.bars, life, {
      select: (i) => this.select(i),
      look: (i) => this.pointAt(i),
      move: (i, steps) => this.move(i, steps),
      to: (i, at) => this.change(i, axis.stop(axis.value(at))),
    });
    watch(life, this.model, FOLLOWED, () => this.follow());
  }
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillBlocks(root, model, life) {
  const blocks = new BlockView(root, model);
  blocks.layout();
  blocks.listen(life);
  blocks.follow();
}

export default view(
  { label: "Numbers in blocks that share a scale", kind: "blocks", alone: true },
  fillBlocks,
);
