// The step under the pointer, and a label above it.

import { hovering } from "../base/canvas.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */

/** @typedef {{ step: number | null }} Hover The step under the pointer; null for none. */

/**
 * Show a label at the step under the pointer, and draw the picture whenever that changes.
 *
 * @param {Life} life
 * @param {Figure} picture
 * @param {(x: number) => number | null} stepUnder returns the step at a place of the picture
 * @param {(step: number) => string} textOf returns the text of the label
 * @returns {Hover} updated when the pointer moves
 */
export function hoverStep(life, picture, stepUnder, textOf) {
  /** @type {Hover} */
  const hover = { step: null };
  hovering(life, picture, (spot) => {
    hover.step = spot && stepUnder(spot.x);
    picture.redraw();
    if (!spot || !hover.step) return null;
    return [spot.x, spot.y - 6, textOf(hover.step)];
  });
  return hover;
}
