"""Folders are called as people call them: with blanks, umlauts, quotes, brackets, and on Linux a backslash."""

from __future__ import annotations

import json
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.amp import RECIPES
from labkit.export import to_html
from labkit.grading.submission import find, read_cells
from labkit.records.journal import keep, last_answers
from labkit.records.lessons import hand_out
from labkit.train import TASKS, race
from labkit.widgets import recipe_table

NAMES = ["Übung 6", "A\u0308nne O'Neil & Söhne", "[2026] 100 %", *([] if os.name == "nt" else ["C:\\Users\\Jürgen"])]
CELL = {"cell_type": "code", "id": "exercise-scaling-advance", "metadata": {}, "source": "answer = 1"}
NOTEBOOK = {
    "cells": [{**CELL, "outputs": [], "execution_count": None}],
    "metadata": {},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture(params=NAMES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    made = tmp_path / request.param
    made.mkdir()
    (made / "06_loss_scaling.ipynb").write_text(json.dumps(NOTEBOOK), encoding="utf-8")
    for junk in ("desktop.ini", ".DS_Store", "__MACOSX/._06_loss_scaling.ipynb"):
        (made / junk).parent.mkdir(exist_ok=True)
        (made / junk).write_bytes(b"\0\x05\x16")
    return made


def test_lessons_are_handed_out_kept_and_exported_there(folder: Path) -> None:
    copied = hand_out(folder, folder / "mine", "1.0")
    assert [each.name for each in copied] == ["06_loss_scaling.ipynb"]
    keep(folder / "journal", "answer", "scaling.scale", "2^10")
    assert last_answers(folder / "journal", "answer") == {"scaling.scale": "2^10"}
    assert ">answer</span>" in to_html(folder / "06_loss_scaling.ipynb").read_text(encoding="utf-8")


def test_a_class_is_found_there(folder: Path) -> None:
    (found,) = find([folder.parent])
    assert (found.student, found.notebook) == (folder.name, "06_loss_scaling.ipynb")
    assert [cell.source for cell in read_cells(found)] == ["answer = 1"]


def test_runs_are_recorded_there_and_a_command_that_names_the_folder_can_be_typed(folder: Path) -> None:
    short = replace(TASKS["small_targets"], steps=2)
    (made,) = race(short, [RECIPES["FP32"]], [0], folder, workers=1)
    (read,) = race(short, [RECIPES["FP32"]], [0], folder, workers=1)
    assert read == made
    if not set(folder.name) & {"'", "\\"}:  # what a shell reads differently, on one system or another
        command = recipe_table(["small_targets"], ["FP16"], folder=folder).missing()
        assert shlex.split(command)[-1] == str(folder)
