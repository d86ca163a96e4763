// The ledger of a forward pass. Python runs it and sends one row for each operation; the list that is chosen goes back. The table
// is built once and then follows, so the focus stays. A page without a kernel has `_states`: rows and sentence of the usual lists,
// of all allowed or denied, and of each single move.

import { button, headed, segmented, sentence, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { view } from "../base/root.js";

function chips(names, className) {
  return names.map((name) => h("span", { class: className, data: { format: name }, text: name }));
}

function ledgerRow(row, lists, onMove) {
  const [into, knot, out] = ["lg-in", "lg-knot", "lg-out"].map((name) => h("i", { class: name }));
  const why = h("span", { class: "lk-quiet lg-why" });
  const takes = h("td", { class: "lg-takes" });
  const gives = h("td", { class: "lg-gives" });
  const bar = h("i");
  const number = h("span", { class: "lg-number" });
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
  const segments = [...choice.element.querySelectorAll(".lk-segment")];
  segments.forEach((segment, i) => (segment.dataset.home = String(offered[i] === row.home)));
  const name = h("span", { class: "lg-op", text: row.op });
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
    set(now, before) {
      element.classList.toggle("lg-moved", now.moved);
      element.classList.toggle("lg-broken", now.flag !== "" && now.gives !== "");
      element.classList.toggle("lg-refused", now.problem !== "");
      element.classList.toggle("lg-unreached", now.gives === "");
      why.textContent = now.why;
      takes.replaceChildren(...chips(now.takes, "lk-chip"));
      gives.replaceChildren(...chips(now.gives ? [now.gives] : [], "lk-chip lk-filled"));
      choice.set(now.list);
      into.dataset.format = now.takes.includes(before) ? before : (now.takes[0] ?? "");
      out.dataset.format = now.gives;
      knot.dataset.format = now.ran;
      knot.dataset.cast = String(now.cast);
      bar.style.transform = `scaleX(${now.bar})`;
      number.textContent = now.flag || now.error;
    },
  };
}

function ledgerTable(model, onMove) {
  const heads = {
    rail: "",
    op: "operation, and why it is there",
    takes: "takes",
    list: "list",
    gives: "gives",
    error: "error against FP32",
  };
  const columns = Object.keys(heads).map((name) => h("col", { class: `lg-c-${name}` }));
  const { element, body } = headed("lg-table", Object.values(heads), h("colgroup", {}, ...columns));
  let rows = new Map();
  return {
    element,
    set(now) {
      if ([...rows.keys()].join() !== now.map((row) => row.key).join()) {
        rows = new Map(
          now.map((row) => [row.key, ledgerRow(row, model.get("_about").lists, onMove)]),
        );
        body.replaceChildren(...[...rows.values()].map((row) => row.element));
      }
      now.forEach((row, i) => rows.get(row.key).set(row, now[i - 1]?.gives));
    },
  };
}

export default view(
  {
    label: "Ledger of a forward pass",
    kind: "ledger",
    alone: (model) => model.get("_states") !== undefined,
  },
  (root, model, life) => {
    const about = model.get("_about");
    const send = (changes) => {
      put(model, changes);
      const states = model.get("_states");
      if (states)
        put(
          model,
          found(states, model.get("overrides")) ?? found(states, last) ?? found(states, {}),
        );
    };
    let last = {}; // the latest move alone
    function found(states, overrides) {
      const homes = Object.fromEntries(model.get("_rows").map(({ key, home }) => [key, home]));
      const moved = Object.keys(overrides)
        .filter((key) => overrides[key] !== homes[key])
        .sort();
      const state =
        states[
          [model.get("format_name"), ...moved.map((key) => `${key}=${overrides[key]}`)].join(";")
        ];
      return state && { ...state, overrides };
    }
    const all = (list) => Object.fromEntries(model.get("_rows").map((row) => [row.key, list]));
    const formats = traitChoice(model, "format_name", "casts to", about.formats, {
      onChange: (name) => send({ format_name: name }),
    });
    const usual = button({
      label: "As the lists say",
      title: "every operation back on its own list",
      onPress: () => send({ overrides: {} }),
    });
    const low = button({
      label: "All allowed",
      title: "every operation in the low format",
      onPress: () => send({ overrides: all("allow") }),
    });
    const wide = button({
      label: "All denied",
      title: "every operation in FP32",
      onPress: () => send({ overrides: all("deny") }),
    });
    const presets = h(
      "div",
      { class: "lk-row lk-tight", role: "group", "aria-label": "All operations" },
      usual.element,
      low.element,
      wide.element,
    );
    const table = ledgerTable(model, (key, list) => {
      last = { [key]: list };
      send({ overrides: { ...model.get("overrides"), ...last } });
    });
    const words = sentence();
    const [detail, legend] = [h("p", { class: "lg-detail" }), h("p", { class: "lk-quiet" })];
    root.append(
      h(
        "div",
        { class: "lk-row" },
        h("span", { class: "lk-title lg-title", text: about.title }),
        formats.element,
        presets,
      ),
      words.element,
      table.element,
      detail,
      legend,
    );

    let looked = ""; // the row that the pointer or the focus is on
    for (const type of ["pointerover", "focusin"]) {
      life.listen(table.element, type, (event) => {
        looked = event.target.closest("tr[data-key]")?.dataset.key ?? looked;
        tell();
      });
    }
    function tell() {
      const row = model.get("_rows").find((one) => one.key === looked);
      detail.replaceChildren(
        rich(row ? row.detail : "Point at a row, or go there with Tab, to read more about it."),
      );
    }

    function show() {
      const mark = model.get("_mark");
      table.element.style.setProperty("--lg-one", mark.at);
      legend.replaceChildren(
        rich(
          `A ring on the rail: autocast casts here. Bars run from 2^-24, where FP32 rounds, to 1; the mark at ${mark.text} is the most that one rounding to ${mark.format} costs.`,
        ),
      );
      tell();
      formats.set(model.get("format_name"));
      table.set(model.get("_rows"));
      words.say(model.get("sentence"));
    }
    watch(life, model, ["_rows", "sentence", "format_name"], show);
    show();
  },
);
