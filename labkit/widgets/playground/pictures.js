// The figures of the playground, each drawn from its state.

import { figure } from "../base/canvas.js";
import { drawCourse, drawPortraits, drawSpreads } from "./drawn.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { State } from "./actions.js" */

/**
 * Return the figures: the layers, the losses with the scale, and the portraits.
 *
 * @param {State} state
 * @param {Life} life
 */
export function picturesOf(state, life) {
  /**
   * @param {string} label
   * @param {number | ((width: number) => number)} height
   * @param {typeof drawSpreads} draw
   */
  const picture = (label, height, draw) =>
    figure({
      life,
      label,
      height,
      draw: (pen, wide, high) => draw({ pen, tint: state.tint }, wide, high, state.session),
    });
  return {
    spreads: picture(
      "The gradients of each layer by their size; the sentence above says what is lost",
      332,
      drawSpreads,
    ),
    course: picture(
      "The loss of each step here and in FP32; the sentence above compares them",
      280,
      drawCourse,
    ),
    portraits: picture(
      "What the network does here, and what its twin in FP32 does",
      (width) => Math.min(220, (width - 12) / 2 + 20),
      drawPortraits,
    ),
  };
}
