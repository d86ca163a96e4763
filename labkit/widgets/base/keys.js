// Keys that are pressed inside a widget do not reach the notebook, except a few of the notebook's
// own; Esc returns to it.
//
// JupyterLab acts on a key by where it was pressed, so those few are pressed once more on the
// widget's cell, which has the focus first. Where no cell of JupyterLab's is around (VS Code,
// Colab) they go on as the browser sent them.

import { placeOf } from "./elements.js";

/** @import { Life } from "./lifetime.js" */

// The second: an output that was given a tab of its own.
const HOME = ".jp-Cell, .jp-MainAreaWidget";
const KEY_NUMBER_OF_S = 83;

/**
 * Whether a key saves the notebook. The key's number and not its letter, as JupyterLab does it: S
 * is S under a Greek or Cyrillic layout too.
 *
 * @param {KeyboardEvent} event
 */
function saves(event) {
  return event.keyCode === KEY_NUMBER_OF_S && (event.ctrlKey || event.metaKey) && !event.altKey;
}

/**
 * Whether a key runs the cell.
 *
 * @param {KeyboardEvent} event
 */
export function runs(event) {
  const modified = event.shiftKey || event.ctrlKey || event.metaKey || event.altKey;
  return event.key === "Enter" && modified;
}

/** @param {KeyboardEvent} event */
function leaves(event) {
  return event.key === "Escape";
}

/**
 * Keep keys inside a widget.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 */
export function keepKeys(root, life) {
  life.listen(root, "keypress", (event) => event.stopPropagation());
  life.listen(root, "keyup", (event) => event.stopPropagation());
  life.listen(root, "keydown", (event) => {
    const unused = !event.defaultPrevented && !event.isComposing;
    const goesOn = unused && (runs(event) || saves(event) || leaves(event));
    const home = /** @type {HTMLElement | null} */ (root.closest(HOME));
    if (home || !goesOn) event.stopPropagation();
    if (!home || !goesOn) return;
    if (leaves(event) && closeDetails(placeOf(event))) return;
    if (!saves(event)) home.focus({ preventScroll: true });
    // What JupyterLab has acted on, the browser must not act on too: Ctrl+S would save the page.
    const again = new KeyboardEvent(event.type, event);
    if (!home.dispatchEvent(again)) event.preventDefault();
  });
}

/**
 * Close the innermost panel that folds; return whether there was one.
 *
 * @param {HTMLElement} inside
 */
function closeDetails(inside) {
  const panel = /** @type {HTMLDetailsElement | null} */ (inside.closest("details[open]"));
  if (!panel) return false;
  panel.open = false;
  panel.querySelector("summary")?.focus();
  return true;
}

/**
 * Whether an element can no longer have the focus.
 *
 * @param {HTMLElement} element
 */
function gone(element) {
  const hidden = element.getClientRects().length === 0;
  return !element.isConnected || element.matches(":disabled") || hidden;
}

/**
 * A control that is hidden, disabled or removed while it has the focus would drop it on the page,
 * where no key means anything; the root takes it, so that Tab and Esc go on from here.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 */
export function keepFocus(root, life) {
  /** @type {HTMLElement | null} */
  let focused = null;
  life.listen(root, "focusin", (event) => {
    focused = placeOf(event);
  });
  life.listen(root, "focusout", (event) => {
    if (event.relatedTarget || !gone(placeOf(event))) focused = null;
  });
  const observer = new MutationObserver(() => {
    if (focused && gone(focused)) root.focus({ preventScroll: true });
  });
  observer.observe(root, {
    subtree: true,
    childList: true,
    attributes: true,
    attributeFilter: ["disabled", "hidden"],
  });
  life.add(() => observer.disconnect());
}
