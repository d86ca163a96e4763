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
 * A step of a guided tour, as tour.toml has it.
 *
 * @typedef {object} TourStep
 * @property {string} text What the step says.
 * @property {string} ring A selector: what the step is about.
 * @property {Record<string, unknown>} set Traits to set, and methods that Python calls.
 */

/** @typedef {Record<string, unknown>} Content The content of a message to the kernel, as JSON. */

/**
 * The model of a widget: anywidget's, or that of a page without a kernel (page.js).
 *
 * @template {object} Traits
 * @typedef {object} Model
 * @property {<Name extends keyof Traits & string>(name: Name) => Traits[Name]} get
 * @property {<Name extends keyof Traits & string>(name: Name, value: Traits[Name]) => void} set
 * @property {() => void} save_changes Send the traits that were set to the kernel.
 * @property {(content: Content) => void} send Send a message to the kernel.
 * @property {(event: string, handler: Handler) => void} on
 * @property {(event: string, handler: Handler) => void} off
 * @property {boolean} [onPage] Whether this is the model of a page without a kernel.
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

/** @typedef {(...given: never[]) => void} Handler The handler of an event of a model. */

/**
 * The members of JupyterLab's widget manager that are used here.
 *
 * @typedef {object} WidgetManager
 * @property {Kernel} [kernel]
 * @property {(id: string) => Promise<AssetsModel>} get_model
 */

/**
 * JupyterLab's connection to a kernel.
 *
 * @typedef {object} Kernel
 * @property {Signal} statusChanged Emitted with the new status.
 * @property {Signal} disposed Emitted when the connection is closed for good.
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
 * @property {boolean} comm_live Whether the model is connected to a kernel.
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
 * Return the float32 numbers in a buffer of a message or in a trait of bytes.
 *
 * @param {DataView | ArrayBuffer | null | undefined} view
 * @returns {Float32Array<ArrayBuffer>} empty without bytes
 */
export function floats(view) {
  if (!view?.byteLength) return new Float32Array(0);
  const bytes =
    view instanceof ArrayBuffer
      ? new Uint8Array(view)
      : new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  // The bytes are copied: in a message their offset may not be a multiple of 4.
  return new Float32Array(bytes.slice().buffer);
}
