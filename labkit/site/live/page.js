// Exercises that a page checks: an editor, the checks, hints, and the answers as notebooks.

import { countAnswers, isSolved } from "../progress.js";
import { forget, namesOf, read, write } from "../store.js";
import { archiveOf } from "./archive.js";
import { editorIn } from "./editor.js";
import { pictureOf } from "./picture.js";
import { Ended, pythonOf } from "./python.js";

/**
 * What a page knows of the site's exercises.
 *
 * @typedef {import("./python.js").Settings & { lessons: Record<string, string[]> }} Site
 */

/** @typedef {{ hints: string[] }} Form */

const SECONDS = 10;
const KEYS =
  "Tab indents. Esc, then Tab leaves the editor. Ctrl+Enter runs the checks. " +
  "What you write stays in this browser.";
const FROM_A_FILE =
  "This page was opened from a file, and a browser runs no Python there. Serve the folder: " +
  "`labkit site FOLDER --serve`, or `python -m http.server` in it, and open the address " +
  "that it prints.";

const site = siteSettings();
const python = site && pythonOf(site);

/** @returns {Site | null} */
function siteSettings() {
  const text = document.getElementById("site-live")?.textContent;
  return text ? JSON.parse(text) : null;
}

/**
 * A new element in its parent.
 *
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Node} parent
 * @param {Tag} tag
 * @param {string} [text]
 * @param {string} [kind] its class
 */
function add(parent, tag, text = "", kind = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (kind) made.className = kind;
  parent.appendChild(made);
  return made;
}

/**
 * @param {Node} parent
 * @param {string} text
 * @param {() => void} act
 */
function addButton(parent, text, act) {
  const button = add(parent, "button", text, "site-button");
  button.type = "button";
  button.addEventListener("click", act);
  return button;
}

/**
 * A file of the site; from a server only.
 *
 * @param {string} address
 */
async function text(address) {
  const response = await fetch(address);
  if (!response.ok) throw new Ended(`${address}: the server answers ${response.status}.`);
  return response.text();
}

/** @param {string} id of an exercise */
function lessonOf(id) {
  const found = Object.entries(site?.lessons ?? {}).find(([, ids]) => ids.includes(id));
  if (!found) throw new Error(`expected the lesson of ${id}, found none`);
  return found[0];
}

/**
 * The code that is kept for the exercises of a lesson, by id.
 *
 * @param {string} lesson
 */
function answersOf(lesson) {
  /** @type {Record<string, string>} */
  const answers = {};
  for (const id of site?.lessons[lesson] ?? []) {
    const code = read(`answer/code/${id}`);
    if (code !== null) answers[id] = code;
  }
  return answers;
}

/** @param {unknown} error */
function sentence(error) {
  if (error instanceof Ended) return error.message;
  return `The page could not load what it needs: ${error}. Is the server still there?`;
}

// --- an exercise ---------------------------------------------------------------------------------

/**
 * Turn the place below an exercise's cell into an editor with its checks.
 *
 * @param {HTMLElement} place
 */
function showExercise(place) {
  const id = place.dataset.exercise ?? "";
  const name = place.dataset.title ?? id;
  const starter = JSON.parse(place.querySelector("script")?.textContent ?? '""');
  place.replaceChildren();
  place.closest(".jp-Cell")?.classList.add("site-has-editor");

  const solved = add(place, "p", "", "site-live-solved");
  const keysId = `keys-${id}`;
  const editor = editorIn(place, `Your answer to: ${name}`, keysId, run);
  const keys = add(place, "p", KEYS, "site-live-keys");
  keys.id = keysId;
  const bar = add(place, "div", "", "site-live-bar");
  const runButton = addButton(bar, "Run the checks", run);
  runButton.classList.add("site-live-run");
  const stopButton = addButton(bar, "Stop", () => python?.stop("Stopped."));
  stopButton.disabled = true;
  addButton(bar, "Hint", hint);
  addButton(bar, "Reset", () => editor.replace(starter));
  const seconds = secondsIn(bar);
  const status = add(place, "p", "", "site-live-status");
  status.setAttribute("role", "status");
  const bytes = add(place, "progress");
  bytes.hidden = true;
  bytes.setAttribute("aria-label", "Python is loading");
  const hints = add(place, "ol", "", "site-live-hints");
  const output = add(place, "pre", "", "site-text");
  output.hidden = true;
  output.tabIndex = 0;
  output.setAttribute("aria-label", "Output");
  const picture = add(place, "div", "", "site-live-picture");
  /** @type {Promise<string> | null} */
  let form = null;

  editor.begin(read(`answer/code/${id}`) ?? starter);
  editor.area.addEventListener("input", keep);
  /** Keep what is written; the starter needs no place. */
  function keep() {
    if (editor.area.value === starter) forget(`answer/code/${id}`);
    else write(`answer/code/${id}`, editor.area.value);
    countAnswers();
    showDownload();
  }
  const sayIfSolved = () => {
    solved.textContent = isSolved(id) ? "✓ You have solved this exercise." : "";
  };
  sayIfSolved();

  const formOf = () => {
    form ??= text(`live/${id}.json`);
    form.catch(() => {
      form = null;
    });
    return form;
  };

  async function hint() {
    if (location.protocol === "file:") {
      status.textContent = FROM_A_FILE;
      return;
    }
    try {
      /** @type {Form} */
      const { hints: all } = JSON.parse(await formOf());
      const next = all[hints.children.length];
      if (next) add(hints, "li", next);
      const left = all.length - hints.children.length;
      status.textContent = left
        ? `Hint ${hints.children.length} of ${all.length}. Press Hint for the next one.`
        : `All ${all.length} hints are shown.`;
    } catch (error) {
      status.textContent = sentence(error);
    }
  }

  /** @param {boolean} is */
  function running(is) {
    for (const each of document.querySelectorAll(".site-live-run")) {
      if (each instanceof HTMLButtonElement) each.disabled = is;
    }
    stopButton.disabled = !is;
    if (!is) bytes.hidden = true;
  }

  async function run() {
    if (location.protocol === "file:") {
      status.textContent = FROM_A_FILE;
      return;
    }
    if (!python || runButton.disabled) return;
    running(true);
    output.textContent = "";
    output.hidden = true;
    picture.replaceChildren();
    status.textContent = "Python is loading ...";
    try {
      const answer = await python.run(prepare, Number(seconds.value) || SECONDS, {
        progress: showBytes,
        ready: () => {
          bytes.hidden = true;
          status.textContent = "Your answer is running ...";
        },
        output: (words) => {
          output.hidden = false;
          output.append(words);
        },
      });
      showAnswer(answer);
    } catch (error) {
      status.textContent = sentence(error);
    } finally {
      running(false);
    }
  }

  /** What the worker is asked: the notebook of the lesson, with the reader's answers. */
  async function prepare() {
    const lesson = lessonOf(id);
    const notebook = JSON.parse(await text(`live/${lesson}.ipynb`));
    const answers = { ...answersOf(lesson), [id]: editor.area.value };
    return { form: await formOf(), notebook, answers };
  }

  /** @param {number} loaded */
  function showBytes(loaded) {
    const all = site?.bytes ?? 0;
    const millions = (/** @type {number} */ count) => (count / 1e6).toFixed(1);
    bytes.hidden = false;
    if (all) {
      bytes.max = all;
      bytes.value = Math.min(loaded, all);
    }
    const of = all ? ` of ${millions(all)}` : "";
    status.textContent = `Python is loading: ${millions(loaded)}${of} MB ...`;
  }

  /** @param {import("./python.js").Answer} answer */
  function showAnswer(answer) {
    for (const note of answer.notes) add(picture, "p", String(note), "site-live-note");
    picture.append(pictureOf(String(answer.html)));
    if (answer.solved === true) {
      write(`answer/solved/${id}`, "1");
      keep();
    }
    sayIfSolved();
    const lines = String(answer.text).trim().split("\n");
    status.textContent = (lines[lines.length - 1] ?? "").trim();
  }
}

/**
 * How long an answer may run, which the reader sets for all exercises.
 *
 * @param {Node} bar
 */
function secondsIn(bar) {
  const label = add(bar, "label", "Stop after ");
  const input = add(label, "input");
  input.type = "number";
  input.min = "1";
  input.max = "600";
  input.className = "site-live-seconds";
  input.value = read("seconds") ?? String(SECONDS);
  label.append(" s");
  input.addEventListener("change", () => {
    write("seconds", input.value);
    for (const other of document.querySelectorAll(".site-live-seconds")) {
      if (other instanceof HTMLInputElement) other.value = input.value;
    }
  });
  return input;
}

// --- all answers as notebooks --------------------------------------------------------------------

/** Show the button that downloads answers where there are some. */
function showDownload() {
  const place = document.getElementById("site-download");
  if (place) place.hidden = namesOf("answer/code/").length === 0;
}

/** Download the notebooks of all lessons that an answer was written for, as one archive. */
async function download() {
  const said = document.getElementById("site-download-status");
  /** @param {string} words */
  const say = (words) => {
    if (said) said.textContent = words;
  };
  if (location.protocol === "file:") {
    say(FROM_A_FILE);
    return;
  }
  try {
    /** @type {Record<string, string>} */
    const texts = {};
    for (const lesson of Object.keys(site?.lessons ?? {})) {
      const answers = answersOf(lesson);
      if (!Object.keys(answers).length) continue;
      const notebook = JSON.parse(await text(`live/${lesson}.ipynb`));
      putInto(notebook, answers);
      texts[`${lesson}.ipynb`] = `${JSON.stringify(notebook, null, 1)}\n`;
    }
    const link = document.createElement("a");
    link.href = URL.createObjectURL(archiveOf(texts));
    link.download = "my-answers.zip";
    link.click();
    say(`my-answers.zip has ${Object.keys(texts).length} notebooks. Hand it in as it is.`);
  } catch (error) {
    say(sentence(error));
  }
}

/**
 * Write answers into the cells of a notebook.
 *
 * @param {{ cells: { source: string | string[], metadata: { tags?: string[] } }[] }} notebook
 * @param {Record<string, string>} answers
 */
function putInto(notebook, answers) {
  for (const [id, answer] of Object.entries(answers)) {
    const cell = notebook.cells.find((each) => each.metadata.tags?.includes(`exercise-${id}`));
    if (cell) cell.source = answer;
  }
}

for (const place of document.querySelectorAll("[data-exercise]")) {
  if (place instanceof HTMLElement) showExercise(place);
}
document.getElementById("site-download-button")?.addEventListener("click", download);
showDownload();
