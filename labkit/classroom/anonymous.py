"""Anonymised export of a graded class: a table, pages, notebooks, and the key beside them.

Each learner gets a number in random order, which a later export into the same folder keeps. In
texts the learner's own name, the full names of all others, e-mail addresses and paths of home
folders are replaced. In code that is done in comments and strings only, so that a learner called
Max keeps `max`. Outputs and metadata are left out.

A name may be a word of the lessons too, as that of Ann Small is. It stays where it is written as
there:
in the lab's own sentences a pseudonym would tell whose name it is.

Invariant: the folder has no other name that is in the key, and the key is not in the folder.
"""

from __future__ import annotations

import io
import json
import random
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from labkit.classroom.class_pages import feedback
from labkit.classroom.marks import Mark, TeacherComment, by_student
from labkit.classroom.tables import read_table, write_table
from labkit.course import Lesson, lessons
from labkit.grading.exercises import EXERCISES
from labkit.grading.program import Unreadable
from labkit.grading.submission import Submission, content_of
from labkit.records import write_atomic

SHORTEST_PART = 3  # letters of a part of a name
PRIVATE = (
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "(e-mail)"),
    (
        re.compile(r"(?:/home/|/Users/|[A-Za-z]:(?:\\{1,2}|/)Users(?:\\{1,2}|/))[^\s\"'`)\]]*"),
        "(path)",
    ),
)
Scrub = Callable[[str], str]


def key_of_folder(folder: Path) -> Path:
    """Return the file that says who is who: beside the folder, never in it."""
    return folder.with_name(f"{folder.name}-key.csv")


def write_anonymous(
    folder: Path, marks: Sequence[Mark], submissions: Sequence[Submission]
) -> dict[str, str]:
    """Write the export into a folder and its key beside it; return learner -> pseudonym.

    Raises:
        OSError: something cannot be written.
        ValueError: the key of an earlier export cannot be read.
    """
    own = by_student(marks)
    names = _pseudonyms(list(own), key_of_folder(folder))
    rows: list[dict[str, object]] = []
    for student, theirs in own.items():
        scrub = _scrubber(student, names)
        anonymous = [_without_names(mark, names[student], scrub) for mark in theirs]
        page = feedback(names[student], anonymous)
        write_atomic(folder / "pages" / f"{names[student]}.html", page)
        rows += [_line(mark) for mark in anonymous]
        place = folder / "notebooks" / names[student]
        taken: set[str] = set()
        for one in (one for one in submissions if one.student == student):
            _write_notebook(place, one, taken, scrub)
    rows.sort(key=lambda row: str(row["learner"]))
    write_table(folder / "grades.csv", list(rows[0]) if rows else ["learner"], rows, guarded=True)
    return names


def _pseudonyms(students: Sequence[str], key: Path) -> dict[str, str]:
    """Return learner -> pseudonym, those of an earlier export first, and write the key."""
    known: dict[str, str] = {}
    if key.is_file():
        known = {line["student"]: line["learner"] for line in read_table(key, guarded=True)}
    new = [student for student in students if student not in known]
    random.SystemRandom().shuffle(new)
    for number, student in enumerate(new, start=len(known) + 1):
        known[student] = f"learner{number:03}"
    lines = sorted(
        ({"learner": name, "student": student} for student, name in known.items()), key=_by_learner
    )
    write_table(key, ["learner", "student"], lines, guarded=True)
    return {student: known[student] for student in students}


def _by_learner(line: Mapping[str, str]) -> str:
    return line["learner"]


def _scrubber(student: str, names: Mapping[str, str]) -> Scrub:
    """Return a function that takes names and paths out of a text."""
    parts = [part for part in re.split(r"[\W_]+", student) if len(part) >= SHORTEST_PART]
    words = {student: names[student], **dict.fromkeys(parts, names[student]), **names}
    ordered = sorted(words, key=len, reverse=True)
    found = re.compile(
        r"(?<!\w)(?:" + "|".join(re.escape(word) for word in ordered) + r")(?!\w)", re.IGNORECASE
    )
    lower = {word.lower(): name for word, name in words.items()}
    common = _words_of(lessons())

    def replaced(match: re.Match[str]) -> str:
        return match[0] if match[0] in common else lower.get(match[0].lower(), names[student])

    def scrub(text: str) -> str:
        for pattern, word in PRIVATE:
            text = pattern.sub(word, text)
        return found.sub(replaced, text)

    return scrub


@lru_cache(maxsize=1)
def _words_of(course: tuple[Lesson, ...]) -> frozenset[str]:
    """Return the words of lessons and checks as they are written there, without names.

    A word that is nowhere written small is taken for a name: Zhang, but not Small.
    """
    texts = [lesson.text.read_text("utf-8") for lesson in course if lesson.text.is_file()]
    titles = [check.name for exercise in EXERCISES.values() for check in exercise.checks]
    written = set(re.findall(r"[^\W\d_]+", "\n".join([*texts, *titles])))
    return frozenset(word for word in written if word.lower() in written)


def _without_names(mark: Mark, name: str, scrub: Scrub) -> Mark:
    details = _scrubbed(mark.row.details, scrub) | {
        "code": _scrubbed_code(str(mark.row.details.get("code", "")), scrub)
    }
    comment = mark.comment and TeacherComment(mark.comment.points, scrub(mark.comment.text))
    row = replace(
        mark.row, student=name, notebook="", reason=scrub(mark.row.reason), details=details
    )
    return replace(mark, row=row, comment=comment)


def _scrubbed(value: Any, scrub: Scrub) -> Any:
    """Return plain data with every text scrubbed."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {key: _scrubbed(item, scrub) for key, item in value.items()}
    return [_scrubbed(item, scrub) for item in value] if isinstance(value, list | tuple) else value


def _scrubbed_code(source: str, scrub: Scrub) -> str:
    """Return code with its comments and strings scrubbed; all of it, if it is not Python."""
    lines = source.splitlines(keepends=True)
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return scrub(source)
    text_kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    for token in reversed([token for token in tokens if token.type in text_kinds]):
        first, start = token.start
        last, end = token.end
        new = _scrubbed_string(token.string, scrub)
        if new != token.string:
            head = lines[first - 1][:start]
            tail = lines[last - 1][end:]
            lines[first - 1 : last] = [head + new + tail]
    return "".join(lines)


def _scrubbed_string(text: str, scrub: Scrub) -> str:
    """Return a string or a comment scrubbed; the braces of an f-string hold code, and stay."""
    prefix = text[: len(text) - len(text.lstrip("rRbBuUfF"))]
    if "f" not in prefix.lower():
        return scrub(text)
    parts = re.split(r"(\{[^{}]*\})", text)
    return "".join(part if i % 2 else scrub(part) for i, part in enumerate(parts))


def _line(mark: Mark) -> dict[str, object]:
    return {
        "learner": mark.row.student,
        "exercise": mark.row.exercise,
        "points": f"{mark.points:g}",
        "out_of": mark.row.out_of,
        "late_days": mark.late_days,
        "reason": mark.row.reason,
    }


def _write_notebook(folder: Path, one: Submission, taken: set[str], scrub: Scrub) -> None:
    """Write a notebook's cells without outputs and metadata; nothing for one that cannot be read.

    `taken` has the names of this learner's files so far; that of the new one is added.
    """
    if one.path is None or one.problem:
        return
    try:
        content = json.loads(content_of(one.path, one.own).decode("utf-8-sig"))
    except (Unreadable, ValueError, RecursionError):
        return
    cells: list[dict[str, Any]] = []
    for cell in content["cells"]:
        if not isinstance(cell, dict):
            continue
        lines = cell.get("source", "")
        source = "".join(filter(_is_text, lines)) if isinstance(lines, list) else str(lines)
        is_code = cell.get("cell_type") == "code"
        tags = (
            cell.get("metadata", {}).get("tags") if isinstance(cell.get("metadata"), dict) else []
        )
        written = _scrubbed_code(source, scrub) if is_code else scrub(source)
        plain = {
            "cell_type": "code" if is_code else "markdown",
            "metadata": {"tags": [str(tag) for tag in tags]} if isinstance(tags, list) else {},
            "source": written.splitlines(keepends=True),
        }
        cells.append(plain | ({"execution_count": None, "outputs": []} if is_code else {}))
    text = json.dumps(
        {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}, indent=1
    )
    name = one.lesson or "notebook"
    if name in taken:
        name = f"{name}-{len(taken) + 1}"
    taken.add(name)
    write_atomic(folder / f"{name}.ipynb", text.encode())


def _is_text(line: object) -> bool:
    return isinstance(line, str)
