// The lifetime of a widget's view: what it put in place is taken back when the view goes.

export function lifetime() {
  const undo = [];
  return {
    add(step) {
      undo.push(step);
    },
    listen(target, type, handler, options) {
      target.addEventListener(type, handler, options);
      undo.push(() => target.removeEventListener(type, handler, options));
    },
    dispose() {
      while (undo.length) undo.pop()();
    },
  };
}
