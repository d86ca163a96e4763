"""Right answers to lesson 06, submissions that hold them, and a class graded by command."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from labkit.classroom.tables import read_table
from labkit.cli import main
from labkit.grading import EXERCISES

LESSON, NOTEBOOK, JOURNAL = "06_loss_scaling", "06_loss_scaling.ipynb", "labkit-answers.jsonl"
SETUP = (
    "import torch\nfrom labkit.amp import ScalerConfig, ScalerState\n"
    "from labkit.grading import check\n"
)

# Answers as a good student writes them: not our references, so that each proves the other.
STATIC_STEP = """
def my_static_step(weight, gradient_of, scale, lr):
    gradient = gradient_of(scale).float() / scale
    return weight - lr * gradient if torch.isfinite(gradient).all() else weight

check("scaling.static_step", my_static_step)
"""
ADVANCE = """
def my_advance(state, found_inf, config):
    if found_inf:
        return ScalerState(state.scale * config.backoff_factor, 0)
    if state.growth_tracker + 1 == config.growth_interval:
        return ScalerState(state.scale * config.growth_factor, 0)
    return ScalerState(state.scale, state.growth_tracker + 1)

check("scaling.advance", my_advance)
"""
CLIP = """
def my_clip_step(scaled_grads, scale, max_norm):
    grads = [grad.float() / scale for grad in scaled_grads]
    if not all(torch.isfinite(grad).all() for grad in grads):
        return None
    norm = torch.sqrt(sum((grad ** 2).sum() for grad in grads))
    return [grad * min(1.0, max_norm / (float(norm) + 1e-6)) for grad in grads]

check("scaling.clip", my_clip_step)
"""
UNSCALE = """
def my_unscale(scaled_grads, scale, limit):
    grads = [grad.float() / scale for grad in scaled_grads]
    return grads, any(not (grad.isfinite() & (grad.abs() <= limit)).all() for grad in grads)

check("scaling.unscale", my_unscale)
"""
ORDER = """
def my_training_step(loop):
    loop.zero_grad()
    for batch in loop.batches:
        loop.backward(batch)
    for part in (loop.unscale, loop.clip, loop.step, loop.copy_back, loop.update):
        part()
    return loop

check("scaling.order", my_training_step)
"""
REPAIR = """
def my_repaired_step(scale, tracker, grads, growth_interval):
    if not all(bool(torch.isfinite(grad).all()) for grad in grads):
        return max(scale * 0.5, 1.0), 0, False
    tracker = tracker + 1
    return (scale * 2.0, 0, True) if tracker >= growth_interval else (scale, tracker, True)

check("scaling.repair", my_repaired_step)
"""
SOLUTIONS = {
    "scaling.static_step": STATIC_STEP,
    "scaling.unscale": UNSCALE,
    "scaling.advance": ADVANCE,
    "scaling.clip": CLIP,
    "scaling.order": ORDER,
    "scaling.repair": REPAIR,
}
RIGHT = ADVANCE.partition("\ncheck(")[0]
WRONG = "\ndef my_advance(state, found_inf, config):\n    return state\n"


def starter(id: str = "scaling.advance") -> str:
    """Return what a learner finds: the first line of the solution, and a line to replace."""
    return (
        SOLUTIONS[id].strip().split("\n")[0]
        + '\n    raise NotImplementedError("your code goes here")\n'
    )


def code(source: str, exercise: str = "", id: str = "") -> dict[str, Any]:
    """Return a cell of code, with the tag of an exercise."""
    tags = [f"exercise-{exercise}"] if exercise else []
    return {
        "cell_type": "code",
        "id": id,
        "metadata": {"tags": tags},
        "source": source.splitlines(keepends=True),
    }


def notebook(*cells: dict[str, Any]) -> str:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells})


def answered(*others: str, answer: str = ADVANCE) -> str:
    """Return a notebook with an answer to scaling.advance, behind other cells."""
    return notebook(code(SETUP), *map(code, others), code(answer, "scaling.advance"))


def solved(**changed: str) -> list[dict[str, Any]]:
    """Return the cells of a solved notebook, but for the answers that are given here."""
    new = {f"scaling.{name}": source for name, source in changed.items()}
    return [code(SETUP), *(code(source, id) for id, source in (SOLUTIONS | new).items())]


def put(path: Path, content: str | bytes) -> Path:
    """Write a file and the folders that it lies in."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def archive(members: dict[str, str | bytes]) -> bytes:
    """Return a zip archive of 29 November 2026."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        for name, text in members.items():
            file.writestr(
                zipfile.ZipInfo(name, (2026, 11, 29, 12, 0, 0)), text, zipfile.ZIP_DEFLATED
            )
    return content.getvalue()


# (learner, exercise) -> the row of the table of grades.
Lines = dict[tuple[str, str], dict[str, str]]


def graded(folder: Path, out: Path, *options: str) -> Lines:
    """Grade a folder by the command, and return the table that it writes."""
    words = [
        "grade",
        str(folder),
        "--csv",
        str(out / "grades.csv"),
        "--seed",
        "3",
        "--lesson",
        LESSON,
    ]
    assert main([*words, "--seconds", "5", *options]) == 0
    return {
        (line["student"], line["exercise"]): line
        for line in read_table(out / "grades.csv", guarded=True)
    }


def points_of(marks: Lines, learner: str) -> dict[str, int]:
    """Return what a learner earns by the table of grades, by exercise."""
    return {id: int(marks[learner, id]["points"]) for id in SOLUTIONS}


def points_for(*earned: str) -> dict[str, int]:
    """Return the points of each exercise if these are right, and no others."""
    return {id: EXERCISES[id].points if id in earned else 0 for id in SOLUTIONS}


def everything(out: Path) -> list[str]:
    """Return the options by which a teacher gets all pages and tables."""
    files = {"--report": "class.html", "--feedback": "back", "--gradebook": "all.csv"}
    return [word for option, name in files.items() for word in (option, str(out / name))]
