"""Picture sets from the user's disk: written here as their formats say, read back, and refused where damaged."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.train import cifar10, mnist


def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8), rng.integers(0, 10, 5, dtype=np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:2])))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[:2])))
    return images, labels


def write_cifar(folder: Path) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 256, (3, 3073), dtype=np.uint8)
    rows[:, 0] %= 10
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(rows.tobytes())
    return rows


def test_mnist_plain_and_compressed(tmp_path: Path) -> None:
    images, labels = write_mnist(tmp_path)
    data = mnist(tmp_path)
    assert data.train_inputs.shape == (5, 1, 28, 28)
    assert torch.equal(data.train_inputs[:, 0], torch.from_numpy(images).float() / 255)
    assert data.test_targets.tolist() == labels[:2].tolist()


def test_cifar10_comes_as_red_green_blue(tmp_path: Path) -> None:
    rows = write_cifar(tmp_path)
    data = cifar10(tmp_path)
    assert data.train_inputs.shape == (15, 3, 32, 32)
    assert data.test_inputs.shape == (3, 3, 32, 32)
    assert float(data.train_inputs[1, 2, 0, 5]) == pytest.approx(rows[1, 1 + 2 * 1024 + 5] / 255)
    assert data.train_targets.tolist() == rows[:, 0].tolist() * 5


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(FileNotFoundError, match=r"asked for t10k-labels-idx1-ubyte .*there is: t10k-images"):
        mnist(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        cifar10(tmp_path / "nowhere")


def test_a_damaged_file_is_refused_by_name(tmp_path: Path) -> None:
    _, labels = write_mnist(tmp_path)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte.gz")
    whole = {name: (tmp_path / name).read_bytes() for name in names}
    packed = whole[names[2]]
    for name, content, says in (
        (names[1], whole[names[1]][:-1], r"says 5 bytes .* and has 4"),
        (names[1], b"<html>not found</html>", "begins 3c68746d"),
        (names[1], idx(labels[:4]), "train-labels-idx1-ubyte has 4 labels for 5 images"),
        (names[0], whole[names[0]][:10], r"train-images-idx3-ubyte is no IDX file"),
        (names[2], packed[:-9], r"t10k-images-idx3-ubyte.gz cannot be unpacked"),
        (names[2], b"not gzip", r"t10k-images-idx3-ubyte.gz cannot be unpacked"),
        (names[2], packed[:40] + bytes(20) + packed[60:], r"t10k-images-idx3-ubyte.gz cannot be unpacked"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=says):
            mnist(tmp_path)
        (tmp_path / name).write_bytes(whole[name])


def test_a_damaged_cifar_file_is_refused(tmp_path: Path) -> None:
    rows = write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(rows.tobytes()[:-7])
    with pytest.raises(ValueError, match="no whole number of pictures"):
        cifar10(tmp_path)
    rows[1, 0] = 77
    (tmp_path / "data_batch_3.bin").write_bytes(rows.tobytes())
    with pytest.raises(ValueError, match="label of 77"):
        cifar10(tmp_path)
