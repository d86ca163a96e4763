// The movement from one distance of the zoom to the next. Zooming in, the farther picture grows
// until a piece of it fills the stage, while the nearer picture grows out of this piece. Zooming
// out is the reverse.

import { penOf } from "../base/canvas.js";
import { h } from "../base/elements.js";

/** @typedef {{ left: number, top: number, width: number, height: number }} Box In CSS pixels. */

/**
 * Starts the movement from the former picture to the present one.
 *
 * @callback Arrive
 * @param {HTMLElement} after the present picture
 * @param {Box} piece the part of the farther picture that the nearer one shows
 * @param {boolean} nearer whether the present picture is the nearer one
 * @returns {void}
 */

const GLIDE_MS = 350;
// Pictures that are enlarged more than this cannot be recognised.
const LARGEST_FACTOR = 12;

/**
 * Return a copy of an element as it looks now, without its inputs: copied radio buttons would join
 * the group of the original ones.
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

/**
 * Return the factor within the limits of enlargement that is nearest to a factor.
 *
 * @param {number} factor
 */
function bounded(factor) {
  return Math.min(LARGEST_FACTOR, Math.max(1 / LARGEST_FACTOR, factor));
}

/**
 * Return the CSS transform of an element, about its upper left corner, that moves its part `from`
 * over the box `to`.
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

/**
 * Return the animation between distances.
 *
 * @param {HTMLElement} stage the element that holds the distances
 */
export function glider(stage) {
  const veil = h("div", { class: "gz-veil", "aria-hidden": "true", inert: true });
  /** @type {Animation[]} */
  let running = [];

  /**
   * Start the animation of an element.
   *
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
     * Copy the present picture before a change. Call the returned function after the change.
     *
     * @param {HTMLElement} before
     * @returns {Arrive}
     */
    leave(before) {
      for (const animation of running) animation.cancel();
      running = [];
      stage.classList.remove("gz-gliding");
      const picture = copyOf(before);
      const box = before.getBoundingClientRect();
      return (after, piece, nearer) => {
        const whole = after.getBoundingClientRect();
        if (!box.width || !whole.width || !piece.width) return;
        cover(veil, stage, picture, box);
        stage.classList.add("gz-gliding");
        const visible = { transform: "none", opacity: 1 };
        const end = nearer ? laidOver(box, piece, whole) : laidOver(box, box, piece);
        const start = nearer ? laidOver(whole, whole, piece) : laidOver(whole, piece, box);
        const leaving = move(picture, visible, { transform: end, opacity: 0 });
        move(after, { transform: start, opacity: 0 }, visible);
        const finish = () => {
          veil.replaceChildren();
          stage.classList.remove("gz-gliding");
        };
        // If the animation is cancelled, the veil may hold the picture of the next one already.
        leaving.finished.then(finish, () => picture.remove());
      };
    },
  };
}

/**
 * Lay the former picture over the stage, at its former place.
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
