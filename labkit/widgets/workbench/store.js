// What the page knows of a workbench: all points so far, and what is under way between page and kernel.

const COLUMNS = 5; // loss, scale, stepped, underflow, swallowed: see BenchOutbox in workbench/view.py
const ANSWER_MS = 250; // between two answers to the kernel; it sends 12 frames without one (IN_FLIGHT)
const SILENCE_MS = 20_000; // data and runs may take a while to be made, and nothing is obeyed meanwhile

function makeStore(model) {
  return {
    model,
    views: new Set(),
    state: null,
    fp32: [],
    previous: [],
    branches: [[], []],
    sent: 0,
    answeredAt: 0,
    lateAnswer: 0,
    silence: 0,
    silent: false,
    pending: false,
    fresh: false,
  };
}

const stores = new WeakMap();

function storeOf(model) {
  if (stores.has(model)) return stores.get(model);
  const store = makeStore(model);
  stores.set(model, store);
  model.on("msg:custom", (content, buffers) => content.kind === "frame" && takeFrame(store, content, buffers));
  return store;
}

function takeFrame(store, content, buffers) {
  if (content.whole) {
    store.fp32 = [];
    store.previous = Array.from(floats(buffers[1]));
    store.branches = [[], []];
  }
  store.fp32.push(...floats(buffers[0]));
  buffers.slice(2).forEach((buffer, i) => {
    const rows = floats(buffer);
    for (let at = 0; at < rows.length; at += COLUMNS) {
      const [loss, scale, stepped, underflow, swallowed] = rows.subarray(at, at + COLUMNS);
      const step = content.branches[i].origin + store.branches[i].length + 1;
      store.branches[i].push({ step, loss, scale, stepped: stepped > 0, underflow, swallowed });
    }
  });
  store.state = content;
  store.fresh = true;
  store.silent = false;
  if (content.heard >= store.sent) store.silence = clearTimeout(store.silence);
  schedule(store);
}

function schedule(store) {
  if (store.pending) return;
  store.pending = true;
  requestAnimationFrame(() => {
    store.pending = false;
    for (const view of store.views) view.draw();
    if (store.fresh) acknowledge(store);
    store.fresh = false;
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

function tell(store, what) {
  store.sent += 1;
  store.silence ||= setTimeout(() => {
    store.silent = true;
    schedule(store);
  }, SILENCE_MS);
  send(store, { ...what, number: store.sent });
}

// After a restart of the kernel there is nobody to send to, and the page's own send throws.
function send(store, content) {
  try {
    store.model.send(content);
  } catch {
    store.silent = true;
    schedule(store);
  }
}
