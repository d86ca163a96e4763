// The formats that the kernel has sent to a widget, found by their names.

/** @import { FormatRow } from "./numbers.js" */

/**
 * @template Made
 * @typedef {object} KnownFormats
 * @property {() => string[]} names Returns the names of all formats, in the kernel's order.
 * @property {(name: string) => Made} called Returns the format with a name; throws an Error if
 *   there is none.
 */

/**
 * Return the formats in the trait `_formats`. The trait is read at each call, since the kernel may
 * add a row after it has set the name of the new format.
 *
 * @template Made
 * @param {{ get: (name: "_formats") => FormatRow[] }} model
 * @param {(row: FormatRow) => Made} make derives a format from its row
 * @returns {KnownFormats<Made>}
 */
export function knownFormats(model, make) {
  // Made formats by the JSON of their rows: by name alone, a row that replaces another one of the
  // same name would still be drawn as the old format.
  /** @type {Map<string, Made>} */
  const known = new Map();
  const names = () => model.get("_formats").map((row) => row.name);
  return {
    names,
    called(name) {
      const row = model.get("_formats").find((one) => one.name === name);
      if (!row) throw new Error(`expected one of the formats ${names().join(", ")}, got ${name}`);
      const key = JSON.stringify(row);
      const made = known.get(key) ?? make(row);
      known.set(key, made);
      return made;
    },
  };
}
