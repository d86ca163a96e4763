// The game on a page without a kernel: both sides play on recorded gradients. Whether a step
// overflows or loses gradients follows from the largest and the smallest gradient, at any scale.
//
// Nothing is trained, so there are no losses; a skipped step would have left other weights.

import { showLocally } from "../driven/store.js";
import { advance } from "../scaler_timeline/replay.js";
import { gameSentence } from "./words.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Content } from "../base/model.js" */
/** @import { Phase, Press, Store } from "../driven/store.js" */
/** @import { Config, Scaler, Trace } from "../scaler_timeline/replay.js" */
/** @import { GamePoints, GameRow, GameState, Score } from "./plot.js" */

/**
 * What a page needs to play (`BeatTheScaler.page_records`).
 *
 * @typedef {object} RecordedGame
 * @property {Trace} trace The recorded gradients, with the loss multiplied by the game's weights.
 * @property {Config} scaler The settings of the dynamic scaler.
 * @property {number} pace In steps per second.
 * @property {string} source What was recorded, and on which device.
 */

/**
 * A game under way.
 *
 * @typedef {object} Game
 * @property {RecordedGame} recorded
 * @property {number} total The number of steps.
 * @property {Phase} phase
 * @property {number} start log2 of the first scale of both sides.
 * @property {number} hand log2 of the learner's scale at the next step.
 * @property {boolean} inSight Whether the window is shown.
 * @property {boolean} peeked Whether the window was shown before the end of the game.
 * @property {Scaler} scaler The state of the scaler.
 * @property {GameRow[]} yours The learner's steps.
 * @property {GameRow[]} scalers The scaler's steps.
 * @property {Score[]} scores The results of the games that ended.
 */

// The phase after a button, by the phase before it. A missing button has no effect.
/** @type {Partial<Record<Phase, Partial<Record<Press, Phase>>>>} */
const AFTER = {
  idle: { start: "running" },
  running: { pause: "paused", stop: "finished", reset: "idle" },
  paused: { start: "running", stop: "finished", reset: "idle" },
  finished: { start: "running", reset: "idle" },
};

/**
 * @param {RecordedGame} recorded
 * @param {number} start log2 of the first scale
 * @param {number} total
 * @returns {Game}
 */
export function newGame(recorded, start, total) {
  /** @type {Game} */
  const game = {
    recorded,
    total: Math.min(total, recorded.trace.largest.length),
    phase: "idle",
    start,
    hand: start,
    inSight: false,
    peeked: false,
    scaler: { scale: recorded.scaler.init_scale, clean: 0, held: 0 },
    yours: [],
    scalers: [],
    scores: [],
  };
  return game;
}

/**
 * Begin another game; the scores and the choice to show the window stay.
 *
 * @param {Game} game changed in place
 */
function beginAgain(game) {
  const { recorded, start, total, inSight, scores } = game;
  Object.assign(game, newGame(recorded, start, total), { inSight, peeked: inSight, scores });
}

/**
 * Press a button. A button without an effect in this phase changes nothing.
 *
 * @param {Game} game changed in place
 * @param {Press} button
 */
export function press(game, button) {
  const next = AFTER[game.phase]?.[button];
  if (!next) return;
  if (button === "reset" || game.phase === "finished") beginAgain(game);
  game.phase = next;
  if (next === "finished") endGame(game);
}

/** @param {Game} game */
function endGame(game) {
  game.phase = "finished";
  if (game.yours.length) game.scores = [...game.scores, scoreOf(game)];
}

/**
 * Show the window or hide it. What is shown after the end does not change the score, and before the
 * first step only a window that is still shown counts.
 *
 * @param {Game} game changed in place
 * @param {boolean} inSight
 */
export function showWindow(game, inSight) {
  game.inSight = inSight;
  if (game.phase === "idle") {
    game.peeked = inSight;
  } else if (game.phase !== "finished") {
    game.peeked ||= inSight;
  }
}

/**
 * Let both sides take a step.
 *
 * @param {Game} game changed in place
 */
export function playStep(game) {
  const at = game.yours.length;
  const { scaler: rule, trace } = game.recorded;
  const theirs = stepAtScale(trace, at, Math.log2(game.scaler.scale));
  game.scaler = advance(game.scaler, theirs.skipped, rule);
  game.scalers.push(theirs);
  game.yours.push(stepAtScale(trace, at, game.hand));
  if (game.yours.length === game.total) endGame(game);
}

// In FP16, magnitudes from here on are rounded to infinity.
const OVERFLOW = 65520;

/**
 * Return the step of a side, without a loss: nothing is trained.
 *
 * @param {Trace} trace
 * @param {number} at the index of the step
 * @param {number} scale its log2
 * @returns {GameRow}
 */
function stepAtScale({ largest, keeps_from }, at, scale) {
  const overflowsAt = Math.log2(OVERFLOW / largest[at]);
  const skipped = 2 ** scale * largest[at] >= OVERFLOW;
  return { loss: NaN, scale, skipped, keepsFrom: keeps_from[at], overflowsAt };
}

/**
 * Return the result of a side, as `tally` in game.py.
 *
 * @param {readonly GameRow[]} rows
 */
export function tallyOf(rows) {
  const skipped = rows.filter((row) => row.skipped).length;
  const lossy = rows.filter((row) => !row.skipped && row.scale < row.keepsFrom).length;
  const useful = rows.length ? (rows.length - skipped - lossy) / rows.length : 0;
  return { steps: rows.length, skipped, lossy, useful };
}

/**
 * @param {Game} game
 * @returns {Score}
 */
function scoreOf({ yours, scalers, peeked }) {
  const [mine, theirs] = [yours, scalers].map(tallyOf);
  return {
    steps: mine.steps,
    useful: [mine.useful, theirs.useful],
    skipped: [mine.skipped, theirs.skipped],
    lossy: [mine.lossy, theirs.lossy],
    peeked,
  };
}

const NOTHING_TRAINED = "Nothing is trained here: a skipped step would have left other weights.";

/**
 * Return the state that the view shows of a game.
 *
 * @param {Game} game
 * @param {GameState} first the state of the page's first frame; values that a game does not change
 *   are taken from it
 * @param {boolean} begun whether a game has begun; before, the recorded game is shown
 * @returns {GameState}
 */
function stateOf(game, first, begun) {
  const score = scoreOf(game);
  const revealed = game.phase === "finished" || game.inSight;
  const enabled = /** @type {Press[]} */ (Object.keys(AFTER[game.phase] ?? {}));
  return {
    ...first,
    // The detail of the first frame is about the training in the lab.
    detail: "",
    phase: game.phase,
    enabled,
    step: game.yours.length,
    total: game.total,
    sentence: gameSentence(game, score),
    place: { key: "", says: NOTHING_TRAINED, rates: game.recorded.source },
    recorded: begun ? "" : first.recorded,
    log2_scale: game.hand,
    in_sight: game.inSight,
    revealed,
    skipped: score.skipped,
    useful: revealed ? score.useful : null,
    scores: game.scores,
  };
}

/**
 * Play in the page: commands of the learner go to a game here instead of a kernel.
 *
 * @param {Store<GameState, GamePoints>} store
 * @param {Life} life
 * @returns {boolean} false if the page has no recorded gradients to play on
 */
export function playInPage(store, life) {
  const frame = store.model.get("_frame");
  const first = /** @type {GameState} */ (frame?.content);
  if (!frame || !first.game) return false;
  const { pace } = first.game;
  const demonstration = store.kind.empty();
  store.kind.take(demonstration, first, frame.buffers);
  const game = newGame(first.game, first.log2_scale, first.total);
  let begun = false;
  let timer = 0;

  function show() {
    const { yours, scalers } = game;
    const points = begun ? { yours, scalers, recorded: [] } : demonstration;
    showLocally(store, stateOf(game, first, begun), points);
  }
  function keepPace() {
    clearInterval(timer);
    timer = 0;
    if (game.phase === "running") timer = window.setInterval(tick, 1000 / pace);
  }
  function tick() {
    playStep(game);
    if (game.phase !== "running") keepPace();
    show();
  }
  /** @param {Content} content */
  store.deliver = (content) => {
    if (content.do === "press") press(game, /** @type {Press} */ (content.button));
    if (content.do === "move") game.hand = Number(content.log2_scale);
    if (content.do === "show") showWindow(game, content.window === true);
    begun ||= game.phase === "running";
    if (content.do === "press") keepPace();
    show();
  };
  life.add(() => clearInterval(timer));
  show();
  return true;
}
