"""The widget of a live training: its Python interface, and its messages to and from the page.

The runs are those of `ForkedRun`. The workbench is a live training with every knob.
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
from labkit.findings import counted
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
    """Return the rule by which the scale changes, as text.

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

    It is the option of the task's `functools.partial`, or else Adam's default.
    """
    options = getattr(task.make_optimizer, "keywords", {})
    return float(options.get("eps", EPSILONS[0]))


def _times(factor: float) -> str:
    return {0.5: "halves", 2.0: "doubles"}.get(factor, f"is multiplied by {factor:g}")


def tasks(here: Sequence[Place]) -> dict[str, Task]:
    """Return the tasks that are offered, by name; those of `GPU_TASKS` only with a GPU.

    Args:
        here: The devices of this machine.
    """
    has_gpu = any(not each.emulated for each in here)
    return {**TASKS, **GPU_TASKS} if has_gpu else dict(TASKS)


def _made_on(record: RunRecord) -> str:
    return f"recorded: {made_on(record.device, record.versions, record.date)}"


def position(knob: str, to: Any) -> Any:
    """Return a knob's position from its text on the page or from a caller's argument."""
    if knob == "scaling":
        return member_of(Scaling, to, "scaling")
    if knob == "masters" and isinstance(to, bool):
        return MASTERS[0] if to else MASTERS[1]
    if knob == "epsilon":
        return next((e for e in EPSILONS if epsilon_text(e) == to), to)
    return to


def _is_sketch(pairs: Sequence[Sequence[float]], total: int) -> bool:
    """Return whether [step, loss] pairs are in the order of their steps, with losses above 0."""
    steps = [step for step, _ in pairs]
    are_in_order = steps == sorted(set(steps))
    are_in_range = all(1 <= step <= total for step in steps)
    are_losses = all(0 < loss < math.inf for _, loss in pairs)
    return are_in_order and are_in_range and are_losses


def _examples(run: Any, row: Mapping[str, Any]) -> list[Example | None]:
    """Return one gradient of a layer for each of its counts; None where the run has none.

    Args:
        run: The run. A learner's own run may have no `examples`.
        row: The row of the layer in the histogram.
    """
    examples = getattr(run, "examples", {}).get(row["name"], {})
    return [examples.get(row["lo"] + number) for number in range(len(row["counts"]))]


class LiveTraining(DrivenWidget, folder="live_training"):
    """A training that runs while you change it, beside the FP32 run of the same seed.

    Args:
        task: The task to train: a name in `TASKS` or, with a GPU, in `GPU_TASKS`; or a Task.
        recipe: The precision: a name in `RECIPES`, or a Recipe. The controls start at its
            settings.
        seed: The seed of the first weights and the batches, of both runs.
        steps: The number of steps; None for that of the task.
        device: The device to train on: "gpu", "cpu", or None for the GPU if there is one.
        growth_interval: Clean steps before a dynamic scale doubles. None for that of the recipe, or
            for 25 where dynamic scaling is switched on here. (A short run never reaches torch's
            2,000.)
        make_run: A function (task, recipe, seed, device=) that returns a run; by default it is a
            `TrainingRun`.
        sketch: Whether to offer to sketch the loss before the first step; the training is drawn
            over the sketch. `sketched` holds it as [step, loss] pairs.

    Methods do the same as the controls: `press("start")`,
    `change(scaling="dynamic", log2_scale=12)`, `back(60)`.

    Raises:
        ValueError: The task, the recipe or the device does not exist, `steps` or `growth_interval`
            is not a whole number from 1 on, or the slider cannot show the scale.

    >>> live = LiveTraining("digits", "FP16 static", seed=1, steps=20, device="cpu")
    >>> live.phase, live.history
    (<Phase.IDLE: 'idle'>, ())
    >>> live.sentence[:67]
    'Nothing has run yet. Press Start: FP16 with a static scale of 2^10 '
    >>> live.close()
    """

    title: ClassVar[str] = "Live training"
    # The names of its knobs.
    offered: ClassVar[tuple[str, ...]] = ("scaling", "log2_scale", "masters")
    forkable: ClassVar[bool] = False
    # The sketch of the loss: [step, loss] pairs, by step.
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
            # This raises for an invalid interval, also if the recipe's scale is not dynamic.
            scaler = replace(scaler, growth_interval=growth_interval)
            if chosen.scaler.dynamic:
                chosen = replace(chosen, scaler=scaler)
        # The exponents, the format and the result of the last `_gradients`.
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
        ranges = {
            name: [positions[0], positions[-1]]
            for name, positions in POSITIONS.items()
            if isinstance(positions, range)
        }
        choices = {
            name: list(map(str, POSITIONS[name]))
            for name in ("format", "accumulator", "masters", "scaling")
        }
        epsilons = [epsilon_text(epsilon) for epsilon in EPSILONS]
        super().__init__(
            self.forked_run,
            **choices,
            **ranges,
            epsilon=epsilons,
            categories=list(CATEGORIES),
            sketch=sketch,
        )

    @traitlets.validate("sketched")
    def _valid_sketch(self, proposal: dict[str, Any]) -> list[list[float]]:
        try:
            pairs = [[int(step), float(loss)] for step, loss in proposal["value"]]
            are_whole = [step for step, _ in proposal["value"]] == [step for step, _ in pairs]
        except (TypeError, ValueError, OverflowError):
            pairs = []
            are_whole = False
        total = self.forked_run.total
        if not are_whole or not _is_sketch(pairs, total):
            raise traitlets.TraitError(
                "sketched: expected pairs of a whole step and a loss above 0, in the order of "
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
        """Change knobs from the next step on, and return at once. None leaves a knob as it is.

        Args:
            scaling: "off", "static" or "dynamic".
            log2_scale: The exponent of a static scale, or of the initial dynamic scale.
            master_weights: Whether the optimizer keeps FP32 master weights.

        Raises:
            ValueError: The kind of scaling does not exist. Other values are refused later, when
                the training thread makes the change; the page then shows why.
        """
        arguments = {"scaling": scaling, "log2_scale": log2_scale, "masters": master_weights}
        knobs = {knob: position(knob, to) for knob, to in arguments.items() if to is not None}
        self.forked_run.ask(partial(self.forked_run.turn, knobs))

    def back(self, step: int) -> None:
        """Put the run back to a step that it has done, and return at once.

        The steps after it stay as a faint curve. A step that the run has not done is refused later,
        when the training thread handles the request; the page then shows why.

        Args:
            step: The number of the step, from 0.
        """
        self.forked_run.ask(partial(self.forked_run.go_back, step))

    def page_records(self) -> tuple[dict[str, Any], list[bytes]]:
        """Return the recorded forks of this run, with a static scale switched on, for a page.

        Returns:
            Additions to the frame, and their buffers. `forks` is a list in the order of `origin`,
            the number of steps before the switch. `buffer` is the number of the buffer of a fork's
            points, whose columns are those of a run. `metric` is a text, `pictures` are as in
            `result`, and `map` is as in a frame. The other `map` is that of the recorded run.
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
        """Return the record of the run whose knobs are shown; it says where it was trained.

        Raises:
            ValueError: Nothing has run yet.
        """
        forked_run = self.forked_run
        branch = forked_run.selected
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
            # The run waited for the learner, so its duration means nothing.
            seconds=math.nan,
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
            value = getattr(knobs, name)
            plain[name] = value.value if isinstance(value, Enum) else value
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
        fp32_record, run_record = forked_run.recorded
        record = run_record or fp32_record
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
            "recorded": "" if record is None else _made_on(record),
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
            # A row for each measured step: the step, the shares lost, the shares that overflow.
            "map": {"buffer": self._map_buffer(), "log2_scales": list(MAP_SCALES)},
            "result": self._result(),
            "gradients": self._gradients(),
        }

    def _gradients(self) -> dict[str, Any] | None:
        """Return how many FP32 gradients of each layer lie in each power of two.

        Returns:
            None before they were measured. `step` is the step that was measured, `layers` has a
            row for each layer, that of all layers first (`rows` of the underflow histogram), and
            `windows` has the limits of the run's format. `examples` has for each layer a list as
            long as its counts: [index, value] of one gradient, or None. `formats` has the rows of
            FP32 and of the run's format. For an FP32 run, FP16 takes the place of its format.
        """
        selected = self.forked_run.selected
        exponents = getattr(selected.run, "exponents", None)
        if exponents is None:
            return None
        format = FORMATS.get(operands(selected.wanted), FP16)
        if format is FP32:
            format = FP16
        if self._measured is None or self._measured[:2] != (exponents, format):
            layers = rows(exponents)
            shown = {
                "step": exponents.step,
                "layers": layers,
                "windows": windows(format),
                "examples": {row["name"]: _examples(selected.run, row) for row in layers[1:]},
                "formats": [format_row(FP32), format_row(format)],
            }
            self._measured = (exponents, format, shown)
        return self._measured[2]

    def _result(self) -> dict[str, Any] | None:
        """Return the pictures of what the networks do, and of what they should do.

        Returns:
            None before the first picture. `wanted` is a picture, and each of `runs` has the name of
            a run and its pictures: the latest one of a run that trains, and before the first step
            all of a record. A picture has `step`, `height`, `width` and `pixels`, a byte for each
            pixel in base64.
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
        """Return the ghosts as JSON; `buffer` is the number of the buffer of a ghost's points."""
        first = self._map_buffer() - len(self.forked_run.ghosts)
        return [
            {
                "origin": ghost.origin,
                "label": ghost.label,
                "format": operands(ghost.knobs),
                "metric": f"{ghost.metrics[max(ghost.metrics)]:.3f}" if ghost.metrics else "",
                "marks": [{"step": mark.step, "label": mark.label} for mark in ghost.marks],
                "buffer": first + number,
            }
            for number, ghost in enumerate(self.forked_run.ghosts)
        ]

    def _metric(self, metrics: Mapping[int, float]) -> str:
        """Return the latest metric at or before the run's step as text, "" before the first."""
        # FP32 is a step ahead: before the run's first step, its metric at step 1 is shown.
        done = max(self.forked_run.run.done, 1)
        steps = [step for step in metrics if step <= done]
        return f"{metrics[max(steps)]:.3f}" if steps else ""

    def command(self, content: Mapping[str, Any]) -> Command:
        if content.get("do") == "back":
            return partial(self.forked_run.go_back, int(content["step"]))
        if content.get("do") == "turn":
            return partial(
                self.forked_run.turn, {content["knob"]: position(content["knob"], content["to"])}
            )
        return super().command(content)
