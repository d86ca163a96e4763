"""One training step at eight stages: watching changes nothing, and what is seen is what torch computes without us."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from labkit.amp import RECIPES
from labkit.train import STAGES, TASKS, TrainingRun, watch_step
from labkit.train.stages import summarize

DIGITS = replace(TASKS["digits"], batch_size=16)
RECIPE_NAMES = ("FP32", "O1", "O2", "O3")


def run_of(recipe, scale=None):
    run = TrainingRun(DIGITS, RECIPES[recipe], measure_every=0)
    if scale is not None:
        run.scaler = replace(run.scaler, scale=scale)
    return run


def at(step, name):
    """Return the tensors of a stage by name."""
    return {tensor.name: tensor for tensor in step.stages[STAGES.index(name)].tensors}


def test_watching_does_not_change_a_run():
    for recipe in RECIPE_NAMES:
        watched, alone = run_of(recipe), run_of(recipe)
        for _ in range(3):
            step, record = watch_step(watched), alone.step()
            assert (step.step, step.loss, step.scale) == (record.step, record.loss, record.scale)
            assert (step.found_inf, step.stepped) == (record.found_inf, record.stepped)
        assert watched.scaler == alone.scaler
        assert all(map(torch.equal, watched.model.state_dict().values(), alone.model.state_dict().values())), recipe
        assert watched.step().loss == alone.step().loss, recipe


def test_attention_and_recurrence_can_be_watched():
    """A recurrent layer returns a tuple, and its output is not seen; its weights are."""
    for task in ("gpt", "char_lstm"):
        small = replace(TASKS[task], batch_size=2)
        watched, alone = (TrainingRun(small, RECIPES["O1"], measure_every=0) for _ in range(2))
        step, record = watch_step(watched), alone.step()
        assert (step.loss, step.stepped) == (record.loss, record.stepped)
        names = {name.rpartition(".")[0] for name, p in watched.model.named_parameters() if p.requires_grad}
        assert set(at(step, "copy back")) == {f"{name} weights" for name in names}, task


def test_gradients_and_updates_are_those_of_plain_torch():
    run = run_of("FP32", scale=2.0**10)
    torch.manual_seed(0)
    plain = DIGITS.make_model()
    inputs, targets = run.batch(1)
    loss = F.cross_entropy(plain(inputs), targets)
    loss.backward()
    step = watch_step(run)
    assert step.loss == pytest.approx(loss.item(), rel=1e-6)
    for stage, mark, factor in (("scaled backward", "∇", 1024.0), ("unscale", "∇", 1.0), ("step", "Δ", 0.1)):
        for layer in ("linear1", "linear3"):
            tensor, module = at(step, stage)[f"{mark} {layer} weights"], plain.get_submodule(layer)
            gradient = torch.cat([module.weight.grad.flatten(), module.bias.grad.flatten()])
            assert tensor.elements == gradient.numel()
            assert tensor.largest == pytest.approx(factor * gradient.abs().max().item(), rel=1e-4)
            assert stage == "step" or tensor.zeros == int((gradient == 0).sum())
    unscaled, scaled = step.stages[STAGES.index("loss")].tensors
    assert scaled.largest == 1024 * unscaled.largest == 1024 * step.loss


def test_the_dtypes_of_each_recipe():
    half, single = torch.float16, torch.float32
    steps = {name: watch_step(run_of(name)) for name in RECIPE_NAMES}
    stages = ("cast weights", "scaled backward", "unscale", "step", "copy back")
    seen_dtypes = {
        name: [{tensor.dtype for tensor in at(step, stage).values()} for stage in stages]
        for name, step in steps.items()
    }
    assert seen_dtypes["FP32"] == [{single}] * 5
    assert seen_dtypes["O2"] == [{half}, {half}, {single}, {single}, {half}]
    assert seen_dtypes["O3"] == [{half}, {half}, {single}, {half}, {half}]
    assert seen_dtypes["O1"] == [{single}, {half, single}, {single}, {single}, {single}]
    o1 = at(steps["O1"], "forward")
    assert (o1["linear1 output"].dtype, o1["relu1 output"].dtype) == (half, half)
    gradients = at(steps["O1"], "scaled backward")
    assert gradients["∇ linear1 output"].dtype == half
    assert gradients["∇ linear1 weights"].dtype == single


def test_a_scale_too_high_is_found_and_skipped():
    run = run_of("O2", scale=2.0**40)
    before = [weight.detach().clone() for weight in run.weights.model_weights]
    step = watch_step(run)
    assert (step.found_inf, step.stepped, step.moved, step.model_moved) == (True, False, 0, 0)
    assert (step.scale, step.scale_after, run.scaler.scale) == (2.0**40, 2.0**39, 2.0**39)
    assert any(tensor.non_finite for tensor in at(step, "check for inf").values())
    assert all(tensor.zeros == tensor.elements for tensor in at(step, "step").values())
    assert all(torch.equal(old, new) for old, new in zip(before, run.weights.model_weights, strict=True))


def test_fp16_misses_updates_that_the_master_keeps():
    run = run_of("O2")
    for _ in range(3):
        step = watch_step(run)
    assert step.weights == sum(p.numel() for p in run.model.parameters())
    assert 0 < step.model_moved < step.moved <= step.weights


def test_seen():
    tensor = summarize("x", torch.tensor([0.0, -(2.0**-24), 3.0, math.inf, math.nan]).half())
    assert (tensor.smallest, tensor.largest, tensor.zeros, tensor.non_finite) == (2.0**-24, 3.0, 1, 2)
    nothing = summarize("zeros", torch.zeros(3))
    assert (nothing.smallest, nothing.largest, nothing.zeros) == (0.0, 0.0, 3)
