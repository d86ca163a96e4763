// The passes over a graph. Python traced the network and sends its operations and a sentence for each position; here a
// position becomes what the passes have found so far.

import { headed, segmented, sentence, slider, walker } from "../base/controls.js";
import { h } from "../base/elements.js";
import { whenUnseen } from "../base/kernel.js";
import { watch } from "../base/model.js";
import { view } from "../base/root.js";
import { drawnGraph } from "./drawn.js";

const LOOK_MS = 420; // between two looks while playing

function graphRow(row) {
  const chip = (text, format) => h("span", { class: "lk-chip lk-filled", data: { format }, text });
  const casts = row.casts.map((cast) =>
    h("span", {
      class: "lk-chip gr-cast",
      data: { format: cast.to, fate: cast.fate, times: cast.times },
      text: cast.text,
    }),
  );
  const [list, gives] = [
    h("span", { class: "gr-list", data: { list: row.list }, text: row.list }),
    h("td", { class: "lg-gives" }),
  ];
  if (row.result) gives.append(chip(row.result, row.result));
  const element = h(
    "tr",
    {},
    h("th", { scope: "row" }, h("span", { class: "lg-op", text: row.op })),
    h("td", {}, list),
    gives,
    h("td", {}, ...casts),
  );
  return {
    element,
    set(done, now) {
      element.classList.toggle("gr-now", now);
      list.classList.toggle("gr-unseen", done < 1);
      gives.classList.toggle("gr-unseen", done < 2);
      for (const cast of casts) {
        cast.classList.toggle("gr-unseen", done < 3);
        cast.classList.toggle(
          "gr-gone",
          (done > 3 && cast.dataset.fate === "cancelled") ||
            (done > 4 && cast.dataset.times === "0"),
        );
        cast.classList.toggle(
          "lk-filled",
          done > 4 && cast.dataset.fate === "hoisted" && cast.dataset.times === "1",
        );
      }
    },
  };
}

export default view(
  { label: "Passes over a graph", kind: "ledger", alone: true },
  (root, model, life) => {
    const [rows, passes, last] = [
      model.get("_rows").map(graphRow),
      model.get("_passes"),
      model.get("_said").length - 1,
    ];
    const count = rows.length;
    const at = (position) =>
      position === 0
        ? "before"
        : `${passes[Math.floor((position - 1) / count)][0]}, ${model.get("_rows")[(position - 1) % count].op}`;
    const playing = { title: "look at one operation after another", pace: LOOK_MS, life };
    const { play, move } = walker(model, "position", () => last, playing);
    const where = slider({
      label: "Position",
      min: 0,
      max: last,
      page: count,
      value: 0,
      text: at,
      onInput: move,
    });
    const options = passes.map(([name, about], i) => ({
      value: String(i),
      label: name,
      title: about,
    }));
    const choice = segmented({
      label: "Pass",
      options,
      value: "0",
      labelled: false,
      onChange: (i) => move((Number(i) + 1) * count),
    });
    const graph = drawnGraph(model.get("_rows"));
    const { element: table, body } = headed("gr-table", ["operation", "list", "gives", "casts"]);
    body.append(...rows.map((row) => row.element));
    const words = sentence();
    const room = h("div", { class: "gr-room" }, graph.element, table);
    const key = h("p", {
      class: "lk-quiet",
      text: "\u25a1 input   \u25cf operation, in the colour of what it returns   \u25c6 cast; on the left edge: of a weight",
    });
    const middle = (element) => element.offsetTop + element.offsetHeight / 2;
    const drawn = new ResizeObserver(() => {
      graph.draw(
        rows.map((row) => middle(row.element)),
        middle(table.tHead),
      );
      show();
    });
    room.style.paddingLeft = `${graph.width}px`;
    drawn.observe(table);
    life.add(() => drawn.disconnect());

    function show() {
      const position = model.get("position");
      const [pass, looked] = [Math.floor((position - 1) / count), ((position - 1) % count) + 1];
      const done = rows.map((_, i) => (position === 0 ? 0 : pass + (i < looked ? 1 : 0)));
      const now = position > 0 && position < last ? looked - 1 : -1;
      rows.forEach((row, i) => row.set(done[i], i === now));
      graph.set(done, now);
      where.set(position);
      play.element.toggleAttribute("data-invites", position === last);
      choice.set(String(Math.max(0, pass)));
      words.say(model.get("_said")[position], play.playing ? pass : position);
    }
    whenUnseen(life, play.stop);
    root.append(
      h(
        "div",
        { class: "lk-row" },
        h("span", { class: "lk-title", text: "Casts, decided once" }),
        choice.element,
        play.element,
      ),
      where.element,
      words.element,
      room,
      key,
    );
    watch(life, model, ["position"], show);
    show();
  },
);
