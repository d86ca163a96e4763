"""What goes wrong in practice? `diagnose` examines a training, `find_pitfalls` a record; both say what to do.

`patients` are trainings that really fail, each with its repair; `explain` finds the one that an error belongs to.
"""

import importlib
import warnings
from typing import Any

from labkit.clinic.consult import Treatment, look, treat
from labkit.clinic.consultations import CONSULTATIONS, Consultation
from labkit.clinic.diagnose import diagnose
from labkit.clinic.explain import cards, explain
from labkit.clinic.gpu_cards import gpu_cards
from labkit.clinic.on_gpu import GpuCard
from labkit.clinic.patient import Card, Kind, Outcome, Patient, Training, code_of, run, snippet
from labkit.clinic.patients import patients
from labkit.clinic.pitfalls import find_pitfalls
from labkit.clinic.rows import claims
from labkit.machine import Finding, Report, Status

__all__ = [
    "CONSULTATIONS", "Card", "Consultation", "Finding", "GpuCard", "Kind", "Outcome", "Patient", "Report", "Status",
    "Training", "Treatment", "cards", "claims", "code_of", "diagnose", "explain", "find_pitfalls",
    "gpu_cards", "look", "patients", "run", "snippet", "treat",
]  # fmt: skip

MOVED = {"check_machine": "labkit.machine"}  # importable from here until version 0.4


def __getattr__(name: str) -> Any:
    """Return a name that moved to another package, with a DeprecationWarning."""
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"import {name} from {MOVED[name]}, not from {__name__}", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module(MOVED[name]), name)
