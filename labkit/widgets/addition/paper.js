// The paper of the addition player: one column for each power of two, one line for each number.

import { h, rich } from "../base/elements.js";

const ROW = 30;
const HEAD = 46; // powers of two and the letters G, R, S
const WIDEST_COLUMN = 21;
const NARROWEST_COLUMN = 8; // where the page is narrower than that, the paper scrolls
const NARROW = 560;
const NAMES = { G: "guard", R: "round", S: "sticky" };

// Where columns stand: the format's window, then guard, round and sticky, then what fell off, with a space between.
function ruler(paper, scene, width) {
  const left = width < NARROW ? 84 : 100;
  const right = width < NARROW ? 52 : 72;
  const { columns } = paper;
  const room = width - left - right;
  const column = Math.min(WIDEST_COLUMN, Math.max(NARROWEST_COLUMN, room / (columns.length + 1.6)));
  const space = column * 0.8;
  const index = new Map(columns.map((place, i) => [place, i]));
  const [, last] = scene.window;
  const sticky = scene.sticky ?? -Infinity;
  const written = scene.rows
    .flatMap((row) => row.cells.map(([, , place]) => place))
    .filter((place) => index.has(place));
  return {
    column,
    left,
    has: (place) => index.has(place),
    x(place) {
      const apart = (place < last ? space : 0) + (place < sticky ? space : 0);
      return left + index.get(place) * column + apart;
    },
    gap: columns.indexOf(null),
    sheetEnd: left + columns.length * column + 2 * space, // of the paper
    lowest: Math.min(...written),
    get end() {
      // of what is written on it in this scene
      return written.length ? this.x(this.lowest) + column : left;
    },
  };
}

export function makePaper() {
  const parts = new Map(); // key -> element that stays from scene to scene
  const element = h("div", { class: "ad-paper", "aria-hidden": "true" });

  function put(key, seen, make, x, y, width) {
    let part = parts.get(key);
    const fresh = !part;
    if (fresh) {
      part = make();
      element.append(part);
      parts.set(key, part);
      part.style.opacity = 0;
    }
    part.style.transform = `translate(${x.toFixed(2)}px, ${y}px)`;
    if (width !== undefined) part.style.width = `${width.toFixed(2)}px`;
    if (fresh) part.getBoundingClientRect(); // so that appearing is a transition, and starts where it belongs
    part.style.opacity = "";
    seen.add(key);
    return part;
  }

  function text(key, seen, words, kind, x, y, width) {
    const part = put(key, seen, () => h("span"), x, y, width);
    part.className = `ad-part ad-${kind}`;
    if (part.dataset.text !== words) part.replaceChildren(rich(words));
    part.dataset.text = words;
    return part;
  }

  function drawWindow(seen, scene, paper, at, height) {
    const [first, last] = scene.window;
    const x = at.x(first);
    const width = at.x(last) + at.column - x;
    put(
      "window",
      seen,
      () => h("span", { class: "ad-part ad-window" }),
      x - 3,
      HEAD - 4,
      width + 6,
    ).style.height = `${height}px`;
    const label = scene.named
      ? `${paper.places} places of ${paper.format}`
      : `${paper.format}: ${paper.places} places`;
    text("keeps", seen, width > 120 ? label : paper.format, "keeps", x, 0, width);
    if (scene.named) {
      text("first", seen, `2^${first}`, "power", x, 21, 40);
      if (width > 66) text("last", seen, `2^${last}`, "power ad-right", x + width - 40, 21, 40);
    }
    if (scene.sticky === null) return;
    const boxes = [
      ["G", last - 1, last - 1],
      ["R", last - 2, last - 2],
      ["S", last - 3, scene.sticky],
    ];
    for (const [letter, from, to] of boxes) {
      if (!at.has(from)) continue;
      const start = at.x(from);
      const wide = (at.has(to) ? at.x(to) + at.column : at.sheetEnd) - start;
      const box = put(
        `box ${letter}`,
        seen,
        () => h("span", { class: "ad-part ad-box" }),
        start + 1,
        HEAD - 4,
        wide - 2,
      );
      box.style.height = `${height}px`;
      text(`name ${letter}`, seen, wide > 42 ? NAMES[letter] : letter, "letter", start, 21, wide);
    }
    const rest = scene.sticky - 1;
    const room = at.has(rest) && at.lowest <= rest ? at.end - at.x(rest) : 0;
    if (room > 100)
      text(
        "fell",
        seen,
        room > 190 ? "fell off, remembered in S only" : "fell off",
        "power",
        at.x(rest),
        21,
      );
  }

  function drawRow(seen, row, y, at, width, paper) {
    const kind = row.name === "result" ? "result" : "row";
    text(`${row.name}${row.before} name`, seen, row.name, `name ad-${kind}`, 0, y, at.left - 34);
    text(`${row.name}${row.before} before`, seen, row.before, "sign", at.left - 34, y, 16);
    text(`${row.name} sign`, seen, row.sign, "sign", at.left - 18, y, 16);
    for (const [key, bit, place, what] of row.cells) {
      if (what === "word") text(key, seen, bit, "word", at.left, y);
      else if (at.has(place)) {
        const part = text(key, seen, bit, `bit ad-${what} ad-${kind}`, at.x(place), y, at.column);
        if (what === "fallen") part.style.transform += " translateY(5px) rotate(12deg)"; // over the edge, and down
      }
    }
    const fallen = row.cells.some(([, , , what]) => what === "fallen");
    if (fallen && at.gap >= 0)
      text(
        `${row.name} gap`,
        seen,
        "⋯",
        "bit ad-zero",
        at.left + at.gap * at.column + at.column * 1.6,
        y,
        at.column,
      );
    if (row.point !== null && row.cells.length && at.has(row.point)) {
      text(
        `${row.name} point`,
        seen,
        ".",
        `bit ad-point ad-${kind}`,
        at.x(row.point) + at.column / 2,
        y,
        at.column,
      );
    }
    if (row.exponent !== null)
      text(`${row.name} power`, seen, `× 2^${row.exponent}`, `times ad-${kind}`, at.end + 8, y, 72);
  }

  return {
    element,
    draw(paper, step, width, still) {
      const scene = paper.scenes[step];
      const at = ruler(paper, scene, width);
      const rows = Math.max(...paper.scenes.map((one) => one.rows.length));
      const height = scene.rows.length * ROW + 10;
      const seen = new Set();
      element.classList.toggle("still", still);
      element.dataset.station = scene.title;
      element.style.height = `${HEAD + rows * ROW + 12}px`;
      element.style.setProperty("--ad-digit", `${Math.min(17, at.column * 1.36).toFixed(1)}px`);
      element.dataset.format = paper.format;
      if (paper.columns.length) drawWindow(seen, scene, paper, at, height);
      scene.rows.forEach((row, i) => {
        const y = HEAD + i * ROW;
        if (["sum", "product", "result"].includes(row.name)) {
          put(
            `rule ${row.name}`,
            seen,
            () => h("span", { class: "ad-part ad-rule" }),
            at.left - 20,
            y,
            at.end - at.left + 22,
          );
        }
        drawRow(seen, row, y, at, width, paper);
      });
      for (const [key, part] of parts) {
        if (seen.has(key)) continue;
        part.remove();
        parts.delete(key);
      }
    },
  };
}
