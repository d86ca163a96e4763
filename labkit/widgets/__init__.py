"""Widgets: their state is plain Python, their picture is drawn in the browser."""

from typing import Any

from labkit.moved import moved
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
from labkit.widgets.predict.widget import Predict, Prediction, predict, predictions
from labkit.widgets.pulse.widget import Pulse, pulse
from labkit.widgets.quiz.widget import Quiz, quiz
from labkit.widgets.results.gemm import recorded_gemm, roofline_figure, sweep_figure, sweep_sentence
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


# Former names, importable until version 0.4.
MOVED = {"PatientWall": "labkit.widgets.FaultWall"}


def __getattr__(name: str) -> Any:
    """Return a widget by its former name, with a DeprecationWarning."""
    return moved(__name__, name, MOVED)
