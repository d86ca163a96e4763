// The graph itself, beside its table: a node for each operation, in its row; a line for each tensor, from the operation that
// returns it to those that read it; a diamond where it is cast. A tensor keeps its lane until nobody reads it any more.

const LANE = 26; // pixels between two lanes
const BEND = 14; // above its reader a line leaves its lane
const WEIGHTS = 10; // where the weights stand, left of all lanes

// Lanes of the operations, by their number; inputs of the network are -1, -2, ...
function lanesOf(rows) {
  const last = {};
  rows.forEach(({ takes }, i) => takes.forEach((from) => (last[from] = i)));
  const inputs = [...new Set(rows.flatMap(({ takes }) => takes))]
    .filter((from) => from < 0)
    .sort((a, b) => b - a);
  const busy = inputs.map((from) => from); // lane -> whose result it carries
  const lane = Object.fromEntries(inputs.map((from, i) => [from, i]));
  rows.forEach(({ takes }, i) => {
    busy.forEach((from, at) => from !== null && (last[from] ?? -1) <= i && (busy[at] = null));
    const own = takes.map((from) => lane[from]).filter((at) => busy[at] === null);
    const free = own.length ? Math.min(...own) : busy.indexOf(null);
    lane[i] = free < 0 ? busy.length : free;
    busy[lane[i]] = i;
  });
  return { lane, count: busy.length, inputs };
}

const OF_SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild
  .namespaceURI;
const svg = (tag, attributes) => {
  const element = document.createElementNS(OF_SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
};

export function drawnGraph(rows) {
  const { lane, count, inputs } = lanesOf(rows);
  const element = svg("svg", { class: "gr-graph", "aria-hidden": "true" });
  const width = WEIGHTS + LANE * (count + 1);
  const shown = rows.map(() => ({ node: null, lines: [], casts: [] }));
  const at = (from) => WEIGHTS + LANE * (lane[from] + 1);
  element.style.width = `${width}px`;

  function draw(ys, top) {
    const y = (from) => (from < 0 ? top : ys[from]);
    const add = (tag, attributes) => element.appendChild(svg(tag, attributes));
    const diamond = (x, py, cast) =>
      add("path", { class: "gr-knot", d: `M${x} ${py - 6}l6 6-6 6-6-6z`, "data-format": cast.to });
    const hoisted = {}; // tensor and format -> where its one cast stands
    element.replaceChildren();
    element.style.height = `${ys.at(-1) + LANE}px`;
    rows.forEach(({ takes, casts }, i) => {
      const [x, row] = [at(i), shown[i]];
      const line = (from, format, d) =>
        add("path", { class: "gr-line", "data-from": from, "data-format": format, d });
      row.lines = takes.flatMap((from) => {
        const format = from < 0 ? "FP32" : rows[from].result;
        const to = casts.find((cast) => cast.origin === from)?.to ?? format;
        return [
          line(from, format, `M${at(from)} ${y(from)}V${ys[i] - BEND}`),
          line(from, to, `M${at(from)} ${ys[i] - BEND}Q${at(from)} ${ys[i]} ${x} ${ys[i]}`),
        ];
      });
      const weights = casts.filter((cast) => cast.origin === null);
      if (weights.length)
        row.lines.push(
          add("path", {
            class: "gr-line",
            "data-weight": "",
            "data-format": "FP32",
            d: `M${WEIGHTS} ${ys[i]}H${x}`,
          }),
        );
      row.casts = casts.map((cast) => {
        if (cast.origin !== null) return [cast, diamond(at(cast.origin), ys[i] - BEND, cast)];
        const key = `${cast.tensor} ${cast.to}`;
        const first = (hoisted[key] ??= ys[i]);
        if (first !== ys[i])
          row.lines.push(
            add("path", {
              class: "gr-line gr-shared",
              "data-weight": "",
              "data-format": cast.to,
              d: `M${WEIGHTS} ${first}V${ys[i]}`,
            }),
          );
        return [cast, diamond(WEIGHTS + 1, ys[i], cast)];
      });
    });
    for (const from of inputs)
      add("rect", { class: "gr-input", x: at(from) - 5, y: top - 5, width: 10, height: 10 });
    rows.forEach(
      ({ result }, i) =>
        (shown[i].node = add("circle", {
          class: "gr-node",
          cx: at(i),
          cy: ys[i],
          r: 6.5,
          "data-format": result || "none",
        })),
    );
  }

  return {
    element,
    width,
    draw,
    // How many passes have looked at each operation, and at which one a pass looks now.
    set(done, now) {
      shown.forEach(({ node, lines, casts }, i) => {
        if (!node) return;
        node.classList.toggle("gr-told", done[i] >= 2);
        node.classList.toggle("gr-looked", i === now);
        for (const line of lines) {
          const from = Number(line.dataset.from);
          line.classList.toggle(
            "gr-told",
            "weight" in line.dataset || from < 0 ? done[i] >= 2 : done[from] >= 2,
          );
          if (line.matches(".gr-shared")) line.classList.toggle("gr-unseen", done[i] < 5);
        }
        for (const [cast, knot] of casts) {
          const gone = (done[i] > 3 && cast.fate === "cancelled") || (done[i] > 4 && !cast.times);
          knot.classList.toggle("gr-out", done[i] < 3 || gone);
        }
      });
    },
  };
}
