// The playground's setting as text in a page's address, and back. Values that are not valid are
// ignored and reported.

import { faultIn, RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { MOST_STEPS } from "./session.js";

/**
 * What the learner has chosen.
 *
 * @typedef {object} Setting
 * @property {string} scene A key of SCENES.
 * @property {string} preset A key of RECIPE_PRESETS.
 * @property {Record<string, unknown>} changes Fields of the recipe that differ from the preset.
 * @property {Record<string, unknown>} method Fields of the optimizer that differ from the
 *   problem's.
 * @property {number} seed The seed of the first weights and the batches, 0 to LARGEST_SEED.
 */

export const LARGEST_SEED = 9999;

/**
 * For each field of an optimizer, a function from a value to what was expected; to "" if the value
 * is valid.
 *
 * @type {Record<string, (value: unknown) => string>}
 */
const METHOD_FAULTS = {
  kind: (value) => (value === "SGD" || value === "Adam" ? "" : "SGD or Adam"),
  rate: (value) => positiveFault(value, 100),
  momentum: (value) => {
    const isValid = typeof value === "number" && value >= 0 && value < 1;
    return isValid ? "" : "a number from 0 to below 1";
  },
  epsilon: (value) => positiveFault(value, 1),
};

/**
 * Return what was expected of a positive number; "" if the value is one.
 *
 * @param {unknown} value
 * @param {number} most
 */
function positiveFault(value, most) {
  const isValid = typeof value === "number" && value > 0 && value <= most;
  return isValid ? "" : `a number above 0, at most ${most}`;
}

/**
 * Return the setting that a scene begins with.
 *
 * @param {string} scene a key of SCENES
 * @param {number} [seed]
 * @returns {Setting}
 */
export function settingOf(scene, seed = 0) {
  const { preset, changes = {}, method = {} } = SCENES[scene];
  return { scene, preset, changes: { ...changes }, method: { ...method }, seed };
}

/**
 * Return a setting as the part of an address after its #.
 *
 * @param {Setting} setting
 * @param {number} [step] the step up to which the page of the address trains
 */
export function addressOf({ scene, preset, changes, method, seed }, step = 0) {
  const parts = new URLSearchParams({ scene, recipe: preset, seed: String(seed) });
  for (const [field, value] of Object.entries(changes)) parts.set(field, String(value));
  for (const [field, value] of Object.entries(method)) {
    parts.set(`optimizer.${field}`, String(value));
  }
  if (step > 0) parts.set("step", String(step));
  return parts.toString();
}

/**
 * Return the boolean or the number that a text in an address stands for, or the text itself.
 *
 * @param {string} text
 */
function parseValue(text) {
  if (text === "true") return true;
  if (text === "false") return false;
  // Only the forms that `addressOf` writes: Number would read "", " 1" and "0x1" too.
  return /^-?\d+(\.\d+)?(e-?\d+)?$/.test(text) ? Number(text) : text;
}

/**
 * The content of an address.
 *
 * @typedef {object} AddressContent
 * @property {Setting} setting
 * @property {number} step The step up to which the page trains.
 * @property {string[]} ignored A message for each part that is not valid.
 */

/**
 * Return the setting in an address. Parts that are missing or not valid are those of the scene.
 *
 * @param {string} address the part after its #
 * @returns {AddressContent}
 */
export function readAddress(address) {
  const parts = new URLSearchParams(address);
  /** @type {string[]} */
  const ignored = [];
  /** @type {(name: string, choices: object, otherwise: string) => string} */
  const oneOf = (name, choices, otherwise) => {
    const value = parts.get(name);
    parts.delete(name);
    if (value === null || Object.hasOwn(choices, value)) return value ?? otherwise;
    ignored.push(`${name}: expected one of ${Object.keys(choices).join(", ")}, got ${value}`);
    return otherwise;
  };
  const setting = settingOf(oneOf("scene", SCENES, "picture"));
  const preset = oneOf("recipe", RECIPE_PRESETS, setting.preset);
  if (preset !== setting.preset) setting.changes = {};
  setting.preset = preset;
  let step = 0;
  for (const [name, text] of parts) {
    const value = parseValue(text);
    let fault = "";
    if (name === "step") {
      fault = wholeFault(name, value, MOST_STEPS);
      if (!fault) step = Number(value);
    } else {
      fault = readPart(setting, name, value);
    }
    if (fault) ignored.push(fault);
  }
  return { setting, step, ignored };
}

/**
 * Return a message about a value that is not a whole number from 0 to `most`; "" if it is one.
 *
 * @param {string} name
 * @param {unknown} value
 * @param {number} most
 */
function wholeFault(name, value, most) {
  const isWhole = typeof value === "number" && Number.isInteger(value);
  if (isWhole && value >= 0 && value <= most) return "";
  return `${name}: expected a whole number from 0 to ${most}, got ${JSON.stringify(value)}`;
}

/**
 * Put one part of an address into a setting, if it is valid.
 *
 * @param {Setting} setting changed in place
 * @param {string} name
 * @param {unknown} value
 * @returns {string} a message if the part is not valid, else ""
 */
function readPart(setting, name, value) {
  const text = JSON.stringify(value);
  if (name === "seed") {
    const fault = wholeFault(name, value, LARGEST_SEED);
    if (!fault) setting.seed = Number(value);
    return fault;
  }
  const field = name.replace(/^optimizer\./, "");
  if (field !== name) {
    if (!Object.hasOwn(METHOD_FAULTS, field)) return `${name}: there is no such setting`;
    const expected = METHOD_FAULTS[field](value);
    if (expected) return `${name}: expected ${expected}, got ${text}`;
    setting.method[field] = value;
    return "";
  }
  const fault = faultIn(name, value);
  if (!fault) setting.changes[name] = value;
  return fault;
}
