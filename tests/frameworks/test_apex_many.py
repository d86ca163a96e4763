"""Several models, losses and optimizers under apex.amp, with an inf in one gradient.

The inf is planted into each weight and each loss in turn. The steps that it would ruin must be
skipped, and all weights must equal those of a loop of plain torch that skips the same steps.
"""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from labkit.frameworks.apex import amp

X = torch.tensor([1.0, 0.5])
INF = math.inf


class TwoWeights(nn.Module):
    """A model of a weight in FP32 and a second one, which is rounded to FP16 in the forward pass.

    Args:
        unique: distinguishes the weights of two models.
        dtype: the dtype in which the second weight is stored.
    """

    def __init__(self, unique: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight32 = nn.Parameter(unique + torch.arange(2.0))
        self.weight16 = nn.Parameter((1.0 + unique + torch.arange(2.0)).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight32 * self.weight16.half().float()).sum()


# Name -> for each loss, the models whose outputs it adds up; for each optimizer, the models whose
# weights it steps.
SETUPS = {
    "2 models, 2 losses, 1 optimizer": (((0,), (1,)), ((0, 1),)),
    "3 models, 3 losses, 1 optimizer": (((0,), (1, 2), (0, 2)), ((0, 1, 2),)),
    "2 models, 2 losses, 2 optimizers": (((0,), (1,)), ((0,), (1,))),
    "3 models, 3 losses, 2 optimizers": (((0,), (1, 2), (0, 2)), ((0, 2), (1,))),
}


@pytest.fixture(autouse=True)
def reset_after_each_test() -> Iterator[None]:
    yield
    amp._deactivate()
    amp._amp_state.allow_incoming_model_not_fp32 = False


def make(losses, optimizers, dtype):
    models = [TwoWeights(1 + i, dtype) for i in range(1 + max(m for loss in losses for m in loss))]
    lrs = [0.25, 0.5, 0.125]
    sgds = [
        torch.optim.SGD(
            [{"params": models[m].parameters(), "lr": lrs[m] / 64} for m in own],
            momentum=0.125 * (1 + i),
        )
        for i, own in enumerate(optimizers)
    ]
    return models, sgds


def optimizers_of_loss(losses, optimizers, loss):
    """Return the indices of the optimizers that step a model of a loss."""
    return [i for i, own in enumerate(optimizers) if set(own) & set(losses[loss])]


def without_amp(losses, optimizers, iterations, skipped, dtype):
    """Train by torch alone, and return all weights.

    Args:
        losses: the models of each loss, as in `SETUPS`.
        optimizers: the models of each optimizer, as in `SETUPS`.
        iterations: number of iterations.
        skipped: pairs (iteration, optimizer) of the steps that are not taken.
        dtype: the dtype of the second weight of each model.
    """
    models, sgds = make(losses, optimizers, dtype)
    for i in range(iterations):
        for model in models:
            model.zero_grad()
        for loss in losses:
            sum(models[m](X) for m in loss).backward()
        for number, optimizer in enumerate(sgds):
            if (i, number) not in skipped:
                optimizer.step()
    return [p.detach() for model in models for p in model.parameters()]


def under_amp(losses, optimizers, iterations, level, inject, scalers, how):
    """Train under amp, and return the models and optimizers.

    Args:
        losses: the models of each loss, as in `SETUPS`.
        optimizers: the models of each optimizer, as in `SETUPS`.
        iterations: number of iterations.
        level: the opt level.
        inject: (iteration, loss, model, weight): where a gradient becomes inf; None for none.
        scalers: for each loss, the index of its scaler.
        how: "model" or "optimizer": whose zero_grad is called.
    """
    models, sgds = make(losses, optimizers, torch.float16)
    amp._amp_state.allow_incoming_model_not_fp32 = True
    models, sgds = amp.initialize(
        models,
        sgds,
        opt_level=level,
        verbosity=0,
        cast_model_type=False,
        num_losses=max(scalers) + 1,
    )
    for number, scaler in enumerate(amp._amp_state.loss_scalers):
        if scaler.dynamic:
            scaler._loss_scale = 4.0 * 4**number
    for i in range(iterations):
        for holder in models if how == "model" else sgds:
            holder.zero_grad()
        for number, loss in enumerate(losses):
            own = [sgds[o] for o in optimizers_of_loss(losses, optimizers, number)]
            total = sum(models[m](X) for m in loss)
            with amp.scale_loss(
                total, own if len(own) > 1 else own[0], loss_id=scalers[number]
            ) as scaled:
                scaled.backward()
                if inject is not None and inject[:2] == (i, number):
                    getattr(models[inject[2]], inject[3]).grad[0] = INF
        for optimizer in sgds:
            optimizer.step()
    return models, sgds


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("setup", SETUPS)
def test_inf_skips_the_steps_that_it_would_ruin(setup, level):
    losses, optimizers = SETUPS[setup]
    places = [
        (1, loss, m, w)
        for loss, own in enumerate(losses)
        for m in own
        for w in ("weight32", "weight16")
    ]
    zeroed = itertools.cycle(("model", "optimizer"))
    for (inject, one_scaler), how in zip(
        itertools.product([None, *places], (False, True)), zeroed, strict=False
    ):
        if inject is not None and level in ("O0", "O3"):
            # a static scale checks no gradient
            continue
        scalers = [0] * len(losses) if one_scaler else list(range(len(losses)))
        skipped = set()
        if inject is not None:
            skipped = {(1, o) for o in optimizers_of_loss(losses, optimizers, inject[1])}
        # the dtype of the tensor that the optimizer steps for weight16
        stepped = torch.float32 if level == "O2" else torch.float16
        expected = without_amp(losses, optimizers, 3, skipped, stepped)
        models, sgds = under_amp(losses, optimizers, 3, level, inject, scalers, how)
        weights = [p for model in models for p in model.parameters()]
        for weight, reference in zip(weights, expected, strict=True):
            assert torch.equal(weight, reference.to(weight.dtype)), (inject, scalers, how)
        masters = [p for optimizer in sgds for p in amp.master_params(optimizer)]
        assert {master.dtype for master in masters} == {torch.float32, stepped}
        if inject is not None:
            loss_id = scalers[inject[1]]
            assert amp._amp_state.loss_scalers[loss_id].loss_scale() == 4.0 * 4**loss_id / 2
