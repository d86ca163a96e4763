// The lifetime of a widget's view. When the view is removed, it undoes what the view has
// registered.

/**
 * @typedef {object} Life
 * @property {(step: () => void) => void} add A step to take when the view goes; the last comes
 * first.
 * @property {<Type extends string>(target: EventTarget, type: Type,
 *   handler: (event: EventOf<Type>) => void, options?: boolean | AddEventListenerOptions) => void}
 *   listen Listen until the view goes.
 * @property {() => void} dispose Take everything back.
 */

/**
 * The event of a type, as the browser's own list of them has it.
 *
 * @template {string} Type
 * @typedef {Type extends keyof HTMLElementEventMap ? HTMLElementEventMap[Type] : Event} EventOf
 */

/** @returns {Life} */
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
