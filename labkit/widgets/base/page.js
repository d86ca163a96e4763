// A page without a kernel: a widget's saved state as its model.

/** @import { Handler, Model } from "./model.js" */
/** @import { LabView } from "./root.js" */

/**
 * A state as JSON (`LabWidget.page_state`) with its bytes: {"base64": ...} is a DataView.
 *
 * @param {unknown} value
 * @returns {unknown}
 */
function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  if ("base64" in value && typeof value.base64 === "string") {
    const bytes = Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
    return new DataView(bytes.buffer);
  }
  return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, decoded(part)]));
}

/**
 * A state as a model: it has no kernel, so nothing is sent or saved.
 *
 * @template {object} Traits
 * @param {Record<string, unknown>} state
 * @returns {Model<Traits>}
 */
export function pageModel(state) {
  const traits = /** @type {Traits} */ (decoded(state));
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
 * What a static page calls: show a widget from its state in an element. `answers(state)` says
 * whether the widget needs no kernel.
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
