"""Trainings that decide the answers of a class, such as the recipes of projects.

Invariant: what many learners submit is trained once; a training that fails costs only its own
points.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, as_completed
from dataclasses import replace

from labkit.findings import counted
from labkit.grading.exercise import Key, Trained
from labkit.grading.judge import CaseSet, known_answers
from labkit.grading.sandbox.runner import NotStarted, Runner, packed
from labkit.grading.sandbox.wire import Failure, Instance, Json, load
from labkit.grading.sandbox.worker import Request
from labkit.machine.resources import usable_cores

# The limit of CPU time for one training.
SECONDS = 120.0
# The CPU time of one training on a laptop, with its process, for the estimate.
USUAL_SECONDS = 0.6


class Trainings:
    """The missing trainings; several threads may request some."""

    def __init__(self, runner: Runner, workers: int = 1) -> None:
        self.runner = runner
        self._missing: dict[Key, Trained] = {}
        self._lock = threading.Lock()
        self.at_once = max(1, min(workers, usable_cores()))
        self.limits = replace(runner.limits, seconds=max(SECONDS, runner.limits.seconds))

    def request(self, cases: CaseSet, answers: list[list[Json]]) -> bool:
        """Request what these answers need; return whether trainings decide them."""
        trained = cases.exercise.trained
        if trained is None:
            return False
        known = known_answers(cases, cases.exercise.reference)
        keys = [*trained.needed(cases.cases, answers), *trained.needed(cases.cases, known)]
        with self._lock:
            self._missing |= {key: trained for key in keys if key not in trained.results}
        return True

    def run(self, pool: Executor, progress: Callable[[str], None]) -> None:
        """Run the trainings that were requested and are missing, and report how long they take.

        All requests come before the call.

        Raises:
            NotStarted: FP32 cannot be trained on this machine, so that no recipe is at fault.
        """
        missing = self._missing
        started = time.monotonic()
        reported = 0
        recipes = counted(len({recipe for _, recipe, _ in missing}), "recipe")
        if missing:
            minutes = len(missing) * USUAL_SECONDS / self.at_once / 60
            trainings = counted(len(missing), "training")
            progress(f"{recipes}: {trainings}, about {minutes:.1f} minutes")
        for done, job in enumerate(
            as_completed([pool.submit(self._train, *row) for row in missing.items()]), start=1
        ):
            job.result()
            left = (time.monotonic() - started) / done * (len(missing) - done)
            # After the first few, for an early estimate, and then at each tenth.
            if done in (8, 64) or done * 10 // len(missing) > reported:
                reported = done * 10 // len(missing)
                progress(
                    f"{recipes}: {done} of {len(missing)} trainings; {left / 60:.1f} minutes to go"
                )
        self._missing = {}

    def _train(self, key: Key, trained: Trained) -> None:
        train = trained.train
        program = f"from {train.__module__} import {train.__name__}"
        request = Request(
            "training", [program], train.__name__, "train(task, recipe, seed)", [[packed(key)]]
        )
        (reply,) = self.runner.run([request], self.limits).values()
        why = reply.note or "the training returned nothing"
        try:
            result = load(json.loads(reply.answers[0])[0]) if not reply.note else None
            if isinstance(result, Instance):
                trained.results[key] = trained.result(**result.fields)
                return
            why = result.message if isinstance(result, Failure) else why
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            why = f"the result of the training cannot be read: {error}"
        if key[1] == trained.baseline:
            raise NotStarted(f"task {key[0]!r} cannot be trained here, not even in FP32: {why}")
        trained.results[key] = why
