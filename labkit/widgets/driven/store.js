// The state of a training in the page: all points so far, and the commands that are not answered.
//
// Each model has one store, which keeps the whole curves. The kernel sends only new points, as
// columns of float32, which may be NaN. A frame is drawn in requestAnimationFrame and acknowledged
// after that, so a slow browser slows down the messages but not the training.

import { floats } from "../base/model.js";

/** @import { Content, Model } from "../base/model.js" */

/**
 * The traits of a widget that trains (`DrivenWidget`).
 *
 * @typedef {object} DrivenTraits
 * @property {Offers} _offers
 * @property {Frame<DrivenState>} [_frame] On a page without a kernel: the first frame, with a run
 * on record.
 * @property {string} [run] The run as JSON, which the page writes for the saved notebook.
 */

/**
 * The choices that the page offers: the devices, and what each widget adds.
 *
 * @typedef {{ places: { key: string, label: string }[] }} Offers
 */

/** @typedef {"idle" | "running" | "paused" | "finished" | "failed"} Phase */
/** @typedef {"start" | "pause" | "step" | "stop" | "reset"} Press */

/**
 * What the kernel sends beside the points (`DrivenWidget.state`); each widget adds to it.
 *
 * @typedef {object} DrivenState
 * @property {string} title
 * @property {string} about Description of the task.
 * @property {string} [detail]
 * @property {Phase} phase
 * @property {Press[]} enabled The buttons that have an effect now.
 * @property {number} step The number of steps that were done.
 * @property {number} total The number of steps that are planned.
 * @property {string} sentence
 * @property {string} notice What the user should know about the last command, or "".
 * @property {{ key: string, says: string, rates: string }} place The device on which it trains.
 * @property {string} recorded The device of a recorded run; "" if the learner's own run is shown.
 * @property {number} number The number of this frame.
 * @property {number} answered The number of the page's latest command that was carried out.
 * @property {boolean} whole Whether this frame has all points, instead of only new ones.
 */

/**
 * @template {DrivenState} State
 * @typedef {{ content: State, buffers: DataView[] }} Frame
 */

/**
 * How a widget stores its points. `take` appends the points of a frame.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} PointsKind
 * @property {() => Points} empty
 * @property {(points: Points, state: State, buffers: DataView[]) => void} take
 */

/**
 * One picture of a store. `draw` draws it, and `expose` then updates its `data-` attributes.
 *
 * @typedef {{ draw: () => void, expose: () => void }} StoreView
 */

/** @typedef {ReturnType<typeof setTimeout>} Timer */

/**
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Store
 * @property {Model<DrivenTraits>} model
 * @property {PointsKind<State, Points>} kind
 * @property {Set<StoreView>} views
 * @property {State | null} state The latest state from the kernel; null before the first.
 * @property {Points} points
 * @property {number} sent The number of the latest command, of this page or an earlier one.
 * @property {Timer | null} silence Runs while a command is not answered; null otherwise.
 * @property {boolean} silent Whether that timer has run out.
 * @property {Content | null} afterwards A command that waits until fewer are unanswered.
 * @property {number | null} wish log2 of the scale that the user has set and the kernel has not.
 * @property {number} answeredAt When the last frame was acknowledged, in ms.
 * @property {number} keptAt When the run was last written for the saved notebook, in ms.
 * @property {Timer | undefined} lateAnswer Runs until the next acknowledgement.
 * @property {boolean} pending Whether an animation frame has been requested.
 * @property {boolean} fresh Whether the state has not been drawn yet.
 * @property {(content: Content) => void} deliver Sends a message to the kernel, or to a source in
 * the page.
 */

/** @typedef {Store<DrivenState, object>} AnyStore */

// How long a command may be unanswered. While the kernel makes data and runs, it answers none.
const SILENCE_MS = 20_000;
// How many values of a moving slider may be unanswered.
const UNDER_WAY = 3;
// The time between two acknowledgements. The kernel sends 12 frames without one (IN_FLIGHT).
const ANSWER_MS = 250;
// The time between two copies of a running training for the saved notebook.
const KEEP_MS = 2000;
export const UNANSWERED =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; " +
  "if the kernel was restarted, run this cell again.";

/** @type {WeakMap<object, AnyStore>} */
const stores = new WeakMap();

/**
 * Return the store of a model. Two pictures of one widget share it.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Model<DrivenTraits>} model
 * @param {PointsKind<State, Points>} kind
 * @returns {Store<State, Points>}
 */
export function storeOf(model, kind) {
  const known = stores.get(model);
  if (known) return /** @type {Store<State, Points>} */ (/** @type {unknown} */ (known));
  /** @type {Store<State, Points>} */
  const store = {
    model,
    kind,
    views: new Set(),
    state: null,
    points: kind.empty(),
    sent: 0,
    silence: null,
    silent: false,
    afterwards: null,
    wish: null,
    answeredAt: 0,
    keptAt: 0,
    lateAnswer: undefined,
    pending: false,
    fresh: false,
    deliver: (content) => model.send(content),
  };
  stores.set(model, /** @type {AnyStore} */ (/** @type {unknown} */ (store)));
  restoreRun(store);
  /**
   * @param {State & { kind: string }} content
   * @param {DataView[]} buffers
   */
  const receive = (content, buffers) => {
    if (content.kind === "frame") takeFrame(store, content, buffers);
  };
  model.on("msg:custom", receive);
  return store;
}

// --- the saved notebook --------------------------------------------------------------------------

// A run is an attribute of the page's model, so it is saved with the notebook. JSON has no NaN and
// no infinity, so these are saved as strings.

/**
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
function keepRun(store) {
  const { state, points } = store;
  const now = performance.now();
  if (state?.phase === "running" && now - store.keptAt < KEEP_MS) return;
  store.keptAt = now;
  store.model.set("run", JSON.stringify({ state, points }, shortNumber));
}

/**
 * Show the run that was saved with the notebook. One that cannot be read is left out.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
function restoreRun(store) {
  const saved = store.model.get("run");
  if (typeof saved !== "string") return;
  try {
    Object.assign(store, JSON.parse(saved, numberAgain));
  } catch (error) {
    console.warn("The run that was saved with this widget cannot be read.", error);
  }
}

/**
 * @param {string} _
 * @param {unknown} value
 */
function shortNumber(_, value) {
  if (typeof value !== "number" || Number.isInteger(value)) return value;
  return Number.isFinite(value) ? Number(value.toPrecision(7)) : String(value);
}

/**
 * @param {string} _
 * @param {unknown} value
 */
function numberAgain(_, value) {
  if (value === "NaN" || value === "Infinity" || value === "-Infinity") return Number(value);
  return value;
}

// --- from the kernel -----------------------------------------------------------------------------

/**
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {State} content
 * @param {DataView[]} buffers
 */
function takeFrame(store, content, buffers) {
  if (content.whole) store.points = store.kind.empty();
  store.kind.take(store.points, content, buffers);
  store.state = content;
  // The kernel may have answered an earlier page, such as this one before it was loaded again. This
  // page counts on from there: with a lower number, its commands would count as answered at once.
  store.sent = Math.max(store.sent, content.answered);
  store.fresh = true;
  store.silent = false;
  if (content.answered >= store.sent && store.silence !== null) {
    clearTimeout(store.silence);
    store.silence = null;
  }
  if (store.afterwards && mayTell(store)) tell(store, store.afterwards);
  if (upToDate(store)) store.wish = null;
  schedule(store);
}

/**
 * Show a state from a source in the page. Such a source has carried out every command.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {State} state
 * @param {Points} points
 */
export function showLocally(store, state, points) {
  store.state = { ...state, answered: store.sent };
  store.points = points;
  store.wish = null;
  if (store.silence !== null) clearTimeout(store.silence);
  store.silence = null;
  schedule(store);
}

/**
 * Return whether the kernel has answered every command.
 *
 * @param {Pick<AnyStore, "state" | "sent" | "afterwards">} store
 */
export function upToDate({ state, sent, afterwards }) {
  return state !== null && state.answered >= sent && !afterwards;
}

/**
 * Return the rows of a buffer of float32 numbers, one row for each step.
 *
 * @param {DataView} buffer
 * @param {number} columns
 */
export function rowsOf(buffer, columns) {
  const all = floats(buffer);
  const rows = [];
  for (let at = 0; at < all.length; at += columns) rows.push(all.subarray(at, at + columns));
  return rows;
}

// --- drawing -------------------------------------------------------------------------------------

/**
 * Draw all pictures with the next animation frame.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
export function schedule(store) {
  if (store.pending) return;
  store.pending = true;
  requestAnimationFrame(() => {
    store.pending = false;
    for (const view of store.views) view.draw();
    if (store.fresh) {
      store.fresh = false;
      acknowledge(store);
      keepRun(store);
    }
    if (store.state) for (const view of store.views) view.expose();
  });
}

/**
 * Acknowledge the drawn frame, at most every ANSWER_MS: an acknowledgement costs the kernel more
 * than a frame does. The last frame is always acknowledged.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
function acknowledge(store) {
  clearTimeout(store.lateAnswer);
  const answer = () => {
    store.answeredAt = performance.now();
    send(store, { do: "drawn", number: store.state?.number ?? 0 });
  };
  if (performance.now() - store.answeredAt > ANSWER_MS) {
    answer();
  } else {
    store.lateAnswer = setTimeout(answer, ANSWER_MS);
  }
}

/**
 * Draw the scale that the user has set with the next animation frame, without waiting for the
 * kernel.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {number} log2Scale
 */
export function wishFor(store, log2Scale) {
  store.wish = log2Scale;
  schedule(store);
}

// --- to the kernel -------------------------------------------------------------------------------

/**
 * Send the latest value of a moving slider, as soon as few enough values are unanswered. More of
 * them would keep the kernel from training.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Content} what
 */
export function tellLatest(store, what) {
  if (mayTell(store)) {
    tell(store, what);
  } else {
    store.afterwards = what;
  }
}

/**
 * Return whether few enough commands are unanswered to send another one.
 *
 * @param {Pick<AnyStore, "state" | "sent">} store
 */
function mayTell({ state, sent }) {
  return sent - (state?.answered ?? 0) < UNDER_WAY;
}

/**
 * Send a command to the kernel. If another command waits, it is sent first.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Content} what
 */
export function tell(store, what) {
  const late = store.afterwards;
  store.afterwards = null;
  if (late && late !== what) tell(store, late);
  store.sent += 1;
  store.silence ??= setTimeout(() => {
    store.silent = true;
    schedule(store);
  }, SILENCE_MS);
  send(store, { ...what, number: store.sent });
}

/**
 * Send a message. After a restart of the kernel nothing receives it, and the page's `send` throws.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Content} content
 */
export function send(store, content) {
  try {
    store.deliver(content);
  } catch {
    store.silent = true;
    schedule(store);
  }
}
