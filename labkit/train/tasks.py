"""What is there to learn? Tasks, as values: data, network, loss, metric, optimizer.

Idea: a task knows nothing of precision. These were chosen because FP16 does something different to each: `segmentation`
loses its gradients without scaling (`segmentation_small` is the same, cheap enough to watch live), `gauss_conv` too but
for its depth, `fine_tuning` loses its updates without master weights, and `digits` does not care.

Invariant: a task, a recipe, a seed and a device decide a run.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.train.digits import Data, scattered_digits, single_digits


@dataclass(frozen=True)
class Task:
    """Something to learn.

    make_model      () -> network in FP32, initialised from torch's global generator (which the run seeds)
    make_data       () -> Data
    loss            (FP32 outputs, targets) -> scalar FP32 tensor
    metric          (FP32 outputs, targets) -> number, 0 to 1, higher is better
    make_optimizer  parameters -> torch optimizer
    """

    name: str
    about: str
    make_model: Callable[[], nn.Module]
    make_data: Callable[[], Data]
    loss: Callable[[Tensor, Tensor], Tensor]
    metric: Callable[[Tensor, Tensor], float]
    metric_name: str
    make_optimizer: Callable[[Iterable[Tensor]], torch.optim.Optimizer]
    batch_size: int
    steps: int


def dice(outputs: Tensor, targets: Tensor) -> float:
    """Return the overlap 2|P and T| / (|P| + |T|) of predicted pixels P (logit above 0) and true ones T, 0 to 1."""
    predicted = (outputs > 0).float()
    both = float((predicted * targets).sum())
    return 2 * both / max(float(predicted.sum() + targets.sum()), 1.0)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose largest output is the right class, 0 to 1."""
    return float((outputs.argmax(dim=1) == targets).float().mean())


RARE = 0.01  # about how many pixels a given class covers


LAYER_NAMES = {
    nn.Conv2d: "conv",
    nn.GroupNorm: "norm",
    nn.ReLU: "relu",
    nn.MaxPool2d: "pool",
    nn.PixelShuffle: "shuffle",
    nn.Flatten: "flatten",
    nn.Linear: "linear",
}


def _chain(*layers: nn.Module) -> nn.Sequential:
    """Return the layers one after another, named by kind and number: conv1, norm1, relu1, conv2, ..."""
    counts: Counter[str] = Counter()
    named: dict[str, nn.Module] = {}
    for layer in layers:
        kind = LAYER_NAMES[type(layer)]
        counts[kind] += 1
        named[f"{kind}{counts[kind]}"] = layer
    return nn.Sequential(OrderedDict(named))


def _segmenter(channels: int = 32) -> nn.Module:
    first = (*_block(1, channels), nn.MaxPool2d(2))
    return _chain(*first, *_block(channels, channels), *_block(channels, channels), *_pixel_head(channels, 2))


def _patch_segmenter(channels: int = 32, patch: int = 4) -> nn.Module:
    first = _block(1, channels, nn.Conv2d(1, channels, patch + 2, stride=patch, padding=1))
    return _chain(*first, *_block(channels, channels), *_block(channels, channels), *_pixel_head(channels, patch))


def _block(inputs: int, outputs: int, conv: nn.Conv2d | None = None) -> tuple[nn.Module, ...]:
    return conv or nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU()


def _pixel_head(channels: int, upscale: int) -> tuple[nn.Module, ...]:
    """Ten logits for every pixel; they start from how rare a covered pixel is."""
    head = nn.Conv2d(channels, 10 * upscale**2, 1)
    assert head.bias is not None
    nn.init.constant_(head.bias, math.log(RARE / (1 - RARE)))
    return head, nn.PixelShuffle(upscale)


def _gauss_conv(depth: int = 6, channels: int = 32, deviation: float = 0.01) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Conv2d(1 if i == 0 else channels, channels, 3, padding=1), nn.ReLU()]
        if i == 1:
            layers.append(nn.MaxPool2d(2))
    net = _chain(*layers, nn.Flatten(), nn.Linear(channels * 4 * 4, 10))
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            nn.init.normal_(parameter, std=deviation)  # as AlexNet did, before initialisation knew about depth
        else:
            nn.init.zeros_(parameter)
    return net


def _mlp(hidden: int = 128, depth: int = 4) -> nn.Module:
    sizes = [64] + [hidden] * depth
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    return _chain(nn.Flatten(), *layers, nn.Linear(hidden, 10))


def _pretrained_mlp() -> nn.Module:
    net = _mlp()
    data = single_digits()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(600):
        rows = torch.randint(len(data.train_inputs), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(data.train_inputs[rows]), data.train_targets[rows]).backward()
        optimizer.step()
    return net


def _rotated_digits() -> Data:
    data = single_digits()
    turn = partial(torch.rot90, dims=(2, 3))
    return Data(turn(data.train_inputs), data.train_targets, turn(data.test_inputs), data.test_targets)


_SEGMENTATION = Task(
    name="segmentation",
    about="find scattered digits pixel by pixel; the loss is a mean over 552,960 elements",
    make_model=_segmenter,
    make_data=scattered_digits,
    loss=F.binary_cross_entropy_with_logits,
    metric=dice,
    metric_name="Dice",
    make_optimizer=partial(torch.optim.Adam, lr=5e-3),
    batch_size=24,
    steps=250,
)
_ROWS = (
    _SEGMENTATION,
    replace(
        _SEGMENTATION,
        name="segmentation_small",
        about="the same with a coarser network, a third of the cost of a step: the one to watch live",
        make_model=_patch_segmenter,
    ),
    Task(
        name="gauss_conv",
        about="classify digits with six plain convolutions whose initial weights are small",
        make_model=_gauss_conv,
        make_data=single_digits,
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        make_optimizer=partial(torch.optim.Adam, lr=1e-3),
        batch_size=64,
        steps=400,
    ),
    Task(
        name="fine_tuning",
        about="adapt a trained digit classifier to rotated digits with a small learning rate",
        make_model=_pretrained_mlp,
        make_data=_rotated_digits,
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        make_optimizer=partial(torch.optim.Adam, lr=2e-5),
        batch_size=64,
        steps=2000,
    ),
    Task(
        name="digits",
        about="classify digits with a small MLP and plain SGD",
        make_model=partial(_mlp, depth=2),
        make_data=single_digits,
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        make_optimizer=partial(torch.optim.SGD, lr=0.1),
        batch_size=64,
        steps=400,
    ),
)
TASKS: dict[str, Task] = {task.name: task for task in _ROWS}
