// The playground's setting as text in a page's address, and back. Values that are not valid are
// ignored and reported.

import { faultIn, RECIPE_PRESETS } from "./recipe.js";
import { SCENES } from "./scenes.js";
import { MOST_STEPS } from "./session.js";

/**
 * What is chosen. Changes are of the preset, those of the method of the problem's optimizer.
 *
 * @typedef {object} Setting
 * @property {string} scene
 * @property {string} preset
 * @property {Record<string, unknown>} changes
 * @property {Record<string, unknown>} method
 * @property {number} seed
 */

const LARGEST_SEED = 9999;

/** @type {Record<string, (value: unknown) => string>} Why a value is none; "" where it is one. */
const METHOD_FAULTS = {
  kind: (value) => (value === "SGD" || value === "Adam" ? "" : "SGD or Adam"),
  rate: (value) => positiveFault(value, 100),
  momentum: (value) => {
    const sound = typeof value === "number" && value >= 0 && value < 1;
    return sound ? "" : "a number from 0 to below 1";
  },
  epsilon: (value) => positiveFault(value, 1),
};

/**
 * @param {unknown} value
 * @param {number} most
 */
function positiveFault(value, most) {
  const sound = typeof value === "number" && value > 0 && value <= most;
  return sound ? "" : `a number above 0, at most ${most}`;
}

/**
 * The setting that a scene begins with.
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
 * A setting as an address has it, behind its #.
 *
 * @param {Setting} setting
 * @param {number} [step] to which the setting is trained
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
 * A text as the value that it writes.
 *
 * @param {string} text
 */
function writtenValue(text) {
  if (text === "true") return true;
  if (text === "false") return false;
  return /^-?\d+(\.\d+)?(e-?\d+)?$/.test(text) ? Number(text) : text;
}

/**
 * What an address asks for.
 *
 * @typedef {object} Asked
 * @property {Setting} setting
 * @property {number} step The step to which it is trained.
 * @property {string[]} ignored What of the address is nonsense.
 */

/**
 * The setting in an address; parts that are missing are those of the scene.
 *
 * @param {string} address behind its #
 * @returns {Asked}
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
    const value = writtenValue(text);
    const fault =
      name === "step" ? wholeFault(name, value, MOST_STEPS) : readPart(setting, name, value);
    if (fault) ignored.push(fault);
    else if (name === "step") step = Number(value);
  }
  return { setting, step, ignored };
}

/**
 * Why a value is no whole number from 0 on; "" where it is one.
 *
 * @param {string} name
 * @param {unknown} value
 * @param {number} most
 */
function wholeFault(name, value, most) {
  const whole = typeof value === "number" && Number.isInteger(value) && value >= 0;
  if (whole && value <= most) return "";
  return `${name}: expected a whole number from 0 to ${most}, got ${JSON.stringify(value)}`;
}

/**
 * Take one part of an address.
 *
 * @param {Setting} setting changed in place
 * @param {string} name
 * @param {unknown} value
 * @returns {string} why it is none; "" where it is taken
 */
function readPart(setting, name, value) {
  const written = JSON.stringify(value);
  if (name === "seed") {
    const fault = wholeFault(name, value, LARGEST_SEED);
    if (!fault) setting.seed = Number(value);
    return fault;
  }
  const field = name.replace(/^optimizer\./, "");
  if (field !== name) {
    if (!Object.hasOwn(METHOD_FAULTS, field)) return `${name}: there is no such setting`;
    const expected = METHOD_FAULTS[field](value);
    if (expected) return `${name}: expected ${expected}, got ${written}`;
    setting.method[field] = value;
    return "";
  }
  const fault = faultIn(name, value);
  if (!fault) setting.changes[name] = value;
  return fault;
}
