// The text beside the pictures: notices about the page's address, and the guide of a scene.

import { h, rich } from "../base/elements.js";

/** @import { Scene } from "./scenes.js" */

/** Return a line for notices about the page's address, which is hidden without one. */
export function noticeLine() {
  const element = h("p", { class: "pg-notice", role: "status" });
  return {
    element,
    /** @param {string} text "" for none */
    show(text) {
      element.hidden = text === "";
      element.textContent = text;
    },
  };
}

/**
 * Return the notice about parts of the page's address that were ignored; "" for none.
 *
 * @param {readonly string[]} parts
 */
export function ignoredText(parts) {
  return parts.length ? `Ignored in this page's address: ${parts.join("; ")}.` : "";
}

/** Return the guide of a scene, and the source of its data. */
export function sceneGuide() {
  const list = h("ol", { class: "pg-guide" });
  const source = h("p", { class: "lk-quiet pg-source" });
  return {
    elements: [list, source],
    /** @param {Scene} scene */
    show(scene) {
      list.replaceChildren(...scene.guide.map((text) => h("li", {}, rich(text))));
      source.textContent = scene.source ?? "";
      source.hidden = !scene.source;
    },
  };
}
