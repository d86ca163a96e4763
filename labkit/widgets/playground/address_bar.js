// The page's address, whose part after the # holds the setting.

/** @import { Life } from "../base/lifetime.js" */

// The least time between two changes of the address. Browsers refuse more frequent ones, such as
// those while a handle is dragged.
const ADDRESS_MS = 150;

/** Return the part of the page's address after its #; "" if it is the id of an element. */
export function addressedSetting() {
  const text = location.hash.slice(1);
  return document.getElementById(text) ? "" : text;
}

/**
 * Return functions that write the address: `write` at once, and `writeSoon` not more often than
 * browsers allow.
 *
 * @param {Life} life
 * @param {() => string} setting returns the part after the #
 */
export function addressBar(life, setting) {
  let lastTime = -Infinity;
  let timer = 0;

  function write() {
    clearTimeout(timer);
    lastTime = performance.now();
    history.replaceState(null, "", `#${setting()}`);
  }

  function writeSoon() {
    clearTimeout(timer);
    const wait = ADDRESS_MS - (performance.now() - lastTime);
    if (wait > 0) {
      timer = window.setTimeout(write, wait);
    } else {
      write();
    }
  }

  life.add(() => clearTimeout(timer));
  return { write, writeSoon };
}
