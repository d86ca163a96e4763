// What is under way between a page and a kernel, without either of them.

import assert from "node:assert/strict";
import test from "node:test";
import {
  rowsOf,
  storeOf,
  tell,
  tellLatest,
  upToDate,
  wishFor,
} from "../../labkit/widgets/driven/store.js";

/** @import { DrivenState, DrivenTraits } from "../../labkit/widgets/driven/store.js" */

/** @type {FrameRequestCallback[]} */
let frames = [];
globalThis.requestAnimationFrame = (callback) => frames.push(callback);

function drawAll() {
  const due = frames;
  frames = [];
  for (const frame of due) frame(0);
}

/** @typedef {{ do: string, number?: number, to?: number }} Sent */

/**
 * Return the store of a page whose kernel is the test.
 *
 * @param {Record<string, unknown>} [traits] those of the model, as a saved notebook has them
 */
function page(traits = {}) {
  /** @type {Sent[]} */
  const sent = [];
  /** @type {((content: object, buffers: DataView[]) => void)[]} */
  const handlers = [];
  const model = {
    get: (/** @type {string} */ name) => traits[name],
    set: (/** @type {string} */ name, /** @type {unknown} */ value) => {
      traits[name] = value;
    },
    save_changes() {},
    send: (/** @type {Sent} */ content) => sent.push(content),
    on: (
      /** @type {string} */ _,
      /** @type {(content: object, buffers: DataView[]) => void} */ handler,
    ) => handlers.push(handler),
    off() {},
  };
  const kind = {
    empty: () => ({ losses: /** @type {number[]} */ ([]) }),
    take(
      /** @type {{ losses: number[] }} */ points,
      /** @type {DrivenState} */ _,
      /** @type {DataView[]} */ buffers,
    ) {
      for (const [loss] of rowsOf(buffers[0], 1)) points.losses.push(loss);
    },
  };
  const typed = /** @type {import("../../labkit/widgets/base/model.js").Model<DrivenTraits>} */ (
    /** @type {unknown} */ (model)
  );
  const store = storeOf(typed, kind);
  /** @param {object} content */
  const frame = (content, losses = [1]) => {
    const buffer = new DataView(new Float32Array(losses).buffer);
    for (const handler of handlers) {
      handler(
        { kind: "frame", whole: false, answered: 0, number: 1, phase: "paused", ...content },
        [buffer],
      );
    }
  };
  return { store, sent, frame, traits };
}

test("points add up, and begin again where the frame is whole", () => {
  const { store, frame } = page();
  frame({}, [1, 2]);
  frame({}, [3]);
  assert.deepEqual(store.points.losses, [1, 2, 3]);
  frame({ whole: true }, [9]);
  assert.deepEqual(store.points.losses, [9]);
});

test("a frame is answered after it is drawn", () => {
  const { store, sent, frame } = page();
  store.answeredAt = -1000;
  frame({ number: 7 });
  assert.deepEqual(sent, []);
  drawAll();
  assert.deepEqual(sent, [{ do: "drawn", number: 7 }]);
});

test("a state is new once the latest command is answered", () => {
  const { store, frame } = page();
  frame({});
  tell(store, { do: "press" });
  assert.equal(upToDate(store), false);
  frame({ answered: 1 });
  assert.equal(upToDate(store), true);
  clearTimeout(store.silence ?? undefined);
});

test("a page that is loaded again counts its commands on", () => {
  const { store, sent, frame } = page();
  frame({ answered: 57 });
  tell(store, { do: "press" });
  assert.deepEqual(sent, [{ do: "press", number: 58 }]);
  assert.equal(upToDate(store), false);
  frame({ answered: 58 });
  assert.equal(upToDate(store), true);
  clearTimeout(store.silence ?? undefined);
});

test("while three values are under way only the latest waits", () => {
  const { store, sent, frame } = page();
  frame({});
  for (const to of [1, 2, 3, 4, 5]) tellLatest(store, { do: "turn", to });
  assert.deepEqual(
    sent.map(({ to }) => to),
    [1, 2, 3],
  );
  frame({ answered: 1 });
  assert.deepEqual(
    sent.map(({ to }) => to),
    [1, 2, 3, 5],
  );
  clearTimeout(store.silence ?? undefined);
});

test("a wish stays until the kernel has it", () => {
  const { store, frame } = page();
  frame({});
  tell(store, { do: "turn", to: 4 });
  wishFor(store, 4);
  frame({});
  assert.equal(store.wish, 4);
  frame({ answered: 1 });
  assert.equal(store.wish, null);
  clearTimeout(store.silence ?? undefined);
});

test("a run is kept with its NaN and its infinities", () => {
  const { frame, traits } = page();
  frame({}, [0.1, NaN, Infinity]);
  drawAll();
  const { store } = page({ run: traits.run });
  assert.deepEqual(store.points.losses.map(String), ["0.1", "NaN", "Infinity"]);
});

test("a kernel that cannot be reached is silent", () => {
  const { store, frame } = page();
  frame({});
  store.model.send = () => {
    throw new Error("gone");
  };
  tell(store, { do: "press" });
  assert.equal(store.silent, true);
  clearTimeout(store.silence ?? undefined);
});
