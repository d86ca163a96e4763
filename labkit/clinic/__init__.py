"""Examination of trainings: `diagnose` examines one that runs, `find_pitfalls` a record, and both say what to do."""

import warnings
from typing import Any

from labkit import faults, machine
from labkit.clinic.diagnose import claims, diagnose
from labkit.clinic.pitfalls import find_pitfalls
from labkit.course import lessons
from labkit.machine import Finding, Report, Status

__all__ = ["Finding", "Report", "Status", "claims", "diagnose", "find_pitfalls"]

# What left this package, importable from here until version 0.4: the new place, and the object with its old signature.
MOVED: dict[str, tuple[str, Any]] = {
    "check_machine": ("labkit.machine.check_machine", machine.check_machine),
    "Patient": ("labkit.faults.Fault", faults.Fault),
    "patients": ("labkit.faults.FAULTS", lambda: faults.FAULTS),
    "gpu_cards": ("labkit.faults.GPU_CARDS", lambda: faults.GPU_CARDS),
    "run": ("labkit.faults.run", lambda patient, cured: faults.run(patient, cured)),
    "snippet": ("labkit.faults.snippet", lambda patient, cured: faults.snippet(patient, cured)),
    "code_of": ("labkit.faults.code_of", lambda function, cured: faults.code_of(function, cured)),
}
for _name in ("Card", "GpuCard", "Kind", "TrainingOutcome", "Training", "cards", "explain"):
    MOVED[_name] = (f"labkit.faults.{_name}", getattr(faults, _name))

# now in labkit.grading
OF_LESSONS = ("CONSULTATIONS", "Consultation", "Treatment", "look", "treat")


def __getattr__(name: str) -> Any:
    """Return what moved to another package, with a DeprecationWarning."""
    if name in OF_LESSONS:
        modules = [lesson.module("cases") for lesson in lessons()]
        found = [getattr(module, name) for module in modules if hasattr(module, name)]
        place, moved = f"labkit.grading.{name}", next(iter(found), None)
    elif name in MOVED:
        place, moved = MOVED[name]
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"labkit.clinic.{name} is now {place}", DeprecationWarning, stacklevel=2)
    return moved
