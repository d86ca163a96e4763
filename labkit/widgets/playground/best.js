// The playground's exercise: find settings that train the targets with few bytes for each weight.
// The best ones are stored in this browser, as addresses.

import { button } from "../base/controls.js";
import { h } from "../base/elements.js";
import { decimal } from "../base/number_words.js";
import { addressOf, readAddress } from "./address.js";
import { bytesPerWeight } from "./memory.js";
import { latestLoss } from "./outcome.js";
import { problemNamed } from "./problems.js";
import { RECIPE_PRESETS } from "./recipe.js";

/** @import { Setting } from "./address.js" */
/** @import { Method, Recipe } from "./recipe.js" */

/**
 * A setting that reached the goal.
 *
 * @typedef {object} Entry
 * @property {Setting} setting
 * @property {number} bytes The bytes that the training keeps for each weight.
 * @property {number} loss The loss that it reached.
 */

export const EXERCISE_SCENE = "targets";
export const EXERCISE_STEPS = 200;
// The loss to reach, as a share of the first one.
const GOAL = 0.5;
const MOST_ENTRIES = 5;
const BEST_KEY = "fp16-lab/playground-best";

/**
 * Return whether a training has reached the exercise's goal.
 *
 * @param {readonly number[]} losses
 */
export function reachesGoal(losses) {
  return losses.length >= EXERCISE_STEPS && latestLoss(losses) <= GOAL * losses[0];
}

/**
 * Return the entry of a setting and its loss.
 *
 * @param {Setting} setting of the exercise's scene
 * @param {number} loss
 * @returns {Entry}
 */
export function entryOf(setting, loss) {
  const recipe = /** @type {Recipe} */ ({ ...RECIPE_PRESETS[setting.preset], ...setting.changes });
  const method = /** @type {Method} */ ({
    ...problemNamed(EXERCISE_SCENE).method,
    ...setting.method,
  });
  return { setting, bytes: bytesPerWeight(recipe, method).total, loss };
}

/**
 * Return a list with one more entry, by bytes and then by loss. It replaces one with the same
 * setting apart from the seed.
 *
 * @param {readonly Entry[]} entries
 * @param {Entry} added
 */
export function withEntry(entries, added) {
  /** @param {Entry} entry */
  const address = ({ setting }) => addressOf({ ...setting, seed: 0 });
  const others = entries.filter((entry) => address(entry) !== address(added));
  const all = [...others, added].sort((a, b) => a.bytes - b.bytes || a.loss - b.loss);
  return all.slice(0, MOST_ENTRIES);
}

/**
 * Return the entries in a stored text. Rows that are not valid are left out.
 *
 * @param {string | null} json as `writtenEntries` returns it
 * @returns {Entry[]}
 */
export function readEntries(json) {
  /** @type {unknown} */
  let rows = [];
  try {
    rows = JSON.parse(json ?? "[]");
  } catch {
    return [];
  }
  if (!Array.isArray(rows)) return [];
  return rows.flatMap((row) => {
    const { address, loss } = Object(row);
    if (typeof address !== "string" || typeof loss !== "number") return [];
    const { setting, ignored } = readAddress(address);
    if (ignored.length || setting.scene !== EXERCISE_SCENE) return [];
    return [entryOf(setting, loss)];
  });
}

/**
 * Return entries as JSON.
 *
 * @param {readonly Entry[]} entries
 */
function writtenEntries(entries) {
  return JSON.stringify(
    entries.map(({ setting, loss }) => ({ address: addressOf(setting), loss })),
  );
}

/**
 * Return a setting as text: its preset, and the changes.
 *
 * @param {Setting} setting
 */
function wordsOf({ preset, changes, method }) {
  const changed = Object.entries({ ...changes, ...method }).map(([name, value]) => {
    return `${name.replace("_", " ")} ${value}`;
  });
  return [preset, ...changed].join(", ");
}

/**
 * Return the browser's storage; null if the browser does not allow it.
 *
 * @returns {Storage | null}
 */
function browserStore() {
  try {
    return localStorage;
  } catch {
    return null;
  }
}

/**
 * Return the text of the exercise, with the best settings that are stored in this browser.
 *
 * @param {(setting: Setting) => void} take shows a setting
 */
export function bestList(take) {
  const store = browserStore();
  let entries = readEntries(store?.getItem(BEST_KEY) ?? null);
  const list = h("ol", { class: "pg-best" });
  const none = h("p", { class: "lk-quiet", text: "None yet." });
  const element = h(
    "details",
    { class: "pg-exercise" },
    h("summary", { text: "Exercise: few bytes for each weight" }),
    h("p", {
      text:
        "Find settings that train this network with the fewest bytes for each weight. " +
        "A run counts if no knob is turned after its start, and its loss at step " +
        `${EXERCISE_STEPS} is at most half of its first one. Your best settings stay in this ` +
        "browser:",
    }),
    none,
    list,
  );

  function show() {
    none.hidden = entries.length > 0;
    list.replaceChildren(
      ...entries.map(({ setting, bytes, loss }) => {
        const words = `${bytes} bytes, loss ${decimal(loss)}: ${wordsOf(setting)} `;
        const again = button({ label: "Take", onPress: () => take(setting) });
        again.element.setAttribute("aria-label", `Take ${wordsOf(setting)}`);
        return h("li", {}, words, again.element);
      }),
    );
  }
  show();
  return {
    element,
    /**
     * Add a setting that reached the goal, and store the list.
     *
     * @param {Setting} setting
     * @param {number} loss
     */
    add(setting, loss) {
      // Another page may have stored settings since this one was opened.
      const stored = readEntries(store?.getItem(BEST_KEY) ?? null);
      for (const entry of [...stored, entryOf(setting, loss)]) entries = withEntry(entries, entry);
      try {
        store?.setItem(BEST_KEY, writtenEntries(entries));
      } catch {
        // The storage is full: the list is kept as long as the page is open.
      }
      show();
    },
  };
}
