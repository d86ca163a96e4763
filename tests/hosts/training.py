"""A small training for every framework: twelve batches, of which the sixth overflows in FP16.

`own_loop` trains it with labkit's engine alone. A framework that uses labkit's casts and scaler
must give the same bits, and skip the same step.
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import TensorDataset

from labkit.amp import RECIPES, Engine, ScalerConfig

# Examples of a batch, and number of batches.
BATCH = 8
BATCHES = 12
# The batch whose scaled gradients overflow in FP16.
OVERFLOWS = 5
# Learning rate, and its factor after each step of a schedule.
RATE = 0.1
DECAY = 0.9
# With the default settings of torch's GradScaler.
O1 = replace(RECIPES["O1"], scaler=ScalerConfig())


def network() -> nn.Module:
    """Return a network of two linear layers, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))


def points(overflow: bool = True) -> TensorDataset:
    """Return inputs and their means as targets, always the same.

    Args:
        overflow: Whether the targets of one batch are so large that its gradients overflow.
    """
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(BATCH * BATCHES, 4, generator=generator)
    targets = inputs.mean(dim=1, keepdim=True)
    if overflow:
        # The gradient of this loss times 2^16 is beyond FP16, but is finite in FP32.
        targets[BATCH * OVERFLOWS : BATCH * (OVERFLOWS + 1)] += 100.0
    return TensorDataset(inputs, targets)


def own_loop(
    schedule: bool = False, epochs: int = 1, clip: float | None = None, clips_as_torch: bool = True
):
    """Train with labkit's engine alone.

    Args:
        schedule: Whether the learning rate decays after each step that is not skipped.
        epochs: How often the batches are used.
        clip: Largest norm of the gradients.
        clips_as_torch: Whether the gradients are clipped by `clip_as_torch`; otherwise by
            `engine.clip`.

    Returns:
        Losses, weights by name, the last scale, numbers of skipped steps, and the learning rate.
    """
    engine = Engine(network(), partial(torch.optim.SGD, lr=RATE), O1)
    rates = StepLR(engine.optimizer, step_size=1, gamma=DECAY)
    losses = list[float]()
    skipped = list[int]()
    inputs_of_all, targets_of_all = points().tensors
    batches = list(zip(inputs_of_all.split(BATCH), targets_of_all.split(BATCH), strict=True))
    for inputs, targets in batches * epochs:
        with engine.forward():
            loss = mse_loss(engine(inputs).float(), targets)
        engine.backward(loss)
        if clip is not None and not clips_as_torch:
            engine.clip(clip)
        elif clip is not None:
            clip_as_torch(list(engine.gradients().values()), clip)
        is_stepped = engine.step().stepped
        if not is_stepped:
            skipped.append(len(losses))
        elif schedule:
            rates.step()
        engine.zero_grad()
        losses.append(loss.item())
    weights = {name: weight.clone() for name, weight in engine.weights.named_masters().items()}
    return losses, weights, engine.scaler.scale, skipped, engine.optimizer.param_groups[0]["lr"]


def clip_as_torch(gradients: list[Tensor], max_norm: float) -> None:
    """Clip as `torch.nn.utils.clip_grad_norm_` does: by a norm in FP32.

    The norm of `engine.clip` is FP64, so that its last bits may differ.
    """
    factor = (max_norm / (nn.utils.get_total_norm(gradients) + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)


def assert_same(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Assert that the parameters of a model are these weights, to the bit."""
    parameters = dict(model.named_parameters())
    assert parameters.keys() == weights.keys()
    for name, weight in weights.items():
        assert torch.equal(parameters[name].detach(), weight), name
