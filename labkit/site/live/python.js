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

/** The Python of a page: a worker that runs one answer after another, and can be stopped. */
export class PagePython {
  /** @type {Settings} */
  #settings;
  /** @type {Worker | null} */
  #worker = null;
  /** @type {Promise<Worker> | null} */
  #starting = null;
  /** @type {Watcher | null} */
  #watcher = null;
  /** @type {((reason: Ended) => void) | null} ends the current run */
  #endRun = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #late;
  #isReady = false;
  // How many workers have ended. A step that began with an earlier one must not continue.
  #ends = 0;

  /** @param {Settings} settings */
  constructor(settings) {
    this.#settings = settings;
  }

  /**
   * Run an answer; reject with `Ended` if it is stopped.
   *
   * @param {() => Promise<object>} prepare the request to the worker
   * @param {number} seconds
   * @param {Watcher} watcher
   * @returns {Promise<Answer>}
   */
  async run(prepare, seconds, watcher) {
    this.#watcher = watcher;
    /** @type {Promise<never>} */
    const ended = new Promise((_, reject) => {
      this.#endRun = reject;
    });
    try {
      return await Promise.race([ended, this.#answerOf(prepare, seconds, watcher)]);
    } finally {
      this.#watcher = null;
      this.#endRun = null;
    }
  }

  /**
   * End the run. If Python had started, the next one starts at once.
   *
   * @param {string} reason
   */
  stop(reason) {
    const wasReady = this.#isReady;
    this.#end();
    this.#endRun?.(new Ended(reason));
    if (wasReady) this.#start();
  }

  /**
   * Return the grade of an answer, when the worker has sent it.
   *
   * @param {() => Promise<object>} prepare the request to the worker
   * @param {number} seconds
   * @param {Watcher} watcher
   * @returns {Promise<Answer>}
   */
  async #answerOf(prepare, seconds, watcher) {
    const since = this.#ends;
    const request = await prepare();
    this.#requireNoEnd(since);
    const worker = await this.#start();
    this.#requireNoEnd(since);
    watcher.ready();
    this.#late = setTimeout(() => {
      this.stop(`Stopped after ${seconds} s: the answer did not end. Does a loop run for ever?`);
    }, seconds * 1000);
    /** @param {string} reason */
    const stopBroken = (reason) => {
      this.stop(`Python ended: ${reason}. The next run starts a new one.`);
    };
    return new Promise((resolve) => {
      // An error outside of the worker's own handler of messages, which reports the others.
      worker.onerror = (event) => stopBroken(event.message);
      worker.onmessage = ({ data }) => {
        if (data.kind === "output") watcher.output(String(data.text));
        if (data.kind === "cut") watcher.output(CUT);
        if (data.kind === "failed") stopBroken(data.reason);
        if (data.kind === "answer") {
          clearTimeout(this.#late);
          resolve(JSON.parse(String(data.answer)));
        }
      };
      worker.postMessage({ kind: "run", letters: LETTERS, request });
    });
  }

  /** Return the worker, which is started once. */
  #start() {
    if (!this.#starting) {
      const since = this.#ends;
      this.#starting = this.#begin();
      // After a failure, the next run tries again.
      this.#starting.catch(() => {
        if (since === this.#ends) this.#end();
      });
    }
    return this.#starting;
  }

  /** Start a worker; return it when Python is loaded. */
  async #begin() {
    const since = this.#ends;
    const response = await fetch(WORKER);
    if (!response.ok) throw new Ended(`${WORKER}: the server answers ${response.status}.`);
    const text = new Blob([await response.text()], { type: "text/javascript" });
    this.#requireNoEnd(since);
    const address = URL.createObjectURL(text);
    const worker = new Worker(address, { type: "module" });
    this.#worker = worker;
    try {
      await this.#loaded(worker);
    } finally {
      URL.revokeObjectURL(address);
    }
    this.#isReady = true;
    return worker;
  }

  /**
   * Let a worker load Python, and resolve when it has.
   *
   * @param {Worker} worker
   */
  #loaded(worker) {
    const start = {
      python: new URL(this.#settings.python, location.href).href,
      modules: new URL(this.#settings.modules, location.href).href,
      memory: MEMORY,
    };
    return new Promise((resolve, reject) => {
      worker.onerror = (event) => reject(new Ended(`Python did not start: ${event.message}.`));
      worker.onmessage = ({ data }) => {
        if (data.kind === "progress") this.#watcher?.progress(Number(data.bytes));
        if (data.kind === "ready") resolve(null);
        if (data.kind === "failed") reject(new Ended(`Python did not start. ${data.reason}`));
      };
      worker.postMessage({ kind: "start", start });
    });
  }

  #end() {
    this.#ends += 1;
    clearTimeout(this.#late);
    this.#worker?.terminate();
    this.#worker = null;
    this.#starting = null;
    this.#isReady = false;
  }

  /** @param {number} since the number of ends when the step began */
  #requireNoEnd(since) {
    if (since !== this.#ends) throw new Ended("Stopped.");
  }
}
