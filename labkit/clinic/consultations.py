"""Consultations: trainings with a fault, which a learner diagnoses and repairs, as data.

A lesson brings them in its cases.py, as CASES (labkit.course).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from torch import Tensor, nn

from labkit.course import lessons

Batch = tuple[Tensor, ...]


@dataclass(frozen=True)
class Consultation:
    """What a training is given, and what is asked of it.

    model    makes the model, in FP32; torch's generator is seeded before
    batches  (how many, seed) -> what it is trained on
    steps    how many batches a treatment has
    limit    the score that a repaired training reaches and a broken one does not
    score    of a trained model
    skips    at most so many steps may be skipped
    format   the format of 16 bits that its text names
    half     at least this share of its products is to be computed in it
    decided  the parameter that an autograd function of the learner's is to be applied to; "" where none is
    weights  the dtypes that its parameters may have in the end
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    steps: int
    limit: float
    score: Callable[[nn.Module], float]
    skips: int = 0
    format: str = "float16"
    half: float = 0.9
    decided: str = ""
    weights: tuple[str, ...] = ("float32",)


@cache
def consultations() -> dict[str, Consultation]:
    """Return the consultations of all lessons, by name."""
    found: dict[str, Consultation] = {}
    for module in (lesson.module("cases") for lesson in lessons()):
        found |= getattr(module, "CASES", {})
    return found
