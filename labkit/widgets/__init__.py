"""Widgets: their state is plain Python, their picture is drawn in the browser.

A widget's module is imported when its name is first used: those that train need torch, which takes
seconds, and those that draw numbers do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labkit.moved import moved
from labkit.widgets.predict.widget import Predict, Prediction, predict, predictions
from labkit.widgets.pulse.widget import Pulse, pulse
from labkit.widgets.quiz.widget import Quiz, quiz

if TYPE_CHECKING:
    from labkit.widgets.addition.widget import AdditionPlayer
    from labkit.widgets.base.figures import FATE_COLOURS, FORMAT_COLOURS
    from labkit.widgets.beat_scaler.widget import BeatTheScaler
    from labkit.widgets.bits.widget import BitExplorer
    from labkit.widgets.block_scales.widget import BlockScales
    from labkit.widgets.fault_wall.widget import FaultWall
    from labkit.widgets.gpu_run.widget import GpuRun
    from labkit.widgets.graph.widget import CastPasses
    from labkit.widgets.ledger.widget import CastLedger
    from labkit.widgets.live_training.widget import LiveTraining
    from labkit.widgets.mma_block.errors import SumErrors, sum_errors, sum_errors_figure
    from labkit.widgets.mma_block.widget import MmaBlock
    from labkit.widgets.number_line.widget import NumberLine
    from labkit.widgets.playground.widget import Playground
    from labkit.widgets.results.gemm import (
        recorded_gemm,
        roofline_figure,
        sweep_figure,
        sweep_sentence,
    )
    from labkit.widgets.results.pictures import pictures_figure, pictures_sentence
    from labkit.widgets.results.published import gains_figure, generations_figure
    from labkit.widgets.results.recipe_table import RecipeTable, recipe_table
    from labkit.widgets.results.scale_map import scale_map_figure, scale_map_sentence
    from labkit.widgets.results.trainings import (
        race_figure,
        race_sentence,
        treatment_figure,
        treatment_sentence,
    )
    from labkit.widgets.router.widget import RouterScores
    from labkit.widgets.scaler_timeline.trace import Trace, measure_trace, recorded_trace
    from labkit.widgets.scaler_timeline.widget import ScalerPresets, ScalerTimeline
    from labkit.widgets.step_debugger.widget import StepDebugger
    from labkit.widgets.swallowed.widget import SwallowedUpdates
    from labkit.widgets.training_bar.widget import TrainingBar
    from labkit.widgets.underflow.widget import ALL_LAYERS, UnderflowHistogram, static_underflow
    from labkit.widgets.workbench.widget import Workbench
    from labkit.widgets.workers.widget import Workers, memory_bars
    from labkit.widgets.zoom.widget import GradientZoom

__all__ = [
    "ALL_LAYERS",
    "FATE_COLOURS",
    "FORMAT_COLOURS",
    "AdditionPlayer",
    "BeatTheScaler",
    "BitExplorer",
    "BlockScales",
    "CastLedger",
    "CastPasses",
    "FaultWall",
    "GpuRun",
    "GradientZoom",
    "LiveTraining",
    "MmaBlock",
    "NumberLine",
    "Playground",
    "Predict",
    "Prediction",
    "Pulse",
    "Quiz",
    "RecipeTable",
    "RouterScores",
    "ScalerPresets",
    "ScalerTimeline",
    "StepDebugger",
    "SumErrors",
    "SwallowedUpdates",
    "Trace",
    "TrainingBar",
    "UnderflowHistogram",
    "Workbench",
    "Workers",
    "gains_figure",
    "generations_figure",
    "measure_trace",
    "memory_bars",
    "pictures_figure",
    "pictures_sentence",
    "predict",
    "predictions",
    "pulse",
    "quiz",
    "race_figure",
    "race_sentence",
    "recipe_table",
    "recorded_gemm",
    "recorded_trace",
    "roofline_figure",
    "scale_map_figure",
    "scale_map_sentence",
    "static_underflow",
    "sum_errors",
    "sum_errors_figure",
    "sweep_figure",
    "sweep_sentence",
    "treatment_figure",
    "treatment_sentence",
]


# Module of this package -> the names that are imported from it when they are first used. The others
# have the names of packages here, which would hide them.
PLACES = {
    "addition.widget": ("AdditionPlayer",),
    "base.figures": (
        "FATE_COLOURS",
        "FORMAT_COLOURS",
    ),
    "beat_scaler.widget": ("BeatTheScaler",),
    "bits.widget": ("BitExplorer",),
    "block_scales.widget": ("BlockScales",),
    "fault_wall.widget": ("FaultWall",),
    "gpu_run.widget": ("GpuRun",),
    "graph.widget": ("CastPasses",),
    "ledger.widget": ("CastLedger",),
    "live_training.widget": ("LiveTraining",),
    "mma_block.errors": (
        "SumErrors",
        "sum_errors",
        "sum_errors_figure",
    ),
    "mma_block.widget": ("MmaBlock",),
    "number_line.widget": ("NumberLine",),
    "playground.widget": ("Playground",),
    "results.gemm": (
        "recorded_gemm",
        "roofline_figure",
        "sweep_figure",
        "sweep_sentence",
    ),
    "results.pictures": (
        "pictures_figure",
        "pictures_sentence",
    ),
    "results.published": (
        "gains_figure",
        "generations_figure",
    ),
    "results.recipe_table": (
        "RecipeTable",
        "recipe_table",
    ),
    "results.scale_map": (
        "scale_map_figure",
        "scale_map_sentence",
    ),
    "results.trainings": (
        "race_figure",
        "race_sentence",
        "treatment_figure",
        "treatment_sentence",
    ),
    "router.widget": ("RouterScores",),
    "scaler_timeline.trace": (
        "Trace",
        "measure_trace",
        "recorded_trace",
    ),
    "scaler_timeline.widget": (
        "ScalerPresets",
        "ScalerTimeline",
    ),
    "step_debugger.widget": ("StepDebugger",),
    "swallowed.widget": ("SwallowedUpdates",),
    "training_bar.widget": ("TrainingBar",),
    "underflow.widget": (
        "ALL_LAYERS",
        "UnderflowHistogram",
        "static_underflow",
    ),
    "workbench.widget": ("Workbench",),
    "workers.widget": (
        "Workers",
        "memory_bars",
    ),
    "zoom.widget": ("GradientZoom",),
}
_module_of = {name: module for module, names in PLACES.items() for name in names}

# Former names, importable until version 0.4.
MOVED = {"PatientWall": "labkit.widgets.FaultWall"}


def __getattr__(name: str) -> Any:
    """Import a name from its module; a former name of a widget warns."""
    if name in _module_of:
        value = getattr(import_module(f"{__name__}.{_module_of[name]}"), name)
        globals()[name] = value
        return value
    return moved(__name__, name, MOVED)


def __dir__() -> list[str]:
    return __all__
