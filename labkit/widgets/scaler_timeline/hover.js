// The step under the pointer, and a label above it.

import { hovering } from "../base/canvas.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */

/** @typedef {{ step: number | null }} Hover null: the pointer is on no step */

/**
 * @param {Life} life
 * @param {Figure} picture
 * @param {(x: number) => number | null} stepUnder
 * @param {(step: number) => string} textOf
 * @returns {Hover}
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
