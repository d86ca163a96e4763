// The lifetime of a widget's view: what the view has registered is undone when it is removed.

/**
 * A list of what to undo when a view is removed.
 *
 * @typedef {object} Life
 * @property {(step: () => void) => void} add Add a step of the removal. The step that was added
 *   last is taken first.
 * @property {<Type extends string>(target: EventTarget, type: Type,
 *   handler: (event: EventOf<Type>) => void, options?: boolean | AddEventListenerOptions) => void}
 *   listen Listen to an event until the view is removed.
 * @property {() => void} dispose Take all steps. A second call does nothing.
 */

/**
 * The class of the events of a type, "click" for example: that of the browser's declarations, or
 * Event for a type that they lack.
 *
 * @template {string} Type
 * @typedef {Type extends keyof HTMLElementEventMap ? HTMLElementEventMap[Type] : Event} EventOf
 */

/**
 * Return a new lifetime.
 *
 * @returns {Life}
 */
export function lifetime() {
  /** @type {(() => void)[]} */
  const undo = [];
  return {
    add(step) {
      undo.push(step);
    },
    listen(target, type, handler, options) {
      const listener = /** @type {EventListener} */ (handler);
      target.addEventListener(type, listener, options);
      undo.push(() => target.removeEventListener(type, listener, options));
    },
    dispose() {
      for (let step = undo.pop(); step; step = undo.pop()) step();
    },
  };
}
