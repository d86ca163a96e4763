// The game. The player moves the scale by hand: the page draws it in its next frame, and the kernel
// uses it in its next step.

import { button, headed, slider, toggle } from "../base/controls.js";
import { h, placeOf } from "../base/elements.js";
import { decimal, percent } from "../base/number_words.js";
import { pressButtons } from "../driven/controls.js";
import { drivenView } from "../driven/face.js";
import { tell, upToDate, wishFor } from "../driven/store.js";
import { playInPage } from "./page_game.js";
import { drawGame, GAME_POINTS, HEIGHT } from "./plot.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Parts } from "../driven/face.js" */
/** @import { Store } from "../driven/store.js" */
/** @import { GameOffers, GamePoints, GameState, Score } from "./plot.js" */

/** @typedef {import("../driven/store.js").DrivenTraits} Traits */
/** @typedef {Store<GameState, GamePoints>} GameStore */

/** @param {GameStore} store */
function offersOf(store) {
  return /** @type {GameOffers} */ (store.model.get("_offers"));
}

/**
 * Return the log2 of the learner's scale: of the last move, even if no step has used it yet.
 *
 * @param {GameStore} store
 */
function wanted(store) {
  return store.wish ?? store.state?.log2_scale ?? offersOf(store).start;
}

/**
 * Set the learner's scale for the next step, within the range of the slider.
 *
 * @param {GameStore} store
 * @param {number} log2Scale
 */
function move(store, log2Scale) {
  const [low, high] = offersOf(store).range;
  const next = Math.min(high, Math.max(low, log2Scale));
  if (next === wanted(store)) return;
  wishFor(store, next);
  tell(store, { do: "move", log2_scale: next });
}

const HEADINGS = [
  "game",
  "steps",
  "useful: you",
  "scaler",
  "skipped: you",
  "scaler",
  "lost gradients: you",
  "scaler",
];

/** Return the table with the results of the games that ended. */
function scoreTable() {
  const { element, body } = headed("bs-scores", HEADINGS);
  element.hidden = true;
  let drawn = "";
  return {
    element,
    /** @param {Score[]} scores */
    show(scores) {
      const key = JSON.stringify(scores);
      if (key === drawn) return;
      drawn = key;
      element.hidden = scores.length === 0;
      body.replaceChildren(...scores.map(scoreRow));
    },
  };
}

/**
 * @param {Score} score
 * @param {number} index
 */
function scoreRow({ steps, useful, skipped, lossy, peeked }, index) {
  const won = useful[0] > useful[1] ? " won" : "";
  const name = `${index + 1}${won}${peeked ? ", window in sight" : ""}`;
  const texts = [steps, ...useful.map(percent), ...skipped, ...lossy];
  const cells = texts.map((text) => h("td", { text }));
  return h("tr", {}, h("th", { scope: "row", text: name }), ...cells);
}

/**
 * By how much a key changes the log2 of the scale.
 *
 * @type {Record<string, number>}
 */
const STEPS = { ArrowUp: 1, ArrowDown: -1, PageUp: 4, PageDown: -4 };

/**
 * @param {GameStore} store
 * @param {Parts} parts
 * @param {Life} life
 * @param {HTMLElement} root
 */
function layout(store, parts, life, root) {
  const [min, max] = offersOf(store).range;
  /** @param {number} steps */
  const moveBy = (steps) => move(store, wanted(store) + steps);
  const buttons = pressButtons(store, ["start", "stop", "reset"], "Play again");
  const sight = toggle({
    label: "show the window",
    value: false,
    onChange: (on) => tell(store, { do: "show", window: on }),
  });
  const halve = button({
    label: "\u00f7 2",
    title: "halve the scale (arrow down)",
    onPress: () => moveBy(-1),
  });
  const double = button({
    label: "\u00d7 2",
    title: "double the scale (arrow up)",
    onPress: () => moveBy(1),
  });
  const hand = slider({
    label: "Your scale",
    min,
    max,
    page: 4,
    value: wanted(store),
    text: (log2Scale) => `2^${log2Scale} = ${decimal(2 ** log2Scale)}`,
    onInput: (log2Scale) => move(store, log2Scale),
  });
  const scores = scoreTable();
  const keys = h("span", { class: "lk-quiet", text: "keys: \u2191 \u2193, space to pause" });
  root.append(
    parts.head,
    h("div", { class: "lk-row" }, ...buttons.elements, sight.element),
    h("div", { class: "lk-row" }, halve.element, double.element, hand.element, keys),
    parts.notice,
    parts.words.element,
    parts.picture.element,
    scores.element,
    parts.place.element,
  );

  life.listen(root, "keydown", (event) => {
    const place = placeOf(event);
    const steps = STEPS[event.key];
    if (event.key === " ") {
      if (place.closest("button, select, input[type=checkbox]")) return;
      if (store.state) buttons.press(store.state.phase === "running" ? "pause" : "start");
    } else if (steps) {
      // The slider and the list of devices handle arrow keys themselves.
      if (place === hand.input || place.closest("select")) return;
      moveBy(steps);
    } else {
      return;
    }
    event.preventDefault();
  });

  /** @param {GameState} state */
  function show(state) {
    buttons.show(state);
    scores.show(state.scores);
    parts.metric.textContent = usefulText(state);
    if (upToDate(store)) sight.set(state.in_sight);
    if (hand.value !== wanted(store)) hand.set(wanted(store));
  }
  return show;
}

/** @param {GameState} state */
function usefulText({ useful, step }) {
  if (!useful || !step) return "";
  return `useful steps: you ${percent(useful[0])}, scaler ${percent(useful[1])}`;
}

export default drivenView({
  label: "Beat the scaler",
  kind: "beat-scaler",
  picture:
    "Your loss scale and both losses, step by step; the sentence above says how the game stands",
  points: GAME_POINTS,
  height: HEIGHT,
  paint: drawGame,
  playInPage,
  layout,
  expose: (state, { yours }) => ({
    step: yours.length,
    scale: yours[yours.length - 1]?.scale ?? "",
    told: state.revealed,
    skipped: state.skipped.join(" "),
  }),
});
