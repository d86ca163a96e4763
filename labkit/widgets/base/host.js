// Keys: what is pressed inside a widget stays there, but for the few that belong to the notebook, and Esc, the way back.
//
// JupyterLab acts on a key by where it was pressed, so those few are pressed once more on the widget's cell, which has the
// focus first. Where no cell of JupyterLab's is around (VS Code, Colab) they go on as the browser sent them.

import { h } from "./elements.js";

const HOME = ".jp-Cell, .jp-MainAreaWidget"; // the second: an output that was given a tab of its own

// The key's number and not its letter, as JupyterLab does it: S is S under a Greek or Cyrillic layout too.
const saves = (event) => event.keyCode === 83 && (event.ctrlKey || event.metaKey) && !event.altKey;
export const runs = (event) =>
  event.key === "Enter" && (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey);
const leaves = (event) => event.key === "Escape";

export function keepKeys(root, life) {
  for (const type of ["keypress", "keyup"])
    life.listen(root, type, (event) => event.stopPropagation());
  life.listen(root, "keydown", (event) => {
    const goesOn =
      !event.defaultPrevented &&
      !event.isComposing &&
      (runs(event) || saves(event) || leaves(event));
    const home = root.closest(HOME);
    if (home || !goesOn) event.stopPropagation();
    if (!home || !goesOn || (leaves(event) && closeDetails(event.target))) return;
    if (!saves(event)) home.focus({ preventScroll: true });
    // What JupyterLab has acted on, the browser must not act on too: Ctrl+S would save the page.
    if (!home.dispatchEvent(new KeyboardEvent(event.type, event))) event.preventDefault();
  });
}

const closeDetails = (inside) => {
  const panel = inside.closest("details[open]");
  if (!panel) return false;
  panel.open = false;
  panel.querySelector("summary").focus();
  return true;
};

// A control that is hidden, disabled or removed while it has the focus would drop it on the page, where no key means
// anything; the root takes it, so that Tab and Esc go on from here.
export function keepFocus(root, life) {
  let focused = null;
  const gone = (element) =>
    !element.isConnected || element.matches(":disabled") || !element.getClientRects().length;
  life.listen(root, "focusin", (event) => (focused = event.target));
  life.listen(root, "focusout", (event) => {
    if (event.relatedTarget || !gone(event.target)) focused = null;
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

// --- the kernel -----------------------------------------------------------------------------------------------------

// A widget whose kernel was restarted, died or was shut down can do nothing any more: it says so, and what to do.
//
// JupyterLab's widget manager knows its kernel, and the kernel tells of its end. A busy kernel is not a lost one. Other
// hosts show no kernel here, and nothing is watched.

const LOST =
  "The kernel that this widget talked to is gone: nothing you do here is answered. Choose Run\u00a0> Run All Above Selected Cell, " +
  "then run this cell again (Shift+Enter).";
const RUN_AGAIN =
  "choose Run\u00a0> Run All Above Selected Cell, then run this cell (Shift+Enter).";
const SAVED = `Saved with the notebook, as you left it. To use it, ${RUN_AGAIN}`;
const SAVED_ALONE = `Saved with the notebook. It answers here; to connect it with Python, ${RUN_AGAIN}`;
const ENDS = ["restarting", "autorestarting", "terminating", "dead"];

export function watchKernel(root, life, model) {
  const kernel = model.widget_manager?.kernel;
  if (!kernel?.statusChanged) return;
  const lose = () => {
    stop();
    const held = root.contains(document.activeElement);
    for (const part of root.children) part.inert = true; // not to be pressed, nor read out
    root.prepend(h("p", { class: "lk-lost", role: "alert", text: LOST }));
    if (held) root.focus({ preventScroll: true });
  };
  const look = (_, status) => ENDS.includes(status) && lose();
  const stop = () => {
    kernel.statusChanged.disconnect(look);
    kernel.disposed.disconnect(lose);
  };
  kernel.statusChanged.connect(look);
  kernel.disposed.connect(lose);
  life.add(stop);
}

// A widget that was saved with its notebook and has no kernel behind it: only what answers in the page can be used.
export function sayItWasSaved(root, alone) {
  if (!alone) for (const part of root.children) part.inert = true;
  root.append(h("p", { class: "lk-quiet lk-saved", text: alone ? SAVED_ALONE : SAVED }));
}

// When the last picture of a widget has left the page for good, nobody sees what it does: its cell was run again, say. A
// cell that is moved takes its picture away and brings it back.
const MOVING_MS = 500;
export let views = 0; // of one widget: each runs a copy of this file

export function whenUnseen(life, act) {
  views += 1;
  life.add(() => {
    views -= 1;
    setTimeout(() => views || act(), MOVING_MS);
  });
}
