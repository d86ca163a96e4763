"""The tasks at GPU size: the same ones, larger. Their networks are made without memory, on torch's meta device."""

from __future__ import annotations

import pytest
import torch

from labkit.train import GPU_TASKS, TASKS


@pytest.mark.parametrize("name", sorted(GPU_TASKS))
def test_each_is_its_small_task_with_more_work_in_a_step(name: str) -> None:
    large, small = GPU_TASKS[name], TASKS[name.removesuffix("_gpu")]
    assert large.name == name
    for part in ("loss", "metric", "metric_name", "make_optimizer"):
        assert getattr(large, part) == getattr(small, part)
    with torch.device("meta"):
        weights = [sum(p.numel() for p in task.make_model().parameters()) for task in (large, small)]
    assert weights[0] * large.batch_size > 4 * weights[1] * small.batch_size


@pytest.mark.parametrize("name", ["digits_gpu", "digits_cnn_gpu", "unet_gpu", "segmentation_gpu"])
def test_its_network_takes_its_data(name: str) -> None:
    task = GPU_TASKS[name]
    data = task.make_data()
    with torch.device("meta"):
        outputs = task.make_model()(torch.empty(2, *data.train_inputs.shape[1:], device="meta"))
        assert task.loss(outputs, torch.empty_like(data.train_targets[:2], device="meta")).shape == ()
