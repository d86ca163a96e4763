"""Base of the workbench and the live training: what the browser is sent, and what it can ask.

Idea: float32 columns for what may be NaN, JSON for the rest, and new points only, at the browser's pace.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import traitlets

from labkit.amp import ScalerConfig
from labkit.train import CATEGORIES, GPU_TASKS, TASKS, Place, RunRecord, StepRecord, Task
from labkit.widgets.base.number_words import power
from labkit.widgets.bench.controller import Bench, Turn
from labkit.widgets.bench.knobs import (
    ACCUMULATORS,
    EPSILONS,
    FORMATS,
    LOG2_SCALE_RANGE,
    LR_RANGE,
    MASTERS,
    Scaling,
    epsilon_text,
    recipe_of,
    why_fixed,
)
from labkit.widgets.bench.words import names, rates_text, record_of, scene, sentence, static_bench
from labkit.widgets.driven.driver import Send, Sender, enabled, pack
from labkit.widgets.driven.widget import DrivenWidget, offered

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _columns(step: StepRecord) -> tuple[float, ...]:
    sound = math.isfinite(step.loss)  # what NaN underflows to means nothing
    shares = (v if v is not None and sound else math.nan for v in (step.underflow, step.swallowed))
    return (step.loss, step.scale, float(step.stepped), *shares)


def state(bench: Bench) -> dict[str, Any]:
    """Return what the browser shows beside the curves, as JSON that holds no NaN."""
    now = scene(bench)
    return {
        "about": bench.task.about,
        "place": {"key": bench.place.key, "says": bench.place.sentence, "rates": rates_text(bench)},
        "phase": bench.phase.value,
        "enabled": sorted(enabled(bench.phase)),
        "building": bench.building,
        "step": bench.run.done,
        "total": bench.total,
        "active": bench.active,
        **_knobs(bench),
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
        "fork_change": bench.fork_change(),
        "metric_name": bench.task.metric_name,
        "fp32_metric": metric_text(bench, bench.fp32.metrics),
        "skipped": now.skipped,
        "sentence": sentence(now),
        "notice": bench.notice,
    }


def _knobs(bench: Bench) -> dict[str, Any]:
    """Return where the knobs of the branch on show stand, and what cannot be turned."""
    branch, knobs = bench.shown, bench.shown.wanted
    plain = {name: getattr(getattr(knobs, name), "value", getattr(knobs, name)) for name in bench.offered}
    if "epsilon" in plain:
        adams = getattr(bench.task.make_optimizer, "keywords", {}).get("eps", EPSILONS[0])  # the task's, or Adam's own
        plain["epsilon"] = epsilon_text(float(adams) if knobs.epsilon is None else knobs.epsilon)
    return {
        "knobs": plain,
        "fixed": why_fixed(knobs, bench.task, bench.offered),
        "scale": math.log2(branch.scale),
        "scale_text": power(branch.scale),
        "growth_interval": recipe_of(knobs).scaler.growth_interval,
        "rule": rule(recipe_of(knobs).scaler),
    }


def rule(scaler: ScalerConfig) -> str:
    """Say by which rule the scale moves.

    >>> rule(ScalerConfig(growth_interval=25))
    'the scale halves after inf or NaN, and doubles after 25 clean steps'
    """
    if scaler.dynamic:
        bad = "inf or NaN" if scaler.hysteresis == 1 else f"{scaler.hysteresis} steps with inf or NaN"
        grows = f"{_times(scaler.growth_factor)} after {scaler.growth_interval:,} clean steps"
        return f"the scale {_times(scaler.backoff_factor)} after {bad}, and {grows}"
    skips = "steps whose gradients overflow are " + ("skipped" if scaler.skip_on_inf else "taken: nobody looks for inf")
    stays = "the loss is not multiplied" if scaler.init_scale == 1 else "the scale stays where you put it"
    return stays if scaler.init_scale == 1 and scaler.skip_on_inf else f"{stays}; {skips}"


def _times(factor: float) -> str:
    return {0.5: "halves", 2.0: "doubles"}.get(factor, f"is multiplied by {factor:g}")


def tasks(here: Sequence[Place]) -> dict[str, Task]:
    """Return the tasks that are offered; where there is a GPU, those that are worth one too."""
    return {**TASKS, **GPU_TASKS} if any(not each.emulated for each in here) else dict(TASKS)


def positions(bench: Bench) -> dict[str, Any]:
    """Return what the page offers for each knob, and the devices: it knows no number of its own."""
    return {
        "format": list(FORMATS),
        "accumulator": list(ACCUMULATORS),
        "masters": list(MASTERS),
        "scaling": [scaling.value for scaling in Scaling],
        "log2_scale": list(LOG2_SCALE_RANGE),
        "log2_lr": list(LR_RANGE),
        "epsilon": [epsilon_text(epsilon) for epsilon in EPSILONS],
        "categories": list(CATEGORIES),
        "places": offered(bench.place),
    }


def metric_text(bench: Bench, metrics: dict[int, float]) -> str:
    """Return the latest metric at or before the run's step, "" before the first."""
    at = max((step for step in metrics if step <= max(bench.run.done, 1)), default=None)
    return "" if at is None else f"{metrics[at]:.3f}"


class BenchOutbox(Sender):
    """What the browser was told already, and what it must be told next."""

    def __init__(
        self,
        bench: Bench,
        send: Send,
        clock: Callable[[], float] = time.monotonic,
        *,
        state: Callable[[Bench], dict[str, Any]] = state,
    ) -> None:
        self.bench, self.state = bench, state
        super().__init__(send, clock)

    def start_over(self) -> None:
        self._told: list[int] = []
        self._lists: list[object] = []

    def contents(self) -> tuple[dict[str, Any], list[bytes]]:
        b = self.bench
        lists = [branch.steps for branch in (b.fp32, *b.branches)]
        whole = len(lists) != len(self._lists) or any(x is not y for x, y in zip(lists, self._lists, strict=True))
        if whole:
            self._lists, self._told = list(lists), [0] * len(lists)
        new = [steps[told:] for steps, told in zip(lists, self._told, strict=True)]
        self._told = [len(steps) for steps in lists]
        buffers = [pack([s.loss for s in new[0]]), pack([s.loss for s in b.previous] if whole else [])]
        buffers += [pack([_columns(s) for s in steps]) for steps in new[1:]]
        return {"whole": whole, **self.state(b)}, buffers


class BenchWidget(DrivenWidget):
    """What the workbench and the live training share: a bench, its words and its picture."""

    _offers = traitlets.Dict().tag(sync=True)  # what the page offers for each knob

    def __init__(self, bench: Bench, outbox: BenchOutbox) -> None:
        self.bench = bench
        super().__init__(bench, outbox)
        self._offers = positions(bench)

    @property
    def history(self) -> tuple[StepRecord, ...]:
        return tuple(self.bench.run.steps)

    @property
    def sentence(self) -> str:
        return sentence(scene(self.bench))

    def figure(self, why: str = "") -> Figure:
        return static_bench(self.bench, why=why)

    def record(self) -> RunRecord:
        """Return the record of the run whose knobs are on show; it says where it was trained.

        Raises:
            ValueError: nothing has run yet.
        """
        return record_of(self.bench)

    def command(self, content: Mapping[str, Any]) -> Any:
        if content.get("do") == "turn":
            return Turn({content["knob"]: position(content["knob"], content["to"])})
        return super().command(content)


def position(knob: str, to: Any) -> Any:
    """Return a knob's position from what a page or a caller calls it."""
    if knob == "scaling":
        return Scaling(to)
    if knob == "epsilon":
        return next((e for e in EPSILONS if epsilon_text(e) == to), to)
    return to
