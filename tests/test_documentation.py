"""The documentation site: it builds without a warning, and loads nothing from other hosts."""

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs import griffe_doctests, mkdocs_hooks
from labkit.site.modules import page_widgets
from tests.slowness import slowness

ROOT = Path(__file__).parents[1]
# What a page loads by itself; links, which the reader follows, may lead anywhere.
LOADED = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="([^"]+)"|<link[^>]*\shref="([^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built as `make docs` builds it: a warning is an error."""
    folder = tmp_path_factory.mktemp("documentation")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300 * slowness(),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


pytestmark = pytest.mark.timeout(400 * slowness())


def test_every_guide_is_a_page(site):
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert guides <= {path.stem for path in site.glob("*.html")}


def test_no_page_loads_anything_from_another_host(site):
    for page in site.rglob("*.html"):
        for addresses in LOADED.findall(page.read_text(encoding="utf-8")):
            # One of the two groups is empty.
            address = "".join(addresses)
            assert not re.match(r"(https?:)?//", address), (page.name, address)


def test_no_style_sheet_loads_anything_from_another_host(site):
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_every_link_and_picture_inside_the_site_exists(site):
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for address in re.findall(r'(?:href|src)="([^"#?]+)[^"]*"', text):
            # The page of an error is shown at any address: its links begin at the root.
            if re.match(r"[a-z]+:|//", address) or page.name == "404.html":
                continue
            assert (page.parent / address).exists(), (page.name, address)


def test_the_api_has_the_engine_with_its_example(site):
    text = (site / "api" / "amp.html").read_text(encoding="utf-8")
    assert 'id="labkit.amp.Engine"' in text
    assert "&gt;&gt;&gt;" in text


@pytest.mark.parametrize("package", mkdocs_hooks.API)
def test_every_export_is_in_the_api(site, package):
    module = importlib.import_module(f"labkit.{package}")
    text = (site / "api" / f"{package}.html").read_text(encoding="utf-8")
    # labkit.interop has no __all__.
    exported = getattr(module, "__all__", ("round_tensor",))
    # A function with the name of its module has its module in its path.
    missing = [
        name
        for name in exported
        if not re.search(rf'id="labkit\.{package}\.([\w.]+\.)?{name}"', text)
    ]
    assert missing == []


def test_each_widget_without_python_can_be_tried(site):
    page = (site / "widgets.html").read_text(encoding="utf-8")
    widgets = list(page_widgets())
    names = [type(widget).__name__ for widget in widgets]
    for widget in widgets:
        widget.close()
    assert names
    for name in names:
        assert f'id="live-{name}"' in page
        assert (site / "live" / f"{name}.mjs").is_file()


@pytest.mark.parametrize(
    ("text", "markdown"),
    [
        ("Add.", "Add."),
        (">>> 1\n1\n\nMore.", "```pycon\n>>> 1\n1\n```\n\nMore."),
        ("A.\n\n>>> 1\n1", "A.\n\n```pycon\n>>> 1\n1\n```"),
    ],
)
def test_an_example_becomes_a_block_of_code(text, markdown):
    assert griffe_doctests.fenced(text) == markdown
