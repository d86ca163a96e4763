"""The tasks: each trains a step in any precision, and its data is what its words say."""

from __future__ import annotations

import itertools
import math
from pydoc_data.topics import topics

import pytest
import torch

from labkit.amp import RECIPES
from labkit.train import TASKS, train
from labkit.train.data import CHARACTERS, noisy_digits, shapes, small_targets, text_windows
from labkit.train.tasks import character_accuracy, next_character, r2


def test_every_task_takes_a_step_in_every_precision() -> None:
    for task, recipe in itertools.product(set(TASKS) - {"segmentation", "fine_tuning"}, ("FP16 dynamic", "O1", "TF32")):
        record = train(TASKS[task], RECIPES[recipe], steps=1, measure_every=0)
        assert all(math.isfinite(step.loss) for step in record.steps), (task, recipe)
        assert 0 <= record.metric <= 1, (task, recipe)


def test_windows_hold_the_text_they_were_cut_from() -> None:
    data = text_windows(length=16, train=3, test=1)
    first = "".join(CHARACTERS[i] for i in data.train_inputs[0].tolist())
    assert first == topics[min(topics)][:16].lower()
    assert torch.equal(data.train_inputs[:, 1:], data.train_targets[:, :-1])


def test_shapes_are_brighter_than_the_ground() -> None:
    data = shapes(train=40, test=1)
    inside = data.train_inputs[:, 0][data.train_targets > 0]
    outside = data.train_inputs[:, 0][data.train_targets == 0]
    assert inside.mean() > 0.6 > 0.1 > outside.mean().abs()
    assert torch.equal(data.train_inputs, shapes(train=40, test=2).train_inputs), "a seed gives the same pictures"


def test_noise_and_targets_are_as_strong_as_they_say() -> None:
    data = noisy_digits(noise=0.3)
    assert float((data.train_inputs.flatten(1) - data.train_targets).std()) == pytest.approx(0.3, rel=0.02)
    assert float(small_targets(size=5e-6).train_targets.std()) == pytest.approx(5e-6, rel=0.1)


def test_r2_is_one_for_the_truth_and_zero_for_the_mean() -> None:
    targets = torch.tensor([[1.0], [2.0], [3.0]])
    assert r2(targets, targets) == 1
    assert r2(torch.full((3, 1), 2.0), targets) == 0
    assert r2(torch.full((3, 1), 99.0), targets) == 0
    assert r2(torch.full((3, 1), math.nan), targets) == 0


def test_characters_are_counted_one_by_one() -> None:
    logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]]])
    assert character_accuracy(logits, torch.tensor([[0, 0]])) == 0.5
    assert next_character(logits, torch.tensor([[0, 1]])) == pytest.approx(math.log1p(math.exp(-9)), rel=1e-3)
