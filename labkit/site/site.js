// The script of each page of the site: its theme, its widgets, and the answers to its questions,
// which stay in this browser. It is joined into a classic script, since a page that was opened by a
// double click loads no modules.

/**
 * The traits of widgets that hold answers of the reader.
 *
 * @typedef {object} Questions
 * @property {string} [choice] The answer to a prediction.
 * @property {"before" | "after"} [phase] Whether a quiz is before or after the course.
 * @property {Record<string, string>} [answers] The answers to a quiz, by question.
 * @property {Record<string, string>} [earlier] The answers to the quiz before the course.
 * @property {(readonly [number, number])[]} [sketched] Points of a loss that the reader predicted.
 */

import { countAnswers } from "./progress.js";
import { forget, namesOf, read, store, write } from "./store.js";

const system = matchMedia("(prefers-color-scheme: dark)");

/**
 * Return an element that every page has.
 *
 * @param {string} id
 */
function partOfPage(id) {
  const element = document.getElementById(id);
  if (!element) throw new Error(`expected an element with the id ${id}, found none`);
  return element;
}

// --- theme ---------------------------------------------------------------------------------------

function isLight() {
  return document.body.dataset.jpThemeLight === "true";
}

/** @param {boolean} light */
function setTheme(light) {
  document.body.dataset.jpThemeLight = String(light);
  partOfPage("site-theme").textContent = light ? "Dark theme" : "Light theme";
}

function startTheme() {
  const button = partOfPage("site-theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    setTheme(!isLight());
    write("light", String(isLight()));
  });
  system.addEventListener("change", () => {
    if (read("light") === null) setTheme(!system.matches);
  });
  setTheme(isLight());
}

// --- widgets -------------------------------------------------------------------------------------

/** @returns {HTMLElement[]} the elements in which the widgets of the page are shown */
function widgetPlaces() {
  return [...document.querySelectorAll("[data-widget]")].filter(
    (place) => place instanceof HTMLElement,
  );
}

/**
 * Show a widget in its place. One that does not answer without a kernel leaves its picture there.
 *
 * @param {HTMLElement} place
 */
function showWidget(place) {
  const widget = globalThis.labkitWidgets?.[place.dataset.widget ?? ""];
  try {
    const state = JSON.parse(place.querySelector("script")?.textContent ?? "");
    if (widget?.answers(state)) showWithAnswers(widget, state, place);
    else sayItNeedsPython(place);
  } catch (error) {
    console.error(error);
    if (!place.querySelector(".labkit")) sayItNeedsPython(place);
  }
}

/** @param {HTMLElement} place */
function sayItNeedsPython(place) {
  const template = place.querySelector("template");
  if (template) place.append(template.content.cloneNode(true));
}

/**
 * Show a widget with the answers that this browser stores, and store new ones.
 *
 * @param {PageWidget} widget
 * @param {Questions} state
 * @param {HTMLElement} place
 */
function showWithAnswers(widget, state, place) {
  const { phase } = state;
  const key = `answer/${pageName()}/${place.dataset.key}`;
  if (state.choice === "") state.choice = read(key) ?? "";
  if (phase === "after") state.earlier = quizAnswers("before");
  if (phase) state.answers = quizAnswers(phase);
  if (state.sketched) state.sketched = JSON.parse(read(key) ?? "[]");
  const { model } = widget({ ...state }, place);
  model.on("change:choice", () => write(key, model.get("choice")));
  model.on("change:answers", () =>
    write(`answer/quiz/${phase}`, JSON.stringify(model.get("answers"))),
  );
  model.on("change:sketched", () => write(key, JSON.stringify(model.get("sketched"))));
}

/** Return the name of the page, encoded as the index has it: without blanks. */
function pageName() {
  const file = location.pathname.split("/").pop() ?? "";
  return encodeURIComponent(decodeURIComponent(file).replace(/\.html$/, ""));
}

/**
 * @param {string} phase
 * @returns {Record<string, string>}
 */
function quizAnswers(phase) {
  return JSON.parse(read(`answer/quiz/${phase}`) ?? "{}");
}

// --- the index -----------------------------------------------------------------------------------

function forgetAnswers() {
  const question = "Forget all answers, also the code that you wrote for exercises?";
  if (namesOf("answer/code/").length && !confirm(question)) return;
  for (const name of namesOf("answer/")) forget(name);
  countAnswers();
  partOfPage("lessons").scrollIntoView();
}

partOfPage("site-no-storage").hidden = store !== null;
startTheme();
for (const place of widgetPlaces()) showWidget(place);
document.getElementById("site-forget")?.addEventListener("click", forgetAnswers);
countAnswers();
