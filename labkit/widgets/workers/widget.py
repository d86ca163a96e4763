"""Four processes that train one layer together, started from a notebook, and a table of what each did.

Idea: torchrun runs `labkit.train.workers` once, a `BackgroundProcess`; each press of Train sends them one line, and
their answers fill a table. ipywidgets' own controls do for that, and a script that keeps their keys inside.

Invariant: no process is left: not after Stop, which ends all of them, and not after the kernel's end, of whatever
kind, since they read from it and end when it does.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

import ipywidgets

from labkit.train import STEPS, WorkerPlan
from labkit.widgets.base.figures import RAISED
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.gpu_run.widget import BackgroundProcess

CELL = "padding: 1px 10px; text-align: right"
SHADES = {"stepped": "", "skipped": "; background: var(--jp-warn-color3); color: black"}
BAR = "display: inline-block; height: 1em; background: "
PARTS = {"model weights": "#0072B2", "gradients": "#E69F00", "master weights": "#777777", "momentum": "#009E73"}
WORLD = 4
READY = f"{WORLD} processes train one layer together. Press Train."
STARTING = f"torchrun starts {WORLD} processes. Each of them imports torch, which takes some seconds."
STOPPING = "The processes are ending. Those that still import torch do so first."
COMMAND = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(WORLD), "-m")
WAYS = {"FP32": ("FP32", True), "FP16, divided before": ("FP16", True), "FP16, divided after": ("FP16", False)}


def table(steps: Sequence[dict[str, Any]]) -> str:
    """Return a table: a row for each step, a cell for each rank with its scale, and a mark where it skipped."""
    world = len(steps[0]["ranks"])
    head = "".join(f'<th style="{CELL}">{word}</th>' for word in ("step", "loss", *(f"rank {r}" for r in range(world))))
    rows = ""
    for step in steps:
        cells = [_cell(str(step["step"])), _cell(f"{step['loss']:.4g}")]
        for scale, stepped, found, _ in step["ranks"]:
            did = "stepped" if stepped else "skipped"
            power = "2" + f"{math.log2(scale):.0f}".translate(RAISED)
            cells.append(_cell(f"{power} {did}{' (inf here)' if found else ''}", SHADES[did]))
        rows += f"<tr>{''.join(cells)}</tr>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _cell(text: str, style: str = "") -> str:
    return f'<td style="{CELL}{style}">{escape(text)}</td>'


def verdict(steps: Sequence[dict[str, Any]], plan: WorkerPlan) -> str:
    """Say what came of a training, and where its ranks parted.

    >>> rank = (1024.0, True, False, 0.5)
    >>> verdict([{"step": 1, "loss": 0.5, "ranks": [rank] * 2, "sent": 2048, "held": {}}], WorkerPlan())
    'All ranks stepped or skipped as one. Skipped: 0 of 1. The loss ended at 0.5. A rank sent 2 KiB a step.'
    """
    apart = next((s["step"] for s in steps if len({(scale, stepped) for scale, stepped, *_ in s["ranks"]}) > 1), None)
    scales = [scale for scale, *_ in steps[-1]["ranks"]]
    lengths = ", ".join(f"{sum(scales) / len(scales) / scale:g}" for scale in scales)
    skipped = sum(not any(stepped for _, stepped, *_ in s["ranks"]) for s in steps)
    first = "All ranks stepped or skipped as one."
    if apart is not None:
        end = f"In the end their steps are {lengths} times as long as they should be."
        first = f"The ranks parted in step {apart}, and no error said so. {end}"
    sent = f" A rank sent {steps[-1]['sent'] / 1024:.0f} KiB a step." if steps[-1]["sent"] else ""
    return f"{first} Skipped: {skipped} of {len(steps)}. The loss ended at {steps[-1]['loss']:.4g}.{sent}"


def memory_bars(workers: Workers) -> ipywidgets.HTML:
    """Return bars of the bytes that one rank held in the last training of each way; a sentence where one is missing."""
    held = workers.held_by
    if len(held) < 2:
        again = "Train once with each rank holding a part, and once with each holding all; then run this cell again."
        return ipywidgets.HTML(again)
    most, rows = max(sum(parts.values()) for parts in held.values()), ""
    for name, parts in (("all weights (DDP)", held[False]), ("a part (FSDP2)", held[True])):
        bar = "".join(
            f'<span title="{part}: {size:,} bytes" style="{BAR}{PARTS[part]}; width: {30 * size / most:.2f}em"></span>'
            for part, size in parts.items()
        )
        total = sum(parts.values())
        rows += f"<tr>{_cell(name)}<td>{bar}</td>{_cell(f'{total:,} bytes')}</tr>"
    key = " ".join(f'<span style="{BAR}{colour}; width: 1em"></span> {part}' for part, colour in PARTS.items())
    return ipywidgets.HTML(f"<table>{rows}</table><div>{key}</div>")


class _KeysInside(LabWidget, folders=("workers",)):
    """Nothing to see: it keeps the keys that are pressed in the box around it from the notebook."""


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
        self.sentence = ipywidgets.HTML(READY)
        self.table = ipywidgets.HTML()
        self.train_button.on_click(lambda _: self.train())
        self.stop_button.on_click(lambda _: self.stop())
        rows = [[self.held, self.reduce], [self.agree], [self.train_button, self.stop_button, self.bar]]
        super().__init__([*map(ipywidgets.HBox, rows), self.sentence, self.table, _KeysInside()])
        self.add_class("labkit-workers")

    @property
    def plan(self) -> WorkerPlan:
        reduce, predivide = self.reduce.value
        return WorkerPlan(self.agree.value, self.held.value, reduce, predivide)

    def train(self) -> None:
        """Let the processes train by the plan; start them where they do not run."""
        if self._process is None or not self._process.running:
            self._said, self._stopped, self.sentence.value = [], False, STARTING
            self._process = BackgroundProcess(self._command, self._on_line, self._on_end)
        self.train_button.disabled, self.stop_button.disabled = True, False
        self.steps, self.bar.value = [], 0
        self._process.tell(json.dumps(asdict(self.plan)))

    def stop(self) -> None:
        """Let all processes end, after the training that they are in; the next Train starts them again."""
        if self._process is not None and self._process.running:
            self._stopped = self.stop_button.disabled = True
            self.sentence.value = STOPPING
            self._process.end_input()

    def _on_line(self, line: str) -> None:
        if not line.startswith("{"):  # what torchrun and errors say
            self._said = [*self._said, line][-20:]
            return
        answer = json.loads(line)
        if "ready" in answer:
            self.sentence.value = READY
        elif "step" in answer:
            self.steps.append(answer)
            self.bar.value = answer["step"]
            self.table.value = table(self.steps)
        elif "done" in answer:
            self.held_by[answer["done"]["sharded"]] = self.steps[-1]["held"]
            self.sentence.value = verdict(self.steps, WorkerPlan(**answer["done"]))
            self.train_button.disabled = False

    def _on_end(self, _: int) -> None:
        self.train_button.disabled, self.stop_button.disabled = False, True
        why = next((s for s in reversed(self._said) if "Error" in s or "RankLost" in s), "torchrun said nothing")
        stopped = "Stopped: no process is left. Train starts them again."
        self.sentence.value = stopped if self._stopped else f"The processes ended by themselves: {escape(why)}"

    def close(self) -> None:
        self.stop()
        if self._process is not None:
            self._process.wait(10.0)
            self._process.stop()
            self._process.wait(10.0)
        super().close()
