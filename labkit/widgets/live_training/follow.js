// A panel that follows one gradient of a bar of the histogram: it shows the bits of its scaled FP32
// number, and of the number to which the cast rounds it.

import { button } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { decimal, percent } from "../base/number_words.js";
import { fieldsOf } from "../bits/explored.js";
import { bitRow } from "../bits/row.js";
import { classOf, decode, encode, fieldBits, roundValue } from "../exact/numbers.js";

/** @import { Format } from "../exact/numbers.js" */
/** @import { PreparedRow } from "../underflow/plot.js" */
/** @import { Gradients } from "./histogram.js" */

/**
 * A gradient of a bar.
 *
 * @typedef {object} Followed
 * @property {string} layer The name of its layer.
 * @property {number} step The step in which it was measured.
 * @property {number} index The index in the flattened tensor.
 * @property {number} value The value in FP32, at scale 1.
 * @property {number} exponent The exponent of the value.
 */

/**
 * Return one gradient with an exponent, or null if there is none. For the row of all layers, it is
 * one of the layer that has most gradients with this exponent.
 *
 * @param {Pick<Gradients, "step" | "layers" | "examples">} gradients
 * @param {string} name of the layer, or of all together
 * @param {number} exponent at scale 1
 * @returns {Followed | null}
 */
export function exampleOf({ step, layers, examples }, name, exponent) {
  /** @type {Followed | null} */
  let gradient = null;
  let most = 0;
  // The first row is that of all layers.
  for (const { name: layer, lo, counts } of layers.slice(1)) {
    if (name !== layer && name !== layers[0].name) continue;
    const example = examples[layer]?.[exponent - lo];
    const count = counts[exponent - lo] ?? 0;
    if (!example || count <= most) continue;
    most = count;
    gradient = { layer, step, index: example[0], value: example[1], exponent };
  }
  return gradient;
}

/**
 * Return a gradient at a scale, and the code, the value and the kind of number that the cast to a
 * format makes of it.
 *
 * @param {number} value
 * @param {number} log2Scale
 * @param {Format} format
 */
export function castOf(value, log2Scale, format) {
  const scaled = value * 2 ** log2Scale;
  const code = encode(roundValue(scaled, format), format);
  return { scaled, code, becomes: decode(code, format), kind: classOf(code, format) };
}

/**
 * Return a sentence about the error of a cast.
 *
 * @param {ReturnType<typeof castOf>} cast
 * @param {string} format its name
 */
export function castWords({ scaled, becomes, kind }, format) {
  if (kind === "zero") return `${format} makes it 0: all bits of its size are dark.`;
  if (!Number.isFinite(becomes)) return `${format} makes it ${decimal(becomes)}.`;
  if (becomes === scaled) return `${format} holds it exactly.`;
  const off = percent(Math.abs(becomes / scaled - 1));
  const held = kind === "subnormal" ? "as a subnormal number" : "in full precision";
  return `${format} holds ${decimal(becomes)}, ${held}, ${off} off.`;
}

/**
 * Return the panel of the gradient that is followed. It is hidden at first.
 *
 * @param {() => void} onClose
 */
export function followedGradient(onClose) {
  const title = h("p", { class: "lt-followed-title" });
  const close = button({
    label: "\u00d7",
    title: "Follow this gradient no longer",
    onPress: onClose,
  });
  const before = h("p", { class: "lt-before" });
  const after = h("p", { role: "status" });
  const bits = bitRow(null);
  const cast = h("div", {}, bits.element, after);
  const which = h("div", {}, title, before);
  return {
    element: h("div", { class: "lt-followed", hidden: true }, which, cast, close.element),
    /**
     * Show a gradient at a scale.
     *
     * @param {Followed} one
     * @param {number} log2Scale
     * @param {[single: Format, format: Format]} formats FP32, and what it is cast to
     */
    show(one, log2Scale, [single, format]) {
      const made = castOf(one.value, log2Scale, format);
      const held = Math.fround(made.scaled);
      const fields = fieldBits(encode(held, single), single);
      const place = `element ${one.index.toLocaleString("en-US")}`;
      title.textContent = `One gradient of ${one.layer}, step ${one.step}: ${place}`;
      const scaled = `${decimal(one.value)} \u00d7 2^${log2Scale} = ${decimal(held)}`;
      const before32 = h("code", { text: fields.join(" ") });
      before.replaceChildren(rich(`${scaled}; in FP32 `), before32);
      bits.set(format.name, fieldsOf(made.code, format));
      after.textContent = castWords(made, format.name);
    },
  };
}
