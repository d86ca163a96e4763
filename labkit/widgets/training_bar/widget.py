"""A whole training run behind a progress bar and a button that stops it.

`labkit.train.train` runs in a thread, so that the kernel stays free to receive the message of the
Stop button.

Invariant: a bar trains once. The training ends with a record, or with an error that is shown.
"""

from __future__ import annotations

import math
import threading
from typing import Any

import torch
import traitlets

from labkit.amp import RECIPES, Recipe
from labkit.findings import counted
from labkit.train import (
    Place,
    RunRecord,
    StepRecord,
    Task,
    place,
    steps_per_second,
    throughput_sentence,
    train,
)
from labkit.widgets.base.figures import still
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.driven.widget import between_cells, on

# About the number of losses that are drawn.
POINTS = 100


class TrainingBar(LabWidget, folder="training_bar"):
    """Training of a task under a recipe that Start begins, with a small picture of its loss.

    Attributes:
        record: The record of the run; None until it has ended.
        place: The device on which it trains.

    Args:
        task: The task, as in `labkit.train.train`.
        recipe: The recipe, as in `labkit.train.train`.
        seed: The seed, as in `labkit.train.train`.
        steps: The number of steps; None for the task's own number.
        device: The device, as in `labkit.train.place`; None for the GPU if there is one.
        **options: Further arguments of `train`: `measure_every`, `watch`.
    """

    done = traitlets.Int(0).tag(sync=True)
    total = traitlets.Int().tag(sync=True)
    # ready, running, finished, stopped, failed
    phase = traitlets.Unicode("ready").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    # The loss of some steps; None if it is inf or NaN.
    losses: traitlets.List[float | None] = traitlets.List().tag(sync=True)
    # What the browser asks for: "start" or "stop".
    wanted = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        seed: int = 0,
        *,
        steps: int | None = None,
        device: torch.device | str | Place | None = None,
        **options: Any,
    ) -> None:
        self.record: RunRecord | None = None
        self._what = (task, recipe, seed)
        self.place = place(device)
        self._options = {**options, "device": self.place}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        total = task.steps if steps is None else steps
        name = f"{task.name.replace('_', ' ')} under {recipe.name}, seed {seed}"
        steps_here = f"{counted(total, 'step')} on {on(self.place)}"
        super().__init__(total=total, sentence=f"Ready to train {name}: {steps_here}.")
        self.on_msg(self._on_message)
        between_cells(self._leave)

    def start(self) -> None:
        """Start the run. A further call does nothing."""
        if self.phase == "ready":
            self.phase = "running"
            self._thread.start()

    def stop(self) -> None:
        """End the run after its current step. Its record then has `stopped`."""
        self._stop.set()

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("do") == "unseen":
            self._leave()

    def _leave(self) -> None:
        """Stop the run at an Interrupt, or when all its views have left the page.

        A run that has not started can be started later.
        """
        if self.phase == "running":
            self.stop()

    def wait(self, timeout_s: float | None = None) -> RunRecord | None:
        """Wait for the end of a started run and return its record.

        Args:
            timeout_s: The longest time to wait; None for no limit.

        Returns:
            The record; None if the training failed, or has not ended by then.

        Raises:
            RuntimeError: The run was not started.
        """
        if self.phase == "ready":
            raise RuntimeError("the run was not started; call start() first")
        self._thread.join(timeout_s)
        return self.record

    def still(self) -> dict[str, Any]:
        return still(
            self.sentence,
            "(Widgets do not run here: call .start(), then .wait(), and look at .record.)",
        )

    @traitlets.observe("wanted")
    def _start_or_stop(self, change: dict[str, Any]) -> None:
        if change["new"] == "start":
            self.start()
        elif change["new"] == "stop":
            self.stop()

    def _run(self) -> None:
        try:
            stop = self._stop.is_set
            self.record = train(
                *self._what, steps=self.total, progress=self._tell, stop=stop, **self._options
            )
            self.sentence = verdict(self.record)
            recipes = dict.fromkeys((RECIPES["FP32"], self._what[1]))
            paces: dict[str, float] = {}
            # The pace is measured in further steps, which alternate with those of FP32.
            if not self.record.stopped:
                paces = steps_per_second(
                    self._what[0], recipes, device=self.place, steps=2, stop=stop
                )
        except Exception as error:
            # An exception in a thread has no caller, so the figure shows it.
            self.sentence = f"It failed: {type(error).__name__}: {error}"
            self.phase = "failed"
            return
        throughput = f" {throughput_sentence(paces, self.record.device)}" if paces else ""
        self.sentence = f"{verdict(self.record)}{throughput} It ran on {on(self.place)}."
        self.phase = "stopped" if self.record.stopped else "finished"

    def _tell(self, step: StepRecord) -> None:
        self.done = step.step
        if step.step % max(1, self.total // POINTS) == 0:
            self.losses = [*self.losses, step.loss if math.isfinite(step.loss) else None]
        self.sentence = f"Step {step.step} of {self.total}: loss {step.loss:.4g}."


def verdict(record: RunRecord) -> str:
    """Say in a sentence how a run ended.

    >>> when = "2026-01-01"
    >>> run = ("digits", "FP32", 0, (), 0.1, "accuracy", 0.2, "CPU", {}, when)
    >>> verdict(RunRecord(*run, stopped=True))
    'Stopped after 0 steps and 0.2 s: accuracy 0.100.'
    """
    how = "Stopped" if record.stopped else "Finished"
    skipped = f", {record.skipped} of them skipped" if record.skipped else ""
    steps = counted(len(record.steps), "step")
    after = f"after {steps}{skipped} and {record.seconds:.1f} s"
    return f"{how} {after}: {record.metric_name} {record.metric:.3f}."
