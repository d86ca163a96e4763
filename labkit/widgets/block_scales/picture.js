// A picture that is rounded in blocks: each of its rows is one block, or two. So the effect of a
// bright pixel on its block is visible.

import { penOf } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { percent } from "../base/number_words.js";
import { offBy, roundRow } from "./blocks.js";

/** @import { BlockFormat, Ways } from "./blocks.js" */

/**
 * The positions of the controls.
 *
 * @typedef {object} Switched
 * @property {BlockFormat} format
 * @property {Ways} ways
 * @property {number} draw The index of the random numbers.
 */

// The value of a white pixel. Brighter pixels are white, too.
const WHITE = 5;
const ORIGINAL = "Hills and the moon at night, with four lamps";

/**
 * Draw the pixels of a picture.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {readonly number[]} values row by row
 * @param {number} side the number of pixels in a row
 */
function paint(canvas, values, side) {
  const pen = penOf(canvas);
  const image = pen.createImageData(side, side);
  for (const [i, x] of values.entries()) {
    const grey = 255 * Math.sqrt(Math.max(0, x) / WHITE);
    image.data.set([grey, grey, grey, 255], 4 * i);
  }
  pen.putImageData(image, 0, 0);
}

/**
 * @param {string} name
 * @param {number} side
 */
function framed(name, side) {
  const canvas = h("canvas", { width: side, height: side, role: "img" });
  const caption = h("figcaption", { class: "lk-quiet", text: name });
  return { canvas, element: h("figure", { class: "bs-picture" }, canvas, caption) };
}

/**
 * @param {readonly number[]} values row by row
 * @param {readonly number[][]} random
 */
export function makePicture(values, random) {
  const side = Math.sqrt(values.length);
  const numbers = random.flat();
  const before = framed("Before", side);
  const after = framed("Rounded", side);
  const words = sentence();
  const element = h(
    "details",
    { class: "bs-pictures" },
    h("summary", { text: "The same switches on a picture" }),
    h("div", { class: "lk-row" }, before.element, after.element, words.element),
  );
  /** @type {Switched | null} */
  let last = null;

  /** @param {Switched} switched */
  function show({ format, ways, draw }) {
    const chance = values.map((_, i) => numbers[(i + side * draw) % numbers.length]);
    const row = roundRow(values, format, { ...ways, random: ways.random && chance });
    const text = pictureText(row.values, values, side, format.size);
    paint(before.canvas, values, side);
    paint(after.canvas, row.values, side);
    before.canvas.setAttribute("aria-label", ORIGINAL);
    after.canvas.setAttribute("aria-label", text);
    words.say(text);
  }
  function showIfOpen() {
    if (element.open && last) show(last);
  }
  element.addEventListener("toggle", showIfOpen);
  return {
    element,
    /** @param {Switched} now */
    draw(now) {
      last = now;
      showIfOpen();
    },
  };
}

/**
 * @param {readonly number[]} rounded
 * @param {readonly number[]} values
 * @param {number} side
 * @param {number} size of a block
 */
function pictureText(rounded, values, side, size) {
  const zeros = rounded.filter((x) => !x).length;
  const blocks = size < side ? "two blocks" : "one block";
  const share = zeros ? percent(zeros / values.length) : "None";
  const error = percent(offBy(values, rounded));
  return (
    `A night of ${side} × ${side} pixels: each row is ${blocks}. ` +
    `${share} of the pixels became 0; the error of the picture is ${error}.`
  );
}
