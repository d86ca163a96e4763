// A drawn prediction: before the first step, the learner sketches the expected loss, and the
// training is drawn over the sketch.

import { button } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { SIDE } from "../base/plot.js";
import { schedule } from "../driven/store.js";
import { offersOf } from "./knobs.js";
import { comparison, sketchWords, withStroke } from "./sketch.js";
import { penPlaces } from "./sketch_pen.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { RunStore, RunTraits } from "./knobs.js" */
/** @import { RunState } from "./plot.js" */
/** @import { Paper, Pen } from "./sketch_pen.js" */

const KEYS_SAID =
  "Drag across the losses. With keys: the arrows move the pen, Space puts it down or lifts it, " +
  "Delete clears, Enter ends.";

/**
 * Return the buttons, the pad over the losses and the text below the picture; null if the widget
 * does not offer to sketch the loss.
 *
 * @param {RunStore} store
 * @param {Life} life
 * @param {Paper} paper
 */
export function sketchPad(store, life, paper) {
  if (!offersOf(store).sketch) return null;
  const model = /** @type {Model<RunTraits>} */ (/** @type {unknown} */ (store.model));
  const places = penPlaces(store, paper);
  let drawing = false;
  // Whether the pen is moved by keys; then the text below the picture has its place.
  let byKey = false;
  /** @type {Pen | null} */
  let pen = null;

  const toggle = button({ label: "", onPress: () => (drawing ? end() : begin()) });
  const clear = button({ label: "Clear", title: "Clear the sketch", onPress: wipe });
  const nib = h("span", { class: "lt-pen", hidden: true });
  const pad = h("div", {
    class: "lt-pad",
    role: "application",
    "aria-label": `Sketch of the loss. ${KEYS_SAID}`,
    tabindex: "0",
    hidden: true,
  });
  pad.append(nib);
  paper.picture.element.append(pad);
  const words = h("p", { class: "lk-quiet lt-sketch-words run-record", role: "status" });

  // --- the pen ---

  /**
   * Move the pen; if it is down, draw a stroke.
   *
   * @param {Pen} to
   */
  function move(to) {
    if (to.down) {
      const from = pen?.down ? pen : to;
      // The stroke is drawn at once; the kernel gets the sketch at the end of the stroke.
      model.set("sketched", withStroke(model.get("sketched"), from, to));
    }
    pen = to;
    showPen();
  }

  function showPen() {
    nib.hidden = pen === null;
    if (pen) {
      const { across, below } = places.sharesOf(pen);
      nib.style.left = `${100 * across}%`;
      nib.style.top = `${100 * below}%`;
      nib.dataset.down = String(pen.down);
    }
    schedule(store);
  }

  // --- begin and end ---

  function begin() {
    const { state } = store;
    if (!state) return;
    drawing = true;
    byKey = false;
    pen = places.first();
    showPen();
    show(state);
    pad.focus({ preventScroll: true });
  }

  function end() {
    const focused = pad.contains(document.activeElement);
    drawing = false;
    pen = null;
    model.save_changes();
    if (store.state) show(store.state);
    if (focused) toggle.element.focus({ preventScroll: true });
  }

  function wipe() {
    put(model, { sketched: [] });
    if (pen) pen = { ...pen, down: false };
    showPen();
  }

  // --- pointer and keys ---

  /**
   * Return the pen at the place of an event, put down.
   *
   * @param {PointerEvent} event
   */
  function penUnder(event) {
    const box = pad.getBoundingClientRect();
    const up = 1 - (event.clientY - box.top) / box.height;
    return places.at((event.clientX - box.left) / box.width, up);
  }

  life.listen(pad, "pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    byKey = false;
    pen = null;
    move(penUnder(event));
  });
  life.listen(pad, "pointermove", (event) => {
    if (pen?.down && pad.hasPointerCapture(event.pointerId)) move(penUnder(event));
  });
  for (const type of /** @type {const} */ (["pointerup", "pointercancel"])) {
    life.listen(pad, type, () => {
      if (pen) move({ ...pen, down: false });
      model.save_changes();
    });
  }
  life.listen(pad, "keydown", (event) => {
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || !pen) return;
    const next = places.byKey(event.key, pen);
    if (event.key === "Enter") {
      end();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      wipe();
    } else if (next) {
      byKey = true;
      move(next);
      if (!next.down) model.save_changes();
    } else {
      return;
    }
    event.preventDefault();
  });

  // --- text and state ---

  /**
   * Return the text below the picture.
   *
   * @param {RunState} state
   */
  function textFor(state) {
    const sketch = model.get("sketched");
    if (drawing && byKey && pen) {
      const where = `Pen at step ${pen.step}, loss ${decimal(pen.loss)}`;
      return `${where}, ${pen.down ? "down" : "lifted"}. ${sketchWords(sketch)}`;
    }
    if (drawing) return `${sketchWords(sketch)} ${KEYS_SAID}`;
    return comparison(sketch, rowsToCompare(state)) || sketchWords(sketch);
  }

  /**
   * Return the steps of the learner's run; on a page those of a recorded run, once its scale is on.
   *
   * @param {RunState} state
   */
  function rowsToCompare(state) {
    const { points } = store;
    if (!state.recorded) return state.phase === "running" ? [] : points.branches[0];
    return store.model.onPage && state.branches[0].marks.length ? points.recorded : [];
  }

  /**
   * Show the pad while it is drawn on, and the controls and the text for a state.
   *
   * @param {RunState} state
   */
  function show(state) {
    const before = Boolean(store.model.onPage) || state.phase === "idle";
    if (drawing && !before) end();
    const { grown } = paper.picture;
    const { top, height } = paper.panel();
    pad.hidden = !drawing;
    pad.style.inset = `${top * grown}px ${paper.right * grown}px auto ${SIDE * grown}px`;
    pad.style.height = `${height * grown}px`;
    toggle.setLabel(drawing ? "Done" : "Draw what you expect");
    toggle.enable(before);
    toggle.element.title = before
      ? "Sketch where the loss will go, before it is trained"
      : "Sketch before the first step: press Reset";
    clear.element.hidden = !drawing;
    const text = textFor(state);
    if (words.dataset.text !== text) {
      words.dataset.text = text;
      words.replaceChildren(rich(text));
    }
  }

  watch(life, model, ["sketched"], () => schedule(store));
  return { controls: [toggle.element, clear.element], words, show };
}
