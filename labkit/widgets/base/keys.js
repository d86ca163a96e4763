// Keys that are pressed inside a widget do not reach the notebook, except those that save it or run
// the cell, and Esc, which returns to the notebook.
//
// JupyterLab handles a key by the element in which it was pressed, so these keys are dispatched
// again on the widget's cell, which gets the focus first. If the widget is not in a cell of
// JupyterLab (VS Code, Colab), the browser's own event is passed on.

import { placeOf } from "./elements.js";

/** @import { Life } from "./lifetime.js" */

// The second selector is for an output in a tab of its own.
const HOME = ".jp-Cell, .jp-MainAreaWidget";
const KEY_NUMBER_OF_S = 83;

/**
 * Return whether a key saves the notebook. It goes by the key's number and not by its letter, as
 * JupyterLab does: the key S has the same number in a Greek or Cyrillic layout.
 *
 * @param {KeyboardEvent} event
 */
function saves(event) {
  return event.keyCode === KEY_NUMBER_OF_S && (event.ctrlKey || event.metaKey) && !event.altKey;
}

/**
 * Return whether a key runs the cell.
 *
 * @param {KeyboardEvent} event
 */
export function runs(event) {
  const modified = event.shiftKey || event.ctrlKey || event.metaKey || event.altKey;
  return event.key === "Enter" && modified;
}

/**
 * Return whether a key returns to the notebook.
 *
 * @param {KeyboardEvent} event
 */
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
    const isNotebookKey = unused && (runs(event) || saves(event) || leaves(event));
    const home = /** @type {HTMLElement | null} */ (root.closest(HOME));
    if (home || !isNotebookKey) event.stopPropagation();
    if (!home || !isNotebookKey) return;
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
 * Return whether an element can no longer have the focus.
 *
 * @param {HTMLElement} element
 */
function gone(element) {
  const hidden = element.getClientRects().length === 0;
  return !element.isConnected || element.matches(":disabled") || hidden;
}

/**
 * Keep the focus in a widget when the control that has it is hidden, disabled or removed: the root
 * gets the focus, so that Tab and Esc still work from there. The browser would give it to the page.
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
