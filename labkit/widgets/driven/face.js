// The view of a widget with a training: it draws the steps that the kernel sends, and sends the
// learner's commands to the kernel. All decisions are the kernel's.
//
// The view.js of such a widget exports `drivenView(face)`.

import { figure, pointed, tip } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { stepAt } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { deviceKnob } from "./controls.js";
import { playRecord } from "./record.js";
import { schedule, send, storeOf, UNANSWERED } from "./store.js";

/** @import { Pen, Spot } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Switch } from "./record.js" */
/** @import { DrivenState, DrivenTraits, Offers, PointsKind, Store, StoreView } from "./store.js" */

/**
 * Everything that is needed to draw the picture.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Scene
 * @property {Pen} pen
 * @property {number} width
 * @property {Palette} tint
 * @property {State} state
 * @property {Points} points
 * @property {Offers} offers
 * @property {number | null} wish log2 of the scale that the learner has set and no step has used
 *   yet; null otherwise.
 * @property {boolean} onPage Whether the page has no kernel and only shows a recorded run.
 * @property {Model<DrivenTraits>} model The model, for traits that only this widget has.
 */

/**
 * The position of the label of a step, in pixels.
 *
 * @typedef {{ x: (step: number) => number, top: number }} Drawn
 */

/**
 * How a widget describes the step under the pointer.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Hover
 * @property {number} right The space on the right of the axis, in pixels.
 * @property {(state: State, points: Points) => number} steps Returns the number of steps that can
 *   be pointed at.
 * @property {(state: State, points: Points, step: number) => string} text Returns the label of a
 *   step.
 */

/**
 * The parts of a view that differ between widgets.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Face
 * @property {string} label The accessible name of the root.
 * @property {string} kind The class of the root is "labkit-" and this name.
 * @property {string} picture The accessible name of the canvas.
 * @property {number} height The height of the picture, in pixels.
 * @property {PointsKind<State, Points>} points How the points of the curves are stored.
 * @property {(scene: Scene<State, Points>, step: number | null) => Drawn} paint
 *   Draws the picture; `step` is the step under the pointer.
 * @property {(store: Store<State, Points>, parts: Parts, life: Life, root: HTMLElement)
 *   => (state: State) => void} layout
 *   Appends parts and controls to the root; returns a function that shows a state in them, which is
 *   called for every frame.
 * @property {Hover<State, Points>} [hover]
 * @property {(store: Store<State, Points>, state: State, step: number) => void} [pick]
 *   Called when the step under the pointer is clicked, or chosen by Enter.
 * @property {(store: Store<State, Points>, life: Life) => boolean} [playInPage]
 *   On a page without a kernel: handles commands in the page. Returns false if it cannot.
 * @property {Switch<State, Points>} [switchOn]
 *   On a page without a kernel: returns a recorded run whose scaling was switched on.
 * @property {(state: State, points: Points) => Record<string, string | number | boolean>} expose
 *   Returns the values of the root's `data-` attributes, from which tests read what was drawn.
 */

/**
 * The parts that all views have; `layout` appends them to the root.
 *
 * @typedef {ReturnType<typeof makeParts>} Parts
 */

/**
 * Return the parts that all views have.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Life} life
 * @param {Face<State, Points>} face
 * @param {(pen: Pen, width: number) => void} paint
 * @param {Palette} tint
 */
function makeParts(store, life, face, paint, tint) {
  const title = h("span", { class: "lk-title" });
  const counter = h("span", { class: "lk-quiet" });
  const metric = h("span", { class: "lk-quiet run-metric" });
  const picture = figure({ life, label: face.picture, height: face.height, draw: paint });
  return {
    title,
    counter,
    metric,
    head: h("div", { class: "lk-head" }, title, counter, metric),
    notice: h("p", { class: "run-notice", role: "alert" }),
    words: sentence(),
    place: deviceKnob(store),
    picture,
    tip: tip(picture),
    tint,
  };
}

// The least time between two sentences while a run trains: 30 sentences a second cannot be read.
const WORDS_MS = 200;

/**
 * Show the values that the states of all widgets have.
 *
 * @param {Pick<Store<DrivenState, object>, "silent">} store
 * @param {DrivenState} state
 * @param {Parts} parts
 * @param {{ phase: string, at: number }} said the phase and the time of the last sentence; updated
 */
function showParts(store, state, parts, said) {
  const now = performance.now();
  const running = state.phase === "running";
  const counted = `step ${state.step} of ${state.total}`;
  parts.title.textContent = state.title;
  parts.title.title = state.about;
  parts.counter.textContent = state.detail ? `${counted}; ${state.detail}` : counted;
  const notice = store.silent ? UNANSWERED : state.notice;
  // An alert is read out each time it is set.
  if (parts.notice.textContent !== notice) parts.notice.textContent = notice;
  parts.place.show(state);
  if (running && state.phase === said.phase && now - said.at < WORDS_MS) return;
  parts.words.say(state.sentence, running ? state.phase : state.sentence);
  said.phase = state.phase;
  said.at = now;
}

/**
 * Return whether a page without a kernel has a recorded run to show.
 *
 * @param {Model<DrivenTraits>} model
 */
function aloneOnRecord(model) {
  return Boolean(model.get("_frame")?.content.recorded);
}

// The time after which a new widget says that the kernel does not answer.
const FIRST_ANSWER_MS = 4000;

/**
 * Return the view of a widget with a training.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Face<State, Points>} face
 */
export function drivenView(face) {
  const { label, kind, hover } = face;
  /**
   * @param {HTMLElement} root
   * @param {Model<DrivenTraits>} model
   * @param {Life} life
   * @param {boolean} [live]
   */
  function fill(root, model, life, live) {
    const store = storeOf(model, face.points);
    const said = { phase: "", at: 0 };
    let onPage = Boolean(model.onPage);
    const offers = model.get("_offers");
    const tint = colours(root, life, () => schedule(store));
    // The place of the pointer on the axis of steps; the run may not have done this step.
    /** @type {number | null} */
    let pointedAt = null;

    /** Return the step under the pointer; null if the run has not done it, or does so no longer. */
    function pointedStep() {
      const { state, points } = store;
      if (!state || !hover || pointedAt === null) return null;
      return pointedAt <= hover.steps(state, points) ? pointedAt : null;
    }

    /**
     * @param {Pen} pen
     * @param {number} width
     */
    function paint(pen, width) {
      const { state, points, wish } = store;
      if (!state) return;
      const scene = { pen, width, tint, state, points, offers, wish, onPage, model };
      const step = pointedStep();
      const { x, top } = face.paint(scene, step);
      if (step && hover) {
        parts.tip.show(x(step), top, hover.text(state, points, step));
      } else {
        parts.tip.hide();
      }
    }

    const parts = makeParts(store, life, face, paint, tint);
    const show = face.layout(store, parts, life, root);
    /** @type {StoreView} */
    const picture = {
      draw() {
        if (store.state) {
          show(store.state);
          showParts(store, store.state, parts, said);
          parts.picture.drawNow();
        } else if (store.silent) {
          parts.words.say(UNANSWERED);
        }
      },
      expose() {
        const { state, points, sent } = store;
        if (!state) return;
        const { phase, number, answered } = state;
        const about = { phase, frame: number, answered: answered >= sent };
        Object.assign(root.dataset, about, face.expose(state, points));
      },
    };

    /** @param {Spot | null} spot */
    function look(spot) {
      const { state } = store;
      let step = null;
      if (spot && state && hover) {
        step = stepAt(parts.picture, spot.x, { total: state.total, right: hover.right });
      }
      if (step !== pointedAt) schedule(store);
      pointedAt = step;
    }

    if (hover) pointed(life, parts.picture, look);
    if (face.pick) picking(life, parts.picture.canvas, pick);
    function pick() {
      const step = pointedStep();
      if (store.state && step) face.pick?.(store, store.state, step);
    }

    store.views.add(picture);
    life.add(() => store.views.delete(picture));
    if (onPage && face.playInPage?.(store, life)) {
      // The picture is then that of a game in the page, not only of a recorded run.
      onPage = false;
      return;
    }
    if (onPage) {
      playRecord(store, root, parts, life, face.switchOn);
      return;
    }
    parts.words.say("Waiting for the kernel.");
    if (live === false) {
      schedule(store);
    } else {
      greet(store, parts, life);
    }
  }
  return view({ label, kind, alone: aloneOnRecord }, fill);
}

/**
 * Call a function on each click in a picture, and on Enter while the picture has the focus.
 *
 * @param {Life} life
 * @param {HTMLCanvasElement} canvas
 * @param {() => void} act
 */
export function picking(life, canvas, act) {
  life.listen(canvas, "click", act);
  life.listen(canvas, "keydown", (event) => {
    const modified = event.shiftKey || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key === "Enter" && !modified) act();
  });
}

/**
 * Ask the kernel for its state, and tell it when all views of the widget have left the page.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Parts} parts
 * @param {Life} life
 */
function greet(store, parts, life) {
  const silence = setTimeout(() => {
    if (!store.state) parts.words.say(UNANSWERED);
  }, FIRST_ANSWER_MS);
  life.add(() => clearTimeout(silence));
  whenUnseen(life, () => send(store, { do: "unseen" }));
  send(store, { do: "hello" });
}
