"""A saved notebook holds the widgets that it shows, and no others."""

from typing import Any

from labkit.machine.jupyter import STATES, VIEW, keep_shown_widgets


def notebook(shown: list[str], state: dict[str, Any]) -> dict[str, Any]:
    outputs = [{"output_type": "display_data", "data": {VIEW: {"model_id": id}}} for id in shown]
    cells = [{"cell_type": "markdown", "source": "text"}, {"cell_type": "code", "outputs": outputs}]
    return {"type": "notebook", "content": {"cells": cells, "metadata": {"widgets": {STATES: {"state": state}}}}}


def saved(model: dict[str, Any]) -> set[str]:
    keep_shown_widgets(model, path="a.ipynb", contents_manager=None)
    return set(model["content"]["metadata"]["widgets"][STATES]["state"])


def test_a_widget_is_kept_with_all_that_it_refers_to() -> None:
    state = {
        "a": {"state": {"children": ["IPY_MODEL_b"]}},
        "b": {"state": {"_assets": "IPY_MODEL_c", "parent": "IPY_MODEL_a"}},
        "c": {"state": {}},
        "of an earlier run": {"state": {"_assets": "IPY_MODEL_c"}},
    }
    assert saved(notebook(["a", "was never saved"], state)) == {"a", "b", "c"}
    assert saved(notebook([], state)) == set()


def test_what_holds_no_widgets_is_saved_as_it_is() -> None:
    for model in (
        {"type": "file", "content": "text"},
        {"type": "notebook", "content": {"cells": [], "metadata": {}}},
        {"type": "notebook", "content": {"cells": [], "metadata": {"widgets": {"another": {}}}}},
    ):
        before = str(model)
        keep_shown_widgets(model)
        assert str(model) == before
