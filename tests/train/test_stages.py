"""Statistics of a watched step, for layers and gradients that need care.

The tensors of a step may be overwritten before it ends, and a gradient may be sparse. The other
tests of watched steps are those of `test_run`.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES
from labkit.train import STAGES, TASKS, StagedStep, Task, TensorSummary, TrainingRun, watch_step

DIGITS = replace(TASKS["digits"], batch_size=4)


def task_of(make_model: Callable[[], nn.Module]) -> Task:
    """Return the task of the digits with another network, trained by SGD."""
    return replace(
        DIGITS,
        make_model=make_model,
        make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    )


def tensors_at(step: StagedStep, stage: str) -> dict[str, TensorSummary]:
    """Return the tensors of a stage by name."""
    return {tensor.name: tensor for tensor in step.stages[STAGES.index(stage)].tensors}


class Network(nn.Module):
    """A layer, an activation and a layer."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.first = nn.Linear(64, 16)
        self.activation = activation
        self.last = nn.Linear(16, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.last(self.activation(self.first(images.reshape(len(images), 64))))


def test_an_output_that_a_later_layer_overwrites_is_summarized_as_it_was() -> None:
    steps = [
        watch_step(TrainingRun(task_of(lambda activation=activation: Network(activation)), "FP32"))
        for activation in (nn.ReLU(inplace=False), nn.ReLU(inplace=True))
    ]
    apart, in_place = [tensors_at(step, "forward") for step in steps]
    assert apart["activation output"].zeros > 0
    assert in_place == apart


class Shift(nn.Module):
    """Adds a weight of the shape of the batch, whose gradient is that of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4, 64))

    def forward(self, images: Tensor) -> Tensor:
        return images.reshape(len(images), 64) + self.shift


def test_the_gradient_of_an_output_that_a_weight_shares_is_summarized_scaled() -> None:
    run = TrainingRun(task_of(lambda: nn.Sequential(Shift(), nn.Linear(64, 10))), "FP32")
    run.scaler = replace(run.scaler, scale=1024.0)
    step = watch_step(run)
    scaled = tensors_at(step, "scaled backward")
    assert scaled["∇ 0 output"].largest == scaled["∇ 0 weights"].largest
    assert (
        scaled["∇ 0 weights"].largest == 1024 * tensors_at(step, "unscale")["∇ 0 weights"].largest
    )


class Embedded(nn.Module):
    """Looks up each pixel in a table of 20 rows, of which the last is never used."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4, sparse=sparse)
        self.last = nn.Linear(64 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        rows = (images.reshape(len(images), 64) * 10).long().clamp(0, 18)
        return self.last(self.table(rows).flatten(1))


@pytest.mark.parametrize("recipe", ["FP32", "O1"])
def test_sparse_gradients_have_the_statistics_of_dense_ones(recipe: str) -> None:
    dense, sparse = [
        watch_step(
            TrainingRun(task_of(lambda is_sparse=is_sparse: Embedded(is_sparse)), RECIPES[recipe])
        )
        for is_sparse in (False, True)
    ]
    for stage in ("scaled backward", "unscale", "check for inf", "step"):
        got = tensors_at(sparse, stage)["∇ table weights" if stage != "step" else "Δ table weights"]
        expected = tensors_at(dense, stage)[got.name]
        assert got.elements == 80
        assert (got.dtype, got.zeros) == (expected.dtype, expected.zeros)
        assert got.largest == pytest.approx(expected.largest, rel=1e-5)
