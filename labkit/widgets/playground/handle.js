// The handle of the loss scale, on the axis below the layers.

import { slider } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { power } from "../base/number_words.js";
import { handleWay } from "./drawn.js";
import { LEAST_LOG2_SCALE, MOST_LOG2_SCALE } from "./recipe.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Training } from "./trainer.js" */

// The width of a slider's thumb in CSS pixels, as in base.css.
const THUMB_WIDTH = 20;

/**
 * Put the handle of the scale into the figure of the layers; return the line of text below it.
 *
 * @param {Figure} layers
 * @param {(log2Scale: number) => void} onMove
 */
export function scaleHandle(layers, onMove) {
  const handle = slider({
    label: "Loss scale",
    min: LEAST_LOG2_SCALE,
    max: MOST_LOG2_SCALE,
    value: 0,
    labelled: false,
    text: power,
    onInput: onMove,
  });
  handle.element.classList.add("pg-handle");
  layers.element.prepend(handle.element);
  const label = h("label", { for: handle.input.id, text: "Loss scale:" });
  const value = h("output", { for: handle.input.id });
  const outline = h("span", { class: "lk-quiet", text: "Outline: FP32 twin, times scale" });
  return {
    element: h("div", { class: "lk-row pg-scale" }, label, value, outline),
    /** Put the handle on the axis of the picture. Call it when the size of the figure changes. */
    place() {
      const { left, length, above } = handleWay(layers.width);
      const { style } = handle.element;
      style.left = `${left * layers.grown - THUMB_WIDTH / 2}px`;
      style.width = `${length * layers.grown + THUMB_WIDTH}px`;
      style.bottom = `${above * layers.grown - handle.element.offsetHeight / 2}px`;
    },
    /**
     * Show the scale of the next step, unless the handle is being dragged.
     *
     * @param {Training} training
     */
    show({ recipe, scaler }) {
      const log2Scale = Math.log2(scaler.scale);
      if (!handle.input.matches(":active")) handle.set(log2Scale);
      const none = recipe.scaling === "none";
      const words = none ? "none, drag the handle" : power(Math.round(log2Scale));
      value.replaceChildren(rich(words));
    },
  };
}
