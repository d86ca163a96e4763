// A page without a kernel plays the run on record: its steps appear one after another, faster than they were trained.

import { player, slider } from "../base/controls.js";
import { h } from "../base/elements.js";
import { schedule } from "./store.js";

const PLAY_MS = 8000; // a whole run
const FRAME_MS = 40;

export function playRecord(store, root, parts, life) {
  const { content, buffers } = store.model.get("_frame");
  Object.assign(store, store.points.empty());
  store.points.take(store, content, buffers);
  const names = Object.keys(store.points.empty()).filter((name) => name.startsWith("recorded"));
  const whole = Object.fromEntries(names.map((name) => [name, store[name]]));
  const total = Math.max(...names.map((name) => whole[name].length));
  let shown = total; // the whole picture first

  function show(count) {
    shown = count;
    for (const name of names) store[name] = whole[name].slice(0, count);
    store.state = { ...content, step: count };
    where.set(count);
    schedule(store);
  }
  const advance = () => {
    show(Math.min(total, (shown === total ? 0 : shown) + Math.ceil((total * FRAME_MS) / PLAY_MS)));
    return shown < total;
  };
  const play = player({ title: "play the recorded run", pace: FRAME_MS, advance, life });
  const moved = (step) => (play.stop(), show(step));
  const where = slider({
    label: "Step",
    min: 0,
    max: total,
    page: Math.ceil(total / 10),
    value: total,
    text: String,
    onInput: moved,
  });
  root.classList.add("run-plays");
  parts.head.after(h("div", { class: "lk-row run-record" }, play.element, where.element));
  parts.picture.element.after(
    h("p", {
      class: "lk-quiet run-record",
      text: `A run on record: ${content.recorded.replace("recorded: ", "")}. In the lab you train it yourself.`,
    }),
  );
  show(total);
}
