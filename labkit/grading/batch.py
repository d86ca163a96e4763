"""Grading of a class.

First the code of all learners runs, each submission in a sandbox of its own, and is judged as its
answers arrive. The recipes of projects are collected meanwhile. Then each recipe is trained once
for the whole class, in the sandbox as well.

Invariant: each learner has one row for each exercise, with a reason. No submission affects another
one's row.
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

# The exercises to grade from each notebook.
Plan = list[tuple[Submission, list[Exercise]]]
Progress = Callable[[str], None]
# The largest number of characters of an answer on a feedback page.
MOST_CODE = 20_000


@dataclass(frozen=True)
class Judged:
    """The results of a notebook after its code ran.

    Attributes:
        submission: The notebook.
        rows: The rows of exercises that a comparison decides.
        pending: The other exercises, with the replies that a training must decide.
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

    Args:
        submissions: The submissions, as `find` returns them.
        seed: The seed of the cases.
        limits: The limits of learners' code.
        lesson: The lesson to grade; by default every lesson that some notebook belongs to.
        workers: The largest number of submissions that run at once.
        progress: Called with a line for each student, and with notices for the teacher.
        log: Stores rows as they are produced. Rows that it already holds are not produced again.
        output: The folder of the grades, which learners' code must not reach.
        old_forms: Whether to grade answers in the form of an earlier release by that form.
        student: The student to grade, in the lessons of the class; by default all students.
    """
    todo = plan(submissions, lesson)
    if student:
        submissions = [one for one in submissions if one.student == student]
        todo = [(one, exercises) for one, exercises in todo if one.student == student]
    for line in _ignored(submissions, todo):
        progress(line)
    log = log or GradingLog(None, {"seed": seed})
    keys = {one: key_of(one) for one, _ in todo}
    work = _without_graded(todo, log, keys)
    with scratch() as folder, Runner(limits, folder) as runner, _Pool(runner, workers) as pool:
        private = [one.path for one, _ in todo if one.path is not None and _is_file(one.path)]
        progress(isolation.describe(isolation.isolate(runner, private, output or folder)))
        grader = _Grader(runner, Trainings(runner, workers), seed, old_forms)
        jobs = [pool.submit(grader.run, one, exercises) for one, exercises in work]
        # The number of a student's notebooks that are not judged yet.
        running = Counter(one.student for one, _ in work)
        judged_by_student = defaultdict[str, list[Judged]](list)
        pending: list[Judged] = []
        for job in as_completed(jobs):
            judged = job.result()
            log.add(keys[judged.submission], judged.rows)
            if judged.pending:
                pending.append(judged)
            name = judged.submission.student
            judged_by_student[name].append(judged)
            running[name] -= 1
            if running[name] == 0:
                finished = sum(count == 0 for count in running.values())
                summary = _summary(judged_by_student.pop(name))
                progress(f"[{finished}/{len(running)}] {name}: {summary}")
        grader.trainings.run(pool, progress)
        for judged in pending:
            one = judged.submission
            rows = [grader.row(one, exercise, reply) for exercise, reply in judged.pending]
            log.add(keys[one], rows)
    return log.all_rows(dict.fromkeys(keys.values()))


def _without_graded(todo: Plan, log: GradingLog, keys: dict[Submission, str]) -> Plan:
    """Return the plan without exercises that have a row in the log."""
    work: Plan = []
    for one, exercises in todo:
        graded = {row.exercise for row in log.rows.get(keys[one], ())}
        left = [exercise for exercise in exercises if exercise.id not in graded]
        if left:
            work.append((one, left))
    return work


def _summary(judged: Sequence[Judged]) -> str:
    """Return the points of a learner's notebooks together, and their lessons."""
    rows = [row for each in judged for row in each.rows]
    pending = [exercise for each in judged for exercise, _ in each.pending]
    ids = {row.exercise for row in rows} | {exercise.id for exercise in pending}
    lessons = dict.fromkeys(
        exercise.lesson for exercise in EXERCISES.values() if exercise.id in ids
    )
    points = sum(row.points for row in rows)
    out_of = sum(row.out_of for row in rows)
    text = f"{points} of {out_of} in {', '.join(lessons)}"
    if pending:
        text += f", and {len(pending)} to be trained"
    return text


def _is_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a link.

    A link can lead to /dev/null, which code in a sandbox can read.
    """
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
    """Threads that wait for processes. After an exception, the processes are killed first."""

    def __init__(self, runner: Runner, workers: int) -> None:
        super().__init__(max_workers=max(1, workers))
        self.runner = runner

    def __exit__(self, kind: object, error: object, trace: object) -> bool | None:
        if kind is not None:
            self.runner.close()
        self.shutdown(wait=True, cancel_futures=kind is not None)
        return None


class _Grader:
    """The grading of single notebooks. Several threads may use it at once."""

    def __init__(
        self, runner: Runner, trainings: Trainings, seed: int, old_forms: bool = False
    ) -> None:
        self.runner = runner
        self.trainings = trainings
        self.seed = seed
        self.old_forms = old_forms
        self._shared = SharedReplies(runner)

    def run(self, submission: Submission, exercises: Sequence[Exercise]) -> Judged:
        """Run the code of a notebook, and judge the answers that need no training."""
        if self.old_forms:
            exercises = [
                former_of(exercise) if _is_former(submission, exercise) else exercise
                for exercise in exercises
            ]
        replies = self._best_replies(submission, exercises)
        judged = Judged(submission)
        for exercise in exercises:
            reply = replies[exercise.id]
            if not reply.note and self._needs_training(exercise, reply):
                judged.pending.append((exercise, reply))
            else:
                judged.rows.append(self.row(submission, exercise, reply))
        return judged

    def _best_replies(
        self, submission: Submission, exercises: Sequence[Exercise]
    ) -> dict[str, Reply]:
        """Return the reply of each answer, by the id of its exercise.

        An answer without full points runs a second time, behind all statements that its learner
        added to the notebook: one of them may have filled a table, changed a setting, or bound a
        name by `exec`. The better reply counts.
        """
        replies: dict[str, Reply] = {}
        programs: list[tuple[Exercise, list[str]]] = []
        for exercise in exercises:
            try:
                programs.append((exercise, sliced(submission, exercise)))
            except Unreadable as error:
                replies[exercise.id] = Reply(exercise.id, str(error))
        replies |= self._replies(programs)

        whole_programs: list[tuple[Exercise, list[str]]] = []
        for exercise, program in programs:
            if self._points(exercise, replies[exercise.id]) == exercise.points:
                continue
            with suppress(Unreadable):
                whole = sliced(submission, exercise, whole=True)
                if whole != program:
                    whole_programs.append((exercise, whole))
        second_replies = self._replies(whole_programs)
        for exercise, _ in whole_programs:
            second = second_replies[exercise.id]
            if self._points(exercise, second) > self._points(exercise, replies[exercise.id]):
                replies[exercise.id] = second
        return replies

    def _points(self, exercise: Exercise, reply: Reply) -> int:
        """Return the points of a reply.

        A reply that a training will decide has all points, unless a name is missing.
        """
        if exercise.trained is None:
            return self._grade(exercise, reply).points
        lacks_a_name = any("NameError" in line for line in reply.answers)
        return 0 if reply.note or lacks_a_name else exercise.points

    def row(self, one: Submission, exercise: Exercise, reply: Reply) -> GradeRow:
        """Return the row of a reply."""
        grade = self._grade(exercise, reply)
        remarks = [grade.note, which_counts(one.cells, exercise)]
        if EXERCISES[exercise.id].former and _is_former(one, EXERCISES[exercise.id]):
            how = "graded by it" if self.old_forms else "--old-forms grades it"
            remarks.append(f"this is the form of an earlier release: {how}")
        if grade.verdicts:
            grade = replace(grade, note="; ".join(remark for remark in remarks if remark))
        code = answers_to(one.cells, exercise)[:MOST_CODE]
        return GradeRow(
            one.student,
            one.notebook,
            exercise.id,
            grade.points,
            grade.out_of,
            visible(grade.reason),
            self.seed,
            as_json(grade) | {"code": code},
        )

    def _replies(self, programs: Sequence[tuple[Exercise, list[str]]]) -> dict[str, Reply]:
        """Run programs, and return their replies by the id of the exercise."""
        replies: dict[str, Reply] = {}
        requests: list[Request] = []
        for exercise, program in programs:
            request = request_of(grading_cases(exercise, self.seed), program)
            # A program that trains takes long, so equal ones run once for the whole class.
            if request.run_by:
                replies[exercise.id] = self._shared.reply(request)
            else:
                requests.append(request)
        return replies | self.runner.run(requests)

    def _needs_training(self, exercise: Exercise, reply: Reply) -> bool:
        """Request the trainings that judge an answer, and return whether there are any."""
        try:
            return self.trainings.request(grading_cases(exercise, self.seed), answers_in(reply))
        # The answer is invalid, which its judgement reports.
        except Exception:
            return False

    def _grade(self, exercise: Exercise, reply: Reply) -> Grade:
        """Return the grade of a reply. Answers before a time limit keep their points."""
        cases = grading_cases(exercise, self.seed)
        has_partial_answers = reply.late and reply.answers
        if reply.note and not has_partial_answers:
            return Grade(exercise, (), complete=True, note=reply.note + _place(cases, reply))
        try:
            answers = answers_in(reply)
            if reply.late:
                late = dump(Failure("error", reply.note))
                answers += [[late] * len(group) for group in cases.cases[len(answers) :]]
            return judge(cases, answers)
        # Learners' code can return anything, and the grading of the class continues.
        except Exception as error:
            note = f"the answers cannot be read: {str(error)[:100]}"
            return Grade(exercise, (), complete=True, note=note)


class SharedReplies:
    """Replies to equal programs, each run once for the whole class.

    Programs are equal if they differ only in blanks, comments and docstrings; they get the same
    cases. Several threads may use an object of this class at once.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._lock = threading.Lock()
        self._replies = dict[tuple[str, ...], Future[Reply]]()

    def reply(self, request: Request) -> Reply:
        """Return the reply to a program, which runs unless an equal one has run or is running."""
        key = (request.exercise, *map(bare, request.program))
        # The first request of a program runs it; the others wait for its future.
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
    """Return whether an answer has the parameters of the exercise in an earlier release."""
    if not exercise.former:
        return False
    with suppress(Unreadable):
        count = parameters_of(sliced(submission, exercise), exercise.entry)
        return count == len(exercise.parameters) - len(exercise.former)
    return False


def sliced(submission: Submission, exercise: Exercise, *, whole: bool = False) -> list[str]:
    """Return the program of an answer; see `program_of`.

    Raises:
        Unreadable: If the notebook has no answer that can be run.
    """
    if submission.problem:
        raise Unreadable(submission.problem)
    try:
        return program_of(submission.cells, exercise, whole=whole)
    except Deleted:
        # A learner may have changed the type of the cell.
        if any(cell.belongs_to(exercise) for cell in submission.other_cells):
            raise Unreadable(
                "its cell is a cell of text: select it, press Y to make it code, and hand it in "
                "again"
            ) from None
        raise
    except Unreadable:
        raise
    # Cells can hold anything, and the grading of the class continues.
    except Exception as error:
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
    """Return the answers as answers[check][case]; [] if the output is not JSON."""
    try:
        return [json.loads(line) for line in reply.answers]
    except (ValueError, RecursionError):
        return []


def _place(cases: CaseSet, reply: Reply) -> str:
    """Return where the code was stopped, as the end of a sentence."""
    if not reply.broken:
        return ""
    if not reply.ran:
        return "; while its cell ran"
    reached = len(reply.answers)
    # Learners' code may have written answers into the channel itself, more than there are checks.
    if reached >= len(cases.checks):
        return ""
    name = cases.checks[reached].name
    return f"; at check {reached + 1} of {len(cases.checks)}, {name!r}"
