"""Statistics of one training step at eight stages, from weight casts to the copy back.

Idea: hooks on the layers and the engine observe the run's own step; nothing is computed twice.

Invariant: observation does not change the run, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    weights = run.weights
    outputs = dict[str, Tensor]()
    gradients = dict[Moment, dict[str, Tensor]]()

    def keep_output(name: str, output: Tensor) -> None:
        outputs[name] = output.detach()

    def keep_gradients(event: StepEvent[StepReport]) -> None:
        gradients[event.moment] = {
            name: gradient.clone() for name, gradient in event.gradients.items()
        }

    with one_thread():
        scale = run.scaler.scale
        before = [weight.detach().clone() for weight in weights.model_weights]
        masters = [master.detach().clone() for master in weights.master_weights]
        with (
            layer_outputs(run.model, keep_output),
            probe(run.model) as probed,
            run.engine.listen(keep_gradients),
        ):
            loss, report = run.take_step()
        updates = [
            new.detach() - old for new, old in zip(weights.master_weights, masters, strict=True)
        ]
        after = [weight.detach() for weight in weights.model_weights]
        names = {
            id(parameter): name.rpartition(".")[0]
            for name, parameter in run.model.named_parameters()
        }
        layers = [names[id(weight)] for weight in weights.model_weights]

        def of_weights(known: Mapping[str, Tensor]) -> list[Tensor]:
            """Return the gradient of each weight, or zeros if it has none."""
            return [
                known.get(weights.names[weight], torch.zeros_like(weight))
                for weight in weights.model_weights
            ]

        scaled = of_weights(gradients[Moment.SCALED])
        unscaled = of_weights(gradients[Moment.UNSCALED])
        # one dictionary for each of STAGES; the check for inf sees what unscaling returns
        tensors = (
            _grouped(before, layers),
            {f"{name} output": tensor for name, tensor in outputs.items()},
            {"loss": loss, "loss × scale": loss * scale},
            {f"∇ {name} output": tensor for name, tensor in probed.gradients.items()}
            | _grouped(scaled, layers, "∇"),
            _grouped(unscaled, layers, "∇"),
            _grouped(unscaled, layers, "∇"),
            _grouped(updates, layers, "Δ"),
            _grouped(after, layers),
        )
        return StagedStep(
            recipe=run.recipe.name,
            step=run.steps_done,
            stages=tuple(
                StepStage(stage, tuple(summarize(name, tensor) for name, tensor in named.items()))
                for stage, named in zip(STAGES, tensors, strict=True)
            ),
            scale=scale,
            loss=loss.item(),
            found_inf=report.found_inf,
            stepped=report.stepped,
            scale_after=run.scaler.scale,
            weights=sum(weight.numel() for weight in after),
            moved=sum(int((update != 0).sum()) for update in updates),
            model_moved=sum(
                int((new != old).sum()) for new, old in zip(after, before, strict=True)
            ),
        )


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


def _grouped(tensors: Iterable[Tensor], layers: Iterable[str], mark: str = "") -> dict[str, Tensor]:
    """Concatenate the tensors of each layer (weight and bias) as "conv1 weights"."""
    groups: dict[str, list[Tensor]] = {}
    for layer, tensor in zip(layers, tensors, strict=True):
        groups.setdefault(f"{mark} {layer} weights".strip(), []).append(tensor.flatten())
    return {name: torch.cat(parts) for name, parts in groups.items()}
