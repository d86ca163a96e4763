// A wall of cards, with a symptom on the front and its cause on the back. The kernel finds and runs
// the faults; the page draws them.

import { figure } from "../base/canvas.js";
import { button, sentence, traitChoice } from "../base/controls.js";
import { h, placeOf, rich } from "../base/elements.js";
import { listen, put, watch } from "../base/model.js";
import { inkCross, inkLine, inkLosses, inkNames, inkSteps, stepPlot } from "../base/plot.js";
import { view } from "../base/root.js";
import { colours } from "../base/theme.js";

/** @import { Figure, Pen } from "../base/canvas.js" */
/** @import { Life } from "../base/lifetime.js" */
/** @import { Model } from "../base/model.js" */
/** @import { CurveEnd, Point } from "../base/plot.js" */
/** @import { Palette } from "../base/theme.js" */

/**
 * @typedef {object} Traits
 * @property {string} query
 * @property {string} kind "all", or a kind of symptom.
 * @property {string[]} shown The ids of the cards that were found, the best match first.
 * @property {string} sentence
 * @property {Record<string, Outcomes>} outcomes The outcome of each card, by id.
 * @property {Front[]} _cards
 * @property {string[]} _kinds
 * @property {Record<string, Behind>} _behind The back of each card that was turned, by id.
 */

/** @typedef {"broken" | "cured"} Form */

/** @typedef {{ [form in Form]?: Outcome }} Outcomes the outcome of each form that was run */

/**
 * The outcome of a run.
 *
 * @typedef {object} Outcome
 * @property {(number | null)[]} losses The loss of each step; null if it is inf or NaN.
 * @property {boolean} failed Whether the fault showed.
 * @property {string} sentence
 */

/**
 * The front of a card.
 *
 * @typedef {object} Front
 * @property {string} id
 * @property {string} symptom
 * @property {string[]} errors The texts of errors by which the fault is known.
 * @property {string} kind The kind of the symptom.
 * @property {boolean} runs Whether the fault can be run.
 */

/**
 * The back of a card.
 *
 * @typedef {object} Behind
 * @property {string} title
 * @property {[name: string, text: string][]} told The facts about the fault.
 * @property {{ name: string, address: string }[]} threads The addresses at which the fault was
 *   reported.
 * @property {[broken: CodeLine[], cured: CodeLine[]]} code
 */

/** @typedef {[text: string, differs: boolean]} CodeLine */

/** @typedef {{ ran?: string, form: Form }} RanMessage A form of card `ran` was run to its end. */

/** @type {Form[]} */
const FORM_NAMES = ["broken", "cured"];

/** @type {Record<Form, { name: string, colour: "bad" | "good", width: number, label: string }>} */
const FORMS = {
  broken: { name: "as it fails", colour: "bad", width: 4, label: "Run it" },
  cured: { name: "repaired", colour: "good", width: 1.75, label: "Run it repaired" },
};
const WAITS = "running, or waiting for the cell that runs …";

/**
 * Return the outcomes with their forms, in the order of the first runs.
 *
 * @param {Outcomes} outcomes
 */
function entriesOf(outcomes) {
  return /** @type {[Form, Outcome][]} */ (Object.entries(outcomes));
}

// --- the outcome of a run ------------------------------------------------------------------------

/**
 * Return the picture of the losses of both forms, one line each. A line has a gap where a loss is
 * inf or NaN, and a cross at its last finite loss if it does not end with one.
 *
 * @param {Life} life
 * @param {() => Outcomes} outcomes
 * @param {Palette} tint
 */
function lossPicture(life, outcomes, tint) {
  /**
   * @param {Pen} pen
   * @param {number} width
   */
  function draw(pen, width) {
    const curves = entriesOf(outcomes()).map(([form, { losses }]) => ({
      form,
      losses: losses.map((loss) => loss ?? NaN),
    }));
    const total = Math.max(2, ...curves.map(({ losses }) => losses.length));
    const panel = { top: 26, height: 112 };
    const plot = stepPlot(pen, width, tint, { total, left: 46, right: 84 });
    const all = curves.map(({ losses }) => losses);
    const y = inkLosses(plot, panel, "Loss, log scale", all);
    inkSteps(plot, panel.top + panel.height);
    /** @type {CurveEnd[]} */
    const names = [];
    for (const { form, losses } of curves) {
      if (!losses.length) continue;
      const { name, colour, width: line } = FORMS[form];
      const fill = tint[colour];
      /** @type {Point[]} */
      const points = losses.map((loss, i) => [plot.x(i + 1), y(loss)]);
      const last = points.findLast(([, at]) => Number.isFinite(at)) ?? [plot.left, panel.top];
      inkLine(plot, points, fill, line);
      if (points[points.length - 1] !== last) inkCross(plot, last[0], last[1], 4, fill);
      names.push({ name, fill, x: last[0] + 8, y: last[1] });
    }
    inkNames(plot, names, 16);
  }
  return figure({ life, label: "The loss of each step", height: 170, draw });
}

/**
 * Return a line for each form that was run or waits for its run.
 *
 * @param {Outcomes} outcomes
 * @param {Set<Form>} waiting
 */
function newsLines(outcomes, waiting) {
  const lines = [];
  for (const [form, { sentence: text, failed }] of entriesOf(outcomes)) {
    if (!waiting.has(form)) lines.push(newsLine(form, text, failed ? "fails" : "well"));
  }
  for (const form of waiting) lines.push(newsLine(form, WAITS, "waits"));
  return lines;
}

/**
 * @param {Form} form
 * @param {string} text
 * @param {"fails" | "well" | "waits"} how
 */
function newsLine(form, text, how) {
  const name = h("b", { text: `${FORMS[form].name}: ` });
  return h("p", { class: "pw-said", data: { form, how } }, name, rich(text));
}

// --- a card --------------------------------------------------------------------------------------

/**
 * @param {Form} form
 * @param {CodeLine[]} lines
 */
function codeOf(form, lines) {
  const { name } = FORMS[form];
  const rows = lines.flatMap(([text, differs]) => [differs ? h("mark", { text }) : text, "\n"]);
  return h(
    "figure",
    { class: "pw-code" },
    h("figcaption", { class: "lk-quiet", text: name }),
    h("pre", { tabindex: "0", "aria-label": `code, ${name}` }, ...rows),
  );
}

/**
 * Return the parts of a text, of which those between backticks are code.
 *
 * @param {string} text
 */
function quoted(text) {
  return text.split("`").map((part, i) => (i % 2 ? h("code", { text: part }) : rich(part)));
}

/** @param {Behind} behind */
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
    h("div", { class: "pw-codes" }, codeOf("broken", broken), codeOf("cured", cured)),
  ];
}

/** @param {Front} front */
function frontOf({ symptom, errors, kind }) {
  const said = errors.length ? h("pre", { class: "pw-errors", text: errors.join("\n") }) : null;
  return h(
    "div",
    { class: "pw-front" },
    h("span", { class: "lk-quiet", text: kind }),
    h("p", { class: "pw-symptom", text: symptom }),
    said,
  );
}

/** @typedef {ReturnType<typeof makeCard>} Card */

/**
 * @param {Front} front
 * @param {{ model: Model<Traits>, life: Life, palette: Palette }} given
 */
function makeCard(front, { model, life, palette }) {
  const { id } = front;
  /** @returns {Outcomes} */
  const outcomes = () => model.get("outcomes")[id] ?? {};
  /** @type {Set<Form>} */
  const waiting = new Set();
  /** @type {Figure | null} */
  let picture = null;
  const buttons = FORM_NAMES.map((form) =>
    button({ label: FORMS[form].label, onPress: () => ask(form) }),
  );
  const runCured = buttons[1].element;
  const news = h("div", { class: "pw-news", role: "status" });
  const back = h("div", { class: "pw-back" });
  const opened = h("details", {}, h("summary", { text: "What is it?" }), back);
  const results = h("div", { class: "pw-results", hidden: true }, news);
  const runs = h(
    "div",
    { class: "lk-row", hidden: !front.runs || model.onPage },
    ...buttons.map((one) => one.element),
  );
  const about = { class: "pw-card", "aria-label": front.symptom, data: { id } };
  const element = h("article", about, frontOf(front), runs, results, opened);
  // The repaired form can be run after the card was turned, so that the learner guesses first.
  runCured.hidden = true;

  /** @param {Form} form */
  function ask(form) {
    if (waiting.has(form)) return;
    waiting.add(form);
    model.send({ run: id, form });
    show();
  }
  opened.addEventListener("toggle", () => {
    element.toggleAttribute("data-turned", opened.open);
    if (!opened.open) return;
    runCured.hidden = false;
    model.send({ turn: id });
  });

  function show() {
    const behind = model.get("_behind")[id];
    const done = Object.values(outcomes());
    if (behind && !back.childElementCount) back.append(...backOf(behind));
    results.hidden = !done.length && !waiting.size;
    news.replaceChildren(...newsLines(outcomes(), waiting));
    if (done.some(({ losses }) => losses.length > 1)) showLosses();
  }

  function showLosses() {
    if (!picture) {
      picture = lossPicture(life, outcomes, palette);
      results.append(picture.element);
    }
    picture.redraw();
  }

  return {
    id,
    element,
    show,
    redraw: () => picture?.redraw(),
    /**
     * Show the card after the kernel has run a form to its end.
     *
     * @param {Form} form
     */
    ran(form) {
      waiting.delete(form);
      show();
    },
  };
}

// --- the wall ------------------------------------------------------------------------------------

/** @type {Record<string, number>} */
const CARD_KEYS = { ArrowDown: 1, ArrowUp: -1 };

/**
 * Let arrow keys move the focus from card to card, to the same control of the next one.
 *
 * @param {HTMLElement} root
 * @param {Life} life
 */
function walkCards(root, life) {
  life.listen(root, "keydown", (event) => {
    const by = CARD_KEYS[event.key];
    const place = placeOf(event);
    const card = place.closest(".pw-card");
    if (!by || !card || !place.matches(".pw-card > .lk-row > button, summary")) return;
    const control = place.matches("summary") ? "details > summary" : ".lk-row > button:first-child";
    /** @type {NodeListOf<HTMLElement>} */
    const stops = root.querySelectorAll(`.pw-card:not([hidden]) > ${control}`);
    const here = [...stops].findIndex((stop) => card.contains(stop));
    event.preventDefault();
    stops[here + by]?.focus();
  });
}

/**
 * Return the text in which the words of a query are looked for.
 *
 * @param {Front} front
 * @param {Behind} behind
 */
function searchedText({ id, symptom, errors }, { title, told }) {
  const facts = told.map(([, text]) => text);
  return [id, symptom, ...errors, title, ...facts].join(" ").toLowerCase();
}

/**
 * Return the cards of a kind that have all words of the query, and a sentence about them, for a
 * page without a kernel.
 *
 * @param {Model<Traits>} model
 */
function foundOnPage(model) {
  const words = model.get("query").toLowerCase().split(/\s+/).filter(Boolean);
  const shown = [];
  for (const card of model.get("_cards")) {
    const text = searchedText(card, model.get("_behind")[card.id]);
    const ofKind = ["all", card.kind].includes(model.get("kind"));
    if (ofKind && words.every((word) => text.includes(word))) shown.push(card.id);
  }
  const count = `${shown.length} card${shown.length === 1 ? "" : "s"}`;
  const invitation = `${count}. Paste the error message that you have, or a word.`;
  return { shown, sentence: words.length ? `${count} with these words.` : invitation };
}

/**
 * Hide the cards that were not found, and put the best match first.
 *
 * @param {HTMLElement} wall
 * @param {readonly Card[]} cards
 * @param {readonly string[]} shown
 */
function arrange(wall, cards, shown) {
  const places = new Map(shown.map((id, i) => [id, i]));
  /** @param {Card} card */
  const placeOfCard = ({ id }) => places.get(id) ?? shown.length;
  const order = cards.toSorted((a, b) => placeOfCard(a) - placeOfCard(b));
  for (const { id, element } of cards) element.hidden = !places.has(id);
  const elements = order.map(({ element }) => element);
  if (elements.some((element, i) => wall.children[i] !== element)) wall.append(...elements);
}

/** @param {Model<Traits>} model */
function searchField(model) {
  const field = h("input", {
    type: "text",
    "aria-label": "An error message, or words to look for",
    placeholder: "paste an error message, or a word",
  });
  field.value = model.get("query");
  field.addEventListener("input", () => put(model, { query: field.value }));
  return field;
}

/**
 * @param {HTMLElement} root
 * @param {Model<Traits>} model
 * @param {Life} life
 */
function fillWall(root, model, life) {
  const palette = colours(root, life, () => {
    for (const card of cards) card.redraw();
  });
  const cards = model.get("_cards").map((front) => makeCard(front, { model, life, palette }));
  const search = searchField(model);
  const kinds = traitChoice(model, "kind", "Seen first", model.get("_kinds"));
  const words = sentence();
  const wall = h("div", { class: "pw-wall" }, ...cards.map(({ element }) => element));
  root.append(h("div", { class: "lk-row pw-head" }, kinds.element, search), words.element, wall);
  walkCards(root, life);

  function find() {
    const query = model.get("query");
    arrange(wall, cards, model.get("shown"));
    words.say(model.get("sentence"));
    kinds.set(model.get("kind"));
    if (search.value !== query && document.activeElement !== search) search.value = query;
  }
  function showCards() {
    for (const card of cards) card.show();
  }
  /** @param {RanMessage} message */
  function noteRun({ ran, form }) {
    cards.find(({ id }) => id === ran)?.ran(form);
  }

  if (model.onPage) watch(life, model, ["query", "kind"], () => put(model, foundOnPage(model)));
  watch(life, model, ["shown", "sentence", "kind", "query"], find);
  watch(life, model, ["_behind", "outcomes"], showCards);
  listen(life, model, noteRun);
  find();
  showCards();
}

export default view(
  { label: "The wall of faults", kind: "fault-wall", alone: (model) => Boolean(model.onPage) },
  fillWall,
);
