// The game: a hand at the scale, which is drawn with the next frame of the page; the kernel's next step has it.

import { button, headed, slider, toggle } from "../base/controls.js";
import { h } from "../base/elements.js";
import { decimal, percent } from "../base/number_words.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { tell, upToDate, wishFor } from "../driven/store.js";
import { GAME_POINTS, HEIGHT, paint } from "./plot.js";

const wanted = (store) => store.wish ?? store.state?.log2_scale ?? store.model.get("_offers").start;

function move(store, e) {
  const [low, high] = store.model.get("_offers").range;
  const next = Math.min(high, Math.max(low, e));
  if (next === wanted(store)) return;
  wishFor(store, next);
  tell(store, { do: "move", log2_scale: next });
}

// The games that were played to an end, below each other.
function scoreTable() {
  const heads = [
    "game",
    "steps",
    "useful: you",
    "scaler",
    "skipped: you",
    "scaler",
    "lost gradients: you",
    "scaler",
  ];
  const { element, body } = headed("bs-scores", heads);
  element.hidden = true;
  let drawn = "";
  return {
    element,
    show(scores = []) {
      element.hidden = scores.length === 0;
      if (drawn === (drawn = JSON.stringify(scores))) return;
      const rows = scores.map(({ steps, useful, skipped, lossy, peeked }, i) => {
        const cells = [steps, ...useful.map(percent), ...skipped, ...lossy].map((text) =>
          h("td", { text }),
        );
        const name = `${i + 1}${useful[0] > useful[1] ? " won" : ""}${peeked ? ", window in sight" : ""}`;
        return h("tr", {}, h("th", { scope: "row", text: name }), ...cells);
      });
      body.replaceChildren(...rows);
    },
  };
}

function layout(store, parts, life, root) {
  const [min, max] = store.model.get("_offers").range;
  const by = (steps) => () => move(store, wanted(store) + steps);
  const buttons = pressButtons(store, ["start", "stop", "reset"], "Play again");
  const sight = toggle({
    label: "show the window",
    value: false,
    onChange: (on) => tell(store, { do: "show", window: on }),
  });
  const halve = button({ label: "÷ 2", title: "halve the scale (arrow down)", onPress: by(-1) });
  const double = button({ label: "× 2", title: "double the scale (arrow up)", onPress: by(1) });
  const scores = scoreTable();
  const text = (e) => `2^${e} = ${decimal(2 ** e)}`;
  const hand = slider({
    label: "Your scale",
    min,
    max,
    page: 4,
    value: wanted(store),
    text,
    onInput: (e) => move(store, e),
  });
  root.append(
    parts.head,
    h("div", { class: "lk-row" }, ...buttons.elements, sight.element),
    h(
      "div",
      { class: "lk-row" },
      halve.element,
      double.element,
      hand.element,
      h("span", { class: "lk-quiet", text: "keys: ↑ ↓, space to pause" }),
    ),
    parts.notice,
    parts.words.element,
    parts.picture.element,
    scores.element,
    parts.place.element,
  );
  life.listen(root, "keydown", (event) => {
    const onControl = event.target.closest("button, select, input[type=checkbox]");
    const e = { ArrowUp: 1, ArrowDown: -1, PageUp: 4, PageDown: -4 }[event.key];
    if (event.key === " " && !onControl)
      store.state && buttons.press(store.state.phase === "running" ? "pause" : "start");
    else if (e && event.target !== hand.input && !event.target.closest("select")) by(e)();
    else return; // the slider knows its arrows itself
    event.preventDefault();
  });
  return () => {
    const { state } = store;
    const [you, scaler] = state.useful ?? [];
    buttons.show(state);
    scores.show(state.scores);
    parts.metric.textContent =
      state.useful && state.step
        ? `useful steps: you ${percent(you)}, scaler ${percent(scaler)}`
        : "";
    if (upToDate(store)) sight.set(state.in_sight);
    if (hand.value !== wanted(store)) hand.set(wanted(store));
  };
}

export default drivenView({
  label: "Beat the scaler",
  kind: "beat-scaler",
  picture:
    "Your loss scale and both losses, step by step; the sentence above says how the game stands",
  points: GAME_POINTS,
  height: HEIGHT,
  paint,
  layout,
  expose: (store) => ({
    step: store.yours.length,
    scale: store.yours.at(-1)?.scale ?? "",
    told: store.state.revealed,
    skipped: store.state.skipped.join(" "),
  }),
});
