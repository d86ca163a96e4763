// A picture as the tensor: each row is a block, or two, so that what a bright pixel does to its block is seen.

import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { percent } from "../base/number_words.js";
import { offBy, roundRow } from "./blocks.js";

const WHITE = 5; // what is brighter looks no different

function paint(canvas, values, side) {
  const pen = canvas.getContext("2d");
  const image = pen.createImageData(side, side);
  values.forEach((x, i) =>
    image.data.set([...Array(3).fill(255 * Math.sqrt(Math.max(0, x) / WHITE)), 255], 4 * i),
  );
  pen.putImageData(image, 0, 0);
}

export function makePicture(values, random) {
  const side = Math.sqrt(values.length);
  const numbers = random.flat();
  const [before, after] = ["Before", "Rounded"].map((name) => {
    const canvas = h("canvas", { width: side, height: side, role: "img" });
    return {
      canvas,
      element: h(
        "figure",
        { class: "bs-picture" },
        canvas,
        h("figcaption", { class: "lk-quiet", text: name }),
      ),
    };
  });
  const words = sentence();
  const element = h(
    "details",
    { class: "bs-pictures" },
    h("summary", { text: "The same switches on a picture" }),
    h("div", { class: "lk-row" }, before.element, after.element, words.element),
  );
  let last = [];
  const draw = () => {
    const [format, options, drawn] = last;
    const chance = options.random
      ? values.map((_, i) => numbers[(i + side * drawn) % numbers.length])
      : null;
    const row = roundRow(values, format, { ...options, random: chance });
    const zeros = row.values.filter((x) => !x).length;
    const text = `A night of ${side} × ${side} pixels: each row is ${format.size < side ? "two blocks" : "one block"}. ${zeros ? percent(zeros / values.length) : "None"} of the pixels became 0; the error of the picture is ${percent(offBy(values, row.values))}.`;
    paint(before.canvas, values, side);
    paint(after.canvas, row.values, side);
    before.canvas.setAttribute("aria-label", "Hills and the moon at night, with four lamps");
    after.canvas.setAttribute("aria-label", text);
    words.say(text);
  };
  element.addEventListener("toggle", () => element.open && draw());
  return {
    element,
    draw(...now) {
      last = now;
      if (element.open) draw();
    },
  };
}
