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


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(labels.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"says 5 bytes .* and has 4"):
        mnist(tmp_path)
    labels.write_bytes(b"<html>not found</html>")
    with pytest.raises(ValueError, match="begins 3c68746d"):
        mnist(tmp_path)


def test_a_file_that_ends_in_its_header_and_one_that_cannot_be_unpacked_are_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    packed, images = tmp_path / "t10k-images-idx3-ubyte.gz", tmp_path / "train-images-idx3-ubyte"
    whole = packed.read_bytes()
    for damaged in (whole[:-9], b"not gzip", whole[:40] + bytes(20) + whole[60:]):
        packed.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte.gz cannot be unpacked"):
            mnist(tmp_path)
    packed.write_bytes(whole)
    images.write_bytes(images.read_bytes()[:10])
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte is no IDX file"):
        mnist(tmp_path)


def test_labels_of_another_set_are_refused(tmp_path: Path) -> None:
    _, labels = write_mnist(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx(labels[:4]))
    with pytest.raises(ValueError, match="train-labels-idx1-ubyte has 4 labels for 5 images"):
        mnist(tmp_path)


def test_a_damaged_cifar_file_is_refused(tmp_path: Path) -> None:
    rows = write_cifar(tmp_path)
    (tmp_path / "data_batch_3.bin").write_bytes(rows.tobytes()[:-7])
    with pytest.raises(ValueError, match="no whole number of pictures"):
        cifar10(tmp_path)
    rows[1, 0] = 77
    (tmp_path / "data_batch_3.bin").write_bytes(rows.tobytes())
    with pytest.raises(ValueError, match="label of 77"):
        cifar10(tmp_path)
