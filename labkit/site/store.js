// What the pages keep in this browser: the theme, answers to questions and to exercises.

const PREFIX = "fp16-lab/";
/** The browser's store; null where it is switched off, or full. */
export const store = openStore();

/** Try the store, and return it. */
function openStore() {
  try {
    localStorage.setItem(`${PREFIX}probe`, "1");
    localStorage.removeItem(`${PREFIX}probe`);
    return localStorage;
  } catch {
    return null;
  }
}

/** @param {string} name */
export function read(name) {
  return store?.getItem(PREFIX + name) ?? null;
}

/**
 * @param {string} name
 * @param {string} value
 */
export function write(name, value) {
  try {
    store?.setItem(PREFIX + name, value);
  } catch {
    // full: the answer stays on the page
  }
}

/**
 * The names of what is kept, that begin so.
 *
 * @param {string} beginning
 */
export function namesOf(beginning) {
  return Object.keys(store ?? {})
    .filter((name) => name.startsWith(PREFIX + beginning))
    .map((name) => name.slice(PREFIX.length));
}

/** @param {string} name */
export function forget(name) {
  store?.removeItem(PREFIX + name);
}
