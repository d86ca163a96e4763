// Exercises that a page checks: an editor, the checks, hints, and the answers as notebooks.

import { countAnswers, isSolved } from "../progress.js";
import { forget, namesOf, read, write } from "../store.js";
import { archiveOf } from "./archive.js";
import { editorIn } from "./editor.js";
import { pictureOf } from "./picture.js";
import { Ended, PagePython } from "./python.js";

/**
 * The settings of the site, which each of its pages holds.
 *
 * @typedef {import("./python.js").Settings & { lessons: Record<string, string[]> }} Site
 */

/** @typedef {{ hints: string[] }} Form an exercise, without its solution; more is for Python */

// The time limit of a run, unless the reader sets another one.
const SECONDS = 10;
// The time after which the address of a download is given up.
const REVOKE_MS = 60_000;
const KEYS =
  "Tab indents. Esc, then Tab leaves the editor. Ctrl+Enter runs the checks. " +
  "What you write stays in this browser.";
const FROM_A_FILE =
  "This page was opened from a file, and a browser runs no Python there. Serve the folder: " +
  "`labkit site FOLDER --serve`, or `python -m http.server` in it, and open the address " +
  "that it prints.";

const site = siteSettings();
const python = site && new PagePython(site);

/** @returns {Site | null} */
function siteSettings() {
  const text = document.getElementById("site-live")?.textContent;
  return text ? JSON.parse(text) : null;
}

/**
 * Append a new element to its parent, and return it.
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
 * Return a file of the site as text. A page that was opened from a file cannot read one.
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
 * The answers to the exercises of a lesson that this browser stores, by id.
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

/**
 * Return the message for the reader about an error.
 *
 * @param {unknown} error
 */
function sentence(error) {
  if (error instanceof Ended) return error.message;
  return `The page could not load what it needs: ${error}. Is the server still there?`;
}

// --- an exercise ---------------------------------------------------------------------------------

/** The editor of an exercise below its cell, with its checks and hints. */
class Exercise {
  /** @param {HTMLElement} place the element that the page has for it */
  constructor(place) {
    this.id = place.dataset.exercise ?? "";
    /** @type {string} the text of the cell as it was handed out */
    this.starter = JSON.parse(place.querySelector("script")?.textContent ?? '""');
    /** @type {Promise<string> | null} the exercise's file, once it was requested */
    this.form = null;
    place.replaceChildren();
    place.closest(".jp-Cell")?.classList.add("site-has-editor");

    this.solved = add(place, "p", "", "site-live-solved");
    const keysId = `keys-${this.id}`;
    const label = `Your answer to: ${place.dataset.title ?? this.id}`;
    this.editor = editorIn(place, label, keysId, () => this.run());
    add(place, "p", KEYS, "site-live-keys").id = keysId;

    const bar = add(place, "div", "", "site-live-bar");
    this.runButton = addButton(bar, "Run the checks", () => this.run());
    this.runButton.classList.add("site-live-run");
    this.stopButton = addButton(bar, "Stop", () => python?.stop("Stopped."));
    this.stopButton.disabled = true;
    addButton(bar, "Hint", () => this.showHint());
    addButton(bar, "Reset", () => this.editor.replace(this.starter));
    this.seconds = secondsIn(bar);

    this.status = add(place, "p", "", "site-live-status");
    this.status.setAttribute("role", "status");
    this.bytes = add(place, "progress");
    this.bytes.hidden = true;
    this.bytes.setAttribute("aria-label", "Python is loading");
    this.hints = add(place, "ol", "", "site-live-hints");
    this.output = add(place, "pre", "", "site-text");
    this.output.hidden = true;
    this.output.tabIndex = 0;
    this.output.setAttribute("aria-label", "Output");
    this.picture = add(place, "div", "", "site-live-picture");

    this.editor.begin(read(`answer/code/${this.id}`) ?? this.starter);
    this.editor.area.addEventListener("input", () => this.store());
    this.showSolved();
  }

  /** Store the answer in this browser; the starter needs no place there. */
  store() {
    const code = this.editor.area.value;
    if (code === this.starter) forget(`answer/code/${this.id}`);
    else write(`answer/code/${this.id}`, code);
    countAnswers();
    showDownload();
  }

  showSolved() {
    this.solved.textContent = isSolved(this.id) ? "✓ You have solved this exercise." : "";
  }

  /** The exercise's file, as text. A request that failed is repeated by the next call. */
  loadForm() {
    this.form ??= text(`live/${this.id}.json`);
    this.form.catch(() => {
      this.form = null;
    });
    return this.form;
  }

  async showHint() {
    if (location.protocol === "file:") {
      this.status.textContent = FROM_A_FILE;
      return;
    }
    try {
      /** @type {Form} */
      const { hints } = JSON.parse(await this.loadForm());
      const next = hints[this.hints.children.length];
      if (next) add(this.hints, "li", next);
      const count = this.hints.children.length;
      this.status.textContent =
        count < hints.length
          ? `Hint ${count} of ${hints.length}. Press Hint for the next one.`
          : `All ${hints.length} hints are shown.`;
    } catch (error) {
      this.status.textContent = sentence(error);
    }
  }

  async run() {
    if (location.protocol === "file:") {
      this.status.textContent = FROM_A_FILE;
      return;
    }
    if (!python || this.runButton.disabled) return;
    this.setRunning(true);
    this.output.textContent = "";
    this.output.hidden = true;
    this.picture.replaceChildren();
    this.status.textContent = "Python is loading ...";
    try {
      const answer = await python.run(() => this.request(), timeLimitOf(this.seconds), {
        progress: (loaded) => this.showBytes(loaded),
        ready: () => {
          this.bytes.hidden = true;
          this.status.textContent = "Your answer is running ...";
        },
        output: (words) => {
          this.output.hidden = false;
          this.output.append(words);
        },
      });
      this.showAnswer(answer);
    } catch (error) {
      this.status.textContent = sentence(error);
    } finally {
      this.setRunning(false);
    }
  }

  /**
   * Show that a run began or ended. The page has one Python, so all exercises wait for it.
   *
   * @param {boolean} isRunning
   */
  setRunning(isRunning) {
    for (const button of document.querySelectorAll(".site-live-run")) {
      if (button instanceof HTMLButtonElement) button.disabled = isRunning;
    }
    this.stopButton.disabled = !isRunning;
    if (!isRunning) this.bytes.hidden = true;
  }

  /** The request to the worker: the notebook of the lesson, with the reader's answers. */
  async request() {
    const lesson = lessonOf(this.id);
    const notebook = JSON.parse(await text(`live/${lesson}.ipynb`));
    const answers = { ...answersOf(lesson), [this.id]: this.editor.area.value };
    return { form: await this.loadForm(), notebook, answers };
  }

  /** @param {number} loaded how many bytes have arrived */
  showBytes(loaded) {
    const total = site?.bytes ?? 0;
    this.bytes.hidden = false;
    let counted = `${megabytes(loaded)} MB`;
    if (total) {
      this.bytes.max = total;
      this.bytes.value = Math.min(loaded, total);
      counted = `${megabytes(loaded)} of ${megabytes(total)} MB`;
    }
    this.status.textContent = `Python is loading: ${counted} ...`;
  }

  /** @param {import("./python.js").Answer} answer */
  showAnswer(answer) {
    for (const note of answer.notes) add(this.picture, "p", String(note), "site-live-note");
    this.picture.append(pictureOf(String(answer.html)));
    if (answer.solved === true) {
      write(`answer/solved/${this.id}`, "1");
      this.store();
    }
    this.showSolved();
    // the last line of the text is its summary
    const lines = String(answer.text).trim().split("\n");
    this.status.textContent = (lines[lines.length - 1] ?? "").trim();
  }
}

/** @param {number} bytes */
function megabytes(bytes) {
  return (bytes / 1e6).toFixed(1);
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

/**
 * Return the time limit that a field asks for, within the bounds of the field, in seconds.
 *
 * @param {HTMLInputElement} input
 */
function timeLimitOf(input) {
  const asked = Number(input.value) || SECONDS;
  return Math.min(Math.max(asked, Number(input.min)), Number(input.max));
}

// --- all answers as notebooks --------------------------------------------------------------------

/** Show the button that downloads answers, if this browser has any. */
function showDownload() {
  const place = document.getElementById("site-download");
  if (place) place.hidden = namesOf("answer/code/").length === 0;
}

/** Download the notebooks of all lessons that have an answer, as one archive. */
async function download() {
  const status = document.getElementById("site-download-status");
  /** @param {string} words */
  const say = (words) => {
    if (status) status.textContent = words;
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
    offer(archiveOf(texts), "my-answers.zip");
    const count = Object.keys(texts).length;
    const notebooks = count === 1 ? "1 notebook" : `${count} notebooks`;
    say(`my-answers.zip has ${notebooks}. Hand it in as it is.`);
  } catch (error) {
    say(sentence(error));
  }
}

/**
 * Let the browser save a file.
 *
 * @param {Blob} content
 * @param {string} name
 */
function offer(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content);
  link.download = name;
  link.click();
  // The download has begun, and the page must not keep the file in memory. Some browsers need the
  // address until the click has been handled.
  setTimeout(() => URL.revokeObjectURL(link.href), REVOKE_MS);
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
  if (place instanceof HTMLElement) new Exercise(place);
}
document.getElementById("site-download-button")?.addEventListener("click", download);
showDownload();
