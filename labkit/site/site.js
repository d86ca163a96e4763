// What a page of the site does: its theme, its widgets, and the answers to its questions, which stay in this browser.

(() => {
  const PREFIX = "fp16-lab/";
  const store = (() => {
    try {
      localStorage.setItem(`${PREFIX}probe`, "1");
      localStorage.removeItem(`${PREFIX}probe`);
      return localStorage;
    } catch {
      return null; // switched off, or full
    }
  })();
  const read = (name) => store?.getItem(PREFIX + name) ?? null;
  const write = (name, value) => {
    try {
      store?.setItem(PREFIX + name, value);
    } catch {
      // full: the answer stays on the page
    }
  };
  document.getElementById("site-no-storage").hidden = store !== null;

  // --- theme ---
  const theme = document.getElementById("site-theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const light = () => document.body.dataset.jpThemeLight === "true";
  function show(isLight) {
    document.body.dataset.jpThemeLight = String(isLight);
    theme.textContent = isLight ? "Dark theme" : "Light theme";
  }
  theme.hidden = false;
  theme.addEventListener("click", () => {
    show(!light());
    write("light", String(light()));
  });
  system.addEventListener("change", () => read("light") ?? show(!system.matches));
  show(light());

  // --- widgets ---
  const page = location.pathname
    .split("/")
    .pop()
    .replace(/\.html$/, "");
  const said = (key) => `answer/${page}/${key}`;
  const quizAnswers = (phase) => JSON.parse(read(`answer/quiz/${phase}`) ?? "{}");
  for (const element of document.querySelectorAll("[data-widget]")) {
    const widget = globalThis.labkitWidgets?.[element.dataset.widget];
    const needsPython = () =>
      element.append(element.querySelector("template").content.cloneNode(true));
    try {
      const state = JSON.parse(element.querySelector("script").textContent);
      if (!widget?.answers(state)) {
        needsPython();
        continue;
      }
      const key = said(element.dataset.key);
      if (state.choice === "") state.choice = read(key) ?? "";
      if (state.phase === "after") state.earlier = quizAnswers("before");
      if (state.phase) state.answers = quizAnswers(state.phase);
      const { model } = widget(state, element);
      model.on("change:choice", () => write(key, model.get("choice")));
      model.on("change:answers", () =>
        write(`answer/quiz/${state.phase}`, JSON.stringify(model.get("answers"))),
      );
    } catch (error) {
      console.error(error); // its picture stays
      if (!element.querySelector(".labkit")) needsPython();
    }
  }

  // --- the index: how many questions of each lesson are answered ---
  const forget = document.getElementById("site-forget");
  function count() {
    let all = 0;
    for (const place of document.querySelectorAll("[data-questions]")) {
      const keys = place.dataset.questions.split(" ").filter(Boolean);
      const done = keys.filter((key) => read(`answer/${key}`) !== null).length;
      all += done;
      place.textContent = keys.length ? `${done} of ${keys.length} questions answered` : "";
    }
    if (forget) forget.hidden = all === 0;
  }
  forget?.addEventListener("click", () => {
    for (const name of Object.keys(store))
      if (name.startsWith(`${PREFIX}answer/`)) store.removeItem(name);
    count();
    document.getElementById("lessons").scrollIntoView();
  });
  count();
})();
