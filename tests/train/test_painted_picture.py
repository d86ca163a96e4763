"""The task "painted_picture", which needs a loss scale, and pictures of a network's outputs."""

import base64
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.instrument import fate, merge, shift
from labkit.train import (
    TASKS,
    Picture,
    RunRecord,
    TrainingRun,
    gradient_snapshot,
    load,
    recorded,
    to_picture,
    train,
)
from labkit.widgets import predictions
from notebooks import build

TASK = TASKS["painted_picture"]
SEEDS = range(5)
# The least difference of R2, or of relative losses, of a training that works and one that does not.
DIFFERENCE = 0.3


def shades(picture: Picture) -> NDArray[np.float64]:
    """Return the pixels of a picture, 0 to 1."""
    content = np.frombuffer(base64.b64decode(picture.pixels), np.uint8)
    return content.reshape(picture.height, picture.width) / 255


def relative_loss(loss: float) -> float:
    """Return a loss divided by that of a picture of one shade."""
    targets = TASK.make_data().test_targets
    return loss / float(((targets - targets.mean()) ** 2).sum())


def runs(recipe: str) -> list[RunRecord]:
    return [recorded("painted_picture", recipe, seed) for seed in SEEDS]


def test_without_a_scale_nothing_is_painted_on_any_seed() -> None:
    for fp32, fp16 in zip(runs("FP32"), runs("FP16"), strict=True):
        assert fp32.metric > 0.95, fp32.seed
        assert fp16.metric < 0.06, fp32.seed
        assert fp32.metric - fp16.metric > DIFFERENCE
        assert relative_loss(fp16.final_loss) - relative_loss(fp32.final_loss) > DIFFERENCE


@pytest.mark.parametrize("recipe", ["FP16 static", "FP16 dynamic"])
def test_every_scaling_paints_what_fp32_paints(recipe: str) -> None:
    for fp32, scaled in zip(runs("FP32"), runs(recipe), strict=True):
        assert abs(fp32.metric - scaled.metric) < 0.005, (recipe, fp32.seed)


@pytest.mark.parametrize("recipe", ["FP16 static", "FP16 dynamic"])
@pytest.mark.parametrize("switched_at", [60, 150])
def test_a_scale_that_is_switched_on_restores_the_training(recipe: str, switched_at: int) -> None:
    run = TrainingRun(TASK, RECIPES["FP16"], seed=0, measure_every=0)
    for _ in range(switched_at):
        loss_without = run.step().loss
    assert run.evaluate() < 0.05
    run.change(RECIPES[recipe])
    for _ in range(40):
        loss_with = run.step().loss
    assert run.evaluate() > 0.05 + DIFFERENCE
    assert relative_loss(loss_without) - relative_loss(loss_with) > DIFFERENCE


def test_without_a_scale_no_weight_moves() -> None:
    """Every gradient before the last layer is rounded to zero, from the first step on."""
    run = TrainingRun(TASK, RECIPES["FP16"], seed=0, measure_every=0)
    before = [weight.clone() for weight in run.weights.master_weights]
    assert all(bool((g == 0).all()) for g in run.next_gradients("weight gradients").values())
    for _ in range(20):
        run.step()
    assert all(map(torch.equal, before, run.weights.master_weights))


def test_the_safe_scales_are_inside_the_range_of_the_slider() -> None:
    run = TrainingRun(TASK, RECIPES["FP16"], seed=0, measure_every=0)
    gradients = merge(gradient_snapshot(run).layers.values())
    lost = {scale: fate(shift(gradients, scale), FP16).underflowed for scale in (0, 10, 16)}
    assert lost[0] > 0.99
    assert 0.01 < lost[10] < 0.2
    assert lost[16] < 0.01
    overflowing = [
        scale
        for scale in range(31)
        if any(not bool(g.isfinite().all()) for g in run.next_gradients(scale=2.0**scale).values())
    ]
    assert overflowing == [28, 29, 30]


def lesson_06_number(pattern: str) -> float:
    """Return the number in the text of lesson 06 that a pattern's group matches."""
    text = build.lesson("06_loss_scaling").text.read_text(encoding="utf-8").replace("\n# ", " ")
    (match,) = re.findall(pattern, text)
    return float(match)


def test_lesson_06_states_the_numbers_of_the_records() -> None:
    fp32, fp16 = ([run.metric for run in runs(recipe)] for recipe in ("FP32", "FP16"))
    assert round(max(fp16), 2) == lesson_06_number(r"R2 is at most ([\d.]+), where FP32")
    assert round(statistics.mean(fp32), 2) == lesson_06_number(
        r"R2 is at most [\d.]+, where FP32 reaches ([\d.]+\d)"
    )
    lost = max(step.underflow or 0 for run in runs("FP16 static") for step in run.steps)
    assert round(100 * lost) == lesson_06_number(r"loses up to (\d+)% of the gradients in a step")
    dice = {
        recipe: [recorded("segmentation", recipe, seed).metric for seed in range(3)]
        for recipe in ("FP32", "FP16")
    }
    assert f"{max(dice['FP16']):.3f}" == f"{lesson_06_number(r'Dice is ([0-9.]+), where'):.3f}"
    assert round(statistics.mean(dice["FP32"]), 2) == lesson_06_number(
        r"Dice is [\d.]+, where FP32 reaches ([\d.]+\d)"
    )


def test_lesson_06_states_what_a_live_run_does() -> None:
    steps = int(lesson_06_number(r"within (\d+) steps the loss falls to less than half"))
    prediction = predictions()["scaling.recover"]
    assert prediction.answer == "drop towards FP32"
    reply = prediction.choices[prediction.answer]
    assert f"within {steps} steps the loss falls to less than half" in reply.lower()
    overflow = int(lesson_06_number(r"At 2\^(\d+) the largest ones overflow"))
    for seed in range(3):
        run = TrainingRun(TASK, RECIPES["FP16"], seed=seed, measure_every=0)
        losses = [run.step().loss for _ in range(60)]
        run.change(RECIPES["FP16 static"])
        losses += [run.step().loss for _ in range(steps)]
        assert losses[-1] < losses[59] / 2, seed
        for _ in range(2):
            gradients = run.next_gradients(scale=2.0**overflow).values()
            assert not all(bool(g.isfinite().all()) for g in gradients), seed
            for _ in range(100):
                run.step()


def test_a_picture_of_perfect_outputs_is_the_target() -> None:
    for name, task in TASKS.items():
        if task.drawing is None:
            continue
        targets = task.make_data().test_targets[: task.drawing.examples or None]
        wanted = task.wanted_picture()
        assert wanted is not None
        perfect = targets
        if name.startswith("segmentation"):
            perfect = targets.logit()
        if name == "unet":
            perfect = torch.nn.functional.one_hot(targets, 3).movedim(-1, 1).float()
        assert to_picture(task.drawing.outputs(perfect)) == wanted, name
        assert shades(wanted).max() > 0.8, name
        assert shades(wanted).min() < 0.3, name


def test_the_painted_picture_approaches_the_target() -> None:
    wanted = TASK.wanted_picture()
    assert wanted is not None
    for seed in SEEDS:
        errors = {}
        for recipe in ("FP32", "FP16"):
            pictures = recorded("painted_picture", recipe, seed).pictures
            assert [picture.step for picture in pictures] == list(range(0, 1001, 100))
            errors[recipe] = [abs(shades(picture) - shades(wanted)).mean() for picture in pictures]
        assert errors["FP32"][-1] < 0.06, seed
        assert min(errors["FP16"]) > 0.15, seed


def test_nan_is_black_and_shades_are_clamped() -> None:
    picture = to_picture(torch.tensor([[float("nan"), -1.0, 0.5, 7.0, float("inf")]]), step=3)
    assert picture.step == 3
    assert picture.height == 1
    assert picture.width == 5
    assert shades(picture).tolist() == [[0, 0, 128 / 255, 1, 1]]


def test_a_picture_of_three_dimensions_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"expected a tensor \[height, width\], got one of shape \[1, 2, 2\]"
    ):
        to_picture(torch.zeros(1, 2, 2))


def test_pictures_do_not_change_a_run() -> None:
    drawn = train(TASK, RECIPES["FP16 static"], steps=30, measure_every=0)
    plain = train(replace(TASK, drawing=None), RECIPES["FP16 static"], steps=30, measure_every=0)
    assert drawn.steps == plain.steps
    assert len(drawn.pictures) == 11
    assert plain.pictures == ()


def test_a_record_keeps_its_pictures(tmp_path: Path) -> None:
    record = train(TASK, RECIPES["FP32"], steps=2, measure_every=0)
    assert [picture.step for picture in record.pictures] == [0, 1, 2]
    path = record.save(tmp_path / "run.json")
    assert load(path) == record
    # Early records have no pictures.
    older = {key: value for key, value in json.loads(path.read_text()).items() if key != "pictures"}
    path.write_text(json.dumps(older))
    assert load(path) == replace(record, pictures=())


def test_recorded_steps_of_a_run_and_its_twin_are_fast() -> None:
    """Together they take less than 15 ms on the machine of the records, without measurements."""
    seconds = [
        statistics.median(filter(None, (run.step_seconds for run in runs(recipe))))
        for recipe in ("FP32", "FP16 dynamic")
    ]
    assert sum(seconds) < 0.015
