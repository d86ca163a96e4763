"""Training runs in any precision, as a whole (`train`) or step by step (`TrainingRun`).

Idea: a step is the same for every recipe: forward, scaled backward, unscale, step or skip, advance
the scaler. The recipe's values determine the rest. A live widget drives a run step by step, and may
change its recipe between steps.

Invariant: the same task, recipe, seed and device give the same losses, bit for bit, dropout
included.
"""

from __future__ import annotations

import copy
import operator
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.amp import (
    Engine,
    Moment,
    Recipe,
    ScalerState,
    StepEvent,
    StepReport,
    Weights,
    as_recipe,
    initial,
    to_fp32,
)
from labkit.formats.arguments import require_kind
from labkit.instrument import GradSnapshot, probe, snapshot, swallowed, underflow
from labkit.instrument.histogram import FP32_HIGHEST_EXPONENT, FP32_LOWEST_EXPONENT
from labkit.records import arithmetic_settings, now, versions
from labkit.train.determinism import (
    arithmetic,
    one_thread,
    preserve_rng,
    restore_after,
    seed_generators,
    seeded_rng,
)
from labkit.train.devices import Place, place
from labkit.train.drawing import Picture, to_picture
from labkit.train.record import RunRecord, StepRecord, bytes_held
from labkit.train.tasks import Task, as_task

BINADES = FP32_HIGHEST_EXPONENT - FP32_LOWEST_EXPONENT + 1


class Example(NamedTuple):
    """One element of a tensor: its place in the flattened tensor, and its value."""

    place: int
    value: float


def one_of_each(tensor: Tensor) -> dict[int, Example]:
    """Return exponent -> the first element with it, for each exponent that an FP32 tensor has.

    Zeros, infinities and NaN have no exponent. The work is done on the tensor's device.

    >>> one_of_each(torch.tensor([0.0, 3.0, -2.0, 0.25]))
    {-2: Example(place=3, value=0.25), 1: Example(place=1, value=3.0)}
    """
    flat = tensor.detach().flatten()
    finite = (flat != 0) & flat.isfinite()
    # frexp has a significand from 0.5 to 1: its exponent is one larger.
    exponents = torch.frexp(flat).exponent.long() - 1
    # the last bin takes the elements without an exponent, and is cut off below
    bins = torch.where(finite, exponents - FP32_LOWEST_EXPONENT, BINADES)
    places = torch.arange(len(flat), device=flat.device)
    # the smallest place in each bin; an empty bin keeps len(flat)
    empty = torch.full((BINADES + 1,), len(flat), device=flat.device)
    first = empty.scatter_reduce(0, bins, places, "amin")[:BINADES]
    occupied = torch.nonzero(first < len(flat)).flatten()
    indices = first[occupied]
    examples = {}
    for bin_number, index, value in zip(
        occupied.tolist(), indices.tolist(), flat[indices].tolist(), strict=True
    ):
        examples[bin_number + FP32_LOWEST_EXPONENT] = Example(index, value)
    return examples


class SwallowedObserver:
    """Observer of a step that measures the share of unchanged weights.

    It compares the master weights if the recipe has them, and otherwise the model weights.

    Attributes:
        swallowed: the share, 0 to 1; None if the step was skipped.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.swallowed: float | None = None

    def __call__(self, event: StepEvent[StepReport]) -> None:
        if event.moment is Moment.UNSCALED:
            self.before = {
                name: master.clone() for name, master in self.weights.named_masters().items()
            }
        elif event.moment is Moment.STEPPED and event.report is not None and event.report.stepped:
            dense = {}
            for name, gradient in event.gradients.items():
                dense[name] = gradient.to_dense() if gradient.is_sparse else gradient
            after = self.weights.named_masters()
            self.swallowed = swallowed(
                self.before.values(), after.values(), [dense.get(name) for name in after]
            )


# First steps, which are not timed.
WARM_UP = 2
# The least number of pictures of a run with as many steps, after that of its initial weights.
PICTURES = 10
# steps between two measurements of underflow, each of which costs an FP32 step
MEASURE_EVERY = 10


class TrainingRun:
    """Training run that advances step by step.

    Args:
        task: data, network, loss, metric and optimizer.
        recipe: precision.
        seed: determines initial weights, batches and random numbers of a step.
        device: an argument of `labkit.train.place`.
        measure_every: steps between two measurements of underflow and swallowed updates; 0 for
            none.

    Raises:
        ValueError: measure_every is negative, or this machine has no such device.

    Attributes:
        keep_exponents: whether a measurement keeps the histograms of its FP32 gradients.
        exponents: histograms of the latest measurement; None before the first, or if they are not
            kept.
        examples: layer -> exponent -> one gradient with that exponent, for each exponent that
            occurs in `exponents`.
    """

    def __init__(
        self,
        task: Task | str,
        recipe: Recipe | str,
        seed: int = 0,
        *,
        device: torch.device | str | Place | None = "cpu",
        measure_every: int = MEASURE_EVERY,
    ) -> None:
        require_kind(seed, int, "seed")
        require_kind(measure_every, int, "measure_every")
        if measure_every < 0:
            raise ValueError(f"expected measure_every of 0 or more, got {measure_every}")
        # generators of torch refuse numbers of numpy
        seed = operator.index(seed)
        task = as_task(task)
        recipe = as_recipe(recipe)
        self.task = task
        self.seed = seed
        self.measure_every = measure_every
        self.place = place(device)
        self.device = self.place.device
        # All data is copied at once: copying each batch would synchronize each step.
        self.data = task.make_data().to(self.device)
        with one_thread(), arithmetic(recipe, self.device), preserve_rng(self.device):
            seed_generators(self.device, seed)
            self.engine = Engine(
                task.make_model(), task.make_optimizer, recipe, device=self.device, seed=seed
            )
        self.steps_done = 0
        self.keep_exponents = False
        self.exponents: GradSnapshot | None = None
        self.examples: dict[str, dict[int, Example]] = {}

    @property
    def recipe(self) -> Recipe:
        """Recipe of the next step."""
        return self.engine.recipe

    @property
    def model(self) -> nn.Module:
        """Network in the recipe's format."""
        return self.engine.model

    @property
    def weights(self) -> Weights:
        """Model weights and master weights."""
        return self.engine.weights

    @property
    def scaler(self) -> ScalerState:
        """State of the loss scaler, which may be set between two steps."""
        return self.engine.scaler

    @scaler.setter
    def scaler(self, state: ScalerState) -> None:
        self.engine.scaler = state

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a step, which depend on seed and step only."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.randint(
            len(self.data.train_inputs), (self.task.batch_size,), generator=generator
        )
        rows = rows.to(self.device, non_blocking=True)
        return self.data.train_inputs[rows], self.data.train_targets[rows]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run the forward pass under the recipe and return the unscaled FP32 loss.

        Dropout uses the random numbers of the next step, so repeated calls return the same loss.
        """
        with (
            seeded_rng(self.device, self.seed * 1_000_003 + self.steps_done + 1),
            self.engine.forward(),
        ):
            return self.task.loss(self.engine(inputs), targets)

    def step(self) -> StepRecord:
        """Do one training step, measured every `measure_every` steps, and return its record."""
        with one_thread():
            measure = self.measure_every > 0 and self.steps_done % self.measure_every == 0
            underflowed = None
            if measure:
                kind = "activation gradients"
                exact = self.fp32_twin().next_gradients(kind)
                if self.keep_exponents:
                    self.exponents = snapshot(exact, step=self.steps_done + 1, kind=kind)
                    self.examples = {name: one_of_each(found) for name, found in exact.items()}
                underflowed = underflow(exact, self.next_gradients(kind, scale=self.scaler.scale))
            updates = SwallowedObserver(self.weights)
            with self.engine.listen(updates) if measure else nullcontext():
                loss, report = self.take_step()
            return StepRecord(
                step=self.steps_done,
                loss=loss.item(),
                scale=report.scale,
                found_inf=report.found_inf,
                stepped=report.stepped,
                underflow=underflowed,
                swallowed=updates.swallowed,
            )

    def take_step(self) -> tuple[Tensor, StepReport]:
        """Do one training step without measurements; return its loss [] and report."""
        self.engine.zero_grad()
        with arithmetic(self.recipe, self.device):
            loss = self.loss(*self.batch(self.steps_done + 1))
            self.engine.backward(loss)
            report = self.engine.step()
        self.steps_done += 1
        return loss.detach(), report

    def fork(self, recipe: Recipe | str | None = None) -> TrainingRun:
        """Return an independent copy of this run, optionally under another recipe.

        Weights, moments, batches and random numbers are the same, so under the same recipe both
        runs stay equal bit for bit. Under another recipe, weights and moments are cast to its
        formats, and a different scaler starts again.
        """
        # For small tensors on a busy machine, several threads that wait for each other take ten
        # times as long as one.
        with one_thread():
            return self._forked(self.recipe if recipe is None else as_recipe(recipe))

    def _forked(self, chosen: Recipe) -> TrainingRun:
        other = copy.copy(self)
        state = copy.deepcopy(self.engine.state_dict())
        model = to_fp32(copy.deepcopy(self.model))
        other.engine = Engine(model, self.task.make_optimizer, chosen, device=self.device)
        if chosen == self.recipe:
            other.engine.load_state_dict(state)
            return other
        other.engine.load_model(state["model"])
        other.weights.load_state_dict(state["weights"])
        other.weights.copy_back()
        if chosen.scaler == self.recipe.scaler:
            other.scaler = self.scaler
        return other

    def change(self, recipe: Recipe | str) -> None:
        """Change the recipe from the next step on: its scaler, its master weights, or both.

        Raises:
            ValueError: the recipes differ in anything else, which needs a new run.
        """
        recipe = as_recipe(recipe)
        current = self.recipe
        fixed = [
            f.name for f in fields(Recipe) if f.name not in ("name", "scaler", "master_weights")
        ]
        differ = [f for f in fixed if getattr(recipe, f) != getattr(current, f)]
        if differ:
            raise ValueError(
                f"expected a recipe that differs from {current.name!r} in scaler and master "
                f"weights only, got {recipe.name!r}, which differs in {', '.join(differ)}. Start a "
                "new TrainingRun for it."
            )
        if recipe.scaler != current.scaler:
            self.scaler = initial(recipe.scaler)
        self.engine.recipe = recipe
        self.weights.master = recipe.master_weights
        self.weights.copy_back()

    def next_gradients(
        self, kind: str = "activation gradients", *, scale: float = 1.0
    ) -> dict[str, Tensor]:
        """Return layer -> gradient of the *scaled* loss at the next step's weights and batch.

        The step is not taken.

        Args:
            kind: "activation gradients" or "weight gradients".
            scale: factor of the loss.
        """
        if kind not in ("activation gradients", "weight gradients"):
            raise ValueError(
                f'expected a kind of "activation gradients" or "weight gradients", got {kind!r}'
            )
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        products = self.engine.products
        with (
            one_thread(),
            arithmetic(self.recipe, self.device),
            probe(self.model) as probed,
            restore_after(self.model.buffers()),
            nullcontext() if products is None else products.memory.unchanged(),
        ):
            scaled = self.loss(*self.batch(self.steps_done + 1)) * scale
            found = torch.autograd.grad(scaled, list(parameters.values()), allow_unused=True)
        if kind == "weight gradients":
            return {
                name: gradient
                for name, gradient in zip(parameters, found, strict=True)
                if gradient is not None
            }
        return probed.gradients

    def fp32_twin(self) -> TrainingRun:
        """Return a run in FP32 with this run's current weights, batches and random numbers."""
        twin = copy.copy(self)
        model = to_fp32(copy.deepcopy(self.model))
        twin.engine = Engine(model, self.task.make_optimizer, Recipe("FP32"), device=self.device)
        return twin

    def evaluate(self) -> float:
        """Return the task's metric on the test data, computed in evaluation mode."""
        outputs = self.outputs(self.data.test_inputs)
        with one_thread(), torch.no_grad():
            return self.task.metric(outputs, self.data.test_targets)

    def outputs(self, inputs: Tensor) -> Tensor:
        """Return the FP32 outputs of the network under the recipe, computed in evaluation mode."""
        training = self.model.training
        self.model.eval()
        try:
            with (
                one_thread(),
                arithmetic(self.recipe, self.device),
                torch.no_grad(),
                self.engine.forward(),
            ):
                result: Tensor = self.engine(inputs)
                return result
        finally:
            self.model.train(training)

    def pictures(self) -> list[Picture]:
        """Return a list with the picture of the network's current outputs; [] without a drawing.

        The picture shows a few test examples. `Task.wanted_picture` is the picture of their
        targets.
        """
        drawing = self.task.drawing
        if drawing is None:
            return []
        shown = self.data.test_inputs[: drawing.examples or None]
        return [to_picture(drawing.outputs(self.outputs(shown)), self.steps_done)]

    def record(self, steps: Sequence[StepRecord], **measured: Any) -> RunRecord:
        """Return the record of these steps, with the metric and provenance.

        Args:
            steps: the records of all steps of the run.
            **measured: further fields of `RunRecord`, which replace those that this method sets.
        """
        with arithmetic(self.recipe, self.device):
            settings = arithmetic_settings(self.device, tf32=self.recipe.tf32)
        values: dict[str, Any] = {
            "task": self.task.name,
            "recipe": self.recipe.name,
            "seed": self.seed,
            "steps": tuple(steps),
            "metric": self.evaluate(),
            "metric_name": self.task.metric_name,
            "arithmetic": settings,
            "device": self.place.name,
            "versions": versions(self.device),
            "date": now(),
        }
        return RunRecord(**(values | measured))


def gradient_snapshot(run: TrainingRun, kind: str = "activation gradients") -> GradSnapshot:
    """Return histograms of the FP32 gradients at a run's next step."""
    require_kind(run, TrainingRun, "run", "Make one: TrainingRun(task, recipe)")
    return snapshot(run.fp32_twin().next_gradients(kind), step=run.steps_done + 1, kind=kind)


def train(
    task: Task | str,
    recipe: Recipe | str,
    seed: int = 0,
    *,
    steps: int | None = None,
    device: torch.device | str | Place | None = "cpu",
    measure_every: int = MEASURE_EVERY,
    watch: Sequence[str] = (),
    watch_every: int = 50,
    progress: Callable[[StepRecord], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> RunRecord:
    """Train from start to end and return the record.

    Args:
        task: what is trained, or its name in `TASKS`.
        recipe: how it is trained, or its name in `RECIPES`.
        seed: seed of the weights and the batches.
        steps: number of steps; None for the task's.
        device: an argument of `labkit.train.place`; None is a GPU if there is one. The default is
            the CPU, so that grades and saved records do not depend on a GPU.
        measure_every: steps between two measurements of underflow and swallowed updates; 0 for
            none.
        watch: kinds of gradients to record as histograms: "activation gradients", "weight
            gradients".
        watch_every: steps between two histograms; the first is taken before the first step.
        progress: called after every step.
        stop: called before every step; True ends the run early, which the record states.

    Raises:
        TypeError: a number of steps is not an int, or watch is a single kind.
        ValueError: steps or measure_every is negative, watch_every is less than 1, or this machine
            has no such device.
    """
    require_kind(steps, (int, type(None)), "steps")
    require_kind(watch_every, int, "watch_every")
    if isinstance(watch, str):
        raise TypeError(f"watch: expected a list of kinds, got {watch!r}. Pass [{watch!r}]")
    task = as_task(task)
    recipe = as_recipe(recipe)
    planned = task.steps if steps is None else steps
    if planned < 0:
        raise ValueError(f"expected steps of 0 or more, got {planned}")
    if watch_every < 1:
        raise ValueError(
            f"expected watch_every of 1 or more, got {watch_every}; to record no histograms, omit "
            "watch"
        )
    run = TrainingRun(task, recipe, seed, device=device, measure_every=measure_every)
    done: list[StepRecord] = []
    # Of steps without measurements.
    seconds: list[float] = []
    snapshots: list[GradSnapshot] = []
    pictures = run.pictures()
    memory: dict[str, int] = {}
    began = time.perf_counter()
    while len(done) < planned and not (stop is not None and stop()):
        if len(done) % watch_every == 0:
            snapshots += [gradient_snapshot(run, kind) for kind in watch]
        before = time.perf_counter()
        # a step reads its loss, which waits for the device, so the clock covers all of its work
        step = run.step()
        elapsed = time.perf_counter() - before
        done.append(step)
        if step.underflow is None and len(done) > WARM_UP:
            seconds.append(elapsed)
        # the optimizer's state exists only after a step that was not skipped
        if step.stepped and not memory:
            memory = bytes_held(run.engine)
        if len(done) % max(1, planned // PICTURES) == 0:
            pictures += run.pictures()
        if progress is not None:
            progress(step)
    if done and not memory:
        memory = bytes_held(run.engine)
    return run.record(
        done,
        seconds=round(time.perf_counter() - began, 3),
        stopped=len(done) < planned,
        snapshots=tuple(snapshots),
        pictures=tuple(pictures),
        memory=memory,
        step_seconds=statistics.median(seconds) if seconds else None,
    )
