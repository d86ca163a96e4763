"""What goes wrong in practice? `check_machine` asks the machine, `find_pitfalls` a run; both say what to do.

`patients` are trainings that really fail, each with its repair; `explain` finds the one that an error belongs to.
"""

from labkit.clinic.consult import Treatment, look, treat
from labkit.clinic.consultations import CONSULTATIONS, Consultation
from labkit.clinic.diagnose import diagnose
from labkit.clinic.doctor import check_machine
from labkit.clinic.explain import cards, explain
from labkit.clinic.findings import Finding, Report, Status
from labkit.clinic.gpu_cards import gpu_cards
from labkit.clinic.on_gpu import GpuCard
from labkit.clinic.patient import Card, Kind, Outcome, Patient, Training, code_of, run, snippet
from labkit.clinic.patients import patients
from labkit.clinic.pitfalls import find_pitfalls
from labkit.clinic.rows import claims

__all__ = [
    "CONSULTATIONS", "Card", "Consultation", "Finding", "GpuCard", "Kind", "Outcome", "Patient", "Report", "Status",
    "Training", "Treatment", "cards", "check_machine", "claims", "code_of", "diagnose", "explain", "find_pitfalls",
    "gpu_cards", "look", "patients", "run", "snippet", "treat",
]  # fmt: skip
