// What the page knows of runs that train: all points so far, and what is under way between page and
// kernel.
//
// One store for each model keeps the whole curves; the kernel sends only new points, NaN included,
// as float32 columns. Frames are drawn in requestAnimationFrame and answered after drawing, so a
// slow browser slows the messages down and never the training.

import { floats } from "../base/model.js";

/** @import { Content, Model } from "../base/model.js" */

/**
 * The traits of a widget that trains (`DrivenWidget`).
 *
 * @typedef {object} DrivenTraits
 * @property {Offers} _offers
 * @property {Frame<DrivenState>} [_frame] On a page without a kernel: the first frame, with a run
 * on record.
 * @property {string} [run] The page's own note of the run, for the saved notebook.
 */

/**
 * What the page offers to turn: the devices, and what each widget adds.
 *
 * @typedef {{ places: { key: string, label: string }[] }} Offers
 */

/** @typedef {"idle" | "running" | "paused" | "finished" | "failed"} Phase */
/** @typedef {"start" | "pause" | "step" | "stop" | "reset"} Press */

/**
 * What the kernel says beside the points (`DrivenWidget.state`); each widget adds to it.
 *
 * @typedef {object} DrivenState
 * @property {string} title
 * @property {string} about What the task is.
 * @property {string} [detail]
 * @property {Phase} phase
 * @property {Press[]} enabled The buttons that mean something now.
 * @property {number} step Steps done.
 * @property {number} total Steps planned.
 * @property {string} sentence
 * @property {string} notice What the last command met; "" mostly.
 * @property {{ key: string, says: string, rates: string }} place Where it trains.
 * @property {string} recorded Of what the run on record was made; "" where the learner's own is
 * shown.
 * @property {number} number The frame's.
 * @property {number} answered The number of the page's latest command that was carried out.
 * @property {boolean} whole Whether the points begin again.
 */

/**
 * @template {DrivenState} State
 * @typedef {{ content: State, buffers: DataView[] }} Frame
 */

/**
 * How a widget's points are kept: `take` appends what a frame brings.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} PointsKind
 * @property {() => Points} empty
 * @property {(points: Points, state: State, buffers: DataView[]) => void} take
 */

/** @typedef {{ draw: () => void, expose: () => void }} StoreView one picture of a store */

/** @typedef {ReturnType<typeof setTimeout>} Timer */

/**
 * @template {DrivenState} State
 * @template {object} Points
 * @typedef {object} Store
 * @property {Model<DrivenTraits>} model
 * @property {PointsKind<State, Points>} kind
 * @property {Set<StoreView>} views
 * @property {State | null} state The kernel's latest; null before it has answered.
 * @property {Points} points
 * @property {number} sent Number of our latest command.
 * @property {Timer | null} silence Runs from a command to its answer.
 * @property {boolean} silent Whether the kernel has not answered for long.
 * @property {Content | null} afterwards What to say when fewer are under way.
 * @property {number | null} wish log2 of the scale that the hand asks for, until the kernel has it.
 * @property {number} answeredAt
 * @property {number} keptAt
 * @property {Timer | undefined} lateAnswer
 * @property {boolean} pending Whether a frame of the page is asked for.
 * @property {boolean} fresh Whether the kernel's latest is not drawn yet.
 * @property {(content: Content) => void} deliver Takes what the page tells: to the kernel, or to a
 * source in the page.
 */

/** @typedef {Store<DrivenState, object>} AnyStore */

// Data and runs may take a while to be made, and no command is carried out meanwhile.
const SILENCE_MS = 20_000;
// Values of a moving slider on their way to the kernel.
const UNDER_WAY = 3;
// Between two answers to the kernel; it sends 12 frames without one (IN_FLIGHT).
const ANSWER_MS = 250;
// Between two notes of a run that is under way, for the saved notebook.
const KEEP_MS = 2000;
export const UNANSWERED =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; " +
  "if the kernel was restarted, run this cell again.";

/** @type {WeakMap<object, AnyStore>} */
const stores = new WeakMap();

/**
 * The store of a model: two pictures of one widget share it.
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

// A run is an attribute of the page's model, and so saved with the notebook. JSON has no NaN and no
// inf.

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
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 */
function restoreRun(store) {
  const saved = store.model.get("run");
  if (typeof saved === "string") Object.assign(store, JSON.parse(saved, numberAgain));
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
 * Show what a source in the page has, which has carried out every command.
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
 * Whether the kernel's state is as new as what the hand did last.
 *
 * @param {Pick<AnyStore, "state" | "sent" | "afterwards">} store
 */
export function upToDate({ state, sent, afterwards }) {
  return state !== null && state.answered >= sent && !afterwards;
}

/**
 * Rows of so many float32 columns, one for each step.
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
 * Draw with the next frame of the page.
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
 * Tell the kernel what was drawn. Not every frame: an answer costs the kernel more than a frame
 * does. The last one is always answered.
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
  if (performance.now() - store.answeredAt > ANSWER_MS) answer();
  else store.lateAnswer = setTimeout(answer, ANSWER_MS);
}

/**
 * What the hand wants is drawn with the next frame of the page, whatever the kernel is doing.
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
 * While a slider moves: the latest value, as soon as few enough are on their way that the kernel is
 * not kept from training.
 *
 * @template {DrivenState} State
 * @template {object} Points
 * @param {Store<State, Points>} store
 * @param {Content} what
 */
export function tellLatest(store, what) {
  if (mayTell(store)) tell(store, what);
  else store.afterwards = what;
}

/** @param {Pick<AnyStore, "state" | "sent">} store */
function mayTell({ state, sent }) {
  return sent - (state?.answered ?? 0) < UNDER_WAY;
}

/**
 * Tell the kernel what the hand did.
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
 * After a restart of the kernel there is nobody to send to, and the page's own send throws.
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
