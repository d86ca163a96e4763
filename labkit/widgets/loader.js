// The ES module of a widget. It joins two scripts: the shared one, which a kernel sends once for
// all widgets, and the widget's own.
//
// Python puts `const OWN_SCRIPT = "...";` before this text (`module` in base/widget.py).

/** @import { AssetsModel, Model } from "./base/model.js" */
/** @import { LabView, Place } from "./base/root.js" */

/** @typedef {{ _assets: string }} AssetsTrait the address of the model of `Assets` */

// The promise and not its value: two views that are shown at once must share one copy of the
// scripts, which count the views of their widget.
/** @type {Promise<LabView<AssetsTrait>> | undefined} */
let widget;

/**
 * Run both scripts as one module.
 *
 * @param {AssetsModel} assets
 * @returns {Promise<LabView<AssetsTrait>>} the default export of view.js
 */
async function load(assets) {
  const source = [assets.get("script"), OWN_SCRIPT].join("\n");
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  try {
    const loaded = await import(address);
    return loaded.default;
  } finally {
    URL.revokeObjectURL(address);
  }
}

/**
 * Put the shared style sheet at the beginning of the page's head, where rules of a widget come
 * after it; replace one that another kernel put there.
 *
 * @param {string} style the text of base.css
 */
function dress(style) {
  const sheet = document.getElementById("labkit-style") ?? document.createElement("style");
  if (sheet.textContent === style) return;
  sheet.id = "labkit-style";
  sheet.textContent = style;
  document.head.prepend(sheet);
}

/**
 * Return the model of the kernel's `Assets`, to which a widget's model refers.
 *
 * @param {Model<AssetsTrait>} model
 * @returns {Promise<AssetsModel>}
 */
function assetsOf(model) {
  if (!model.widget_manager) throw new Error("expected a model with a widget manager, got none");
  return model.widget_manager.get_model(model.get("_assets").slice("IPY_MODEL_".length));
}

/**
 * Show a widget. anywidget calls this for each view.
 *
 * @param {Place<AssetsTrait>} place
 * @returns {Promise<() => void>} removes the view
 */
async function render({ model, el }) {
  const assets = await assetsOf(model);
  dress(assets.get("style"));
  widget ??= load(assets);
  const view = await widget;
  return view.render({ model, el, live: assets.comm_live });
}

export default { render };
