// The module of a widget as anywidget calls it, without a browser.

import assert from "node:assert/strict";
import test from "node:test";

/** @import { Place } from "../../labkit/widgets/base/root.js" */

const SHARED = "globalThis.copies = (globalThis.copies ?? 0) + 1;";
const OWN = "export default { render: () => globalThis.copies };";

/** The part of the page that the loader uses: a head without a style sheet of labkit. */
const page = {
  getElementById: () => null,
  createElement: () => ({}),
  head: { prepend() {} },
};

/** A place in the page for the view of a widget whose assets take a moment to come. */
function place() {
  const assets = { get: () => SHARED, comm_live: true };
  const model = {
    get: () => "IPY_MODEL_7",
    widget_manager: { get_model: () => Promise.resolve(assets) },
  };
  return /** @type {Place<any>} */ (/** @type {unknown} */ ({ model, el: {} }));
}

test("views that are shown at once share a copy of the scripts", async () => {
  Object.assign(globalThis, { document: page, OWN_SCRIPT: OWN });
  // node imports no blob: URL. The number keeps two URLs apart, as blob: URLs are.
  let number = 0;
  URL.createObjectURL = () => {
    number += 1;
    return `data:text/javascript,${encodeURIComponent(`${SHARED}\n${OWN}//${number}`)}`;
  };
  URL.revokeObjectURL = () => {};
  const { default: widget } = await import("../../labkit/widgets/loader.js");
  const copies = await Promise.all([widget.render(place()), widget.render(place())]);
  assert.deepEqual(copies, [1, 1]);
});
