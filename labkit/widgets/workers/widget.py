"""A widget that starts four processes, which train one layer together, and draws a lane for each.

torchrun runs `labkit.train.workers` once, as a `LineProcess`. Each press of Train sends one line to
the processes, and each line that they answer fills a column of the lanes. Before the first
training, a recorded one is drawn faintly.

Invariant: the processes train once at a time, and a new training begins only in the phase "ready".
No process outlives the kernel: Stop ends all of them, and they also end when the pipe through which
the kernel writes to them is closed.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict
from typing import Any

import ipywidgets
import torch
import traitlets

from labkit.processes import LineProcess
from labkit.records import device_name, made_on, now, versions
from labkit.records.templates import render
from labkit.train import STEPS, WorkerPlan
from labkit.train.plan import OUTPUTS, WorkerRecord, recorded_workers
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import power, short
from labkit.widgets.base.widget import LabWidget, limited

WORLD = 4
# The number of lines that are kept to find an error in them.
LINES_KEPT = 20
READY = f"{WORLD} processes train one layer together. Press Train."
STARTING = (
    f"torchrun starts {WORLD} processes. Each of them imports torch, which takes some seconds."
)
STOPPING = "The processes are ending. Those that still import torch do so first."
COMMAND = (
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    str(WORLD),
    "-m",
)
# Name -> the format in which gradients are added up, and whether they are divided before it.
WAYS = {
    "FP32": ("FP32", True),
    "FP16, divided before": ("FP16", True),
    "FP16, divided after": ("FP16", False),
}
# What a rank holds -> the name of its colour in the bars.
PARTS = {
    "model weights": "fp16",
    "gradients": "underflowed",
    "master weights": "fp32",
    "momentum": "bf16",
}


def lanes(steps: Sequence[dict[str, Any]], plan: WorkerPlan, recorded: str = "") -> dict[str, Any]:
    """Return the texts that the browser draws: a lane for each rank, a column for each step.

    Args:
        steps: The answers of the processes, as `labkit.train.workers.training` yields them.
        plan: The plan of the training.
        recorded: When and where the training was recorded; "" for one of this kernel.
    """
    world = len(steps[0]["ranks"]) if steps else WORLD
    # FSDP gives each rank the same number of rows, rounded up; the last rank may have fewer.
    each = math.ceil(OUTPUTS / world)
    rows = [f"rows {each * r} to {min(each * r + each, OUTPUTS) - 1}" for r in range(world)]
    return {
        "recorded": recorded,
        "total": STEPS,
        "agree": plan.agree,
        "lanes": rows if plan.sharded else ["all rows"] * world,
        "steps": [_column(step) for step in steps],
    }


def _column(step: dict[str, Any]) -> dict[str, Any]:
    """Return the texts of a step; a rank is apart if its scale is not the most common one."""
    usual = Counter(scale for scale, *_ in step["ranks"]).most_common(1)[0][0]
    ranks = [
        {"scale": power(scale), "stepped": stepped, "found": found, "apart": scale != usual}
        for scale, stepped, found, _ in step["ranks"]
    ]
    return {"step": step["step"], "loss": short(step["loss"]), "ranks": ranks}


def verdict(steps: Sequence[dict[str, Any]], plan: WorkerPlan) -> str:
    """Return a sentence with the result of a training, and the step at which its ranks diverged.

    >>> rank = (1024.0, True, False, 0.5)
    >>> step = {"step": 1, "loss": 0.5, "ranks": [rank] * 2, "sent": 2048, "held": {}}
    >>> print(verdict([step], WorkerPlan()))
    All ranks stepped or skipped as one. Skipped: 0 of 1. The loss ended at 0.5.
    A rank sent 2 KiB a step.
    """
    apart = _first_step_apart(steps)
    scales = [scale for scale, *_ in steps[-1]["ranks"]]
    # The mean gradient has the mean of the scales; a rank divides it by its own scale.
    mean_scale = sum(scales) / len(scales)
    lengths = ", ".join(f"{mean_scale / scale:g}" for scale in scales)
    skipped = 0
    for step in steps:
        if not any(stepped for _, stepped, *_ in step["ranks"]):
            skipped += 1
    first = "All ranks stepped or skipped as one."
    if apart is not None:
        end = f"In the end their steps are {lengths} times as long as they should be."
        first = f"The ranks parted in step {apart}, and no error said so. {end}"
    sent = f" A rank sent {steps[-1]['sent'] / 1024:.0f} KiB a step." if steps[-1]["sent"] else ""
    return (
        f"{first} Skipped: {skipped} of {len(steps)}. The loss ended at "
        f"{steps[-1]['loss']:.4g}.{sent}"
    )


def _first_step_apart(steps: Sequence[dict[str, Any]]) -> int | None:
    """Return the first step at which ranks had different scales, or only some of them stepped."""
    for step in steps:
        states = {(scale, stepped) for scale, stepped, *_ in step["ranks"]}
        if len(states) > 1:
            return int(step["step"])
    return None


def _on_record(*, sharded: bool) -> WorkerRecord | None:
    """Return a recorded training, or None if the user's data folder has no such record."""
    try:
        return recorded_workers(sharded=sharded)
    except FileNotFoundError:
        return None


def memory_bars(workers: Workers) -> ipywidgets.HTML:
    """Return bars with the bytes that a rank held: with all weights, and with a part of them.

    Each is from the last training of its kind, or from a record if there was none.
    """
    bars: list[dict[str, object]] = []
    totals = []
    for sharded, name in ((False, "all weights (DDP)"), (True, "a part (FSDP2)")):
        record = _on_record(sharded=sharded)
        recorded = ""
        if sharded in workers.held_by:
            held = workers.held_by[sharded]
        elif record is not None:
            held = record.steps[-1]["held"]
            recorded = made_on(record.device, record.versions, record.date)
        else:
            continue
        total = sum(held.values())
        totals.append(total)
        bars.append({"name": name, "parts": held, "total": total, "recorded": recorded})
    html = render(
        "widgets/workers/memory_bars.html.jinja",
        bars=bars,
        most=max(totals, default=1),
        colours=PARTS,
        is_complete=workers.held_by.keys() >= {False, True},
    )
    return ipywidgets.HTML(str(html))


def _answer_in(line: str) -> dict[str, Any] | None:
    """Return the answer of the processes in a line; None for other lines, such as errors."""
    if not line.startswith("{"):
        return None
    try:
        answer: dict[str, Any] = json.loads(line)
    except ValueError:
        return None
    return answer


class Workers(LabWidget, folder="workers"):
    """Four processes that train one layer together. The first training starts them.

    Traits to read and set: `agree`, `sharded`, and `way`, one of `WAYS`. To read: `phase` ("ready",
    "training" or "ending"), `sentence`, `steps` (the answers of the last training), and `held_by`
    (for each value of `sharded`, the bytes of one rank by their purpose).

    Args:
        command: The command that starts the processes; None for torchrun with
            `labkit.train.workers`.

    Raises:
        TraitError: `way` is not one of `WAYS`.
    """

    agree = traitlets.Bool(True).tag(sync=True)
    sharded = traitlets.Bool(True).tag(sync=True)
    way = traitlets.Unicode("FP32").tag(sync=True)
    phase = traitlets.Unicode("ready").tag(sync=True)
    sentence = traitlets.Unicode(READY).tag(sync=True)
    _ways = traitlets.List(list(WAYS)).tag(sync=True)
    _lanes = traitlets.Dict().tag(sync=True)

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or (*COMMAND, "labkit.train.workers"))
        self._process: LineProcess | None = None
        # The last lines of the processes that are not answers, such as errors.
        self._output: list[str] = []
        self._stopped = False
        # Whether `_on_end` was called for the last process, whose thread may still be alive.
        self._ended = False
        # The plan of the training that is shown.
        self._plan = WorkerPlan()
        self.steps: list[dict[str, Any]] = []
        self.held_by: dict[bool, dict[str, int]] = {}
        record = _on_record(sharded=True)
        sentence = READY
        shown = lanes((), self._plan)
        if record is not None:
            made = made_on(record.device, record.versions, record.date)
            shown = lanes(record.steps, record.plan, f"recorded: {made}")
            sentence = f"{READY} Drawn faintly, from a record: {verdict(record.steps, record.plan)}"
        super().__init__(_lanes=shown, sentence=sentence)
        self.on_msg(self._on_message)

    @limited("way")
    def _known(self) -> dict[str, Collection[Any]]:
        return {"way": WAYS}

    @property
    def plan(self) -> WorkerPlan:
        """The plan of the next training, by the current traits."""
        reduce, predivide = WAYS[self.way]
        return WorkerPlan(self.agree, self.sharded, reduce, predivide)

    def train(self) -> None:
        """Let the processes train by `plan`; start them first if they do not run.

        Except in the phase "ready" this does nothing.

        Raises:
            OSError: The command cannot be started.
        """
        if self.phase != "ready":
            return
        self.steps = []
        self._plan = self.plan
        self._lanes = lanes((), self._plan)
        # Before the start: processes that end at once call `_on_end`, which sets the phase again.
        self.phase = "training"
        if self._process is None or self._ended or not self._process.running:
            self._process = self._start()
        self._process.tell(json.dumps(asdict(self._plan)))

    def _start(self) -> LineProcess:
        """Start the processes."""
        self._output = []
        self._stopped = False
        self._ended = False
        self.sentence = STARTING
        try:
            return LineProcess(self._command, on_line=self._on_line, on_end=self._on_end)
        except OSError as error:
            self.sentence = f"The processes could not be started: {error}"
            self.phase = "ready"
            raise

    def stop(self) -> None:
        """End all processes after their current training. The next `train` starts them again."""
        if self._process is not None and self._process.running:
            self._stopped = True
            self.phase = "ending"
            self.sentence = STOPPING
            self._process.end_input()

    def record(self) -> WorkerRecord:
        """Return the record of the last training.

        Raises:
            ValueError: there was none.
        """
        if not self.steps:
            raise ValueError("expected a training, got none; press Train first")
        where = device_name(torch.device("cpu")), versions(), now()
        return WorkerRecord(self._plan, tuple(self.steps), *where)

    def page_state(self) -> dict[str, Any]:
        """Return the state with a sentence about the record: a page has no processes to start."""
        record = _on_record(sharded=True)
        sentence = f"{WORLD} processes train one layer together. "
        if record is not None:
            sentence += verdict(record.steps, record.plan)
        return {**super().page_state(), "sentence": sentence}

    def still(self) -> dict[str, Any]:
        return still(self.sentence, why_still("to start the processes, or call workers.train()"))

    def _on_message(self, _: object, content: dict[str, Any], __: object) -> None:
        match content.get("do"):
            case "train" if self.phase == "ready":
                self.train()
            case "stop":
                self.stop()

    def _on_line(self, printed: bytes) -> None:
        line = printed.decode(errors="replace").rstrip("\r\n")
        answer = _answer_in(line)
        if answer is None:
            self._output = [*self._output, line][-LINES_KEPT:]
        elif "ready" in answer:
            self.sentence = f"{WORLD} processes train one layer together."
        elif "step" in answer:
            self.steps.append(answer)
            self._lanes = lanes(self.steps, self._plan)
        elif "done" in answer:
            self.held_by[answer["done"]["sharded"]] = self.steps[-1]["held"]
            self.sentence = verdict(self.steps, self._plan)
            # After Stop, this was the last training of processes that are about to end.
            if not self._stopped:
                self.phase = "ready"

    def _on_end(self, _: int) -> None:
        self._ended = True
        if self._stopped:
            self.sentence = "Stopped: no process is left. Train starts them again."
        else:
            errors = [line for line in self._output if "Error" in line or "RankLost" in line]
            why = errors[-1] if errors else "torchrun said nothing"
            self.sentence = f"The processes ended by themselves: {why}"
        self.phase = "ready"

    @property
    def running(self) -> bool:
        """Whether the processes exist."""
        return self._process is not None and self._process.running

    def close(self) -> None:
        # ipywidgets also closes a widget whose constructor failed.
        if hasattr(self, "held_by"):
            self.stop()
            if self._process is not None:
                self._process.wait(10.0)
                self._process.kill()
                self._process.wait(10.0)
        super().close()
