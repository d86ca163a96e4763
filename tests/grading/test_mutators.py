"""Every exercise refuses every fault that can be planted into a right answer: a table, made anew each time.

A fault is refused, or does not apply (it changes nothing that the exercise's calls hold), or it is equal: it gives the
right answer on the whole domain that the text asks about. Each of the equal ones has its reason below.
"""

from __future__ import annotations

import copy
import math
import signal
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch

from labkit.grading import EXERCISES, Exercise
from labkit.grading.difference import difference
from labkit.grading.judge import Paper, _expected, answers_of, outcomes_of, paper_of, visible_paper
from labkit.grading.program import program_of
from tests.grading.mutators import (
    IN,
    OUT,
    PRELUDE,
    changed_in,
    changed_out,
    changes_arguments,
    fails_at_length,
    in_code,
    returns_early,
)
from tests.grading.test_doors import cells_of

Answer = Callable[..., object]
TRAIN = ("project.", "clinic.")
ALL = [exercise for exercise in EXERCISES.values() if not exercise.id.startswith(TRAIN)]
SECONDS = 0.5  # of CPU for all calls of a mutant: more is an endless loop

IN_PLACE = "arguments changed in place"

ORDER = "neither of the two needs the other"
ZERO = "-0 equals 0: only lesson 01 tells the two zeros apart"
SCALAR = "a number is a number, in whatever type it comes"
STRICT = "both have one length"
FINE = "FP16, or FP32, rounds the difference away"
EITHER = "inf and -inf are looked for alike"
FLUSHED = "FP16 has nothing below 2^-24: what is flushed rounds to 0 anyway"
FORGIVEN = "a share may be had in FP32, so what FP32 rounds away is forgiven"
NEARLY = dict.fromkeys(("an ulp more: 0.0", "an ulp less: 0.0", "out: one ulp up", "out: rounded to FP32"), FORGIVEN)
EQUAL: dict[str, dict[str, str]] = {
    "numbers.decode": {"swap statements 3": ORDER, "returns 0.0 at once": SCALAR},
    "numbers.ulp": {
        "one more: 14": "any exponent of 0 that is too low will do: the max comes after it",
        "in: FP16's subnormals flushed": "subnormal numbers stand as far apart as those at 0",
        "in: the sign ignored": "the sign makes no number finer",
    },
    "numbers.first_gap": {"swap statements 1": ORDER},
    "numbers.next_up": {"swap statements 1": ORDER},
    "rounding.nearest_even": {
        "swap statements 1": ORDER,
        "logic: -14": "0 is a multiple of any spacing",
        "one more: 14": "0 is a multiple of any spacing",
        "one less: 14": "0 is a multiple of any spacing",
        "out: the negative zero": ZERO,
        "in: what FP16 loses flushed": FLUSHED,
        "returns 0.0 at once": "0 rounds to 0",
    },
    "rounding.smallest_update": {
        "one less: 1": "an update of 0 moves nothing, so it is passed over",
        "one more: 30720": "half a spacing of a weight below 2048 is far smaller",
        "one less: 30720": "half a spacing of a weight below 2048 is far smaller",
        "out: the wrong dtype": SCALAR,
        "in: FP16's subnormals flushed": "the smallest number moves 0 and every subnormal number",
    },
    "rounding.stochastic": {"out: the negative zero": ZERO},
    "rounding.kahan": {"exchange the first two": "both are 0", "out: the wrong dtype": SCALAR},
    "rounding.epsilon": {
        "an ulp more: 1e-08": FINE,
        "an ulp less: 1e-08": FINE,
        "out: the negative zero": ZERO,
        "returns 0.0 at once": "zeros are normalised to zeros",
    },
    "tensor.standstill": {
        "name float32": "0 is 0 in any format",
        "call dropped": SCALAR,
        "out: the negative zero": ZERO,
    },
    "tensor.block": {"one less: 0": "a bit that is added and cut changes nothing", "opposite: True": STRICT},
    "tensor.padding": {"swap statements 2": ORDER, "out: the negative zero": ZERO},
    "tensor.intensity": {"swap statements 1": ORDER},
    "gradients.binades": {
        "in: NaN taken for 0": "both are in no binade",
        "in: -inf taken for inf": EITHER,
        "in: the sign ignored": "a magnitude has none",
    },
    "gradients.fate": {**NEARLY, "swap statements 1": ORDER, "out: the negative zero": ZERO},
    "gradients.lost": {
        **NEARLY,
        "opposite: True": STRICT,
        "out: the negative zero": ZERO,
        "in: the sign ignored": "a sign makes no gradient zero",
    },
    "gradients.window": {
        "an ulp more: 2.0": "no FP32 number lies that near to a limit",
        "an ulp less: 2.0": "no FP32 number lies that near to a limit",
    },
    "gradients.culprit": {
        "out: the negative zero": ZERO,
        "in: -inf taken for inf": EITHER,
        "in: the sign ignored": "the largest magnitude has none",
    },
    "autocast.lists": {
        "swap statements 1": ORDER,
        "exchange the first two": "the order in a list of names means nothing",
    },
    "autocast.linear": {
        "swap statements 2": ORDER,
        "swap statements 3": ORDER,
        "call dropped": "torch promotes FP16 beside FP32",
        "out: the negative zero": ZERO,
        "in: tensors cut to FP16": "autocast rounds each operand to FP16 anyway",
    },
    "autocast.softmax": {"out: the negative zero": ZERO},
    "autocast.cache": {"an ulp more: 0.5": FINE, "an ulp less: 0.5": FINE, "out: the negative zero": ZERO},
    "scaling.unscale": {"call dropped": "torch's bool is a bool"},
    "scaling.clip": {
        "swap statements 2": ORDER,
        "an ulp more: 1.0": FINE,
        "an ulp less: 1.0": FINE,
        "call dropped": "a tensor divides as a number does",
        "an ulp more: 1e-06": FINE,
        "an ulp less: 1e-06": FINE,
        "out: the negative zero": ZERO,
        "in: -inf taken for inf": EITHER,
    },
    "scaling.order": {"swap statements 6": "whether the scale or the model comes first is the same"},
    "scaling.repair": {
        "swap statements 2": ORDER,
        "call dropped": "torch's bool is a bool",
        "in: -inf taken for inf": EITHER,
        "in: the sign ignored": "a sign makes no gradient finite or infinite",
    },
    "master.step": {"in: -inf taken for inf": EITHER},
    "master.memory": {
        "compute Div": "16 and 32 bits are whole bytes",
        "one less: 8": "16 // 7 is 2 and 32 // 7 is 4, too",
    },
    "master.flat": {"opposite: True": STRICT},
    "master.ema": {"one less: 1": "an average of the first weight with itself is that weight"},
    "recipes.levels": {"swap statements 1": ORDER, "opposite: True": STRICT},
    "recipes.which": {
        "swap statements 1": ORDER,
        "swap statements 2": ORDER,
        "exchange the first two": "two equal bits, or a question of whether any is BF16",
    },
    "recipes.epsilon": {
        "exchange the first two": "the question is whether either of the two is 0",
        "call dropped": SCALAR,
        "an ulp more: 0.001": FINE,
        "an ulp less: 0.001": FINE,
        "in: what FP16 loses flushed": FLUSHED,
        "in: the sign ignored": "a square has none",
    },
    "recipes.verdict": {
        "compare 0 LtE: mean < 0": "a mean of 0 lies beyond no limit",
        "an ulp more: 0.0": FINE,
        "an ulp less: 0.0": FINE,
        "opposite: True": STRICT,
        "in: NaN taken for 0": "that is what is asked",
    },
    "frameworks.repair": {
        "swap statements 4": "the optimizer steps the same master from beginning to end",
        "drop statement 0": "apex's step forgets the masters' gradients, and scale_loss the model's",
        "one more: 0": "verbosity says how many messages there are",
        "one less: 0": "verbosity says how many messages there are",
    },
    "frameworks.callback": {"swap statements 1": ORDER},
    "beyond.mx_scale": {"swap statements 1": ORDER, "in: the sign ignored": "a magnitude has none"},
    "beyond.block": {
        "opposite: True": STRICT,
        "an ulp less: 6.0": "every chance is below a part that is all but 1",
        "out: the negative zero": ZERO,
    },
    "beyond.frozen": {"call dropped: weight.float()": "torch promotes BF16 beside FP32"},
    "beyond.clipped": {"opposite: True": STRICT},
    "beyond.unit": {"swap statements 1": ORDER},
    "beyond.orders": {
        "swap statements 1": ORDER,
        "call dropped": SCALAR,
        "name float16: np.float32": "0 is 0 in any format",
        "name float64: np.float32": "0 is 0 in any format, and a number of FP32 is one of FP64",
        "out: the negative zero": ZERO,
    },
    "beyond.history": {
        "an ulp more: 1.0": "a quotient may be rounded twice, so two ulps are forgiven",
        "an ulp less: 1.0": "a quotient may be rounded twice, so two ulps are forgiven",
        "out: one ulp up": "a quotient may be rounded twice, so two ulps are forgiven",
    },
    "beyond.keep": {
        "in: FP16's subnormals flushed": "what changes so little stands still as surely as what does not",
        "in: what FP16 loses flushed": "what changes so little stands still as surely as what does not",
    },
    "workers.agree": {
        "opposite: True": STRICT,
        "out: the negative zero": ZERO,
        "in: -inf taken for inf": EITHER,
    },
    "workers.predivide": {"out: the negative zero": ZERO},
    "recipes.cheapest": {
        "name all": "the mean of a NaN is NaN, which is not at least anything",
        "name isinf": "the mean of a NaN is NaN, which is not at least anything",
    },
}


_cells_of = cache(cells_of)


@cache
def names_of(exercise: Exercise) -> tuple[list[str], str]:
    """Return what a lesson's solution needs, and the solution."""
    *needed, own = program_of(_cells_of(exercise.lesson), exercise)
    return needed, own


def function_in(sources: list[str], exercise: Exercise) -> Answer | None:
    names: dict[str, Any] = {**PRELUDE, **exercise.provides, "check": lambda *_: None, "__name__": "__main__"}
    try:
        for source in sources:
            exec(source, names)
    except Exception:
        return None
    found = names.get(exercise.entry)
    return found if callable(found) else None


def mutants_of(exercise: Exercise) -> Iterator[tuple[str, Callable[[], Answer | None]]]:
    """Yield (the fault's name, what makes the answer with it), for every fault there is."""
    needed, own = names_of(exercise)
    for fault, source in in_code(own, exercise.entry):
        yield fault, lambda source=source: function_in([*needed, source()], exercise)  # type: ignore[misc]
    right = function_in([*needed, own], exercise)
    assert right is not None
    yield from ((f"out: {name}", partial(changed_out, right, name)) for name in OUT)
    yield from ((f"in: {name}", partial(changed_in, right, name)) for name in IN)
    yield from ((f"fails at length {length}", partial(fails_at_length, right, length)) for length in (0, 1))
    yield IN_PLACE, partial(changes_arguments, right, tuple(n in exercise.may_change for n in exercise.parameters))
    yield from ((f"returns {value} at once", partial(returns_early, right, value)) for value in (0.0, math.inf))


MUTABLE = (list, dict, torch.Tensor, np.ndarray)


class Late(BaseException):
    pass


def refused_by(paper: Paper, answer: Answer | None) -> bool:
    """Return whether some call of the paper shows that the answer is wrong."""

    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return answer is None or any(not _agrees(paper, answer, *place) for place in _places(paper))
    except Late:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@cache
def right_of(paper: Paper) -> list[list[object]]:
    return _expected(paper, paper.exercise.reference)


def _places(paper: Paper) -> Iterator[tuple[int, int]]:
    return ((i, j) for i, cases in enumerate(paper.cases) for j in range(len(cases)))


def _agrees(paper: Paper, answer: Answer, number: int, place: int) -> bool:
    one = Paper(paper.exercise, (paper.checks[number],), ((paper.cases[number][place],),), True)
    given = outcomes_of(one, answers_of(one, answer))[0][0]
    right = right_of(paper)[number][place]
    return difference(right, given, paper.exercise.ulps, paper.exercise.two_zeros) is None


def changes_something(paper: Paper, fault: str, right: Answer) -> bool:
    """Return whether a fault around an answer shows in what goes in or comes out of any call; in code it always may."""
    kind, _, name = fault.partition(": ")
    cases = [case for group in paper.cases for case in group]
    if fault == IN_PLACE:
        return any(type(argument) in MUTABLE for case in cases for argument in case)
    if kind == "in" and name in IN:
        return any(repr(case) != repr(tuple(map(IN[name], case))) for case in cases)
    if kind == "out" and name in OUT:
        return any(repr(value) != repr(OUT[name](value)) for value in (right(*copy.deepcopy(case)) for case in cases))
    if fault.startswith(("fails at length", "returns ")):
        twin = returns_early(raising, float(fault.split()[1])) if "returns" in fault else None
        return bool(cases) and twin is not None and any(not _raises(twin, case) for case in cases)
    return True


def raising(*_: object) -> object:
    raise LookupError


def _raises(answer: Answer, case: tuple[object, ...]) -> bool:
    try:
        answer(*case)
    except LookupError:
        return True
    return False


def row_of(exercise: Exercise, seed: int, every: int = 1) -> dict[str, str]:
    """Return fault -> "refused", "does not apply" or "equal", for one exercise and every n-th fault."""
    paper, found = paper_of(exercise, seed), dict[str, str]()
    right = function_in([*names_of(exercise)[0], names_of(exercise)[1]], exercise)
    assert right is not None
    for fault, make in list(mutants_of(exercise))[::every]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if refused_by(paper, make()):
                found[fault] = found.get(fault, "refused")
            else:
                found[fault] = "equal" if changes_something(paper, fault, right) else "does not apply"
    return found


def reason_of(exercise: Exercise, fault: str) -> str:
    """Return why a fault is equal, or ""; a reason for "call dropped" is one for each call that is."""
    reasons = EQUAL.get(exercise.id, {})
    return next((why for name, why in reasons.items() if fault == name or fault.startswith(f"{name}: ")), "")


def unexplained(exercise: Exercise, seed: int, every: int = 1) -> list[str]:
    equal = [fault for fault, what in row_of(exercise, seed, every).items() if what == "equal"]
    return [fault for fault in equal if not reason_of(exercise, fault)]


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_a_fault_is_refused_or_changes_nothing(exercise: Exercise) -> None:
    """Every thirtieth fault, on one seed; the whole table is slow."""
    assert unexplained(exercise, 0, every=30) == []


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_arguments_changed_in_place_are_refused_wherever_they_can_be_changed(exercise: Exercise) -> None:
    paper = visible_paper(exercise)
    answer = next(make() for fault, make in mutants_of(exercise) if fault == IN_PLACE)
    can_be = any(type(argument) in MUTABLE for cases in paper.cases for case in cases for argument in case)
    assert refused_by(paper, answer) == can_be


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_the_whole_table(exercise: Exercise, seed: int) -> None:
    assert unexplained(exercise, seed) == []


@pytest.mark.parametrize("exercise", ALL, ids=lambda exercise: exercise.id)
def test_a_coin_passes_less_than_once_in_a_thousand_gradings(exercise: Exercise) -> None:
    """Whoever draws an answer from those that are ever right, anew for each call; a constant is such a coin, too."""
    expected = _expected(paper_of(exercise, 0), exercise.reference)
    right = [repr(answer) for group in expected for answer in group]
    chance = math.prod(1 / len(set(right)) for _ in right)
    assert chance < 1e-3


FEW = {  # as many different calls as a notebook shows, and no more: these can be learnt by heart, and may
    "recipes.lines",
}  # fmt: skip


@pytest.mark.parametrize("exercise", [e for e in ALL if e.id not in FEW], ids=lambda exercise: exercise.id)
def test_what_is_learnt_by_heart_does_not_pass(exercise: Exercise) -> None:
    """A table of the notebook's calls, with its first answer for every other call, earns less at grading."""
    shown = visible_paper(exercise)
    table = {
        repr(c): a
        for cs, answers in zip(shown.cases, _expected(shown, exercise.reference), strict=True)
        for c, a in zip(cs, answers, strict=True)
    }
    day = paper_of(exercise, 5)
    assert any(repr(case) not in table for cases in day.cases for case in cases)
    first = next(iter(table.values()))
    expected = _expected(day, exercise.reference)
    pairs = [(c, a) for cs, answers in zip(day.cases, expected, strict=True) for c, a in zip(cs, answers, strict=True)]
    assert any(difference(right, table.get(repr(case), first), exercise.ulps) for case, right in pairs)


if __name__ == "__main__":  # python -m tests.grading.test_mutators: the table, to be read
    for exercise in ALL:
        row = row_of(exercise, 0)
        print(
            f"{exercise.id:<28}",
            *(f"{list(row.values()).count(w):>4} {w}" for w in ("refused", "does not apply", "equal")),
        )
        for fault in (fault for fault, what in row.items() if what == "equal"):
            print(f"    {fault}: {reason_of(exercise, fault) or 'NOT EXPLAINED'}")
