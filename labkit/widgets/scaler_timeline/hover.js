// The step under the pointer, and a label above it.

import { hovering } from "../base/canvas.js";

export function hoverStep(life, picture, stepAt, textOf) {
  const hover = { step: null };
  hovering(life, picture, (at) => {
    hover.step = at && stepAt(at.x);
    picture.redraw();
    return hover.step && [at.x, at.y - 6, textOf(hover.step)];
  });
  return hover;
}
