"""How does a learner touch it? Widgets: their state is plain Python, their picture is drawn in the browser."""

from labkit.widgets.addition import AdditionPlayer
from labkit.widgets.beat_scaler import BeatTheScaler
from labkit.widgets.bits import BitExplorer
from labkit.widgets.gemm_figures import roofline_figure, sweep_figure
from labkit.widgets.gemm_words import recorded_gemm, sweep_sentence
from labkit.widgets.ledger import CastLedger
from labkit.widgets.live import LiveTraining
from labkit.widgets.mma_block import MmaBlock
from labkit.widgets.mma_block_errors import SumErrors, sum_errors, sum_errors_figure
from labkit.widgets.number_line import NumberLine
from labkit.widgets.predict import Predict, Prediction, predict, predictions
from labkit.widgets.pulse import Pulse, pulse
from labkit.widgets.race_figure import race_figure, race_sentence, race_table
from labkit.widgets.race_progress import RaceProgress
from labkit.widgets.recipe_table import RecipeTable, recipe_table
from labkit.widgets.scaler_timeline import ScalerTimeline
from labkit.widgets.scaler_timeline_presets import ScalerPresets
from labkit.widgets.scaler_timeline_trace import Trace, measure_trace, recorded_trace
from labkit.widgets.static_figures import FATE_COLOURS, FORMAT_COLOURS, static_underflow
from labkit.widgets.step_debugger import StepDebugger
from labkit.widgets.swallowed import SwallowedUpdates
from labkit.widgets.training_bar import TrainingBar
from labkit.widgets.underflow import UnderflowHistogram
from labkit.widgets.underflow_words import ALL_LAYERS
from labkit.widgets.workbench import Workbench

__all__ = [
    "ALL_LAYERS",
    "FATE_COLOURS",
    "FORMAT_COLOURS",
    "AdditionPlayer",
    "BeatTheScaler",
    "BitExplorer",
    "CastLedger",
    "LiveTraining",
    "MmaBlock",
    "NumberLine",
    "Predict",
    "Prediction",
    "Pulse",
    "RaceProgress",
    "RecipeTable",
    "ScalerPresets",
    "ScalerTimeline",
    "StepDebugger",
    "SumErrors",
    "SwallowedUpdates",
    "Trace",
    "TrainingBar",
    "UnderflowHistogram",
    "Workbench",
    "measure_trace",
    "predict",
    "predictions",
    "pulse",
    "race_figure",
    "race_sentence",
    "race_table",
    "recipe_table",
    "recorded_gemm",
    "recorded_trace",
    "roofline_figure",
    "static_underflow",
    "sum_errors",
    "sum_errors_figure",
    "sweep_figure",
    "sweep_sentence",
]
