"""Two trainings side by side: where they part, and whether it is rounding or a fault."""

from labkit.testing.trainings.compare import (
    TrainingsDiffer,
    assert_same_training,
    compare_trainings,
)
from labkit.testing.trainings.result import TrainingDiff, TrainingVerdictKind

__all__ = [
    "TrainingDiff",
    "TrainingVerdictKind",
    "TrainingsDiffer",
    "assert_same_training",
    "compare_trainings",
]
