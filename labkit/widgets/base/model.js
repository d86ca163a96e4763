// Traits: the values that the page and the kernel share.

/** @import { Life } from "./lifetime.js" */

/**
 * The traits of every widget (`LabWidget`).
 *
 * @typedef {object} SharedTraits
 * @property {TourStep[]} tour The steps of the guided tour; empty without one.
 * @property {number} tour_step The step of the tour, from 0; -1 outside it.
 */

/**
 * @typedef {object} TourStep
 * @property {string} text What the step says.
 * @property {string} ring A selector: what the step is about.
 * @property {Record<string, unknown>} set Traits to set, and methods that Python calls.
 */

/** @typedef {Record<string, unknown>} Content of a message between page and kernel, as JSON. */

/**
 * The model of a widget: anywidget's, or that of a page without a kernel (page.js).
 *
 * @template {object} Traits
 * @typedef {object} Model
 * @property {<Name extends keyof Traits & string>(name: Name) => Traits[Name]} get
 * @property {<Name extends keyof Traits & string>(name: Name, value: Traits[Name]) => void} set
 * @property {() => void} save_changes
 * @property {(content: Content) => void} send
 * @property {(event: string, handler: Handler) => void} on
 * @property {(event: string, handler: Handler) => void} off
 * @property {boolean} [onPage] Whether there is no kernel behind the page.
 * @property {WidgetManager} [widget_manager] The widget manager of JupyterLab.
 */

/**
 * What a control needs of a model whose trait it shows.
 *
 * @template {string} Name
 * @template Value
 * @typedef {object} Holder
 * @property {(name: Name) => Value} get
 * @property {(name: Name, value: Value) => void} set
 * @property {() => void} save_changes
 */

/** @typedef {(...given: never[]) => void} Handler */

/**
 * What is used of JupyterLab's widget manager.
 *
 * @typedef {object} WidgetManager
 * @property {Kernel} [kernel]
 * @property {(id: string) => Promise<AssetsModel>} get_model
 */

/**
 * @typedef {object} Kernel
 * @property {Signal} statusChanged
 * @property {Signal} disposed
 */

/**
 * A signal of Lumino.
 *
 * @typedef {object} Signal
 * @property {(slot: (sender: unknown, news: string) => void) => void} connect
 * @property {(slot: (sender: unknown, news: string) => void) => void} disconnect
 */

/**
 * The model of `Assets`: the script and the style that all widgets share.
 *
 * @typedef {object} AssetsModel
 * @property {(name: "script" | "style") => string} get
 * @property {boolean} comm_live Whether a kernel stands behind it.
 */

/**
 * Call a handler whenever one of the traits has changed.
 *
 * @template {object} Traits
 * @param {Life} life
 * @param {Model<Traits>} model
 * @param {(keyof Traits & string)[]} names
 * @param {() => void} handler
 */
export function watch(life, model, names, handler) {
  const changed = () => handler();
  for (const name of names) {
    model.on(`change:${name}`, changed);
    life.add(() => model.off(`change:${name}`, changed));
  }
}

/**
 * Call a handler with each message of the kernel.
 *
 * @template {object} Message
 * @param {Life} life
 * @param {Pick<Model<object>, "on" | "off">} model
 * @param {(content: Message, buffers: DataView[]) => void} handler
 */
export function listen(life, model, handler) {
  model.on("msg:custom", handler);
  life.add(() => model.off("msg:custom", handler));
}

/**
 * Set traits, and let the kernel know.
 *
 * @template {object} Traits
 * @param {Model<Traits>} model
 * @param {Partial<Traits>} changes
 */
export function put(model, changes) {
  for (const name of /** @type {(keyof Traits & string)[]} */ (Object.keys(changes))) {
    model.set(name, /** @type {Traits[typeof name]} */ (changes[name]));
  }
  model.save_changes();
}

/**
 * What a buffer of a message or a trait holds, as float32.
 *
 * @param {DataView | ArrayBuffer | null | undefined} view
 * @returns {Float32Array<ArrayBuffer>}
 */
export function floats(view) {
  if (!view?.byteLength) return new Float32Array(0);
  const bytes =
    view instanceof ArrayBuffer
      ? new Uint8Array(view)
      : new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  // A copy: in the message they may not lie on a multiple of 4.
  return new Float32Array(bytes.slice().buffer);
}
