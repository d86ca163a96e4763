"""What can we see going wrong? Exponent histograms, what a format does to them, and probes of a backward pass."""

from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, exponent_histogram, merge, shift
from labkit.instrument.probe import GradSnapshot, Probe, layer_outputs, probe, snapshot, underflow, zeros_inside
from labkit.instrument.updates import swallowed

__all__ = [
    "ExponentHistogram",
    "Fate",
    "GradSnapshot",
    "Probe",
    "exponent_histogram",
    "fate",
    "layer_outputs",
    "merge",
    "probe",
    "shift",
    "snapshot",
    "swallowed",
    "underflow",
    "zeros_inside",
]
