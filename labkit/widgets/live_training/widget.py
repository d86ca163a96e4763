"""Live training: what the browser is sent, and what it can request.

The workbench is a live training with every knob.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import traitlets

from labkit.amp import DYNAMIC, RECIPES, Recipe, ScalerConfig
from labkit.formats import FORMATS, FP16, FP32, Format
from labkit.instrument import GradSnapshot
from labkit.records import made_on
from labkit.train import (
    CATEGORIES,
    GPU_TASKS,
    TASKS,
    Picture,
    Place,
    RunRecord,
    Task,
    TrainingRun,
    bytes_held,
    places,
)
from labkit.train.run import Example
from labkit.widgets.base.figures import why_still
from labkit.widgets.base.number_words import counted
from labkit.widgets.driven.controller import Command, pack
from labkit.widgets.driven.widget import DrivenWidget, member_of, row_of
from labkit.widgets.exact.rows import format_row
from labkit.widgets.live_training.branch import MAP_SCALES, map_row
from labkit.widgets.live_training.forked_run import (
    ForkedRun,
    MakeRun,
    columns,
)
from labkit.widgets.live_training.forks import origin, recorded_exponents, recorded_forks
from labkit.widgets.live_training.knobs import (
    DEFAULT_LOG2_SCALE,
    EPSILONS,
    GROWTH_INTERVAL,
    MASTERS,
    POSITIONS,
    Scaling,
    describe,
    epsilon_text,
    operands,
    recipe_of,
    why_fixed,
)
from labkit.widgets.live_training.words import (
    names,
    rates_text,
    record_sentence,
    sentence,
    static_training,
)
from labkit.widgets.underflow.widget import rows, windows

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rule(scaler: ScalerConfig) -> str:
    """Say by which rule the scale moves.

    >>> rule(ScalerConfig(growth_interval=25))
    'the scale halves after inf or NaN, and doubles after 25 clean steps'
    """
    if scaler.dynamic:
        bad = "inf or NaN"
        if scaler.hysteresis > 1:
            bad = f"{scaler.hysteresis} steps with inf or NaN"
        clean = counted(scaler.growth_interval, "clean step")
        return (
            f"the scale {_times(scaler.backoff_factor)} after {bad}, and "
            f"{_times(scaler.growth_factor)} after {clean}"
        )
    if scaler.init_scale == 1 and scaler.skip_on_inf:
        return "the loss is not multiplied"
    stays = "the scale stays where you put it"
    if scaler.init_scale == 1:
        stays = "the loss is not multiplied"
    if scaler.skip_on_inf:
        return f"{stays}; steps whose gradients overflow are skipped"
    return f"{stays}; steps whose gradients overflow are applied, since inf is not looked for"


def _epsilon_of(task: Task) -> float:
    """Return the epsilon of a task's optimizer.

    That is the one of its `functools.partial`; of another function, which does not tell, Adam's
    default.
    """
    options = getattr(task.make_optimizer, "keywords", {})
    return float(options.get("eps", EPSILONS[0]))


def _times(factor: float) -> str:
    return {0.5: "halves", 2.0: "doubles"}.get(factor, f"is multiplied by {factor:g}")


def tasks(here: Sequence[Place]) -> dict[str, Task]:
    """Return the tasks that are offered, with a GPU also those that are worth one."""
    return {**TASKS, **GPU_TASKS} if any(not each.emulated for each in here) else dict(TASKS)


def _made_on(record: RunRecord) -> str:
    return f"recorded: {made_on(record.device, record.versions, record.date)}"


def position(knob: str, to: Any) -> Any:
    """Return a knob's position from what a page or a caller calls it."""
    if knob == "scaling":
        return member_of(Scaling, to, "scaling")
    if knob == "masters" and isinstance(to, bool):
        return MASTERS[0] if to else MASTERS[1]
    if knob == "epsilon":
        return next((e for e in EPSILONS if epsilon_text(e) == to), to)
    return to


def _examples(run: Any, row: Mapping[str, Any]) -> list[Example | None]:
    """Return one gradient of a layer for each of its counts.

    A run of one's own may have kept none.
    """
    kept = getattr(run, "examples", {}).get(row["name"], {})
    return [kept.get(row["lo"] + place) for place in range(len(row["counts"]))]


class LiveTraining(DrivenWidget, folder="live_training"):
    """A training that runs while you change it, beside the FP32 run of the same seed.

    Args:
        task: what to learn; a name in `TASKS` (before a GPU, in `GPU_TASKS` too), or a Task.
        recipe: in which precision; a name in `RECIPES`, or a Recipe. The controls start at
            its settings.
        seed: decides first weights and batches, of both runs.
        steps: how many; None takes the task's own number.
        device: where to train: "gpu", "cpu"; None takes the GPU if there is one.
        growth_interval: clean steps before a dynamic scale doubles. None: the recipe's own, or 25
            where dynamic scaling is switched on here. (torch's 2,000 never happen in a short run.).
        make_run: (task, recipe, seed, device=) -> run, for those who bring their own.
        sketch: offer to sketch the loss before the first step; the training draws over it.
            `sketched` then holds what was drawn, as [step, loss] pairs.

    Everything the learner can press is here for code too: `press("start")`,
    `change(scaling="dynamic", log2_scale=12)`, `back(60)`.

    Raises:
        ValueError: an unknown task, recipe or device, or a scale that the slider cannot show.

    >>> live = LiveTraining("digits", "FP16 static", seed=1, steps=20, device="cpu")
    >>> live.phase, live.history
    (<Phase.IDLE: 'idle'>, ())
    >>> live.sentence[:67]
    'Nothing has run yet. Press Start: FP16 with a static scale of 2^10 '
    >>> live.close()
    """

    title: ClassVar[str] = "Live training"
    # its knobs
    offered: ClassVar[tuple[str, ...]] = ("scaling", "log2_scale", "masters")
    forkable: ClassVar[bool] = False
    # [step, loss] pairs, by step
    sketched: traitlets.List[list[float]] = traitlets.List().tag(sync=True)
    why_static = why_still(
        'for its buttons, or go on in code: live.press("start"), '
        'live.change(scaling="off"), live.figure()'
    )

    def __init__(
        self,
        task: Task | str = "segmentation_small",
        recipe: Recipe | str = "FP16",
        seed: int = 0,
        *,
        steps: int | None = None,
        device: Any = None,
        growth_interval: int | None = None,
        make_run: MakeRun = TrainingRun,
        sketch: bool = False,
    ) -> None:
        chosen = row_of(RECIPES, recipe, "recipe")
        if growth_interval is not None:
            scaler = chosen.scaler if chosen.scaler.dynamic else DYNAMIC
            # refuses what is not an interval
            scaler = replace(scaler, growth_interval=growth_interval)
            chosen = replace(chosen, scaler=scaler) if chosen.scaler.dynamic else chosen
        self._measured: tuple[GradSnapshot, Format, dict[str, Any]] | None = None
        self.forked_run = ForkedRun(
            row_of(tasks(places()), task, "task"),
            chosen,
            seed,
            steps=steps,
            device=device,
            offered=self.offered,
            forkable=self.forkable,
            growth_interval=GROWTH_INTERVAL if growth_interval is None else growth_interval,
            make_run=make_run,
        )
        ends = {
            name: [there[0], there[-1]]
            for name, there in POSITIONS.items()
            if isinstance(there, range)
        }
        named = {
            name: list(map(str, POSITIONS[name]))
            for name in ("format", "accumulator", "masters", "scaling")
        }
        epsilons = [epsilon_text(epsilon) for epsilon in EPSILONS]
        super().__init__(
            self.forked_run,
            **named,
            **ends,
            epsilon=epsilons,
            categories=list(CATEGORIES),
            sketch=sketch,
        )

    @traitlets.validate("sketched")
    def _valid_sketch(self, proposal: dict[str, Any]) -> list[list[float]]:
        try:
            pairs = [[int(step), float(loss)] for step, loss in proposal["value"]]
        except (TypeError, ValueError):
            pairs = [[0, math.nan]]
        steps = [step for step, _ in pairs]
        losses = [loss for _, loss in pairs]
        total = self.forked_run.total
        in_order = steps == sorted(set(steps)) and all(1 <= step <= total for step in steps)
        if not in_order or not all(0 < loss < math.inf for loss in losses):
            raise traitlets.TraitError(
                "sketched: expected pairs of a step and a loss above 0, in the order of "
                f"their steps from 1 to {total}, got {proposal['value']!r}"
            )
        return pairs

    def change(
        self,
        *,
        scaling: str | None = None,
        log2_scale: int | None = None,
        master_weights: bool | None = None,
    ) -> None:
        """Change these knobs from the next step on; return at once."""
        asked = {"scaling": scaling, "log2_scale": log2_scale, "masters": master_weights}
        knobs = {knob: position(knob, to) for knob, to in asked.items() if to is not None}
        self.forked_run.ask(partial(self.forked_run.turn, knobs))

    def back(self, step: int) -> None:
        """Put the run back to a step that it has done.

        What came after stays as a faint curve. Returns at once.
        """
        self.forked_run.ask(partial(self.forked_run.go_back, step))

    def page_records(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the recorded forks of this run, with a static scale switched on, for a page.

        `forks` is a list in the order of `origin`, the steps before the switch. `buffer` is the
        number of the buffer of its points, whose columns are those of a run. `metric` is a text,
        `pictures` are as in `result`, and `map` is as in a frame. The map of the frame is that of
        the recorded run.
        """
        forked_run = self.forked_run
        recipe = recipe_of(forked_run.run.wanted).name
        forks = recorded_forks(forked_run.task.name, recipe, forked_run.seed)
        exponents = recorded_exponents(forked_run.task.name, recipe, forked_run.seed)
        if forked_run.asked_steps is not None:
            forks = ()
            exponents = ()
        first = len(forked_run.points())
        scales = list(MAP_SCALES)
        buffers = [pack([map_row(taken) for taken in exponents])]
        listed = []
        for fork in forks:
            at = first + len(buffers)
            buffers.append(pack([columns(step) for step in fork.steps]))
            buffers.append(pack([map_row(taken) for taken in fork.snapshots]))
            listed.append(
                {
                    "origin": origin(fork),
                    "label": f"scaling on, 2^{DEFAULT_LOG2_SCALE}",
                    "buffer": at,
                    "map": {"buffer": at + 1, "log2_scales": scales},
                    "metric": f"{fork.metric:.3f}",
                    "pictures": [vars(picture) for picture in fork.pictures],
                }
            )
        return {"forks": listed, "map": {"buffer": first, "log2_scales": scales}}, buffers

    @property
    def sentence(self) -> str:
        return sentence(self.forked_run)

    @property
    def record_sentence(self) -> str:
        return record_sentence(self.forked_run)

    def figure(self, why: str = "") -> Figure:
        return static_training(self.forked_run, why=why)

    def record(self) -> RunRecord:
        """Return the record of the run whose knobs are on show; it says where it was trained.

        Raises:
            ValueError: nothing has run yet.
        """
        forked_run = self.forked_run
        branch = self.forked_run.selected
        steps = [*forked_run.run.steps[: branch.origin], *branch.steps]
        if branch.run is None or not steps:
            raise ValueError(
                "nothing has run yet, so there is nothing to record. Press Start first."
            )
        plain = branch.wanted.log2_lr == 0 and branch.wanted.epsilon is None
        changes = [recipe_of(branch.wanted).name if plain else describe(branch.wanted)]
        if branch.origin:
            changes.append(
                f"forked after step {branch.origin} from {recipe_of(forked_run.run.wanted).name}"
            )
        changes += [f"{mark.label} from step {mark.step}" for mark in branch.marks]
        record: RunRecord = branch.run.record(
            steps,
            recipe="; ".join(changes),
            seconds=float("nan"),  # it waited for a hand: its time says nothing
            stopped=branch.done < forked_run.total,
            memory=bytes_held(branch.run.engine),
            step_seconds=branch.step_seconds,
        )
        return record

    def state(self) -> dict[str, Any]:
        forked_run = self.forked_run
        knobs = forked_run.selected.wanted
        plain: dict[str, Any] = {}
        for name in forked_run.offered:
            position = getattr(knobs, name)
            plain[name] = position.value if isinstance(position, Enum) else position
        if "epsilon" in plain:
            epsilon = knobs.epsilon
            if epsilon is None:
                epsilon = _epsilon_of(forked_run.task)
            plain["epsilon"] = epsilon_text(epsilon)
        branches = [
            {
                "name": name,
                "format": operands(branch.wanted),
                "origin": branch.origin,
                "marks": [{"step": mark.step, "label": mark.label} for mark in branch.marks],
                "metric": self._metric(branch.metrics),
            }
            for name, branch in zip(names(forked_run), forked_run.branches, strict=True)
        ]
        on_record = next(filter(None, reversed(forked_run.recorded)), None)
        return {
            **super().state(),
            "title": (
                f"{self.title}: {forked_run.task.name.replace('_', ' ')}, seed {forked_run.seed}"
            ),
            "place": {
                "key": forked_run.place.key,
                "says": forked_run.place.sentence,
                "rates": rates_text(forked_run),
            },
            "recorded": "" if on_record is None else _made_on(on_record),
            "active": forked_run.active,
            "knobs": plain,
            "fixed": why_fixed(knobs, forked_run.task, forked_run.offered),
            "scale": math.log2(forked_run.selected.scale),
            "rule": rule(recipe_of(knobs).scaler),
            "branches": branches,
            "fork_change": forked_run.fork_change(),
            "metric_name": forked_run.task.metric_name,
            "fp32_metric": self._metric(forked_run.fp32.metrics),
            "skipped": sum(not step.stepped for step in forked_run.run.steps),
            "shares": forked_run.shares,
            "ghosts": self._ghosts(),
            # a row for each measured step: the step, the shares lost, the shares that overflow
            "map": {"buffer": self._map_buffer(), "log2_scales": list(MAP_SCALES)},
            "result": self._result(),
            "gradients": self._gradients(),
        }

    def _gradients(self) -> dict[str, Any] | None:
        """Return how many gradients of each layer lie in each power of two.

        Returns None before they were measured.

        `step` is the step that was measured, `layers` has a row for each layer, that of all first
        (`rows` of the underflow histogram), and `windows` says where those of the run's format
        begin. Gradients are those of FP32. `examples` has for each layer a list as long as its
        counts: [index, value] of one gradient, or None. `formats` are the rows of FP32 and the
        run's format.
        """
        selected = self.forked_run.selected
        taken = getattr(selected.run, "exponents", None)
        if taken is None:
            return None
        format = FORMATS.get(operands(selected.wanted), FP16)
        if format is FP32:
            format = FP16  # what the gradients would meet there
        if self._measured is None or self._measured[:2] != (taken, format):
            layers = rows(taken)
            shown = {
                "step": taken.step,
                "layers": layers,
                "windows": windows(format),
                "examples": {row["name"]: _examples(selected.run, row) for row in layers[1:]},
                "formats": [format_row(FP32), format_row(format)],
            }
            self._measured = (taken, format, shown)
        return self._measured[2]

    def _result(self) -> dict[str, Any] | None:
        """Return what the networks do and what they should do, as pictures.

        Returns None before the first one.

        `wanted` is a picture, and each of `runs` has the name of a run and its pictures: the latest
        one of a run that trains, and before the first step all of a record. A picture has `step`,
        `height`, `width` and `pixels`, a byte for each pixel in base64.
        """
        forked_run = self.forked_run
        named = ("FP32", *names(forked_run))
        shown: list[Sequence[Picture]]
        if forked_run.fp32.pictures:
            shown = [side.pictures for side in forked_run.sides]
        else:
            shown = [() if record is None else record.pictures for record in forked_run.recorded]
        runs = [
            {
                "name": name,
                "pictures": [vars(each) for each in pictures if each.step <= forked_run.total],
            }
            for name, pictures in zip(named, shown, strict=False)
            if pictures
        ]
        wanted = forked_run.wanted_picture if runs else None
        return None if wanted is None else {"wanted": vars(wanted), "runs": runs}

    def _map_buffer(self) -> int:
        """Return the number of the buffer of the map: the last one."""
        return len(self.forked_run.points()) - 1

    def _ghosts(self) -> list[dict[str, Any]]:
        """Return what the run did before it went back.

        `buffer` is the number of the buffer of its points.
        """
        first = self._map_buffer() - len(self.forked_run.ghosts)
        return [
            {
                "origin": ghost.origin,
                "label": ghost.label,
                "format": operands(ghost.knobs),
                "metric": f"{ghost.metrics[max(ghost.metrics)]:.3f}" if ghost.metrics else "",
                "marks": [{"step": mark.step, "label": mark.label} for mark in ghost.marks],
                "buffer": first + at,
            }
            for at, ghost in enumerate(self.forked_run.ghosts)
        ]

    def _metric(self, metrics: Mapping[int, float]) -> str:
        """Return the latest metric at or before the run's step, "" before the first."""
        at = max(
            (step for step in metrics if step <= max(self.forked_run.run.done, 1)), default=None
        )
        return "" if at is None else f"{metrics[at]:.3f}"

    def command(self, content: Mapping[str, Any]) -> Command:
        if content.get("do") == "back":
            return partial(self.forked_run.go_back, int(content["step"]))
        if content.get("do") == "turn":
            return partial(
                self.forked_run.turn, {content["knob"]: position(content["knob"], content["to"])}
            )
        return super().command(content)
