// A drawn prediction: before the first step, the learner sketches the expected loss, and the
// training is drawn over the sketch.

import { button } from "../base/controls.js";
import { h, isMainButton, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { SIDE } from "../base/plot.js";
import { schedule } from "../driven/store.js";
import { offersOf } from "./knobs.js";
import { comparison, sketchWords, withStroke } from "./sketch.js";
import { PenPlaces } from "./sketch_pen.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { RunStore, RunTraits } from "./knobs.js" */
/** @import { RunState } from "./plot.js" */
/** @import { Paper, Pen } from "./sketch_pen.js" */

const KEYS_SAID =
  "Drag across the losses. With keys: the arrows move the pen, Space puts it down or lifts it, " +
  "Delete clears, Enter ends.";

/**
 * A sketch that is being made, and the elements that it is made with.
 *
 * @typedef {object} Sketching
 * @property {RunStore} store
 * @property {Model<RunTraits>} model
 * @property {Paper} paper
 * @property {PenPlaces} places
 * @property {boolean} drawing Whether the pad is open.
 * @property {boolean} byKey Whether the pen is moved by keys; then the text below the picture has
 *   its place.
 * @property {Pen | null} pen Null before the pad is touched or opened.
 * @property {ReturnType<typeof button>} toggle The button that opens and closes the pad.
 * @property {ReturnType<typeof button>} clear
 * @property {HTMLElement} pad The area over the losses that is drawn on.
 * @property {HTMLElement} nib The mark at the place of the pen.
 * @property {HTMLElement} words The text below the picture.
 */

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
  /** @type {Sketching} */
  const sketching = {
    store,
    model: /** @type {Model<RunTraits>} */ (/** @type {unknown} */ (store.model)),
    paper,
    places: new PenPlaces(store, paper),
    drawing: false,
    byKey: false,
    pen: null,
    toggle: button({ label: "", onPress: () => openOrClosePad(sketching) }),
    clear: button({
      label: "Clear",
      title: "Clear the sketch",
      onPress: () => clearSketch(sketching),
    }),
    pad,
    nib,
    words: h("p", { class: "lk-quiet lt-sketch-words run-record", role: "status" }),
  };
  listenToPointer(sketching, life);
  listenToKeys(sketching, life);
  watch(life, sketching.model, ["sketched"], () => schedule(store));
  return {
    controls: [sketching.toggle.element, sketching.clear.element],
    words: sketching.words,
    /** @param {RunState} state */
    show: (state) => showSketching(sketching, state),
  };
}

// --- the pen ---

/**
 * Move the pen; if it is down, draw a stroke.
 *
 * @param {Sketching} sketching
 * @param {Pen} to
 */
function movePen(sketching, to) {
  const { model, pen } = sketching;
  if (to.down) {
    const from = pen?.down ? pen : to;
    // The stroke is drawn at once; the kernel gets the sketch at the end of the stroke.
    model.set("sketched", withStroke(model.get("sketched"), from, to));
  }
  sketching.pen = to;
  showPen(sketching);
}

/**
 * Show the pen at its place.
 *
 * @param {Sketching} sketching
 */
function showPen({ store, places, pen, nib }) {
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

/** @param {Sketching} sketching */
function openOrClosePad(sketching) {
  if (sketching.drawing) {
    closePad(sketching);
  } else {
    openPad(sketching);
  }
}

/** @param {Sketching} sketching */
function openPad(sketching) {
  const { state } = sketching.store;
  if (!state) return;
  sketching.drawing = true;
  sketching.byKey = false;
  sketching.pen = sketching.places.first();
  showPen(sketching);
  showSketching(sketching, state);
  sketching.pad.focus({ preventScroll: true });
}

/** @param {Sketching} sketching */
function closePad(sketching) {
  const { store, model, pad, toggle } = sketching;
  const focused = pad.contains(document.activeElement);
  sketching.drawing = false;
  sketching.pen = null;
  model.save_changes();
  if (store.state) showSketching(sketching, store.state);
  if (focused) toggle.element.focus({ preventScroll: true });
}

/** @param {Sketching} sketching */
function clearSketch(sketching) {
  put(sketching.model, { sketched: [] });
  if (sketching.pen) sketching.pen = { ...sketching.pen, down: false };
  showPen(sketching);
}

// --- pointer and keys ---

/**
 * Return the pen at the place of an event, put down.
 *
 * @param {Sketching} sketching
 * @param {PointerEvent} event
 */
function penUnder({ pad, places }, event) {
  const box = pad.getBoundingClientRect();
  const up = 1 - (event.clientY - box.top) / box.height;
  return places.at((event.clientX - box.left) / box.width, up);
}

/**
 * Draw with the pointer.
 *
 * @param {Sketching} sketching
 * @param {Life} life
 */
function listenToPointer(sketching, life) {
  const { model, pad } = sketching;
  life.listen(pad, "pointerdown", (event) => {
    if (!isMainButton(event)) return;
    pad.setPointerCapture(event.pointerId);
    sketching.byKey = false;
    // A new stroke does not begin where the last one ended.
    sketching.pen = null;
    movePen(sketching, penUnder(sketching, event));
  });
  life.listen(pad, "pointermove", (event) => {
    const drags = sketching.pen?.down && pad.hasPointerCapture(event.pointerId);
    if (drags) movePen(sketching, penUnder(sketching, event));
  });
  for (const type of /** @type {const} */ (["pointerup", "pointercancel"])) {
    life.listen(pad, type, () => {
      if (sketching.pen) movePen(sketching, { ...sketching.pen, down: false });
      model.save_changes();
    });
  }
}

/**
 * Draw with keys.
 *
 * @param {Sketching} sketching
 * @param {Life} life
 */
function listenToKeys(sketching, life) {
  life.listen(sketching.pad, "keydown", (event) => {
    const { model, places, pen } = sketching;
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || !pen) return;
    const next = places.byKey(event.key, pen);
    if (event.key === "Enter") {
      closePad(sketching);
    } else if (event.key === "Delete" || event.key === "Backspace") {
      clearSketch(sketching);
    } else if (next) {
      sketching.byKey = true;
      movePen(sketching, next);
      if (!next.down) model.save_changes();
    } else {
      return;
    }
    event.preventDefault();
  });
}

// --- text and state ---

/**
 * Return the text below the picture.
 *
 * @param {Sketching} sketching
 * @param {RunState} state
 */
function sketchingText({ store, model, drawing, byKey, pen }, state) {
  const sketch = model.get("sketched");
  if (drawing && byKey && pen) {
    const where = `Pen at step ${pen.step}, loss ${decimal(pen.loss)}`;
    return `${where}, ${pen.down ? "down" : "lifted"}. ${sketchWords(sketch)}`;
  }
  if (drawing) return `${sketchWords(sketch)} ${KEYS_SAID}`;
  return comparison(sketch, rowsToCompare(store, state)) || sketchWords(sketch);
}

/**
 * Return the steps of the learner's run; on a page those of a recorded run, once its scale is on.
 *
 * @param {RunStore} store
 * @param {RunState} state
 */
function rowsToCompare({ model, points }, state) {
  if (!state.recorded) return state.phase === "running" ? [] : points.branches[0];
  return model.onPage && state.branches[0].marks.length ? points.recorded : [];
}

/**
 * Show the pad while it is drawn on, and the controls and the text for a state.
 *
 * @param {Sketching} sketching
 * @param {RunState} state
 */
function showSketching(sketching, state) {
  const { store, paper, pad, toggle, clear, words } = sketching;
  const mayDraw = Boolean(store.model.onPage) || state.phase === "idle";
  if (sketching.drawing && !mayDraw) closePad(sketching);
  const { drawing } = sketching;
  const { grown } = paper.picture;
  const { top, height } = paper.panel();
  pad.hidden = !drawing;
  pad.style.inset = `${top * grown}px ${paper.right * grown}px auto ${SIDE * grown}px`;
  pad.style.height = `${height * grown}px`;
  toggle.setLabel(drawing ? "Done" : "Draw what you expect");
  toggle.enable(mayDraw);
  toggle.element.title = mayDraw
    ? "Sketch where the loss will go, before it is trained"
    : "Sketch before the first step: press Reset";
  clear.element.hidden = !drawing;
  const text = sketchingText(sketching, state);
  if (words.dataset.text !== text) {
    words.dataset.text = text;
    words.replaceChildren(rich(text));
  }
}
