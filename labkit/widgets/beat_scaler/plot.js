// The picture of a game: the player's scale, the window of safe scales once the game is over, and
// both losses.

import { superscript } from "../base/number_words.js";
import {
  inkCross,
  inkFrame,
  inkLine,
  inkLosses,
  inkNames,
  inkRing,
  inkSkips,
  inkSteps,
  inkText,
  inkWindow,
  inkZoneNames,
  levelIn,
  stairs,
  stepPlot,
} from "../base/plot.js";
import { faintly } from "../base/theme.js";
import { rowsOf } from "../driven/store.js";

/** @import { Panel, Point, StepPlot } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */
/** @import { Scene } from "../driven/face.js" */
/** @import { DrivenState, Offers } from "../driven/store.js" */
/** @import { RecordedGame } from "./page_game.js" */

/**
 * One step of a side. Scales are given by their log2.
 *
 * @typedef {object} GameRow
 * @property {number} loss The loss of the batch; NaN in a page, where nothing is trained.
 * @property {number} scale
 * @property {boolean} skipped
 * @property {number} keepsFrom The lowest scale at which the step keeps its gradients.
 * @property {number} overflowsAt The lowest scale at which the step overflows.
 */

/** @typedef {Record<"yours" | "scalers" | "recorded", GameRow[]>} GamePoints */

/**
 * The result of a game that ended. Each pair is the learner's number and the scaler's.
 *
 * @typedef {object} Score
 * @property {number} steps
 * @property {[number, number]} useful Shares, 0 to 1.
 * @property {[number, number]} skipped
 * @property {[number, number]} lossy
 * @property {boolean} peeked Whether the window was shown before the end of the game.
 */

/**
 * What the kernel says of a game beside the points (`BeatTheScaler.state`).
 *
 * @typedef {DrivenState & {
 *   log2_scale: number,
 *   in_sight: boolean,
 *   revealed: boolean,
 *   skipped: [number, number],
 *   useful: [number, number] | null,
 *   scores: Score[],
 *   game?: RecordedGame,
 * }} GameState
 */

/** @typedef {{ rows: GameRow[], name: string, colour: string, width: number }} Side */

/**
 * The picture of a game while it is drawn.
 *
 * @typedef {object} GamePicture
 * @property {Scene<GameState, GamePoints>} scene
 * @property {Side[]} sides The sides that are drawn, the learner's first.
 * @property {boolean} isRevealed Whether the window and the scaler's scale are drawn.
 * @property {Palette} theme The colours of the page; those of `StepPlot` may be faint.
 * @property {readonly [number, number]} range The lowest and the highest log2 of a scale.
 * @property {Panel} place Where scales are drawn.
 */

/** @typedef {StepPlot & GamePicture} GamePlot */

// Lengths in pixels.
const RIGHT = 60;
const SCALE = { top: 30, height: 250 };
const LOSS = { top: SCALE.top + SCALE.height + 42, height: 130 };
const BOTTOM = LOSS.top + LOSS.height;
// The scales in a game on recorded gradients, which has no losses.
const TALL_SCALE = { top: SCALE.top, height: BOTTOM - SCALE.top };
export const HEIGHT = BOTTOM + 32;
// The width of the title and of the skipped steps in full words.
const SKIPS_ROOM = 300;
// The width of the names of the zones.
const ZONE_NAMES = 420;
// The numbers of a step: loss, scale, skipped, keeps_from, overflows_at (`_columns` in game.py).
const COLUMNS = 5;

/** @returns {GamePoints} */
function emptyGame() {
  return { yours: [], scalers: [], recorded: [] };
}

/**
 * @param {GamePoints} points
 * @param {GameState} _
 * @param {DataView[]} buffers
 */
function takeGame(points, _, buffers) {
  for (const [i, rows] of [points.yours, points.scalers, points.recorded].entries()) {
    for (const [loss, scale, skipped, keepsFrom, overflowsAt] of rowsOf(buffers[i], COLUMNS)) {
      rows.push({ loss, scale: Math.log2(scale), skipped: skipped > 0, keepsFrom, overflowsAt });
    }
  }
}

export const GAME_POINTS = { empty: emptyGame, take: takeGame };

/**
 * The choices of a game: the lowest and the highest log2 of a scale, and the log2 of the first
 * scale.
 *
 * @typedef {Offers & { range: [number, number], start: number }} GameOffers
 */

/**
 * Draw a game; before the first game, the recorded one.
 *
 * @param {Scene<GameState, GamePoints>} scene
 */
export function drawGame(scene) {
  const { range } = /** @type {GameOffers} */ (scene.offers);
  const { pen, width, state, points, tint: theme } = scene;
  const { total, revealed } = state;
  const recorded = Boolean(state.recorded);
  // On a page the record is all that is shown, so it is not faint.
  const faint = recorded && !scene.onPage;
  const tint = faint ? faintly(theme) : theme;
  const scalers = recorded ? points.recorded : points.scalers;
  const scaler = { rows: scalers, name: "scaler", colour: tint.ink2, width: 1.5 };
  const yours = { rows: points.yours, name: "you", colour: tint.fp16, width: 2.5 };
  const sides = recorded ? [scaler] : [yours, scaler];
  const axis = stepPlot(pen, width, tint, { total, right: RIGHT });
  const place = state.game ? TALL_SCALE : SCALE;
  const isRevealed = recorded || revealed;
  const plot = { ...axis, scene, sides, isRevealed, theme, range, place };
  drawScales(plot);
  if (!state.game) drawLosses(plot);
  inkSteps(plot, BOTTOM);
  return { x: plot.x, top: SCALE.top };
}

/**
 * Return the last step of a side; undefined without steps.
 *
 * @param {readonly GameRow[]} rows
 * @returns {GameRow | undefined}
 */
function lastOf(rows) {
  return rows[rows.length - 1];
}

/**
 * Draw the scales, the skipped steps and, if it is revealed, the window.
 *
 * @param {GamePlot} plot
 */
function drawScales(plot) {
  const { scene, tint, x, sides, isRevealed, left, place } = plot;
  const { state } = scene;
  const y = levelIn(place, plot.range);
  const { rows: steps } = sides[0];
  if (isRevealed) {
    const top = steps.map(({ overflowsAt }) => overflowsAt);
    const low = steps.map(({ keepsFrom }) => keepsFrom);
    inkWindow(plot, place, { top, low }, y);
  }
  /** @type {[number, number][]} */
  const ticks = [0, 8, 16, 24].map((exponent) => [exponent, exponent]);
  inkFrame(plot, place, "Loss scale", ticks, y);
  // The learner's scale is drawn last, so that the scaler's does not cover it.
  const drawn = isRevealed ? sides.toReversed() : sides.slice(0, 1);
  for (const { rows, colour, width } of drawn) {
    const scales = rows.map(({ scale }) => scale);
    inkLine(plot, stairs(plot, scales, y), colour, width);
  }
  const cross = state.recorded ? tint.ink2 : tint.ink;
  for (const [i, { skipped, scale }] of steps.entries()) {
    if (skipped) inkCross(plot, x(i + 1), y(scale), 4, cross, 1.75);
  }
  if (isRevealed) {
    // In a short game the names of the zones reach beyond the last step.
    const end = Math.min(plot.end, Math.max(x(steps.length), left + ZONE_NAMES));
    inkZoneNames({ ...plot, end }, place);
    nameSides(plot, ({ scale }) => y(scale));
  }
  if (state.phase !== "finished") drawHand(plot, y);
  if (!state.recorded) {
    const [mine, theirs] = state.skipped;
    const roomy = plot.end - left > SKIPS_ROOM;
    const words = roomy ? `you skipped ${mine}, the scaler ${theirs}` : `${mine}, scaler ${theirs}`;
    inkSkips(plot, place, words, tint.ink);
  } else if (!scene.onPage) {
    inkText(plot, state.recorded, plot.end, place.top - 12, { align: "right" });
  }
}

/**
 * Draw a ring at the learner's scale of the next step. Its label is the scale, or a warning if the
 * last step was skipped.
 *
 * @param {GamePlot} plot
 * @param {(log2Scale: number) => number} y
 */
function drawHand(plot, y) {
  const { scene, theme, x } = plot;
  const { yours } = scene.points;
  const next = scene.wish ?? scene.state.log2_scale;
  const skipped = lastOf(yours)?.skipped;
  const left = x(yours.length + 1);
  const words = skipped ? "inf: skipped" : `2${superscript(next)}`;
  const fill = skipped ? theme.bad : theme.fp16;
  inkRing(plot, left, y(next), theme.fp16);
  inkText(plot, words, left + 11, y(next), { fill, bold: true, base: "middle", halo: true });
}

/**
 * Write the names of the sides at the ends of their curves.
 *
 * @param {GamePlot} plot
 * @param {(row: GameRow) => number} y the position of a step
 */
function nameSides(plot, y) {
  const { x, end, sides } = plot;
  const steps = sides[0].rows.length;
  if (!steps) return;
  // Half a step behind the last one; in a short game a step is wide.
  const at = Math.min(x(steps + 0.5), end) + 6;
  const ends = sides.map(({ rows, name, colour }) => {
    const last = lastOf(rows);
    return { name, fill: colour, x: at, y: last ? y(last) : NaN };
  });
  inkNames(plot, ends, 15);
}

/** @param {GamePlot} plot */
function drawLosses(plot) {
  const title = "Loss of each batch, without the factor, log scale";
  const curves = plot.sides.map(({ rows }) => rows.map(({ loss }) => loss));
  const y = inkLosses(plot, LOSS, title, curves);
  for (const { rows, colour, width } of plot.sides.toReversed()) {
    /** @type {Point[]} */
    const points = rows.map(({ loss }, i) => [plot.x(i + 1), y(loss)]);
    inkLine(plot, points, colour, 0.75 * width);
  }
  nameSides(plot, ({ loss }) => y(loss));
}
