"""JupyterLabs of their own: one that cannot draw widgets, and one whose kernels have a simulated T4."""

import json
from pathlib import Path

import nbformat
import pytest

from tests.browser.conftest import Lab, serving
from tests.gpu.simulated import environment

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(900)]
CELLS = [
    "from labkit.machine import check_machine\ncheck_machine()",
    "from labkit.widgets import ScalerTimeline, predict, pulse",
    "ScalerTimeline()",
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


LESSON = Path(__file__).parents[2] / "notebooks" / "06_loss_scaling.ipynb"
TRAINED = """kind => {
  const { step, done } = document.querySelector(`.labkit-${kind}`).dataset;
  return Number(step ?? done) >= 5;
}"""
LIVE = ("live", "training-bar", "beat-scaler")


def test_the_three_live_cells_train_on_the_card(
    browser, simulated_gpu, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUPYTER_PATH", raising=False)  # a kernel that has imported torch already knows its devices
    for name, value in environment("T4").items():
        monkeypatch.setenv(name, value)
    with serving(tmp_path) as server:
        lab = Lab(server, browser)
        notebook = lab.open(nbformat.read(LESSON, 4), LESSON.stem, width=1280, height=720)
        page = notebook.page
        notebook.run_all(timeout_s=400)
        assert notebook.python("__import__('torch').cuda.get_device_name()") == "Tesla T4 (simulated)"
        for kind in LIVE:
            widget = page.locator(f".labkit-{kind}")
            widget.scroll_into_view_if_needed()
            widget.get_by_role("button", name="Start").click()
            page.wait_for_function(TRAINED, arg=kind, timeout=240_000)
            sentence = widget.locator(".lk-sentence").first.get_attribute("data-text") or ""
            assert "error" not in sentence.lower(), sentence
        assert "T4 (simulated)" in page.locator(".labkit-training-bar").inner_text()
        assert notebook.errors == []
        lab.close(notebook)
