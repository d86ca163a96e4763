"""Data that nobody has to download, and picture sets that are on the disk already.

Idea: 1,797 handwritten digits that travel with the lab (8 x 8, ten classes), and composites made of them: a few digits
scattered on a larger canvas, where a network must say for every pixel which digit covers it. Few pixels are covered and
the loss is a mean over all of them, so its gradients are small for an honest reason. Then text that ships with Python
(`help("topics")`, cut into windows), discs and squares in noise, and a smooth function of eight numbers, five
millionths large. MNIST and CIFAR-10 are read from a folder: each file is checked (is it there, does it say what it is,
is it as long as it says) before a number of it is used.

Invariant: the first 1,400 digits are for training, the rest for testing, in composites too. A seed gives the same
pictures everywhere; the text is the running Python's own, and a record names the version. What is read from files has
the sets' own split and order; pixels are FP32 between 0 and 1.

Source: data/README.md; yann.lecun.com/exdb/mnist (IDX format), cs.toronto.edu/~kriz/cifar.html (binary version).
"""

from __future__ import annotations

import gzip
import string
import zlib
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

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
    rng: np.random.Generator, images: NDArray[np.float32], labels: NDArray[np.int64], count: int, size: int, digits: int
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


MNIST = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
CIFAR_ROW = 1 + 3 * 32 * 32  # label, then red, green and blue, row by row


def mnist(folder: str | Path) -> Data:
    """Return MNIST from its four files, plain or .gz: inputs [n, 1, 28, 28], targets [n].

    Raises:
        FileNotFoundError: one of the files is not in the folder; the message says which.
        ValueError: a file is not what its name says, or there are not as many labels as images.
    """
    images, labels, test_images, test_labels = (_idx(Path(folder), name) for name in MNIST)
    for some, theirs, name in ((images, labels, MNIST[1]), (test_images, test_labels, MNIST[3])):
        if len(some) != len(theirs):
            raise ValueError(f"{Path(folder) / name} has {len(theirs):,} labels for {len(some):,} images")
    inputs, test_inputs = (pixels.unsqueeze(1).float() / 255 for pixels in (images, test_images))
    return Data(inputs, labels.long(), test_inputs, test_labels.long())


def cifar10(folder: str | Path) -> Data:
    """Return CIFAR-10 from its binary version: inputs [n, 3, 32, 32], targets [n].

    Raises:
        FileNotFoundError: one of the files is not in the folder; the message says which.
        ValueError: a file's length is not a whole number of pictures, or a label is above 9.
    """
    batches = [_cifar(Path(folder), f"data_batch_{i}.bin") for i in range(1, 6)]
    test = _cifar(Path(folder), "test_batch.bin")
    train = torch.cat(batches)
    train_inputs, test_inputs = (rows[:, 1:].reshape(-1, 3, 32, 32).float() / 255 for rows in (train, test))
    return Data(train_inputs, train[:, 0].long(), test_inputs, test[:, 0].long())


def _read(folder: Path, name: str) -> bytes:
    if (plain := folder / name).is_file():
        return plain.read_bytes()
    if (packed := folder / f"{name}.gz").is_file():
        try:
            return gzip.decompress(packed.read_bytes())
        except (EOFError, OSError, zlib.error) as error:  # cut off, not gzip, or damaged inside
            raise ValueError(f"{packed} cannot be unpacked: {error}. Copy or download it again.") from error
    there = ", ".join(sorted(p.name for p in folder.iterdir())[:6]) if folder.is_dir() else "no such folder"
    raise FileNotFoundError(f"{folder} was asked for {name} (or {name}.gz); there is: {there or 'nothing'}")


def _idx(folder: Path, name: str) -> Tensor:
    """Return the array of an IDX file: two zeros, 8 for bytes, the number of dimensions, their lengths, the bytes."""
    content = _read(folder, name)
    dimensions = 3 if "idx3" in name else 1
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < 4 + 4 * dimensions:
        raise ValueError(f"{folder / name} is no IDX file of {dimensions} dimensions; it begins {content[:4].hex()}")
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if len(values) != shape.prod():
        raise ValueError(f"{folder / name} says {shape.prod():,} bytes for {shape.tolist()}, and has {len(values):,}")
    return torch.from_numpy(values.reshape(shape).copy())


def _cifar(folder: Path, name: str) -> Tensor:
    content = np.frombuffer(_read(folder, name), np.uint8)
    if len(content) == 0 or len(content) % CIFAR_ROW:
        raise ValueError(
            f"{folder / name} has {len(content):,} bytes, which is no whole number of pictures of {CIFAR_ROW:,} bytes. "
            "The lab reads CIFAR-10's binary version (cifar-10-binary.tar.gz)."
        )
    rows = torch.from_numpy(content.reshape(-1, CIFAR_ROW).copy())
    if int(rows[:, 0].max()) > 9:
        raise ValueError(f"{folder / name} has a label of {int(rows[:, 0].max())}; CIFAR-10's are 0 to 9")
    return rows
