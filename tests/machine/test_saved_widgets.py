"""Widget states in saved notebooks, with the contents managers of Jupyter's own server."""

import asyncio
import inspect
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from jupyter_server.serverapp import ServerApp
from jupyter_server.services.contents.filemanager import AsyncFileContentsManager
from jupyter_server.services.contents.largefilemanager import (
    AsyncLargeFileManager,
    LargeFileManager,
)
from jupyter_server.services.contents.manager import ContentsManager

from labkit.machine.jupyter import STATES, VIEW, keep_shown_widgets, with_lab_settings
from labkit.machine.jupyter.saved_widgets import LOST, NOT_RUNNING, install_on

A = {"model_name": "A", "state": {"children": ["IPY_MODEL_b"]}}
B = {"model_name": "B", "state": {"value": 3}}
HERE = {"a": A, "b": B}


def notebook(shown: list[str], states: dict[str, Any] | None) -> dict[str, Any]:
    """Return a notebook of a cell that shows these widgets; None saves no widgets with it."""
    outputs = [
        {"output_type": "display_data", "data": {VIEW: {"model_id": id}}, "metadata": {}}
        for id in shown
    ]
    code = {"cell_type": "code", "execution_count": 1, "id": "one", "metadata": {}, "source": ""}
    text = {"cell_type": "markdown", "id": "two", "metadata": {}, "source": "text"}
    saved = {"version_major": 2, "version_minor": 0, "state": states}
    return {
        "cells": [text, {**code, "outputs": outputs}],
        "metadata": {} if states is None else {"widgets": {STATES: saved}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@pytest.fixture(params=[LargeFileManager, AsyncLargeFileManager])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Each manager of Jupyter's own server that reads files, with the lab's extension."""
    manager = request.param(root_dir=str(tmp_path))
    install_on(manager)
    return manager


def saved(manager: Any, content: dict[str, Any], path: str = "a.ipynb") -> dict[str, Any] | None:
    """Save a notebook as the server does, and return the states in its file."""
    done = manager.save({"type": "notebook", "format": "json", "content": content}, path)
    if inspect.isawaitable(done):
        asyncio.run(done)
    metadata = json.loads(Path(manager.root_dir, path).read_text())["metadata"]
    states: dict[str, Any] | None = metadata.get("widgets", {}).get(STATES, {}).get("state")
    return states


def kept(shown: list[str], states: dict[str, Any]) -> set[str]:
    """Return the ids of the states that are kept of a notebook that shows these widgets."""
    content = notebook(shown, states)
    keep_shown_widgets({"type": "notebook", "content": content})
    return set(content["metadata"]["widgets"][STATES]["state"])


def test_a_widget_is_kept_with_all_that_it_refers_to() -> None:
    states = {
        "a": {"state": {"children": ["IPY_MODEL_b"]}},
        "b": {"state": {"_assets": "IPY_MODEL_c-d", "parent": "IPY_MODEL_a"}},
        "c-d": {"state": {}},
        "of an earlier run": {"state": {"_assets": "IPY_MODEL_c-d"}},
    }
    assert kept(["a", "was never saved"], states) == {"a", "b", "c-d"}
    assert kept([], states) == set()


def test_a_widget_that_an_output_widget_shows_is_kept() -> None:
    inside = {"output_type": "display_data", "data": {VIEW: {"model_id": "b"}}}
    assert kept(["a"], {"a": {"state": {"outputs": [inside]}}, "b": B, "c": B}) == {"a", "b"}


@pytest.mark.parametrize("states", [{}, None], ids=["no states", "no widgets"])
def test_states_that_a_save_lacks_are_those_on_disk(
    manager: Any, states: dict[str, Any] | None
) -> None:
    saved(manager, notebook(["a"], HERE))
    for _ in range(2):
        assert saved(manager, notebook(["a"], states)) == HERE


def test_the_states_of_the_page_take_precedence(manager: Any) -> None:
    saved(manager, notebook(["a"], HERE))
    moved = {"model_name": "B", "state": {"value": 4}}
    assert saved(manager, notebook(["a"], {"b": moved})) == {"a": A, "b": moved}


def test_a_cell_that_ran_again_leaves_no_old_state(manager: Any) -> None:
    saved(manager, notebook(["a", "c"], {**HERE, "c": B}))
    assert saved(manager, notebook(["new", "c"], {"new": A, "b": B})) == {"new": A, "b": B, "c": B}
    assert saved(manager, notebook([], {})) == {}
    assert saved(manager, notebook(["a"], {})) == {}, "nothing brings back what has gone"


def test_a_notebook_saved_under_another_name_keeps_its_widgets(manager: Any) -> None:
    saved(manager, notebook(["other"], {"other": B}), "0.ipynb")
    Path(manager.root_dir, "1.ipynb").write_text("no JSON")
    saved(manager, notebook(["a"], HERE))
    assert saved(manager, notebook(["a"], {}), "copy.ipynb") == HERE


@pytest.mark.parametrize("unreadable", ["a dangling link", "a folder"])
def test_a_neighbour_that_cannot_be_read_costs_no_widgets(manager: Any, unreadable: str) -> None:
    saved(manager, notebook(["a"], HERE), "1.ipynb")
    neighbour = Path(manager.root_dir, "0.ipynb")
    if unreadable == "a folder":
        neighbour.mkdir()
    else:
        neighbour.symlink_to("nowhere")
    assert saved(manager, notebook(["a"], {}), "copy.ipynb") == HERE


@pytest.mark.parametrize(
    "before",
    [b"", b"[]", b'{"a"', b'{"metadata": {"widgets": 3}}', b'{"metadata": {"a": 1}}', b"\xff"],
)
def test_whatever_is_on_disk_the_notebook_is_saved(manager: Any, before: bytes) -> None:
    Path(manager.root_dir, "a.ipynb").write_bytes(before)
    assert saved(manager, notebook(["a"], {"c": B})) == {}


def test_a_new_notebook_is_saved_without_a_file_to_read(manager: Any) -> None:
    assert saved(manager, notebook(["a"], {"c": B})) == {}


def test_a_notebook_without_widgets_gets_none(manager: Any) -> None:
    assert saved(manager, notebook(["a"], None)) is None


def test_states_on_disk_of_a_newer_version_are_not_taken(manager: Any) -> None:
    newer = {"version_major": 3, "version_minor": 0, "state": HERE}
    content = {**notebook(["a"], None), "metadata": {"widgets": {STATES: newer}}}
    Path(manager.root_dir, "a.ipynb").write_text(json.dumps(content))
    assert saved(manager, notebook(["a"], {})) == {}


@pytest.mark.parametrize(
    "model",
    [
        {"type": "file", "content": "text"},
        {"type": "directory"},
        {"type": "notebook", "content": notebook([], None)},
        {"type": "notebook", "content": {"metadata": {"widgets": {"another": {}}}}},
    ],
)
def test_what_holds_no_widgets_is_saved_as_it_is(model: Any) -> None:
    before = str(model)
    keep_shown_widgets(model)
    assert str(model) == before


def test_a_fault_of_the_hook_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        log = logging.getLogger("broken")

        def file_exists(self, path: str) -> bool:
            raise RuntimeError("the network is gone")

        def get(self, path: str) -> None: ...

    for content in (
        notebook(["a"], {"b": B}),
        {"cells": 3},
        {"cells": [{"outputs": [{"data": 3}]}]},
    ):
        before = json.dumps(content)
        keep_shown_widgets({"type": "notebook", "content": content}, "a.ipynb", Broken())
        assert json.dumps(content) == before
    assert [record.getMessage() for record in caplog.records] == [
        "The widgets of a.ipynb are saved as they came"
    ] * 3
    assert "the network is gone" in caplog.text


class InMemory(ContentsManager):
    """A contents manager whose notebooks are in no file."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, Any] = {}

    def file_exists(self, path: str) -> bool:
        return path in self.stored

    def get(self, path: str, content: bool = True, type: str | None = None) -> dict[str, Any]:
        return {"type": type, "content": self.stored[path]}


def test_a_contents_manager_without_files_is_read_by_itself() -> None:
    manager = InMemory()
    content = notebook(["a"], {})
    keep_shown_widgets({"type": "notebook", "content": content}, "new.ipynb", manager)
    assert content["metadata"]["widgets"][STATES]["state"] == {}
    manager.stored["a.ipynb"] = notebook(["a"], HERE)
    keep_shown_widgets({"type": "notebook", "content": content}, "a.ipynb", manager)
    assert content["metadata"]["widgets"][STATES]["state"] == HERE


def test_where_the_manager_cannot_be_read_the_server_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Remote:
        log = logging.getLogger("remote")

        async def get(self, path: str) -> None: ...

    keep_shown_widgets({"type": "notebook", "content": notebook(["a"], {})}, "a.ipynb", Remote())
    assert "Widgets of a.ipynb that its kernel does not hold are not saved" in caplog.text


def test_server_runs_the_users_hook_and_ours_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ServerApp finds the extension as any server does, by the path of its configuration."""
    (tmp_path / "own").mkdir()
    (tmp_path / "hook.py").write_text(
        "def theirs(model, **_): model['content']['metadata']['hi'] = 1"
    )
    own = {"ContentsManager": {"pre_save_hook": "hook.theirs"}}
    (tmp_path / "own" / "jupyter_server_config.json").write_text(json.dumps(own))
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in {
        **with_lab_settings({}),
        "JUPYTER_CONFIG_DIR": str(tmp_path / "own"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"),
        "JUPYTER_NO_CONFIG": "",
    }.items():
        monkeypatch.setenv(name, value)
    server = ServerApp(root_dir=str(tmp_path), open_browser=False, log_level=logging.ERROR)
    server.initialize(argv=["--allow-root"], new_httpserver=False)
    manager = server.contents_manager
    assert isinstance(manager, AsyncFileContentsManager)
    assert manager._pre_save_hooks.count(keep_shown_widgets) == 1
    assert saved(manager, notebook(["a"], {**HERE, "c": B})) == HERE
    assert saved(manager, notebook(["a"], {})) == HERE
    assert json.loads((tmp_path / "a.ipynb").read_text())["metadata"]["hi"] == 1


def read(manager: Any, path: str = "a.ipynb") -> list[dict[str, Any]]:
    """Return what a page gets as the outputs of the cell."""
    found = manager.get(path)
    model = asyncio.run(found) if inspect.isawaitable(found) else found
    outputs: list[dict[str, Any]] = model["content"]["cells"][1]["outputs"]
    return outputs


class TestLostWidgets:
    """A saved notebook with a widget, two that are lost, and one that was closed."""

    @pytest.fixture
    def file(self, manager: Any) -> Path:
        content = notebook(["a", "lost", "lost", ""], HERE)
        first, second = content["cells"][1]["outputs"][1:3]
        first["data"]["text/plain"] = f"Words.\nThis stands still: {NOT_RUNNING}."
        second["data"]["image/png"] = "cGljdHVyZQ=="
        saved(manager, content)
        return Path(manager.root_dir, "a.ipynb")

    @pytest.fixture
    def outputs(self, manager: Any, file: Path) -> list[dict[str, Any]]:
        """The contents that a page gets of the notebook."""
        return [output["data"] for output in read(manager)]

    def test_a_lost_widget_is_replaced_by_its_text(self, outputs: list[dict[str, Any]]) -> None:
        _, text, sentence, _, _ = outputs
        assert text == {"text/plain": f"{LOST}\nWords."}
        assert sentence == {"text/plain": LOST}

    def test_a_lost_widget_is_replaced_by_its_picture(self, outputs: list[dict[str, Any]]) -> None:
        assert outputs[3] == {"image/png": "cGljdHVyZQ=="}

    def test_a_saved_and_a_closed_widget_stay(self, outputs: list[dict[str, Any]]) -> None:
        assert outputs[0] == {VIEW: {"model_id": "a"}}
        assert outputs[4] == {VIEW: {"model_id": ""}}

    def test_reading_changes_no_file(self, manager: Any, file: Path) -> None:
        before = file.read_bytes()
        read(manager)
        assert file.read_bytes() == before


def test_a_notebook_saved_without_widgets_is_read_as_it_is(manager: Any) -> None:
    """Its kernel may hold them."""
    content = notebook(["a"], None)
    saved(manager, content)
    assert read(manager)[0]["data"] == {VIEW: {"model_id": "a"}}


def test_what_has_no_notebook_is_read_as_it_is(manager: Any) -> None:
    saved(manager, notebook(["lost"], {}))
    Path(manager.root_dir, "text.md").write_text("text")
    for path, options in (("a.ipynb", {"content": False}), ("", {}), ("text.md", {})):
        found = manager.get(path, **options)
        model = asyncio.run(found) if inspect.isawaitable(found) else found
        assert LOST not in str(model)
