"""Grades as data, and their forms: a table in a notebook, plain text, one line in a teacher's list.

A `Grade` has one `Verdict` for each check, the first counter-example of each, and the known
mistake, if any. All forms say everything as text; colours, which come from JupyterLab's theme, and
symbols only repeat them.

Invariant: in a notebook, the last line begins with "Solved" exactly if every check passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from labkit.grading.exercise import Check, Exercise, Mistake, Outcome, Rows, _unknown

_STYLE = (
    "font-family:var(--jp-ui-font-family,sans-serif);"
    "font-size:clamp(var(--jp-ui-font-size1,13px),0.85vw,17px);"
    "color:var(--jp-ui-font-color1,inherit);border:1px solid var(--jp-border-color2,#888);"
    "border-radius:4px;padding:8px 12px;margin:4px 0;max-width:60em"
)
_MARK = (
    "font-weight:600;white-space:nowrap;padding-right:1em;vertical-align:top;text-align:left;color:"
)
# Letters of an argument in a reason.
LONGEST_VALUE = 60
_PASS = "var(--jp-success-color0,#1b7a36)"
_FAIL = "var(--jp-error-color0,#b3261e)"
_CODE = (
    "font-family:var(--jp-code-font-family,monospace);"
    "font-size:clamp(var(--jp-code-font-size,13px),0.85vw,17px);white-space:pre-wrap;"
    "text-align:left;vertical-align:top;padding:0 1em 0 0"
)


@dataclass(frozen=True)
class CounterExample:
    """The first call of a check whose answer was wrong, as text."""

    inputs: Rows
    expected: str
    got: str
    difference: str


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    Attributes:
        counter_example: The first case that failed; None if all passed.
        outcomes: The judgements of its cases, where the check has them.
    """

    check: Check
    counter_example: CounterExample | None = None
    unsolved: bool = False
    outcomes: tuple[Outcome, ...] = ()

    @property
    def passed(self) -> bool:
        return self.counter_example is None

    @property
    def points(self) -> int:
        return self.check.points if self.passed else 0


@dataclass(frozen=True, repr=False)
class Grade:
    """The judgement of an answer; a notebook shows it as a table.

    Attributes:
        mistake: The known mistake with the same answers, if any.
        complete: Whether it was made by `labkit grade`, on all checks, or else in a notebook.
        note: Why there are no verdicts, or what happened on the way; else "".
        help: Where to get help after repeated failures; else "".
    """

    exercise: Exercise
    verdicts: tuple[Verdict, ...]
    mistake: Mistake | None = None
    complete: bool = False
    note: str = ""
    help: str = ""

    @property
    def points(self) -> int:
        return sum(verdict.points for verdict in self.verdicts)

    @property
    def out_of(self) -> int:
        """Return the points of the exercise, hidden checks included."""
        return self.exercise.points

    @property
    def bytes(self) -> int:
        """Return the bytes that the answer kept between two steps; 0 if they are not counted."""
        return max(
            (outcome.bytes for verdict in self.verdicts for outcome in verdict.outcomes), default=0
        )

    @property
    def unsolved(self) -> bool:
        """Return whether the cell is still the starter."""
        return bool(self.verdicts) and all(verdict.unsolved for verdict in self.verdicts)

    @property
    def reason(self) -> str:
        """Return one line with the reason for the points."""
        if self.unsolved:
            return "unsolved: the starter is still in place"
        if not self.verdicts:
            return self.note
        failed = [verdict for verdict in self.verdicts if not verdict.passed]
        parts = [f"{len(self.verdicts) - len(failed)} of {len(self.verdicts)} checks pass"]
        if failed:
            parts.append("failed: " + ", ".join(verdict.check.name for verdict in failed))
        if self.mistake:
            parts.append(f"known mistake: {self.mistake.name}")
        if failed and failed[0].counter_example:
            example = failed[0].counter_example
            call = _call(self.exercise, example)
            parts.append(f"first: {call}{' '.join(example.difference.split())}")
        return "; ".join(parts + ([self.note] if self.note else []))

    def __str__(self) -> str:
        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self)


def _call(exercise: Exercise, example: CounterExample) -> str:
    """Return the first failed call as one line: "my_ulp(x=1.5, emin=-14): ".

    Returns:
        The call, with a colon; "" where it has no arguments.
    """
    own = exercise.parameters if exercise.reference is not _unknown else ()
    shown = [(name, " ".join(value.split())) for name, value in example.inputs if name in own]
    if not shown:
        return ""
    arguments = ", ".join(f"{name}={_shortened(value, LONGEST_VALUE)}" for name, value in shown)
    return f"{exercise.entry}({arguments}): "


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def heading(exercise: Exercise) -> str:
    """Return "Dynamic scaling  ●●○  10 min": difficulty in dots, 1 to 3."""
    dots = "●" * exercise.difficulty + "○" * (3 - exercise.difficulty)
    return f"{exercise.title}  {dots}  {exercise.minutes} min"


def summary(grade: Grade) -> str:
    """Return the points, and what grading adds."""
    passed = sum(verdict.passed for verdict in grade.verdicts)
    total = len(grade.verdicts)
    points = f"{grade.points} of {grade.out_of} points"
    if grade.unsolved:
        return (
            f"Not solved yet: 0 of {grade.out_of} points. Replace the line that raises "
            "NotImplementedError."
        )
    if not total:
        return f"{points}. {grade.note}"
    if grade.complete:
        note = f" {grade.note}" if grade.note else ""
        return f"{passed} of {total} checks pass: {points}.{note}"
    if passed < total:
        return f"{passed} of {total} checks pass: {points}."
    left = ""
    if grade.points < grade.out_of:
        left = f", and {grade.out_of - grade.points} more for the same at grading"
    return (
        f"Solved. {passed} of {total} checks pass: {points}{left}. Grading repeats them on "
        "further cases."
    )


def as_text(grade: Grade) -> str:
    """Return the grade as plain text: a line for each check, and counter-examples.

    Only the first counter-example is complete.
    """
    lines = [heading(grade.exercise)]
    for verdict in () if grade.unsolved else grade.verdicts:
        points = f"{verdict.points} of {verdict.check.points} points"
        lines.append(f"  {_mark(verdict)}  {verdict.check.name}  ({points})")
        rows = _rows(grade, verdict)
        width = max((len(name) for name, _ in rows), default=0)
        lines += [f"      {name:<{width}}  {value}" for name, value in rows]
    if grade.mistake:
        lines.append(f"  ! A known mistake ({grade.mistake.name}): {grade.mistake.sentence}")
    if grade.help:
        lines.append(f"  {grade.help}")
    return "\n".join([*lines, "  " + summary(grade)])


def as_json(grade: Grade) -> dict[str, Any]:
    """Return the grade as plain data for the learner's page.

    A hidden check is listed with its name and points only.
    """
    checks = [
        {
            "name": verdict.check.name,
            "points": verdict.points,
            "out_of": verdict.check.points,
            "mark": _mark(verdict),
            "rows": [] if verdict.check.hidden or grade.unsolved else _rows(grade, verdict),
        }
        for verdict in grade.verdicts
    ]
    known = (
        {"name": grade.mistake.name, "sentence": grade.mistake.sentence} if grade.mistake else None
    )
    return {"checks": checks, "mistake": known, "summary": summary(grade), "bytes": grade.bytes}


def as_html(grade: Grade) -> str:
    """Return the grade as HTML that follows the notebook's theme.

    All output of the learner's code is escaped.
    """
    title = escape(heading(grade.exercise))
    checks = "" if grade.unsolved else checks_html(as_json(grade))
    help = f"<div>{escape(grade.help)}</div>" if grade.help else ""
    return (
        f'<section class="labkit-grade" aria-label="{title}" style="{_STYLE}">'
        f"<strong>{title}</strong>{checks}{help}"
        f"<div>{escape(summary(grade))}</div></section>"
    )


def checks_html(details: Mapping[str, Any]) -> str:
    """Return the checks and the known mistake of a grade, as `as_json` wrote it, as HTML.

    One slip often fails several checks: the first counter-example is open, and the others are
    folded.

    Returns:
        HTML; "" for a grade without verdicts and without a known mistake.
    """
    plain = 'style="background:none;text-align:left;vertical-align:top"'
    rows = ""
    first = True
    for check in details.get("checks", ()):
        inside = "".join(
            f"<tr {plain}>"
            + "".join(f'<td style="{_CODE}">{escape(str(text))}</td>' for text in row)
            + "</tr>"
            for row in check["rows"]
        )
        colour = _PASS if check["mark"].endswith("pass") else _FAIL
        mark = escape(check["mark"])
        line = f"{escape(check['name'])} ({check['points']} of {check['out_of']} points)"
        if inside:
            example = f'<table style="border:none;margin:2px 0">{inside}</table>'
            folded = f"<details><summary>its counter-example</summary>{example}</details>"
            line += example if first else folded
            first = False
        rows += (
            f'<tr {plain}><td style="{_MARK}{colour}">{mark}</td>'
            f'<td style="text-align:left">{line}</td></tr>'
        )
    html = f'<table style="border:none;margin:6px 0;text-align:left">{rows}</table>' if rows else ""
    known = details.get("mistake")
    if known:
        html += (
            '<div style="border-left:3px solid var(--jp-warn-color1,#a65f00);'
            'padding-left:8px;margin:6px 0">'
            f"<strong>! A known mistake ({escape(known['name'])}):</strong> "
            f"{escape(known['sentence'])}</div>"
        )
    return html


def _mark(verdict: Verdict) -> str:
    if verdict.passed:
        return "✓ pass"
    if verdict.unsolved:
        return "○ open"
    return "✗ fail"


def _rows(grade: Grade, verdict: Verdict) -> list[tuple[str, str]]:
    """Return a verdict's counter-example as names and values: the arguments, and the difference.

    The grade's first one also shows the expected and the actual answer. A later one that differs in
    the same way is left out. Nothing that the check's name or another row says is repeated.
    """
    examples = [other.counter_example for other in grade.verdicts if other.counter_example]
    example = verdict.counter_example
    if example is None:
        return [("", outcome.says) for outcome in verdict.outcomes]
    if example is not examples[0] and example.difference == examples[0].difference:
        return []
    if example.difference == example.got:
        return [*example.inputs, ("got", example.got)]
    whole = [("expected", example.expected), ("got", example.got)] if example is examples[0] else []
    whole = [row for row in whole if row != ("expected", verdict.check.name)]
    first, *rest = example.difference.split("\n")
    expected_and_got = f"expected {example.expected}, got {example.got}"
    if whole and (first == expected_and_got or first.startswith(f"{expected_and_got}: ")):
        first = first.removeprefix(expected_and_got).removeprefix(": ")
    lines = [first, *rest] if first else rest
    return [
        *example.inputs,
        *whole,
        *(("" if at else "differs", line) for at, line in enumerate(lines)),
    ]
