"""`labkit.frameworks.apex` with several models, losses and optimizers, as in apex's own tests.

An inf is put into each gradient in turn. The weights must equal those of a training by torch alone
that leaves out the steps which the inf would ruin.
"""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from labkit.frameworks.apex import amp

X = torch.tensor([1.0, 0.5])
INF = math.inf


class TwoWeights(nn.Module):
    """A weight in FP32, and one of `dtype` that is rounded to FP16 before it is multiplied."""

    def __init__(self, unique: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight32 = nn.Parameter(unique + torch.arange(2.0))
        self.weight16 = nn.Parameter((1.0 + unique + torch.arange(2.0)).to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.weight32 * self.weight16.half().float()).sum()


# The models that each loss is the sum of, and those that each optimizer steps, by their indices.
SETUPS = {
    "2 models, 2 losses, 1 optimizer": (((0,), (1,)), ((0, 1),)),
    "3 models, 3 losses, 1 optimizer": (((0,), (1, 2), (0, 2)), ((0, 1, 2),)),
    "2 models, 2 losses, 2 optimizers": (((0,), (1,)), ((0,), (1,))),
    "3 models, 3 losses, 2 optimizers": (((0,), (1, 2), (0, 2)), ((0, 2), (1,))),
}


@pytest.fixture(autouse=True)
def torch_as_it_was() -> Iterator[None]:
    yield
    amp._deactivate()
    amp._amp_state.allow_incoming_model_not_fp32 = False


def new_training(losses, optimizers, dtype):
    """Return the models and the optimizers of a setup, the second weights in `dtype`."""
    count = 1 + max(m for loss in losses for m in loss)
    models = [TwoWeights(1 + i, dtype) for i in range(count)]
    # Powers of two, by which products are exact.
    rates = [2.0**-8, 2.0**-7, 2.0**-9]
    sgds = []
    for i, own in enumerate(optimizers):
        groups = [{"params": models[m].parameters(), "lr": rates[m]} for m in own]
        sgds.append(torch.optim.SGD(groups, momentum=0.125 * (1 + i)))
    return models, sgds


def optimizers_of(losses, optimizers, loss):
    """Return the indices of the optimizers that step a model of a loss."""
    return [i for i, own in enumerate(optimizers) if set(own) & set(losses[loss])]


def without_amp(losses, optimizers, iterations, skipped, dtype):
    """Train by torch alone, and return all weights.

    Args:
        losses: The models of each loss.
        optimizers: The models of each optimizer.
        iterations: The number of iterations.
        skipped: The steps that are not taken, as (iteration, optimizer).
        dtype: The dtype of the second weights.
    """
    models, sgds = new_training(losses, optimizers, dtype)
    for i in range(iterations):
        for model in models:
            model.zero_grad()
        for loss in losses:
            sum(models[m](X) for m in loss).backward()
        for number, sgd in enumerate(sgds):
            if (i, number) not in skipped:
                sgd.step()
    return [p.detach() for model in models for p in model.parameters()]


def under_amp(losses, optimizers, iterations, level, inject, scalers, zeroed_by):
    """Train under amp, and return models and optimizers.

    Args:
        losses: The models of each loss.
        optimizers: The models of each optimizer.
        iterations: The number of iterations.
        level: The level of apex.
        inject: The gradient that gets an inf, as (iteration, loss, model, weight), or None.
        scalers: The index of the scaler of each loss.
        zeroed_by: What zeroes the gradients, "model" or "optimizer".
    """
    models, sgds = new_training(losses, optimizers, torch.float16)
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
            scaler._loss_scale = 4.0 ** (1 + number)
    for i in range(iterations):
        for holder in models if zeroed_by == "model" else sgds:
            holder.zero_grad()
        for number, loss in enumerate(losses):
            own = [sgds[o] for o in optimizers_of(losses, optimizers, number)]
            # apex takes one optimizer or a list.
            argument = own if len(own) > 1 else own[0]
            total = sum(models[m](X) for m in loss)
            with amp.scale_loss(total, argument, loss_id=scalers[number]) as scaled:
                scaled.backward()
                if inject is not None and inject[:2] == (i, number):
                    _, _, model, weight = inject
                    getattr(models[model], weight).grad[0] = INF
        for sgd in sgds:
            sgd.step()
    return models, sgds


def places_of(losses, level):
    """Return None, for no inf, and all places of one in the second iteration.

    The levels O0 and O3 have a static scale, which does not look for inf.
    """
    if level in ("O0", "O3"):
        return [None]
    gradients = [
        (1, loss, model, weight)
        for loss, own in enumerate(losses)
        for model in own
        for weight in ("weight32", "weight16")
    ]
    return [None, *gradients]


@pytest.mark.parametrize("level", ["O0", "O1", "O2", "O3"])
@pytest.mark.parametrize("setup", SETUPS)
def test_inf_skips_the_steps_that_it_would_ruin(setup, level):
    losses, optimizers = SETUPS[setup]
    one_for_each = list(range(len(losses)))
    one_for_all = [0] * len(losses)
    for inject in places_of(losses, level):
        skipped = set()
        if inject is not None:
            iteration, loss, *_ = inject
            skipped = {(iteration, o) for o in optimizers_of(losses, optimizers, loss)}
        # The dtype of what the optimizer steps for weight16: O2 has masters.
        stepped = torch.float32 if level == "O2" else torch.float16
        expected = without_amp(losses, optimizers, 3, skipped, stepped)
        for scalers, zeroed_by in ((one_for_each, "model"), (one_for_all, "optimizer")):
            models, sgds = under_amp(losses, optimizers, 3, level, inject, scalers, zeroed_by)
            weights = [p for model in models for p in model.parameters()]
            for weight, reference in zip(weights, expected, strict=True):
                assert torch.equal(weight, reference.to(weight.dtype)), (inject, scalers)
            masters = [p for sgd in sgds for p in amp.master_params(sgd)]
            assert {master.dtype for master in masters} == {torch.float32, stepped}
            if inject is not None:
                # The scale began at 4^(1 + loss_id), and has been halved once.
                loss_id = scalers[inject[1]]
                scale = amp._amp_state.loss_scalers[loss_id].loss_scale()
                assert scale == 4.0 ** (1 + loss_id) / 2
