// The worker that runs a learner's answer in Python, without access to anything else.
//
// The page starts this text as a worker of its own (a blob). So the page's content security policy
// binds it, whatever headers the server sends: no code from text, no other host. When Python is
// loaded, the worker removes everything that reaches the page's server, a store or another worker.
// It names what stays (KEPT), so that it also removes what browsers will add in future.
//
// Messages to the page are plain data, which the page does not trust.

/**
 * What the worker needs to start Python.
 *
 * @typedef {object} Start
 * @property {string} python The address of Pyodide's folder, with a slash at the end.
 * @property {string} modules The address of the lab's modules, a zip archive.
 * @property {number} memory The number of bytes that Python may use.
 */

/**
 * The methods of Pyodide that are used here.
 *
 * @typedef {object} Pyodide
 * @property {(output: { write: (bytes: Uint8Array) => number }) => void} setStdout
 * @property {(output: { write: (bytes: Uint8Array) => number }) => void} setStderr
 * @property {(input: { error: boolean }) => void} setStdin
 * @property {(content: ArrayBuffer, format: string) => void} unpackArchive
 * @property {(source: string) => unknown} runPython
 */

// Names of the language, and those that Pyodide itself needs once it is loaded.
const KEPT = new Set([
  ...["AggregateError", "Array", "ArrayBuffer", "AsyncDisposableStack", "Atomics", "BigInt"],
  ...["BigInt64Array", "BigUint64Array", "Boolean", "DataView", "Date", "DisposableStack"],
  ...["Error", "EvalError", "FinalizationRegistry", "Float16Array", "Float32Array"],
  ...["Float64Array", "Infinity", "Int16Array", "Int32Array", "Int8Array", "Intl", "Iterator"],
  ...["JSON", "Map", "Math", "NaN", "Number", "Object", "Promise", "Proxy", "RangeError"],
  ...["ReferenceError", "Reflect", "RegExp", "Set", "String", "SuppressedError", "Symbol"],
  ...["SyntaxError", "TypeError", "URIError", "Uint16Array", "Uint32Array", "Uint8Array"],
  ...["Uint8ClampedArray", "WeakMap", "WeakRef", "WeakSet", "WebAssembly", "constructor"],
  ...["__defineGetter__", "__defineSetter__", "__lookupGetter__", "__lookupSetter__"],
  ...["__proto__", "decodeURI", "decodeURIComponent", "encodeURI", "encodeURIComponent"],
  ...["escape", "unescape", "globalThis", "self", "hasOwnProperty", "isFinite", "isNaN"],
  ...["isPrototypeOf", "parseFloat", "parseInt", "propertyIsEnumerable", "toLocaleString"],
  ...["toString", "undefined", "valueOf"],
  ...["AbortController", "AbortSignal", "DOMException", "Event", "EventTarget", "MessageChannel"],
  ...["MessageEvent", "MessagePort", "TextDecoder", "TextEncoder", "clearTimeout", "console"],
  ...["crypto", "performance", "queueMicrotask", "setTimeout", "structuredClone"],
]);
// The bytes of a page of WebAssembly's memory.
const PAGE = 65536;

/** @type {(message: object) => void} */
const post = self.postMessage.bind(self);
const decoder = new TextDecoder();
const toJson = JSON.stringify;

// The number of characters of output that the run may still show.
let letters = 0;
/** @type {((request: string) => string) | undefined} judges a request, once Python is loaded */
let reply;

/**
 * Limit the size of WebAssembly's memory. Python raises MemoryError at the limit.
 *
 * @param {number} bytes
 */
function limitMemory(bytes) {
  const { grow } = WebAssembly.Memory.prototype;
  WebAssembly.Memory.prototype.grow = function (pages) {
    if (this.buffer.byteLength + Number(pages) * PAGE > bytes) {
      throw new RangeError(`expected at most ${bytes} bytes of memory`);
    }
    return grow.call(this, pages);
  };
}

/** Report how many bytes arrive through `fetch`. */
function countBytes() {
  const plain = globalThis.fetch;
  let loaded = 0;
  globalThis.fetch = async (resource, options) => {
    const response = await plain(resource, options);
    if (!response.body) return response;
    const counted = new TransformStream({
      /**
       * @param {Uint8Array} chunk
       * @param {TransformStreamDefaultController<Uint8Array>} controller
       */
      transform(chunk, controller) {
        loaded += chunk.byteLength;
        post({ kind: "progress", bytes: loaded });
        controller.enqueue(chunk);
      },
    });
    const { status, statusText, headers } = response;
    return new Response(response.body.pipeThrough(counted), { status, statusText, headers });
  };
}

/**
 * Show output of Python, up to the limit of a run.
 *
 * @param {Uint8Array} bytes
 */
function show(bytes) {
  if (letters > 0) {
    const text = decoder.decode(bytes, { stream: true });
    post({ kind: "output", text: text.slice(0, letters) });
    letters -= text.length;
    if (letters <= 0) post({ kind: "cut" });
  }
  return bytes.length;
}

/** Make it impossible to create code from text, even if no policy forbids it. */
function removeEval() {
  const kinds = [() => {}, async () => {}, function* () {}, async function* () {}];
  const refuse = () => {
    throw new TypeError("expected a function, got text: no code is made from text here");
  };
  for (const kind of kinds) {
    const { prototype } = Object.getPrototypeOf(kind).constructor;
    Object.defineProperty(prototype, "constructor", { value: refuse });
  }
  const timeout = globalThis.setTimeout;
  const later = (/** @type {unknown} */ callback, /** @type {number} */ after) =>
    typeof callback === "function" ? timeout(() => callback(), after) : refuse();
  Object.defineProperty(globalThis, "setTimeout", { value: later });
}

/**
 * Remove from the worker what KEPT does not name.
 *
 * @returns the names of functions and objects that could not be removed
 */
function removeTheRest() {
  const left = [];
  const usable = ["function", "object"];
  for (let place = globalThis; place; place = Object.getPrototypeOf(place)) {
    for (const name of Object.getOwnPropertyNames(place)) {
      if (KEPT.has(name)) continue;
      const gone = Reflect.deleteProperty(place, name);
      if (!gone && usable.includes(typeof Reflect.get(place, name))) left.push(name);
    }
  }
  return left;
}

/**
 * Load Python and the lab's modules, then close the worker off.
 *
 * @param {Start} start
 */
async function load(start) {
  limitMemory(start.memory);
  countBytes();
  const { loadPyodide } = await import(`${start.python}pyodide.mjs`);
  const lab = fetch(start.modules).then((response) => {
    if (!response.ok) throw new Error(`${start.modules}: the server answers ${response.status}`);
    return response.arrayBuffer();
  });
  /** @type {Pyodide} */
  const python = await loadPyodide({ indexURL: start.python });
  python.unpackArchive(await lab, "zip");
  python.setStdin({ error: true });
  python.setStdout({ write: show });
  python.setStderr({ write: show });
  const answer = /** @type {(request: string) => string} */ (
    python.runPython("from labkit.grading.page import prepare, reply\nprepare()\nreply")
  );
  removeEval();
  const left = removeTheRest();
  if (left.length) throw new Error(`this browser cannot remove ${left.join(", ")}`);
  reply = answer;
}

self.onmessage = async ({ data }) => {
  try {
    if (data.kind === "start") {
      letters = 0;
      await load(data.start);
      post({ kind: "ready" });
    } else if (reply) {
      letters = data.letters;
      // Without new bytes, the decoder forgets a character that the run before left unfinished.
      decoder.decode();
      post({ kind: "answer", answer: reply(toJson(data.request)) });
    }
  } catch (error) {
    post({ kind: "failed", reason: String(error) });
  } finally {
    // Between two runs, Python says only what objects of the last one say when they are freed.
    letters = 0;
  }
};
