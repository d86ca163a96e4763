"""How is a whole class graded, whatever is handed in?

Idea: first the code of all learners runs, each submission behind walls of its own, and is judged as its answers come.
Recipes of projects are collected meanwhile, and each of them is trained once for the whole class, in processes with
limits too; how long that takes is told before it begins.

Invariant: one row for each learner and exercise, with its reason; what one of them does costs no other's row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from labkit.grading import walls
from labkit.grading.alike import Alike
from labkit.grading.exercise import Exercise
from labkit.grading.given.child import Limits, Question
from labkit.grading.given.keeper import Reply
from labkit.grading.given.wire import Failure, dump
from labkit.grading.grade import Grade, as_json
from labkit.grading.judge import Paper, judge, paper_of
from labkit.grading.plan import Read, plan, read
from labkit.grading.program import program_of
from labkit.grading.submission import Submission, Unreadable
from labkit.grading.supervise import Runner, packed, scratch
from labkit.grading.table import Journal, Row, key_of, visible
from labkit.grading.trainings import Trainings

Asked = list[tuple[Read, list[Exercise]]]  # of each notebook, what is graded
Say = Callable[[str], None]


@dataclass(frozen=True)
class Marked:
    """What is known of a notebook after its code ran: rows, and answers that a training must decide."""

    one: Read
    rows: list[Row]
    waiting: list[tuple[Exercise, Reply]] = field(default_factory=list)


def grade(
    submissions: Sequence[Submission],
    seed: int,
    limits: Limits,
    *,
    lesson: str | None = None,
    workers: int = 2,
    progress: Say = lambda line: None,
    journal: Journal | None = None,
    output: Path | None = None,
) -> list[Row]:
    """Return the rows of all submissions, by student and in the order of the course; `workers` of them run at once.

    lesson     grade this one only; None: every lesson that some notebook tells
    progress   called with a line for each notebook, and with what else a teacher should know
    journal    keeps rows as they come, and those that an earlier grading left in it are not made again
    output     the folder of the grades, which no learner's code should reach
    """
    reads = [read(submission) for submission in submissions]
    todo = plan(reads, lesson)
    for line in _passed_over(reads, todo):
        progress(line)
    journal = journal or Journal(None, {"seed": seed})
    keys = {id(one): key_of(one) for one, _ in todo}
    left = _left(todo, keys, journal)
    with scratch() as folder, Runner(limits, folder) as runner, _pool(runner, workers) as pool:
        private = [one.submission.path for one, _ in todo if one.submission.path is not None]
        progress(walls.describe(walls.build(runner, private, output or folder)))
        trainings, alike = Trainings(runner, workers), Alike(runner)
        jobs = [pool.submit(_marked, runner, alike, trainings, one, asked, seed) for one, asked in left]
        marked = _told(jobs, keys, journal, progress)
        trainings.run(pool, progress)
        for each in (each for each in marked if each.waiting):
            rows = [_row(each.one, _judged(exercise, seed, reply), seed) for exercise, reply in each.waiting]
            journal.add(keys[id(each.one)], rows)
    return journal.all_rows(dict.fromkeys(keys.values()))


def _passed_over(reads: Sequence[Read], todo: Asked) -> list[str]:
    """Return which notebooks are not graded, and why, each as a line."""
    graded = {(one.submission.student, one.lesson) for one, _ in todo}
    said = []
    for one in (one for one in reads if all(one is not planned for planned, _ in todo)):
        other = f"another notebook of this learner stands for {one.lesson} (--take chooses)"
        other = other if one.lesson and (one.submission.student, one.lesson) in graded else ""
        what = one.submission.path or f"{one.submission.student}, {one.submission.notebook}"
        said.append(f"passed over, as {one.problem or other or 'no exercise asked for is in it'}: {what}")
    return said


def _left(todo: Asked, keys: dict[int, str], journal: Journal) -> Asked:
    """Return what no earlier grading left in the journal."""
    done = {key: {row.exercise for row in rows} for key, rows in journal.rows.items()}
    left = [(one, [e for e in asked if e.id not in done.get(keys[id(one)], ())]) for one, asked in todo]
    return [(one, asked) for one, asked in left if asked]


def _told(jobs: Sequence[Future[Marked]], keys: dict[int, str], journal: Journal, progress: Say) -> list[Marked]:
    """Keep rows as they come, and say so."""
    marked = []
    for number, job in enumerate(as_completed(jobs), start=1):
        new = job.result()
        journal.add(keys[id(new.one)], new.rows)
        marked.append(new)
        points, out_of = sum(row.points for row in new.rows), sum(row.out_of for row in new.rows)
        waits = f", and {len(new.waiting)} to be trained" if new.waiting else ""
        progress(f"[{number}/{len(jobs)}] {new.one.submission.student}: {points} of {out_of}{waits}")
    return marked


class _pool(ThreadPoolExecutor):
    """Threads that wait for processes; whoever leaves early ends those processes first."""

    def __init__(self, runner: Runner, workers: int) -> None:
        super().__init__(max_workers=max(1, workers))
        self.runner = runner

    def __exit__(self, kind: object, error: object, trace: object) -> bool | None:
        if kind is not None:
            self.runner.close()
        self.shutdown(wait=True, cancel_futures=kind is not None)
        return None


def _marked(
    runner: Runner, alike: Alike, trainings: Trainings, one: Read, asked: Sequence[Exercise], seed: int
) -> Marked:
    """Run the code of a submission, and judge what a comparison decides."""
    notes: dict[str, Reply] = {}
    programs: dict[str, list[str]] = {}
    for exercise in asked:
        try:
            if one.problem:
                raise Unreadable(one.problem)
            programs[exercise.id] = program_of(one.cells, exercise)
        except Unreadable as error:
            notes[exercise.id] = Reply(exercise.id, str(error))
        except Exception as error:  # whatever is in the cells, the class goes on
            notes[exercise.id] = Reply(exercise.id, f"it cannot be graded: {type(error).__name__}: {str(error)[:100]}")
    answered = [exercise for exercise in asked if exercise.id in programs]
    questions = [question(paper_of(exercise, seed), programs[exercise.id]) for exercise in answered]
    shared = {q.exercise: alike.reply(q) for q in questions if q.run_by}
    replies = runner.run([q for q in questions if not q.run_by]) | shared | notes
    marked = Marked(one, [])
    for exercise in asked:
        reply = replies[exercise.id]
        if not reply.note and _takes_training(trainings, paper_of(exercise, seed), reply):
            marked.waiting.append((exercise, reply))
        else:
            marked.rows.append(_row(one, _judged(exercise, seed, reply), seed))
    return marked


def _takes_training(trainings: Trainings, paper: Paper, reply: Reply) -> bool:
    """Ask for the trainings that judge these answers; answers that no recipe can be read from take none."""
    try:
        return trainings.ask(paper, answers_in(reply))
    except Exception:  # they are judged as they are, which says what is wrong with them
        return False


def question(paper: Paper, program: list[str]) -> Question:
    """Return what a learner's code is asked on a paper."""
    exercise = paper.exercise
    return Question(
        exercise.id, program, exercise.entry, exercise.call, _asked(paper), dict(exercise.provides), exercise.withheld,
        exercise.may_change, exercise.run_by,
    )  # fmt: skip


@lru_cache(maxsize=256)
def _asked(paper: Paper) -> list[list[bytes]]:
    return [[packed(case) for case in cases] for cases in paper.cases]


def _judged(exercise: Exercise, seed: int, reply: Reply) -> Grade:
    """Return the grade of a reply; what was answered before the time was over keeps its points."""
    paper = paper_of(exercise, seed)
    if reply.note and not (reply.late and reply.answers):
        return Grade(exercise, (), complete=True, note=reply.note + _where(paper, reply))
    try:
        answers = answers_in(reply)
        if reply.late:
            late = dump(Failure("error", reply.note))
            answers += [[late] * len(cases) for cases in paper.cases[len(answers) :]]
        return judge(paper, answers)
    except Exception as error:  # whatever an answer does to the comparison, the class goes on
        return Grade(exercise, (), complete=True, note=f"the answers cannot be read: {str(error)[:100]}")


def answers_in(reply: Reply) -> list[list[list[object]]]:
    """Return answers[check][case]; none where what was written is no JSON."""
    try:
        return [json.loads(line) for line in reply.answers]
    except (ValueError, RecursionError):
        return []


def _where(paper: Paper, reply: Reply) -> str:
    """Return which check was reached when the code was stopped."""
    if not reply.broken:
        return ""
    if not reply.ran:
        return "; while its cell ran"
    reached = len(reply.answers)
    names = [check.name for check in paper.checks]
    return f"; at check {reached + 1} of {len(names)}, {names[reached]!r}" if reached < len(names) else ""


def _row(one: Read, grade: Grade, seed: int) -> Row:
    submission = one.submission
    return Row(
        submission.student, submission.notebook, grade.exercise.id, grade.points, grade.out_of, visible(grade.reason),
        seed, as_json(grade),
    )  # fmt: skip
