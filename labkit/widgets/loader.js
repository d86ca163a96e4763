// The ES module of a widget: it joins the shared script, which all widgets of a kernel have once, and the widget's own.
//
// Python puts `const OWN_SCRIPT = "...";` before this text.

let widget;
async function load(assets) {
  const source = [assets.get("script"), OWN_SCRIPT].join("\n");
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  widget = (await import(address)).default;
  URL.revokeObjectURL(address);
}
function dress(style) {
  const sheet = document.getElementById("labkit-style") ?? document.createElement("style");
  if (sheet.textContent === style) return;
  sheet.id = "labkit-style";
  sheet.textContent = style;
  document.head.prepend(sheet);
}
async function render({ model, el }) {
  const assets = await model.widget_manager.get_model(model.get("_assets").slice("IPY_MODEL_".length));
  dress(assets.get("style"));
  if (!widget) await load(assets);
  return widget.render({ model, el, live: assets.comm_live });
}
export default { render };
