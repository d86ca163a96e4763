"""A JupyterLab whose server cannot draw the widgets: each shows a picture or words, says why, and names the cure."""

import json

import pytest

from tests.browser.conftest import Lab, serving

pytestmark = [pytest.mark.browser, pytest.mark.slow]
CELLS = [
    "from labkit.machine import check_machine\ncheck_machine()",
    "from labkit.formats import FP16\nfrom labkit.widgets import BitExplorer, predict, pulse",
    "BitExplorer(FP16, 1.0)",
    "predict('start.warm_up')",
    "pulse()",
]
WHY = "Widgets cannot be shown here: the front end of anywidget is switched off in the server that shows this page."
CURE = "To mend it: `jupyter labextension enable anywidget`, then restart JupyterLab."


def test_each_widget_says_why_and_the_cure(browser, tmp_path):
    config = tmp_path / "labconfig" / "page_config.json"
    config.parent.mkdir()
    config.write_text(json.dumps({"disabledExtensions": {"anywidget": True}}))  # as `jupyter labextension disable` does
    with serving(tmp_path) as server, Lab(server, browser).shown(CELLS, "div[role=note]") as notebook:
        page = notebook.page
        notes = page.locator("div[role=note]").all_inner_texts()
        assert [note.split("\n\n") for note in notes] == [[WHY, CURE]] * 3
        picture = page.locator("div[role=note] + img")
        assert picture.evaluate("img => img.complete && img.naturalWidth > 400")
        assert "switched off in the server" in page.locator(".jp-OutputArea").first.inner_text()  # the doctor's line
        assert page.locator("text=Error displaying widget").count() == 0
