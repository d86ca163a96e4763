// A drawn prediction: before the first step, the learner sketches the expected loss, and the
// training is drawn over the sketch.

import { button } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { decimal } from "../base/number_words.js";
import { lossRange, SIDE } from "../base/plot.js";
import { schedule } from "../driven/store.js";
import { offersOf } from "./knobs.js";

/** @import { Figure } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Panel } from "../base/plot.js" */
/** @import { RunStore, RunTraits, Sketch } from "./knobs.js" */
/** @import { RunPoints, RunRow, RunState } from "./plot.js" */

/**
 * The place of the pen.
 *
 * @typedef {object} Pen
 * @property {number} step
 * @property {number} loss
 * @property {boolean} down Whether it draws when it is moved.
 */

/**
 * The picture that is drawn over.
 *
 * @typedef {object} Paper
 * @property {Figure} picture
 * @property {() => Panel} panel The panel of the losses.
 * @property {number} right The room on the right of the axis, in pixels.
 * @property {(state: RunState, points: RunPoints) => number[][]} losses Returns all losses in it.
 */

// The numbers of places of the pen along the axis of steps, and of its steps by arrow keys from the
// lowest loss to the highest.
const PEN_COLUMNS = 80;
const PEN_ROWS = 24;
// `lossRange` leaves a factor of 1.03 between a loss and the end of the axis. A sketched loss
// nearer to the end would make the axis longer while it is drawn.
const PEN_MARGIN = 1.031;
const KEYS_SAID =
  "Drag across the losses. With keys: the arrows move the pen, Space puts it down or lifts it, " +
  "Delete clears, Enter ends.";

// --- the sketch ----------------------------------------------------------------------------------

/**
 * Return a sketch with a straight stroke, which replaces what was sketched between its ends.
 *
 * @param {Sketch} sketch
 * @param {Pick<Pen, "step" | "loss">} from
 * @param {Pick<Pen, "step" | "loss">} to
 * @returns {Sketch}
 */
export function withStroke(sketch, from, to) {
  const [first, last] = from.step <= to.step ? [from, to] : [to, from];
  /** @type {Sketch} */
  const stroke = [[last.step, last.loss]];
  if (last.step > first.step) stroke.unshift([first.step, first.loss]);
  const before = sketch.filter(([step]) => step < first.step);
  const after = sketch.filter(([step]) => step > last.step);
  return [...before, ...stroke, ...after];
}

/**
 * Return the loss that was sketched at a step; NaN outside the sketch.
 *
 * @param {Sketch} sketch
 * @param {number} step
 */
export function drawnAt(sketch, step) {
  const next = sketch.findIndex(([at]) => at >= step);
  if (next < 0) return NaN;
  const [end, loss] = sketch[next];
  if (end === step) return loss;
  if (next === 0) return NaN;
  const [begin, before] = sketch[next - 1];
  // A line that is straight on the logarithmic axis.
  return before * (loss / before) ** ((step - begin) / (end - begin));
}

/**
 * Return a sentence about the ends of a sketch; "" without one.
 *
 * @param {Sketch} sketch
 */
export function sketchWords(sketch) {
  if (!sketch.length) return "";
  const [first, last] = [sketch[0], sketch[sketch.length - 1]];
  const start = `You drew a loss of ${decimal(first[1])} at step ${first[0]}`;
  return last === first ? `${start}.` : `${start}, and ${decimal(last[1])} at step ${last[0]}.`;
}

/**
 * Return sentences that compare a sketch with the losses of a run; "" if they have no step in
 * common.
 *
 * @param {Sketch} sketch
 * @param {readonly RunRow[]} rows
 */
export function comparison(sketch, rows) {
  const both = rows
    .map(({ step, loss }) => ({ step, loss, drawn: drawnAt(sketch, step) }))
    .filter(({ drawn }) => !Number.isNaN(drawn));
  if (!both.length) return "";
  const end = both[both.length - 1];
  const words = `You drew ${decimal(end.drawn)} at step ${end.step}; it is ${decimal(end.loss)}.`;
  const finite = both.filter(({ loss }) => loss > 0 && Number.isFinite(loss));
  if (finite.length < 2) return words;
  const [furthest] = finite.toSorted((a, b) => apart(b) - apart(a));
  if (furthest.step === end.step) return words;
  const there = `${decimal(furthest.drawn)} drawn, ${decimal(furthest.loss)} trained`;
  return `${words} Furthest apart at step ${furthest.step}: ${there}.`;
}

/**
 * Return the distance of two losses on a logarithmic axis.
 *
 * @param {{ loss: number, drawn: number }} both
 */
function apart({ loss, drawn }) {
  return Math.abs(Math.log(loss / drawn));
}

// --- the pad -------------------------------------------------------------------------------------

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

  // --- where the pen can be ---

  function total() {
    return store.state?.total ?? 1;
  }

  function column() {
    return Math.max(1, Math.ceil(total() / PEN_COLUMNS));
  }

  /** The ends of the axis of losses. */
  function ends() {
    const { state, points } = store;
    return lossRange(...(state ? paper.losses(state, points) : []));
  }

  /** @param {number} step */
  function onGrid(step) {
    return Math.min(total(), Math.max(1, Math.round(step / column()) * column()));
  }

  /** @param {number} loss */
  function inRange(loss) {
    const [low, high] = ends();
    const inside = Math.min(high / PEN_MARGIN, Math.max(low * PEN_MARGIN, loss));
    return Number(inside.toPrecision(3));
  }

  /**
   * @param {PointerEvent} event
   * @returns {Pen}
   */
  function penAt(event) {
    const box = pad.getBoundingClientRect();
    const [low, high] = ends();
    const up = 1 - (event.clientY - box.top) / box.height;
    const step = onGrid(((event.clientX - box.left) / box.width) * total());
    return { step, loss: inRange(low * (high / low) ** up), down: true };
  }

  /** @param {Pen} to */
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
      const [low, high] = ends();
      nib.style.left = `${(100 * pen.step) / total()}%`;
      nib.style.top = `${(100 * Math.log(high / pen.loss)) / Math.log(high / low)}%`;
      nib.dataset.down = String(pen.down);
    }
    schedule(store);
  }

  // --- begin and end ---

  function begin() {
    const { state, points } = store;
    if (!state) return;
    drawing = true;
    byKey = false;
    const [first] = points.recorded;
    const [low, high] = ends();
    pen = { step: 1, loss: inRange(first?.loss ?? Math.sqrt(low * high)), down: false };
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

  life.listen(pad, "pointerdown", (event) => {
    pad.setPointerCapture(event.pointerId);
    byKey = false;
    pen = null;
    move(penAt(event));
  });
  life.listen(pad, "pointermove", (event) => {
    if (pen?.down && pad.hasPointerCapture(event.pointerId)) move(penAt(event));
  });
  for (const type of /** @type {const} */ (["pointerup", "pointercancel"])) {
    life.listen(pad, type, () => {
      if (pen) move({ ...pen, down: false });
      model.save_changes();
    });
  }
  life.listen(pad, "keydown", (event) => {
    if (event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || !pen) return;
    const next = penByKey(event.key, pen);
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

  /**
   * Return the pen after a key; null for a key without a meaning.
   *
   * @param {string} key
   * @param {Pen} from
   * @returns {Pen | null}
   */
  function penByKey(key, { step, loss, down }) {
    const [low, high] = ends();
    const up = (high / low) ** (1 / PEN_ROWS);
    switch (key) {
      case " ":
        return { step, loss, down: !down };
      case "ArrowLeft":
        return { step: onGrid(step - column()), loss, down };
      case "ArrowRight":
        return { step: onGrid(step + column()), loss, down };
      case "ArrowUp":
        return { step, loss: inRange(loss * up), down };
      case "ArrowDown":
        return { step, loss: inRange(loss / up), down };
    }
    return null;
  }

  // --- text and state ---

  /** @param {RunState} state */
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

  /** @param {RunState} state */
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
