// The class page: asks for its state each second, and writes what came as text.
const element = (name, text, parent) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent.append(made);
  return made;
};

function drawGuesses(guesses, place) {
  place.replaceChildren();
  for (const { id, question, bars } of guesses) {
    const section = element("section", "", place);
    section.id = id;
    element("h2", question, section);
    const most = Math.max(...bars.map(([, count]) => count));
    for (const [answer, count] of bars) {
      const line = element("div", `${answer}: ${count}`, section);
      line.style.borderLeft = `${(30 * count) / most}em solid var(--good)`;
      line.style.paddingLeft = ".5em";
      line.style.margin = ".3em 0";
    }
  }
}

function drawLearned(learned, place) {
  place.replaceChildren();
  if (!learned.length) return;
  element("h2", "Before and after the course: right answers", place);
  const table = element("table", "", place);
  const row = (name, texts) => {
    const line = element("tr", "", table);
    for (const text of texts) element(name, text, line);
  };
  const share = ([right, answers]) => (answers ? `${right}\u00a0of\u00a0${answers}` : "no answer");
  row("th", ["question", "before", "after"]);
  for (const { question, before, after } of learned)
    row("td", [question, share(before), share(after)]);
}

function drawLeaders(leaders, place) {
  place.replaceChildren();
  if (!leaders.length) return;
  element("h2", "Lesson 12: the most points, of equals the fewest bytes", place);
  const table = element("table", "", place);
  for (const [number, name, points, outOf, bytes] of leaders) {
    const row = element("tr", "", table);
    for (const text of [
      number,
      name,
      `${points} of ${outOf}`,
      `${bytes.toLocaleString("en")} bytes`,
    ])
      element("td", text, row);
  }
}

let shown = "";
async function look() {
  const status = document.getElementById("state");
  try {
    const text = await (await fetch("state", { cache: "no-store" })).text();
    const { guesses, learned, leaders } = JSON.parse(text);
    status.textContent =
      guesses.length || learned.length || leaders.length
        ? ""
        : "Nobody has answered a question yet.";
    if (text !== shown) {
      shown = text;
      drawGuesses(guesses, document.getElementById("guesses"));
      drawLearned(learned, document.getElementById("learned"));
      drawLeaders(leaders, document.getElementById("leaders"));
    }
  } catch {
    status.textContent = "The board is not answering; what stands here is the last that came.";
  }
  setTimeout(look, 1000);
}
look();
