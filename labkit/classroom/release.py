"""Release of the lab to a class: learners/ without solutions, teacher/ with all of the lab.

Idea: the learners' wheel is the lab without `lesson.py` and `exercises.py` of each lesson's
package. One file takes their place, with the right answers to what a notebook asks and digests of
known mistakes (labkit.grading.stored). The teacher's folder has the whole lab, model answers, a
table of exercises, and the judges, which the next release reuses if neither the lesson nor the lab
has changed. Each content has a version of its own (labkit.records.handout). A wheel gets it last,
so that the keys by which judges are found do not depend on it.

Invariant: no source of a reference, a known mistake or a solution is in the learners' folder. A
later release is a later version, unless it has the same content.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import pickle
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import labkit
from labkit.classroom.model_answers import as_csv, model_answers
from labkit.classroom.wheel import files_of, folder_of, wheel_of, whole_content
from labkit.course import NOT_FOR_LEARNERS, PACKAGE, Lesson, lessons
from labkit.course.text import BEGIN
from labkit.grading.exercise import Exercise, Mistake, Outcome
from labkit.grading.exercises import exercises_of
from labkit.grading.judge import CaseSet, answers_of, outcomes_of, visible_cases
from labkit.grading.stored import StoredAnswers, StoredMistake, digest, stored_cases, stored_rows
from labkit.records import write_atomic
from labkit.records.handout import (
    SETTINGS,
    Handout,
    handout_of,
    next_handout,
    settings_text,
)
from labkit.records.notebook_copies import DIGESTS, VERSION, listing
from labkit.train import one_thread

# How the names of files in lessons begin.
LESSON_FOLDERS = f"{PACKAGE}/lesson_"
# Notebooks that every lesson links to.
ALWAYS = {"glossary"}
Progress = Callable[[int, int, str], None]
"""Called with the number of exercises done, of all, and the next one ("" at the end)."""

LEARNERS_README = """\
The lab for a class. With Python 3.11 to 3.13:

    python -m pip install "{wheel}[lab]"
    labkit lab my-lab

The second line copies the notebooks into the folder my-lab and opens the first.
Hand in the notebooks of that folder.

When a later handout comes, run the first line of its README, then again:

    labkit lab my-lab

New notebooks join the folder. Those that you have worked in stay as they are. This is {handout}.
"""


def release(
    top: Path,
    folder: Path,
    chosen: Sequence[Lesson],
    progress: Progress,
    say: Callable[[str], None],
    guess_first: bool = False,
) -> tuple[Path, Path]:
    """Write learners/ and teacher/ into a folder; return both.

    Args:
        top: the checkout that is handed out.
        folder: where learners/ and teacher/ are written.
        chosen: lessons to hand out.
        progress: called for each exercise whose answers are computed.
        say: called with a line for each file of an earlier release that is moved aside.
        guess_first: whether the answer to a prediction opens, in the learners' lab, only after the
            learner has committed.

    Raises:
        OSError: a file cannot be read or written.
        CourseError: a lesson's text and exercises do not fit each other.
    """
    files = files_of(top, lessons())
    learners = folder / "learners"
    teacher = folder / "teacher"
    earlier = folder / "earlier"
    now = datetime.now(UTC).replace(tzinfo=None)

    # The learners' wheel has judges in place of solutions; the notebooks lie beside it, too.
    public = {
        name: content for name, content in files.items() if _is_for_learners(name, content, chosen)
    }
    for lesson, judge in _judges(chosen, files, teacher / "judges", progress).items():
        public[f"{folder_of(lesson)}/{lesson.judge.name}"] = judge
    if guess_first:
        public[SETTINGS] = settings_text(guess_first=True)
    notebooks = {
        name.removeprefix("labkit/"): content
        for name, content in public.items()
        if name.startswith("labkit/notebooks/") and name.endswith(".ipynb")
    }
    version, handout = _version("class", whole_content(top, public), learners, earlier, now)
    wheel, packed = wheel_of(top, public, version)
    for line in _put_aside(learners, {**notebooks, wheel: packed}, earlier):
        say(line)
    write_atomic(learners / wheel, packed)
    for name, content in notebooks.items():
        write_atomic(learners / name, content)
    copies = {Path(name).name: content for name, content in notebooks.items()}
    write_atomic(learners / "notebooks" / DIGESTS, listing(copies, {VERSION: version}))
    readme = LEARNERS_README.format(wheel=wheel, handout=handout)
    write_atomic(learners / "README.txt", readme.encode())

    # The teacher's wheel has everything.
    exercises = [exercise for lesson in chosen for exercise in exercises_of(lesson)]
    version, _ = _version("teacher", whole_content(top, files), teacher, earlier, now)
    wheel, packed = wheel_of(top, files, version)
    for line in _put_aside(teacher, {wheel: packed}, earlier):
        say(line)
    write_atomic(teacher / wheel, packed)
    write_atomic(teacher / "model_answers.html", model_answers(exercises))
    write_atomic(teacher / "exercises.csv", as_csv(exercises).encode())
    return learners, teacher


def _version(
    kind: str, content: Mapping[str, bytes], folder: Path, earlier: Path, now: datetime
) -> tuple[str, Handout]:
    """Return the version and the handout of a wheel with this content.

    They are those of the folder's wheel if its content is the same.

    Args:
        kind: "class" or "teacher".
        content: all files of the wheel.
        folder: where the wheel will be.
        earlier: the folder of former releases.
        now: the time of this release, in UTC without a zone.
    """
    in_folder = _handouts(folder)
    present = in_folder[-1] if in_folder else None
    before = [handout for handout in _handouts(earlier) if handout.kind == kind]
    handout = next_handout(kind, content, present, before, now)
    return f"{labkit.__version__}+{handout.local_version}", handout


def _handouts(folder: Path) -> list[Handout]:
    """Return the handouts whose wheels are in a folder, in the order of the names."""
    handouts = [handout_of(wheel.name) for wheel in sorted(folder.glob("*.whl"))]
    return [handout for handout in handouts if handout is not None]


def _judges(
    chosen: Sequence[Lesson], files: Mapping[str, bytes], folder: Path, progress: Progress
) -> dict[Lesson, bytes]:
    """Return the judge of each lesson with exercises: an earlier release's, or a new one.

    Args:
        chosen: lessons to hand out.
        files: all files of the checkout's wheel.
        folder: where the judges of earlier releases are, and new ones are written.
        progress: called for each exercise whose answers are computed.
    """
    paths = _judge_paths(chosen, files, folder)
    judges = {lesson: path.read_bytes() for lesson, path in paths.items() if path.is_file()}
    missing = [lesson for lesson in paths if lesson not in judges]
    count = sum(len(exercises_of(lesson)) for lesson in missing)
    done = 0
    salt = os.urandom(16)
    for lesson in missing:
        stored = []
        for exercise in exercises_of(lesson):
            progress(done, count, exercise.id)
            with (
                one_thread(),
                warnings.catch_warnings(action="ignore"),
                redirect_stdout(io.StringIO()),
                redirect_stderr(io.StringIO()),
            ):
                stored.append(stored_exercise(exercise, salt))
            done += 1
        judges[lesson] = gzip.compress(pickle.dumps(tuple(stored)), mtime=0)
        for old in folder.glob(f"{lesson.name}-*.pkl.gz"):
            old.unlink()
        write_atomic(paths[lesson], judges[lesson])
    progress(done, count, "")
    return judges


def _judge_paths(
    chosen: Sequence[Lesson], files: Mapping[str, bytes], folder: Path
) -> dict[Lesson, Path]:
    """Return where the judge of each lesson with exercises is, or will be.

    The name holds a digest of the lesson and of the lab without its other lessons.
    """
    modules = [(name, content) for name, content in sorted(files.items()) if name.endswith(".py")]
    lab = hashlib.sha256()
    for name, content in modules:
        if not name.startswith(LESSON_FOLDERS):
            lab.update(name.encode() + b"\0" + content)
    paths = {}
    for lesson in chosen:
        if exercises_of(lesson):
            key = lab.copy()
            for name, content in modules:
                if name.startswith(f"{folder_of(lesson)}/"):
                    key.update(name.encode() + b"\0" + content)
            paths[lesson] = folder / f"{lesson.name}-{key.hexdigest()[:16]}.pkl.gz"
    return paths


def _put_aside(folder: Path, new: Mapping[str, bytes], earlier: Path) -> list[str]:
    """Move wheels and notebooks of an earlier release aside if they differ; return remarks.

    Args:
        folder: learners/ or teacher/.
        new: name in the folder -> content of this release.
        earlier: where former files are moved.
    """
    remarks = []
    for path in sorted([*folder.glob("*.whl"), *folder.glob("notebooks/*.ipynb")]):
        if new.get(path.relative_to(folder).as_posix()) == path.read_bytes():
            continue
        earlier.mkdir(parents=True, exist_ok=True)
        target = earlier / path.name
        number = 1
        while target.exists():
            target = earlier / f"{path.stem}{number}{path.suffix}"
            number += 1
        path.rename(target)
        remarks.append(f"{path.name} of an earlier release is now {target}")
    return remarks


def stored_exercise(exercise: Exercise, salt: bytes = b"") -> Exercise:
    """Return an exercise with answers to visible cases in place of its reference and mistakes.

    Args:
        exercise: the exercise.
        salt: of the keys that seal a diagnosis; another one in each release.
    """
    case_set = visible_cases(exercise)
    cases_of = dict(zip(case_set.checks, case_set.cases, strict=True))
    checks = {
        check: replace(
            check,
            cases=partial(stored_cases, cases_of.get(check, ())),
            outcome=_sealed(check.outcome, salt),
        )
        for check in exercise.checks
    }

    # A learner's answer makes a known mistake if its outcomes have the same digest.
    learners_set = replace(case_set, checks=tuple(checks[check] for check in case_set.checks))
    mistakes = []
    for known in exercise.mistakes:
        mistake = StoredMistake(digest(_outcomes(learners_set, known.answer), exercise))
        mistakes.append(Mistake(known.name, mistake, known.sentence))

    answers = []
    for check, outcomes in zip(
        case_set.checks, _outcomes(case_set, exercise.reference), strict=True
    ):
        # Code of the lesson judges an `Outcome`, which then says no more than the check's name.
        answers.append(
            [
                Outcome(True, check.name) if isinstance(outcome, Outcome) else outcome
                for outcome in outcomes
            ]
        )

    rows = {}
    for cases in case_set.cases:
        for case in cases:
            beside = exercise.aside(*case)
            if beside:
                rows[repr(case)] = beside
    return replace(
        exercise,
        reference=StoredAnswers(exercise.parameters, answers, exercise.results),
        checks=tuple(checks.values()),
        mistakes=tuple(mistakes),
        # the lab adds these at grading, which learners do not do
        provides={},
        trained=None,
        aside=partial(stored_rows, rows),
    )


def _sealed(outcome: Callable[..., object], salt: bytes) -> Callable[..., object]:
    """Return an outcome for learners: a right answer inside it is sealed with this salt."""
    seal: Callable[[bytes], Callable[..., object]] | None = getattr(outcome, "sealed", None)
    return outcome if seal is None else seal(salt)


def _outcomes(case_set: CaseSet, function: Callable[..., object]) -> list[list[object]]:
    return outcomes_of(case_set, answers_of(case_set, function))


def _is_for_learners(name: str, content: bytes, chosen: Sequence[Lesson]) -> bool:
    """Return whether learners get a file.

    They get no text or exercises of a lesson, copies included: a file with the mark of a solution
    stays with the teacher. They get the glossary as a notebook, without its table for authors.
    """
    path = Path(name)
    if name.startswith(LESSON_FOLDERS):
        is_chosen = any(name.startswith(f"{folder_of(lesson)}/") for lesson in chosen)
        holds_solution = path.name.startswith(NOT_FOR_LEARNERS) or BEGIN.encode() in content
        return is_chosen and not holds_solution
    if name.startswith("labkit/notebooks/"):
        return path.stem in {lesson.name for lesson in chosen} | ALWAYS
    return path.suffix == ".py" or path.parts[0] != PACKAGE
