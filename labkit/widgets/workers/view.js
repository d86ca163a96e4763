// Four workers: a lane for each rank, a column for each step, and between the lanes the numbers
// that an all-reduce exchanges. A step that has not been taken is an empty place; a recorded
// training is drawn faintly.

import { button, segmented, sentence, toggle, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";

/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */

/**
 * @typedef {object} Traits
 * @property {boolean} agree
 * @property {boolean} sharded
 * @property {string} way
 * @property {"ready" | "training" | "ending"} phase
 * @property {string} sentence
 * @property {string[]} _ways
 * @property {Lanes} _lanes
 */

/**
 * @typedef {object} Lanes
 * @property {string} recorded When and where, of a training on record; "" of one of today.
 * @property {number} total The number of steps that are planned.
 * @property {boolean} agree Whether the ranks agree on found_inf.
 * @property {string[]} lanes What each rank holds.
 * @property {Column[]} steps Those that were taken.
 */

/** @typedef {{ step: number, loss: string, ranks: Rank[] }} Column */

/**
 * How one rank fared in one step.
 *
 * @typedef {object} Rank
 * @property {string} scale
 * @property {boolean} stepped
 * @property {boolean} found Whether it met inf.
 * @property {boolean} apart Whether its scale is not that of most ranks.
 */

// The time in which inf moves from the rank that met it to the others.
const DRAWN_MS = 300;

// --- the table of lanes --------------------------------------------------------------------------

/**
 * How one rank fared in one step; `link` is what the all-reduce carried between this lane and the
 * next.
 *
 * @param {Column | undefined} column undefined: a step that is not taken yet
 * @param {number} r the rank's number
 * @param {boolean} agree
 */
function laneCell(column, r, agree) {
  if (!column?.ranks[r]) return h("td", {}, h("span", { class: "wk-step", data: { did: "" } }));
  const { scale, stepped, found, apart } = column.ranks[r];
  const about = {
    class: "wk-step",
    data: { did: stepped ? "stepped" : "skipped", found },
  };
  const step = h(
    "span",
    about,
    h("b", { data: { apart } }, rich(scale)),
    h("small", { text: fateOfRank(column.ranks[r]) }),
  );
  return h("td", { data: { link: linkBelow(column.ranks, r, agree) } }, step);
}

/** @param {Rank} rank */
function fateOfRank({ stepped, found }) {
  if (found) return stepped ? "inf, stepped" : "inf here";
  return stepped ? "stepped" : "skipped";
}

/**
 * What went between a lane and the next: inf goes up and down from the first rank that met it.
 *
 * @param {readonly Rank[]} ranks
 * @param {number} r
 * @param {boolean} agree
 */
function linkBelow(ranks, r, agree) {
  const first = ranks.findIndex((rank) => rank.found);
  const spread = first >= 0 && ranks.every((rank) => !rank.stepped);
  if (spread) return r < first ? "up" : "down";
  return agree ? "clean" : "none";
}

/**
 * What the ranks were told when they asked for inf.
 *
 * @param {Column | undefined} column
 * @param {boolean} agree
 */
function foundOfAll(column, agree) {
  if (!column) return "";
  if (!agree) return "not asked";
  return column.ranks.some((rank) => rank.stepped) ? "no" : "yes";
}

/**
 * @param {string} kind
 * @param {string} name
 * @param {string} about
 * @param {readonly HTMLElement[]} cells
 */
function laneRow(kind, name, about, cells) {
  const quiet = about ? h("small", { class: "lk-quiet", text: about }) : null;
  return h("tr", { class: kind }, h("th", { scope: "row" }, name, quiet), ...cells);
}

function laneTable() {
  const head = h("thead");
  const body = h("tbody");
  const element = h("table", { class: "lk-table wk-lanes" }, head, body);
  let shownSteps = 0;

  /** @param {Lanes} lanes */
  function show({ steps, total, agree, recorded, lanes }) {
    const count = Math.max(total, steps.length);
    /** @type {(Column | undefined)[]} */
    const columns = Array.from({ length: count }, (_, i) => steps[i]);
    const isNew = steps.length === shownSteps + 1 && !recorded;
    // The index of the step that has just arrived, or -1.
    const newest = isNew ? steps.length - 1 : -1;
    const numbers = columns.map((_, i) => h("th", { scope: "col", text: i + 1 }));
    const rows = lanes.map((about, r) => {
      const cells = columns.map((column) => laneCell(column, r, agree));
      cells[newest]?.classList.add("wk-new");
      return laneRow("wk-lane", `rank ${r}`, about, cells);
    });
    const found = columns.map((column) => {
      const said = foundOfAll(column, agree);
      return h("td", { data: { said }, text: said });
    });
    const losses = columns.map((column) => h("td", { text: column?.loss ?? "" }));
    head.replaceChildren(h("tr", {}, h("th", { scope: "col", text: "step" }), ...numbers));
    body.replaceChildren(
      ...rows,
      laneRow("wk-sum", "found_inf, of all", "", found),
      laneRow("wk-sum", "loss", "mean of the ranks", losses),
    );
    element.toggleAttribute("data-recorded", Boolean(recorded));
    shownSteps = steps.length;
  }
  return { element, show };
}

// --- controls ------------------------------------------------------------------------------------

/**
 * Return a button that sends a command in one phase only. In the others it is not disabled, so that
 * it keeps the focus, but has no effect.
 *
 * @param {Model<Traits>} model
 * @param {{ label: string, kind?: string, command: "train" | "stop", phase: Traits["phase"] }} what
 */
function commandButton(model, { label, kind, command, phase }) {
  const onPress = () => {
    if (model.get("phase") === phase) model.send({ do: command });
  };
  const { element } = button({ label, kind, onPress });
  return {
    element,
    show: () => element.setAttribute("aria-disabled", String(model.get("phase") !== phase)),
  };
}

/** @param {Model<Traits>} model */
function workerControls(model) {
  const holds = [
    { value: "true", label: "a part (FSDP2)" },
    { value: "false", label: "all weights (DDP)" },
  ];
  return {
    train: commandButton(model, {
      label: "Train",
      kind: "primary",
      command: "train",
      phase: "ready",
    }),
    stop: commandButton(model, { label: "Stop", command: "stop", phase: "training" }),
    held: segmented({
      label: "each rank holds",
      options: holds,
      value: String(model.get("sharded")),
      onChange: (to) => put(model, { sharded: to === "true" }),
    }),
    way: traitChoice(model, "way", "gradients are added up in", model.get("_ways")),
    agree: toggle({
      label: "the ranks agree on found_inf",
      value: model.get("agree"),
      onChange: (to) => put(model, { agree: to }),
    }),
  };
}

function laneKey() {
  return h(
    "p",
    { class: "lk-quiet wk-key" },
    h("i", { class: "wk-step", data: { did: "stepped" } }),
    "a step",
    h("i", { class: "wk-step", data: { did: "skipped" } }),
    "skipped",
    "; in each, the scale of the rank",
  );
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillWorkers(root, model, life) {
  const { train, stop, held, way, agree } = workerControls(model);
  const step = h("span", { class: "lk-quiet" });
  const made = h("span", { class: "lk-quiet wk-made" });
  const table = laneTable();
  const words = sentence();

  function show() {
    const phase = model.get("phase");
    const { recorded, steps, total } = model.get("_lanes");
    root.dataset.phase = phase;
    root.dataset.steps = String(recorded ? 0 : steps.length);
    train.show();
    stop.show();
    train.element.toggleAttribute("data-invites", phase === "ready" && Boolean(recorded));
    held.set(String(model.get("sharded")));
    way.set(model.get("way"));
    agree.set(model.get("agree"));
    step.textContent = recorded || !steps.length ? "" : `step ${steps.length} of ${total}`;
    made.textContent = recorded;
    words.say(model.get("sentence"));
  }

  function draw() {
    table.show(model.get("_lanes"));
    // A record is all that a page has: it is not faint.
    if (model.onPage) table.element.removeAttribute("data-recorded");
    show();
  }

  const title = h("span", { class: "lk-title", text: "Four workers" });
  for (const one of [train, stop, held, way, agree]) one.element.hidden = Boolean(model.onPage);
  root.style.setProperty("--wk-drawn", `${DRAWN_MS}ms`);
  root.append(
    h("div", { class: "lk-head" }, title, step, made),
    h("div", { class: "lk-row" }, train.element, stop.element),
    h("div", { class: "lk-row" }, held.element, way.element, agree.element),
    words.element,
    h("div", { class: "wk-room" }, table.element),
    laneKey(),
  );
  watch(life, model, ["phase", "sentence", "sharded", "way", "agree"], show);
  watch(life, model, ["_lanes"], draw);
  draw();
}

export default view(
  {
    label: "Four workers",
    kind: "workers",
    alone: (model) => Boolean(model.onPage && model.get("_lanes").recorded),
  },
  fillWorkers,
);
