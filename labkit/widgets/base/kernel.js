// A widget whose kernel was restarted, died or was shut down can do nothing any more: it says so, and what to do.
//
// JupyterLab's widget manager knows its kernel, and the kernel tells of its end. A busy kernel is not a lost one. Other
// hosts show no kernel here, and nothing is watched.

const LOST =
  "The kernel that this widget talked to is gone: nothing you do here is answered. Choose Run\u00a0> Run All Above Selected Cell, " +
  "then run this cell again (Shift+Enter).";
const ENDS = ["restarting", "autorestarting", "terminating", "dead"];

function watchKernel(root, owner, model) {
  const kernel = model.widget_manager?.kernel;
  if (!kernel?.statusChanged) return;
  const lose = () => {
    stop();
    const held = root.contains(document.activeElement);
    for (const part of root.children) part.inert = true; // not to be pressed, nor read out
    root.prepend(h("p", { class: "lk-lost", role: "alert", text: LOST }));
    if (held) root.focus({ preventScroll: true });
  };
  const look = (_, status) => ENDS.includes(status) && lose();
  const stop = () => {
    kernel.statusChanged.disconnect(look);
    kernel.disposed.disconnect(lose);
  };
  kernel.statusChanged.connect(look);
  kernel.disposed.connect(lose);
  owner.add(stop);
}

// When the last picture of a widget has left the page for good, nobody sees what it does: its cell was run again, say. A
// cell that is moved takes its picture away and brings it back.
const MOVING_MS = 500;
let views = 0; // of one widget: each runs a copy of this file

function whenUnseen(owner, act) {
  views += 1;
  owner.add(() => {
    views -= 1;
    setTimeout(() => views || act(), MOVING_MS);
  });
}
