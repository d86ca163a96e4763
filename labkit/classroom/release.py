"""Release of the lab to a class: learners/ without solutions, teacher/ with all of the lab.

Idea: the learners' wheel is the lab without `lesson.py` and `exercises.py` of each lesson's
package. One file takes their place, with the right answers to what a notebook asks and digests of
known mistakes (labkit.grading.stored). The teacher's folder has the whole lab, model answers, a
table of exercises, and the judges, which the next release uses again where neither the lesson nor
the lab has changed. Each content has a version of its own (labkit.records.handout), which the
wheels get last: what the judges are found by does not depend on it.

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
from itertools import count
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
from labkit.records.handout import Handout, handout_of, next_handout
from labkit.records.notebook_copies import DIGESTS, VERSION, listing
from labkit.train import one_thread

LESSON_FOLDERS = f"{PACKAGE}/lesson_"  # how the names of files in lessons begin
ALWAYS = ("glossary",)  # a page that every lesson links to
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
) -> tuple[Path, Path]:
    """Write learners/ and teacher/ into a folder; return both.

    Args:
        top: the checkout that is handed out.
        folder: where learners/ and teacher/ are written.
        chosen: lessons to hand out.
        progress: called for each exercise whose answers are computed.
        say: called with a line for each file of an earlier release that is moved out of the way.

    Raises:
        OSError: a file cannot be read or written.
        CourseError: a lesson's text and exercises do not fit each other.
    """
    files = files_of(top, lessons())
    learners = folder / "learners"
    teacher = folder / "teacher"
    judges = _judges(chosen, files, teacher / "judges", progress)
    kept = {
        name: content for name, content in files.items() if _is_for_learners(name, content, chosen)
    }
    kept |= {
        f"{folder_of(lesson)}/{lesson.judge.name}": content for lesson, content in judges.items()
    }
    shown = {
        name.removeprefix("labkit/"): content
        for name, content in kept.items()
        if name.startswith("labkit/notebooks/") and name.endswith(".ipynb")
    }
    now = datetime.now(UTC).replace(tzinfo=None)
    earlier = folder / "earlier"
    version, handout = _version("class", whole_content(top, kept), learners, earlier, now)
    wheel, packed = wheel_of(top, kept, version)
    for line in _put_aside(learners, {**shown, wheel: packed}, earlier):
        say(line)
    write_atomic(learners / wheel, packed)
    for name, content in shown.items():
        write_atomic(learners / name, content)
    copies = {Path(name).name: content for name, content in shown.items()}
    write_atomic(learners / "notebooks" / DIGESTS, listing(copies, {VERSION: version}))
    readme = LEARNERS_README.format(wheel=wheel, handout=handout)
    write_atomic(learners / "README.txt", readme.encode())
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

    They are those of the folder's wheel if its content is the same. `earlier` is the folder of
    former releases.
    """
    present, before = (
        [found for wheel in sorted(place.glob("*.whl")) if (found := handout_of(wheel.name))]
        for place in (folder, earlier)
    )
    before = [each for each in before if each.kind == kind]
    handout = next_handout(kind, content, present[-1] if present else None, before, now)
    return f"{labkit.__version__}+{handout.local_version}", handout


def _judges(
    chosen: Sequence[Lesson], files: Mapping[str, bytes], folder: Path, progress: Progress
) -> dict[Lesson, bytes]:
    """Return the judge of each lesson with exercises: an earlier release's, or a new one."""
    library = [(name, content) for name, content in sorted(files.items()) if name.endswith(".py")]
    common = hashlib.sha256()
    for name, content in library:
        if not name.startswith(LESSON_FOLDERS):
            common.update(name.encode() + b"\0" + content)
    salt = os.urandom(16)
    found = dict[Lesson, bytes]()
    missing = dict[Lesson, Path]()
    for lesson in (lesson for lesson in chosen if exercises_of(lesson)):
        key = common.copy()
        for name, content in library:
            if name.startswith(f"{folder_of(lesson)}/"):
                key.update(name.encode() + b"\0" + content)
        path = folder / f"{lesson.name}-{key.hexdigest()[:16]}.pkl.gz"
        if path.is_file():
            found[lesson] = path.read_bytes()
        else:
            missing[lesson] = path
    ids = [exercise.id for lesson in missing for exercise in exercises_of(lesson)]
    done = 0
    for lesson, path in missing.items():
        stored = []
        for exercise in exercises_of(lesson):
            progress(done, len(ids), exercise.id)
            with (
                one_thread(),
                warnings.catch_warnings(action="ignore"),
                redirect_stdout(io.StringIO()),
                redirect_stderr(io.StringIO()),
            ):
                stored.append(stored_exercise(exercise, salt))
            done += 1
        found[lesson] = gzip.compress(pickle.dumps(tuple(stored)), mtime=0)
        for old in folder.glob(f"{lesson.name}-*.pkl.gz"):
            old.unlink()
        write_atomic(path, found[lesson])
    progress(done, len(ids), "")
    return found


def _put_aside(folder: Path, new: Mapping[str, bytes], earlier: Path) -> list[str]:
    """Move wheels and notebooks of an earlier release aside if they differ; return remarks."""
    notes = []
    for path in sorted([*folder.glob("*.whl"), *folder.glob("notebooks/*.ipynb")]):
        if new.get(path.relative_to(folder).as_posix()) == path.read_bytes():
            continue
        names = (f"{path.stem}{n or ''}{path.suffix}" for n in count())
        place = next(earlier / name for name in names if not (earlier / name).exists())
        earlier.mkdir(parents=True, exist_ok=True)
        path.rename(place)
        notes.append(f"{path.name} of an earlier release is now {place}")
    return notes


def stored_exercise(exercise: Exercise, salt: bytes = b"") -> Exercise:
    """Return an exercise with answers to visible cases in place of its reference and mistakes.

    Each release has another `salt` for the keys that seal a diagnosis.
    """
    paper = visible_cases(exercise)
    shown = dict(zip(paper.checks, paper.cases, strict=True))
    checks = {
        check: replace(
            check,
            cases=partial(stored_cases, shown.get(check, ())),
            outcome=_sealed(check.outcome, salt),
        )
        for check in exercise.checks
    }
    sealed = replace(paper, checks=tuple(checks[check] for check in paper.checks))
    mistakes = tuple(
        Mistake(
            known.name,
            StoredMistake(digest(_outcomes(sealed, known.answer), exercise)),
            known.sentence,
        )
        for known in exercise.mistakes
    )
    # where an `Outcome` is judged, only the check's name
    right = [
        [
            Outcome(True, check.name) if isinstance(outcome, Outcome) else outcome
            for outcome in group
        ]
        for check, group in zip(paper.checks, _outcomes(paper, exercise.reference), strict=True)
    ]
    rows = {
        repr(case): found
        for cases in paper.cases
        for case in cases
        if (found := exercise.aside(*case))
    }
    return replace(
        exercise,
        reference=StoredAnswers(exercise.parameters, right, exercise.results),
        checks=tuple(checks.values()),
        mistakes=mistakes,
        provides={},  # what a notebook lacks at grading
        trained=None,
        aside=partial(stored_rows, rows),
    )


def _sealed(outcome: Callable[..., object], salt: bytes) -> Callable[..., object]:
    """Return an outcome for learners: a right answer inside it is sealed with this salt."""
    seal: Callable[[bytes], Callable[..., object]] | None = getattr(outcome, "sealed", None)
    return outcome if seal is None else seal(salt)


def _outcomes(paper: CaseSet, function: Callable[..., object]) -> list[list[object]]:
    return outcomes_of(paper, answers_of(paper, function))


def _is_for_learners(name: str, content: bytes, chosen: Sequence[Lesson]) -> bool:
    """Return whether learners get a file; copies of a text or of exercises stay behind.

    The glossary's table is for authors: learners get its page, as a notebook.
    """
    path = Path(name)
    if name.startswith(LESSON_FOLDERS):
        own = any(name.startswith(f"{folder_of(lesson)}/") for lesson in chosen)
        return own and not path.name.startswith(NOT_FOR_LEARNERS) and BEGIN.encode() not in content
    if name.startswith("labkit/notebooks/"):
        return path.stem in (*(lesson.name for lesson in chosen), *ALWAYS)
    return path.suffix == ".py" or path.parts[0] != PACKAGE
