// The root of every widget: the section that holds its picture, and what a view.js exports.

import { showTitles } from "./controls.js";
import { h, placeOf } from "./elements.js";
import { sayItWasSaved, watchKernel } from "./kernel.js";
import { keepFocus, keepKeys } from "./keys.js";
import { lifetime } from "./lifetime.js";
import { guide } from "./tour.js";

/** @import { Life } from "./lifetime.js" */
/** @import { Model, SharedTraits } from "./model.js" */

// The elements that can have the focus, without the widget's own root.
const TAKES_FOCUS = "input, button, select, summary, a, [tabindex]:not(section)";

/**
 * What anywidget gives to a view.
 *
 * @template {object} Traits
 * @typedef {object} Place
 * @property {Model<Traits>} model
 * @property {HTMLElement} el The element to fill.
 * @property {boolean} [live] false: the widget was saved with its notebook, and has no kernel.
 */

/**
 * What a view.js exports.
 *
 * @template {object} Traits
 * @typedef {object} LabView
 * @property {(model: Model<Traits>) => boolean} answers Whether it can be used without a kernel.
 * @property {(place: Place<Traits>) => () => void} render Show the widget; return a function that
 *   removes it.
 */

/**
 * The name of a widget, its class, and whether it needs a kernel.
 *
 * @template {object} Traits
 * @typedef {object} About
 * @property {string | ((model: Model<Traits>) => string)} label Its name for screen readers.
 * @property {string} kind The end of its class: labkit-KIND.
 * @property {boolean | ((model: Model<Traits>) => boolean)} [alone]
 *   Whether the widget works without a kernel.
 */

/**
 * Fills the root of a widget with its picture and its controls.
 *
 * @template {object} Traits
 * @callback Fill
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 * @param {boolean} [live]
 * @returns {void}
 */

/**
 * Return the view of a widget, which its view.js exports.
 *
 * @template {object} Traits
 * @param {About<Traits>} about
 * @param {Fill<Traits>} fill
 * @returns {LabView<Traits>}
 */
export function view({ label, kind, alone = false }, fill) {
  /** @param {Model<Traits>} model */
  const answers = (model) => (typeof alone === "function" ? alone(model) : alone);
  return {
    answers,
    render({ model, el, live }) {
      const life = lifetime();
      const name = typeof label === "function" ? label(model) : label;
      const root = mount(el, name, kind, life);
      watchKernel(root, life, model);
      showTitles(root, life);
      guide(root, life, /** @type {Model<SharedTraits>} */ (/** @type {unknown} */ (model)));
      fill(root, model, life, live);
      if (live === false) sayItWasSaved(root, answers(model));
      return () => life.dispose();
    },
  };
}

/**
 * Put a widget's section in an element.
 *
 * @param {HTMLElement} el
 * @param {string} label
 * @param {string} kind
 * @param {Life} life
 * @returns {HTMLElement}
 */
function mount(el, label, kind, life) {
  const root = h("section", {
    class: `labkit labkit-${kind}`,
    role: "group",
    "aria-label": label,
    tabindex: "-1",
    // Lumino looks for this attribute, other hosts for the event (keys.js); both keep `d d` from
    // deleting the cell.
    "data-lm-suppress-shortcuts": "true",
  });
  keepKeys(root, life);
  keepFocus(root, life);
  // JupyterLab would give the focus to the cell when something is pressed that cannot have it.
  life.listen(root, "pointerdown", (event) => {
    if (placeOf(event).closest(TAKES_FOCUS)) return;
    event.preventDefault();
    root.focus({ preventScroll: true });
  });
  life.listen(root, "mousedown", (event) => event.stopPropagation());
  el.classList.add("labkit-room");
  el.replaceChildren(root);
  life.add(() => root.remove());
  return root;
}
