"""Consultations: trainings with a fault, which a learner diagnoses and repairs, as data.

A lesson defines them in its cases.py, as CASES (labkit.course).
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
    """A training to repair: its model and data, and the conditions that a repair has to meet.

    model    creates the model, in FP32; torch's generator is seeded before
    batches  (count, seed) -> the batches to train on
    steps    number of batches of a treatment
    limit    the score that a repaired training reaches and a broken one does not
    score    of a trained model
    metric   what the score is, in words
    skips    how many steps may be skipped at most
    format   the format of 16 bits that its text names
    half     the least share of its products that has to be computed in it
    decided  the parameter that an autograd function of the learner's has to be applied to; "" for none
    weights  the dtypes that its parameters may have at the end
    """

    model: Callable[[], nn.Module]
    batches: Callable[[int, int], list[Batch]]
    steps: int
    limit: float
    score: Callable[[nn.Module], float]
    metric: str = "the share of test digits that it gets right"
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
