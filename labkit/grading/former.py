"""Former forms of exercises: a function with fewer arguments, as earlier releases asked for it.

Where an exercise got further arguments, its former form is the new one with those arguments fixed:
`my_decode(code)` was `my_decode(code, 5, 10, 15)`. Id, points and checks are the same. Of the cases
those are left that have these arguments; every check has some.

Invariant: an answer in a former form is judged by the same references, cases and mistakes as one in
the present form.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from random import Random

from labkit.grading.exercise import Case, Exercise, Rows


@dataclass(frozen=True)
class WithLast:
    """A function of which the last arguments are fixed."""

    function: Callable[..., object]
    last: tuple[object, ...]

    @property
    def __signature__(self) -> inspect.Signature:
        parameters = list(inspect.signature(self.function).parameters.values())
        return inspect.Signature(parameters[: len(parameters) - len(self.last)])

    def __call__(self, *arguments: object) -> object:
        return self.function(*arguments, *self.last)


@lru_cache(maxsize=256)
def former_of(exercise: Exercise) -> Exercise:
    """Return an exercise in its former form.

    Raises:
        ValueError: it has none.
    """
    last = exercise.former
    if not last:
        raise ValueError(f"the exercise {exercise.id} has no former form")

    def aside(*case: object) -> Rows:
        return exercise.aside(*case, *last)

    return replace(
        exercise,
        checks=tuple(
            replace(check, cases=partial(_cases_with, check.cases, last))
            for check in exercise.checks
        ),
        mistakes=tuple(
            replace(known, answer=WithLast(known.answer, last)) for known in exercise.mistakes
        ),
        reference=WithLast(exercise.reference, last),
        aside=aside,
        former=(),
    )


def _cases_with(
    draw: Callable[[Random], list[Case]], last: Sequence[object], random: Random
) -> list[Case]:
    """Return the cases that end in these arguments, without them."""
    count = len(last)
    return [case[:-count] for case in draw(random) if case[-count:] == tuple(last)]
