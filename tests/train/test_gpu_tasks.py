"""The tasks at GPU size: the same ones, larger. Their networks are made without memory, on torch's meta device."""

from __future__ import annotations

import torch

from labkit.train import GPU_TASKS, TASKS


def test_each_is_its_small_task_with_more_work_in_a_step() -> None:
    for name, large in GPU_TASKS.items():
        small = TASKS[name.removesuffix("_gpu")]
        assert large.name == name
        for part in ("loss", "metric", "metric_name", "make_optimizer"):
            assert getattr(large, part) == getattr(small, part), name
        with torch.device("meta"):
            weights = [sum(p.numel() for p in task.make_model().parameters()) for task in (large, small)]
        assert weights[0] * large.batch_size > 4 * weights[1] * small.batch_size, name


def test_its_network_takes_its_data() -> None:
    for name in ("digits_gpu", "digits_cnn_gpu", "unet_gpu", "segmentation_gpu"):
        task = GPU_TASKS[name]
        data = task.make_data()
        with torch.device("meta"):
            outputs = task.make_model()(torch.empty(2, *data.train_inputs.shape[1:]))
            assert task.loss(outputs, torch.empty_like(data.train_targets[:2], device="meta")).shape == (), name
