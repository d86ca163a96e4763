"""The most frequent failures of a class, and answers that several learners share.

Both come from the rows of a grading. The reason of a failure decides its kind, and each kind has a
sentence for the next lecture. Equal answers are a hint and not a verdict: short answers are often
equal by chance.

Invariant: every row without full points has exactly one kind.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from labkit.classroom.marks import Mark
from labkit.findings import counted
from labkit.grading.program import bare
from labkit.grading.results import GradeRow

# Shorter answers, counted in characters without comments, are often equal by chance.
SHORT = 120
# The exercises that the table names for each kind of failure.
NAMED = 3


@dataclass(frozen=True)
class FailureKind:
    """A kind of failure: its name, the pattern of its reason, and what to say about it."""

    name: str
    pattern: str
    sentence: str


# The first pattern that a reason matches decides its kind.
KINDS = (
    FailureKind(
        "handed in no readable notebook",
        r"no notebook|cannot be unpacked|not a notebook|cannot be opened|empty notebook"
        r"|^it (?:is a link|is not a regular|is larger|is encrypted|lies in|changed|cannot be read)"
        r"|^its (?:name|archive) |^archives lie|^an archive inside|^more than|^more code",
        "Show how to download a notebook (File, Download), and which file to hand in.",
    ),
    FailureKind(
        "left the starter",
        r"^unsolved",
        "Ask what was in the way: the text, the time, or how to begin. Three hints cost no points.",
    ),
    FailureKind(
        "syntax error",
        r"syntax error",
        "Run the cell once before handing in: Python names the line.",
    ),
    FailureKind(
        "endless loop",
        r"stopped after .* of CPU time|loops without end",
        "Ask of each loop what ends it. A number that stops changing is a frequent cause.",
    ),
    FailureKind(
        "waited",
        r"it waits for something",
        "A graded cell has no keyboard: input() and sleep() belong elsewhere.",
    ),
    FailureKind(
        "took too much memory", r"MiB of memory|out of memory", "Ask how large each tensor is."
    ),
    FailureKind(
        "cell deleted or renamed",
        r"its cell was deleted|its cell is a cell of text|no longer defines",
        "Keep the cell and the name of its function; `labkit restore` restores a deleted answer.",
    ),
    FailureKind(
        "other arguments",
        r"it is called as|form of an earlier release",
        "Keep the first line of the function unchanged.",
    ),
    FailureKind(
        "undefined name",
        r"NameError",
        "Restart the kernel and run all cells above: a name from a deleted cell is still there.",
    ),
    FailureKind(
        "changed an argument",
        r"it changes `",
        "A function works on a copy; its caller still needs the original.",
    ),
    FailureKind(
        "returned None",
        r"got None",
        "A function without `return` returns None, also where it prints the right value.",
    ),
    FailureKind(
        "stopped with an error",
        r"stopped with|ended its process",
        "Read the last line of the message first, then the line that it names.",
    ),
    FailureKind(
        "known mistake", r"known mistake", "The table of mistakes has a sentence for each."
    ),
)
OTHER = FailureKind(
    "another answer", "", "Show the first counter-example: the arguments, what is right, what came."
)


def kind_of(row: GradeRow) -> FailureKind | None:
    """Return the kind of a row's failure; None if it has full points."""
    if row.points == row.out_of:
        return None
    for kind in KINDS:
        if re.search(kind.pattern, row.reason):
            return kind
    return OTHER


def failures(marks: Sequence[Mark]) -> list[tuple[str, str, str, str]]:
    """Return a row for each kind of failure, the most frequent first.

    A row has the number of learners, what failed, in which exercises most, and what to say.
    """
    learners: dict[FailureKind, set[str]] = defaultdict(set)
    exercises: dict[FailureKind, Counter[str]] = defaultdict(Counter)
    for mark in marks:
        kind = kind_of(mark.row)
        if kind is not None:
            learners[kind].add(mark.row.student)
            exercises[kind][mark.row.exercise] += 1
    kinds = sorted(learners, key=lambda kind: (-exercises[kind].total(), kind.name))
    return [
        (
            str(len(learners[kind])),
            f"{kind.name} ({counted(exercises[kind].total(), 'answer')})",
            ", ".join(id for id, _ in exercises[kind].most_common(NAMED)),
            kind.sentence,
        )
        for kind in kinds
    ]


def equal_answers(rows: Iterable[GradeRow]) -> list[tuple[str, str, str]]:
    """Return (learners, exercises, number of characters) of equal answers.

    Blanks, comments and docstrings make no difference. An answer that more than a third of a class
    wrote, and more than two learners, is left out: it is the obvious one. Groups of learners that
    share most answers come first.
    """
    # (exercise, code) -> learners; exercise -> learners; learners -> (exercise, length)
    owners: dict[tuple[str, str], set[str]] = defaultdict(set)
    students: dict[str, set[str]] = defaultdict(set)
    shared: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    for row in rows:
        code = bare(str(row.details.get("code", "")))
        students[row.exercise].add(row.student)
        if len(code) >= SHORT and not row.reason.startswith("unsolved"):
            owners[row.exercise, code].add(row.student)
    for (exercise, code), authors in owners.items():
        # In a class of fewer than six, two learners are more than a third, and still few.
        if 2 <= len(authors) <= max(2, len(students[exercise]) // 3):
            shared[tuple(sorted(authors))].append((exercise, len(code)))
    ordered = sorted(shared.items(), key=lambda item: (-len(item[1]), item[0]))
    return [
        (
            ", ".join(learners),
            ", ".join(exercise for exercise, _ in answers),
            str(sum(size for _, size in answers)),
        )
        for learners, answers in ordered
    ]
