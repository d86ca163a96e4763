"""Faults planted into the lessons' solutions, which every exercise must notice.

Run by hand: make mutants, or .venv/bin/python -m tests.mutants.answers [WORDS ...] [--processes 2]

A fault is refused by some call of the exercise; or it is not met by any of its calls; or it is
equal, right on the whole domain that the text asks about. Each of the equal ones has its reason in
equal.toml; one without makes the exit status 1. WORDS choose the exercises whose names have one of
them.
"""

import argparse
import signal
import sys
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from labkit.grading import EXERCISES, Exercise
from labkit.grading.difference import difference
from labkit.grading.judge import CaseSet, answers_of, grading_cases, known_outcomes, outcomes_of
from labkit.grading.program import program_of
from tests.grading.cases import cells_of
from tests.mutants.planted import PRELUDE, Answer, Faulty, around, in_code

EQUAL = tomllib.loads(Path(__file__).with_name("equal.toml").read_text(encoding="utf-8"))
# Exercises of which an answer takes a second and more.
TRAINS = ("project.", "clinic.")
# Seconds of CPU for all calls of one fault: one that takes more is an endless loop.
SECONDS = 0.5


def function_in(sources: list[str], exercise: Exercise) -> Answer | None:
    """Run a program, and return the answer that it defines; None where it does not get there."""
    names: dict[str, Any] = {
        **PRELUDE,
        **exercise.provides,
        "check": lambda *_: None,
        "__name__": "__main__",
    }
    try:
        for source in sources:
            exec(source, names)
    except Exception:
        return None
    return names.get(exercise.entry)


def faults_of(exercise: Exercise) -> Iterator[tuple[str, Answer | None]]:
    """Yield (what is changed, the answer with the fault) for all faults of the solution."""
    *needed, own = program_of(cells_of(exercise.lesson), exercise)
    for name, source in in_code(own):
        yield name, function_in([*needed, source], exercise)
    right = function_in([*needed, own], exercise)
    assert right is not None, f"the lesson's solution of {exercise.id} does not run"
    yield from around(right, tuple(name in exercise.may_change for name in exercise.parameters))


class Late(BaseException):
    """An answer that takes too long."""


def late(*_: object) -> None:
    raise Late


def refused(case_set: CaseSet, answer: Answer | None) -> bool:
    """Return whether some call of the case set shows that an answer is wrong, or takes too long."""
    before = signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        places = ((i, j) for i, cases in enumerate(case_set.cases) for j in range(len(cases)))
        return answer is None or any(not _agrees(case_set, answer, *place) for place in places)
    except Late:
        return True
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _agrees(case_set: CaseSet, answer: Answer, number: int, place: int) -> bool:
    one = CaseSet(
        case_set.exercise, (case_set.checks[number],), ((case_set.cases[number][place],),), True
    )
    given = outcomes_of(one, answers_of(one, answer))[0][0]
    right = known_outcomes(case_set, case_set.exercise.reference)[number][place]
    return difference(right, given, case_set.exercise.ulps, case_set.exercise.two_zeros) is None


def judged(case_set: CaseSet) -> tuple[int, list[str]]:
    """Return the number of faults, and the names of those that are met but not refused.

    A fault around an answer is met if it changed some call; one in its code always counts as met.
    """
    # It is computed and kept here, so that it does not take the time of an answer.
    known_outcomes(case_set, case_set.exercise.reference)
    count = 0
    equal = []
    for name, answer in faults_of(case_set.exercise):
        count += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not refused(case_set, answer) and (not isinstance(answer, Faulty) or answer.met):
                equal.append(name)
    return count, equal


def unexplained(exercise: Exercise, equal: list[str]) -> list[str]:
    """Return those of the equal faults that have no reason in equal.toml.

    A reason for "call dropped" is one for each fault whose name begins with "call dropped: ".
    """
    reasons = tuple(EQUAL.get(exercise.id, {}))
    return [
        name
        for name in equal
        if not any(name == why or name.startswith(f"{why}: ") for why in reasons)
    ]


def row(exercise_id: str, seed: int) -> tuple[str, list[str]]:
    """Return a line of the table, and the faults that nobody has explained."""
    exercise = EXERCISES[exercise_id]
    count, equal = judged(grading_cases(exercise, seed))
    wrong = unexplained(exercise, equal)
    return (
        f"{exercise_id:24}{count:5} faults, {len(equal):2} of them equal, {len(wrong)} unexplained",
        wrong,
    )


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "words", nargs="*", help="only exercises whose name has one of these words"
    )
    arguments.add_argument("--processes", type=int, default=2)
    arguments.add_argument(
        "--seed", type=int, default=1, help="of the calls that are asked beside the notebook's"
    )
    chosen = arguments.parse_args()
    ids = [id for id in EXERCISES if not id.startswith(TRAINS)]
    some = [id for id in ids if not chosen.words or any(word in id for word in chosen.words)]
    unknown = [word for word in chosen.words if not any(word in id for id in ids)]
    if unknown:
        arguments.error(f"expected words of exercises, got {', '.join(unknown)}, which is in none")
    survivors = 0
    with ProcessPoolExecutor(chosen.processes) as pool:
        for line, wrong in pool.map(partial(row, seed=chosen.seed), some):
            survivors += len(wrong)
            print("\n    !!! NOT EXPLAINED: ".join([line, *wrong]), flush=True)
    print(f"{len(some)} exercises, {survivors} faults survived without a reason")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
