"""Instruments: exponent histograms, rounding effects, probes of a backward pass, and `watch`."""

from labkit.findings import Finding
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, exponent_histogram, merge, shift
from labkit.instrument.probe import (
    GradSnapshot,
    Probe,
    layer_outputs,
    probe,
    snapshot,
    swallowed,
    underflow,
    zeros_inside,
)
from labkit.instrument.recording import NotARecording, RecordedStep, Recording
from labkit.instrument.records import AgainstFP32, NonFinite, Skip, WatchedStep, Window
from labkit.instrument.report import Report
from labkit.instrument.scale_map import ScaleMap, scale_map, scale_row
from labkit.instrument.script import watched
from labkit.instrument.sources import scaler_source
from labkit.instrument.stream import Listener, register_source
from labkit.instrument.watch import Watch, watch

__all__ = [
    "AgainstFP32",
    "ExponentHistogram",
    "Fate",
    "Finding",
    "GradSnapshot",
    "Listener",
    "NonFinite",
    "NotARecording",
    "Probe",
    "RecordedStep",
    "Recording",
    "Report",
    "ScaleMap",
    "Skip",
    "Watch",
    "WatchedStep",
    "Window",
    "exponent_histogram",
    "fate",
    "layer_outputs",
    "merge",
    "probe",
    "register_source",
    "scale_map",
    "scale_row",
    "scaler_source",
    "shift",
    "snapshot",
    "swallowed",
    "underflow",
    "watch",
    "watched",
    "zeros_inside",
]
