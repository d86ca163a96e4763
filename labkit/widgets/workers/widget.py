"""What do four processes decide? Start them from a notebook, choose how they work together, and read what each did.

Idea: torchrun runs `labkit.train.workers` once, a `BackgroundProcess`; each press of Train sends them one line,
and their answers fill a table. ipywidgets' own controls do for that, and a script that keeps their keys inside.

Invariant: no process is left: not after Stop, which ends all of them, and not after the kernel's end, of whatever kind,
since they read from it and end when it does.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import ipywidgets

from labkit.train import STEPS, Plan
from labkit.widgets.base.assets import script
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.gpu_run.process import BackgroundProcess
from labkit.widgets.workers import words

WORLD = 4
COMMAND = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD), "-m")
WAYS = {"FP32": ("FP32", True), "FP16, divided before": ("FP16", True), "FP16, divided after": ("FP16", False)}


class _KeysInside(LabWidget):
    """Nothing to see: it keeps the keys that are pressed in the box around it from the notebook."""

    _esm = script("workers")


class Workers(ipywidgets.VBox):  # type: ignore[misc]
    """Four processes, started at the first Train; `steps` is what they answered in the last training.

    Args:
        command: what starts them; None is torchrun with `labkit.train.workers`.
    """

    def __init__(self, command: Sequence[str] | None = None) -> None:
        self._command = tuple(command or (*COMMAND, "labkit.train.workers"))
        self._process: BackgroundProcess | None = None
        self._said: list[str] = []
        self._stopped = False
        self.steps: list[dict[str, Any]] = []
        self.held_by: dict[bool, dict[str, int]] = {}  # sharded -> bytes of one rank, by what they are
        wide = {"style": {"description_width": "initial"}, "layout": ipywidgets.Layout(width="auto")}
        self.agree = ipywidgets.Checkbox(True, description="the ranks agree on found_inf", indent=False)
        self.held = ipywidgets.Dropdown(
            options={"a part (FSDP2)": True, "all weights (DDP)": False}, description="each rank holds", **wide
        )
        self.reduce = ipywidgets.Dropdown(options=WAYS, description="gradients are added up in", **wide)
        self.train_button = ipywidgets.Button(description="Train", button_style="primary")
        self.stop_button = ipywidgets.Button(description="Stop", disabled=True)
        self.bar = ipywidgets.IntProgress(0, 0, STEPS)
        self.sentence = ipywidgets.HTML(words.ready(WORLD))
        self.table = ipywidgets.HTML()
        self.train_button.on_click(lambda _: self.train())
        self.stop_button.on_click(lambda _: self.stop())
        rows = [[self.held, self.reduce], [self.agree], [self.train_button, self.stop_button, self.bar]]
        super().__init__([*map(ipywidgets.HBox, rows), self.sentence, self.table, _KeysInside()])
        self.add_class("labkit-workers")

    @property
    def plan(self) -> Plan:
        """What the controls say."""
        reduce, predivide = self.reduce.value
        return Plan(self.agree.value, self.held.value, reduce, predivide)

    def train(self) -> None:
        """Let the processes train by the plan; start them where they do not run."""
        if self._process is None or not self._process.running:
            self._said, self._stopped, self.sentence.value = [], False, words.starting(WORLD)
            self._process = BackgroundProcess(self._command, self._on_line, self._on_end)
        self.train_button.disabled, self.stop_button.disabled = True, False
        self.steps, self.bar.value = [], 0
        self._process.tell(json.dumps(asdict(self.plan)))

    def stop(self) -> None:
        """Let all processes end, after the training that they are in; the next Train starts them again."""
        if self._process is not None and self._process.running:
            self._stopped, self.stop_button.disabled = True, True
            self.sentence.value = words.stopping()
            self._process.end_input()

    def _on_line(self, line: str) -> None:
        if not line.startswith("{"):  # what torchrun and errors say
            self._said = [*self._said, line][-20:]
            return
        answer = json.loads(line)
        if "ready" in answer:
            self.sentence.value = words.ready(WORLD)
        elif "step" in answer:
            self.steps.append(answer)
            self.bar.value = answer["step"]
            self.table.value = words.table(self.steps)
        elif "done" in answer:
            self.held_by[answer["done"]["sharded"]] = self.steps[-1]["held"]
            self.sentence.value = words.verdict(self.steps, Plan(**answer["done"]))
            self.train_button.disabled = False

    def _on_end(self, _: int) -> None:
        self.train_button.disabled, self.stop_button.disabled = False, True
        self.sentence.value = words.ended(self._stopped, self._said)

    def close(self) -> None:
        """End the processes with the widget."""
        self.stop()
        if self._process is not None:
            self._process.wait(10.0)
            self._process.stop()
            self._process.wait(10.0)
        super().close()


def memory_bars(workers: Workers) -> ipywidgets.HTML:
    """Return bars of the bytes that one rank held in the last training of each way; a sentence where one is missing."""
    return ipywidgets.HTML(words.bars(workers.held_by))
