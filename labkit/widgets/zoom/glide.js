// From one distance to the next in one movement: the farther picture grows until the piece that was looked at fills the
// place, while the nearer one unfolds out of that piece; and the other way round.

import { h } from "../base/elements.js";

const GLIDE_MS = 350;
const MOST = 12; // times larger: beyond that nothing is recognised

// What an element looks like now. Its inputs stay behind: a copied radio button would be one of the group.
function pictureOf(element) {
  const copy = element.cloneNode(true);
  const canvases = [...element.querySelectorAll("canvas")];
  copy
    .querySelectorAll("canvas")
    .forEach((canvas, i) => canvas.width && canvas.getContext("2d").drawImage(canvases[i], 0, 0));
  for (const input of copy.querySelectorAll("input")) input.remove();
  return copy;
}

// The transform, about the upper left corner, that lays `from` over `to`, both inside of an element whose box is `whole`.
function laidOver(whole, from, to) {
  const [sx, sy] = [to.width / from.width, to.height / from.height].map((times) =>
    Math.min(MOST, Math.max(1 / MOST, times)),
  );
  const middle = (box) => [box.left + box.width / 2, box.top + box.height / 2];
  const [[fx, fy], [tx, ty]] = [middle(from), middle(to)];
  return `translate(${tx - whole.left - sx * (fx - whole.left)}px, ${ty - whole.top - sy * (fy - whole.top)}px) scale(${sx}, ${sy})`;
}

export function glider(stage) {
  const veil = h("div", { class: "gz-veil", "aria-hidden": "true", inert: true });
  let running = [];
  const move = (element, from, to) => {
    element.style.transformOrigin = "0 0";
    running.push(element.animate([from, to], { duration: GLIDE_MS, easing: "ease-in-out" }));
  };
  return {
    veil,
    // Before the change: what is seen. The function it returns is called after it, with what is seen then and the piece.
    leave(before) {
      for (const one of running) one.cancel();
      running = [];
      const [picture, box] = [pictureOf(before), before.getBoundingClientRect()];
      return (after, piece, nearer) => {
        const [place, whole] = [stage.getBoundingClientRect(), after.getBoundingClientRect()];
        if (!box.width || !whole.width || !piece.width) return;
        Object.assign(veil.style, {
          left: `${stage.offsetLeft}px`,
          top: `${stage.offsetTop}px`,
          width: `${place.width}px`,
          height: `${Math.max(place.height, box.height)}px`,
        });
        Object.assign(picture.style, {
          position: "absolute",
          left: `${box.left - place.left}px`,
          top: 0,
          width: `${box.width}px`,
          height: `${box.height}px`,
        });
        veil.replaceChildren(picture);
        stage.classList.add("gz-gliding");
        const seen = { transform: "none", opacity: 1 };
        const gone = {
          transform: nearer ? laidOver(box, piece, whole) : laidOver(box, box, piece),
          opacity: 0,
        };
        const first = {
          transform: nearer ? laidOver(whole, whole, piece) : laidOver(whole, piece, box),
          opacity: 0,
        };
        move(picture, seen, gone);
        move(after, first, seen);
        running[0].finished.then(
          () => (veil.replaceChildren(), stage.classList.remove("gz-gliding")),
          () => veil.replaceChildren(),
        );
      };
    },
  };
}
