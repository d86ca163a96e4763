"""Fixtures of the widgets' tests: functions of their scripts, and a page without a kernel."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from labkit.records.journal import NAME
from tests.javascript.node import NodeEngine, node
from tests.widgets.pages import BrowserEngine, Page, Scripts


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[NodeEngine | BrowserEngine]:
    """What runs JavaScript: node, or a page of the browser where there is none."""
    if node() is None:
        yield BrowserEngine(request.getfixturevalue("browser"))
        return
    with NodeEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def js(request: pytest.FixtureRequest, engine: NodeEngine | BrowserEngine) -> Scripts:
    """The functions of the folders that a test module names in FOLDERS.

    They are an object of the module's class SCRIPTS if it has one, or else of Scripts.
    """
    kind: type[Scripts] = getattr(request.module, "SCRIPTS", Scripts)
    return kind(engine, *request.module.FOLDERS)


@pytest.fixture
def page(browser: Any) -> Iterator[Page]:
    """A page to show widgets in; at the end of the test no error was thrown in it."""
    page = Page(browser)
    yield page
    assert page.errors == []


@pytest.fixture
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that widgets read records from and save them into."""
    monkeypatch.setenv("LABKIT_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the path of a journal that does not exist yet."""
    for name in ("predict", "quiz"):
        monkeypatch.setattr(
            import_module(f"labkit.widgets.{name}.widget"),
            "current_journal",
            lambda: tmp_path / NAME,
        )
    return tmp_path / NAME
