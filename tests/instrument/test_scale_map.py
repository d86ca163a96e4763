"""Maps of loss scales: the shares of gradients that underflow and overflow by step and scale.

The oracle rounds every gradient to FP16 by numpy.
"""

import numpy as np
import pytest
import torch

from labkit.formats import BF16
from labkit.instrument import GradSnapshot, exponent_histogram, scale_map, snapshot
from labkit.train import TASKS, TrainingRun, gradient_snapshot, train


def test_cells_equal_rounding_by_numpy() -> None:
    generator = torch.Generator().manual_seed(0)
    layers = {
        name: (1.25 + torch.rand(5000, generator=generator) / 2)
        * 2.0 ** torch.randint(low, high, (5000,), generator=generator)
        for name, low, high in (("conv", -45, -10), ("head", -20, 2))
    }
    taken = [snapshot(layers, step=step, kind="weight gradients") for step in (1, 11)]
    found = scale_map(taken, range(0, 41, 4))
    values = torch.cat(list(layers.values())).numpy().astype(np.float64)
    for column, exponent in enumerate(found.log2_scales.tolist()):
        with np.errstate(over="ignore"):
            rounded = (values * 2.0**exponent).astype(np.float16)
        assert found.lost[0, column] == (rounded == 0).mean()
        assert found.overflowing[1, column] == np.isinf(rounded).mean()
    assert found.steps.tolist() == [1, 11]


def test_safe_scales_of_a_run_have_finite_gradients() -> None:
    task = TASKS["painted_picture"]
    record = train(
        task,
        "FP16 static",
        steps=21,
        measure_every=0,
        watch=("activation gradients",),
        watch_every=10,
    )
    found = scale_map(record.snapshots, range(31))
    assert found.lost.shape == (3, 31)
    assert found.overflowing.shape == (3, 31)
    safe = np.flatnonzero(found.safe()[0])
    assert safe.tolist() == list(range(int(safe[0]), int(safe[-1]) + 1)), (
        "the safe scales have a gap"
    )
    run = TrainingRun(task, "FP16", 0)
    assert found.lost[0, 0] == pytest.approx(run.step().underflow, abs=0.01)
    fresh = TrainingRun(task, "FP16", 0)
    for exponent in (int(safe[-1]), int(safe[-1]) + 2):
        gradients = fresh.next_gradients(scale=2.0**exponent).values()
        finite = all(bool(gradient.isfinite().all()) for gradient in gradients)
        assert finite == (exponent == safe[-1])


def test_more_scale_loses_less_and_overflows_more() -> None:
    taken = gradient_snapshot(TrainingRun(TASKS["segmentation_small"], "FP16"))
    found = scale_map([taken])
    assert (np.diff(found.lost) <= 0).all()
    assert (np.diff(found.overflowing) >= 0).all()
    # From 2^0 to 2^40, most small gradients appear, and large ones overflow.
    assert found.lost[0, 0] > 0.5
    assert found.lost[0, -1] < 0.01
    assert found.overflowing[0, 0] == 0
    assert found.overflowing[0, -1] > 0.01


def test_bf16_has_a_wider_window() -> None:
    taken = gradient_snapshot(TrainingRun(TASKS["segmentation_small"], "FP16"))
    fp16, bf16 = (scale_map([taken], format=format).safe().sum() for format in ("FP16", BF16))
    # All 41 scales of a map, 2^0 to 2^40, are safe in BF16.
    assert bf16 == 41
    assert 0 < fp16 < 41


def test_a_step_whose_gradients_are_all_zero_loses_nothing() -> None:
    empty = snapshot({"layer": torch.zeros(5)}, step=3, kind="weight gradients")
    found = scale_map([empty])
    assert found.lost.max() == 0
    assert found.overflowing.max() == 0
    assert bool(found.safe().all())


def test_invalid_snapshots_are_refused() -> None:
    histogram = exponent_histogram(torch.ones(3))
    kinds = [
        GradSnapshot(1, kind, {"layer": histogram})
        for kind in ("weight gradients", "activation gradients")
    ]
    with pytest.raises(ValueError, match="got none"):
        scale_map([])
    with pytest.raises(ValueError, match="expected snapshots of one kind of gradients"):
        scale_map(kinds)
