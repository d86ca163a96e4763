// A page without a kernel: a widget's saved state as its model.

function decoded(value) {
  if (Array.isArray(value)) return value.map(decoded);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.base64 !== "string")
    return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, decoded(part)]));
  return new DataView(Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0)).buffer);
}

// The state of `LabWidget.page_state` as a model: it has no kernel, so nothing is sent or saved.
function pageModel(state) {
  const traits = decoded(state);
  const handlers = {};
  return {
    onPage: true,
    get: (name) => traits[name],
    set(name, value) {
      if (traits[name] === value) return;
      traits[name] = value;
      for (const handler of [...(handlers[`change:${name}`] ?? [])]) handler();
    },
    save_changes() {},
    send() {},
    on: (event, handler) => (handlers[event] ??= []).push(handler),
    off: (event, handler) =>
      (handlers[event] = (handlers[event] ?? []).filter((one) => one !== handler)),
  };
}

// What a static page calls: (state, element) -> {model, remove()}; `answers(state)` says whether it needs no kernel.
export const onPage = (widget) => {
  const show = (state, el) => {
    const model = pageModel(state);
    return { model, remove: widget.render({ model, el }) };
  };
  return Object.assign(show, { answers: (state) => widget.answers(pageModel(state)) });
};
