// The face of a widget that trains: it draws what the kernel says, sends what the learner does, and decides nothing.
//
// A widget's view.js exports drivenView(face), with
//   label, kind          of its root
//   picture              what the canvas is called
//   points               what a run leaves for its curves: {empty(), take(store, content, buffers)}
//   layout(store, parts, life, root)   puts parts and controls into the root; returns show(), called for every frame
//   paint(plot, step)    draws; returns nothing. A plot is {pen, width, store, tint, step}, and `step` is under the pointer
//   hover                {right, steps(store), text(store, step)}, or none
//   expose(store)        what tests, and anyone who inspects the page, may know of what was drawn last
// Parts: title, counter, metric, notice, words (a sentence), place (the device knob), picture, tip.

import { figure, pointed, tip } from "../base/canvas.js";
import { sentence } from "../base/controls.js";
import { h } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { stepAt } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";
import { deviceKnob } from "./controls.js";
import { playRecord } from "./record.js";
import { UNANSWERED, schedule, send, storeOf } from "./store.js";

function makeParts(store, life, face, paint) {
  const parts = {
    title: h("span", { class: "lk-title", tabindex: "0" }),
    counter: h("span", { class: "lk-quiet" }),
    metric: h("span", { class: "lk-quiet run-metric" }),
    notice: h("p", { class: "run-notice", role: "alert" }),
    words: sentence(),
    place: deviceKnob(store),
    picture: figure({ life, label: face.picture, height: face.height, draw: paint }),
  };
  parts.head = h("div", { class: "lk-head" }, parts.title, parts.counter, parts.metric);
  parts.tip = tip(parts.picture);
  return parts;
}

function showParts(store, parts, seen) {
  const { state } = store;
  const now = performance.now();
  parts.title.textContent = state.title;
  parts.title.title = state.about;
  parts.counter.textContent = [`step ${state.step} of ${state.total}`, state.detail]
    .filter(Boolean)
    .join("; ");
  const notice = store.silent ? UNANSWERED : state.notice;
  if (parts.notice.textContent !== notice) parts.notice.textContent = notice; // an alert is read out each time it is set
  parts.place.show(state);
  // words that change 30 times a second cannot be read
  if (state.phase === "running" && state.phase === seen.phase && now - seen.at < 200) return;
  parts.words.say(state.sentence, state.phase === "running" ? state.phase : state.sentence);
  seen.phase = state.phase;
  seen.at = now;
}

const aloneOnRecord = (model) => Boolean(model.get("_frame")?.content.recorded);

export const drivenView = (face) =>
  view({ ...face, alone: aloneOnRecord }, (root, model, life, live) => {
    const store = storeOf(model, face.points);
    const seen = { phase: "", at: 0 };
    const view = { step: null };
    const tint = colours(root, life, () => schedule(store));
    const paint = (pen, width) => {
      if (!store.state) return;
      const { x, top } = face.paint({ pen, width, store, tint }, view.step);
      if (view.step) parts.tip.show(x(view.step), top, face.hover.text(store, view.step));
      else parts.tip.hide();
    };
    const parts = makeParts(store, life, face, paint);
    const show = face.layout(store, parts, life, root);
    view.draw = () => {
      if (!store.state) {
        if (store.silent) parts.words.say(UNANSWERED);
        return;
      }
      show();
      showParts(store, parts, seen);
      parts.picture.drawNow();
    };
    view.expose = () => {
      const { phase, number, answered } = store.state;
      Object.assign(
        root.dataset,
        { phase, frame: number, answered: answered >= store.sent },
        face.expose(store),
      );
    };
    const look = (place) => {
      const at =
        place && store.state
          ? stepAt(parts.picture, place.x, { total: store.state.total, right: face.hover.right })
          : null;
      const step = at <= face.hover.steps(store) ? at : null;
      if (step !== view.step) schedule(store);
      view.step = step;
    };
    if (face.hover) pointed(life, parts.picture, look);
    store.views.add(view);
    life.add(() => store.views.delete(view));
    if (model.onPage) {
      playRecord(store, root, parts, life);
      return;
    }
    parts.words.say("Waiting for the kernel.");
    if (live === false) {
      schedule(store);
      return;
    }
    const silence = setTimeout(() => store.state || parts.words.say(UNANSWERED), 4000);
    life.add(() => clearTimeout(silence));
    whenUnseen(life, () => send(store, { do: "unseen" }));
    send(store, { do: "hello" });
  });
