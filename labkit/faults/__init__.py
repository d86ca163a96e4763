"""Known faults of mixed precision, each broken and fixed, grouped by theme.

`FAULTS` holds them by id, `run` runs one, `snippet` shows its code; `explain` finds the one that an
error belongs to.
"""

from labkit.faults.catalogue import FAULTS, GPU_CARDS, cards, explain
from labkit.faults.fault import Card, Fault, Kind, Training, TrainingOutcome, run
from labkit.faults.gpu import GpuCard
from labkit.faults.snippet import code_of, snippet

__all__ = [
    "FAULTS",
    "GPU_CARDS",
    "Card",
    "Fault",
    "GpuCard",
    "Kind",
    "Training",
    "TrainingOutcome",
    "cards",
    "code_of",
    "explain",
    "run",
    "snippet",
]
