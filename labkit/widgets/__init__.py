"""How does a learner touch it? Widgets: their state is plain Python, their picture is drawn in the browser."""

from labkit.widgets.pulse import Pulse, pulse
from labkit.widgets.static_figures import FATE_COLOURS, FORMAT_COLOURS, static_underflow
from labkit.widgets.underflow import UnderflowHistogram
from labkit.widgets.underflow_words import ALL_LAYERS

__all__ = [
    "ALL_LAYERS",
    "FATE_COLOURS",
    "FORMAT_COLOURS",
    "Pulse",
    "UnderflowHistogram",
    "pulse",
    "static_underflow",
]
