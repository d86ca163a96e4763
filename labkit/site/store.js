// What the pages store in this browser: the theme, and answers to questions and exercises.

const PREFIX = "fp16-lab/";
/** The browser's store; null if it is switched off or full. */
export const store = openStore();

/** Return the browser's store; null if it cannot be written to. */
function openStore() {
  try {
    localStorage.setItem(`${PREFIX}probe`, "1");
    localStorage.removeItem(`${PREFIX}probe`);
    return localStorage;
  } catch {
    return null;
  }
}

/**
 * Return a stored text; null if there is none.
 *
 * @param {string} name
 */
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
    // The store is full: the answer is only on the page.
  }
}

/**
 * Return the stored names that begin with a text.
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
