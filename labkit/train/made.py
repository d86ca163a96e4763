"""Where does data come from that nobody has to download? Text that ships with Python, and pictures drawn by a formula.

Idea: each function returns a `Data`. The text is what Python prints for `help("topics")`, cut into windows; the shapes
are discs and squares in noise; the small targets are a smooth function of eight numbers, five millionths large.

Invariant: a seed gives the same pictures everywhere. The text is the running Python's own: a record names
the version.
"""

from __future__ import annotations

import string
from functools import cache
from pydoc_data.topics import topics

import numpy as np
import torch
from torch import Tensor

from labkit.train.digits import Data, single_digits

CHARACTERS = string.ascii_lowercase + string.digits + " \n.,:;()[]{}'\"_-=<>+*/%|&!?#@\\^~$`"
_PLACE = {character: i for i, character in enumerate(CHARACTERS)}


@cache
def text_windows(length: int = 32, train: int = 4000, test: int = 400) -> Data:
    """Return windows of text: inputs [n, length] as numbers of characters, targets the same one character further.

    >>> data = text_windows(length=8, train=2, test=1)
    >>> data.train_inputs.shape, bool((data.train_inputs[:, 1:] == data.train_targets[:, :-1]).all())
    (torch.Size([2, 8]), True)
    """
    text = " ".join(topics[name] for name in sorted(topics)).lower()
    numbers = torch.tensor([_PLACE.get(character, _PLACE[" "]) for character in text])
    border = len(numbers) * 9 // 10
    return Data(*_windows(numbers[:border], length, train), *_windows(numbers[border:], length, test))


def _windows(numbers: Tensor, length: int, count: int) -> tuple[Tensor, Tensor]:
    starts = torch.linspace(0, len(numbers) - length - 2, count).long()
    windows = torch.stack([numbers[start : start + length + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@cache
def shapes(size: int = 32, train: int = 400, test: int = 80, seed: int = 0) -> Data:
    """Return discs and squares in noise: inputs [n, 1, size, size], targets [n, size, size]; 1 is a disc, 2 a square.

    >>> sorted(shapes(train=4, test=1).train_targets.unique().tolist())
    [0, 1, 2]
    """
    rng = np.random.default_rng(seed)
    pictures = [_picture(rng, size) for _ in range(train + test)]
    inputs = torch.from_numpy(np.stack([picture for picture, _ in pictures])).unsqueeze(1)
    targets = torch.from_numpy(np.stack([labels for _, labels in pictures]))
    return Data(inputs[:train], targets[:train], inputs[train:], targets[train:])


def _picture(rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    rows, columns = np.mgrid[:size, :size]
    picture, labels = rng.normal(0, 0.3, (size, size)), np.zeros((size, size), dtype=np.int64)
    for kind in rng.integers(1, 3, size=4):
        (row, column), radius = rng.integers(4, size - 4, 2), rng.integers(3, size // 6 + 1)
        down, across = np.abs(rows - row), np.abs(columns - column)
        inside = down**2 + across**2 <= radius**2 if kind == 1 else np.maximum(down, across) <= radius
        picture[inside], labels[inside] = rng.normal(0.8, 0.3, int(inside.sum())), kind
    return picture.astype(np.float32), labels


@cache
def small_targets(size: float = 5e-6, train: int = 1000, test: int = 200, seed: int = 0) -> Data:
    """Return inputs [n, 8] from N(0, 1) and targets [n, 1]: a smooth function of them, of standard deviation `size`.

    >>> data = small_targets()
    >>> 4e-6 < float(data.train_targets.std()) < 6e-6
    True
    """
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(train + test, 8)).astype(np.float32)
    raw = np.sin(inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] / 2 + np.tanh(inputs[:, 3:].sum(axis=1))
    targets = torch.from_numpy((raw / raw.std() * size).astype(np.float32)).unsqueeze(1)
    wide = torch.from_numpy(inputs)
    return Data(wide[:train], targets[:train], wide[train:], targets[train:])


@cache
def noisy_digits(noise: float = 0.3, seed: int = 0) -> Data:
    """Return digits with noise of this standard deviation: inputs [n, 1, 8, 8], targets [n, 64] without the noise."""
    clean, generator = single_digits(), torch.Generator().manual_seed(seed)

    def pair(images: Tensor) -> tuple[Tensor, Tensor]:
        return images + noise * torch.randn(images.shape, generator=generator), images.flatten(1)

    return Data(*pair(clean.train_inputs), *pair(clean.test_inputs))
