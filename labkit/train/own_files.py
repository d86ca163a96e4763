"""How does a picture set that you have on your disk become a task's data? MNIST and CIFAR-10, read and checked.

Idea: the lab downloads nothing. Who has the files names their folder; each file is checked (is it there, does it say
what it is, is it as long as it says) before a number of it is used.

Invariant: what is returned has the sets' own split and order; pixels are FP32 between 0 and 1.

Source: yann.lecun.com/exdb/mnist (IDX format), cs.toronto.edu/~kriz/cifar.html (binary version).
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labkit.train.digits import Data

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
    return Data(_pixels(images.unsqueeze(1)), labels.long(), _pixels(test_images.unsqueeze(1)), test_labels.long())


def cifar10(folder: str | Path) -> Data:
    """Return CIFAR-10 from its binary version: inputs [n, 3, 32, 32], targets [n].

    Raises:
        FileNotFoundError: one of the files is not in the folder; the message says which.
        ValueError: a file's length is not a whole number of pictures, or a label is above 9.
    """
    batches = [_cifar(Path(folder), f"data_batch_{i}.bin") for i in range(1, 6)]
    test = _cifar(Path(folder), "test_batch.bin")
    train = torch.cat(batches)
    return Data(_pictures(train), train[:, 0].long(), _pictures(test), test[:, 0].long())


def _pixels(values: Tensor) -> Tensor:
    return values.float() / 255


def _pictures(rows: Tensor) -> Tensor:
    return _pixels(rows[:, 1:].reshape(-1, 3, 32, 32))


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
