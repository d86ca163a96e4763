// The results of the networks, side by side: the picture that each paints, and the picture that it
// should paint.

import { penOf } from "../base/canvas.js";
import { h } from "../base/elements.js";

/** @import { RunState } from "./plot.js" */

/**
 * A picture in shades of grey.
 *
 * @typedef {object} Painted
 * @property {number} step The step after which it was painted.
 * @property {number} height
 * @property {number} width
 * @property {string} pixels A byte for each pixel, row by row, in base64.
 */

/**
 * The pictures of all networks.
 *
 * @typedef {object} Result
 * @property {Painted} wanted The picture that the networks should paint.
 * @property {{ name: string, pictures: Painted[] }[]} runs At least one picture of each, by step.
 */

/**
 * Return the row of pictures; it is hidden for a task without any.
 *
 * @param {boolean} onPage whether the page has no kernel, and shows each step of a recorded run
 */
export function resultPictures(onPage) {
  const element = h("div", { class: "lt-results", hidden: true });
  let drawn = "";
  return {
    element,
    /** @param {RunState} state */
    show({ result, step, recorded, total }) {
      element.hidden = result === null;
      if (!result) return;
      // Before the learner's first step, a recorded run is shown as a whole.
      const whole = !onPage && recorded && step === 0;
      const until = whole ? total : step;
      const shown = result.runs.map(({ name, pictures }) => ({ name, ...latest(pictures, until) }));
      // With the pixels: another recipe may have a recorded picture of the same name and step.
      const key = shown.map(({ name, step: at, pixels }) => `${name} ${at} ${pixels}`).join();
      if (key === drawn) return;
      drawn = key;
      const wanted = canvasOf(result.wanted, "the picture to paint", "wanted");
      const runs = shown.map((one) =>
        canvasOf(one, `what ${one.name} paints after step ${one.step}`, one.name),
      );
      element.replaceChildren(...runs, wanted);
    },
  };
}

/**
 * Return the latest picture at or before a step, or else the first one.
 *
 * @param {readonly Painted[]} pictures
 * @param {number} step
 * @returns {Painted}
 */
function latest(pictures, step) {
  return pictures.findLast((one) => one.step <= step) ?? pictures[0];
}

/**
 * Return a picture with its caption.
 *
 * @param {Painted} picture
 * @param {string} label the text for screen readers
 * @param {string} caption
 */
function canvasOf({ width, height, pixels }, label, caption) {
  const canvas = h("canvas", { role: "img", "aria-label": label, width, height });
  const pen = penOf(canvas);
  const image = pen.createImageData(width, height);
  const shades = atob(pixels);
  for (let i = 0; i < width * height; i++) {
    image.data.fill(shades.charCodeAt(i), 4 * i, 4 * i + 3);
    image.data[4 * i + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return h("figure", {}, canvas, h("figcaption", { text: caption }));
}
