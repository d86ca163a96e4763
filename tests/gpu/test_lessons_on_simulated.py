"""The lessons on a machine with a GPU: trainings use it by default, and no cell fails.

Each cell with a widget that trains or measures is run alone, after the imports of its lesson, and
the widget is started. The slow tests run whole lessons.
"""

import ast
import os
import threading
import traceback
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from labkit.course import Lesson
from labkit.widgets import CastPasses, GpuRun, StepDebugger, TrainingBar
from labkit.widgets.driven.controller import Button, Phase
from notebooks import build
from tests.gpu.simulated import environment
from tests.slowness import slowness
from tests.test_notebooks import answered_later, errors_of, execute, patient

# Widgets that train or measure.
LIVE = {
    "LiveTraining",
    "TrainingBar",
    "BeatTheScaler",
    "Workbench",
    "StepDebugger",
    "CastPasses",
    "GpuRun",
}
WHOLE = (
    "06_loss_scaling",
    "08_recipes",
    "09b_many_workers",
    "11b_eight_and_four_bits",
    "12_project",
)
STEPS = 3


def code_of(source: Lesson) -> Iterator[tuple[str, ast.Module]]:
    """Yield the id and the code of each cell of a lesson, solved."""
    for cell in build.solved(source)["cells"]:
        if cell["cell_type"] == "code":
            lines = [line for line in cell["source"] if not line.startswith(("%", "!"))]
            yield cell["id"], ast.parse("".join(lines))


def calls_live(code: ast.Module) -> bool:
    return any(
        isinstance(node, ast.Call) and getattr(node.func, "id", "") in LIVE
        for node in ast.walk(code)
    )


@cache
def cells() -> dict[str, tuple[str, str, str]]:
    """Return "lesson id" -> code, for each cell with a widget of LIVE.

    The code is the imports of the lesson up to the cell, its statements, and the last expression,
    which is the widget.
    """
    found = {}
    for source in build.sources():
        imports = ""
        for name, code in code_of(source):
            imports += "".join(
                f"{ast.unparse(n)}\n"
                for n in code.body
                if isinstance(n, ast.Import | ast.ImportFrom)
            )
            if calls_live(code):
                *before, last = code.body
                assert isinstance(last, ast.Expr)
                found[f"{source.name} {name}"] = (
                    imports,
                    "\n".join(map(ast.unparse, before)),
                    ast.unparse(last),
                )
    return found


# ---- on the card


def stepped_together(widget: Any) -> str:
    """Press Start, take steps, and return the device of all runs' weights."""
    widget.controller.handle(Button.START)
    for _ in range(STEPS):
        widget.controller.tick()
        assert widget.controller.error == "", widget.controller.error
    assert widget.phase == Phase.RUNNING
    assert len(widget.history) == STEPS
    assert "simulated" in widget.place.label
    (device,) = {
        p.device.type for side in widget.controller.sides for p in side.run.model.parameters()
    }
    return str(device)


def trained_behind_a_bar(bar: Any, limit: float) -> str:
    begun = threading.Event()
    bar.observe(lambda _: begun.set(), "done")
    bar.wanted = "start"
    assert begun.wait(limit), bar.sentence
    bar.wanted = "stop"
    record = bar.wait(limit)
    assert bar.phase == "stopped", bar.sentence
    assert len(record.steps) >= 1, bar.sentence
    return "cuda" if "simulated" in record.device else record.device


def measured(widget: Any, folder: str, limit: float) -> str:
    """Start the measurement with another data folder, and stop it in its first part."""
    os.environ["LABKIT_DATA"] = folder
    begun = threading.Event()
    widget.observe(lambda change: change["new"] >= 1 and begun.set(), "part")
    assert widget.phase == "ready", widget.sentence
    widget.start()
    assert begun.wait(limit), [widget.sentence, widget.printed]
    widget.stop()
    widget.wait(limit)
    del os.environ["LABKIT_DATA"]
    assert widget.phase == "stopped", [widget.sentence, widget.printed]
    return "cuda"


def started(imports: str, before: str, last: str, folder: str, limit: float) -> str:
    """Run a cell, start its widget, and return where it trained."""
    names: dict[str, Any] = {}
    exec(imports + before, names)
    widget = eval(last, names)
    try:
        if isinstance(widget, TrainingBar):
            return trained_behind_a_bar(widget, limit)
        if isinstance(widget, GpuRun):
            return measured(widget, folder, limit)
        if isinstance(widget, StepDebugger):
            widget.another_step()
            assert widget.watched.step == 2
            return "cpu"
        if isinstance(widget, CastPasses):
            widget.position = len(widget._said) - 1
            return "cpu"
        return stepped_together(widget)
    finally:
        widget.close()


def all_started(cells: dict[str, list[str]], folder: str, limit: float) -> dict[str, str]:
    found = {}
    for name, parts in cells.items():
        try:
            found[name] = started(*parts, folder, limit)
        except BaseException:
            found[name] = traceback.format_exc()
    return found


# ---- the tests


def test_cells_with_live_widgets_are_in_eight_lessons() -> None:
    assert {name[:2] for name in cells()} == {
        "03",
        "05",
        "06",
        "07",
        "08",
        "09",
        "11",
        "12",
    }


def test_each_live_widget_is_in_a_cell() -> None:
    assert {
        kind for kind in LIVE if any(kind in "".join(cell[1:]) for cell in cells().values())
    } == LIVE


def test_widgets_of_cells_train_on_the_gpu_by_default(simulated_gpu: Any, tmp_path: Path) -> None:
    limits = {"timeout": 200 * slowness()}
    where = simulated_gpu("T4", all_started, cells(), str(tmp_path), 60 * slowness(), **limits)
    assert where.keys() == cells().keys()
    for name, found in where.items():
        # These two show numbers, not speed, and compute on the CPU.
        on_cpu = any(kind in cells()[name][2] for kind in ("StepDebugger", "CastPasses"))
        assert found == ("cpu" if on_cpu else "cuda"), f"{name}: {found}"


@pytest.mark.slow
@patient
@pytest.mark.parametrize("lesson", WHOLE)
def test_a_lesson_runs_from_top_to_bottom(simulated_gpu: Any, lesson: str) -> None:
    notebook = answered_later(build.lesson(lesson))
    which = ["from labkit.train import place\n", "print(place())"]
    notebook["cells"].append({**notebook["cells"][0], "id": "which-card", "source": which})
    done = execute(notebook, environment("T4", os.environ))
    assert errors_of(done) == []
    assert "Tesla T4 (simulated)" in done["cells"][-1]["outputs"][0]["text"]
