"""HTML pages: a learner's feedback, and the class for its teacher.

A page is a single file, for light and dark themes and for paper. Points and mistakes come from the
rows of grading; times and predictions from the journals that learners handed in beside their
notebooks. The texts around them are in feedback.html.jinja and class_report.html.jinja.

Invariant: a page loads nothing, and all output of learners' code is escaped. Feedback shows only
name and points of a hidden check. The class page names who is missing, and whose work has 0 points
because a name was not defined.
"""

from __future__ import annotations

import hashlib
import os
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from labkit.classroom.failures import equal_answers, failures
from labkit.classroom.marks import Comments, Mark, TeacherComment, by_row, by_student, total
from labkit.classroom.tables import same_name
from labkit.course import QuizQuestion, lessons, quiz_questions
from labkit.grading.exercises import EXERCISES
from labkit.grading.grade import checks_html, heading
from labkit.grading.submission import GENERATOR, Submission, is_own
from labkit.records import write_atomic
from labkit.records.journal import NAME, entries, last_answers
from labkit.records.templates import markup, render

NO_JOURNAL = "No journal was handed in: ask for the whole folder, not the notebooks alone."
# Bytes of a file's name; the rest of 255 is for suffixes.
LONGEST_NAME = 200
# Characters of a prediction on the page.
LONGEST_PREDICTION = 200


def page(template: str, title: str, **values: object) -> bytes:
    """Return a page of the classroom.

    Args:
        template: The file name of its template in this package, which extends page.html.jinja.
        title: The title and the first heading.
        **values: Further variables of the template, by name.
    """
    html = render(
        f"classroom/{template}", title=title, generator=markup(GENERATOR.decode()), **values
    )
    # Jinja2 removes the last newline of a template. Names of folders may hold bytes that are not
    # UTF-8, which Python reads as lone surrogates.
    return f"{html}\n".encode("utf-8", errors="backslashreplace")


# Feedback


def write_feedback(folder: Path, marks: Sequence[Mark], comments: Comments) -> list[Path]:
    """Write the page of each learner into a folder, and return the pages.

    A page is <learner>.html, or <learner>/feedback.html if that folder exists. They are in the
    order of `by_student(marks)`.
    """
    students = by_student(marks)
    paths = _page_paths(folder, students)
    by_submission = by_row(comments, students)
    pages = []
    for student, own in students.items():
        on_all_work = by_submission.get((student, ""))
        pages.append(write_atomic(paths[student], feedback(student, own, on_all_work)))
    return pages


def _page_paths(folder: Path, students: Iterable[str]) -> dict[str, Path]:
    """Return a path for each page, not too long, and unique where Ann and ann are one file."""
    paths: dict[str, Path] = {}
    # Names of pages in `folder`, as a file system without upper and lower case compares them.
    used_names: set[str] = set()
    for student in students:
        name = os.fsencode(student)[:LONGEST_NAME].decode(errors="surrogateescape")
        is_cut = name != student
        if is_cut:
            name += f" {hashlib.sha256(os.fsencode(student)).hexdigest()[:8]}"
        own_folder = folder / name
        if own_folder.is_dir() and not is_cut:
            paths[student] = own_folder / "feedback.html"
            continue
        unique_name = name
        number = 1
        while same_name(unique_name) in used_names:
            number += 1
            unique_name = f"{name} ({number})"
        used_names.add(same_name(unique_name))
        paths[student] = folder / f"{unique_name}.html"
    return paths


def feedback(student: str, marks: Sequence[Mark], comment: TeacherComment | None = None) -> bytes:
    """Return the page of one learner; `comment` is on all of the work."""
    points, out_of = total(marks)
    overview = []
    sections = []
    for mark in marks:
        exercise = EXERCISES[mark.row.exercise]
        overview.append((exercise.title, f"{mark.points:g} of {mark.row.out_of}", _state(mark)))
        sections.append(
            {
                "heading": heading(exercise),
                "points": points_line(mark),
                "comment": mark.comment,
                "checks": markup(checks_html(mark.row.details)),
                "reason": mark.row.reason,
                "code": str(mark.row.details.get("code", "")),
            }
        )
    return page(
        "feedback.html.jinja",
        f"Feedback for {student}",
        points=points,
        out_of=out_of,
        comment=comment,
        overview=overview,
        sections=sections,
    )


def _state(mark: Mark) -> str:
    if mark.row.points == mark.row.out_of:
        return "solved"
    return "in part" if mark.row.points else "open"


def points_line(mark: Mark) -> str:
    """Return the points that count, and why they differ from those earned."""
    line = f"{mark.points:g} of {mark.row.out_of} points"
    if mark.points != mark.row.points:
        line += f", earned {mark.row.points}"
    if mark.late_days:
        days = "day" if mark.late_days == 1 else "days"
        line += f"; {mark.late_days} {days} late"
    if mark.comment is not None and mark.comment.points is not None:
        line += "; set by your teacher"
    return line


# The class


def report(
    marks: Sequence[Mark],
    journals: Sequence[Path],
    notices: Sequence[str] = (),
    pages: Mapping[str, str] | None = None,
) -> bytes:
    """Return the class page.

    Args:
        marks: The marks of all learners.
        journals: The journals of the learners, as `journals_beside` finds them.
        notices: First lines: missing learners, unused comments.
        pages: Learner -> the address of the feedback page, relative to this page.
    """
    learners: list[dict[str, object]] = []
    reached: list[float] = []
    most = 0
    for name, own in by_student(marks).items():
        points, out_of = total(own)
        address = (pages or {}).get(name)
        learners.append({"name": name, "points": points, "out_of": out_of, "page": address})
        reached.append(points)
        most = max(most, out_of)

    return page(
        "class_report.html.jinja",
        "The class",
        notices=notices,
        learners=learners,
        median=statistics.median(reached) if reached else 0.0,
        out_of=most,
        exercises=_exercise_rows(marks, journals),
        mistakes=_mistakes(marks),
        failures=failures(marks),
        undefined_names=_undefined_names(marks),
        predictions=_predictions(marks, journals),
        has_journals=bool(journals),
        no_journal=NO_JOURNAL,
        quiz=[_quiz_row(result) for result in quiz_results(journals)],
        equal_answers=equal_answers(mark.row for mark in marks),
    )


def _exercise_rows(marks: Sequence[Mark], journals: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return a row for each graded exercise: who solved it, mean points and minutes."""
    rows: list[tuple[str, ...]] = []
    for id, exercise in EXERCISES.items():
        own = [mark for mark in marks if mark.row.exercise == id]
        if not own:
            continue
        solved = sum(mark.row.points == mark.row.out_of for mark in own)
        mean = statistics.fmean(mark.points for mark in own)
        minutes = minutes_of(id, journals)
        spent = "unknown"
        if minutes:
            spent = f"{statistics.median(minutes):.0f} ({len(minutes)} known)"
        rows.append(
            (
                f"{exercise.title} ({id})",
                f"{solved} of {len(own)} ({solved / len(own):.0%})",
                f"{mean:.1f} of {own[0].row.out_of}",
                spent,
                str(exercise.minutes),
            )
        )
    return rows


def _mistakes(marks: Sequence[Mark]) -> list[tuple[str, str, str]]:
    """Return a row for each known mistake, the most frequent first: learners, name, sentence."""
    counts = Counter[tuple[str, str, str]]()
    for mark in marks:
        mistake = mark.row.details.get("mistake")
        if mistake:
            counts[mark.row.exercise, mistake["name"], mistake["sentence"]] += 1
    return [
        (str(count), f"{name} ({exercise})", sentence)
        for (exercise, name, sentence), count in counts.most_common()
    ]


def _undefined_names(marks: Sequence[Mark]) -> list[tuple[str, str, str]]:
    """Return learner, exercise and reason of the answers without points that met a NameError."""
    return [
        (mark.row.student, mark.row.exercise, mark.row.reason)
        for mark in marks
        if not mark.row.points and "NameError" in f"{mark.row.reason} {mark.row.details}"
    ]


def addresses(marks: Sequence[Mark], pages: Sequence[Path], page: Path) -> dict[str, str]:
    """Return learner -> the address of a feedback page, relative to the class page.

    Args:
        marks: The marks of all learners.
        pages: Those that `write_feedback` returned for these marks.
        page: The class page.
    """
    by_learner = {}
    for student, path in zip(by_student(marks), pages, strict=True):
        relative = os.path.relpath(path.resolve(), page.resolve().parent)
        # as bytes, since names of folders may hold some that are not UTF-8
        by_learner[student] = quote(os.fsencode(Path(relative).as_posix()))
    return by_learner


# What journals say


def journals_beside(submissions: Iterable[Submission]) -> list[Path]:
    """Return the journals beside these notebooks that are their learners' own, each once."""
    places = {one.path.parent / NAME: one.own for one in submissions if one.path}
    return sorted(journal for journal, own in places.items() if is_own(journal, own))


def minutes_of(exercise: str, journals: Sequence[Path]) -> list[float]:
    """Return for each learner the minutes from the first check of an exercise to the best one.

    A journal counts if each of its checks has a time, and the times up to the best never fall.
    """
    minutes = []
    for journal in journals:
        times = []
        points = []
        checks = [line for line in entries(journal, "exercise") if line["id"] == exercise]
        for line in checks:
            when = _time(str(line.get("when", "")))
            if when is not None:
                times.append(when)
            reached = line.get("points")
            points.append(reached if isinstance(reached, int) else 0)
        if not checks or len(times) < len(checks):
            continue
        best = points.index(max(points))
        until_best = times[: best + 1]
        # Times that fall mean that a clock was set back.
        if until_best == sorted(until_best):
            minutes.append((until_best[-1] - until_best[0]).total_seconds() / 60)
    return minutes


def _predictions(marks: Sequence[Mark], journals: Sequence[Path]) -> list[dict[str, object]]:
    """Return the answered predictions of the graded lessons: question, and learners per answer."""
    counts: dict[str, Counter[str]] = {}
    for journal in journals:
        for id, answer in last_answers(journal, "prediction").items():
            counts.setdefault(id, Counter())[answer[:LONGEST_PREDICTION]] += 1
    graded = {EXERCISES[mark.row.exercise].lesson for mark in marks}
    predictions: list[dict[str, object]] = []
    for lesson in lessons():
        if lesson.name not in graded:
            continue
        for id, row in lesson.table("predictions").items():
            if id not in counts:
                continue
            right = str(row.get("answer", ""))
            answers = []
            for answer, count in counts[id].most_common():
                shown = f"{answer} (right)" if answer == right else answer
                answers.append((shown, str(count)))
            predictions.append({"question": row["question"].strip(), "answers": answers})
    return predictions


@dataclass(frozen=True)
class QuizResult:
    """How a class answered one question of the quiz, before and after the course.

    Attributes:
        before: (right answers, answers) before the course.
        after: (right answers, answers) after the course.
        improved: Learners with a wrong answer before and the right one after.
        declined: Learners with the right answer before and a wrong one after.
    """

    question: str
    before: tuple[int, int]
    after: tuple[int, int]
    improved: int
    declined: int


def quiz_results(journals: Iterable[Path]) -> list[QuizResult]:
    """Return the result of each answered question of the quiz, without names.

    One journal is one learner.
    """
    answers = [
        (last_answers(journal, "before"), last_answers(journal, "after")) for journal in journals
    ]
    results = []
    for id, question in quiz_questions().items():
        # of each learner, whether the answer was right, None without an answer
        pairs: list[tuple[bool | None, bool | None]] = []
        for before, after in answers:
            pairs.append((_is_right(question, before.get(id)), _is_right(question, after.get(id))))
        first = [right for right, _ in pairs if right is not None]
        last = [right for _, right in pairs if right is not None]
        if first or last:
            results.append(
                QuizResult(
                    question=question.question,
                    before=(sum(first), len(first)),
                    after=(sum(last), len(last)),
                    improved=pairs.count((False, True)),
                    declined=pairs.count((True, False)),
                )
            )
    return results


def _is_right(question: QuizQuestion, answer: str | None) -> bool | None:
    """Return whether an answer is right; None for one that is not a choice of the question."""
    if answer not in question.all_choices:
        return None
    return answer == question.answer


def _quiz_row(result: QuizResult) -> tuple[str, ...]:
    return (
        result.question,
        _share(*result.before),
        _share(*result.after),
        str(result.improved),
        str(result.declined),
    )


def _share(right: int, answers: int) -> str:
    if not answers:
        share = "no answer"
    else:
        share = f"{right} of {answers} ({right / answers:.0%})"
    return share.replace(" ", "\N{NO-BREAK SPACE}")


def _time(text: str) -> datetime | None:
    """Return a time of a journal, in UTC if it names no zone; None if it is not a time."""
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        return None
    return when if when.tzinfo else when.replace(tzinfo=UTC)
