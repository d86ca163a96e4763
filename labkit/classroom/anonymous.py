"""Anonymised export of a graded class: a table, pages, notebooks, and the key beside them.

Each learner gets a number in random order, which a later export into the same folder keeps. In
texts the learner's own name, the full names of all others, e-mail addresses and paths of home
folders are replaced. In code that is done in comments and strings only, so that a learner called
Max keeps `max`. Outputs and metadata are left out.

A name may also be a word of the lessons, such as Small in Ann Small. A word that is written as in
the lessons stays: a pseudonym in one of the lab's own sentences would reveal whose name it is.

A letter with an accent may be one character or two: macOS writes names of folders with two, and
keyboards with one. So names are searched for in composed text (NFC), which the export has, too.

Invariant: no other name of the key is in the folder, and the key is beside the folder, not in it.
"""

from __future__ import annotations

import io
import json
import random
import re
import tokenize
import unicodedata
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

# Letters of the shortest part of a name that is replaced.
SHORTEST_PART = 3
# E-mail addresses, and paths of home folders on Linux, macOS and Windows. In Windows's paths, each
# backslash may be doubled, as in a string of Python.
PRIVATE = (
    (re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]+"), "(e-mail)"),
    (
        re.compile(r"(?:/home/|/Users/|[A-Za-z]:(?:\\{1,2}|/)Users(?:\\{1,2}|/))[^\s\"'`)\]]*"),
        "(path)",
    ),
)
# A learner's name in an export.
PSEUDONYM = re.compile(r"learner[0-9]{3,}")
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
    students = by_student(marks)
    pseudonyms = _pseudonyms(list(students), key_of_folder(folder))
    rows: list[dict[str, object]] = []
    for student, own_marks in students.items():
        pseudonym = pseudonyms[student]
        scrub = _scrubber(student, pseudonyms)
        anonymous = [_without_names(mark, pseudonym, scrub) for mark in own_marks]
        page = feedback(pseudonym, anonymous)
        write_atomic(folder / "pages" / f"{pseudonym}.html", page)
        rows += [_row(mark) for mark in anonymous]
        used_names: set[str] = set()
        for submission in submissions:
            if submission.student == student:
                notebooks = folder / "notebooks" / pseudonym
                _write_notebook(notebooks, submission, used_names, scrub)
    # the order of the marks would reveal the order of the names
    rows.sort(key=lambda row: str(row["learner"]))
    columns = list(rows[0]) if rows else ["learner"]
    write_table(folder / "grades.csv", columns, rows, guarded=True)
    return pseudonyms


def _pseudonyms(students: Sequence[str], key: Path) -> dict[str, str]:
    """Return learner -> pseudonym, those of an earlier export first, and write the key."""
    known: dict[str, str] = {}
    if key.is_file():
        known = _read_key(key)
    new = [student for student in students if student not in known]
    # not seeded: nobody can compute which number a learner gets
    random.SystemRandom().shuffle(new)
    # After the largest number: a line that was deleted from the key leaves a gap, and files of its
    # learner may still be in the folder.
    numbers = [int(name.removeprefix("learner")) for name in known.values()]
    for number, student in enumerate(new, start=max(numbers, default=0) + 1):
        known[student] = f"learner{number:03}"
    lines = [{"learner": name, "student": student} for student, name in known.items()]
    lines.sort(key=lambda line: line["learner"])
    write_table(key, ["learner", "student"], lines, guarded=True)
    return {student: known[student] for student in students}


def _read_key(key: Path) -> dict[str, str]:
    """Return learner -> pseudonym from the key of an earlier export.

    Raises:
        ValueError: it has other columns, a pseudonym that is not the lab's, or one for two
            learners.
    """
    known: dict[str, str] = {}
    for line in read_table(key, guarded=True):
        pseudonym = line.get("learner", "")
        is_the_labs = PSEUDONYM.fullmatch(pseudonym) is not None
        if "student" not in line or not is_the_labs or pseudonym in known.values():
            raise ValueError(
                f"{key} is not the key of an earlier export: expected the columns learner and "
                "student, and for each student a name of its own such as learner001, got "
                f"{','.join(line.values())!r}"
            )
        known[line["student"]] = pseudonym
    return known


def _scrubber(student: str, pseudonyms: Mapping[str, str]) -> Scrub:
    """Return a function that replaces names, addresses and paths in a text of one learner.

    Of the learner, each part of the name counts; of all others, only the full name.

    Args:
        student: the learner who wrote the text.
        pseudonyms: learner -> pseudonym, of the whole class.
    """
    pseudonym = pseudonyms[student]
    own_name = _composed(student)
    parts = [part for part in re.split(r"[\W_]+", own_name) if len(part) >= SHORTEST_PART]
    replacements = dict.fromkeys(parts, pseudonym)
    replacements |= {_composed(name): new for name, new in pseudonyms.items()}
    # The longest first, so that a full name is not replaced part by part.
    ordered = sorted(replacements, key=len, reverse=True)
    any_name = "|".join(re.escape(name) for name in ordered)
    pattern = re.compile(rf"(?<!\w)(?:{any_name})(?!\w)", re.IGNORECASE)
    by_lower_case = {name.lower(): new for name, new in replacements.items()}
    # of names that differ by case only, a text has its author's
    by_lower_case[own_name.lower()] = pseudonym
    common_words = _words_of(lessons())

    def replacement(match: re.Match[str]) -> str:
        if match[0] in common_words:
            return match[0]
        return by_lower_case.get(match[0].lower(), pseudonym)

    def scrub(text: str) -> str:
        text = _composed(text)
        for private, word in PRIVATE:
            text = private.sub(word, text)
        return pattern.sub(replacement, text)

    return scrub


def _composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


@lru_cache(maxsize=1)
def _words_of(course: tuple[Lesson, ...]) -> frozenset[str]:
    """Return the words of lessons and checks as they are written there, without names.

    A word that never occurs in lower case counts as a name: Zhang, but not Small.
    """
    texts = [lesson.text.read_text("utf-8") for lesson in course if lesson.text.is_file()]
    titles = [check.name for exercise in EXERCISES.values() for check in exercise.checks]
    written = set(re.findall(r"[^\W\d_]+", "\n".join([*texts, *titles])))
    return frozenset(word for word in written if word.lower() in written)


def _without_names(mark: Mark, name: str, scrub: Scrub) -> Mark:
    details = _scrubbed(mark.row.details, scrub)
    details["code"] = _scrubbed_code(str(mark.row.details.get("code", "")), scrub)
    comment = mark.comment
    if comment is not None:
        comment = TeacherComment(comment.points, scrub(comment.text))
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
    if isinstance(value, list | tuple):
        return [_scrubbed(item, scrub) for item in value]
    return value


def _scrubbed_code(source: str, scrub: Scrub) -> str:
    """Return code with its comments and strings scrubbed; text that is not Python, as a whole."""
    # Lines end where the tokenizer ends them: `str.splitlines` would also split at a form feed.
    lines = list(io.StringIO(source))
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    except (tokenize.TokenError, SyntaxError, ValueError):
        return scrub(source)
    # the text of an f-string is a token of its own from Python 3.12 on
    text_kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)}
    # From the last to the first: a replacement moves only what comes after it.
    for token in reversed(tokens):
        if token.type not in text_kinds:
            continue
        first, start = token.start
        last, end = token.end
        new = _scrubbed_string(token.string, scrub)
        if new != token.string:
            head = lines[first - 1][:start]
            tail = lines[last - 1][end:]
            lines[first - 1 : last] = [head + new + tail]
    return "".join(lines)


def _scrubbed_string(text: str, scrub: Scrub) -> str:
    """Return a string or a comment scrubbed; the code in the braces of an f-string stays."""
    prefix = text[: len(text) - len(text.lstrip("rRbBuUfF"))]
    if "f" not in prefix.lower():
        return scrub(text)
    # `split` returns text and braces in turn; a doubled brace is text, and begins no code
    parts = re.split(r"(\{\{|\}\}|\{[^{}]*\})", text)
    parts[::2] = [scrub(part) for part in parts[::2]]
    return "".join(parts)


def _row(mark: Mark) -> dict[str, object]:
    return {
        "learner": mark.row.student,
        "exercise": mark.row.exercise,
        "points": f"{mark.points:g}",
        "out_of": mark.row.out_of,
        "late_days": mark.late_days,
        "reason": mark.row.reason,
    }


def _write_notebook(
    folder: Path, submission: Submission, used_names: set[str], scrub: Scrub
) -> None:
    """Write a notebook's cells without outputs and metadata; nothing if it cannot be read.

    Args:
        folder: the learner's folder of the export.
        submission: the notebook.
        used_names: names of this learner's files so far; the new one is added.
        scrub: replaces names and paths.
    """
    if submission.path is None or submission.problem:
        return
    try:
        content = json.loads(content_of(submission.path, submission.own).decode("utf-8-sig"))
    except (Unreadable, ValueError, RecursionError):
        return
    cells = [_plain_cell(cell, scrub) for cell in content["cells"] if isinstance(cell, dict)]
    notebook = {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}
    name = submission.lesson or "notebook"
    if name in used_names:
        name = f"{name}-{len(used_names) + 1}"
    used_names.add(name)
    write_atomic(folder / f"{name}.ipynb", json.dumps(notebook, indent=1).encode())


def _plain_cell(cell: Mapping[str, Any], scrub: Scrub) -> dict[str, Any]:
    """Return a cell with scrubbed source and its tags; a learner's file may have any types."""
    source = cell.get("source", "")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    source = str(source)
    metadata = cell.get("metadata")
    tags = metadata.get("tags") if isinstance(metadata, dict) else []
    plain: dict[str, Any] = {
        "cell_type": "markdown",
        "metadata": {"tags": [str(tag) for tag in tags]} if isinstance(tags, list) else {},
    }
    if cell.get("cell_type") == "code":
        plain |= {"cell_type": "code", "execution_count": None, "outputs": []}
        source = _scrubbed_code(source, scrub)
    else:
        source = scrub(source)
    plain["source"] = source.splitlines(keepends=True)
    return plain
