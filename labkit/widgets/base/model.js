// Traits: what page and kernel both know.

export function watch(life, model, names, handler) {
  const changed = () => handler();
  for (const name of names) {
    model.on(`change:${name}`, changed);
    life.add(() => model.off(`change:${name}`, changed));
  }
}

export function listen(life, model, handler) {
  model.on("msg:custom", handler);
  life.add(() => model.off("msg:custom", handler));
}

export function put(model, changes) {
  for (const [name, value] of Object.entries(changes)) model.set(name, value);
  model.save_changes();
}

// What a buffer of a message or a trait holds, as float32.
export function floats(view) {
  if (!view || !view.byteLength) return new Float32Array(0);
  const bytes = new Uint8Array(view.buffer ?? view, view.byteOffset ?? 0, view.byteLength);
  return new Float32Array(bytes.slice().buffer); // a copy: in the message they may not lie on a multiple of 4
}
