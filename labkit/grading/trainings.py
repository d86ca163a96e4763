"""Which trainings do the recipes of a class ask for? Each is made once, in a process with limits.

Idea: the answer to a project is a recipe, which travels as data. What came of a recipe is asked of
labkit.grading.project_runs, which remembers; so all that is missing is trained beforehand, behind the walls
where learners' code runs, and told to it. How long that will take is said before the first of them begins.

Invariant: a recipe that many learners share is trained once; one whose training ends badly costs its own points only.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, as_completed
from dataclasses import replace

from labkit.amp import RECIPES
from labkit.grading.given.child import Question
from labkit.grading.given.project_tasks import Run
from labkit.grading.given.wire import Failure, Instance, Json, load
from labkit.grading.judge import Paper
from labkit.grading.project_runs import Asked, keep, kept, runs_asked
from labkit.grading.supervise import NotStarted, Runner, packed
from labkit.records import system

SECONDS = 120.0  # of the CPU, for one training
USUAL_SECONDS = 0.6  # of the CPU, that one takes on a laptop, its process included
PROGRAM = "from labkit.grading.given.project_tasks import run"


class Trainings:
    """The trainings that are missing; several threads may ask for some."""

    def __init__(self, runner: Runner, workers: int = 1) -> None:
        self.runner, self._missing, self._lock = runner, dict[Asked, None](), threading.Lock()
        self.at_once = max(1, min(workers, system.usable_cores()))
        self.limits = replace(runner.limits, seconds=max(SECONDS, runner.limits.seconds))

    def ask(self, paper: Paper, answers: list[list[Json]]) -> bool:
        """Note what these answers ask for; return whether they are judged by trainings."""
        asked = runs_asked(paper.exercise, paper.cases, answers)
        with self._lock:
            self._missing.update(dict.fromkeys(one for one in asked if not kept(one)))
        return bool(asked)

    def run(self, pool: Executor, progress: Callable[[str], None]) -> None:
        """Train what is missing, and say how long it will take.

        Raises:
            NotStarted: not even FP32 can be trained on this machine; then no recipe is to blame.
        """
        missing, begun, told = list(self._missing), time.monotonic(), 0
        recipes = len({recipe for _, recipe, _ in missing})
        if missing:
            minutes = len(missing) * USUAL_SECONDS / self.at_once / 60
            progress(f"{recipes} recipes: {len(missing)} trainings, about {minutes:.1f} minutes")
        for done, job in enumerate(as_completed([pool.submit(self._train, one) for one in missing]), start=1):
            job.result()
            left = (time.monotonic() - begun) / done * (len(missing) - done)
            if done in (8, 64) or done * 10 // len(missing) > told:
                told = done * 10 // len(missing)
                progress(f"{recipes} recipes: {done} of {len(missing)} trainings; {left / 60:.1f} minutes to go")
        self._missing.clear()

    def _train(self, asked: Asked) -> None:
        question = Question("training", [PROGRAM], "run", "run(task, recipe, seed)", [[packed(asked)]])
        (reply,) = self.runner.run([question], self.limits).values()
        try:
            run = load(json.loads(reply.answers[0])[0]) if not reply.note else None
            if isinstance(run, Instance):
                keep(asked, Run(**run.fields))  # type: ignore[arg-type]
                return
        except (LookupError, TypeError, ValueError, RecursionError) as error:  # nobody asked its process for this
            run = Failure("error", f"what the training says cannot be read: {error}")
        why = reply.note or getattr(run, "message", "the training says nothing")
        if asked[1] == replace(RECIPES["FP32"], name="yours"):  # no learner's fault: this grading would be unjust
            raise NotStarted(f"task {asked[0]!r} cannot be trained here, not even in FP32: {why}")
        keep(asked, why)
