// A wall of cards: symptom in front, cause behind. The kernel finds, turns and runs them; here they are drawn.

import { figure } from "../base/canvas.js";
import { button, sentence, traitChoice } from "../base/controls.js";
import { h, rich } from "../base/elements.js";
import { put, watch } from "../base/model.js";
import { inkCross, inkLine, inkLosses, inkNames, inkSteps } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";

const FORMS = {
  broken: { name: "as it fails", colour: "bad", width: 4 },
  cured: { name: "repaired", colour: "good", width: 1.75 },
};

// --- what came of a run -----------------------------------------------------------------------------------------------

// The losses of both forms, one line each; where one is inf or NaN the line has a gap, and ends in a cross.
function lossPicture(life, outcomes, tint) {
  const picture = figure({ life, label: "The loss of each step", height: 170, draw });
  function draw(pen, wide) {
    const curves = Object.entries(outcomes()).map(([form, { losses }]) => [
      FORMS[form],
      losses.map((loss) => loss ?? NaN),
    ]);
    const total = Math.max(2, ...curves.map(([, losses]) => losses.length));
    const [left, end, top, height] = [46, wide - 84, 26, 112];
    const plot = { pen, tint, left, end, total, x: (step) => left + ((end - left) * step) / total };
    const y = inkLosses(
      plot,
      { top, height },
      "Loss, log scale",
      curves.map(([, losses]) => losses),
    );
    inkSteps(plot, top + height);
    const labels = [];
    for (const [{ name, colour, width }, losses] of curves) {
      const points = losses.map((loss, i) => [plot.x(i + 1), y(loss)]);
      const last = points.findLast(([, at]) => Number.isFinite(at)) ?? [left, top];
      inkLine(plot, points, tint[colour], width);
      if (points.length && !Number.isFinite(points.at(-1)[1]))
        inkCross(plot, ...last, 4, tint[colour]);
      if (points.length) labels.push({ name, fill: tint[colour], x: last[0] + 8, y: last[1] });
    }
    inkNames(plot, labels, 16);
  }
  return picture;
}

// --- a card -----------------------------------------------------------------------------------------------------------

function codeOf(name, lines) {
  const rows = lines.flatMap(([text, differs]) => [differs ? h("mark", { text }) : text, "\n"]);
  return h(
    "figure",
    { class: "pw-code" },
    h("figcaption", { class: "lk-quiet", text: name }),
    h("pre", { tabindex: "0", "aria-label": `code, ${name}` }, ...rows),
  );
}

// Text in which `this` is code.
function quoted(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", { text: part }) : rich(part)));
}

function backOf({ title, told, threads, code }) {
  const links = threads.flatMap(({ name, address }, i) => [
    i ? ", " : "",
    h("a", { href: address, target: "_blank", rel: "noopener", text: name }),
  ]);
  const terms = told.flatMap(([name, text]) => [
    h("dt", { text: name }),
    ...text.split("\n").map((line) => h("dd", {}, ...quoted(line))),
  ]);
  const [broken, cured] = code;
  return [
    h("p", { class: "lk-title pw-title", text: title }),
    h("dl", {}, ...terms, h("dt", { text: "Reported" }), h("dd", {}, ...links)),
    h("div", { class: "pw-codes" }, codeOf("as it fails", broken), codeOf("repaired", cured)),
  ];
}

function makeCard({ id, symptom, errors, kind, runs: runnable }, { life, model, palette }) {
  const outcomes = () => model.get("outcomes")[id] ?? {};
  const runs = Object.fromEntries(
    Object.keys(FORMS).map((form) => [
      form,
      button({ label: form === "broken" ? "Run it" : "Run it repaired", onPress: () => ask(form) }),
    ]),
  );
  const news = h("div", { class: "pw-news", role: "status" });
  const back = h("div", { class: "pw-back" });
  const opened = h("details", {}, h("summary", { text: "What is it?" }), back);
  const results = h("div", { class: "pw-results", hidden: true }, news);
  const shownErrors = errors.length
    ? h("pre", { class: "pw-errors", text: errors.join("\n") })
    : null;
  const front = h(
    "div",
    { class: "pw-front" },
    h("span", { class: "lk-quiet", text: kind }),
    h("p", { class: "pw-symptom", text: symptom }),
    shownErrors,
  );
  const element = h(
    "article",
    { class: "pw-card", "aria-label": symptom, data: { id } },
    front,
    h(
      "div",
      { class: "lk-row", hidden: !runnable || model.onPage },
      runs.broken.element,
      runs.cured.element,
    ),
    results,
    opened,
  );
  const waiting = new Set();
  runs.cured.element.hidden = true; // what it was comes first
  let picture = null;

  function ask(form) {
    if (waiting.has(form)) return;
    waiting.add(form);
    model.send({ run: id, form });
    show();
  }
  opened.addEventListener("toggle", () => {
    element.toggleAttribute("data-turned", opened.open);
    if (opened.open) runs.cured.element.hidden = false;
    if (opened.open) model.send({ turn: id });
  });

  function show() {
    const known = model.get("_behind")[id];
    if (known && !back.childElementCount) back.append(...backOf(known));
    const said = Object.entries(outcomes());
    results.hidden = !said.length && !waiting.size;
    const lines = [
      ...said
        .filter(([form]) => !waiting.has(form))
        .map(([form, { sentence, failed }]) => [form, sentence, failed ? "fails" : "well"]),
      ...[...waiting].map((form) => [
        form,
        "running, or waiting for the cell that runs …",
        "waits",
      ]),
    ];
    news.replaceChildren(
      ...lines.map(([form, text, how]) =>
        h(
          "p",
          { class: "pw-said", data: { form, how } },
          h("b", { text: `${FORMS[form].name}: ` }),
          rich(text),
        ),
      ),
    );
    if (said.some(([, { losses }]) => losses.length > 1)) {
      if (!picture) results.append((picture = lossPicture(life, outcomes, palette)).element);
      picture.redraw();
    }
  }
  return {
    element,
    show,
    redraw: () => picture?.redraw(),
    arrived() {
      for (const form of Object.keys(outcomes())) waiting.delete(form);
      show();
    },
  };
}

// --- the wall ---------------------------------------------------------------------------------------------------------

// Arrow keys go from card to card: to the same control of the next one.
function walk(root, life) {
  life.listen(root, "keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const card = event.target.closest(".pw-card");
    if (!by || !card || !event.target.matches(".pw-card > .lk-row > button, summary")) return;
    const stops = [
      ...root.querySelectorAll(
        `.pw-card:not([hidden]) ${event.target.matches("summary") ? "> details > summary" : "> .lk-row > button:first-child"}`,
      ),
    ];
    event.preventDefault();
    const here = stops.findIndex((stop) => card.contains(stop));
    stops[here + by]?.focus();
  });
}

// On a page without a kernel: the cards of a kind that have all of these words.
function foundOnPage(model) {
  const words = model.get("query").toLowerCase().split(/\s+/).filter(Boolean);
  const text = (card) => JSON.stringify([card, model.get("_behind")[card.id]]).toLowerCase();
  const ofKind = model
    .get("_cards")
    .filter((card) => ["all", card.kind].includes(model.get("kind")));
  const shown = ofKind
    .filter((card) => words.every((word) => text(card).includes(word)))
    .map(({ id }) => id);
  const number = `${shown.length} card${shown.length === 1 ? "" : "s"}`;
  return {
    shown,
    sentence: words.length
      ? `${number} with these words.`
      : `${number}. Paste the error message that you have, or a word.`,
  };
}

export default view(
  { label: "The wall of faults", kind: "fault-wall", alone: (model) => Boolean(model.onPage) },
  (root, model, life) => {
    const palette = colours(root, life, () => {
      for (const { redraw } of cards) redraw();
    });
    const cards = model.get("_cards").map((card) => makeCard(card, { life, model, palette }));
    const search = h("input", {
      type: "text",
      "aria-label": "An error message, or words to look for",
      placeholder: "paste an error message, or a word",
    });
    search.value = model.get("query");
    search.addEventListener("input", () => put(model, { query: search.value }));
    const options = model.get("_kinds");
    const kinds = traitChoice(model, "kind", "Seen first", options);
    const words = sentence();
    const wall = h("div", { class: "pw-wall" }, ...cards.map(({ element }) => element));
    root.append(h("div", { class: "lk-row pw-head" }, kinds.element, search), words.element, wall);
    walk(root, life);

    function find() {
      const shown = model.get("shown");
      const place = new Map(shown.map((id, i) => [id, i]));
      for (const { element } of cards) element.hidden = !place.has(element.dataset.id);
      const byPlace = (a, b) =>
        (place.get(a.element.dataset.id) ?? Infinity) -
        (place.get(b.element.dataset.id) ?? Infinity);
      const order = [...cards].sort(byPlace).map(({ element }) => element);
      if (order.some((element, i) => wall.children[i] !== element)) wall.append(...order); // the best match first
      words.say(model.get("sentence"));
      kinds.set(model.get("kind"));
      if (search.value !== model.get("query") && document.activeElement !== search)
        search.value = model.get("query");
    }

    if (model.onPage) watch(life, model, ["query", "kind"], () => put(model, foundOnPage(model)));
    watch(life, model, ["shown", "sentence", "kind", "query"], find);
    watch(life, model, ["_behind"], () => cards.forEach(({ show }) => show()));
    watch(life, model, ["outcomes"], () => cards.forEach(({ arrived }) => arrived()));
    find();
    for (const { arrived } of cards) arrived();
  },
);
