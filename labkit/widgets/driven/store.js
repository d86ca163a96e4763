// What the page knows of runs that train: all points so far, and what is under way between page and kernel.
//
// One store for each model keeps the whole curves; the kernel sends only new points, NaN included, as float32 columns.
// Frames are drawn in requestAnimationFrame and answered after drawing, so a slow browser slows the messages down and
// never the training. The widget's face says what points are: {empty(), take(store, content, buffers)}.

import { floats } from "../base/model.js";

const SILENCE_MS = 20_000; // data and runs may take a while to be made, and no command is carried out meanwhile
const UNDER_WAY = 3; // values of a moving slider on their way to the kernel
const ANSWER_MS = 250; // between two answers to the kernel; it sends 12 frames without one (IN_FLIGHT)
const KEEP_MS = 2000; // between two notes of a run that is under way, for the saved notebook
export const UNANSWERED =
  "The kernel does not answer. If a cell is running, wait for it or interrupt it; if the kernel was restarted, run this cell again.";

const stores = new WeakMap();

export function storeOf(model, points) {
  if (stores.has(model)) return stores.get(model);
  const store = {
    model,
    views: new Set(),
    state: null,
    points,
    ...points.empty(),
    sent: 0, // number of our latest command
    silence: 0, // timer that runs from a command to its answer
    silent: false,
    afterwards: null, // what to say when fewer are under way
    wish: null, // log2 of the scale that the hand asks for, until the kernel has it; drawn at once
    answeredAt: 0,
    keptAt: 0,
    lateAnswer: 0,
    pending: false,
    fresh: false,
  };
  stores.set(model, store);
  const saved = model.get("run");
  if (typeof saved === "string") Object.assign(store, JSON.parse(saved, numbersBack));
  model.on(
    "msg:custom",
    (content, buffers) => content.kind === "frame" && takeFrame(store, content, buffers),
  );
  return store;
}

// A run is an attribute of the page's model, and so saved with the notebook. JSON has no NaN and no inf.
function keepRun(store) {
  const now = performance.now();
  if (store.state.phase === "running" && now - store.keptAt < KEEP_MS) return;
  store.keptAt = now;
  const points = Object.keys(store.points.empty()).map((name) => [name, store[name]]);
  const short = (_, x) =>
    typeof x !== "number" || Number.isInteger(x)
      ? x
      : Number.isFinite(x)
        ? Number(x.toPrecision(7))
        : `${x}`;
  store.model.set(
    "run",
    JSON.stringify({ state: store.state, ...Object.fromEntries(points) }, short),
  );
}

const numbersBack = (_, x) => (["NaN", "Infinity", "-Infinity"].includes(x) ? Number(x) : x);

function takeFrame(store, content, buffers) {
  if (content.whole) Object.assign(store, store.points.empty());
  store.points.take(store, content, buffers);
  store.state = content;
  store.fresh = true;
  store.silent = false;
  if (content.answered >= store.sent) store.silence = clearTimeout(store.silence);
  if (store.afterwards && mayTell(store)) tell(store, store.afterwards);
  if (upToDate(store)) store.wish = null;
  schedule(store);
}

// Whether the kernel's state is as new as what the hand did last.
export function upToDate(store) {
  return store.state.answered >= store.sent && !store.afterwards;
}

// Rows of so many float32 columns, one for each step.
export function rowsOf(buffer, columns) {
  const all = floats(buffer);
  return Array.from({ length: all.length / columns }, (_, i) =>
    all.subarray(i * columns, (i + 1) * columns),
  );
}

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

// Not every frame: an answer costs the kernel more than a frame does. The last one is always answered.
function acknowledge(store) {
  clearTimeout(store.lateAnswer);
  const answer = () => {
    store.answeredAt = performance.now();
    send(store, { do: "drawn", number: store.state.number });
  };
  if (performance.now() - store.answeredAt > ANSWER_MS) answer();
  else store.lateAnswer = setTimeout(answer, ANSWER_MS);
}

// What the hand wants is drawn with the next frame of the page, whatever the kernel is doing.
export function wishFor(store, log2Scale) {
  store.wish = log2Scale;
  schedule(store);
}

// While a slider moves: the latest value, as soon as few enough are on their way that the kernel is not kept from training.
export function tellLatest(store, what) {
  if (mayTell(store)) tell(store, what);
  else store.afterwards = what;
}

function mayTell(store) {
  return store.sent - store.state.answered < UNDER_WAY;
}

export function tell(store, what) {
  const late = store.afterwards;
  store.afterwards = null;
  if (late && late !== what) tell(store, late);
  store.sent += 1;
  store.silence ||= setTimeout(() => {
    store.silent = true;
    schedule(store);
  }, SILENCE_MS);
  send(store, { ...what, number: store.sent });
}

// After a restart of the kernel there is nobody to send to, and the page's own send throws.
export function send(store, content) {
  try {
    store.model.send(content);
  } catch {
    store.silent = true;
    schedule(store);
  }
}
