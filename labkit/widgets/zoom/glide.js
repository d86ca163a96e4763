// From one distance to the next in one movement: the farther picture grows until the piece that
// was looked at fills the place, while the nearer one unfolds out of that piece; and the other way
// round.

import { penOf } from "../base/canvas.js";
import { h } from "../base/elements.js";

/** @typedef {{ left: number, top: number, width: number, height: number }} Box in CSS pixels */

/**
 * Goes from the picture that was left to what is seen now; `piece` is what both share.
 *
 * @typedef {(after: HTMLElement, piece: Box, nearer: boolean) => void} Arrive
 */

const GLIDE_MS = 350;
const MOST = 12; // times larger: beyond that nothing is recognised

/**
 * What an element looks like now. Its inputs stay behind: a copied radio button would be one of the
 * group.
 *
 * @param {HTMLElement} element
 */
function copyOf(element) {
  const copy = /** @type {HTMLElement} */ (element.cloneNode(true));
  const canvases = element.querySelectorAll("canvas");
  for (const [i, canvas] of copy.querySelectorAll("canvas").entries()) {
    if (canvas.width) penOf(canvas).drawImage(canvases[i], 0, 0);
  }
  for (const input of copy.querySelectorAll("input")) input.remove();
  return copy;
}

/** @param {number} times */
function bounded(times) {
  return Math.min(MOST, Math.max(1 / MOST, times));
}

/**
 * The transform, about the upper left corner, that lays `from` over `to`, both inside an element.
 *
 * @param {Box} whole the element's box
 * @param {Box} from
 * @param {Box} to
 */
function laidOver(whole, from, to) {
  const sx = bounded(to.width / from.width);
  const sy = bounded(to.height / from.height);
  const fromX = from.left + from.width / 2;
  const fromY = from.top + from.height / 2;
  const toX = to.left + to.width / 2;
  const toY = to.top + to.height / 2;
  const x = toX - whole.left - sx * (fromX - whole.left);
  const y = toY - whole.top - sy * (fromY - whole.top);
  return `translate(${x}px, ${y}px) scale(${sx}, ${sy})`;
}

/** @param {HTMLElement} stage where the distances stand */
export function glider(stage) {
  const veil = h("div", { class: "gz-veil", "aria-hidden": "true", inert: true });
  /** @type {Animation[]} */
  let running = [];

  /**
   * @param {HTMLElement} element
   * @param {Keyframe} from
   * @param {Keyframe} to
   */
  function move(element, from, to) {
    element.style.transformOrigin = "0 0";
    const animation = element.animate([from, to], { duration: GLIDE_MS, easing: "ease-in-out" });
    running.push(animation);
    return animation;
  }

  return {
    veil,
    /**
     * To be called before the change, with what is seen; what it returns is called after it.
     *
     * @param {HTMLElement} before
     * @returns {Arrive}
     */
    leave(before) {
      for (const one of running) one.cancel();
      running = [];
      const picture = copyOf(before);
      const box = before.getBoundingClientRect();
      return (after, piece, nearer) => {
        const whole = after.getBoundingClientRect();
        if (!box.width || !whole.width || !piece.width) return;
        cover(veil, stage, picture, box);
        stage.classList.add("gz-gliding");
        const seen = { transform: "none", opacity: 1 };
        const goes = nearer ? laidOver(box, piece, whole) : laidOver(box, box, piece);
        const comes = nearer ? laidOver(whole, whole, piece) : laidOver(whole, piece, box);
        const leaving = move(picture, seen, { transform: goes, opacity: 0 });
        move(after, { transform: comes, opacity: 0 }, seen);
        const end = () => {
          veil.replaceChildren();
          stage.classList.remove("gz-gliding");
        };
        leaving.finished.then(end, () => veil.replaceChildren());
      };
    },
  };
}

/**
 * Lay the picture of what was seen over the stage, where it was.
 *
 * @param {HTMLElement} veil
 * @param {HTMLElement} stage
 * @param {HTMLElement} picture
 * @param {Box} box
 */
function cover(veil, stage, picture, box) {
  const place = stage.getBoundingClientRect();
  Object.assign(veil.style, {
    left: `${stage.offsetLeft}px`,
    top: `${stage.offsetTop}px`,
    width: `${place.width}px`,
    height: `${Math.max(place.height, box.height)}px`,
  });
  Object.assign(picture.style, {
    position: "absolute",
    left: `${box.left - place.left}px`,
    top: "0",
    width: `${box.width}px`,
    height: `${box.height}px`,
  });
  veil.replaceChildren(picture);
}
