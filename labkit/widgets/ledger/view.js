// The ledger of a forward pass. Python runs the pass and sends a row for each operation; the page
// sends back the list that the learner chooses. The table is built once and then updated, so the
// focus stays. A page without a kernel has `_states`: the rows and the sentence of the usual lists,
// of all operations allowed or denied, and of each single change.

import { button, headed, segmented, sentence, traitChoice } from "../base/controls.js";
import { h, placeOf, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";
import { filledChip, givesCell, operationName } from "./cells.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {Moves} overrides
 * @property {string} format_name
 * @property {string} sentence
 * @property {Row[]} _rows
 * @property {Mark} _mark
 * @property {{ title: string, lists: string[], formats: string[] }} _about
 */

/** @typedef {Record<string, string>} Moves key of a row -> the list to which it is moved */
/** @typedef {Pick<Traits, "_mark" | "_rows" | "sentence">} Ran the traits after a forward pass */

/**
 * The traits in a page without a kernel, which also has the results of single moves.
 *
 * @typedef {Traits & { _states?: Record<string, Ran> }} PageTraits
 */

/**
 * The largest error of one rounding.
 *
 * @typedef {object} Mark
 * @property {number} at The position on a bar, from 0 to 1.
 * @property {string} text
 * @property {string} format
 */

/**
 * An operation.
 *
 * @typedef {object} Row
 * @property {string} key
 * @property {string} op The name of the operation.
 * @property {string} where The module that calls it.
 * @property {string} why Why it is on its list.
 * @property {string} list The list that it is on.
 * @property {string} home Its own list.
 * @property {boolean} moved Whether it is on another list than its own.
 * @property {string[]} takes The formats of its inputs.
 * @property {string} ran The format in which it ran; "" if it did not run.
 * @property {boolean} cast Whether its inputs were cast.
 * @property {string} gives The format of its result; "" if there is none.
 * @property {number} bar The length of the bar of its error, from 0 to 1.
 * @property {string} error The relative error as text.
 * @property {string} flag The text that is shown instead of the error; "" for none.
 * @property {string} detail The sentence about the row.
 * @property {string} problem Why it was refused; "" if it was not.
 */

const HEADS = {
  rail: "",
  op: "operation, and why it is there",
  takes: "takes",
  list: "list",
  gives: "gives",
  error: "error against FP32",
};
const POINT_AT_ONE = "Point at a row, or go there with Tab, to read more about it.";

// --- the table -----------------------------------------------------------------------------------

/** @param {string} name of a format */
function plainChip(name) {
  return h("span", { class: "lk-chip", data: { format: name }, text: name });
}

/** @typedef {(key: string, list: string) => void} OnMove */

/**
 * @param {Row} row
 * @param {readonly string[]} lists
 * @param {OnMove} onMove
 */
function listChoice(row, lists, onMove) {
  const offered = lists.includes(row.home) ? lists : [...lists, row.home];
  const choice = segmented({
    label: `List of ${row.key}`,
    options: offered.map((name) => ({
      value: name,
      label: name,
      title: name === row.home ? "its own list" : `move it to ${name}`,
    })),
    value: row.list,
    onChange: (name) => onMove(row.key, name),
    labelled: false,
  });
  /** @type {NodeListOf<HTMLElement>} */
  const segments = choice.element.querySelectorAll(".lk-segment");
  for (const [i, segment] of segments.entries()) {
    segment.dataset.home = String(offered[i] === row.home);
  }
  return choice;
}

/**
 * @param {Row} row
 * @param {readonly string[]} lists
 * @param {OnMove} onMove
 */
function ledgerRow(row, lists, onMove) {
  const into = h("i", { class: "lg-in" });
  const knot = h("i", { class: "lg-knot" });
  const out = h("i", { class: "lg-out" });
  const why = h("span", { class: "lk-quiet lg-why" });
  const takes = h("td", { class: "lg-takes" });
  const gives = givesCell();
  const bar = h("i");
  const number = h("span", { class: "lg-number" });
  const choice = listChoice(row, lists, onMove);
  const name = operationName(row.op);
  const where = h("span", { class: "lk-quiet lg-where", text: row.where });
  const element = h(
    "tr",
    { data: { key: row.key } },
    h("td", { class: "lg-rail", "aria-hidden": "true" }, into, out, knot),
    h("th", { scope: "row" }, name, where, why),
    takes,
    h("td", { class: "lg-lists" }, choice.element),
    gives,
    h("td", { class: "lg-error" }, h("span", { class: "lg-track" }, bar), number),
  );
  return {
    element,
    /**
     * @param {Row} now
     * @param {string | undefined} before the format of the result of the operation above
     */
    set(now, before) {
      element.classList.toggle("lg-moved", now.moved);
      element.classList.toggle("lg-broken", now.flag !== "" && now.gives !== "");
      element.classList.toggle("lg-refused", now.problem !== "");
      element.classList.toggle("lg-unreached", now.gives === "");
      why.textContent = now.why;
      takes.replaceChildren(...now.takes.map(plainChip));
      gives.replaceChildren(...(now.gives ? [filledChip(now.gives)] : []));
      choice.set(now.list);
      into.dataset.format = now.takes.find((format) => format === before) ?? now.takes[0] ?? "";
      out.dataset.format = now.gives;
      knot.dataset.format = now.ran;
      knot.dataset.cast = String(now.cast);
      bar.style.transform = `scaleX(${now.bar})`;
      number.textContent = now.flag || now.error;
    },
  };
}

/**
 * @param {readonly string[]} lists
 * @param {OnMove} onMove
 */
function ledgerTable(lists, onMove) {
  const columns = Object.keys(HEADS).map((name) => h("col", { class: `lg-c-${name}` }));
  const { element, body } = headed("lg-table", Object.values(HEADS), h("colgroup", {}, ...columns));
  let keys = "";
  /** @type {ReturnType<typeof ledgerRow>[]} */
  let rows = [];
  return {
    element,
    /** @param {readonly Row[]} now */
    set(now) {
      const wanted = now.map((row) => row.key).join();
      if (keys !== wanted) {
        keys = wanted;
        rows = now.map((row) => ledgerRow(row, lists, onMove));
        body.replaceChildren(...rows.map((row) => row.element));
      }
      for (const [i, row] of rows.entries()) row.set(now[i], now[i - 1]?.gives);
    },
  };
}

// --- moves ---------------------------------------------------------------------------------------

/**
 * Return the traits after a forward pass with some moves, if the page has them (`page_state` of
 * widget.py).
 *
 * @param {Model<PageTraits>} model
 * @param {Moves} overrides
 */
function ranBefore(model, overrides) {
  const homes = Object.fromEntries(model.get("_rows").map(({ key, home }) => [key, home]));
  const keys = Object.keys(overrides).filter((key) => overrides[key] !== homes[key]);
  const moved = keys.sort().map((key) => `${key}=${overrides[key]}`);
  const ran = model.get("_states")?.[[model.get("format_name"), ...moved].join(";")];
  return ran && { ...ran, overrides };
}

/**
 * Return functions that move operations. If a page without a kernel does not have the result of all
 * moves together, it shows the last move alone.
 *
 * @param {Model<PageTraits>} model
 */
function mover(model) {
  /** @type {Moves} */
  let last = {};

  /** @param {Partial<Traits>} changes */
  function send(changes) {
    put(model, changes);
    const all = model.get("overrides");
    const ran = ranBefore(model, all) ?? ranBefore(model, last) ?? ranBefore(model, {});
    if (ran) put(model, ran);
  }
  return {
    send,
    /** @type {OnMove} */
    move(key, list) {
      last = { [key]: list };
      send({ overrides: { ...model.get("overrides"), ...last } });
    },
    /** @param {string} list */
    moveAll(list) {
      const moves = model.get("_rows").map(({ key }) => [key, list]);
      send({ overrides: Object.fromEntries(moves) });
    },
  };
}

/** @param {ReturnType<typeof mover>} moves */
function presetButtons(moves) {
  const usual = button({
    label: "As the lists say",
    title: "every operation back on its own list",
    onPress: () => moves.send({ overrides: {} }),
  });
  const low = button({
    label: "All allowed",
    title: "every operation in the low format",
    onPress: () => moves.moveAll("allow"),
  });
  const wide = button({
    label: "All denied",
    title: "every operation in FP32",
    onPress: () => moves.moveAll("deny"),
  });
  const about = { class: "lk-row lk-tight", role: "group", "aria-label": "All operations" };
  return h("div", about, usual.element, low.element, wide.element);
}

/**
 * @param {HTMLElement} root
 * @param {Model<PageTraits>} model
 * @param {Life} life
 */
function fillLedger(root, model, life) {
  const { title, lists, formats: names } = model.get("_about");
  const moves = mover(model);
  const formats = traitChoice(model, "format_name", "casts to", names, {
    onChange: (name) => moves.send({ format_name: name }),
  });
  const table = ledgerTable(lists, moves.move);
  const words = sentence();
  const detail = h("p", { class: "lg-detail" });
  const legend = h("p", { class: "lk-quiet" });
  // The key of the row with the pointer or the focus.
  let pointedKey = "";

  function showDetail() {
    const row = model.get("_rows").find((one) => one.key === pointedKey);
    detail.replaceChildren(rich(row ? row.detail : POINT_AT_ONE));
  }

  function show() {
    const { at, text, format } = model.get("_mark");
    const costs = `is the most that one rounding to ${format} costs.`;
    table.element.style.setProperty("--lg-one", String(at));
    legend.replaceChildren(
      rich(
        "A ring on the rail: autocast casts here. Bars run from 2^-24, where FP32 rounds, to 1; " +
          `the mark at ${text} ${costs}`,
      ),
    );
    showDetail();
    formats.set(model.get("format_name"));
    table.set(model.get("_rows"));
    words.say(model.get("sentence"));
  }

  const heading = h("span", { class: "lk-title lg-title", text: title });
  const head = h("div", { class: "lk-row" }, heading, formats.element, presetButtons(moves));
  root.append(head, words.element, table.element, detail, legend);
  for (const type of ["pointerover", "focusin"]) {
    life.listen(table.element, type, (event) => {
      /** @type {HTMLElement | null} */
      const row = placeOf(event).closest("tr[data-key]");
      pointedKey = row?.dataset.key ?? pointedKey;
      showDetail();
    });
  }
  watch(life, model, ["_rows", "_mark", "sentence", "format_name"], show);
  show();
}

export default view(
  {
    label: "Ledger of a forward pass",
    kind: "ledger",
    alone: (model) => model.get("_states") !== undefined,
  },
  fillLedger,
);
