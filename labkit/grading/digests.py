"""Digests of what grading depends on beside the answers: each exercise, and the lab.

Invariant: while a digest stays the same, grading again gives the same row. It changes with what is
compared: points, cases, the answers of the reference, and the names and sentences of known
mistakes. A change of a comment changes it only where code of the lesson judges the answers.

The answers of known mistakes would take long to compute here. A known mistake whose answers change
needs another name or sentence.
"""

from __future__ import annotations

import hashlib
import sys
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from labkit.course import lessons
from labkit.grading.exercise import Exercise, as_it_is
from labkit.grading.exercises import EXERCISES
from labkit.grading.judge import grading_cases, known_answers
from labkit.grading.sandbox.wire import dump


@lru_cache(maxsize=512)
def exercise_digest(id: str, seed: int) -> str:
    """Return a digest of an exercise as it is graded with this seed.

    Returns:
        The digest; "" if the course has no such exercise.
    """
    exercise = EXERCISES.get(id)
    if exercise is None:
        return ""
    cases = grading_cases(exercise, seed)
    rules = (exercise.ulps, exercise.two_zeros, exercise.may_change, exercise.call)
    checks = [(check.name, check.points, check.hidden) for check in exercise.checks]
    mistakes = [(known.name, known.sentence) for known in exercise.mistakes]
    digest = hashlib.sha256(repr((id, rules, checks, mistakes)).encode())
    trains = exercise.run_by is not None or exercise.trained is not None
    # The lesson's code is read: it decides the outcomes, and running a training takes long.
    if trains or any(check.outcome is not as_it_is for check in exercise.checks):
        digest.update(_modules_of(exercise))
    if not trains:
        digest.update(repr(known_answers(cases, exercise.reference)).encode())
    written = [[[dump(argument) for argument in case] for case in group] for group in cases.cases]
    digest.update(repr(written).encode())
    return digest.hexdigest()


def lab_digest() -> str:
    """Return a digest of the grading code and of the versions that learners' code runs with."""
    folder = Path(__file__).parent
    files = sorted(folder.rglob("*.py"))
    content = [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]
    versions = (sys.version_info[:2], torch.__version__, np.__version__)
    return hashlib.sha256(repr((content, versions)).encode()).hexdigest()


def _modules_of(exercise: Exercise) -> bytes:
    (folder,) = [lesson.folder for lesson in lessons() if lesson.name == exercise.lesson]
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))
