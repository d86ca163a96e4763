// The formats that a widget's Python side has sent.

/** @import { FormatRow } from "./numbers.js" */

/**
 * @template Made
 * @typedef {object} KnownFormats
 * @property {() => string[]} names
 * @property {(name: string) => Made} called
 */

/**
 * The rows of the trait `_formats`, each made into a format once. They are read when asked for:
 * a new row and its name arrive in any order.
 *
 * @template Made
 * @param {{ get: (name: "_formats") => FormatRow[] }} model
 * @param {(row: FormatRow) => Made} make
 * @returns {KnownFormats<Made>}
 */
export function knownFormats(model, make) {
  /** @type {Map<string, Made>} */
  const known = new Map();
  const names = () => model.get("_formats").map((row) => row.name);
  return {
    names,
    called(name) {
      const row = model.get("_formats").find((one) => one.name === name);
      if (!row) throw new Error(`expected one of the formats ${names().join(", ")}, got ${name}`);
      const made = known.get(name) ?? make(row);
      known.set(name, made);
      return made;
    },
  };
}
