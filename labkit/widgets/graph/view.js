// The passes over a graph. Python traces the network, and sends its operations and the sentence of
// each position. The page shows the results of the passes up to a position.

import { headed, segmented, sentence, slider, walker } from "../base/controls.js";
import { h, required } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { watch } from "../base/model.js";
import { view } from "../base/root.js";
import { filledChip, givesCell, operationName } from "../ledger/cells.js";
import { AFTER_PASS, castGone, drawnGraph } from "./drawn.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {number} position
 * @property {Row[]} _rows
 * @property {string[]} _said A sentence for each position.
 * @property {[name: string, about: string][]} _passes
 */

/**
 * An operation.
 *
 * @typedef {object} Row
 * @property {string} op The name of the operation.
 * @property {string} list The list of autocast that it is on.
 * @property {string} why Why it is on this list.
 * @property {string} result The format of its result; "" if that has no floating-point numbers.
 * @property {Cast[]} casts
 * @property {number[]} takes The indices of the rows whose results it reads; -1, -2, ... are inputs
 *   of the network.
 */

/**
 * A cast of an input of an operation.
 *
 * @typedef {object} Cast
 * @property {string} text
 * @property {string} to The name of a format.
 * @property {"stays" | "cancelled" | "hoisted"} fate
 * @property {number} times How many times a step makes the cast: 1 or 0.
 * @property {number} tensor The number of the tensor.
 * @property {number | null} origin The index of the row that returned the tensor; -1, -2, ... for
 *   an input of the network, null for a weight.
 */

const HEADS = ["operation", "list", "gives", "casts"];
// The time between two positions while playing.
const LOOK_MS = 420;
const KEY =
  "\u25a1 input   \u25cf operation, in the colour of what it returns   " +
  "\u25c6 cast; on the left edge: of a weight";

/** @param {Row} row */
function graphRow({ op, list, result, casts }) {
  const chips = casts.map((cast) => {
    const { to, fate, times, text } = cast;
    const data = { format: to, fate, times };
    return { cast, element: h("span", { class: "lk-chip gr-cast", data, text }) };
  });
  const listed = h("span", { class: "gr-list", data: { list }, text: list });
  const gives = givesCell();
  if (result) gives.append(filledChip(result));
  const element = h(
    "tr",
    {},
    h("th", { scope: "row" }, operationName(op)),
    h("td", {}, listed),
    gives,
    h("td", {}, ...chips.map((chip) => chip.element)),
  );
  return {
    element,
    /**
     * @param {number} done the number of passes that have visited the operation
     * @param {boolean} now whether a pass visits it at this position
     */
    set(done, now) {
      element.classList.toggle("gr-now", now);
      listed.classList.toggle("gr-unseen", done < AFTER_PASS.colour);
      gives.classList.toggle("gr-unseen", done < AFTER_PASS.propagate);
      for (const { cast, element: chip } of chips) {
        const isShared = cast.fate === "hoisted" && cast.times === 1;
        chip.classList.toggle("gr-unseen", done < AFTER_PASS.insert);
        chip.classList.toggle("gr-gone", castGone(cast, done));
        chip.classList.toggle("lk-filled", isShared && done >= AFTER_PASS.hoist);
      }
    },
  };
}

/** @param {HTMLElement} element */
function middleOf(element) {
  return element.offsetTop + element.offsetHeight / 2;
}

/**
 * Return the table of operations, and the graph beside it.
 *
 * @param {readonly Row[]} rows
 */
function graphRoom(rows) {
  const lines = rows.map(graphRow);
  const graph = drawnGraph(rows);
  const { element: table, body } = headed("gr-table", HEADS);
  body.append(...lines.map(({ element }) => element));
  const element = h("div", { class: "gr-room" }, graph.element, table);
  element.style.paddingLeft = `${graph.width}px`;
  return {
    element,
    table,
    /** Draw the graph, with each operation at the height of its row. */
    draw() {
      const ys = lines.map((line) => middleOf(line.element));
      graph.draw(ys, middleOf(required(table, "thead")));
    },
    /**
     * @param {readonly number[]} done the number of passes that have visited each operation
     * @param {number} now the index of the operation that a pass visits; -1 for none
     */
    set(done, now) {
      for (const [i, line] of lines.entries()) line.set(done[i], i === now);
      graph.set(done, now);
    },
  };
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillGraph(root, model, life) {
  const rows = model.get("_rows");
  const passes = model.get("_passes");
  const said = model.get("_said");
  const count = rows.length;
  const last = said.length - 1;

  /** @param {number} position */
  function placeText(position) {
    if (position === 0) return "before";
    const [pass] = passes[Math.floor((position - 1) / count)];
    return `${pass}, ${rows[(position - 1) % count].op}`;
  }
  const playing = { title: "look at one operation after another", pace: LOOK_MS, life };
  const { play, move } = walker(model, "position", () => last, playing);
  const where = slider({
    label: "Position",
    min: 0,
    max: last,
    page: count,
    value: 0,
    text: placeText,
    onInput: move,
  });
  const choice = segmented({
    label: "Pass",
    options: passes.map(([label, title], i) => ({ value: String(i), label, title })),
    value: "0",
    labelled: false,
    onChange: (i) => move((Number(i) + 1) * count),
  });
  const room = graphRoom(rows);
  const words = sentence();

  function show() {
    const position = model.get("position");
    // At position 0 no pass has begun, and `visited` is 0.
    const pass = Math.floor((position - 1) / count);
    const visited = position === 0 ? 0 : ((position - 1) % count) + 1;
    const done = rows.map((_, i) => Math.max(0, pass) + Number(i < visited));
    const now = position > 0 && position < last ? visited - 1 : -1;
    room.set(done, now);
    where.set(position);
    play.element.toggleAttribute("data-invites", position === last);
    choice.set(String(Math.max(0, pass)));
    words.say(said[position], String(play.playing ? pass : position));
  }
  const drawn = new ResizeObserver(() => {
    room.draw();
    show();
  });
  drawn.observe(room.table);
  life.add(() => drawn.disconnect());
  whenUnseen(life, play.stop);

  const title = h("span", { class: "lk-title", text: "Casts, decided once" });
  root.append(
    h("div", { class: "lk-row" }, title, choice.element, play.element),
    where.element,
    words.element,
    room.element,
    h("p", { class: "lk-quiet", text: KEY }),
  );
  watch(life, model, ["position"], show);
  show();
}

export default view({ label: "Passes over a graph", kind: "ledger", alone: true }, fillGraph);
