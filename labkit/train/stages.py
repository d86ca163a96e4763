"""Statistics of one training step at eight stages, from weight casts to the copy back.

Idea: hooks on the layers and the engine observe the run's own step; nothing is computed twice.

Invariant: observation does not change the run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from labkit.amp import Moment, StepEvent, StepReport
from labkit.formats.arguments import require_kind
from labkit.instrument import layer_outputs, probe
from labkit.train.determinism import one_thread
from labkit.train.run import TrainingRun

STAGES = (
    "cast weights",
    "forward",
    "loss",
    "scaled backward",
    "unscale",
    "check for inf",
    "step",
    "copy back",
)


@dataclass(frozen=True)
class TensorSummary:
    """Statistics of a tensor, or of all tensors of a layer, at one stage.

    Attributes:
        name: for example "conv1 output", "conv1 weights", "∇ conv1 weights" (gradient), "Δ conv1
            weights" (update).
        elements: number of elements.
        smallest: smallest finite non-zero |x|, or 0 without one.
        largest: largest finite |x|, or 0 if all finite elements are 0.
        zeros: number of zeros.
        non_finite: number of infinities and NaNs.
    """

    name: str
    dtype: torch.dtype
    elements: int
    smallest: float
    largest: float
    zeros: int
    non_finite: int


@dataclass(frozen=True)
class StepStage:
    """One of the eight stages with its tensors."""

    name: str
    tensors: tuple[TensorSummary, ...]


@dataclass(frozen=True)
class StagedStep:
    """One training step with statistics at every stage.

    Attributes:
        recipe: name.
        step: number of the step.
        stages: the eight stages, in order.
        scale: loss scale.
        loss: unscaled.
        found_inf: some gradient contains inf or NaN.
        stepped: the optimizer stepped.
        scale_after: loss scale of the next step.
        weights: number of weights.
        moved: number of changed weights among those that the optimizer steps (master weights under
            O2).
        model_moved: number of changed weights among those that the model computes with.
    """

    recipe: str
    step: int
    stages: tuple[StepStage, ...]
    scale: float
    loss: float
    found_inf: bool
    stepped: bool
    scale_after: float
    weights: int
    moved: int
    model_moved: int


def watch_step(run: TrainingRun) -> StagedStep:
    """Take a run's next step and return statistics of its tensors at each stage.

    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> watched = watch_step(TrainingRun(TASKS["digits"], RECIPES["O2"]))
    >>> [stage.name for stage in watched.stages][:3]
    ['cast weights', 'forward', 'loss']
    >>> watched.stages[1].tensors[-1].dtype, watched.stages[4].tensors[-1].dtype, watched.stepped
    (torch.float16, torch.float32, True)
    """
    require_kind(run, TrainingRun, "run", "Make one: TrainingRun(task, recipe)")
    with one_thread():
        return _ObservedStep(run).staged()


class _ObservedStep:
    """A step of a run that was taken, with what was observed in it.

    Attributes:
        run: the run, after the step.
        scale: the loss scale before the step.
        loss: the unscaled loss.
        report: what the engine reports of the step.
        before: the weights of the model before the step.
        after: the weights of the model after the step.
        updates: the changes of the weights that the optimizer steps.
        moved: how many of these weights changed.
        outputs: the output of each layer.
        output_gradients: the gradient of each layer's output.
        gradients: the gradients of the weights by name, at each moment of the step.
    """

    def __init__(self, run: TrainingRun) -> None:
        self.run = run
        weights = run.weights
        self.scale = run.scaler.scale
        self.before = [weight.detach().clone() for weight in weights.model_weights]
        masters = [master.detach().clone() for master in weights.master_weights]
        self.outputs: dict[str, Tensor] = {}
        self.gradients: dict[Moment, dict[str, Tensor]] = {}
        with (
            layer_outputs(run.model, self._keep_output),
            probe(run.model) as probed,
            run.engine.listen(self._keep_gradients),
        ):
            self.loss, self.report = run.take_step()
        self.output_gradients = probed.gradients
        self.updates = []
        self.moved = 0
        for new, old in zip(weights.master_weights, masters, strict=True):
            self.updates.append(new.detach() - old)
            self.moved += _changed(new.detach(), old)
        self.after = [weight.detach() for weight in weights.model_weights]

    def _keep_output(self, name: str, output: Tensor) -> None:
        # a copy: a later layer may overwrite the output in place
        self.outputs[name] = _dense_copy(output)

    def _keep_gradients(self, event: StepEvent[StepReport]) -> None:
        self.gradients[event.moment] = {
            name: _dense_copy(gradient) for name, gradient in event.gradients.items()
        }

    def staged(self) -> StagedStep:
        """Return the statistics of the step."""
        stages = []
        for name, tensors in zip(STAGES, self._tensors_of_stages(), strict=True):
            summaries = [summarize(tensor_name, tensor) for tensor_name, tensor in tensors.items()]
            stages.append(StepStage(name, tuple(summaries)))
        pairs = zip(self.after, self.before, strict=True)
        return StagedStep(
            recipe=self.run.recipe.name,
            step=self.run.steps_done,
            stages=tuple(stages),
            scale=self.scale,
            loss=self.loss.item(),
            found_inf=self.report.found_inf,
            stepped=self.report.stepped,
            scale_after=self.run.scaler.scale,
            weights=sum(weight.numel() for weight in self.after),
            moved=self.moved,
            model_moved=sum(_changed(new, old) for new, old in pairs),
        )

    def _tensors_of_stages(self) -> list[dict[str, Tensor]]:
        """Return the tensors of each of `STAGES`, by name."""
        layers = self._layers()
        scaled = self._gradients_of_weights(Moment.SCALED)
        unscaled = self._gradients_of_weights(Moment.UNSCALED)
        outputs = {f"{name} output": tensor for name, tensor in self.outputs.items()}
        of_outputs = {f"∇ {name} output": tensor for name, tensor in self.output_gradients.items()}
        return [
            _grouped(self.before, layers),
            outputs,
            {"loss": self.loss, "loss × scale": self.loss * self.scale},
            of_outputs | _grouped(scaled, layers, "∇"),
            _grouped(unscaled, layers, "∇"),
            # the check for inf sees what unscaling returns
            _grouped(unscaled, layers, "∇"),
            _grouped(self.updates, layers, "Δ"),
            _grouped(self.after, layers),
        ]

    def _layers(self) -> list[str]:
        """Return the name of the layer of each weight."""
        weights = self.run.weights
        return [weights.names[weight].rpartition(".")[0] for weight in weights.model_weights]

    def _gradients_of_weights(self, moment: Moment) -> list[Tensor]:
        """Return the gradient of each weight at a moment, or zeros if it has none."""
        weights = self.run.weights
        gradients = self.gradients[moment]
        return [
            gradients.get(weights.names[weight], torch.zeros_like(weight))
            for weight in weights.model_weights
        ]


def summarize(name: str, tensor: Tensor) -> TensorSummary:
    """Return statistics of a tensor.

    >>> summarize("x", torch.tensor([0.0, -2.0, 0.5, float("inf")]).half())
    TensorSummary(name='x', dtype=torch.float16, elements=4, smallest=0.5, largest=2.0, zeros=1,
                  non_finite=1)
    """
    # in FP32: torch has few 16-bit kernels on a CPU
    size = tensor.detach().float().abs()
    nonzero = size[size.isfinite() & (size > 0)]
    smallest = 0.0
    largest = 0.0
    if nonzero.numel():
        smallest = float(nonzero.amin())
        largest = float(nonzero.amax())
    return TensorSummary(
        name=name,
        dtype=tensor.dtype,
        elements=tensor.numel(),
        smallest=smallest,
        largest=largest,
        zeros=int((size == 0).sum()),
        non_finite=int((~size.isfinite()).sum()),
    )


def _dense_copy(tensor: Tensor) -> Tensor:
    """Return a copy with all elements, also those that a sparse tensor does not store."""
    detached = tensor.detach()
    return detached.clone() if detached.layout is torch.strided else detached.to_dense()


def _changed(new: Tensor, old: Tensor) -> int:
    """Return how many elements changed; NaN that stays NaN did not."""
    both_nan = new.isnan() & old.isnan()
    return int(((new != old) & ~both_nan).sum())


def _grouped(tensors: Iterable[Tensor], layers: Iterable[str], mark: str = "") -> dict[str, Tensor]:
    """Concatenate the tensors of each layer (weight and bias) as "conv1 weights"."""
    groups: dict[str, list[Tensor]] = {}
    for layer, tensor in zip(layers, tensors, strict=True):
        groups.setdefault(f"{mark} {layer} weights".strip(), []).append(tensor.flatten())
    return {name: torch.cat(parts) for name, parts in groups.items()}
