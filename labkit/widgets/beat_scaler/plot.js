// How a game is drawn: your scale, in a window that is shown when the game is over; and both losses.

const LEFT = 52;
const RIGHT = 60;
const SCALE = { top: 30, height: 250 };
const LOSS = { top: SCALE.top + SCALE.height + 42, height: 130 };
const BOTTOM = LOSS.top + LOSS.height;
const HEIGHT = BOTTOM + 32;
const COLUMNS = 5; // loss, scale, skipped, keeps_from, overflows_at: see `Duel.points`

function emptyPoints() {
  return { yours: [], scalers: [] };
}

function takePoints(store, _, buffers) {
  [store.yours, store.scalers].forEach((rows, i) => {
    for (const [loss, scale, skipped, keepsFrom, overflowsAt] of rowsOf(buffers[i], COLUMNS)) {
      rows.push({ loss, scale: Math.log2(scale), skipped: skipped > 0, keepsFrom, overflowsAt });
    }
  });
}

function paint({ pen, width, store, tint }) {
  const { total } = store.state;
  const end = width - RIGHT;
  const plot = { pen, store, tint, total, left: LEFT, end, x: (step) => LEFT + ((end - LEFT) * step) / total };
  drawGame(plot);
  drawLosses(plot);
  inkSteps(plot, BOTTOM);
  return plot;
}

function drawGame(plot) {
  const { store, tint, x } = plot;
  const { state, yours, scalers } = store;
  const [low, high] = store.model.get("_offers").range;
  const y = (e) => SCALE.top + (SCALE.height * (high - Math.min(high, Math.max(low, e)))) / (high - low);
  if (state.revealed) drawWindow(plot, y);
  const ticks = [0, 8, 16, 24].map((e) => [e, e]);
  inkFrame(plot, SCALE, "Loss scale", ticks, y);
  const stairs = (rows) => rows.flatMap(({ scale }, i) => [[x(i + 0.5), y(scale)], [x(i + 1.5), y(scale)]]);
  if (state.revealed) inkLine(plot, stairs(scalers), tint.ink2, 1.5);
  inkLine(plot, stairs(yours), tint.fp16, 2.5);
  yours.forEach((row, i) => row.skipped && inkCross(plot, x(i + 1), y(row.scale), 4, tint.ink, 1.75));
  if (state.revealed) nameWindow(plot, y);
  if (state.phase !== "finished") drawHand(plot, y);
  const [mine, theirs] = state.skipped;
  inkSkips(plot, SCALE, `you skipped ${mine}, the scaler ${theirs}`, tint.ink);
}

// Where the hand is: the scale of the next step, and a word where the last one overflowed.
function drawHand(plot, y) {
  const { store, tint, x } = plot;
  const next = store.wish ?? store.state.log2_scale;
  const at = [x(store.yours.length + 1), y(next)];
  inkRing(plot, ...at, tint.fp16);
  const last = store.yours.at(-1);
  const words = last?.skipped ? "inf: skipped" : `2${superscript(next)}`;
  inkText(plot, words, at[0] + 11, at[1], { fill: last?.skipped ? tint.bad : tint.fp16, bold: true, base: "middle", halo: true });
}

function drawWindow(plot, y) {
  const { store, x } = plot;
  const edge = (key) => store.yours.flatMap((row, i) => [[x(i + 0.5), y(row[key])], [x(i + 1.5), y(row[key])]]);
  inkZone(plot, SCALE, edge("overflowsAt"), "overflowed");
  inkZone(plot, SCALE, edge("keepsFrom"), "underflowed");
}

function nameWindow(plot, y) {
  inkZoneNames(plot, SCALE);
  nameSides(plot, (rows) => y(rows.at(-1).scale));
}

function nameSides(plot, y) {
  const { store, tint, x, end } = plot;
  if (!store.yours.length) return;
  const at = Math.min(x(store.yours.length + 0.5), end) + 6; // a step is wide in a short game
  const sides = [[store.yours, "you", tint.fp16], [store.scalers, "scaler", tint.ink2]];
  inkNames(plot, sides.map(([rows, name, fill]) => ({ name, fill, x: at, y: y(rows) })), 15);
}

function drawLosses(plot) {
  const { store, tint, x } = plot;
  const { yours, scalers } = store;
  const losses = (rows) => rows.map(({ loss }) => loss);
  const y = inkLosses(plot, LOSS, "Loss of each batch, without its weight, log scale", [losses(yours), losses(scalers)]);
  const curve = (rows, colour, width) => inkLine(plot, losses(rows).map((loss, i) => [x(i + 1), y(loss)]), colour, width);
  curve(scalers, tint.ink2, 1.25);
  curve(yours, tint.fp16, 1.75);
  nameSides(plot, (rows) => y(rows.at(-1).loss));
}
