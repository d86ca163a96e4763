"""Trainings of the recipes of a class: each is run once, in the sandbox.

The answer to a project is a recipe, which is plain data. The results of recipes are stored in
labkit.grading.project_runs; all that are missing are trained before the judgement.

Invariant: a recipe of many learners is trained once; a failing one costs only its own points.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, as_completed
from dataclasses import replace

from labkit.amp import RECIPES
from labkit.grading.judge import CaseSet
from labkit.grading.project_runs import RunKey, is_stored, runs_needed, store
from labkit.grading.sandbox.project_tasks import ProjectRun
from labkit.grading.sandbox.runner import NotStarted, Runner, packed
from labkit.grading.sandbox.wire import Failure, Instance, Json, load
from labkit.grading.sandbox.worker import Request
from labkit.records import system

SECONDS = 120.0  # limit of CPU time for one training
USUAL_SECONDS = 0.6  # of CPU time for one training on a laptop, its process included
PROGRAM = "from labkit.grading.sandbox.project_tasks import run"


class Trainings:
    """The missing trainings; several threads may request some."""

    def __init__(self, runner: Runner, workers: int = 1) -> None:
        self.runner, self._missing, self._lock = runner, dict[RunKey, None](), threading.Lock()
        self.at_once = max(1, min(workers, system.usable_cores()))
        self.limits = replace(runner.limits, seconds=max(SECONDS, runner.limits.seconds))

    def request(self, cases: CaseSet, answers: list[list[Json]]) -> bool:
        """Request what these answers need; return whether trainings decide them."""
        keys = runs_needed(cases.exercise, cases.cases, answers)
        with self._lock:
            self._missing.update(dict.fromkeys(key for key in keys if not is_stored(key)))
        return bool(keys)

    def run(self, pool: Executor, progress: Callable[[str], None]) -> None:
        """Run the missing trainings, and report how long they will take.

        Raises:
            NotStarted: FP32 cannot be trained on this machine, so that no recipe is at fault.
        """
        missing, started, reported = list(self._missing), time.monotonic(), 0
        recipes = len({recipe for _, recipe, _ in missing})
        if missing:
            minutes = len(missing) * USUAL_SECONDS / self.at_once / 60
            progress(f"{recipes} recipes: {len(missing)} trainings, about {minutes:.1f} minutes")
        for done, job in enumerate(as_completed([pool.submit(self._train, key) for key in missing]), start=1):
            job.result()
            left = (time.monotonic() - started) / done * (len(missing) - done)
            if done in (8, 64) or done * 10 // len(missing) > reported:
                reported = done * 10 // len(missing)
                progress(f"{recipes} recipes: {done} of {len(missing)} trainings; {left / 60:.1f} minutes to go")
        self._missing.clear()

    def _train(self, key: RunKey) -> None:
        request = Request("training", [PROGRAM], "run", "run(task, recipe, seed)", [[packed(key)]])
        (reply,) = self.runner.run([request], self.limits).values()
        try:
            result = load(json.loads(reply.answers[0])[0]) if not reply.note else None
            if isinstance(result, Instance):
                store(key, ProjectRun(**result.fields))  # type: ignore[arg-type]
                return
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            result = Failure("error", f"the result of the training cannot be read: {error}")
        why = reply.note or getattr(result, "message", "the training returned nothing")
        if key[1] == replace(RECIPES["FP32"], name="yours"):  # not a learner's fault
            raise NotStarted(f"task {key[0]!r} cannot be trained here, not even in FP32: {why}")
        store(key, why)
