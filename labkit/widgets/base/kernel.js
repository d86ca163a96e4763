// What a widget shows when its kernel is gone: that its controls no longer work, and how to make
// them work again.
//
// JupyterLab's widget manager has the kernel, whose signals report its end. A busy kernel is not a
// lost one. In other hosts the manager has no kernel, and nothing is watched.

import { h } from "./elements.js";

/** @import { Life } from "./lifetime.js" */
/** @import { WidgetManager } from "./model.js" */

const RUN_ABOVE = "Run\u00a0> Run All Above Selected Cell";
const LOST =
  "The kernel of this widget has stopped, so its controls no longer work. " +
  `Choose ${RUN_ABOVE}, then run this cell again (Shift+Enter).`;
const RUN_AGAIN = `choose ${RUN_ABOVE}, then run this cell (Shift+Enter).`;
const SAVED = "Saved with the notebook: a still picture, whose controls do nothing.";
const BRING_BACK = "How to use it again";
const HOW = `To use it again, ${RUN_AGAIN}`;
const ALONE = `Saved with the notebook. It works here; to connect it with Python, ${RUN_AGAIN}`;
// The kernel's states in which its Python objects, and so the widgets, are lost.
const ENDS = ["restarting", "autorestarting", "terminating", "dead"];

/**
 * Make everything in a widget inert: it cannot be used, and screen readers skip it.
 *
 * @param {HTMLElement} root
 */
function lock(root) {
  for (const part of root.children) {
    if (part instanceof HTMLElement) part.inert = true;
  }
}

/**
 * When the kernel is lost, make the widget inert and show why above it.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 * @param {{ widget_manager?: WidgetManager }} model
 */
export function watchKernel(root, life, model) {
  const kernel = model.widget_manager?.kernel;
  if (!kernel?.statusChanged) return;
  const { statusChanged, disposed } = kernel;

  function lose() {
    stop();
    const held = root.contains(document.activeElement);
    lock(root);
    root.prepend(h("p", { class: "lk-lost", role: "alert", text: LOST }));
    if (held) root.focus({ preventScroll: true });
  }
  /**
   * @param {unknown} _
   * @param {string} status
   */
  function onStatus(_, status) {
    if (ENDS.includes(status)) lose();
  }
  function stop() {
    statusChanged.disconnect(onStatus);
    disposed.disconnect(lose);
  }
  statusChanged.connect(onStatus);
  disposed.connect(lose);
  life.add(stop);
}

/**
 * Show above a widget that it was saved with its notebook and has no kernel. A widget that needs
 * one is made inert.
 *
 * @param {HTMLElement} root
 * @param {boolean} alone whether the widget works without a kernel
 */
export function sayItWasSaved(root, alone) {
  if (alone) {
    root.prepend(h("p", { class: "lk-quiet lk-saved", text: ALONE }));
    return;
  }
  lock(root);
  const how = h("p", { text: HOW });
  const summary = h("summary", { class: "lk-button", text: BRING_BACK });
  const words = h("span", { text: SAVED });
  root.prepend(h("div", { class: "lk-lost lk-saved" }, words, h("details", {}, summary, how)));
}

// The time that a moved cell has to show its view again.
const MOVING_MS = 500;
// The number of views of one widget. Each widget runs a copy of this file, which its views share.
let shownViews = 0;

/**
 * Call `act` once the last view of a widget was removed, and none was shown again within MOVING_MS.
 * A cell that is moved removes its view and shows it again, which does not count.
 *
 * @param {Life} life
 * @param {() => void} act stops work whose result is no longer shown
 */
export function whenUnseen(life, act) {
  shownViews += 1;
  life.add(() => {
    shownViews -= 1;
    setTimeout(() => {
      if (shownViews === 0) act();
    }, MOVING_MS);
  });
}
