"""What do learners get, and what does the teacher keep? Two folders, written from a checkout.

Idea: the learners' wheel is the lab without the modules of exercises; one file takes their place, with the right
answers to what a notebook asks and digests of known mistakes (labkit.grading.stored). Grading and this room are left
out too: both take the references. The teacher's folder has the whole lab, model answers and a table of exercises.

Invariant: no source of a reference, a known mistake or a solution is in the learners' folder.
"""

from __future__ import annotations

import gzip
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

from labkit.classroom.model_answers import as_csv, model_answers
from labkit.classroom.wheel import files_of, write_wheel
from labkit.grading.exercise import Check, Exercise, Mistake
from labkit.grading.exercises import EXERCISES
from labkit.grading.exercises.clinic_runs import diagnosed, stored_diagnosis
from labkit.grading.judge import Paper, answers_of, outcomes_of, visible_paper
from labkit.grading.outcome import Outcome
from labkit.grading.stored import StoredAnswers, StoredCases, StoredMistake, StoredRows, digest
from labkit.records import write_whole

EXERCISE_MODULES = {f"labkit/grading/exercises/{id.replace('.', '_')}.py" for id in EXERCISES}
TEACHERS = (
    "labkit/classroom/", "labkit/grading/batch.py", "labkit/grading/cli.py", "labkit/grading/exercises/clinic.py",
)  # fmt: skip
ALWAYS = ("glossary",)  # a page that every lesson links to

LEARNERS_README = """\
The lab for a class. With Python 3.11 to 3.13:

    python -m pip install "{wheel}[lab]"
    labkit lab my-lab

The second line copies the notebooks into the folder my-lab and opens the first. Hand in the notebooks of that folder.
"""


def release(top: Path, folder: Path, lessons: Sequence[str], progress: Callable[[str], None]) -> tuple[Path, Path]:
    """Write learners/ and teacher/ into a folder; return both.

    top       the checkout that is handed out
    lessons   notebooks to hand out, without their suffix: "06_loss_scaling"
    progress  called with a line for each exercise

    Raises:
        OSError: a file cannot be read or written.
    """
    exercises = [exercise for exercise in EXERCISES.values() if exercise.lesson in lessons]
    stored: dict[str, Exercise] = {}
    salt = os.urandom(16)
    for number, exercise in enumerate(exercises, start=1):
        progress(f"[{number}/{len(exercises)}] {exercise.id}")
        stored[exercise.id] = stored_exercise(exercise, salt)
    files, learners, teacher = files_of(top), folder / "learners", folder / "teacher"
    kept = {name: content for name, content in files.items() if _is_for_learners(name, lessons)}
    kept["labkit/grading/stored.pkl.gz"] = gzip.compress(pickle.dumps(stored), mtime=0)
    shown = {
        name.removeprefix("labkit/"): content for name, content in kept.items() if name.startswith("labkit/notebooks/")
    }
    for line in _put_aside(learners, shown, folder / "earlier"):
        progress(line)
    wheel = write_wheel(top, kept, learners)
    for name, content in shown.items():
        write_whole(learners / name, content)
    write_whole(learners / "README.txt", LEARNERS_README.format(wheel=wheel.name).encode())
    write_wheel(top, files, teacher)
    write_whole(teacher / "model_answers.html", model_answers(top, exercises))
    write_whole(teacher / "exercises.csv", as_csv(exercises).encode())
    return learners, teacher


def _put_aside(learners: Path, new: Mapping[str, bytes], earlier: Path) -> list[str]:
    """Move wheels and notebooks of an earlier release out of the way, changed or not; return what to say of them."""
    said = []
    for path in sorted([*learners.glob("*.whl"), *learners.glob("notebooks/*.ipynb")]):
        if path.suffix == ".ipynb" and new.get(f"notebooks/{path.name}") == path.read_bytes():
            continue
        names = (f"{path.stem}{n or ''}{path.suffix}" for n in count())
        place = next(earlier / name for name in names if not (earlier / name).exists())
        earlier.mkdir(parents=True, exist_ok=True)
        path.rename(place)
        said.append(f"{path.name} of an earlier release is now {place}")
    return said


def lessons_named(top: Path, names: Sequence[str]) -> list[str]:
    """Return the lessons of a checkout that these names begin, in the order of the course; all, where none is given.

    Raises:
        ValueError: a name is no lesson's; the message lists them.
    """
    there = sorted(path.stem for path in (top / "notebooks" / "source").glob("*.py"))
    for name in names:
        if not any(_is_called(lesson, name) for lesson in there):
            raise ValueError(f"there is no lesson {name!r}; there are: {', '.join(there)}")
    return [lesson for lesson in there if not names or any(_is_called(lesson, name) for name in names)]


def stored_exercise(exercise: Exercise, salt: bytes = b"") -> Exercise:
    """Return an exercise with answers to the visible cases in the place of its reference and known mistakes.

    salt   of the keys that seal a diagnosis: another one for each release
    """
    paper = visible_paper(exercise)
    shown = dict(zip(paper.checks, paper.cases, strict=True))
    outcomes = {check: _stored_outcome(check.outcome, salt) for check in exercise.checks}
    sealed = replace(paper, checks=tuple(replace(check, outcome=outcomes[check]) for check in paper.checks))
    mistakes = tuple(
        Mistake(known.name, StoredMistake(digest(_came_of(sealed, known.answer), exercise)), known.sentence)
        for known in exercise.mistakes
    )
    rows = {repr(case): found for cases in paper.cases for case in cases if (found := exercise.aside(*case))}
    return replace(
        exercise,
        reference=StoredAnswers(exercise.parameters, _right(paper)),
        checks=tuple(
            replace(check, cases=StoredCases(shown.get(check, ())), outcome=outcomes[check])
            for check in exercise.checks
        ),
        mistakes=mistakes,
        provides={},  # what a notebook lacks at grading
        aside=StoredRows(rows),
    )


def _stored_outcome(outcome: Callable[..., object], salt: bytes) -> Callable[..., object]:
    """Return the outcome that holds a right diagnosis sealed; any other as it is."""
    if isinstance(outcome, partial) and outcome.func is diagnosed:
        right, places = outcome.args
        return partial(diagnosed, stored_diagnosis(right, places, salt), places)
    return outcome


def _came_of(paper: Paper, function: Callable[..., object]) -> list[list[object]]:
    return outcomes_of(paper, answers_of(paper, function))


def _right(paper: Paper) -> list[list[object]]:
    """Return what comes of the reference's answers; of one that is judged by its outcome, nothing but its name."""
    found = zip(paper.checks, _came_of(paper, paper.exercise.reference), strict=True)
    return [[_named(check, outcome) for outcome in group] for check, group in found]


def _named(check: Check, outcome: object) -> object:
    return Outcome(True, check.name) if isinstance(outcome, Outcome) else outcome


def _is_called(lesson: str, name: str) -> bool:
    return lesson == name or lesson.split("_")[0] == name


def _is_for_learners(name: str, lessons: Sequence[str]) -> bool:
    if name.startswith("labkit/notebooks/"):
        return Path(name).stem in (*lessons, *ALWAYS)
    return not name.startswith(TEACHERS) and name not in EXERCISE_MODULES
