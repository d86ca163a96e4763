"""The site in a browser: files and server, both themes, telephone, keyboard, no scripts."""

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
from labkit.site import SiteError, run_notebook, write_site
from labkit.widgets import BitExplorer, FaultWall, LiveTraining, NumberLine, UnderflowHistogram
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.predict.widget import Predict, Prediction, Ruler
from tests.widgets.pages import BrowserEngine, Scripts

GRADIENTS = {"conv": torch.linspace(-1, 1, 50) * 2.0**-20, "head": torch.ones(3) * 2.0**-9}
CHOICE = Prediction("1 + 1?", {"2": "It is.", "3": "One too many."}, answer="2")
NUMBER = Prediction(
    "How many?", {"less": "More.", "near": "Good.", "more": "Fewer."}, ruler=Ruler(1, 1000, "%")
)
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
    metadata = {"tags": list(tags)} if tags else {}
    return nbformat.v4.new_code_cell(source, id=id, outputs=list(outputs), metadata=metadata)


def displayed(id: str) -> Any:
    shown, _ = WIDGETS[id]()._repr_mimebundle_()
    data = {
        kind: base64.b64encode(it).decode() if isinstance(it, bytes) else it
        for kind, it in shown.items()
    }
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
    new, markdown = nbformat.v4.new_notebook, nbformat.v4.new_markdown_cell
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
    linked = {name for name in re.findall(r'href="(\w+\.html)', page) if name != "index.html"}
    assert linked <= {"06_lesson.html"}
    assert "Later" in page, "its name stays as text"


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """The address of a plain web server of the site."""
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(site))
    ) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@contextmanager
def visit(browser: Any, address: str, script: str = "", **options: Any) -> Any:
    """Open a page; at the end, require that nothing failed and no request left the site."""
    context = browser.new_context(**options)
    context.add_init_script(script)
    page = context.new_page()
    wrong = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    root = address.rpartition("/")[0]
    page.on(
        "request",
        lambda asked: (
            wrong.append(asked.url) if not asked.url.startswith((root, "data:")) else None
        ),
    )
    page.goto(address)
    yield page
    context.close()
    assert wrong == []


def test_widgets_answer_from_a_file_by_keyboard(site: Path, browser: Any) -> None:
    with visit(browser, (site / "06_lesson.html").as_uri()) as page:
        alive = page.evaluate(
            "[...document.querySelectorAll('[data-key]:has(.labkit)')].map((e) => e.dataset.key)"
        )
        assert alive == list(WIDGETS)
        histogram = page.locator("[data-key=scale]")
        slider = histogram.locator("input[type=range]").first
        sentence = histogram.locator(".lk-sentence")
        before = sentence.inner_text()
        slider.focus()
        slider.press("End")
        assert sentence.inner_text() != before
        assert page.locator("nav[aria-label=Sections] a").all_inner_texts() == [
            "1 · The first part"
        ]
        page.locator("#head").get_by_role("link", name="ulp").click()
        page.wait_for_url("**/glossary.html#ulp")
        page.go_back()
        live = page.locator("[data-key=live]")
        assert "A recorded training: " in live.locator(".lk-sentence").inner_text()
        assert "torch 2" in live.locator("p.run-record").first.inner_text()
        assert live.locator(".run-button:visible").count() == 0
        live.get_by_role("slider", name="Step").press("Home")
        live.get_by_text(re.compile(r"^step 0 of")).wait_for()
        live.get_by_role("button", name="Play").press("Enter")
        live.get_by_text(re.compile(r"^step [1-9]\d* of")).wait_for()
        wall = page.locator("[data-key=wall]")
        wall.get_by_role("textbox").fill("Attempting to unscale FP16 gradients")
        assert 0 < wall.locator(".pw-card:visible").count() < wall.locator(".pw-card").count() / 4
        wall.locator(".pw-card:visible summary").first.press("Enter")
        assert wall.locator(".pw-back:visible .pw-code").count() == 2
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


def test_answers_and_the_theme_survive_a_reload(served: str, browser: Any) -> None:
    with visit(browser, f"{served}/06_lesson.html") as page:
        held = page.locator("#words pre.site-text")
        choice = page.locator("[data-key=choice]")
        for key in ("Space", "Enter"):
            choice.get_by_label("3").press(key)
        reply = choice.locator(".lk-reply")
        progress = page.locator(".site-progress").first
        assert reply.inner_text() == "Not quite: 2. One too many."
        assert held.is_visible()
        page.reload()
        assert reply.inner_text() == "Not quite: 2. One too many."
        page.goto(f"{served}/index.html")
        assert progress.inner_text() == "1 of 2 questions answered"
        page.get_by_role("button", name="Forget my answers").click()
        assert progress.inner_text() == "0 of 2 questions answered"
    with visit(
        browser, f"{served}/index.html", color_scheme="dark"
    ) as page:  # the system's theme, until one is chosen
        assert page.locator("body").get_attribute("data-jp-theme-light") == "false"
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the text"
        page.get_by_role("button", name="Light theme").click()
        page.reload()
        assert page.locator("body").get_attribute("data-jp-theme-light") == "true"


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


def test_a_place_of_the_index_is_no_setting(site: Path, browser: Any) -> None:
    with visit(browser, f"{(site / 'index.html').as_uri()}#lessons") as page:
        assert page.locator(".pg-notice").is_hidden()


def test_an_explanation_waits_and_an_instruction_does_not(
    tmp_path: Path, browser: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(LabWidget, "for_pages", True)
    look = nbformat.v4.new_markdown_cell("Press it.", id="look", metadata={"site": "Now look."})
    why = nbformat.v4.new_markdown_cell(folded("It is **2**.", ["choice"]), id="why")
    exercise = nbformat.v4.new_markdown_cell("### Exercise\n\nAdd.", id="exercise")
    printed = nbformat.v4.new_output("stream", name="stdout", text="two")
    found = code("sum", "print('two')", printed, tags=("answer-choice",))
    cells = [displayed("choice"), look, found, why, exercise]
    write_site(tmp_path / "site", {"06_lesson": nbformat.v4.new_notebook(cells=cells)})
    with visit(browser, (tmp_path / "site" / "06_lesson.html").as_uri()) as page:
        choice = page.get_by_label("3")
        choice.wait_for()
        assert page.locator("#look p").is_visible()
        assert page.locator("#look").inner_text() == "Now look."
        assert page.locator("#exercise p").is_visible()
        assert not page.locator("#why strong").is_visible()
        assert not page.locator("#sum .jp-Cell-outputWrapper pre").last.is_visible()
        assert page.locator("#sum.labkit-waits.labkit-waits-choice").count() == 1
        choice.press("Space")
        choice.press("Enter")
        page.locator("#why strong").wait_for(state="visible")
        page.locator("#sum .jp-Cell-outputWrapper pre").last.wait_for(state="visible")


def test_page_fits_a_telephone_and_works_without_scripts(site: Path, browser: Any):
    for name in ("index", "06_lesson", "07_later"):
        with visit(
            browser, (site / f"{name}.html").as_uri(), viewport={"width": 390, "height": 844}
        ) as page:
            assert page.evaluate("document.documentElement.scrollWidth") == 390, name
    with visit(browser, (site / "06_lesson.html").as_uri(), java_script_enabled=False) as page:
        for what in ("noscript p", "#scale img", "#words pre.site-text"):
            assert page.locator(what).is_visible(), what
        assert not page.locator("#site-theme").is_visible()


def test_page_without_storage_says_that_it_keeps_nothing(site: Path, browser: Any) -> None:
    off = "Object.defineProperty(window, 'localStorage', { get() { throw new Error('off'); } })"
    with visit(browser, (site / "06_lesson.html").as_uri(), script=off) as page:
        assert page.get_by_text("This browser stores nothing").is_visible()
        choice = page.locator("[data-key=choice]")
        choice.get_by_label("2").check()
        choice.get_by_role("button", name="Commit").click()
        assert choice.locator(".lk-reply").inner_text() == "Yes. It is."


def test_page_escapes_output_and_names_no_folder(site: Path) -> None:
    page = (site / "06_lesson.html").read_text()
    assert "secret.py" not in page
    assert "&lt;b&gt;" in page
    assert '<img alt="2^{-25}"' in page
    once = (
        "You write and check your answer in JupyterLab",
        "This cell needs your answer",
        "KeyError: your code",
    )
    assert [page.count(text) for text in (*once, "This cell is about your own machine")] == [1] * 4
    index = (site / "index.html").read_text()
    assert "5 min" in index, "what the map of the course says"
    assert "<span>an ulp again</span>" in index
    assert "it was never run" in (site / "07_later.html").read_text()
    assert "never run" not in page


def test_only_a_folder_of_a_site_is_replaced(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    one = {"01_one": nbformat.v4.new_notebook()}
    with pytest.raises(SiteError, match="holds other files; name another folder"):
        write_site(tmp_path, one)
    with pytest.raises(SiteError, match="got the file"):
        write_site(tmp_path / "mine.txt", one)
    assert main(["site", str(tmp_path)]) == 2
    assert "expected a new folder" in capsys.readouterr().err
    write_site(tmp_path / "site", one)
    (tmp_path / "site" / "added.txt").write_text("kept")
    write_site(tmp_path / "site", {"02_two": nbformat.v4.new_notebook()})
    left = {file.name for file in (tmp_path / "site").iterdir()}
    assert left >= {"02_two.html", "index.html", "added.txt"}
    assert "01_one.html" not in left


def test_notebooks_are_taken_as_they_are(tmp_path: Path, capsys: Any) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=[code("x", "1")]), tmp_path / "mine.ipynb")
    assert main(["site", str(tmp_path / "pages"), str(tmp_path / "mine.ipynb")]) == 0
    assert "index.html" in capsys.readouterr().out
    assert (tmp_path / "pages" / "mine.html").is_file()
    assert main(["site", str(tmp_path / "pages"), str(tmp_path / "none.ipynb")]) == 2
    assert "there is no notebook" in capsys.readouterr().err
    for folder, name in (("a", "Mine"), ("b", "mine"), ("a", "index")):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / f"{name}.ipynb").write_text("{}")
    for pair in (["a/index.ipynb"], ["a/Mine.ipynb", "b/mine.ipynb"]):
        assert main(["site", str(tmp_path / "out"), *(str(tmp_path / name) for name in pair)]) == 2
        assert "each page needs a name of its own" in capsys.readouterr().err


def test_the_page_replies_to_a_number_as_python_does(browser: Any) -> None:
    scripts = Scripts(BrowserEngine(browser), "predict")
    for low, high, unit, truth in (
        (1, 1000, "%", 40.0),
        (1e-9, 1e12, "", 2.0**22),
        (0.01, 100, " steps", 24.2),
    ):
        row = Prediction(NUMBER.question, NUMBER.choices, ruler=Ruler(low, high, unit))
        for guess in (
            low,
            truth / 300,
            truth / 11.4,
            truth / 1.9,
            truth * 1.04,
            truth * 2.34,
            truth * 5000,
            high,
        ):
            python = Predict(row, lambda truth=truth: truth)
            choice = repr(float(f"{guess:.3g}"))
            if python.accepts(choice):
                state = python.page_state()
                found = scripts.run("replied", state["_replies"], state["ruler"], choice)
                python.choice = choice
                assert found == {
                    "answered": python.answered,
                    "right": python.right,
                    "truth": python.truth,
                }


@pytest.mark.slow
def test_run_keeps_outputs_and_states(
    tmp_path: Path,
) -> None:
    shown = (
        "from labkit.widgets import BitExplorer\nprint('here')",
        "BitExplorer()",
        "print('machine')",
    )
    cells = [
        code(f"cell-{i}", source)
        for i, source in enumerate((*shown, "1 / 0", "import os; os._exit(1)"))
    ]
    cells[2].metadata["tags"] = ["lab-only"]
    run = run_notebook(json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=cells))))
    assert [[output.output_type for output in cell.outputs] for cell in run.cells] == [
        ["stream"],
        ["execute_result"],
        [],
        ["error"],
        [],
    ]
    write_site(tmp_path / "site", {"x": run})
    assert "its run ended early" in (tmp_path / "site" / "x.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_lesson_can_be_read_and_its_widgets_answer(tmp_path: Path, browser: Any) -> None:
    folder = tmp_path / "pages"
    assert main(["site", str(folder)]) == 0
    answering = set()
    for lesson in lessons():
        address = (folder / f"{lesson.name}.html").as_uri()
        for width, theme in ((1280, "dark"), (390, "light")):
            with visit(
                browser, address, viewport={"width": width, "height": 800}, color_scheme=theme
            ) as page:
                assert page.evaluate("document.documentElement.scrollWidth") == width, lesson.name
                found = (
                    "[...document.querySelectorAll('[data-widget]:has(.labkit)')].map((e) "
                    "=> e.dataset.widget)"
                )
                answering |= set(page.evaluate(found))
        assert "never run" not in (folder / f"{lesson.name}.html").read_text()
    assert answering >= {
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
    assert not [file for file in folder.rglob("*.html") if str(Path.cwd()) in file.read_text()]
