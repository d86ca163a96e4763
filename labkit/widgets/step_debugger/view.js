// One training step in eight stages. Python takes the step and sends what every tensor was like at each stage; going from
// stage to stage needs no kernel. A tensor that two stages share slides from where it was to where it is; what changed since
// the stage that had it last is marked, with its old range as an outline.

import { button, headed, segmented, sentence, slider, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { power } from "../base/number_words.js";
import { view } from "../base/root.js";
import { FATES } from "../base/theme.js";

// Of a stage: name -> the same tensor as the latest earlier stage had it, and the name of that stage.
function earlierOf(stages, names, stage) {
  const found = {};
  for (const { name } of stages[stage]) {
    const at = stages
      .slice(0, stage)
      .findLastIndex((tensors) => tensors.some((one) => one.name === name));
    if (at >= 0)
      found[name] = { tensor: stages[at].find((one) => one.name === name), stage: names[at] };
  }
  return found;
}

const CHANGES = {
  dtype: ["format"],
  range: ["smallest", "largest"],
  zeros: ["zeros"],
  "inf or NaN": ["non_finite"],
};
const changesOf = (now, before) =>
  Object.keys(CHANGES).filter((what) =>
    CHANGES[what].some((field) => now[field] !== before[field]),
  );

// What changed in a stage, in a line.
function sayChanges(tensors, earlier) {
  const known = tensors.filter(({ name }) => earlier[name]);
  if (!known.length) return "Every tensor of this stage is new.";
  const counts = Object.keys(CHANGES).map((what) => [
    what,
    known.filter((now) => changesOf(now, earlier[now.name].tensor).includes(what)).length,
  ]);
  const words = counts.filter(([, count]) => count).map(([what, count]) => `${what} of ${count}`);
  const fresh = tensors.length - known.length;
  return `Since \u201c${earlier[known[0].name].stage}\u201d: ${words.length ? `changed ${words.join(", ")}` : "nothing changed here"}${fresh ? `; ${fresh} new` : ""}.`;
}

function stageAxis(about) {
  const ticks = about.ticks.map(([exponent, at]) =>
    h("span", { style: { left: `${100 * at}%` } }, rich(`2^${exponent}`)),
  );
  return h("div", { class: "sd-axis", "aria-hidden": "true" }, ...ticks);
}

function stageRow(tensor) {
  const chip = h("span", { class: "lk-chip lk-filled" });
  const bar = h("i", { class: "sd-bar" });
  const before = h("i", { class: "sd-before" });
  const [span, zeros, broken] = [
    h("td", { class: "sd-span" }),
    h("td", { class: "sd-zeros" }),
    h("td", { class: "sd-broken" }),
  ];
  const name = h("span", { class: "sd-name", text: tensor.name });
  const track = h("div", { class: "sd-track", "aria-hidden": "true" }, before, bar);
  const element = h(
    "tr",
    {},
    h("th", { scope: "row" }, name),
    h("td", {}, chip),
    h("td", { class: "sd-range" }, track),
    span,
    zeros,
    broken,
  );
  const lieAt = (one, ends) => {
    one.hidden = !ends;
    if (!ends) return;
    one.style.left = `${100 * ends[0]}%`;
    one.style.width = `max(5px, ${100 * (ends[1] - ends[0])}%)`;
  };
  const lie = (ends) => lieAt(bar, ends);
  return {
    element,
    lie,
    set(now, earlier) {
      const changed = earlier ? changesOf(now, earlier.tensor) : [];
      for (const [what, cell] of [
        ["dtype", chip.parentElement],
        ["range", span],
        ["zeros", zeros],
        ["inf or NaN", broken],
      ])
        cell.classList.toggle("sd-changed", changed.includes(what));
      lieAt(before, changed.includes("range") ? earlier.tensor.bar : null);
      element.title = `${now.elements} numbers${now.bar ? `, |x| from ${now.smallest} to ${now.largest}` : ""}`;
      chip.textContent = now.format;
      for (const part of [chip, bar]) part.dataset.format = now.format;
      lie(now.bar);
      span.replaceChildren(
        now.bar
          ? now.smallest === now.largest
            ? now.largest
            : `${now.smallest} \u2026 ${now.largest}`
          : "\u2013",
      );
      zeros.textContent = now.zeros;
      broken.textContent = now.non_finite;
    },
  };
}

function stageTable(about) {
  const names = ["tensor", "dtype", "", "smallest \u2026 largest |x|", "zeros", "inf, NaN"];
  const columns = ["name", "dtype", "range", "span", "zeros", "broken"].map((name) =>
    h("col", { class: `sd-c-${name}` }),
  );
  const { element, body, heads } = headed("sd-table", names, h("colgroup", {}, ...columns));
  heads[2].append(stageAxis(about));
  for (const [name, at] of Object.entries(about.edges))
    element.style.setProperty(`--sd-${name}`, `${100 * at}%`);
  let shown = new Map(); // name -> where its bar was
  return {
    element,
    set(tensors, earlier) {
      const rows = tensors.map((tensor) => [tensor, stageRow(tensor)]);
      body.replaceChildren(...rows.map(([, row]) => row.element));
      for (const [tensor, row] of rows)
        if (tensor.bar && shown.get(tensor.name)) row.lie(shown.get(tensor.name));
      body.getBoundingClientRect(); // laid out where it was, so that it may move
      for (const [tensor, row] of rows) row.set(tensor, earlier[tensor.name]);
      shown = new Map(tensors.map((tensor) => [tensor.name, tensor.bar]));
    },
  };
}

export default view(
  { label: "One training step, stage by stage", kind: "stages", alone: (model) => model.onPage },
  (root, model, life) => {
    const about = model.get("_about");
    const go = (stage) => {
      put(model, { stage: Math.min(about.stages.length - 1, Math.max(0, stage)) });
      show();
    };

    const place = h("span", { class: "lk-quiet sd-place" });
    const recipes = traitChoice(model, "recipe_name", "recipe", about.recipes, {
      onChange: (name) => put(model, { recipe_name: name }),
    });
    const scale = slider({
      label: "loss scale",
      min: 0,
      max: about.most,
      value: model.get("log2_scale"),
      text: power,
      onInput: (value) => put(model, { log2_scale: value }),
    });
    const strip = segmented({
      label: "Stage",
      options: about.stages.map((name, i) => ({ value: String(i), label: `${i + 1} ${name}` })),
      value: String(model.get("stage")),
      onChange: (i) => go(Number(i)),
      labelled: false,
    });
    strip.element.classList.add("sd-strip");
    const back = button({
      label: "Previous",
      title: "one stage back",
      onPress: () => go(model.get("stage") - 1),
    });
    const next = button({
      label: "Next",
      title: "one stage on",
      kind: "primary",
      onPress: () => go(model.get("stage") + 1),
    });
    const another = button({
      label: "Another step",
      title: "take this step for good, and look at the next one",
      onPress: () => model.send({ do: "step" }),
    });
    const reset = button({
      label: "Reset",
      title: "back to the first step",
      onPress: () => model.send({ do: "reset" }),
    });
    const table = stageTable(about);
    const words = sentence();
    const since = h("p", { class: "lk-quiet sd-since" });
    const zones = h(
      "div",
      { class: "lk-row lk-quiet sd-zones" },
      ...FATES.map((fate) =>
        h("span", { class: "sd-zone", style: { "--sd-fate": `var(--lk-${fate})` }, text: fate }),
      ),
    );
    zones.prepend("In FP16: ");
    root.append(
      h(
        "div",
        { class: "lk-row" },
        h("span", { class: "lk-title", text: "One training step" }),
        place,
        recipes.element,
        scale.element,
      ),
      strip.element,
      h(
        "div",
        { class: "lk-row sd-buttons" },
        back.element,
        next.element,
        another.element,
        reset.element,
      ),
      words.element,
      since,
      table.element,
      zones,
    );

    function show() {
      const view = model.get("_view");
      const stage = model.get("stage");
      place.textContent = `${about.task}, step ${view.step}`;
      recipes.set(model.get("recipe_name"));
      scale.set(model.get("log2_scale"));
      strip.set(String(stage));
      strip.element.classList.toggle("sd-skipped", !view.stepped);
      back.enable(stage > 0, next);
      next.enable(stage < about.stages.length - 1, back);
      const earlier = earlierOf(view.stages, about.stages, stage);
      table.set(view.stages[stage], earlier);
      since.textContent = sayChanges(view.stages[stage], earlier);
      words.say(view.sentences[stage]);
      root.dataset.stage = about.stages[stage];
    }
    if (model.onPage) {
      for (const one of [recipes, scale, another, reset]) one.element.hidden = true;
      zones.append(
        " This step was taken when the page was written. In the lab you choose recipe and scale, and take more steps.",
      );
    }
    watch(life, model, ["_view", "stage"], show);
    show();
  },
);
