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
 * @param {{ phase: string, at: number }} lastWords the phase and the time of the last sentence;
 *   updated
 */
function showParts(store, state, parts, lastWords) {
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
  if (running && state.phase === lastWords.phase && now - lastWords.at < WORDS_MS) return;
  parts.words.say(state.sentence, running ? state.phase : state.sentence);
  lastWords.phase = state.phase;
  lastWords.at = now;
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
 * A view of a widget with a training, in one place of the page.
 *
 * @template {DrivenState} State
 * @template {object} Points
 */
class Driven {
  /**
   * @param {Face<State, Points>} face
   * @param {HTMLElement} root
   * @param {Model<DrivenTraits>} model
   * @param {Life} life
   */
  constructor(face, root, model, life) {
    this.face = face;
    this.root = root;
    this.model = model;
    this.life = life;
    this.store = storeOf(model, face.points);
    this.offers = model.get("_offers");
    this.onPage = Boolean(model.onPage);
    this.lastWords = { phase: "", at: 0 };
    // The place of the pointer on the axis of steps; the run may not have done this step.
    /** @type {number | null} */
    this.pointedAt = null;
    this.tint = colours(root, life, () => schedule(this.store));
    this.parts = makeParts(
      this.store,
      life,
      face,
      (pen, width) => this.paint(pen, width),
      this.tint,
    );
    this.showState = face.layout(this.store, this.parts, life, root);
  }

  /** Return the step under the pointer; null if the run has not done it, or does so no longer. */
  pointedStep() {
    const { state, points } = this.store;
    const { hover } = this.face;
    if (!state || !hover || this.pointedAt === null) return null;
    return this.pointedAt <= hover.steps(state, points) ? this.pointedAt : null;
  }

  /**
   * Draw the picture, and the label of the step under the pointer.
   *
   * @param {Pen} pen
   * @param {number} width
   */
  paint(pen, width) {
    const { face, model, offers, onPage, parts, tint } = this;
    const { state, points, wish } = this.store;
    if (!state) return;
    const step = this.pointedStep();
    const scene = { pen, width, tint, state, points, offers, wish, onPage, model };
    const { x, top } = face.paint(scene, step);
    if (step && face.hover) {
      parts.tip.show(x(step), top, face.hover.text(state, points, step));
    } else {
      parts.tip.hide();
    }
  }

  /** Show the last frame of the store. */
  draw() {
    const { state, silent } = this.store;
    if (state) {
      this.showState(state);
      showParts(this.store, state, this.parts, this.lastWords);
      this.parts.picture.drawNow();
    } else if (silent) {
      this.parts.words.say(UNANSWERED);
    }
  }

  /** Set the `data-` attributes, from which tests read what was drawn. */
  expose() {
    const { state, points, sent } = this.store;
    if (!state) return;
    const { phase, number, answered } = state;
    const about = { phase, frame: number, answered: answered >= sent };
    Object.assign(this.root.dataset, about, this.face.expose(state, points));
  }

  /**
   * Follow the pointer.
   *
   * @param {Spot | null} spot Where it is; null outside of the picture.
   */
  pointAt(spot) {
    const { hover } = this.face;
    const { state } = this.store;
    let step = null;
    if (spot && state && hover) {
      step = stepAt(this.parts.picture, spot.x, { total: state.total, right: hover.right });
    }
    if (step !== this.pointedAt) schedule(this.store);
    this.pointedAt = step;
  }

  /** Choose the step under the pointer. */
  pick() {
    const { state } = this.store;
    const step = this.pointedStep();
    if (state && step) this.face.pick?.(this.store, state, step);
  }

  /**
   * Begin to draw: from the kernel, or on a page without one from a record.
   *
   * @param {boolean} [live] false if the kernel that sent the widget has ended
   */
  begin(live) {
    const { face, root, life, store, parts } = this;
    if (face.hover) pointed(life, parts.picture, (spot) => this.pointAt(spot));
    if (face.pick) picking(life, parts.picture.canvas, () => this.pick());
    store.views.add(this);
    life.add(() => store.views.delete(this));
    if (this.onPage && face.playInPage?.(store, life)) {
      // The picture is then that of a game in the page, not only of a recorded run.
      this.onPage = false;
      return;
    }
    if (this.onPage) {
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
}

/**
 * Return the view of a widget with a training.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Face<State, Points>} face
 */
export function drivenView(face) {
  const { label, kind } = face;
  /**
   * @param {HTMLElement} root
   * @param {Model<DrivenTraits>} model
   * @param {Life} life
   * @param {boolean} [live]
   */
  function fill(root, model, life, live) {
    new Driven(face, root, model, life).begin(live);
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
