"""What can we see going wrong? Exponent histograms, what a format does to them, and probes of a backward pass."""

from labkit.instrument.fate import Fate, fate
from labkit.instrument.gradients import GradSnapshot, Probe, probe, snapshot, underflow, weight_gradients, zeros_inside
from labkit.instrument.histogram import ExponentHistogram, exponent_histogram, merge, shift
from labkit.instrument.updates import swallowed

__all__ = [
    "ExponentHistogram",
    "Fate",
    "GradSnapshot",
    "Probe",
    "exponent_histogram",
    "fate",
    "merge",
    "probe",
    "shift",
    "snapshot",
    "swallowed",
    "underflow",
    "weight_gradients",
    "zeros_inside",
]
