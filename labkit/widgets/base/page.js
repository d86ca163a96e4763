// A page without a kernel: a widget's saved state as its model.

/** @import { Handler, Model } from "./model.js" */
/** @import { LabView } from "./root.js" */

/**
 * Return a part of a state from `LabWidget.page_state` in which each {"base64": ...} is replaced by
 * a DataView of its bytes.
 *
 * @param {unknown} value
 * @returns {unknown}
 */
function withBytes(value) {
  if (Array.isArray(value)) return value.map(withBytes);
  if (value === null || typeof value !== "object") return value;
  if ("base64" in value && typeof value.base64 === "string") {
    const bytes = Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
    return new DataView(bytes.buffer);
  }
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, withBytes(part)]));
}

/**
 * Return a model with a saved state. It has no kernel, so `send` and `save_changes` do nothing.
 *
 * @template {object} Traits
 * @param {Record<string, unknown>} state
 * @returns {Model<Traits>}
 */
export function pageModel(state) {
  const traits = /** @type {Traits} */ (withBytes(state));
  /** @type {Map<string, Handler[]>} */
  const handlers = new Map();
  return {
    onPage: true,
    get: (name) => traits[name],
    set(name, value) {
      if (traits[name] === value) return;
      traits[name] = value;
      for (const handler of handlers.get(`change:${name}`) ?? []) handler();
    },
    save_changes() {},
    send() {},
    on(event, handler) {
      handlers.set(event, [...(handlers.get(event) ?? []), handler]);
    },
    off(event, handler) {
      const others = (handlers.get(event) ?? []).filter((one) => one !== handler);
      handlers.set(event, others);
    },
  };
}

/**
 * Return the function that a static page calls to show a widget from its state in an element. Its
 * property `answers` is a function from a state to whether the widget works without a kernel.
 *
 * @template {object} Traits
 * @param {LabView<Traits>} widget
 */
export function onPage(widget) {
  /**
   * @param {Record<string, unknown>} state
   * @param {HTMLElement} el
   */
  function show(state, el) {
    /** @type {Model<Traits>} */
    const model = pageModel(state);
    return { model, remove: widget.render({ model, el }) };
  }
  /** @param {Record<string, unknown>} state */
  const answers = (state) => widget.answers(pageModel(state));
  return Object.assign(show, { answers });
}
