"""The public surface: what lessons, scripts, terminals and hand-ins rely on.

`python -m tests.surface` writes it to public_surface.json. With ids of exercises, only their
answers are computed again; with --names-only, none.

Imports of lessons, README and docs; commands with their options; names of widgets, recipes,
presets, tasks, faults and consultations; exercises with their points, predictions, hints, and what
each reference and each known mistake answers.

An answer is kept as a digest of its structure (types, shapes, strings, signs of special values) and
one weighted sum of its finite numbers, since the last bits of a matrix product depend on the
processor.
"""

import argparse
import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labkit import widgets
from labkit.amp import PRESETS, RECIPES
from labkit.cli import COMMANDS, parser_of
from labkit.faults import cards
from labkit.formats import FORMATS
from labkit.grading import EXERCISES
from labkit.grading.answer_log import hints
from labkit.grading.exercise import Outcome
from labkit.grading.judge import grading_cases, known_outcomes
from labkit.grading.sandbox.wire import Failure
from labkit.train import TASKS
from labkit_lessons.lesson_10_clinic import CONSULTATIONS

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("public_surface.json")
SEED = 1
# Prefixes of the exercises whose answers run a training.
TRAINS = ("project.", "clinic.")
# Larger numbers are part of the structure of an answer, not of the sum of its numbers.
LARGEST_SUMMED = 2.0**1000
# Imports in code and in code of pages, where prompts, quotes and backticks come before them: the
# module and the names, which may be in parentheses over several lines.
FROM_IMPORT = re.compile(r"^[>\s`.]*from (labkit[\w.]*) import (\([^)]*\)|[^\n`#]+)", re.MULTILINE)
PLAIN_IMPORT = re.compile(r"^[>\s`.]*import (labkit[\w.]*)", re.MULTILINE)


def surface() -> dict[str, Any]:
    """Return all but the answers, by kind and name."""
    return {
        "imports": sorted(set(imports())),
        "commands": commands(),
        "formats": sorted(FORMATS),
        "recipes": sorted(RECIPES),
        "presets": sorted(PRESETS),
        "tasks": sorted(TASKS),
        "faults": sorted(cards()),
        "consultations": sorted(CONSULTATIONS),
        "widgets": sorted(widgets.__all__),
        "predictions": {id: row.answer for id, row in sorted(widgets.predictions().items())},
        "hints": {id: len(steps) for id, steps in sorted(hints().items())},
        "exercises": {
            id: {
                "lesson": exercise.lesson,
                "title": exercise.title,
                "call": exercise.call,
                "difficulty": exercise.difficulty,
                "minutes": exercise.minutes,
                "checks": {check.name: check.points for check in exercise.checks},
                "mistakes": {mistake.name: mistake.sentence for mistake in exercise.mistakes},
            }
            for id, exercise in sorted(EXERCISES.items())
        },
    }


def imports() -> Iterator[str]:
    """Yield "module: name" for each import from labkit in lessons, README and docs."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    for page in (*pages, *(ROOT / "labkit_lessons").glob("*/lesson.py")):
        text = page.read_text(encoding="utf-8")
        for module, names in FROM_IMPORT.findall(text):
            without_aliases = re.sub(r" as \w+", "", names)
            for name in re.findall(r"\w+", without_aliases):
                yield f"{module}: {name}"
        yield from PLAIN_IMPORT.findall(text)


def commands() -> dict[str, list[str]]:
    return {
        name: sorted(
            word
            for action in parser_of(name)._actions
            for word in action.option_strings or [action.dest]
            if word not in ("-h", "--help")
        )
        for name in COMMANDS
    }


def answers(exercise_id: str, mistakes: bool = True) -> dict[str, list[Any]]:
    """Return a sketch of the answers of the reference and of each known mistake.

    They answer the cases of the notebook, and those of one seed.
    """
    exercise = EXERCISES[exercise_id]
    cases = grading_cases(exercise, SEED)
    known = {
        "": exercise.reference,
        **{each.name: each.answer for each in exercise.mistakes if mistakes},
    }
    return {name: sketch(known_outcomes(cases, function)) for name, function in known.items()}


def sketch(value: object) -> list[Any]:
    """Return a digest of a value's structure and a weighted sum of its numbers.

    >>> sketch([1, 2.0]) == sketch([1, 2.0]) != sketch([1, 2])
    True
    >>> sketch(["a", 2.5])[1], sketch(["b", 2.5])[0] == sketch(["a", 2.5])[0]
    (2.5, False)
    """
    structure = hashlib.sha256()
    numbers = []
    for part in parts(value):
        if isinstance(part, float):
            numbers.append(part)
        else:
            structure.update(f"{part}\n".encode())
    # The weights 1 to 7 in turn make the sum depend on the order of the numbers.
    weighted = sum(number * (1 + place % 7) for place, number in enumerate(numbers))
    return [
        structure.hexdigest()[:12],
        float(f"{weighted:.9g}") if math.isfinite(weighted) else str(weighted),
    ]


def parts(value: object) -> Iterator[str | float]:
    """Yield the structure of a value as texts, and its finite numbers as floats."""
    if isinstance(value, torch.Tensor):
        yield f"tensor {value.dtype} {tuple(value.shape)}"
        yield from parts(value.double().numpy() if value.is_floating_point() else value.numpy())
    elif isinstance(value, np.ndarray):
        yield f"array {value.shape}"
        for number in value.ravel().tolist():
            yield from parts(number)
    elif isinstance(value, dict):
        yield f"dict {len(value)}"
        for item in value.items():
            yield from parts(item)
    elif isinstance(value, list | tuple):
        yield f"{type(value).__name__} {len(value)}"
        for item in value:
            yield from parts(item)
    elif isinstance(value, Outcome):
        # its message contains numbers of a training, which differ between processors
        yield from parts((value.passed, value.facts))
    elif isinstance(value, Failure):
        # without its line number, which changes with the source
        yield f"failure {value.kind} {value.message}"
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__name__
        for field in fields(value):
            yield from parts(getattr(value, field.name))
    elif isinstance(value, bool | str | None):
        yield repr(value)
    elif isinstance(value, int | float | Fraction | np.generic):
        yield type(value).__name__
        # beyond it, weighting and summing could overflow; NaN is not smaller either
        yield float(value) if abs(value) < LARGEST_SUMMED else str(value)
    else:
        yield f"{type(value).__name__} {value!r}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the public surface down.")
    parser.add_argument("ids", nargs="*", metavar="id", help="an exercise to answer again")
    parser.add_argument("--names-only", action="store_true", help="keep all answers")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.ids) - set(EXERCISES))
    if unknown:
        parser.error(f"there is no exercise {unknown[0]!r}")
    kept: dict[str, Any] = {}
    if arguments.ids or arguments.names_only:
        kept = json.loads(FILE.read_text(encoding="utf-8"))["answers"]
    all_answers = {}
    for id in sorted(EXERCISES):
        is_kept = id in kept and id not in arguments.ids
        all_answers[id] = kept[id] if is_kept else answers(id)
    content = {**surface(), "answers": all_answers}
    text = json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True)
    # Write each sketch on one line.
    text = re.sub(r"\[\s+(\"\w{12}\"),\s+([^\s\]]+)\s+\]", r"[\1, \2]", text)
    FILE.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
