"""Where does real data come from without a download? From 1,797 handwritten digits that travel with the lab.

Idea: the digits as they are (8 x 8, ten classes), and composites made of them: a few digits scattered on a larger
canvas, where a network must say for every pixel which digit covers it. Few pixels are covered and the loss is a mean
over all of them, so its gradients are small for an honest reason.

Invariant: the first 1,400 digits are for training, the rest for testing, in composites too.

Source: data/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labkit.records import data_folder

TRAIN_DIGITS = 1400
DIGIT_SIZE = 8


@dataclass(frozen=True, eq=False)
class Data:
    """A task's data: FP32 inputs and targets whose first dimension counts examples."""

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def to(self, device: torch.device) -> Data:
        """Return the same data on a device."""
        return Data(*(getattr(self, each.name).to(device) for each in fields(self)))


@cache
def _digits() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    with np.load(data_folder() / "digits.npz") as stored:
        return stored["images"].astype(np.float32) / 16, stored["labels"].astype(np.int64)


@cache
def single_digits() -> Data:
    """Return the digits: inputs [n, 1, 8, 8] between 0 and 1, targets [n] as class numbers.

    >>> single_digits().train_inputs.shape, single_digits().test_inputs.shape
    (torch.Size([1400, 1, 8, 8]), torch.Size([397, 1, 8, 8]))
    """
    images, labels = (torch.from_numpy(part) for part in _digits())
    images = images.unsqueeze(1)
    return Data(images[:TRAIN_DIGITS], labels[:TRAIN_DIGITS], images[TRAIN_DIGITS:], labels[TRAIN_DIGITS:])


@cache
def scattered_digits(size: int = 48, digits: int = 6, train: int = 600, test: int = 100, seed: int = 0) -> Data:
    """Return composites: inputs [n, 1, size, size], targets [n, 10, size, size] of 0 and 1, one map for each class.

    Each canvas is noise between 0 and 0.1 with `digits` digits pasted at random places; a pixel belongs to a class
    where that digit's ink is above 0.4.

    >>> data = scattered_digits(train=4, test=2)
    >>> data.train_inputs.shape, data.test_targets.shape
    (torch.Size([4, 1, 48, 48]), torch.Size([2, 10, 48, 48]))
    """
    images, labels = _digits()
    rng = np.random.default_rng(seed)
    train_part = _scatter(rng, images[:TRAIN_DIGITS], labels[:TRAIN_DIGITS], train, size, digits)
    test_part = _scatter(rng, images[TRAIN_DIGITS:], labels[TRAIN_DIGITS:], test, size, digits)
    return Data(*train_part, *test_part)


def _scatter(
    rng: np.random.Generator,
    images: NDArray[np.float32],
    labels: NDArray[np.int64],
    count: int,
    size: int,
    digits: int,
) -> tuple[Tensor, Tensor]:
    canvases = rng.uniform(0, 0.1, (count, 1, size, size)).astype(np.float32)
    maps = np.zeros((count, 10, size, size), dtype=np.float32)
    for canvas, label_maps in zip(canvases, maps, strict=True):
        for which in rng.integers(len(images), size=digits):
            row, column = rng.integers(size - DIGIT_SIZE + 1, size=2)
            place = np.s_[row : row + DIGIT_SIZE, column : column + DIGIT_SIZE]
            canvas[0][place] = np.maximum(canvas[0][place], images[which])
            label_maps[labels[which]][place] = np.maximum(label_maps[labels[which]][place], images[which] > 0.4)
    return torch.from_numpy(canvases), torch.from_numpy(maps)
