"""Examination of trainings: `diagnose` examines one that runs, `find_pitfalls` a record, and both say what to do.

The trainings of lesson 10 are `CONSULTATIONS`; `treat` and `look` run a repair of one.
"""

import warnings
from typing import Any

from labkit import faults, machine
from labkit.clinic.consult import Treatment, look, treat
from labkit.clinic.consultations import Consultation, consultations
from labkit.clinic.diagnose import claims, diagnose
from labkit.clinic.pitfalls import find_pitfalls
from labkit.machine import Finding, Report, Status

__all__ = [
    "CONSULTATIONS", "Consultation", "Finding", "Report", "Status", "Treatment", "claims", "consultations", "diagnose",
    "find_pitfalls", "look", "treat",
]  # fmt: skip

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


def __getattr__(name: str) -> Any:
    """Return the consultations of all lessons; or what moved to another package, with a DeprecationWarning."""
    if name == "CONSULTATIONS":  # the cases of lessons, which are imported when they are used
        return consultations()
    if name not in MOVED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place, moved = MOVED[name]
    warnings.warn(f"labkit.clinic.{name} is now {place}", DeprecationWarning, stacklevel=2)
    return moved
