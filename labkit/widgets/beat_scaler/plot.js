// How a game is drawn: your scale, in a window that is shown when the game is over; and both losses.

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

const RIGHT = 60;
const SCALE = { top: 30, height: 250 };
const LOSS = { top: SCALE.top + SCALE.height + 42, height: 130 };
const BOTTOM = LOSS.top + LOSS.height;
export const HEIGHT = BOTTOM + 32;
const COLUMNS = 5; // loss, scale, skipped, keeps_from, overflows_at: see `Duel.points`

function emptyGame() {
  return { yours: [], scalers: [], recorded: [] };
}

function takeGame(store, _, buffers) {
  [store.yours, store.scalers, store.recorded].forEach((rows, i) => {
    for (const [loss, scale, skipped, keepsFrom, overflowsAt] of rowsOf(buffers[i], COLUMNS)) {
      rows.push({ loss, scale: Math.log2(scale), skipped: skipped > 0, keepsFrom, overflowsAt });
    }
  });
}

export const GAME_POINTS = { empty: emptyGame, take: takeGame };

// `sides` are {rows, name, colour, width}, the first with the window; until a game begins, the one on record.
export function paint({ pen, width, store, tint: theme }) {
  const { total, recorded, revealed } = store.state;
  const tint = recorded && !store.model.onPage ? faintly(theme) : theme; // on a page it is all there is
  const yours = { rows: store.yours, name: "you", colour: tint.fp16, width: 2.5 };
  const scaler = {
    rows: recorded ? store.recorded : store.scalers,
    name: "scaler",
    colour: tint.ink2,
    width: 1.5,
  };
  const sides = recorded ? [scaler] : [yours, scaler];
  const plot = {
    ...stepPlot(pen, width, tint, { total, right: RIGHT }),
    sides,
    told: recorded || revealed,
    store,
    theme,
  };
  drawGame(plot);
  drawLosses(plot);
  inkSteps(plot, BOTTOM);
  return plot;
}

function drawGame(plot) {
  const { store, tint, x, sides, told } = plot;
  const { state } = store;
  const y = levelIn(SCALE, store.model.get("_offers").range);
  const [{ rows: seen }] = sides;
  const column = (rows, name) => rows.map((row) => row[name]);
  if (told)
    inkWindow(plot, SCALE, { top: column(seen, "overflowsAt"), low: column(seen, "keepsFrom") }, y);
  inkFrame(
    plot,
    SCALE,
    "Loss scale",
    [0, 8, 16, 24].map((e) => [e, e]),
    y,
  );
  for (const { rows, colour, width } of told ? sides.toReversed() : sides.slice(0, 1))
    inkLine(plot, stairs(plot, column(rows, "scale"), y), colour, width);
  seen.forEach(
    (row, i) =>
      row.skipped &&
      inkCross(plot, x(i + 1), y(row.scale), 4, state.recorded ? tint.ink2 : tint.ink, 1.75),
  );
  if (told)
    inkZoneNames(
      { ...plot, end: Math.min(plot.end, Math.max(x(seen.length), plot.left + 420)) },
      SCALE,
    ); // where the zones are
  if (told) nameSides(plot, (rows) => y(rows.at(-1).scale));
  if (state.phase !== "finished") drawHand(plot, y);
  const [mine, theirs] = state.skipped;
  if (state.recorded && !store.model.onPage)
    inkText(plot, state.recorded, plot.end, SCALE.top - 12, { align: "right" });
  if (!state.recorded) inkSkips(plot, SCALE, `you skipped ${mine}, the scaler ${theirs}`, tint.ink);
}

// Where the hand is: the scale of the next step, and a word where the last one overflowed.
function drawHand(plot, y) {
  const { store, theme, x } = plot;
  const next = store.wish ?? store.state.log2_scale;
  const at = [x(store.yours.length + 1), y(next)];
  const last = store.yours.at(-1);
  const words = last?.skipped ? "inf: skipped" : `2${superscript(next)}`;
  inkRing(plot, ...at, theme.fp16);
  inkText(plot, words, at[0] + 11, at[1], {
    fill: last?.skipped ? theme.bad : theme.fp16,
    bold: true,
    base: "middle",
    halo: true,
  });
}

function nameSides(plot, y) {
  const { x, end, sides } = plot;
  const [{ rows: seen }] = sides;
  if (!seen.length) return;
  const at = Math.min(x(seen.length + 0.5), end) + 6; // a step is wide in a short game
  inkNames(
    plot,
    sides.map(({ rows, name, colour }) => ({ name, fill: colour, x: at, y: y(rows) })),
    15,
  );
}

function drawLosses(plot) {
  const losses = ({ rows }) => rows.map(({ loss }) => loss);
  const y = inkLosses(
    plot,
    LOSS,
    "Loss of each batch, without its weight, log scale",
    plot.sides.map(losses),
  );
  for (const side of plot.sides.toReversed())
    inkLine(
      plot,
      losses(side).map((loss, i) => [plot.x(i + 1), y(loss)]),
      side.colour,
      0.75 * side.width,
    );
  nameSides(plot, (rows) => y(rows.at(-1).loss));
}
