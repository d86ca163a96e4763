"""What is the browser told of the workbench? New points only, and the state of knobs, memory and words beside them.

Idea: as the live training's outbox: float32 columns for what may be NaN, JSON for the rest, at the browser's pace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from labkit.train import CATEGORIES, TASKS, StepRecord
from labkit.widgets.live.outbox import Send, Sender, pack
from labkit.widgets.live.state import enabled
from labkit.widgets.workbench.controller import Bench, names
from labkit.widgets.workbench.knobs import EPSILONS, PRESETS, Knobs, epsilon_text, preset_of, recipe_of, why_fixed
from labkit.widgets.workbench.lines import torch_lines
from labkit.widgets.workbench.words import sentence

UNITS = (("MB", 1e6), ("kB", 1e3), ("bytes", 1.0))


class BenchOutbox(Sender):
    """What the browser was told already, and what it must be told next."""

    def __init__(self, bench: Bench, send: Send, clock: Callable[[], float] = time.monotonic) -> None:
        self.bench = bench
        super().__init__(send, clock)

    def forget(self) -> None:
        """Tell everything from the start with the next frame."""
        self._told: list[int] = []
        self._lists: list[object] = []

    def contents(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the points since the last frame, and the state beside them."""
        b = self.bench
        lists = [branch.steps for branch in (b.fp32, *b.branches)]
        whole = len(lists) != len(self._lists) or any(x is not y for x, y in zip(lists, self._lists, strict=True))
        if whole:
            self._lists, self._told = list(lists), [0] * len(lists)
        new = [steps[told:] for steps, told in zip(lists, self._told, strict=True)]
        self._told = [len(steps) for steps in lists]
        buffers = [pack([s.loss for s in new[0]]), pack([s.loss for s in b.previous] if whole else [])]
        buffers += [pack([_columns(s) for s in steps]) for steps in new[1:]]
        return {"whole": whole, **state(b)}, buffers


def _columns(step: StepRecord) -> tuple[float, ...]:
    sound = math.isfinite(step.loss)  # what NaN underflows to means nothing
    shares = (v if v is not None and sound else math.nan for v in (step.underflow, step.swallowed))
    return (step.loss, step.scale, float(step.stepped), *shares)


def state(bench: Bench) -> dict[str, Any]:
    """Return what the browser shows beside the curves, as JSON that holds no NaN."""
    turned = bench.turned.wanted
    return {
        "title": f"Workbench: {bench.task.name.replace('_', ' ')}, seed {bench.seed}",
        "about": bench.task.about,
        "task": bench.task.name,
        "tasks": list(TASKS),
        "recipe": preset_of(recipe_of(turned)),
        "recipes": list(PRESETS),
        "phase": bench.phase.value,
        "enabled": sorted(enabled(bench.phase)),
        "building": bench.building,
        "step": bench.run.done,
        "total": bench.total,
        "active": bench.active,
        "knobs": _positions(turned),
        "fixed": why_fixed(turned, bench.task),
        "branches": [
            {
                "name": name,
                "format": branch.wanted.format,
                "origin": branch.origin,
                "marks": [{"step": mark.step, "label": mark.label} for mark in branch.marks],
                "metric": metric_text(bench, branch.metrics),
            }
            for name, branch in zip(names(bench), bench.branches, strict=True)
        ],
        "parted": bench.parted(),
        "metric_name": bench.task.metric_name,
        "fp32_metric": metric_text(bench, bench.fp32.metrics),
        "memory": memory_rows(bench),
        "lines": torch_lines(turned, bench.task),
        "sentence": sentence(bench),
        "notice": bench.notice,
    }


def _positions(knobs: Knobs) -> dict[str, Any]:
    plain = {name: getattr(value, "value", value) for name, value in vars(knobs).items()}
    return {**plain, "epsilon": epsilon_text(knobs.epsilon), "epsilons": [epsilon_text(e) for e in EPSILONS]}


def metric_text(bench: Bench, metrics: dict[int, float]) -> str:
    """Return the latest metric at or before the run's step, "" before the first."""
    at = max((step for step in metrics if step <= max(bench.run.done, 1)), default=None)
    return "" if at is None else f"{metrics[at]:.3f}"


def memory_rows(bench: Bench) -> list[dict[str, Any]]:
    """Return for each run its bytes by category, as numbers and as text."""
    return [
        {
            "name": name,
            "bytes": [held[category] for category in CATEGORIES],
            "texts": [f"{category} {size(held[category])}" for category in CATEGORIES],
            "total": size(sum(held.values())),
        }
        for name, held in bench.memory()
    ]


def size(count: int) -> str:
    """Return a number of bytes as a person reads it.

    >>> size(104_488), size(12)
    ('104 kB', '12 bytes')
    """
    unit, divisor = next((u for u in UNITS if count >= u[1]), UNITS[-1])
    return f"{count / divisor:.3g} {unit}"
