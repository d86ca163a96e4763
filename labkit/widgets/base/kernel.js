// What a widget shows when its kernel is gone: that it can do nothing more, and how to continue.
//
// JupyterLab's widget manager knows its kernel, and the kernel tells of its end. A busy kernel is
// not a lost one. Other hosts show no kernel here, and nothing is watched.

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
 * Say so when the kernel goes.
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
  function look(_, status) {
    if (ENDS.includes(status)) lose();
  }
  function stop() {
    statusChanged.disconnect(look);
    disposed.disconnect(lose);
  }
  statusChanged.connect(look);
  disposed.connect(lose);
  life.add(stop);
}

/**
 * Say at the top that a widget was saved with its notebook: only what answers in the page can be
 * used.
 *
 * @param {HTMLElement} root
 * @param {boolean} alone whether it answers in the page
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
// The number of views of one widget: each widget runs a copy of this file.
let shownViews = 0;

/**
 * Call `act` once the last view of a widget was removed, and none was shown again within MOVING_MS.
 * A cell that is moved removes its view and shows it again, which does not count.
 *
 * @param {Life} life
 * @param {() => void} act stops what nobody sees any more
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
