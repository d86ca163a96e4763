// Python in a worker: it starts with the first run and serves the next ones. To stop an answer, the
// page ends its worker.

/**
 * Where the pages of a site find their Python.
 *
 * @typedef {object} Settings
 * @property {string} python The address of Pyodide's folder, relative to the page.
 * @property {string} modules The address of the lab's modules, relative to the page.
 * @property {number} bytes The number of bytes that are loaded in all; 0 if unknown.
 */

/**
 * The grade of an answer (`reply` of labkit.grading.page).
 *
 * @typedef {object} Answer
 * @property {string} html The grade as HTML.
 * @property {string} text The grade as text; its last line is a summary.
 * @property {boolean} solved Whether every check passed.
 * @property {boolean} unsolved Whether the answer is still the starter.
 * @property {string[]} notes Sentences about other cells that the answer uses and that failed.
 */

/**
 * What a page shows during a run.
 *
 * @typedef {object} Watcher
 * @property {(bytes: number) => void} progress Called with the number of bytes that have arrived.
 * @property {() => void} ready Called when Python is loaded and the answer begins to run.
 * @property {(text: string) => void} output Called with each piece of the answer's output.
 */

/** Python ended before the answer was judged: the message says why, for the learner. */
export class Ended extends Error {}

const WORKER = "live/worker.js";
// The number of bytes that Python may use.
const MEMORY = 256 * 2 ** 20;
// The number of characters of output that are shown of a run; CUT follows them.
const LETTERS = 10_000;
const CUT = "\n... The rest of the output is left out: a run shows its first 10 kB.\n";

/**
 * Return the Python of a page: a function that runs answers, and one that stops a run.
 *
 * @param {Settings} settings
 */
export function pythonOf(settings) {
  /** @type {Worker | null} */
  let worker = null;
  /** @type {Promise<Worker> | null} */
  let starting = null;
  /** @type {Watcher | null} */
  let watcher = null;
  /** @type {((reason: Ended) => void) | null} ends the current run */
  let endRun = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let late;
  let isReady = false;
  // How many Pythons have ended. A step that began with an earlier Python must not continue.
  let ends = 0;

  /** @param {number} since the count when the step began */
  function requireNoEnd(since) {
    if (since !== ends) throw new Ended("Stopped.");
  }

  /** Start a worker; return it when Python is loaded. */
  async function begin() {
    const since = ends;
    const response = await fetch(WORKER);
    if (!response.ok) throw new Ended(`${WORKER}: the server answers ${response.status}.`);
    const text = new Blob([await response.text()], { type: "text/javascript" });
    requireNoEnd(since);
    const address = URL.createObjectURL(text);
    const made = new Worker(address, { type: "module" });
    worker = made;
    const start = {
      python: new URL(settings.python, location.href).href,
      modules: new URL(settings.modules, location.href).href,
      memory: MEMORY,
    };
    try {
      await new Promise((resolve, reject) => {
        made.onerror = (event) => reject(new Ended(`Python did not start: ${event.message}.`));
        made.onmessage = ({ data }) => {
          if (data.kind === "progress") watcher?.progress(Number(data.bytes));
          if (data.kind === "ready") resolve(null);
          if (data.kind === "failed") reject(new Ended(`Python did not start. ${data.reason}`));
        };
        made.postMessage({ kind: "start", start });
      });
    } finally {
      URL.revokeObjectURL(address);
    }
    isReady = true;
    return made;
  }

  /** Return the worker, which is started once. */
  function start() {
    if (!starting) {
      const since = ends;
      starting = begin();
      // After a failure, the next run tries again.
      starting.catch(() => {
        if (since === ends) end();
      });
    }
    return starting;
  }

  function end() {
    ends += 1;
    clearTimeout(late);
    worker?.terminate();
    worker = null;
    starting = null;
    isReady = false;
  }

  /**
   * End the run. If Python had started, the next one starts at once.
   *
   * @param {string} reason
   */
  function stop(reason) {
    const wasReady = isReady;
    end();
    endRun?.(new Ended(reason));
    if (wasReady) start();
  }

  /**
   * Run an answer; reject with `Ended` if it is stopped.
   *
   * @param {() => Promise<object>} prepare the request to the worker
   * @param {number} seconds
   * @param {Watcher} shown
   * @returns {Promise<Answer>}
   */
  async function run(prepare, seconds, shown) {
    watcher = shown;
    /** @type {Promise<never>} */
    const ended = new Promise((_, reject) => {
      endRun = reject;
    });
    try {
      return await Promise.race([ended, answerOf(prepare, seconds, shown)]);
    } finally {
      watcher = null;
      endRun = null;
    }
  }

  /**
   * Return the grade of an answer, when the worker has sent it.
   *
   * @param {() => Promise<object>} prepare the request to the worker
   * @param {number} seconds
   * @param {Watcher} shown
   * @returns {Promise<Answer>}
   */
  async function answerOf(prepare, seconds, shown) {
    const since = ends;
    const request = await prepare();
    requireNoEnd(since);
    const python = await start();
    requireNoEnd(since);
    shown.ready();
    late = setTimeout(() => {
      stop(`Stopped after ${seconds} s: the answer did not end. Does a loop run for ever?`);
    }, seconds * 1000);
    /** @param {string} reason */
    const stopBroken = (reason) => stop(`Python ended: ${reason}. The next run starts a new one.`);
    return new Promise((resolve) => {
      // An error outside of the worker's own handler of messages, which reports the others.
      python.onerror = (event) => stopBroken(event.message);
      python.onmessage = ({ data }) => {
        if (data.kind === "output") shown.output(String(data.text));
        if (data.kind === "cut") shown.output(CUT);
        if (data.kind === "failed") stopBroken(data.reason);
        if (data.kind === "answer") {
          clearTimeout(late);
          resolve(JSON.parse(String(data.answer)));
        }
      };
      python.postMessage({ kind: "run", letters: LETTERS, request });
    });
  }

  return { run, stop };
}
