"""What is asked of a consultation? A diagnosis that fits the run, and a training that learns, in 16 bits, from all.

Idea: the answer is a training. labkit.clinic.consult runs it, where learners' code runs; what comes back are numbers,
which are judged here. A diagnosis has two parts, where and how much, and is right or wrong as a whole: whoever
guesses one part hears nothing of it.
"""

from __future__ import annotations

import math

from labkit.clinic.consult import Treatment
from labkit.clinic.consultations import CONSULTATIONS
from labkit.grading.difference import show
from labkit.grading.exercise import Case
from labkit.grading.given.wire import Instance
from labkit.grading.outcome import Outcome

Diagnosis = tuple[str, float | int | str]
NEAR = 0.1  # by so much, as a share, may a number be off


def diagnosed(right: Diagnosis, places: tuple[str, ...], answer: object, case: Case) -> object:
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


def treated(name: str, answer: object, case: Case) -> object:
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
