"""Training tasks as values: data, network, loss, metric, optimizer.

Idea: a task is independent of precision. Some tasks fail in plain FP16:

- `segmentation`, `gauss_conv` (deep) and `small_targets` lose gradients without loss scaling;
  `segmentation_small` is the first, cheap enough for live widgets.
- `painted_picture` loses all gradients of its hidden layers: nothing is learned until a loss scale
  is switched on.
- `fine_tuning` loses updates without master weights.

The others are common networks, most of which train well in any recipe. Tasks in `GPU_TASKS` have a
larger network, most of them a larger batch and fewer steps, and the same loss, metric and
optimizer; each of their steps takes seconds on a CPU.

Invariant: task, recipe, seed and device determine a run. A GPU task differs from its small one in
its description, its sizes and its number of steps only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.formats.arguments import as_row, require_kind
from labkit.formats.rows import Rows
from labkit.train import networks
from labkit.train.data import (
    CHARACTERS,
    DARK,
    SIDE,
    WAVES,
    Data,
    dark_picture,
    noisy_digits,
    scattered_digits,
    shapes,
    single_digits,
    small_targets,
    text_windows,
)
from labkit.train.drawing import (
    Drawing,
    Picture,
    chosen_classes,
    digits_in_a_row,
    found_pixels,
    pixels,
    three_classes,
    to_picture,
    true_pixels,
)

# Of a metric between 0 and 1: two of a hundred digits.
MARGIN = 0.02


@dataclass(frozen=True)
class Task:
    """Training task.

    Attributes:
        make_model: () -> network in FP32, initialised from torch's global generator, which the run
            seeds.
        make_data: () -> Data.
        loss: (FP32 outputs, targets) -> scalar FP32 tensor.
        metric: (FP32 outputs, targets) -> number, 0 to 1, higher is better.
        make_optimizer: parameters -> torch optimizer.
        margin: the largest difference of the metric that does not matter; does not influence the
            training.
        drawing: how its results are drawn (`TrainingRun.pictures`); None if they cannot be drawn.
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
    margin: float = MARGIN
    drawing: Drawing | None = None

    def wanted_picture(self) -> Picture | None:
        """Return the picture of the targets, which `TrainingRun.pictures` approaches.

        It is None if the task has no drawing.
        """
        if self.drawing is None:
            return None
        targets = self.make_data().test_targets[: self.drawing.examples or None]
        return to_picture(self.drawing.targets(targets))


def dice(outputs: Tensor, targets: Tensor) -> float:
    """Return the overlap of predicted and true pixels, 0 to 1.

    It is 2|P and T| / (|P| + |T|), with P where the logit is above 0 and T where the target is.
    """
    require_kind(outputs, Tensor, "outputs")
    require_kind(targets, Tensor, "targets")
    predicted = (outputs > 0).float()
    overlap = float((predicted * targets).sum())
    return 2 * overlap / max(float(predicted.sum() + targets.sum()), 1.0)


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of examples whose largest output is that of the true class, 0 to 1."""
    require_kind(outputs, Tensor, "outputs")
    require_kind(targets, Tensor, "targets")
    return float((outputs.argmax(dim=1) == targets).float().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of the targets' variance that the outputs explain, 0 to 1.

    A negative share, or NaN, is returned as 0.
    """
    share = 1 - float(((outputs - targets) ** 2).mean() / targets.var(correction=0))
    # `max` would let NaN through
    return share if share > 0 else 0.0


def next_character(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of logits [n, t, characters] and characters [n, t]."""
    return F.cross_entropy(outputs.flatten(0, 1), targets.flatten())


def character_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """Return the share of characters [n, t] with the largest of logits [n, t, characters]."""
    return accuracy(outputs.flatten(0, 1), targets.flatten())


def _pretrained_mlp() -> nn.Module:
    """Return a copy of an MLP that was trained on upright digits."""
    return copy.deepcopy(_pretrained(torch.initial_seed()))


@cache
def _pretrained(seed: int) -> nn.Module:
    # The first call trains, and later ones do not: neither may change the random numbers.
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would seed the generators of GPUs, too.
        torch.default_generator.manual_seed(seed)
        net = networks.mlp()
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
    return Data(
        turn(data.train_inputs), data.train_targets, turn(data.test_inputs), data.test_targets
    )


_SEGMENTATION = Task(
    name="segmentation",
    about="find scattered digits pixel by pixel; the loss is a mean over 552,960 elements",
    make_model=networks.segmenter,
    make_data=scattered_digits,
    loss=F.binary_cross_entropy_with_logits,
    metric=dice,
    metric_name="Dice",
    make_optimizer=partial(torch.optim.Adam, lr=5e-3),
    batch_size=24,
    steps=250,
    drawing=Drawing(1, found_pixels, true_pixels),
)
_DIGITS = Task(
    name="digits",
    about="classify digits with a small MLP and plain SGD",
    make_model=partial(networks.mlp, depth=2),
    make_data=single_digits,
    loss=F.cross_entropy,
    metric=accuracy,
    metric_name="accuracy",
    make_optimizer=partial(torch.optim.SGD, lr=0.1),
    batch_size=64,
    steps=400,
)
_CHARACTERS = Task(
    name="char_lstm",
    about="predict the next character of Python's own help with an LSTM",
    make_model=partial(networks.CharLstm, len(CHARACTERS)),
    make_data=text_windows,
    loss=next_character,
    metric=character_accuracy,
    metric_name="accuracy",
    make_optimizer=partial(torch.optim.Adam, lr=5e-3),
    batch_size=32,
    steps=250,
)
_ROWS = (
    _SEGMENTATION,
    replace(
        _SEGMENTATION,
        name="segmentation_small",
        about=(
            "the same with a coarser network, a third of the cost of a step: the one to watch live"
        ),
        make_model=networks.patch_segmenter,
    ),
    replace(
        _DIGITS,
        name="gauss_conv",
        about="classify digits with six plain convolutions whose initial weights are small",
        make_model=networks.gauss_conv,
        make_optimizer=partial(torch.optim.Adam, lr=1e-3),
    ),
    replace(
        _DIGITS,
        name="fine_tuning",
        about="adapt a trained digit classifier to rotated digits with a small learning rate",
        make_model=_pretrained_mlp,
        make_data=_rotated_digits,
        make_optimizer=partial(torch.optim.Adam, lr=2e-5),
        steps=2000,
    ),
    _DIGITS,
    replace(
        _DIGITS,
        name="digits_cnn",
        about="classify digits with two convolutions and batch norm",
        make_model=networks.batch_norm_cnn,
        make_optimizer=partial(torch.optim.Adam, lr=1e-3),
        steps=300,
    ),
    Task(
        name="autoencoder",
        about="take the noise out of digits, through 24 numbers",
        make_model=networks.autoencoder,
        make_data=noisy_digits,
        loss=F.mse_loss,
        metric=r2,
        metric_name="R2",
        make_optimizer=partial(torch.optim.Adam, lr=1e-3),
        batch_size=64,
        steps=600,
        drawing=Drawing(8, digits_in_a_row, digits_in_a_row),
    ),
    _CHARACTERS,
    replace(
        _CHARACTERS,
        name="gpt",
        about="predict the next character of Python's own help with a small transformer",
        make_model=partial(networks.Gpt, len(CHARACTERS), 32),
        make_optimizer=partial(torch.optim.Adam, lr=2e-3),
    ),
    Task(
        name="unet",
        about="tell discs, squares and ground apart, pixel by pixel",
        make_model=networks.Unet,
        make_data=shapes,
        loss=F.cross_entropy,
        metric=accuracy,
        metric_name="accuracy",
        make_optimizer=partial(torch.optim.Adam, lr=3e-3),
        batch_size=12,
        steps=120,
        drawing=Drawing(1, chosen_classes, three_classes),
    ),
    Task(
        name="small_targets",
        about=(
            "a regression whose targets are five millionths large; the loss is a mean over 1,000 "
            "of them"
        ),
        make_model=networks.tanh_mlp,
        make_data=small_targets,
        loss=F.mse_loss,
        metric=r2,
        metric_name="R2",
        make_optimizer=partial(torch.optim.SGD, lr=0.3),
        batch_size=1000,
        steps=400,
    ),
    Task(
        name="painted_picture",
        about=(
            "paint a dark picture of 32 x 32 pixels; the loss is the sum of the squared errors of "
            "its pixels"
        ),
        make_model=partial(networks.painter, 4 * WAVES, unit=DARK),
        make_data=dark_picture,
        loss=partial(F.mse_loss, reduction="sum"),
        metric=r2,
        metric_name="R2",
        make_optimizer=partial(torch.optim.Adam, lr=3e-3),
        batch_size=SIDE**2,
        steps=1000,
        drawing=Drawing(0, pixels, pixels),
    ),
)
TASKS: dict[str, Task] = Rows({task.name: task for task in _ROWS})


SUFFIX = "_gpu"

_GPU_ROWS = (
    replace(
        TASKS["segmentation"],
        about="find scattered digits pixel by pixel; the loss is a mean over 5,898,240 elements",
        make_model=partial(networks.segmenter, channels=128),
        make_data=partial(scattered_digits, size=96, digits=24, train=400),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["gpt"],
        about="predict the next character of Python's own help with a transformer of eight layers",
        make_model=partial(networks.Gpt, len(CHARACTERS), 256, width=512, heads=8, depth=8),
        make_data=partial(text_windows, length=256),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["unet"],
        make_model=partial(networks.Unet, channels=64),
        make_data=partial(shapes, size=128),
        batch_size=64,
        steps=100,
    ),
    replace(
        TASKS["char_lstm"],
        make_model=partial(networks.CharLstm, len(CHARACTERS), width=1024),
        make_data=partial(text_windows, length=128),
        batch_size=128,
        steps=100,
    ),
    replace(
        TASKS["digits"],
        about="classify digits with a wide MLP and plain SGD",
        make_model=partial(networks.mlp, hidden=4096),
        batch_size=1024,
        steps=200,
    ),
    replace(
        TASKS["digits_cnn"],
        make_model=partial(networks.batch_norm_cnn, channels=128),
        batch_size=1024,
        steps=200,
    ),
    replace(
        TASKS["gauss_conv"], make_model=partial(networks.gauss_conv, channels=256), batch_size=512
    ),
    replace(
        TASKS["autoencoder"],
        make_model=partial(networks.autoencoder, hidden=4096),
        batch_size=1024,
        steps=200,
    ),
    replace(TASKS["small_targets"], make_model=partial(networks.tanh_mlp, hidden=2048)),
)
GPU_TASKS: dict[str, Task] = Rows(
    {task.name + SUFFIX: replace(task, name=task.name + SUFFIX) for task in _GPU_ROWS}
)


def as_task(task: Task | str) -> Task:
    """Return the task that an argument names: a `Task`, or a name in `TASKS` or `GPU_TASKS`.

    Raises:
        TypeError: the argument is neither.
        ValueError: no task has this name.

    >>> as_task("digits") is TASKS["digits"]
    True
    """
    return as_row(task, Task, {**TASKS, **GPU_TASKS}, "task")
