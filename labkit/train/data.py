"""Data sets of the tasks: shipped with the lab, generated, or loaded from a local folder.

- Digits: 1,797 handwritten digits (8 x 8, ten classes), shipped with the lab, also with noise or
  rotated.
- Scattered digits: a few digits on a larger canvas, to be classified for each pixel. Few pixels are
  covered and the loss is a mean over all, which makes its gradients small.
- Text: Python's own `help("topics")`, cut into windows.
- Shapes: discs and squares in noise.
- Small targets: a smooth function of eight numbers, with a standard deviation of five millionths.
- Dark picture: a drawn face of 32 x 32 pixels, whose brightness is about 2^-14.
- MNIST and CIFAR-10: loaded from a folder; presence, header and length of each file are validated
  first.

Invariant: the first 1,400 digits are for training, the others for testing, in composites too. A
seed generates the same data everywhere; the text depends on the version of Python, which a record
names. MNIST and CIFAR-10 keep their split and order. Pixels are FP32, between 0 and 1 except where
noise is added and in the dark picture.

Source: data/README.md; yann.lecun.com/exdb/mnist (IDX format), cs.toronto.edu/~kriz/cifar.html
    (binary version).
"""

from __future__ import annotations

import gzip
import math
import string
import zlib
from dataclasses import dataclass
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
    """Training and test data of a task, examples first.

    Inputs are FP32, or indices of characters; targets are FP32, or numbers of classes.
    """

    train_inputs: Tensor
    train_targets: Tensor
    test_inputs: Tensor
    test_targets: Tensor

    def to(self, device: torch.device) -> Data:
        return Data(
            self.train_inputs.to(device),
            self.train_targets.to(device),
            self.test_inputs.to(device),
            self.test_targets.to(device),
        )


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
    return Data(
        images[:TRAIN_DIGITS], labels[:TRAIN_DIGITS], images[TRAIN_DIGITS:], labels[TRAIN_DIGITS:]
    )


@cache
def scattered_digits(
    size: int = 48, digits: int = 6, train: int = 600, test: int = 100, seed: int = 0
) -> Data:
    """Return composites of digits.

    Shapes: inputs [n, 1, size, size], targets [n, 10, size, size] of 0 and 1, one map for each
    class.

    Each canvas is noise between 0 and 0.1 with `digits` digits at random positions; a pixel belongs
    to a class where a digit's value is above 0.4.

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
            # views: overlapping digits are united, neither hides the other
            pixels = canvas[0][place]
            pixels[:] = np.maximum(pixels, images[which])
            labelled = label_maps[labels[which]][place]
            labelled[:] = np.maximum(labelled, images[which] > 0.4)
    return torch.from_numpy(canvases), torch.from_numpy(maps)


CHARACTERS = string.ascii_lowercase + string.digits + " \n.,:;()[]{}'\"_-=<>+*/%|&!?#@\\^~$`"
_INDEX = {character: i for i, character in enumerate(CHARACTERS)}


@cache
def text_windows(length: int = 32, train: int = 4000, test: int = 400) -> Data:
    """Return windows of text: inputs [n, length] as character indices, targets one character later.

    >>> data = text_windows(length=8, train=2, test=1)
    >>> inputs, targets = data.train_inputs, data.train_targets
    >>> inputs.shape, bool((inputs[:, 1:] == targets[:, :-1]).all())
    (torch.Size([2, 8]), True)
    """
    text = " ".join(topics[name] for name in sorted(topics)).lower()
    space = _INDEX[" "]
    indices = torch.tensor([_INDEX.get(character, space) for character in text])
    # the last tenth is for testing
    border = len(indices) * 9 // 10
    train_inputs, train_targets = _windows(indices[:border], length, train)
    test_inputs, test_targets = _windows(indices[border:], length, test)
    return Data(train_inputs, train_targets, test_inputs, test_targets)


def _windows(indices: Tensor, length: int, count: int) -> tuple[Tensor, Tensor]:
    starts = torch.linspace(0, len(indices) - length - 2, count).long()
    windows = torch.stack([indices[start : start + length + 1] for start in starts.tolist()])
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


@cache
def shapes(size: int = 32, train: int = 400, test: int = 80, seed: int = 0) -> Data:
    """Return discs (1) and squares (2) in noise (0).

    Shapes: inputs [n, 1, size, size], targets [n, size, size].

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
    picture = rng.normal(0, 0.3, (size, size))
    labels = np.zeros((size, size), dtype=np.int64)
    for kind in rng.integers(1, 3, size=4):
        row, column = rng.integers(4, size - 4, 2)
        radius = rng.integers(3, size // 6 + 1)
        down = np.abs(rows - row)
        across = np.abs(columns - column)
        if kind == 1:
            inside = down**2 + across**2 <= radius**2
        else:
            inside = np.maximum(down, across) <= radius
        picture[inside] = rng.normal(0.8, 0.3, int(inside.sum()))
        labels[inside] = kind
    return picture.astype(np.float32), labels


@cache
def small_targets(size: float = 5e-6, train: int = 1000, test: int = 200, seed: int = 0) -> Data:
    """Return inputs [n, 8] from N(0, 1) and targets [n, 1].

    The targets are a smooth function of the inputs with standard deviation `size`.

    >>> data = small_targets()
    >>> 4e-6 < float(data.train_targets.std()) < 6e-6
    True
    """
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(train + test, 8)).astype(np.float32)
    raw = (
        np.sin(inputs[:, 0]) + inputs[:, 1] * inputs[:, 2] / 2 + np.tanh(inputs[:, 3:].sum(axis=1))
    )
    targets = torch.from_numpy((raw / raw.std() * size).astype(np.float32)).unsqueeze(1)
    wide = torch.from_numpy(inputs)
    return Data(wide[:train], targets[:train], wide[train:], targets[train:])


# Pixels of a side of the picture.
SIDE = 32
# Frequencies of each coordinate.
WAVES = 4
# Standard deviation of the brightness, 61 millionths: the smallest normal number of FP16.
DARK = 2.0**-14


@cache
def dark_picture(side: int = SIDE, waves: int = WAVES, brightness: float = DARK) -> Data:
    """Return the pixels of a drawn face: inputs [side * side, 4 * waves], targets [side * side, 1].

    The inputs of a pixel are sines and cosines of its two coordinates, at `waves` frequencies. Its
    target has a mean of 0 and a standard deviation of `brightness`. All pixels are training data
    and test data: the task is to paint this picture.

    Source: Mildenhall et al., "NeRF", arXiv:2003.08934, 5.1 (coordinates as sines and cosines).

    >>> data = dark_picture()
    >>> data.train_inputs.shape, data.train_targets.shape
    (torch.Size([1024, 16]), torch.Size([1024, 1]))
    """
    along = torch.linspace(-1, 1, side)
    y, x = torch.meshgrid(along, along, indexing="ij")
    coordinates = torch.stack([x, y], dim=-1).reshape(-1, 2, 1)
    angles = coordinates * math.pi / 2 * 2.0 ** torch.arange(waves)
    inputs = torch.cat([angles.sin(), angles.cos()], dim=-1).flatten(1)
    face = _face(x, y).reshape(-1, 1)
    targets = (face - face.mean()) / face.std() * brightness
    return Data(inputs, targets, inputs, targets)


def _face(x: Tensor, y: Tensor) -> Tensor:
    """Return the brightness, 0 to 1, at coordinates from -1 to 1; y goes down."""
    radius = torch.hypot(x, y)
    brightness = torch.where(radius < 0.85, 0.4, 0.0)
    for eye in (-0.35, 0.35):
        brightness[torch.hypot(x - eye, y + 0.3) < 0.16] = 1.0
    mouth = (radius > 0.45) & (radius < 0.62) & (y > 0.1)
    brightness[mouth] = 1.0
    return brightness


@cache
def noisy_digits(noise: float = 0.3, seed: int = 0) -> Data:
    """Return digits with noise of a standard deviation.

    Shapes: inputs [n, 1, 8, 8], clean targets [n, 64].
    """
    clean = single_digits()
    generator = torch.Generator().manual_seed(seed)

    def pair(images: Tensor) -> tuple[Tensor, Tensor]:
        return images + noise * torch.randn(images.shape, generator=generator), images.flatten(1)

    return Data(*pair(clean.train_inputs), *pair(clean.test_inputs))


# Files of MNIST: images and labels for training, images and labels for testing.
MNIST = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
# Bytes of an image: the label, then red, green and blue, row by row.
CIFAR_ROW = 1 + 3 * 32 * 32


def mnist(folder: str | Path) -> Data:
    """Load MNIST from its four files, plain or .gz: inputs [n, 1, 28, 28], targets [n].

    Raises:
        FileNotFoundError: a file is missing in the folder.
        ValueError: a file is not of the expected kind, or the numbers of labels and images differ.
    """
    images, labels, test_images, test_labels = (_load_idx(Path(folder), name) for name in MNIST)
    for part, part_labels, name in (
        (images, labels, MNIST[1]),
        (test_images, test_labels, MNIST[3]),
    ):
        if len(part) != len(part_labels):
            raise ValueError(
                f"expected {len(part):,} labels in {Path(folder) / name}, got {len(part_labels):,}"
            )
    inputs, test_inputs = (pixels.unsqueeze(1).float() / 255 for pixels in (images, test_images))
    return Data(inputs, labels.long(), test_inputs, test_labels.long())


def cifar10(folder: str | Path) -> Data:
    """Load CIFAR-10 from its binary version: inputs [n, 3, 32, 32], targets [n].

    Raises:
        FileNotFoundError: a file is missing in the folder.
        ValueError: a file's length is not a whole number of images, or a label is above 9.
    """
    train = torch.cat([_load_cifar(Path(folder), f"data_batch_{i}.bin") for i in range(1, 6)])
    test = _load_cifar(Path(folder), "test_batch.bin")
    # a row is its label and the bytes of its image
    train_inputs = train[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    test_inputs = test[:, 1:].reshape(-1, 3, 32, 32).float() / 255
    return Data(train_inputs, train[:, 0].long(), test_inputs, test[:, 0].long())


def _read(folder: Path, name: str) -> bytes:
    plain = folder / name
    if plain.is_file():
        return plain.read_bytes()
    packed = folder / f"{name}.gz"
    if packed.is_file():
        try:
            return gzip.decompress(packed.read_bytes())
        except (EOFError, OSError, zlib.error) as error:
            # truncated, not gzip, or damaged
            raise ValueError(
                f"{packed} cannot be unpacked: {error}. Copy or download it again."
            ) from error
    if not folder.is_dir():
        listing = "a file" if folder.exists() else "no such folder"
    else:
        # a few names show which folder this is
        listing = ", ".join(sorted(path.name for path in folder.iterdir())[:6])
    raise FileNotFoundError(
        f"expected {name} (or {name}.gz) in {folder}, got: {listing or 'an empty folder'}"
    )


def _load_idx(folder: Path, name: str) -> Tensor:
    """Load an IDX file: two zeros, 8 for bytes, number of dimensions, their lengths, bytes."""
    content = _read(folder, name)
    dimensions = 3 if "idx3" in name else 1
    if content[:4] != bytes((0, 0, 8, dimensions)) or len(content) < 4 + 4 * dimensions:
        raise ValueError(
            f"expected an IDX file of {dimensions} dimensions in {folder / name}, which begins "
            f"with {content[:4].hex()}"
        )
    shape = np.frombuffer(content, ">u4", dimensions, offset=4).astype(int)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions)
    if len(values) != shape.prod():
        raise ValueError(
            f"expected {shape.prod():,} bytes for shape {shape.tolist()} in {folder / name}, got "
            f"{len(values):,}"
        )
    return torch.from_numpy(values.reshape(shape).copy())


def _load_cifar(folder: Path, name: str) -> Tensor:
    content = np.frombuffer(_read(folder, name), np.uint8)
    if len(content) == 0 or len(content) % CIFAR_ROW:
        raise ValueError(
            f"expected a whole number of images of {CIFAR_ROW:,} bytes in {folder / name}, got "
            f"{len(content):,} bytes. The lab reads CIFAR-10's binary version "
            "(cifar-10-binary.tar.gz)."
        )
    rows = torch.from_numpy(content.reshape(-1, CIFAR_ROW).copy())
    if int(rows[:, 0].max()) > 9:
        raise ValueError(
            f"expected labels of 0 to 9 in {folder / name}, got {int(rows[:, 0].max())}"
        )
    return rows
