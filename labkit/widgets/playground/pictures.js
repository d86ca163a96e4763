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
  const spreads = figure({
    life,
    label: "The gradients of each layer by their size; the sentence above says what is lost",
    height: 332,
    draw(pen, width, height) {
      drawSpreads({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  const course = figure({
    life,
    label: "The loss of each step here and in FP32; the sentence above compares them",
    height: 280,
    draw(pen, width, height) {
      drawCourse({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  const portraits = figure({
    life,
    label: "What the network does here, and what its twin in FP32 does",
    height: (width) => Math.min(220, (width - 12) / 2 + 20),
    draw(pen, width, height) {
      drawPortraits({ pen, tint: state.tint }, width, height, state.session);
    },
  });
  return { spreads, course, portraits };
}
