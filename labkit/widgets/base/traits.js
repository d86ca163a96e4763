// Traits: what page and kernel both know.

function watch(owner, model, names, handler) {
  const changed = () => handler();
  for (const name of names) {
    model.on(`change:${name}`, changed);
    owner.add(() => model.off(`change:${name}`, changed));
  }
}

function listen(owner, model, handler) {
  model.on("msg:custom", handler);
  owner.add(() => model.off("msg:custom", handler));
}

function put(model, changes) {
  for (const [name, value] of Object.entries(changes)) model.set(name, value);
  model.save_changes();
}

function traitChoice(model, name, label, options, more = {}) {
  return segmented({ label, options, value: model.get(name), onChange: (value) => put(model, { [name]: value }), ...more });
}

// Where the hand can go and what stands there, known ahead: `ask` is called when it has rested for a moment.
function makeAtlas(owner, model, root, { ask, take }) {
  const known = new Map();
  let pause = 0;
  listen(owner, model, (content, buffers) => {
    if (content.kind !== "ahead") return;
    take(known, content, buffers);
    root.dataset.ahead = known.size;
  });
  owner.add(() => clearTimeout(pause));
  return {
    find: (key) => known.get(key),
    rest() {
      clearTimeout(pause);
      pause = setTimeout(ask, 250);
    },
  };
}
