"""A training step in any precision, and a run from start to end.

Idea: a step has one shape for every recipe: forward, scaled backward, unscale, step or skip, advance the scaler. What
differs stands in the recipe's values. A run can be driven step by step, which is what the live widget does, and its
recipe may change between two steps.

Invariant: the same task, recipe, seed and device give the same losses, bit for bit, dropout included.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import fields
from typing import Any

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
    initial,
    to_fp32,
)
from labkit.instrument import GradSnapshot, probe, snapshot, swallowed, underflow
from labkit.records import arithmetic_settings, now, versions
from labkit.train.determinism import arithmetic, one_thread, preserve_rng, restore_after, seed_generators, seeded_rng
from labkit.train.devices import Place, place
from labkit.train.record import RunRecord, StepRecord, bytes_held
from labkit.train.tasks import Task


class SwallowedUpdates:
    """Listens to a step: which share of the weights that outlast it, the masters where there are any, did not move."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.swallowed: float | None = None  # of a step that was taken

    def __call__(self, event: StepEvent) -> None:
        if event.moment is Moment.UNSCALED:
            self.before = {name: master.clone() for name, master in self.weights.named_masters().items()}
        elif event.moment is Moment.STEPPED and event.report is not None and event.report.stepped:
            dense = {name: g.to_dense() if g.is_sparse else g for name, g in event.gradients.items()}
            after = self.weights.named_masters()
            self.swallowed = swallowed(self.before.values(), after.values(), [dense.get(name) for name in after])


WARM_UP = 2  # first steps, in which a device sets up, are not timed
MEASURE_EVERY = 10  # steps between two measurements of what is lost, each of which costs an FP32 step


class TrainingRun:
    """A run that stands between two steps.

    Args:
        task: what to learn.
        recipe: in which precision.
        seed: decides initial weights, batches and what is drawn at random in a step.
        device: where, as `labkit.train.place` takes it; the same code runs on a GPU.
        measure_every: steps between two measurements of underflow and of swallowed updates; 0 measures never.
    """

    def __init__(
        self,
        task: Task,
        recipe: Recipe,
        seed: int = 0,
        *,
        device: torch.device | str | Place | None = "cpu",
        measure_every: int = MEASURE_EVERY,
    ) -> None:
        self.task, self.seed, self.measure_every = task, seed, measure_every
        self.place = place(device)
        self.device = self.place.device
        self.data = task.make_data().to(self.device)  # once: a step that copied its batch would wait for it
        with one_thread(), arithmetic(recipe, self.device), preserve_rng(self.device):
            seed_generators(self.device, seed)
            self.engine = Engine(task.make_model(), task.make_optimizer, recipe, device=self.device, seed=seed)
        self.steps_done = 0

    @property
    def recipe(self) -> Recipe:
        """In which precision the next step is done."""
        return self.engine.recipe

    @property
    def model(self) -> nn.Module:
        """The network, in the recipe's format."""
        return self.engine.model

    @property
    def weights(self) -> Weights:
        """The model weights and their master."""
        return self.engine.weights

    @property
    def scaler(self) -> ScalerState:
        """Where the loss scale stands; it may be set between two steps."""
        return self.engine.scaler

    @scaler.setter
    def scaler(self, state: ScalerState) -> None:
        self.engine.scaler = state

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a step; they depend on seed and step alone."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + step)
        rows = torch.randint(len(self.data.train_inputs), (self.task.batch_size,), generator=generator)
        rows = rows.to(self.device, non_blocking=True)
        return self.data.train_inputs[rows], self.data.train_targets[rows]

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Run the forward pass under the recipe and return the unscaled FP32 loss.

        What draws random numbers, such as dropout, draws those of the next step, whoever asks and however often.
        """
        with seeded_rng(self.device, self.seed * 1_000_003 + self.steps_done + 1), self.engine.forward():
            return self.task.loss(self.engine(inputs), targets)

    def step(self) -> StepRecord:
        """Do one training step and say what happened."""
        with one_thread():
            measure = self.measure_every > 0 and self.steps_done % self.measure_every == 0
            underflowed = None
            if measure:
                kind = "activation gradients"
                exact = self.fp32_twin().next_gradients(kind)
                underflowed = underflow(exact, self.next_gradients(kind, scale=self.scaler.scale))
            updates = SwallowedUpdates(self.weights)
            with self.engine.listen(updates) if measure else nullcontext():
                loss, report = self.take_step()
            seen = (underflowed, updates.swallowed)
            return StepRecord(self.steps_done, loss.item(), report.scale, report.found_inf, report.stepped, *seen)

    def take_step(self) -> tuple[Tensor, StepReport]:
        """Do one training step and measure nothing; return its loss [] and what became of it."""
        self.engine.zero_grad()
        with arithmetic(self.recipe, self.device):
            loss = self.loss(*self.batch(self.steps_done + 1))
            self.engine.backward(loss)
            report = self.engine.step()
        self.steps_done += 1
        return loss.detach(), report

    def fork(self, recipe: Recipe | None = None) -> TrainingRun:
        """Return a run that stands where this one stands and goes its own way.

        It has the same weights, moments, batches and random numbers, and under the same recipe stays equal bit for bit.
        Under another one, weights and moments are cast to its formats, and a scaler of its own begins anew.
        """
        other, state = copy.copy(self), copy.deepcopy(self.engine.state_dict())
        chosen = self.recipe if recipe is None else recipe
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

    def change(self, recipe: Recipe) -> None:
        """Go on under another recipe from the next step on: another scaler, with or without master weights.

        Raises:
            ValueError: the recipes differ in a format that the model was built with; start a new run for that.
        """
        current = self.recipe
        fixed = [f.name for f in fields(Recipe) if f.name not in ("name", "scaler", "master_weights")]
        differ = [f for f in fixed if getattr(recipe, f) != getattr(current, f)]
        if differ:
            raise ValueError(
                f"a run under {current.name!r} can change its scaler and its master weights; {recipe.name!r} differs "
                f"in {', '.join(differ)} as well, with which the run was built. Start a new TrainingRun for it."
            )
        if recipe.scaler != current.scaler:
            self.scaler = initial(recipe.scaler)
        self.engine.recipe = recipe
        self.weights.master = recipe.master_weights
        self.weights.copy_back()

    def next_gradients(self, kind: str = "activation gradients", *, scale: float = 1.0) -> dict[str, Tensor]:
        """Return layer -> gradient of the *scaled* loss at the next step's weights and batch; the run does not move.

        kind is "activation gradients" or "weight gradients".
        """
        if kind not in ("activation gradients", "weight gradients"):
            raise ValueError(f'kind is "activation gradients" or "weight gradients"; it was given {kind!r}')
        parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        products = self.engine.products
        kept = nullcontext() if products is None else products.memory.unchanged()
        looking = probe(self.model)
        with (
            one_thread(),
            arithmetic(self.recipe, self.device),
            looking as probed,
            restore_after(self.model.buffers()),
            kept,
        ):
            scaled = self.loss(*self.batch(self.steps_done + 1)) * scale
            found = torch.autograd.grad(scaled, list(parameters.values()), allow_unused=True)
        if kind == "weight gradients":
            return {name: gradient for name, gradient in zip(parameters, found, strict=True) if gradient is not None}
        return probed.gradients

    def fp32_twin(self) -> TrainingRun:
        """Return a run in FP32 with this one's weights, rounded as they are, its batches and its random numbers."""
        twin = copy.copy(self)
        model = to_fp32(copy.deepcopy(self.model))
        twin.engine = Engine(model, self.task.make_optimizer, Recipe("FP32"), device=self.device)
        return twin

    def evaluate(self) -> float:
        """Return the task's metric on the test data; dropout and batch norm are in evaluation mode meanwhile."""
        training = self.model.training
        self.model.eval()
        try:
            with one_thread(), arithmetic(self.recipe, self.device), torch.no_grad(), self.engine.forward():
                return self.task.metric(self.engine(self.data.test_inputs), self.data.test_targets)
        finally:
            self.model.train(training)

    def record(self, steps: Sequence[StepRecord], **measured: Any) -> RunRecord:
        """Return the record of these steps, with metric, device, versions and date of now; the rest is `measured`."""
        known = {"task": self.task.name, "recipe": self.recipe.name, "seed": self.seed, "steps": tuple(steps)}
        metric = {"metric": self.evaluate(), "metric_name": self.task.metric_name}
        origin = {"device": self.place.name, "versions": versions(self.device), "date": now()}
        with arithmetic(self.recipe, self.device):
            origin["arithmetic"] = arithmetic_settings(self.device, tf32=self.recipe.tf32)
        return RunRecord(**{**known, **metric, **origin, **measured})


def gradient_snapshot(run: TrainingRun, kind: str = "activation gradients") -> GradSnapshot:
    """Return histograms of the FP32 gradients at a run's next step: what FP16 would have to hold."""
    return snapshot(run.fp32_twin().next_gradients(kind), step=run.steps_done + 1, kind=kind)


def train(
    task: Task,
    recipe: Recipe,
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
        steps: how many; None takes the task's own number.
        device: where, as `labkit.train.place` takes it: None is the GPU where there is one. The default is the CPU, so
            that what is graded and what is on record does not depend on who has a GPU.
        watch: kinds of gradients to keep histograms of: "activation gradients", "weight gradients".
        watch_every: steps between two of them; the first is taken before the first step.
        progress: called after every step.
        stop: asked before every step; True ends the run early, and the record says so.

    Raises:
        ValueError: steps is negative, watch_every is less than 1, or there is no such device here.
    """
    planned = task.steps if steps is None else steps
    if planned < 0:
        raise ValueError(f"steps is 0 or more; it was given {planned}")
    if watch_every < 1:
        raise ValueError(f"watch_every is 1 or more; it was given {watch_every}. To watch nothing, leave watch out.")
    run = TrainingRun(task, recipe, seed, device=device, measure_every=measure_every)
    done: list[StepRecord] = []
    seconds: list[float] = []  # of the steps that measured nothing
    snapshots: list[GradSnapshot] = []
    memory: dict[str, int] = {}
    began = time.perf_counter()
    while len(done) < planned and not (stop is not None and stop()):
        if len(done) % watch_every == 0:
            snapshots += [gradient_snapshot(run, kind) for kind in watch]
        before = time.perf_counter()
        done.append(run.step())  # reads the loss, so the device is waited for
        if done[-1].underflow is None and len(done) > WARM_UP:
            seconds.append(time.perf_counter() - before)
        if done[-1].stepped:  # before, an optimizer has no state
            memory = memory or bytes_held(run.engine)
        if progress is not None:
            progress(done[-1])
    return run.record(
        done,
        seconds=round(time.perf_counter() - began, 3),
        stopped=len(done) < planned,
        snapshots=tuple(snapshots),
        memory=memory or (bytes_held(run.engine) if done else {}),
        step_seconds=statistics.median(seconds) if seconds else None,
    )
