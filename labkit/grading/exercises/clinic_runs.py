"""What is asked of a consultation? A diagnosis that fits the run, and a training that learns, in 16 bits, from all.

Idea: the answer is a training. labkit.clinic.consult runs it, where learners' code runs; what comes back are numbers,
which are judged here. A diagnosis has two parts, where and how much, and is right or wrong as a whole: whoever
guesses one part hears nothing of it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from labkit.clinic.consult import Treatment
from labkit.clinic.consultations import CONSULTATIONS
from labkit.grading.difference import show
from labkit.grading.exercise import Case
from labkit.grading.given.wire import Instance
from labkit.grading.outcome import Outcome

Diagnosis = tuple[str, float | int | str]
NEAR = 0.1  # by so much, as a share, may a number be off; it is read with three digits


@dataclass(frozen=True)
class StoredDiagnosis:
    """Stands for the right diagnosis where learners are handed the lab: digests of all that would be right."""

    digests: frozenset[str]


def stored_diagnosis(right: Diagnosis, places: tuple[str, ...]) -> StoredDiagnosis:
    """Return what tells a right diagnosis from a wrong one, and does not say which is right."""
    place, amount = right
    if not isinstance(amount, float):
        return StoredDiagnosis(frozenset({_digest(places, place, _exactly(amount))}))
    exponent = math.floor(math.log10(abs(amount))) if amount else 0
    numbers = [
        math.copysign(float(f"{m}e{e}"), amount) for e in range(exponent - 3, exponent) for m in range(100, 1000)
    ]
    near = [number for number in [0.0, *numbers] if _near(amount, number)]
    return StoredDiagnosis(frozenset(_digest(places, place, _read(number)) for number in near))


def diagnosed(right: Diagnosis | StoredDiagnosis, places: tuple[str, ...], answer: object, case: Case) -> object:
    """Say whether a diagnosis fits, as a whole."""
    if not isinstance(answer, Instance):
        return answer
    said = answer.fields["diagnosis"]
    if not (isinstance(said, tuple) and len(said) == 2 and said[0] in places):
        return Outcome(False, f"a diagnosis is one of {', '.join(map(repr, places))}, and how much; not {show(said)}")
    fits = _fits(right, places, said)
    says = f"{show(said)} fits" if fits else f"{show(said)} does not fit, in one part or in both; look at the run again"
    return Outcome(fits, says, said)


def _fits(right: Diagnosis | StoredDiagnosis, places: tuple[str, ...], said: tuple[str, object]) -> bool:
    if isinstance(right, StoredDiagnosis):
        return not right.digests.isdisjoint(_digest(places, said[0], amount(said[1])) for amount in (_exactly, _read))
    return said[0] == right[0] and _near(right[1], said[1])


def _near(right: float | int | str, said: object) -> bool:
    if not isinstance(right, float):
        return _exactly(right) == _exactly(said)
    return isinstance(said, float | int) and abs(float(_read(said)) - right) <= NEAR * abs(right)


def _exactly(amount: object) -> str:
    """Write an amount so that equal ones are written alike: 11 and 11.0."""
    return f"= {int(amount) if isinstance(amount, float) and amount.is_integer() else amount!r}"


def _read(amount: object) -> str:
    """Write a number with three digits; what is none, in a way that no number is written."""
    try:
        return f"{amount + 0.0:.2e}" if isinstance(amount, float | int) else "none"  # -0.0 + 0.0 is 0.0
    except OverflowError:
        return "inf"


def _digest(places: tuple[str, ...], place: str, amount: str) -> str:
    return hashlib.sha256(repr((places, place, amount)).encode()).hexdigest()[:16]


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
