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

const WAYS_OF_SCALES = [
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
    way: segmented({
      label: "Scale rounded",
      options: WAYS_OF_SCALES,
      value: "down",
      onChange: (to) => put(model, { scale_up: to === "up" }),
    }),
    turn: toggle({
      label: "Hadamard rotation",
      value: false,
      onChange: (on) => put(model, { rotated: on }),
    }),
    chance: toggle({
      label: "Stochastic rounding",
      value: false,
      onChange: (on) => put(model, { stochastic: on }),
    }),
    again: button({
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

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillBlocks(root, model, life) {
  const { formats: rows, random, top, picture: pixels } = model.get("_choices");
  const formats = Object.fromEntries(rows.map((row) => [row.name, blockFormat(row)]));
  const count = model.get("values").length;
  const axis = barAxis(top);
  const controls = blockControls(model);
  const { format, way, turn, chance, again, reset } = controls;
  const tensor = h("div", { class: "lk-quiet bs-tensor" });
  const { bars, second, draw } = barField(count, axis);
  const words = sentence(model);
  const detail = sentence();
  const picture = makePicture(pixels, random);
  let row = rounded();
  /** @type {number | null} */
  let pointed = null;

  function rounded() {
    return roundRow(model.get("values"), formats[model.get("format")], waysOf(model));
  }

  /**
   * @param {number} i
   * @param {number} value
   */
  function change(i, value) {
    const values = model.get("values");
    if (value === values[i]) return;
    put(model, { values: values.with(i, value) });
  }

  /**
   * @param {number} i
   * @param {number} steps infinity moves to the end of the axis
   */
  function move(i, steps) {
    const direction = Math.sign(steps);
    if (!Number.isFinite(steps)) {
      change(i, direction * top);
      return;
    }
    let value = model.get("values")[i];
    for (let k = 0; k < Math.abs(steps); k += 1) value = axis.next(value, direction);
    change(i, value);
  }

  /** @param {number} i */
  function select(i) {
    if (i !== model.get("selected")) put(model, { selected: i });
  }

  /** @param {number | null} i */
  function look(i) {
    pointed = i;
    detail.say(arithmeticText(row, pointed ?? model.get("selected")));
  }

  function follow() {
    row = rounded();
    picture.draw({ format: row.format, ways: waysOf(model), draw: model.get("draw") });
    format.set(row.format.name);
    way.set(model.get("scale_up") ? "up" : "down");
    way.enable(!row.format.tensor_top);
    chance.set(model.get("stochastic"));
    again.enable(model.get("stochastic"));
    turn.set(row.turned);
    root.dataset.turned = String(row.turned);
    draw(row);
    setSliders(bars.items, row, model.get("selected"));
    tensor.replaceChildren(...tensorWords(row));
    words.say(rowSentence(row));
    look(pointed);
  }

  const title = `${count} numbers in blocks that share a scale`;
  const buttons = h("div", { class: "lk-row" }, again.element, reset.element);
  detail.element.classList.add("bs-detail");
  makeSliders(bars.items, top);
  root.append(
    h("div", { class: "lk-title", text: title }),
    h("div", { class: "lk-row" }, format.element, way.element, turn.element, chance.element),
    h("div", { class: "lk-row bs-about" }, tensor, buttons),
    bars.element,
    second,
    barLegend(),
    words.element,
    detail.element,
    picture.element,
  );
  barHands(bars, life, { select, look, move, to: (i, at) => change(i, axis.stop(axis.value(at))) });
  watch(life, model, FOLLOWED, follow);
  follow();
}

export default view(
  { label: "Numbers in blocks that share a scale", kind: "blocks", alone: true },
  fillBlocks,
);
