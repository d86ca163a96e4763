// Python in a worker: it starts with the first run, is kept warm, and ends where an answer does not.

/**
 * What the pages of a site know of their Python.
 *
 * @typedef {object} Settings
 * @property {string} python the folder of Pyodide
 * @property {string} modules the lab's modules
 * @property {number} bytes of what is loaded, in all; 0 where unknown
 */

/**
 * @typedef {object} Answer
 * @property {string} html
 * @property {string} text
 * @property {boolean} solved
 * @property {boolean} unsolved
 * @property {string[]} notes
 */

/**
 * What a run shows while it lasts.
 *
 * @typedef {object} Watcher
 * @property {(bytes: number) => void} progress
 * @property {() => void} ready
 * @property {(text: string) => void} output
 */

/** Python ended before the answer was judged: the message says why, for the learner. */
export class Ended extends Error {}

const WORKER = "live/worker.js";
const MEMORY = 256 * 2 ** 20;
const LETTERS = 10_000; // of output
const CUT = "\n... The rest of the output is left out: a run shows its first 10 kB.\n";

/**
 * The Python of a page.
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
  /** @type {((reason: Ended) => void) | null} ends the run that waits */
  let endRun = null;
  let isReady = false;

  async function begin() {
    const response = await fetch(WORKER);
    if (!response.ok) throw new Ended(`${WORKER}: the server answers ${response.status}.`);
    const text = new Blob([await response.text()], { type: "text/javascript" });
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
        endRun = reject;
        made.postMessage({ kind: "start", start });
      });
    } catch (error) {
      end();
      throw error;
    } finally {
      URL.revokeObjectURL(address);
    }
    isReady = true;
    return made;
  }

  function start() {
    starting ??= begin();
    starting.catch(() => {
      starting = null;
    });
    return starting;
  }

  function end() {
    worker?.terminate();
    worker = null;
    starting = null;
    endRun = null;
    isReady = false;
  }

  /**
   * End the run. A Python that had started is followed by the next one at once.
   *
   * @param {string} reason
   */
  function stop(reason) {
    const wasReady = isReady;
    const refuse = endRun;
    end();
    refuse?.(new Ended(reason));
    if (wasReady) start().catch(() => {});
  }

  /**
   * @param {object} request
   * @param {number} seconds
   * @param {Watcher} shown
   * @returns {Promise<Answer>}
   */
  async function run(request, seconds, shown) {
    watcher = shown;
    try {
      const python = await start();
      shown.ready();
      return await answerOf(python, request, seconds, shown);
    } finally {
      watcher = null;
      endRun = null;
    }
  }

  /**
   * @param {Worker} python
   * @param {object} request
   * @param {number} seconds
   * @param {Watcher} shown
   * @returns {Promise<Answer>}
   */
  async function answerOf(python, request, seconds, shown) {
    const late = setTimeout(() => {
      stop(`Stopped after ${seconds} s: the answer did not end. Does a loop go on for ever?`);
    }, seconds * 1000);
    try {
      return await new Promise((resolve, reject) => {
        endRun = reject;
        python.onmessage = ({ data }) => {
          if (data.kind === "output") shown.output(String(data.text));
          if (data.kind === "cut") shown.output(CUT);
          if (data.kind === "answer") resolve(JSON.parse(String(data.answer)));
          if (data.kind === "failed") {
            stop(`Python ended: ${data.reason}. The next run starts a new one.`);
          }
        };
        python.postMessage({ kind: "run", letters: LETTERS, request });
      });
    } finally {
      clearTimeout(late);
    }
  }

  return { run, stop };
}
