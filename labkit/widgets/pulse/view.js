// Five messages to the kernel, one after the other; the quickest is what the way there and back takes. (The first often
// waits until the kernel has run the cells that were started after this one.)

import { h } from "../base/elements.js";
import { listen, put } from "../base/model.js";
import { view } from "../base/root.js";

const PINGS = 5;
const LATE_MS = 8000;

export default view({ label: "Are widgets alive?", kind: "pulse" }, (root, model, life) => {
  const mark = h("span", { class: "pl-mark", "aria-hidden": "true" });
  const words = h("span");
  const line = h("div", { class: "lk-row lk-tight pl-line", role: "status" }, mark, words);
  const times = [];
  let sent = 0;
  let number = 0;
  root.append(line);

  function say(state, sign, text) {
    line.dataset.state = state;
    mark.textContent = sign;
    words.textContent = text;
  }

  function ping() {
    number = crypto.getRandomValues(new Uint32Array(1))[0]; // two views of one widget must not answer for each other
    sent = performance.now();
    model.send({ ping: number });
  }

  function hear(message) {
    if (message.pong !== number) return;
    times.push(performance.now() - sent);
    if (times.length < PINGS) return ping();
    const best = Math.min(...times);
    clearTimeout(late);
    say("alive", "\u2713", `Widgets are alive: ${Math.max(1, Math.round(best))} ms there and back`);
    line.dataset.ms = best;
    put(model, { round_trip_ms: best });
  }

  listen(life, model, hear);
  const late = setTimeout(
    () =>
      say(
        "late",
        "\u25cb",
        "The browser draws, but the kernel has not answered yet. Is a cell still running ([*])? Else: Kernel, Restart.",
      ),
    LATE_MS,
  );
  life.add(() => clearTimeout(late));
  say("waiting", "\u2026", "Asking the kernel\u2026");
  ping();
});
