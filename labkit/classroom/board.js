// The class page: fetches its state each second, and shows it as text.

/**
 * @typedef {object} BoardState
 * @property {Guess[]} guesses
 * @property {QuizResult[]} quiz
 * @property {Leader[]} leaders
 */

/** @typedef {{ id: string, question: string, bars: [answer: string, count: number][] }} Guess */
/** @typedef {{ question: string, before: Share, after: Share }} QuizResult */
/** @typedef {[right: number, answers: number]} Share */
/** @typedef {[place: number, name: string, points: number, outOf: number, bytes: number]} Leader */

const EVERY_MS = 1000;

/**
 * A new element in its parent.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string | number} text
 * @param {Node} parent
 */
function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = String(text);
  parent.appendChild(made);
  return made;
}

/**
 * A row of a table.
 *
 * @param {"th" | "td"} tag
 * @param {readonly (string | number)[]} texts
 * @param {HTMLTableElement} table
 */
function tableRow(tag, texts, table) {
  const row = element("tr", "", table);
  for (const text of texts) element(tag, text, row);
}

/**
 * A part of the page.
 *
 * @param {string} id
 */
function partOfPage(id) {
  const part = document.getElementById(id);
  if (!part) throw new Error(`expected an element with the id ${id}, found none`);
  return part;
}

/** @param {readonly Guess[]} guesses */
function drawGuesses(guesses) {
  const place = partOfPage("guesses");
  place.replaceChildren();
  for (const { id, question, bars } of guesses) {
    const section = element("section", "", place);
    const most = Math.max(...bars.map(([, count]) => count));
    section.id = id;
    element("h2", question, section);
    for (const [answer, count] of bars) {
      const line = element("div", `${answer}: ${count}`, section);
      line.style.borderLeft = `${(30 * count) / most}em solid var(--good)`;
      line.style.paddingLeft = ".5em";
      line.style.margin = ".3em 0";
    }
  }
}

/** @param {readonly QuizResult[]} quiz */
function drawQuiz(quiz) {
  const place = partOfPage("quiz");
  place.replaceChildren();
  if (!quiz.length) return;
  element("h2", "Before and after the course: right answers", place);
  const table = element("table", "", place);
  tableRow("th", ["question", "before", "after"], table);
  for (const { question, before, after } of quiz) {
    tableRow("td", [question, shareText(before), shareText(after)], table);
  }
}

/** @param {Share} share */
function shareText([right, answers]) {
  return answers ? `${right}\u00a0of\u00a0${answers}` : "no answer";
}

/** @param {readonly Leader[]} leaders */
function drawLeaders(leaders) {
  const place = partOfPage("leaders");
  place.replaceChildren();
  if (!leaders.length) return;
  element("h2", "Lesson 12: the most points, of equals the fewest bytes", place);
  const table = element("table", "", place);
  for (const [number, name, points, outOf, bytes] of leaders) {
    const size = `${bytes.toLocaleString("en")} bytes`;
    tableRow("td", [number, name, `${points} of ${outOf}`, size], table);
  }
}

let shown = "";

/** @param {string} text the state, as JSON */
function draw(text) {
  /** @type {BoardState} */
  const { guesses, quiz, leaders } = JSON.parse(text);
  const hasContent = guesses.length || quiz.length || leaders.length;
  partOfPage("state").textContent = hasContent ? "" : "Nobody has answered a question yet.";
  if (text === shown) return;
  shown = text;
  drawGuesses(guesses);
  drawQuiz(quiz);
  drawLeaders(leaders);
}

async function update() {
  try {
    const response = await fetch("state", { cache: "no-store" });
    if (response.ok) draw(await response.text());
    else partOfPage("state").textContent = `The board reports an error: ${response.statusText}`;
  } catch {
    partOfPage("state").textContent = "The board does not answer; this page shows its last state.";
  }
  setTimeout(update, EVERY_MS);
}

update();
