"""A small site: a lesson as a run leaves it, one that was never run, and a glossary. Nothing is run in a kernel."""

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch

from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.site import write_site
from labkit.widgets import BitExplorer, LiveTraining, NumberLine, PatientWall, UnderflowHistogram
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.predict.widget import Predict, Prediction, Ruler

MAP_ROW = "| **07** | [Later](07_later.ipynb) | 5 | an [ulp](glossary.ipynb#cell-id=ulp) again |"
GRADIENTS = {"conv": torch.linspace(-1, 1, 50) * 2.0**-20, "head": torch.ones(3) * 2.0**-9}
CHOICE = Prediction("1 + 1?", {"2": "It is.", "3": "One too many."}, answer="2")
NUMBER = Prediction("How many?", {"less": "More.", "near": "Good.", "more": "Fewer."}, ruler=Ruler(1, 1000, "%"))
WIDGETS = {
    "choice": lambda: Predict(CHOICE),
    "number": lambda: Predict(NUMBER, lambda: 40.0),
    "scale": lambda: UnderflowHistogram(snapshot(GRADIENTS, step=0, kind="weight gradients")),
    "bits": lambda: BitExplorer(FP16, 1.0),
    "line": lambda: NumberLine(FP16, 2049.0),
    "wall": PatientWall,
    "live": lambda: LiveTraining("digits", "FP16 dynamic", device="cpu"),
}


def code(id: str, source: str, *outputs: Any, tags: tuple[str, ...] = ()) -> Any:
    metadata = {"tags": list(tags)} if tags else {}
    return nbformat.v4.new_code_cell(source, id=id, outputs=list(outputs), metadata=metadata)


def displayed(id: str) -> Any:
    data, _ = WIDGETS[id]()._repr_mimebundle_()
    return code(
        id, f"{id}()", nbformat.from_dict({"output_type": "display_data", "data": encoded(data), "metadata": {}})
    )


def encoded(data: dict[str, Any]) -> dict[str, Any]:
    return {kind: base64.b64encode(each).decode() if isinstance(each, bytes) else each for kind, each in data.items()}


def lesson() -> Any:
    """Return a lesson with each kind of cell and output."""
    markdown = nbformat.v4.new_markdown_cell
    text = "# 06 · A lesson\n\nIt loses $2^{-25}$, an [ulp](glossary.ipynb#cell-id=ulp).\n\n| a |\n|---|\n| 1 |"
    words = nbformat.v4.new_output("stream", name="stdout", text="\x1b[31mred\x1b[0m <b>\n")
    error = {"ename": "NotImplementedError", "evalue": "your code", "traceback": ["secret.py, line 1"]}
    raised = nbformat.v4.new_output("error", **error)
    other = nbformat.v4.new_output("error", **{**error, "ename": "KeyError"})
    cells = [
        markdown(text, id="head"),
        markdown("## 1 · The first part", id="part"),
        markdown("| | lesson | minutes | you will see |\n|---|---|---|---|\n" + MAP_ROW, id="map"),
        *map(displayed, WIDGETS),
        code("words", "print('red')", words),
        code("exercise-a", "def f():\n    raise NotImplementedError", raised, tags=("exercise-a.b",)),
        code("needs", "f()", raised),
        code("other", "{}[1]", other),
        code("doctor", "check_machine()", words, tags=("lab-only",)),
    ]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the site."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LabWidget, "for_pages", True)
        never = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# 07 · Later"), code("x", "1 + 1")])
        glossary = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("### ulp\n\nA distance.", id="ulp")])
        folder = tmp_path_factory.mktemp("pages") / "site"
        write_site(folder, {"06_lesson": lesson(), "07_later": never, "glossary": glossary})
    return folder


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="session")
def served(site: Path) -> Iterator[str]:
    """The address of a plain web server of the site."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
