"""Widgets as ES modules in pages of others, without Python and without a network."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from labkit.cli import main
from labkit.site import SiteError, write_modules

# A page that shows one module; its host has the methods of anywidget's model.
PAGE = """<!doctype html><html lang="en"><title>A page of one's own</title>
<style>
:root {{ color-scheme: light dark }}
body {{ background: {background}; color: {ink} }}
</style>
<h1>Numbers</h1><div id="place"></div>
<script type="module">
import widget from "./widgets/{name}.mjs";
const host = {{
  values: {values},
  handlers: {{}},
  get(name) {{ return this.values[name]; }},
  set(name, value) {{ this.values[name] = value; }},
  save_changes() {{ this.saved = true; }},
  on(event, handler) {{ this.handlers[event] = handler; }},
  off(event) {{ delete this.handlers[event]; }},
}};
globalThis.host = host;
globalThis.remove = widget.render({{ model: host, el: document.getElementById("place") }});
</script>
"""


class _Quiet(SimpleHTTPRequestHandler):
    """A server that prints nothing, and knows the type of modules."""

    extensions_map: ClassVar = {
        **SimpleHTTPRequestHandler.extensions_map,
        ".mjs": "text/javascript",
    }

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose folder `widgets` has the modules."""
    folder = tmp_path_factory.mktemp("page")
    write_modules(folder / "widgets")
    return folder


@pytest.fixture(scope="module")
def server(modules: Path) -> Iterator[str]:
    """The address of a server of the modules' folder."""
    handler = partial(_Quiet, directory=str(modules))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


DARK = {"background": "#111", "ink": "#eee"}
LIGHT = {"background": "#fff", "ink": "#111"}


@pytest.fixture
def show(browser: Any, modules: Path, server: str) -> Iterator[Any]:
    """A function that shows a module in a page of another site.

    At the end, it is checked that no page failed or sent a request to another server.
    """
    pages = []
    problems: list[str] = []

    def on_request(request: Any) -> None:
        if not request.url.startswith((server, "data:", "blob:")):
            problems.append(f"a request for {request.url}")

    def show_module(name: str, values: str = "{}", dark: bool = False) -> Any:
        colours = DARK if dark else LIGHT
        text = PAGE.format(name=name, values=values, **colours)
        (modules / "index.html").write_text(text, encoding="utf-8")
        page = browser.new_page(viewport={"width": 900, "height": 900})
        pages.append(page)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", on_request)
        page.goto(f"{server}/index.html")
        page.wait_for_selector("section.labkit")
        return page

    yield show_module
    for page in pages:
        page.close()
    assert problems == []


def names(folder: Path) -> list[str]:
    """Return the names of the modules."""
    return sorted(path.stem for path in (folder / "widgets").glob("*.mjs"))


def test_there_are_ten_modules(modules: Path) -> None:
    assert len(names(modules)) == 10


def test_every_module_shows_its_widget(modules: Path, show: Any) -> None:
    for name in names(modules):
        page = show(name)
        assert page.locator("section.labkit").count() == 1, name


# JavaScript or CSS that loads something: an import, at the beginning of a line or as a function, a
# sheet of CSS, and a picture of another server.
LOADING = re.compile(r"^\s*import\b|\bimport\s*\(|@import|url\(\s*[\"']?http", re.MULTILINE)


def test_a_module_loads_nothing(modules: Path) -> None:
    for name in names(modules):
        text = (modules / "widgets" / f"{name}.mjs").read_text(encoding="utf-8")
        assert LOADING.findall(text) == [], name


def test_the_keyboard_moves_a_number_line(show: Any) -> None:
    page = show("NumberLine")
    handle = page.locator("[role=slider]").first
    handle.focus()
    before = handle.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    assert handle.get_attribute("aria-valuetext") != before


def test_a_value_of_the_host_is_the_first_one(show: Any) -> None:
    page = show("BitExplorer", '{ format: "BF16" }')
    assert page.locator("select").first.input_value() == "BF16"


def test_a_change_reaches_the_host(show: Any) -> None:
    page = show("BitExplorer", '{ format: "BF16" }')
    page.locator("select").first.select_option("FP16")
    assert page.evaluate("host.values.format") == "FP16"
    assert page.evaluate("host.saved") is True


def test_a_change_of_the_host_is_shown(show: Any) -> None:
    page = show("BitExplorer", '{ format: "BF16" }')
    page.evaluate("host.values.format = 'FP16'; host.handlers['change:format']()")
    assert page.locator("select").first.input_value() == "FP16"


def test_a_widget_that_goes_leaves_nothing(show: Any) -> None:
    page = show("NumberLine", '{ x: "3" }')
    page.evaluate("remove()")
    assert page.evaluate("document.querySelectorAll('#place *').length") == 0
    assert page.evaluate("Object.keys(host.handlers)") == []


@pytest.mark.parametrize("dark", [False, True])
def test_ink_contrasts_with_the_hosts_background(show: Any, dark: bool) -> None:
    page = show("NumberLine", dark=dark)
    ink = page.evaluate("getComputedStyle(document.querySelector('section.labkit')).color")
    # "rgb(31, 31, 31)", from 0, black, to 255.
    lightness = sum(int(part) for part in re.findall(r"\d+", ink)[:3]) / 3
    if dark:
        assert lightness > 200
    else:
        assert lightness < 60


def test_command_writes_the_modules(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "--widgets", str(tmp_path / "widgets")]) == 0
    assert "10 modules" in capsys.readouterr().out
    assert (tmp_path / "widgets" / "NumberLine.mjs").is_file()


def test_command_without_a_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site"]) == 2
    message = "expected a folder for the pages, --widgets FOLDER or --playground"
    assert message in capsys.readouterr().err


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SiteError, match="expected a folder, got the file"):
        write_modules(tmp_path / "file")


def test_the_example_of_the_documentation_shows_its_number(show: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "widgets.md").read_text(encoding="utf-8")
    example = re.search(r"```\{anywidget\} widgets/(\w+)\.mjs\n(\{.*?\})\n```", text, re.DOTALL)
    assert example is not None
    page = show(example[1], example[2])
    assert page.locator("select").first.input_value() == "BF16"
    assert page.locator("input[type=text]").first.input_value() == "0.1"
    sentence = page.locator(".lk-sentence").first.get_attribute("data-text")
    assert sentence is not None
    assert sentence.startswith("0.1 "), sentence
