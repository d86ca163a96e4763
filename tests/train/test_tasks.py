"""The tasks for a CPU and for a GPU, their metrics, and data, also from files of the user."""

import gzip
import itertools
import math
import struct
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, cifar10, mnist, train
from labkit.train.data import CHARACTERS, noisy_digits, shapes, small_targets, text_windows
from labkit.train.tasks import _pretrained, character_accuracy, next_character, r2


def test_every_task_takes_a_finite_step() -> None:
    for task, recipe in itertools.product(TASKS, ("FP16 dynamic", "O1", "TF32")):
        record = train(TASKS[task], RECIPES[recipe], steps=1, measure_every=0)
        assert all(math.isfinite(step.loss) for step in record.steps), (task, recipe)
        assert 0 <= record.metric <= 1, (task, recipe)


def test_training_the_pretrained_network_seeds_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("it seeds GPUs"))
    # The cache may have the network already.
    _pretrained.__wrapped__(0)


def test_windows_of_text_are_cut_from_it() -> None:
    windows = text_windows(length=16, train=3, test=1)
    first = "".join(CHARACTERS[i] for i in windows.train_inputs[0].tolist())
    assert first == topics[min(topics)][:16].lower()
    assert torch.equal(windows.train_inputs[:, 1:], windows.train_targets[:, :-1])


def test_shapes_are_brighter_than_the_ground() -> None:
    scene = shapes(train=40, test=1)
    inside, outside = (
        scene.train_inputs[:, 0][(scene.train_targets > 0) == shape] for shape in (True, False)
    )
    assert inside.mean() > 0.6
    assert outside.mean().abs() < 0.1
    # Training pictures follow from the seed alone.
    assert torch.equal(scene.train_inputs, shapes(train=40, test=2).train_inputs)


def test_noise_and_targets_have_their_deviations() -> None:
    noisy = noisy_digits(noise=0.3)
    assert float((noisy.train_inputs.flatten(1) - noisy.train_targets).std()) == pytest.approx(
        0.3, rel=0.02
    )
    assert float(small_targets(size=5e-6).train_targets.std()) == pytest.approx(5e-6, rel=0.1)


def test_worked_example_of_r2() -> None:
    targets = torch.tensor([[1.0], [2.0], [3.0]])
    assert r2(targets, targets) == 1
    assert [r2(torch.full((3, 1), guess), targets) for guess in (2.0, 99.0, math.nan)] == [0, 0, 0]


def test_worked_example_of_losses_and_accuracy_of_characters() -> None:
    logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    assert character_accuracy(logits, torch.tensor([[0, 0]])) == 0.5
    assert next_character(logits, torch.tensor([[0, 1]])) == pytest.approx(
        math.log1p(math.exp(-9)), rel=1e-3
    )


def test_a_segmentation_names_the_elements_of_its_loss() -> None:
    for task in (TASKS["segmentation"], GPU_TASKS["segmentation_gpu"]):
        elements = task.batch_size * task.make_data().train_targets[0].numel()
        assert task.about.endswith(f"the loss is a mean over {elements:,} elements")


def test_a_gpu_task_is_its_small_task_with_more_work() -> None:
    for name, large in GPU_TASKS.items():
        small = TASKS[name.removesuffix("_gpu")]
        assert large.name == name
        for field in ("loss", "metric", "metric_name", "make_optimizer"):
            assert getattr(large, field) == getattr(small, field), name
        with torch.device("meta"):
            nets = [task.make_model() for task in (large, small)]
        weights = [sum(p.numel() for p in net.parameters()) for net in nets]
        assert weights[0] * large.batch_size > 4 * weights[1] * small.batch_size, name
        if name in ("digits_gpu", "digits_cnn_gpu", "unet_gpu", "segmentation_gpu"):
            data = large.make_data()
            outputs = nets[0](torch.empty(2, *data.train_inputs.shape[1:], device="meta"))
            assert (
                large.loss(outputs, torch.empty_like(data.train_targets[:2], device="meta")).shape
                == ()
            ), name


def idx(array: np.ndarray) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + struct.pack(f">{array.ndim}I", *array.shape)
        + array.tobytes()
    )


def write_mnist(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, 28, 28), dtype=np.uint8)
    labels = rng.integers(0, 10, 5, dtype=np.uint8)
    (folder / "train-images-idx3-ubyte").write_bytes(idx(images))
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(labels))
    (folder / "t10k-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images[:2])))
    (folder / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels[:2])))
    return images, labels


def write_cifar(folder: Path) -> np.ndarray:
    rows = np.random.default_rng(0).integers(0, 256, (3, 3073), dtype=np.uint8)
    # the ends of the labels, and one between
    rows[:, 0] = 0, 9, 5
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        (folder / name).write_bytes(rows.tobytes())
    return rows


def test_mnist_is_read_from_plain_and_compressed_files(tmp_path: Path) -> None:
    images, labels = write_mnist(tmp_path)
    data = mnist(tmp_path)
    assert data.train_inputs.shape == (5, 1, 28, 28)
    assert torch.equal(data.train_inputs[:, 0], torch.from_numpy(images).float() / 255)
    assert data.test_targets.tolist() == labels[:2].tolist()


def test_a_missing_file_of_mnist_is_named(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"expected t10k-labels-idx1-ubyte .*got: t10k-images"
    ):
        mnist(tmp_path)
    with pytest.raises(FileNotFoundError, match="no such folder"):
        cifar10(tmp_path / "nowhere")


def test_cifar10_is_read_as_red_green_blue(tmp_path: Path) -> None:
    rows = write_cifar(tmp_path)
    data = cifar10(tmp_path)
    assert data.train_inputs.shape == (15, 3, 32, 32)
    assert data.test_inputs.shape == (3, 3, 32, 32)
    assert float(data.train_inputs[1, 2, 0, 5]) == pytest.approx(rows[1, 1 + 2 * 1024 + 5] / 255)
    assert data.train_targets.tolist() == rows[:, 0].tolist() * 5


def test_damaged_files_of_cifar10_are_refused(tmp_path: Path) -> None:
    rows = write_cifar(tmp_path)
    whole = rows.tobytes()
    rows[1, 0] = 9
    (tmp_path / "data_batch_3.bin").write_bytes(rows.tobytes())
    cifar10(tmp_path)
    rows[1, 0] = 10
    for content, message in (
        (whole[:-7], "a whole number of images"),
        (rows.tobytes(), "labels of 0 to 9 .*, got 10"),
    ):
        (tmp_path / "data_batch_3.bin").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            cifar10(tmp_path)


def test_a_damaged_file_of_mnist_is_refused_by_name(tmp_path: Path) -> None:
    _, labels = write_mnist(tmp_path)
    names = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte.gz")
    whole = {name: (tmp_path / name).read_bytes() for name in names}
    packed = whole[names[2]]
    for name, content, message in (
        (names[1], whole[names[1]][:-1], r"expected 5 bytes .*, got 4"),
        (names[1], b"<html>not found</html>", "begins with 3c68746d"),
        (names[1], idx(labels[:4]), "expected 5 labels in .*train-labels-idx1-ubyte, got 4"),
        (names[0], whole[names[0]][:10], r"expected an IDX file .* in .*train-images-idx3-ubyte"),
        # a header without content, and one without its last byte
        (names[0], whole[names[0]][:16], r"expected [\d,]+ bytes for shape .*, got 0"),
        (names[0], whole[names[0]][:15], "expected an IDX file"),
        (names[2], packed[:-9], r"t10k-images-idx3-ubyte.gz cannot be unpacked"),
        (names[2], b"not gzip", r"t10k-images-idx3-ubyte.gz cannot be unpacked"),
        (
            names[2],
            packed[:40] + bytes(20) + packed[60:],
            r"t10k-images-idx3-ubyte.gz cannot be unpacked",
        ),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=message):
            mnist(tmp_path)
        (tmp_path / name).write_bytes(whole[name])
