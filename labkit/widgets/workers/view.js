// Four workers: a lane for each rank, a column for each step, and between the lanes what an all-reduce carries from one to
// all. What has no step yet is an open place; a recorded training is faint.

import { button, segmented, sentence, toggle, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";

const DID = { stepped: "stepped", skipped: "skipped", found: "inf here" };
const DRAWN_MS = 300; // how long inf takes from the rank that met it to the others

// How one rank fared in one step; `link` is what the all-reduce carried between this lane and the next.
function laneCell(rank, column, i, agree) {
  const cell = h("td");
  if (!rank) {
    cell.append(h("span", { class: "wk-step", data: { did: "" } }));
    return cell;
  }
  const did = rank.found ? "found" : rank.stepped ? "stepped" : "skipped";
  const first = column.ranks.findIndex((one) => one.found);
  const spread = first >= 0 && column.ranks.every((one) => !one.stepped);
  cell.dataset.link = spread ? (i < first ? "up" : "down") : agree ? "clean" : "none";
  const words = did === "found" && rank.stepped ? "inf, stepped" : DID[did];
  const scale = h("b", { data: { apart: rank.apart } }, rich(rank.scale));
  cell.append(
    h(
      "span",
      { class: "wk-step", data: { did: rank.stepped ? "stepped" : "skipped", found: rank.found } },
      scale,
      h("small", { text: words }),
    ),
  );
  return cell;
}

function laneTable() {
  const [head, body] = [h("thead"), h("tbody")];
  const element = h("table", { class: "lk-table wk-lanes" }, head, body);
  let known = { steps: [] };
  const row = (name, about, cells, kind) =>
    h(
      "tr",
      { class: kind },
      h(
        "th",
        { scope: "row" },
        name,
        about ? h("small", { class: "lk-quiet", text: about }) : null,
      ),
      ...cells,
    );
  return {
    element,
    show(now) {
      const { steps, total, agree, recorded } = now;
      const columns = Array.from({ length: Math.max(total, steps.length) }, (_, i) => steps[i]);
      const fresh = steps.length === known.steps.length + 1 && !recorded ? steps.length - 1 : -1; // the step that came just now
      head.replaceChildren(
        h(
          "tr",
          {},
          h("th", { scope: "col", text: "step" }),
          ...columns.map((_, i) => h("th", { scope: "col", text: i + 1 })),
        ),
      );
      const lanes = now.lanes.map((about, r) =>
        row(
          `rank ${r}`,
          about,
          columns.map((column, i) => {
            const cell = laneCell(column?.ranks[r], column, r, agree);
            cell.classList.toggle("wk-new", i === fresh);
            return cell;
          }),
          "wk-lane",
        ),
      );
      const said = (column) =>
        !column
          ? ""
          : !agree
            ? "not asked"
            : column.ranks.some((rank) => rank.stepped)
              ? "no"
              : "yes";
      const answer = columns.map((column) =>
        h("td", { data: { said: said(column) }, text: said(column) }),
      );
      const loss = columns.map((column) => h("td", { text: column?.loss ?? "" }));
      body.replaceChildren(
        ...lanes,
        row("found_inf, of all", "", answer, "wk-sum"),
        row("loss", "mean of the ranks", loss, "wk-sum"),
      );
      element.toggleAttribute("data-recorded", Boolean(recorded));
      known = now;
    },
  };
}

export default view(
  {
    label: "Four workers",
    kind: "workers",
    alone: (model) => Boolean(model.onPage && model.get("_lanes").recorded),
  },
  (root, model, life) => {
    const [train, stop] = [["Train", "primary"], ["Stop"]].map(([label, kind]) =>
      button({ label, kind, onPress: () => model.send({ do: label.toLowerCase() }) }),
    );
    const step = h("span", { class: "lk-quiet" });
    const made = h("span", { class: "lk-quiet wk-made" });
    const flag = (value) => ({
      value: String(value),
      label: value ? "a part (FSDP2)" : "all weights (DDP)",
    });
    const held = segmented({
      label: "each rank holds",
      options: [true, false].map(flag),
      value: String(model.get("sharded")),
      onChange: (to) => put(model, { sharded: to === "true" }),
    });
    const way = traitChoice(model, "way", "gradients are added up in", model.get("_ways"));
    const agree = toggle({
      label: "the ranks agree on found_inf",
      value: model.get("agree"),
      onChange: (to) => put(model, { agree: to }),
    });
    const table = laneTable();
    const words = sentence();
    const key = h(
      "p",
      { class: "lk-quiet wk-key" },
      ...[
        ["stepped", "a step"],
        ["skipped", "skipped"],
      ].flatMap(([did, text]) => [h("i", { class: "wk-step", data: { did } }), text]),
      "; in each, the scale of the rank",
    );

    function show() {
      const [phase, now] = [model.get("phase"), model.get("_lanes")];
      root.dataset.phase = phase;
      root.dataset.steps = String(now.recorded ? 0 : now.steps.length);
      for (const [one, on] of [
        [train, phase === "ready"],
        [stop, phase === "training"],
      ])
        one.element.setAttribute("aria-disabled", String(!on));
      train.element.toggleAttribute("data-invites", phase === "ready" && Boolean(now.recorded));
      held.set(String(model.get("sharded")));
      way.set(model.get("way"));
      agree.set(model.get("agree"));
      step.textContent =
        now.recorded || !now.steps.length ? "" : `step ${now.steps.length} of ${now.total}`;
      made.textContent = now.recorded;
      words.say(model.get("sentence"));
    }
    for (const one of [train, stop, held, way, agree]) one.element.hidden = Boolean(model.onPage);
    const draw = () => {
      table.show(model.get("_lanes"));
      if (model.onPage) table.element.removeAttribute("data-recorded"); // a record is all that a page has: it is not faint
      show();
    };
    root.style.setProperty("--wk-drawn", `${DRAWN_MS}ms`);
    root.append(
      h(
        "div",
        { class: "lk-head" },
        h("span", { class: "lk-title", text: "Four workers" }),
        step,
        made,
      ),
      h("div", { class: "lk-row" }, train.element, stop.element),
      h("div", { class: "lk-row" }, held.element, way.element, agree.element),
      words.element,
      h("div", { class: "wk-room" }, table.element),
      key,
    );
    watch(life, model, ["phase", "sentence", "sharded", "way", "agree"], show);
    watch(life, model, ["_lanes"], draw);
    draw();
  },
);
