"""Grading of a class, whatever is handed in.

First the code of all learners runs, each submission in a sandbox of its own, and is judged as its
answers arrive. Recipes of projects are collected meanwhile; then each is trained once for the whole
class, in the sandbox as well.

Invariant: one row for each learner and exercise, with its reason; no submission costs another one's
row.
"""

from __future__ import annotations

import json
import stat
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from labkit.grading.exercise import Exercise
from labkit.grading.exercises import EXERCISES
from labkit.grading.former import former_of
from labkit.grading.grade import Grade, as_json
from labkit.grading.judge import CaseSet, grading_cases, judge
from labkit.grading.plan import plan
from labkit.grading.program import (
    Deleted,
    Unreadable,
    answers_to,
    bare,
    parameters_of,
    program_of,
    which_counts,
)
from labkit.grading.results import GradeRow, GradingLog, key_of, visible
from labkit.grading.sandbox import isolation
from labkit.grading.sandbox.runner import Runner, packed, scratch
from labkit.grading.sandbox.supervisor import Reply
from labkit.grading.sandbox.wire import Failure, dump
from labkit.grading.sandbox.worker import Limits, Request
from labkit.grading.submission import Submission
from labkit.grading.trainings import Trainings

Plan = list[tuple[Submission, list[Exercise]]]  # the exercises to grade from each notebook
Progress = Callable[[str], None]
MOST_CODE = 20_000  # characters of an answer on a feedback page


@dataclass(frozen=True)
class Judged:
    """The results of a notebook after its code ran.

    Attributes:
        pending: Exercises with the replies that a training must decide.
    """

    submission: Submission
    rows: list[GradeRow] = field(default_factory=list)
    pending: list[tuple[Exercise, Reply]] = field(default_factory=list)


def grade(
    submissions: Sequence[Submission],
    seed: int,
    limits: Limits,
    *,
    lesson: str | None = None,
    workers: int = 2,
    progress: Progress = lambda line: None,
    log: GradingLog | None = None,
    output: Path | None = None,
    old_forms: bool = False,
    student: str = "",
) -> list[GradeRow]:
    """Return the rows of all submissions, by student and in the order of the course.

    At most `workers` submissions run at once.

    Args:
        submissions: What learners handed in, as `find` returns it.
        seed: Draws the cases.
        limits: The limits of learners' code.
        lesson: Grade this one only; None: every lesson that some notebook belongs to.
        workers: How many submissions run at once.
        progress: Is called with a line for each notebook, and with notices for the teacher.
        log: Stores rows as they are produced; rows that it already holds are not produced again.
        output: The folder of the grades, which learners' code must not reach.
        old_forms: Grade answers in the form of an earlier release by that form.
        student: Grade this one only, in the lessons of the class; "": all.
    """
    todo = plan(submissions, lesson)
    if student:
        submissions = [one for one in submissions if one.student == student]
        todo = [(one, exercises) for one, exercises in todo if one.student == student]
    for line in _ignored(submissions, todo):
        progress(line)
    log = log or GradingLog(None, {"seed": seed})
    keys = {one: key_of(one) for one, _ in todo}
    graded = {key: {row.exercise for row in rows} for key, rows in log.rows.items()}
    left = [
        (one, [e for e in exercises if e.id not in graded.get(keys[one], ())])
        for one, exercises in todo
    ]
    with scratch() as folder, Runner(limits, folder) as runner, _Pool(runner, workers) as pool:
        private = [one.path for one, _ in todo if one.path is not None and _is_file(one.path)]
        progress(isolation.describe(isolation.isolate(runner, private, output or folder)))
        grader = _Grader(runner, Trainings(runner, workers), seed, old_forms)
        pending = list[Judged]()
        work = [(one, exercises) for one, exercises in left if exercises]
        jobs = [pool.submit(grader.run, one, exercises) for one, exercises in work]
        running = Counter(one.student for one, _ in work)
        learners = len(running)
        done = defaultdict[str, list[Judged]](list)
        for job in as_completed(jobs):
            new = job.result()
            log.add(keys[new.submission], new.rows)
            pending += [new] if new.pending else []
            student = new.submission.student
            done[student].append(new)
            running[student] -= 1
            if not running[student]:
                number = sum(not count for count in running.values())
                progress(f"[{number}/{learners}] {student}: {_summary(done.pop(student))}")
        grader.trainings.run(pool, progress)
        for each in pending:
            log.add(
                keys[each.submission],
                [grader.row(each.submission, *reply) for reply in each.pending],
            )
    return log.all_rows(dict.fromkeys(keys.values()))


def _summary(judged: Sequence[Judged]) -> str:
    """Return the points of a learner's notebooks together, and their lessons."""
    rows = [row for each in judged for row in each.rows]
    pending = [exercise for each in judged for exercise, _ in each.pending]
    ids = {row.exercise for row in rows} | {exercise.id for exercise in pending}
    lessons = dict.fromkeys(e.lesson for e in EXERCISES.values() if e.id in ids)
    points = f"{sum(row.points for row in rows)} of {sum(row.out_of for row in rows)}"
    more = f", and {len(pending)} to be trained" if pending else ""
    return f"{points} in {', '.join(lessons)}{more}"


def _is_file(path: Path) -> bool:
    """Return whether this is a file, and no link: one to /dev/null is readable everywhere."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def _ignored(submissions: Sequence[Submission], todo: Plan) -> list[str]:
    """Return the lines about notebooks that are not graded, with the reasons.

    Those of other lessons are counted in one line. A notebook is named as it was handed in: in an
    archive it has another path now.
    """
    planned = {one for one, _ in todo}
    graded = {(one.student, one.lesson) for one in planned}
    lines = []
    of_other_lessons = 0
    for one in submissions:
        if one in planned:
            continue
        if one.problem:
            reason = one.problem
        elif one.lesson is None:
            reason = "it holds no exercise that is graded"
        elif (one.student, one.lesson) in graded:
            reason = f"another notebook of this learner counts for {one.lesson} (--take chooses)"
        else:
            of_other_lessons += 1
            continue
        lines.append(f"ignored, as {reason}: {one.student}, {one.notebook}")
    if of_other_lessons:
        lines.append(f"ignored: notebooks of other lessons, {of_other_lessons} in all")
    return lines


class _Pool(ThreadPoolExecutor):
    """Threads that wait for processes; an exception kills those processes first."""

    def __init__(self, runner: Runner, workers: int) -> None:
        super().__init__(max_workers=max(1, workers))
        self.runner = runner

    def __exit__(self, kind: object, error: object, trace: object) -> bool | None:
        if kind is not None:
            self.runner.close()
        self.shutdown(wait=True, cancel_futures=kind is not None)
        return None


class _Grader:
    """The grading of single notebooks; several threads may use it at once."""

    def __init__(
        self, runner: Runner, trainings: Trainings, seed: int, old_forms: bool = False
    ) -> None:
        self.runner = runner
        self.trainings = trainings
        self.seed = seed
        self.old_forms = old_forms
        self._shared = SharedReplies(runner)

    def run(self, submission: Submission, exercises: Sequence[Exercise]) -> Judged:
        """Run the code of a notebook, and judge what a comparison decides.

        An answer without full points is run again behind all statements that its learner added to
        the notebook: one of them may have filled a table, changed a setting, or bound a name by
        `exec`. The better reply counts.
        """
        programs: dict[str, list[str]] = {}
        replies: dict[str, Reply] = {}
        if self.old_forms:
            exercises = [
                former_of(exercise) if _is_former(submission, exercise) else exercise
                for exercise in exercises
            ]
        for exercise in exercises:
            try:
                programs[exercise.id] = sliced(submission, exercise)
            except Unreadable as error:
                replies[exercise.id] = Reply(exercise.id, str(error))
        replies |= self._replies([(e, programs[e.id]) for e in exercises if e.id in programs])
        whole = list[tuple[Exercise, list[str]]]()
        for exercise in exercises:
            if (
                exercise.id in programs
                and self._points(exercise, replies[exercise.id]) < exercise.points
            ):
                with suppress(Unreadable):
                    program = sliced(submission, exercise, whole=True)
                    whole += [(exercise, program)] if program != programs[exercise.id] else []
        again = self._replies(whole)
        for exercise, _ in whole:
            if self._points(exercise, again[exercise.id]) > self._points(
                exercise, replies[exercise.id]
            ):
                replies[exercise.id] = again[exercise.id]
        judged = Judged(submission)
        for exercise in exercises:
            reply = replies[exercise.id]
            if not reply.note and self._needs_training(exercise, reply):
                judged.pending.append((exercise, reply))
            else:
                judged.rows.append(self.row(submission, exercise, reply))
        return judged

    def _points(self, exercise: Exercise, reply: Reply) -> int:
        """Return the points of a reply.

        A reply that a training will decide has all points, unless a name is missing.
        """
        if exercise.trained is None:
            return self._grade(exercise, reply).points
        return (
            0
            if reply.note or any("NameError" in line for line in reply.answers)
            else exercise.points
        )

    def row(self, one: Submission, exercise: Exercise, reply: Reply) -> GradeRow:
        """Return the row of a reply."""
        grade = self._grade(exercise, reply)
        remarks = [grade.note, which_counts(one.cells, exercise)]
        if EXERCISES[exercise.id].former and _is_former(one, EXERCISES[exercise.id]):
            how = "graded by it" if self.old_forms else "--old-forms grades it"
            remarks.append(f"this is the form of an earlier release: {how}")
        if grade.verdicts:
            grade = replace(grade, note="; ".join(filter(None, remarks)))
        reason = visible(grade.reason)
        return GradeRow(
            one.student,
            one.notebook,
            exercise.id,
            grade.points,
            grade.out_of,
            reason,
            self.seed,
            as_json(grade) | {"code": answers_to(one.cells, exercise)[:MOST_CODE]},
        )

    def _replies(self, programs: Sequence[tuple[Exercise, list[str]]]) -> dict[str, Reply]:
        asked = [
            request_of(grading_cases(exercise, self.seed), program)
            for exercise, program in programs
        ]
        shared = {
            request.exercise: self._shared.reply(request) for request in asked if request.run_by
        }
        return shared | self.runner.run([request for request in asked if not request.run_by])

    def _needs_training(self, exercise: Exercise, reply: Reply) -> bool:
        """Request the trainings that judge these answers; answers that are no recipes need none."""
        try:
            return self.trainings.request(grading_cases(exercise, self.seed), answers_in(reply))
        except Exception:  # judging the answers reports what is wrong with them
            return False

    def _grade(self, exercise: Exercise, reply: Reply) -> Grade:
        """Return the grade of a reply; answers before a time limit keep their points."""
        cases = grading_cases(exercise, self.seed)
        if reply.note and not (reply.late and reply.answers):
            return Grade(exercise, (), complete=True, note=reply.note + _place(cases, reply))
        try:
            answers = answers_in(reply)
            if reply.late:
                late = dump(Failure("error", reply.note))
                answers += [[late] * len(group) for group in cases.cases[len(answers) :]]
            return judge(cases, answers)
        except Exception as error:  # grading continues whatever the answers are
            return Grade(
                exercise, (), complete=True, note=f"the answers cannot be read: {str(error)[:100]}"
            )


class SharedReplies:
    """Replies to equal programs, each run once for the whole class.

    Several threads may use it at once.

    Programs are equal if they differ only in blanks, comments and docstrings. All get the same
    cases.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._replies = dict[tuple[str, ...], Future[Reply]]()

    def reply(self, request: Request) -> Reply:
        """Return the reply to a program; run it, unless an equal one has run or is running."""
        key = (request.exercise, *map(bare, request.program))
        with self._lock:
            is_first = key not in self._replies
            future = self._replies.setdefault(key, Future())
        if is_first:
            try:
                future.set_result(self._runner.run([request])[request.exercise])
            except BaseException as error:
                future.set_exception(error)
        return future.result()


def _is_former(submission: Submission, exercise: Exercise) -> bool:
    """Return whether an answer, by its text, has the form that an earlier release asked for."""
    if not exercise.former:
        return False
    with suppress(Unreadable):
        count = parameters_of(sliced(submission, exercise), exercise.entry)
        return count == len(exercise.parameters) - len(exercise.former)
    return False


def sliced(submission: Submission, exercise: Exercise, *, whole: bool = False) -> list[str]:
    """Return the program of an answer; see `program_of`.

    Raises:
        Unreadable: there is none.
    """
    if submission.problem:
        raise Unreadable(submission.problem)
    try:
        return program_of(submission.cells, exercise, whole=whole)
    except Deleted:
        if any(cell.belongs_to(exercise) for cell in submission.other_cells):
            raise Unreadable(
                "its cell is a cell of text: select it, press Y to make it code, and hand it in "
                "again"
            ) from None
        raise
    except Unreadable:
        raise
    except Exception as error:  # grading continues whatever is in the cells
        raise Unreadable(
            f"it cannot be graded: {type(error).__name__}: {str(error)[:100]}"
        ) from error


def request_of(cases: CaseSet, program: list[str]) -> Request:
    """Return the request to run a program on cases."""
    exercise = cases.exercise
    return Request(
        exercise.id,
        program,
        exercise.entry,
        exercise.call,
        _packed_cases(cases),
        dict(exercise.provides),
        exercise.may_change,
        exercise.run_by,
    )


@lru_cache(maxsize=256)
def _packed_cases(cases: CaseSet) -> list[list[bytes]]:
    return [[packed(case) for case in group] for group in cases.cases]


def answers_in(reply: Reply) -> list[list[list[object]]]:
    """Return answers[check][case]; [] if the output is not JSON."""
    try:
        return [json.loads(line) for line in reply.answers]
    except (ValueError, RecursionError):
        return []


def _place(cases: CaseSet, reply: Reply) -> str:
    """Return the check at which the code was stopped."""
    if not reply.broken:
        return ""
    if not reply.ran:
        return "; while its cell ran"
    reached = len(reply.answers)
    names = [check.name for check in cases.checks]
    return (
        f"; at check {reached + 1} of {len(names)}, {names[reached]!r}"
        if reached < len(names)
        else ""
    )
