"""What is an exercise of the clinic made of? One training, repaired and with each of its faults, and a diagnosis.

Invariant: learners are not handed this module out; it makes references and known mistakes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from labkit.clinic.consult import treat
from labkit.grading.draws import always
from labkit.grading.exercise import Case, Check, Exercise, Mistake

from .replay import TEXTS
from .runs import Diagnosed, Diagnosis, treated

Train = Callable[[Any, Any, str], list[float]]  # (model, batches, does): does "" repairs, another word leaves a fault
Row = tuple[str, str, Diagnosis | None, str]  # a mistake: its name, what it does, its diagnosis or None, its sentence
FIRST_LOOK = 2  # batches: enough to hear the diagnosis
COMMON: tuple[Row, ...] = (
    ("repairs nothing", "as it came", None, "this is the training as it came. It was diagnosed well; now repair it."),
    ("all in FP32", "FP32", None, "this learns, in FP32. The fault is at one place; leave the rest in 16 bits."),
    ("leaves batches out", "leaves out", None, "this leaves batches out. They are what there is to learn from."),
)


def consultation(
    name: str,
    title: str,
    entry: str,
    train: Train,
    diagnosis: Diagnosis,
    places: tuple[str, ...],
    mistakes: tuple[Row, ...],
    difficulty: int = 2,
) -> Exercise:
    """Return the exercise of a consultation; `places` are the words among which a diagnosis names one."""
    fits = Diagnosed(diagnosis, places)
    return Exercise(
        id=f"clinic.{name}",
        title=title,
        entry=entry,
        difficulty=difficulty,
        minutes=8,
        reference=_answer(train, "", diagnosis),
        checks=(
            Check("the diagnosis fits the run", 1, always((0, FIRST_LOOK)), outcome=fits),
            Check(
                "the repaired training learns, in 16 bits, from all",
                2,
                partial(_drawn, name),
                outcome=partial(treated, name),
            ),
        ),
        mistakes=tuple(
            Mistake(what, _answer(train, does, said or diagnosis), why)
            for what, does, said, why in (*COMMON, *mistakes)
        ),
        provides={"torch": torch},
        run_by=partial(treat, name),
    )


def _answer(train: Train, does: str, diagnosis: Diagnosis) -> Callable[..., object]:
    def trained(model: Any, batches: Any) -> object:
        losses = train(model, batches[::2], "") if does == "leaves out" else train(model, batches, does)
        return losses, diagnosis

    return trained


def _drawn(name: str, random: Random) -> list[Case]:
    return [(random.choice(TEXTS[name].seeds), None)]
