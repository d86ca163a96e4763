"""Widgets of saved notebooks: the states of those that outputs show, and of no others.

JupyterLab saves the states of the widgets that its kernel holds. A notebook that is opened again
has a new kernel, and shows the states in its file; the next save would erase them. So the states
that a save lacks are taken from the file that it replaces. For a widget whose state is in no file,
JupyterLab would show an error without a remedy. So its output is sent to the page with a sentence
instead of the widget.

Invariant: a save never fails here, and the states of the page take precedence. A widget that no
output shows, such as one of an earlier run, is not kept.

Source: Jupyter, "Widget state" of the notebook's metadata, schema 2.0.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

VIEW = "application/vnd.jupyter.widget-view+json"
STATES = "application/vnd.jupyter.widget-state+json"
# A state refers to another widget by a reference, or as the Output widget does, by an output that
# shows it.
REFERENCE = re.compile(r'IPY_MODEL_([\w-]+)|"model_id": "([\w-]+)"')
VERSION = {"version_major": 2, "version_minor": 0}

LOST = (
    "This widget was not saved with the notebook. To show it, choose Run > Run All Above Selected "
    "Cell, then run this cell (Shift+Enter)."
)
# A static figure says with these words why it does not move (`base.figures.why_still`). The line is
# left out of what JupyterLab shows, since widgets do run there.
NOT_RUNNING = "widgets do not run here"

States = dict[str, Any]
"""Id of a widget -> its state."""


def keep_shown_widgets(
    model: dict[str, Any], path: str = "", contents_manager: Any = None, **_: Any
) -> None:
    """Complete and prune the widgets of a notebook that is being saved.

    Args:
        model: The model that Jupyter's contents manager saves, as its `pre_save_hook` gets it;
            changed in place.
        path: The path of the notebook in the contents manager.
        contents_manager: Reads the file that is replaced; None to add no states.
    """
    if model.get("type") != "notebook":
        return
    try:
        _complete(model["content"], path, contents_manager)
    except Exception:
        # The learner's work is saved in any case, without the missing widgets.
        _log(contents_manager).exception("The widgets of %s are saved as they came", path)


def with_lost_widgets_explained(model: dict[str, Any]) -> dict[str, Any]:
    """Return the notebook that a contents manager read, with a sentence for each unsaved widget.

    A notebook that was saved without any widgets stays as it is: its kernel may hold them.
    """
    notebook = model.get("content")
    if model.get("type") != "notebook" or not isinstance(notebook, dict):
        return model
    saved = _saved(notebook)
    if saved is None or all(id in saved["state"] for id in _views(notebook)):
        return model
    explained = copy.deepcopy(model)
    for cell in explained["content"]["cells"]:
        if "outputs" in cell:
            outputs = (_outputs_for_page(output, saved["state"]) for output in cell["outputs"])
            cell["outputs"] = list(itertools.chain.from_iterable(outputs))
    return explained


def _outputs_for_page(output: dict[str, Any], states: States) -> list[dict[str, Any]]:
    """Return what the page shows for an output.

    That is the output itself; or if its widget is lost, a sentence with the text of the output, and
    its picture.
    """
    data = output.get("data", {})
    widget_id = data.get(VIEW, {}).get("model_id")
    if not widget_id or widget_id in states:
        return [output]
    text = data.get("text/plain", "")
    lines = "".join(text).splitlines()
    words = "\n".join([LOST, *(line for line in lines if NOT_RUNNING not in line.lower())])
    pictures = {kind: content for kind, content in data.items() if kind.startswith("image/")}
    shown = [{**output, "data": {"text/plain": words}}]
    if pictures:
        shown.append({"output_type": "display_data", "data": pictures, "metadata": {}})
    return shown


def install_on(contents_manager: Any) -> None:
    """Make a contents manager keep widgets when it saves, and explain lost ones when it reads.

    Its `pre_save_hook` gets one hook more, which runs after a user's own, and its method `get` is
    wrapped.
    """
    contents_manager.register_pre_save_hook(keep_shown_widgets)
    get = contents_manager.get

    async def get_async(*arguments: Any, **options: Any) -> Any:
        return _explained_if_possible(await get(*arguments, **options), contents_manager)

    def get_sync(*arguments: Any, **options: Any) -> Any:
        return _explained_if_possible(get(*arguments, **options), contents_manager)

    contents_manager.get = get_async if inspect.iscoroutinefunction(get) else get_sync


def _explained_if_possible(model: Any, contents_manager: Any) -> Any:
    """Return the notebook with lost widgets explained, or as it is if that fails."""
    try:
        return with_lost_widgets_explained(model)
    except Exception:
        _log(contents_manager).exception("The widgets of a notebook are shown as they are")
        return model


def _complete(notebook: dict[str, Any], path: str, contents_manager: Any) -> None:
    """Keep the states that the outputs need, those of the page first."""
    views = list(_views(notebook))
    saved = _saved(notebook)
    states: States = saved["state"] if saved is not None else {}
    kept, missing = _reached(views, states)
    if missing and contents_manager is not None:
        before = _states_before(contents_manager, path, missing)
        kept, _ = _reached(views, {**before, **states})
    if saved is not None:
        saved["state"] = kept
    elif kept:
        widgets = notebook.setdefault("metadata", {}).setdefault("widgets", {})
        widgets[STATES] = {**VERSION, "state": kept}


def _views(notebook: Mapping[str, Any]) -> Iterator[str]:
    """Yield the id of the widget that each output shows."""
    for cell in notebook.get("cells", ()):
        for output in cell.get("outputs", ()):
            widget_id = output.get("data", {}).get(VIEW, {}).get("model_id")
            # A widget that was closed has no id.
            if widget_id:
                yield widget_id


def _saved(notebook: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the widgets in a notebook's metadata; None if it was saved without any."""
    saved: Any = notebook
    for key in ("metadata", "widgets", STATES):
        saved = saved.get(key) if isinstance(saved, dict) else None
    return saved if isinstance(saved, dict) and isinstance(saved.get("state"), dict) else None


def _reached(views: Iterable[str], states: States) -> tuple[States, set[str]]:
    """Return the states of these widgets and of all that they refer to, and the ids without one."""
    pending = list(views)
    reached = set[str]()
    missing = set[str]()
    while pending:
        widget_id = pending.pop()
        if widget_id not in states:
            missing.add(widget_id)
        elif widget_id not in reached:
            reached.add(widget_id)
            # Each match has one of the two groups of the pattern.
            references = REFERENCE.findall(json.dumps(states[widget_id]))
            pending += [by_name or by_output for by_name, by_output in references]
    return {widget_id: states[widget_id] for widget_id in states if widget_id in reached}, missing


def _states_before(contents_manager: Any, path: str, missing: set[str]) -> States:
    """Return the widget states in the file to be replaced, if one of these ids may be in it.

    A notebook that is saved under a new name replaces no file; its states are in another one of the
    folder.
    """
    # A contents manager of files. Its path is the only way to read a file as bytes.
    if hasattr(contents_manager, "_get_os_path"):
        file = Path(contents_manager._get_os_path(path))
        found: States = {}
        for each in [file] if file.is_file() else sorted(file.parent.glob("*.ipynb")):
            # A file that cannot be read, or that is not JSON, has no widgets.
            with contextlib.suppress(OSError, ValueError):
                content = each.read_bytes()
                if any(id.encode() in content for id in missing):
                    found |= _states_of(json.loads(content))
        return found
    if inspect.iscoroutinefunction(contents_manager.get):
        # A hook is not a coroutine, so it cannot wait for `get`.
        _log(contents_manager).warning(
            "Widgets of %s that its kernel does not hold are not saved: %s cannot be read during a "
            "save",
            path,
            type(contents_manager).__name__,
        )
        return {}
    if not contents_manager.file_exists(path):
        return {}
    return _states_of(contents_manager.get(path, content=True, type="notebook")["content"])


def _states_of(notebook: Any) -> States:
    saved = _saved(notebook)
    if saved is None or saved.get("version_major") != VERSION["version_major"]:
        return {}
    return {id: state for id, state in saved["state"].items() if isinstance(state, dict)}


def _log(contents_manager: Any) -> logging.Logger:
    log: logging.Logger = getattr(contents_manager, "log", logging.getLogger(__name__))
    return log
