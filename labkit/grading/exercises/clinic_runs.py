"""What is asked of a consultation? A diagnosis that fits the run, and a training that learns, in 16 bits, from all.

Idea: the answer is a training. labkit.clinic.consult runs it, where learners' code runs; what comes back are numbers,
which are judged here. A diagnosis has two parts, where and how much, and is right or wrong as a whole: whoever
guesses one part hears nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import torch

from labkit.clinic.consult import CONSULTATIONS, Treatment, treat
from labkit.grading.difference import show
from labkit.grading.exercise import Case, Check, Exercise, Mistake
from labkit.grading.given.wire import Instance
from labkit.grading.outcome import Outcome

Diagnosis = tuple[str, float | int | str]
Train = Callable[[Any, Any, str], list[float]]  # (model, batches, does): does "" repairs, another word leaves a fault
Row = tuple[str, str, Diagnosis | None, str]  # a mistake: its name, what it does, its diagnosis or None, its sentence
NEAR = 0.1  # by so much, as a share, may a number be off
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

    return Exercise(
        id=f"clinic.{name}",
        title=title,
        entry=entry,
        difficulty=difficulty,
        minutes=8,
        reference=_answer(train, "", diagnosis),
        checks=(
            Check("the diagnosis fits the run", 1, _first_look, outcome=partial(_diagnosed, diagnosis, places)),
            Check("the repaired training learns, in 16 bits, from all", 2, _drawn, outcome=partial(_treated, name)),
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


def _first_look(_: Random) -> list[Case]:
    return [(0, FIRST_LOOK)]


def _drawn(random: Random) -> list[Case]:
    return [(random.randrange(1, 16), None)]


def _diagnosed(right: Diagnosis, places: tuple[str, ...], answer: object, case: Case) -> object:
    """Say whether a diagnosis fits, as a whole."""
    if not isinstance(answer, Instance):
        return answer
    said = answer.fields["diagnosis"]
    if not (isinstance(said, tuple) and len(said) == 2 and said[0] in places):
        return Outcome(False, f"a diagnosis is one of {', '.join(map(repr, places))}, and how much; not {show(said)}")
    fits = said[0] == right[0] and _near(right[1], said[1])
    says = f"{show(said)} fits" if fits else f"{show(said)} does not fit, in one part or in both; look at the run again"
    return Outcome(fits, says, said)


def _near(right: float | int | str, said: object) -> bool:
    if not isinstance(right, float):
        return right == said
    return isinstance(said, float | int) and abs(said - right) <= NEAR * abs(right)


def _treated(name: str, answer: object, case: Case) -> object:
    """Say whether a training learned, and whether it did so with what it was given."""
    if not isinstance(answer, Instance):
        return answer
    seen, asked = Treatment(**answer.fields), CONSULTATIONS[name]  # type: ignore[arg-type]
    given = sum(len(batch[0]) for batch in asked.batches(asked.steps, int(str(case[0]))))
    broken = next((step for step, loss in enumerate(seen.losses) if not math.isfinite(loss)), None)
    first, last = (seen.rates[0], seen.rates[-1]) if seen.rates else (0.0, 0.0)
    problems = {
        "loss": broken is not None and f"the loss is no finite number, first in step {broken}",
        "losses": len(seen.losses) != asked.steps and f"it returns {len(seen.losses)} losses of {asked.steps} steps",
        "examples": seen.examples < given
        and f"{given - seen.examples} of {given} examples never went through the model: leave none out",
        "steps": seen.steps < asked.steps - asked.skips
        and f"{seen.steps} of {asked.steps} steps were taken: a step that is left out, or caught, repairs nothing",
        "16 bits": seen.half < asked.half
        and f"{seen.half:.0%} of its products are computed in 16 bits: repair the fault, and leave the rest as it was",
        "weights": not set(seen.weights) <= set(asked.weights)
        and f"its weights are {' and '.join(seen.weights)} in the end",
        "products": seen.products < asked.products * asked.steps
        and f"it computes {seen.products / asked.steps:.0f} products a step, and as it came {asked.products} and more",
        "rates": asked.rates is not None
        and not (first >= 0.99 * asked.rates[0] and last <= 1.01 * asked.rates[1])
        and f"the learning rate goes from {first:g} to {last:g} over the steps that are taken; it was meant otherwise",
        "still": bool(seen.still) and f"{' and '.join(seen.still)} never moved",
        "score": not seen.score >= asked.limit and f"it reaches {seen.score:.2f}; {asked.limit} is asked",
    }
    found = {kind: text for kind, text in problems.items() if text}
    says = "; ".join(map(str, found.values())) or f"it reaches {seen.score:.2f}, and {asked.limit} was asked"
    return Outcome(not found, says, tuple(found))
