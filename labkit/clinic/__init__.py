"""Examination of trainings: `diagnose` examines one that runs, `find_pitfalls` a record, and both say what to do."""

from typing import Any

from labkit import faults
from labkit.clinic.diagnose import claims, diagnose
from labkit.clinic.pitfalls import find_pitfalls
from labkit.course import moved_to_lessons
from labkit.machine import Finding, Report, Status
from labkit.moved import moved

__all__ = ["Finding", "Report", "Status", "claims", "diagnose", "find_pitfalls"]

# What left this package, importable from here until version 0.4: its new place.
MOVED = {
    "Card": "labkit.faults.Card",
    "GpuCard": "labkit.faults.GpuCard",
    "Kind": "labkit.faults.Kind",
    "Patient": "labkit.faults.Fault",
    "Training": "labkit.faults.Training",
    "TrainingOutcome": "labkit.faults.TrainingOutcome",
    "cards": "labkit.faults.cards",
    "check_machine": "labkit.machine.check_machine",
    "code_of": "labkit.faults.code_of",
    "explain": "labkit.faults.explain",
    "gpu_cards": "labkit.faults.GPU_CARDS",
    "patients": "labkit.faults.FAULTS",
    "run": "labkit.faults.run",
    "snippet": "labkit.faults.snippet",
}
# Those that took other arguments here.
ADAPTERS: dict[str, Any] = {
    "code_of": lambda function, cured: faults.code_of(function, cured),
    "gpu_cards": lambda: faults.GPU_CARDS,
    "patients": lambda: faults.FAULTS,
    "run": lambda patient, cured: faults.run(patient, cured),
    "snippet": lambda patient, cured: faults.snippet(patient, cured),
}


def __getattr__(name: str) -> Any:
    """Return what moved to another package or to a lesson, with a DeprecationWarning."""
    return moved(__name__, name, MOVED | moved_to_lessons(__name__), ADAPTERS)
