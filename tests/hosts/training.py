"""A small training for every framework: twelve batches, of which the sixth overflows in FP16.

`own_loop` is the lab's engine in a loop of five lines; what a framework does with the lab's casts
and scale inside must be equal to it, bit for bit, the skipped step included.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from labkit.amp import RECIPES, Engine, ScalerConfig

BATCH, BATCHES, OVERFLOWS, RATE, DECAY = 8, 12, 5, 0.1, 0.9
O1 = replace(RECIPES["O1"], scaler=ScalerConfig())  # torch's knobs


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def points(overflow: bool = True) -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH * BATCHES, 4, generator=generator)
    targets = inputs.mean(dim=1, keepdim=True)
    if overflow:  # the gradient of its loss, times 2^16, is beyond FP16; that of FP32 is finite
        targets[BATCH * OVERFLOWS : BATCH * (OVERFLOWS + 1)] += 100.0
    return TensorDataset(inputs, targets)


def own_loop(schedule: bool = False, epochs: int = 1, clip: float | None = None):
    """Return (losses, weights, scale, which steps were skipped, learning rate)."""
    engine = Engine(network(), partial(torch.optim.SGD, lr=RATE), O1)
    rates = StepLR(engine.optimizer, step_size=1, gamma=DECAY)
    losses = list[float]()
    skipped = list[int]()
    for inputs, targets in zip(*(t.split(BATCH) * epochs for t in points().tensors), strict=True):
        with engine.forward():
            loss = mse_loss(engine(inputs).float(), targets)
        engine.backward(loss)
        if clip is not None:
            clip_as_torch(list(engine.gradients().values()), clip)
        if engine.step().stepped:
            rates.step() if schedule else None
        else:
            skipped.append(len(losses))
        engine.zero_grad()
        losses.append(loss.item())
    weights = {name: weight.clone() for name, weight in engine.weights.named_masters().items()}
    return losses, weights, engine.scaler.scale, skipped, engine.optimizer.param_groups[0]["lr"]


def clip_as_torch(gradients: list[Tensor], max_norm: float) -> None:
    """Clip as `torch.nn.utils.clip_grad_norm_` in frameworks: by a norm in FP32; that of
    `engine.clip` is FP64.
    """
    factor = (max_norm / (nn.utils.get_total_norm(gradients) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


def assert_same(model: nn.Module, weights: dict[str, Tensor]) -> None:
    found = dict(model.named_parameters())
    assert found.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(found[name].detach(), weight), name
