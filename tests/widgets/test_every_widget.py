"""Properties of every widget.

Its state is JSON, invalid values of its traits are refused, and a page without widgets gets its
sentence as text, and the picture of some widgets.
"""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import traitlets

from labkit import widgets
from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import snapshot
from labkit.train import TASKS
from labkit.widgets.base.widget import LabWidget

GRADIENTS = {"conv": torch.linspace(-1, 1, 50) * 2.0**-20, "head": torch.ones(3) * 2.0**-9}
SHORT = widgets.Trace(
    "made up", "by hand", 0, (0.1, 0.2), (0, 0), "cpu", {"torch": "2"}, "2026-01-01T00:00"
)


WIDGETS: dict[str, Callable[[], Any]] = {
    "addition": lambda: widgets.AdditionPlayer(1.0, 0.0001),
    "beat_scaler": lambda: widgets.BeatTheScaler(steps=3, device="cpu"),
    "bits": lambda: widgets.BitExplorer(FP16, 1.0),
    "block_scales": widgets.BlockScales,
    "gpu_run": widgets.GpuRun,
    "graph": widgets.CastPasses,
    "ledger": lambda: widgets.CastLedger(torch.relu, torch.ones(2, 2)),
    "live": lambda: widgets.LiveTraining("digits", steps=3, device="cpu"),
    "mma_block": widgets.MmaBlock,
    "number_line": lambda: widgets.NumberLine(FP16, 2049.0),
    "fault_wall": widgets.FaultWall,
    "playground": widgets.Playground,
    "predict": lambda: widgets.predict("scaling.order"),
    "quiz": lambda: widgets.quiz("before"),
    "router": widgets.RouterScores,
    "scaler_presets": lambda: widgets.ScalerPresets(SHORT),
    "scaler_timeline": lambda: widgets.ScalerTimeline(SHORT),
    "step_debugger": lambda: widgets.StepDebugger(TASKS["digits"]),
    "swallowed": widgets.SwallowedUpdates,
    "training_bar": lambda: widgets.TrainingBar(
        TASKS["digits"], RECIPES["FP32"], steps=2, device="cpu"
    ),
    "underflow": lambda: widgets.UnderflowHistogram(
        snapshot(GRADIENTS, step=0, kind="weight gradients")
    ),
    "workbench": lambda: widgets.Workbench("digits", steps=3, device="cpu"),
    "workers": widgets.Workers,
    "zoom": lambda: widgets.GradientZoom({0: GRADIENTS}),
}
PICTURES = {"scaler_presets", "scaler_timeline", "underflow", "zoom"}
REFUSED: dict[str, list[tuple[str, object, str | None]]] = {
    "addition": [
        ("step", 6, "step: expected 0 to 5, got 6"),
        ("operation", "divide", "expected one of 'add', 'multiply', got 'divide'"),
        ("format_name", "FP17", "got 'FP17'"),
        ("b", "1,5", "Write a decimal point, not a comma: 1.5."),
    ],
    "bits": [
        *(
            ("text", wrong, None)
            for wrong in ("0,1", "abc", "", "1/0", "0x10000", "1e99999", "--1")
        ),
        *(("code", wrong, "expected 0 to 0xffff") for wrong in (-1, 0x10000, True)),
    ],
    "block_scales": [
        ("format", "MXFP6", "format: expected one of 'MXFP8', 'MXFP4', 'NVFP4', got 'MXFP6'"),
        ("draw", 20, "draw: expected 0 to 19, got 20"),
        ("draw", True, "draw: expected 0 to 19, got True"),
        ("selected", 32, "selected: expected 0 to 31, got 32"),
        ("values", [], "values: expected 32 numbers, got 0"),
        ("values", [1.0], "values: expected 32 numbers, got 1"),
        *(
            ("values", [1.0] * 31 + [wrong], f"magnitudes of at most 65504, got {wrong:g}")
            for wrong in (math.nan, -math.inf, 65536.0)
        ),
    ],
    "graph": [("position", 36, "position: expected 0 to 35, got 36")],
    "ledger": [("format_name", "FP8", "format: expected one of 'FP16', 'BF16', got 'FP8'")],
    "playground": [
        ("scene", "plane", "scene: expected one of 'picture', 'targets', 'spirals'"),
        ("preset", "FP17", "preset: expected one of 'FP32', 'FP16'"),
        ("seed", 10_000, "seed: expected 0 to 9999, got 10000"),
        ("changes", {"weights": "FP12"}, "weights: expected FP32, FP16, BF16, E4M3, E5M2"),
        ("changes", {"colour": "red"}, "there is no part 'colour' of a recipe"),
        (
            "changes",
            {"log2_scale": 31},
            "log2_scale: expected a whole number from -10 to 30, got 31",
        ),
        ("method", {"rate": 0}, "rate: expected a number above 0, at most 100, got 0"),
    ],
    "live": [
        *(
            ("sketched", wrong, "sketched: expected pairs of a whole step and a loss above 0")
            for wrong in (
                [[1, 0.0]],
                [[4, 1.0]],
                [[2, 1.0], [1, 1.0]],
                [[1, math.inf]],
                [3],
                ["ab"],
            )
        ),
    ],
    "mma_block": [
        ("gpu", "P100", "gpu: expected one of 'V100', 'T4'"),
        ("preset", "zeros", "preset: expected one of '1 and small terms'"),
        ("result", "BF16", "result: expected one of 'FP32', 'FP16', got 'BF16'"),
        ("knob", 3, "knob: expected -30 to -12, got 3"),
        ("block", 4, "block: expected 0 to 3, got 4"),
    ],
    "number_line": [
        ("window", (-1.0, 1.0), "above 0"),
        *(
            ("window", ends, None)
            for ends in ((1.0, 1.0), (2.0, 1.0), (1.0, math.inf), (math.nan, 1.0))
        ),
        ("x", math.inf, "finite"),
        ("x", math.nan, "finite"),
    ],
    "fault_wall": [("kind", "bad luck", None)],
    "router": [
        ("format", "FP17", "format: expected one of 'FP32', 'FP16', 'BF16', 'E4M3', 'E5M2', got"),
        ("experts", 7, "experts: expected one of 8, 64, 256, got 7"),
        ("chosen", 3, "chosen: expected one of 1, 2, 4, 8, got 3"),
        ("spread", 0.3, "spread: expected one of 0.05, 0.1"),
        ("rounded", "gates", "rounded: expected one of 'scores', 'logits', got 'gates'"),
        ("token", 900, "token: expected 0 to 899, got 900"),
    ],
    "scaler_presets": [("selected", "keras", "expected one of torch, apex")],
    "scaler_timeline": [
        ("init_log2_scale", 33, "expected 0 to 32, got 33"),
        ("growth_factor", 1.0, "more than 1"),
        ("backoff_factor", 1.0, "between 0 and 1"),
        ("growth_interval", 0, "1 or more"),
    ],
    "step_debugger": [
        ("stage", 8, "stage: expected 0 to 7, got 8"),
        ("log2_scale", 41, "log2_scale: expected 0 to 40, got 41"),
        ("recipe_name", "O4", "recipe: expected one of 'FP32', 'O1', 'O2', 'O3', got 'O4'"),
    ],
    "swallowed": [
        *(
            ("weight", wrong, "weight: expected a number")
            for wrong in (0.0, -1.0, math.nan, math.inf, 1e9)
        ),
        *(
            ("update", wrong, "update: expected a number")
            for wrong in (0.0, -1.0, math.nan, math.inf, 1e9)
        ),
        ("highlight", "FP17", "got 'FP17'"),
    ],
    "underflow": [
        *(("log2_scale", wrong, f"expected 0 to 30, got {wrong}") for wrong in (-1, 31, 100, True)),
        ("layer", "cnov", "got 'cnov'"),
    ],
    "workers": [("way", "median", "way: expected one of ")],
    "zoom": [
        ("frame", 1, None),
        ("layer", "tail", None),
        ("row", 24, None),
        ("column", -1, None),
        ("zoom", 4, "zoom: expected 0 to 3, got 4"),
        ("log2_scale", 31, "log2_scale: expected 0 to 30, got 31"),
        ("log2_scale", True, "log2_scale: expected 0 to 30, got True"),
    ],
}


@pytest.fixture(params=WIDGETS)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def widget(name: str) -> Any:
    widget = WIDGETS[name]()
    yield widget
    widget.close()


def test_the_table_has_every_public_widget() -> None:
    """All but the pulse, whose output is of its own: tests/widgets/test_base.py has it."""
    public = [getattr(widgets, name) for name in widgets.__all__]
    kinds = [kind for kind in public if isinstance(kind, type) and issubclass(kind, LabWidget)]
    made = [make() for make in WIDGETS.values()]
    for widget in made:
        widget.close()
    # anywidget gives each widget a class of its own, which keeps the name.
    names = {type(widget).__name__ for widget in made}
    assert names == {kind.__name__ for kind in kinds} - {"Pulse"}


def state(widget: Any) -> dict[str, Any]:
    return {name: value for name, value in widget.get_state().items() if name != "layout"}


def test_the_state_is_json(name: str, widget: Any) -> None:
    before = state(widget)
    json.dumps(before, allow_nan=False, default=lambda buffer: memoryview(buffer).nbytes)


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_values_are_refused_and_change_nothing(name: str, widget: Any) -> None:
    before = state(widget)
    for trait, value, words in REFUSED[name]:
        with pytest.raises(traitlets.TraitError, match=words and re.escape(words)):
            setattr(widget, trait, value)
        assert state(widget) == before, f"{trait} = {value}"


def test_a_page_with_widgets_gets_the_widget(widget: Any) -> None:
    shown, _ = widget._repr_mimebundle_()
    assert shown["application/vnd.jupyter.widget-view+json"]["model_id"] == widget.model_id


def test_a_page_without_widgets_gets_the_sentence(widget: Any) -> None:
    shown, _ = widget._repr_mimebundle_()
    assert "do not run here" in shown["text/plain"]
    assert getattr(widget, "sentence", "") in shown["text/plain"]
    # GitHub and nbconvert would prefer HTML to text and pictures.
    assert "text/html" not in shown


def test_a_page_without_widgets_gets_the_picture_of_some(name: str, widget: Any) -> None:
    shown, _ = widget._repr_mimebundle_()
    assert ("image/png" in shown) == (name in PICTURES)
    if name in PICTURES:
        assert shown["image/png"].startswith(b"\x89PNG")
