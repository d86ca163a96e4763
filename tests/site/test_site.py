"""The site: its pages in a browser, and its files.

In a browser the pages are opened from files and from a server, in both themes, on a telephone, by
keyboard, and without scripts.
"""

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from labkit.cli import main
from labkit.course import lessons
from labkit.course.notebook import folded
from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.records import write_atomic
from labkit.site import MARKER, SiteError, run_notebook, write_site
from labkit.widgets import BitExplorer, FaultWall, LiveTraining, NumberLine, UnderflowHistogram
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.predict.widget import Predict, Prediction, Ruler
from tests.widgets.pages import BrowserEngine, Scripts

# Gradients of which many are zero in FP16, and some that are not.
GRADIENTS = {"conv": torch.linspace(-1, 1, 50) * 2.0**-20, "head": torch.ones(3) * 2.0**-9}
CHOICE = Prediction("1 + 1?", {"2": "It is.", "3": "One too many."}, answer="2")
NUMBER = Prediction(
    "How many?", {"less": "More.", "near": "Good.", "more": "Fewer."}, ruler=Ruler(1, 1000, "%")
)
# Key of a cell -> a function that makes the widget that the cell shows.
WIDGETS = {
    "choice": lambda: with_slug(Predict(CHOICE), "choice"),
    "number": lambda: Predict(NUMBER, lambda: 40.0),
    "scale": lambda: UnderflowHistogram(snapshot(GRADIENTS, step=0, kind="weight gradients")),
    "bits": lambda: BitExplorer(FP16, 1.0),
    "line": lambda: NumberLine(FP16, 2049.0),
    "wall": FaultWall,
    "live": lambda: LiveTraining("digits", "FP16 dynamic", device="cpu", sketch=True),
}


def code(id: str, source: str, *outputs: Any, tags: tuple[str, ...] = ()) -> Any:
    """Return a code cell with its outputs."""
    metadata = {"tags": list(tags)} if tags else {}
    return nbformat.v4.new_code_cell(source, id=id, outputs=list(outputs), metadata=metadata)


def displayed(id: str) -> Any:
    """Return a code cell whose output is one of WIDGETS, as a notebook saves it."""
    bundle, _ = WIDGETS[id]()._repr_mimebundle_()
    data = {}
    for mime_type, content in bundle.items():
        # A notebook saves pictures in base64.
        is_binary = isinstance(content, bytes)
        data[mime_type] = base64.b64encode(content).decode() if is_binary else content
    return code(id, f"{id}()", nbformat.v4.new_output("display_data", data))


def lesson() -> Any:
    """Return a lesson with each kind of cell and output."""
    markdown = nbformat.v4.new_markdown_cell
    row = "| **07** | [Later](07_later.ipynb) | 5 | an [ulp](glossary.ipynb#cell-id=ulp) again |"
    text = (
        "# 06 · A lesson\n\nIt loses $2^{-25}$, an [ulp](glossary.ipynb#cell-id=ulp).\n\n"
        "| a |\n|---|\n| 1 |"
    )
    words = nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m <b>\n")
    error = {
        "ename": "NotImplementedError",
        "evalue": "your code",
        "traceback": ["secret.py, line 1"],
    }
    raised = nbformat.v4.new_output("error", **error)
    other = nbformat.v4.new_output("error", **{**error, "ename": "KeyError"})
    cells = [
        markdown(text, id="head"),
        markdown("## 1 · The first part", id="part"),
        markdown("| | lesson | minutes | you will see |\n|---|---|---|---|\n" + row, id="map"),
        *map(displayed, WIDGETS),
        code("words", "print('red')", words),
        code(
            "exercise-a", "def f():\n    raise NotImplementedError", raised, tags=("exercise-a.b",)
        ),
        code("needs", "f()", raised),
        code("other", "{}[1]", other),
        code("doctor", "check_machine()", words, tags=("lab-only",)),
    ]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a site: a lesson as a run leaves it, one that was never run, and a glossary."""
    new = nbformat.v4.new_notebook
    markdown = nbformat.v4.new_markdown_cell
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabWidget, "for_pages", True)
        never = new(cells=[markdown("# 07 · Later"), code("x", "1 + 1")])
        glossary = new(cells=[markdown("### ulp\n\nA distance.", id="ulp")])
        folder = tmp_path_factory.mktemp("pages") / "site"
        write_site(folder, {"06_lesson": lesson(), "07_later": never, "glossary": glossary})
    return folder


def test_a_page_links_to_no_lesson_that_was_not_written(tmp_path: Path) -> None:
    write_site(tmp_path / "site", {"06_lesson": lesson()})
    page = (tmp_path / "site" / "06_lesson.html").read_text(encoding="utf-8")
    assert set(re.findall(r'href="(\w+\.html)', page)) <= {"06_lesson.html", "index.html"}
    # The name of the lesson stays as text.
    assert "Later" in page


def test_links_between_notebooks_lead_to_pages_whatever_their_names(tmp_path: Path) -> None:
    links = "[a](my-notes.ipynb) [b](my%20notes.ipynb#x) [c](no-page.ipynb) [d](//x.org/a.ipynb)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(links, id="links")])
    write_site(tmp_path / "site", {"my-notes": notebook, "my notes": notebook})
    page = (tmp_path / "site" / "my notes.html").read_text(encoding="utf-8")
    for link in (
        '<a href="my-notes.html">a</a>',
        '<a href="my%20notes.html#x">b</a>',
        '<a href="//x.org/a.ipynb">d</a>',
    ):
        assert link in page
    assert "no-page" not in page


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """The address of a plain web server of the site."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


@contextmanager
def visit(browser: Any, address: str, script: str = "", **options: Any) -> Any:
    """Open a page, and check at the end that nothing failed and no request left the site.

    Args:
        browser: The browser.
        address: The address of the page.
        script: JavaScript that runs before the page's own.
        **options: Options of the browser's context.
    """
    context = browser.new_context(**options)
    context.add_init_script(script)
    page = context.new_page()
    problems = []
    root = address.rpartition("/")[0]

    def on_console(message: Any) -> None:
        if message.type == "error":
            problems.append(message.text)

    def on_request(request: Any) -> None:
        if not request.url.startswith((root, "data:")):
            problems.append(request.url)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", on_console)
    page.on("request", on_request)
    try:
        page.goto(address)
        yield page
    finally:
        context.close()
    assert problems == []


@pytest.fixture
def file_page(site: Path, browser: Any) -> Iterator[Any]:
    """The page of the lesson, opened as a file."""
    with visit(browser, (site / "06_lesson.html").as_uri()) as page:
        yield page


def test_every_widget_is_drawn_from_a_file(file_page: Any) -> None:
    keys = file_page.evaluate(
        "[...document.querySelectorAll('[data-key]:has(.labkit)')].map((e) => e.dataset.key)"
    )
    assert keys == list(WIDGETS)


def test_the_keyboard_moves_the_slider_of_a_histogram(file_page: Any) -> None:
    histogram = file_page.locator("[data-key=scale]")
    sentence = histogram.locator(".lk-sentence")
    before = sentence.inner_text()
    slider = histogram.locator("input[type=range]").first
    slider.focus()
    slider.press("End")
    assert sentence.inner_text() != before


def test_a_page_links_to_its_sections(file_page: Any) -> None:
    links = file_page.locator("nav[aria-label=Sections] a")
    assert links.all_inner_texts() == ["1 · The first part"]


def test_a_term_leads_to_the_glossary(file_page: Any) -> None:
    file_page.locator("#head").get_by_role("link", name="ulp").click()
    file_page.wait_for_url("**/glossary.html#ulp")


def test_a_recorded_training_plays_by_keyboard(file_page: Any) -> None:
    live = file_page.locator("[data-key=live]")
    live.get_by_role("slider", name="Step").press("Home")
    live.get_by_text(re.compile(r"^step 0 of")).wait_for()
    live.get_by_role("button", name="Play").press("Enter")
    live.get_by_text(re.compile(r"^step [1-9]\d* of")).wait_for()


def test_a_recorded_training_says_that_it_is_one(file_page: Any) -> None:
    live = file_page.locator("[data-key=live]")
    assert "A recorded training: " in live.locator(".lk-sentence").inner_text()
    assert "torch 2" in live.locator("p.run-record").first.inner_text()


def test_a_recorded_training_cannot_be_run(file_page: Any) -> None:
    live = file_page.locator("[data-key=live]")
    live.locator(".lk-sentence").wait_for()
    assert live.locator(".run-button:visible").count() == 0


def test_the_fault_wall_is_searched_by_keyboard(file_page: Any) -> None:
    wall = file_page.locator("[data-key=wall]")
    wall.get_by_role("textbox").fill("Attempting to unscale FP16 gradients")
    visible = wall.locator(".pw-card:visible").count()
    assert 0 < visible < wall.locator(".pw-card").count() / 4
    wall.locator(".pw-card:visible summary").first.press("Enter")
    # The broken code and the repaired code.
    assert wall.locator(".pw-back:visible .pw-code").count() == 2


def test_a_fault_of_the_wall_cannot_be_run(file_page: Any) -> None:
    wall = file_page.locator("[data-key=wall]")
    wall.locator(".pw-card:visible summary").first.press("Enter")
    wall.locator(".pw-back:visible").first.wait_for()
    assert not wall.get_by_role("button", name="Run it").first.is_visible()


def test_a_sketch_is_kept_over_a_reload(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/06_lesson.html") as page:
        live = page.locator("[data-key=live]")
        live.get_by_role("button", name="Draw what you expect").press("Enter")
        for key in ("Space", "ArrowRight", "ArrowDown", "Enter"):
            page.keyboard.press(key)
        words = live.locator(".lt-sketch-words")
        page.wait_for_function(
            "document.querySelector('.lt-sketch-words').innerText.startsWith('You drew')"
        )
        drawn = words.inner_text()
        page.reload()
        page.wait_for_function("document.querySelector('.lt-sketch-words').innerText !== ''")
        assert words.inner_text() == drawn


def answer_wrongly(page: Any) -> Any:
    """Answer the question of the lesson with 3 by keyboard, and return the place of the reply."""
    choice = page.locator("[data-key=choice]")
    for key in ("Space", "Enter"):
        choice.get_by_label("3").press(key)
    return choice.locator(".lk-reply")


def test_an_answer_survives_a_reload(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/06_lesson.html") as page:
        reply = answer_wrongly(page)
        assert reply.inner_text() == "Not quite: 2. One too many."
        page.reload()
        assert reply.inner_text() == "Not quite: 2. One too many."


def test_the_output_of_a_cell_is_visible(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/06_lesson.html") as page:
        assert page.locator("#words pre.site-text").is_visible()


def test_the_index_counts_answers_until_they_are_forgotten(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/06_lesson.html") as page:
        answer_wrongly(page).wait_for()
        page.goto(f"{served}/index.html")
        progress = page.locator(".site-progress").first
        assert progress.inner_text() == "1 of 2 questions answered"
        page.get_by_role("button", name="Forget my answers").click()
        assert progress.inner_text() == "0 of 2 questions answered"


def test_the_index_counts_answers_on_a_page_of_any_name(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LabWidget, "for_pages", True)
    notebook = nbformat.v4.new_notebook(cells=[displayed("choice")])
    write_site(tmp_path, {"my notes, 100% #1": notebook})
    with visit(browser, (tmp_path / "index.html").as_uri()) as page:
        page.get_by_role("link", name="my notes").click()
        answer_wrongly(page).wait_for()
        page.get_by_role("link", name="All lessons").click()
        page.get_by_text("1 of 1 questions answered", exact=True).wait_for()


def test_a_chosen_theme_replaces_the_systems_and_stays(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/index.html", color_scheme="dark") as page:
        body = page.locator("body")
        assert body.get_attribute("data-jp-theme-light") == "false"
        page.get_by_role("button", name="Light theme").click()
        page.reload()
        assert body.get_attribute("data-jp-theme-light") == "true"


def test_the_first_key_offers_to_skip_to_the_text(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/index.html") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the text"


def with_slug(widget: Predict, slug: str) -> Predict:
    """Return a prediction with the id that `predict` would give it."""
    widget.slug = slug
    return widget


def test_the_index_begins_with_the_playground(site: Path, browser: Any) -> None:
    with visit(browser, (site / "index.html").as_uri()) as page:
        first = page.locator(".labkit").first
        assert first.get_attribute("aria-label") == "Playground"
        first.get_by_role("button", name="One step").press("Enter")
        assert first.locator(".pg-count").inner_text() == "step 1"
        first.get_by_label("recipe").select_option("O1")
        page.wait_for_function("() => location.hash.includes('recipe=O1')")


def test_a_place_of_the_index_is_not_a_setting(site: Path, browser: Any) -> None:
    with visit(browser, f"{(site / 'index.html').as_uri()}#lessons") as page:
        assert page.locator(".pg-notice").is_hidden()


@pytest.fixture
def page_of_a_question(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A page with a question, an instruction, an answer with its explanation, and an exercise."""
    monkeypatch.setattr(LabWidget, "for_pages", True)
    look = nbformat.v4.new_markdown_cell("Press it.", id="look", metadata={"site": "Now look."})
    why = nbformat.v4.new_markdown_cell(folded("It is **2**.", ["choice"]), id="why")
    exercise = nbformat.v4.new_markdown_cell("### Exercise\n\nAdd.", id="exercise")
    printed = nbformat.v4.new_output("stream", name="stdout", text="two")
    answer = code("sum", "print('two')", printed, tags=("answer-choice",))
    cells = [displayed("choice"), look, answer, why, exercise]
    write_site(tmp_path / "site", {"06_lesson": nbformat.v4.new_notebook(cells=cells)})
    with visit(browser, (tmp_path / "site" / "06_lesson.html").as_uri()) as page:
        page.get_by_label("3").wait_for()
        yield page


def test_an_instruction_does_not_wait_for_an_answer(page_of_a_question: Any) -> None:
    assert page_of_a_question.locator("#look p").is_visible()
    assert page_of_a_question.locator("#exercise p").is_visible()


def test_a_page_may_have_another_instruction_than_the_lab(page_of_a_question: Any) -> None:
    assert page_of_a_question.locator("#look").inner_text() == "Now look."


def test_an_explanation_waits_for_the_answer(page_of_a_question: Any) -> None:
    explanation = page_of_a_question.locator("#why strong")
    assert not explanation.is_visible()
    answer_wrongly(page_of_a_question)
    explanation.wait_for(state="visible")


def test_the_output_of_an_answer_waits_for_it(page_of_a_question: Any) -> None:
    output = page_of_a_question.locator("#sum .jp-Cell-outputWrapper pre").last
    assert not output.is_visible()
    assert page_of_a_question.locator("#sum.labkit-waits.labkit-waits-choice").count() == 1
    answer_wrongly(page_of_a_question)
    output.wait_for(state="visible")


@pytest.mark.parametrize("name", ["index", "06_lesson", "07_later"])
def test_a_page_fits_a_telephone(site: Path, browser: Any, name: str) -> None:
    screen = {"width": 390, "height": 844}
    with visit(browser, (site / f"{name}.html").as_uri(), viewport=screen) as page:
        assert page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_page_can_be_read_without_scripts(site: Path, browser: Any) -> None:
    address = (site / "06_lesson.html").as_uri()
    with visit(browser, address, java_script_enabled=False) as page:
        for selector in ("noscript p", "#scale img", "#words pre.site-text"):
            assert page.locator(selector).is_visible(), selector
        # A button that would do nothing is hidden.
        assert not page.locator("#site-theme").is_visible()


def test_page_without_storage_says_that_it_keeps_nothing(site: Path, browser: Any) -> None:
    off = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('off'); } })"
    with visit(browser, (site / "06_lesson.html").as_uri(), script=off) as page:
        assert page.get_by_text("This browser stores nothing").is_visible()
        choice = page.locator("[data-key=choice]")
        choice.get_by_label("2").check()
        choice.get_by_role("button", name="Commit").click()
        assert choice.locator(".lk-reply").inner_text() == "Yes. It is."


@pytest.fixture(scope="module")
def html(site: Path) -> str:
    """The HTML of the lesson."""
    return (site / "06_lesson.html").read_text(encoding="utf-8")


def test_a_page_shows_no_traceback_with_its_folders(html: str) -> None:
    assert "secret.py" not in html


def test_a_page_escapes_output(html: str) -> None:
    assert "&lt;b&gt;" in html


def test_a_formula_is_a_picture(html: str) -> None:
    assert '<img alt="2^{-25}"' in html


@pytest.mark.parametrize(
    "sentence",
    [
        "You write and check your answer in JupyterLab",
        "This cell needs your answer",
        "This cell is about your own machine",
    ],
)
def test_a_cell_that_cannot_be_run_has_a_sentence(html: str, sentence: str) -> None:
    assert html.count(sentence) == 1


def test_an_error_of_a_cell_is_shown_once(html: str) -> None:
    assert html.count("KeyError: your code") == 1


def test_the_index_has_the_map_of_the_course(site: Path) -> None:
    index = (site / "index.html").read_text(encoding="utf-8")
    assert "5 min" in index
    # A link inside the map would be one link in another.
    assert "<span>an ulp again</span>" in index


def test_a_page_says_whether_its_lesson_was_run(site: Path, html: str) -> None:
    assert "it was never run" in (site / "07_later.html").read_text(encoding="utf-8")
    assert "never run" not in html


ONE_PAGE = {"01_one": nbformat.v4.new_notebook()}


def test_a_site_that_was_interrupted_can_be_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: Path, content: bytes) -> Path:
        if path.name == "02_two.html":
            raise KeyboardInterrupt
        return write_atomic(path, content)

    two_pages = {**ONE_PAGE, "02_two": nbformat.v4.new_notebook()}
    with monkeypatch.context() as patch:
        patch.setattr("labkit.site.writing.write_atomic", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_site(tmp_path, two_pages)
    assert (tmp_path / "01_one.html").is_file()
    write_site(tmp_path, {"03_three": nbformat.v4.new_notebook()})
    assert {path.name for path in tmp_path.glob("*.html")} == {"index.html", "03_three.html"}


@pytest.mark.parametrize(
    "content",
    [b"", b"text", b"[]", b'"text"', b'{"a": 1}', b'{"nbformat": 4, "metadata": {}}', b"\xff"],
)
def test_a_file_of_another_kind_than_a_notebook_is_refused(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.ipynb"
    file.write_bytes(content)
    assert main(["site", str(tmp_path / "pages"), str(file)]) == 2
    assert f"labkit site: expected a notebook, got {file}" in capsys.readouterr().err


def test_a_folder_of_other_files_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SiteError, match="holds other files; name another folder"):
        write_site(tmp_path, ONE_PAGE)
    assert main(["site", str(tmp_path)]) == 2
    assert "expected a new folder" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["not JSON", "{}", "[1]", '["../mine.txt"]'])
def test_a_damaged_list_of_a_sites_files_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / MARKER).write_text(text)
    with pytest.raises(SiteError, match="expected the list of a site's files"):
        write_site(folder, ONE_PAGE)
    assert (tmp_path / "mine.txt").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SiteError, match="got the file"):
        write_site(tmp_path / "mine.txt", ONE_PAGE)


def test_a_site_replaces_the_pages_of_the_one_before(tmp_path: Path) -> None:
    folder = tmp_path / "site"
    write_site(folder, ONE_PAGE)
    (folder / "added.txt").write_text("kept")
    write_site(folder, {"02_two": nbformat.v4.new_notebook()})
    names = {path.name for path in folder.iterdir()}
    assert names >= {"02_two.html", "index.html", "added.txt"}
    assert "01_one.html" not in names


def test_the_command_takes_a_notebook_as_it_is(tmp_path: Path, capsys: Any) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=[code("x", "1")]), tmp_path / "mine.ipynb")
    assert main(["site", str(tmp_path / "pages"), str(tmp_path / "mine.ipynb")]) == 0
    assert "index.html" in capsys.readouterr().out
    assert (tmp_path / "pages" / "mine.html").is_file()


def test_the_command_refuses_a_missing_notebook(tmp_path: Path, capsys: Any) -> None:
    assert main(["site", str(tmp_path / "pages"), str(tmp_path / "none.ipynb")]) == 2
    assert "there is no notebook" in capsys.readouterr().err


@pytest.mark.parametrize(
    "notebooks",
    [["a/index.ipynb"], ["a/Mine.ipynb", "b/mine.ipynb"]],
    ids=["that of the index", "twice but for case"],
)
def test_names_of_pages_must_differ(tmp_path: Path, capsys: Any, notebooks: list[str]) -> None:
    paths = [tmp_path / notebook for notebook in notebooks]
    for path in paths:
        path.parent.mkdir()
        path.write_text("{}")
    assert main(["site", str(tmp_path / "out"), *map(str, paths)]) == 2
    assert "each page needs a name of its own" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ruler", "truth"),
    [(Ruler(1, 1000, "%"), 40.0), (Ruler(1e-9, 1e12, ""), 2.0**22), (Ruler(0.01, 100, "s"), 24.2)],
    ids=["percent", "wide", "seconds"],
)
def test_the_page_replies_to_a_number_as_python_does(
    browser: Any, ruler: Ruler, truth: float
) -> None:
    scripts = Scripts(BrowserEngine(browser), "predict")
    question = Prediction(NUMBER.question, NUMBER.choices, ruler=ruler)
    compared = 0
    # Both ends of the ruler, and guesses on both sides of each limit of a reply.
    shares = (1 / 300, 1 / 11.4, 1 / 1.9, 1.04, 2.34, 5000)
    for guess in (ruler.low, *(truth * share for share in shares), ruler.high):
        python = Predict(question, lambda: truth)
        choice = repr(float(f"{guess:.3g}"))
        if not python.accepts(choice):
            continue
        state = python.page_state()
        reply = scripts.run("replied", state["_replies"], state["ruler"], choice)
        python.choice = choice
        assert reply == {
            "answered": python.answered,
            "right": python.right,
            "truth": python.truth,
        }
        compared += 1
    assert compared >= 4


@pytest.mark.slow
def test_run_keeps_outputs_and_says_that_it_ended_early(tmp_path: Path) -> None:
    # Source of a cell -> the types of its outputs. The last cell ends the kernel.
    outputs_of = {
        "from labkit.widgets import BitExplorer\nprint('here')": ["stream"],
        "BitExplorer()": ["execute_result"],
        "print('machine')": [],
        "1 / 0": ["error"],
        "import os; os._exit(1)": [],
    }
    cells = [code(f"cell-{number}", source) for number, source in enumerate(outputs_of)]
    cells[2].metadata["tags"] = ["lab-only"]
    run = run_notebook(json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=cells))))
    for cell in run.cells:
        types = [output.output_type for output in cell.outputs]
        assert types == outputs_of[cell.source], cell.source
    write_site(tmp_path / "site", {"x": run})
    assert "its run ended early" in (tmp_path / "site" / "x.html").read_text()


# JavaScript: the names of the widgets that a page shows.
SHOWN_WIDGETS = (
    "[...document.querySelectorAll('[data-widget]:has(.labkit)')].map((e) => e.dataset.widget)"
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_lesson_is_readable_with_its_widgets_drawn(tmp_path: Path, browser: Any) -> None:
    folder = tmp_path / "pages"
    assert main(["site", str(folder)]) == 0
    widgets = set()
    for lesson in lessons():
        address = (folder / f"{lesson.name}.html").as_uri()
        for width, theme in ((1280, "dark"), (390, "light")):
            screen = {"width": width, "height": 800}
            with visit(browser, address, viewport=screen, color_scheme=theme) as page:
                assert page.evaluate("document.documentElement.scrollWidth") == width, lesson.name
                widgets |= set(page.evaluate(SHOWN_WIDGETS))
        assert "never run" not in (folder / f"{lesson.name}.html").read_text()
    assert widgets >= {
        "addition",
        "beat_scaler",
        "bits",
        "block_scales",
        "graph",
        "ledger",
        "mma_block",
        "number_line",
        "playground",
        "fault_wall",
        "predict",
        "scaler_timeline",
        "step_debugger",
        "swallowed",
        "underflow",
        "workbench",
        "workers",
        "zoom",
    }
    # No page names a folder of the machine that wrote it.
    assert not [file for file in folder.rglob("*.html") if str(Path.cwd()) in file.read_text()]
