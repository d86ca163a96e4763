"""Training runs in any precision: steps, forks, swallowed updates, memory and watched steps.

Steps are compared with loops of plain torch, forks with the run itself, and bytes with counts by
hand.
"""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, static
from labkit.formats import FP16
from labkit.instrument import fate, merge, underflow
from labkit.train import (
    STAGES,
    TASKS,
    TrainingRun,
    bytes_held,
    gradient_snapshot,
    load,
    one_thread,
    train,
    watch_step,
)
from labkit.train.stages import summarize

DIGITS = TASKS["digits"]


def test_fp32_equals_a_plain_loop() -> None:
    run = TrainingRun(DIGITS, RECIPES["FP32"], seed=1)
    torch.manual_seed(1)
    net = DIGITS.make_model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with one_thread():
        for step in range(1, 21):
            inputs, targets = run.batch(step)
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), targets)
            loss.backward()
            optimizer.step()
            assert run.step().loss == loss.item()


def test_scaling_and_master_weights_may_change_in_a_run() -> None:
    run = TrainingRun(DIGITS, RECIPES["FP16"])
    assert run.step().scale == 1.0
    run.change(RECIPES["FP16 static"])
    assert run.step().scale == 1024.0
    run.change("FP16 no master")
    run.step()
    pairs = zip(run.weights.model_weights, run.weights.master_weights, strict=True)
    assert all(torch.equal(p.float(), m) for p, m in pairs)
    with pytest.raises(ValueError, match="Start a new TrainingRun"):
        run.change(RECIPES["FP32"])


def test_a_change_of_rounding_is_refused() -> None:
    other = TrainingRun(DIGITS, RECIPES["FP16"])
    with pytest.raises(
        ValueError, match=r"differs from 'FP16' in .*'FP16 stochastic', which differs in rounding"
    ):
        other.change(RECIPES["FP16 stochastic"])


def test_scaling_prevents_underflow() -> None:
    run = TrainingRun(TASKS["segmentation_small"], RECIPES["FP16"])
    histogram = merge(gradient_snapshot(run).layers.values())
    assert fate(histogram, FP16).underflowed > 0.5
    unscaled = run.next_gradients()
    scaled = run.next_gradients(scale=2.0**10)
    exact = run.fp32_twin().next_gradients()
    assert underflow(exact, unscaled) > 0.5
    assert underflow(exact, scaled) < 0.01


def test_a_step_measures_underflow() -> None:
    task = TASKS["segmentation_small"]
    recipes = ("FP16", "FP16 static", "FP32")
    unscaled, scaled, fp32 = (TrainingRun(task, RECIPES[name]).step().underflow for name in recipes)
    assert unscaled > 0.5
    assert scaled < 0.05
    assert fp32 == 0.0


def test_a_stopped_training_has_a_record(tmp_path: Path) -> None:
    steps: list[int] = []
    record = train(
        DIGITS,
        RECIPES["O2"],
        steps=10,
        progress=lambda s: steps.append(s.step),
        stop=lambda: len(steps) == 4,
    )
    assert steps == [1, 2, 3, 4]
    assert record.stopped
    assert len(record.steps) == 4
    assert record.memory["master weights"] > 0
    assert record.steps[0].swallowed is not None
    assert load(record.save(tmp_path / "run.json")) == record


def test_a_watched_training_has_snapshots(tmp_path: Path) -> None:
    kinds = ("activation gradients", "weight gradients")
    watched = train(DIGITS, RECIPES["FP32"], steps=5, watch=kinds, watch_every=2)
    assert [(s.step, s.kind) for s in watched.snapshots] == [
        (n, kind) for n in (1, 3, 5) for kind in kinds
    ]
    assert watched.snapshots[0] == gradient_snapshot(TrainingRun(DIGITS, RECIPES["FP32"]))
    # Snapshots change no step.
    assert watched.steps == train(DIGITS, RECIPES["FP32"], steps=5).steps
    assert load(watched.save(tmp_path / "run.json")) == watched


def test_a_negative_number_of_steps_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        train(DIGITS, RECIPES["FP32"], steps=-1)


def test_a_single_kind_to_watch_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Pass \['weight gradients'\]"):
        train(DIGITS, RECIPES["FP32"], steps=1, watch="weight gradients")


def test_a_negative_measure_every_is_refused() -> None:
    with pytest.raises(ValueError, match="measure_every of 0 or more, got -1"):
        TrainingRun(DIGITS, RECIPES["FP32"], measure_every=-1)


def test_a_measurement_every_two_and_a_half_steps_is_refused() -> None:
    with pytest.raises(TypeError, match=r"measure_every: expected an int, got 2\.5"):
        train(DIGITS, RECIPES["FP32"], steps=1, measure_every=2.5)  # type: ignore[arg-type]


def test_watching_no_step_is_refused() -> None:
    with pytest.raises(ValueError, match="omit watch"):
        train(DIGITS, RECIPES["FP32"], steps=1, watch=("weight gradients",), watch_every=0)


def batch_norm_and_a_frozen_layer() -> nn.Module:
    """Return a network for digits whose first layer is frozen."""
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10)
    )
    net[1].requires_grad_(False)
    return net


def test_custom_task_may_have_norms_and_frozen_layers() -> None:
    own = replace(DIGITS, name="own", make_model=batch_norm_and_a_frozen_layer)
    for recipe in ("FP32", "FP16", "O1", "O3"):
        measured, plain = (
            TrainingRun(own, RECIPES[recipe], measure_every=every) for every in (1, 0)
        )
        frozen = measured.model[1].weight.clone()
        for _ in range(3):
            assert "1.weight" not in measured.next_gradients("weight gradients")
            # Measuring underflow must not update the statistics of batch norm.
            assert measured.step().loss == plain.step().loss, recipe
        before = [buffer.clone() for buffer in measured.model.buffers()]
        # The third buffer counts batches: three steps, and no measurement.
        assert before[2] == 3, recipe
        measured.evaluate()
        assert measured.model.training
        assert all(map(torch.equal, before, measured.model.buffers())), recipe
        assert torch.equal(frozen, measured.model[1].weight), recipe


def with_dropout() -> nn.Module:
    """Return a network for digits with dropout."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.Dropout(0.5), nn.ReLU(), nn.Linear(32, 10)
    )


DROPOUT = replace(DIGITS, name="dropout", make_model=with_dropout)


@pytest.mark.parametrize("recipe", ["FP32", "FP16 dynamic", "O1", "O3", "BF16"])
def test_dropout_follows_from_seed_and_step(recipe: str) -> None:
    first, again = (
        TrainingRun(DROPOUT, RECIPES[recipe], 1, measure_every=every) for every in (1, 0)
    )
    other = TrainingRun(DROPOUT, RECIPES[recipe], 2)
    for _ in range(3):
        torch.rand(7)
        gradient_snapshot(first)
        ours = first.step()
        # Other draws and snapshots between two steps do not matter.
        assert ours.loss == again.step().loss
        assert ours.loss != other.step().loss
    outside = torch.get_rng_state()
    first.step()
    # A run has a generator of its own.
    assert torch.equal(torch.get_rng_state(), outside)


@pytest.mark.parametrize("recipe", ["FP16 static", "O1", "BF16"])
def test_the_fp32_twin_draws_the_same_mask(recipe: str) -> None:
    # Dropout and ReLU stop three quarters of the first layer's activation gradients; another mask
    # would stop others.
    run = TrainingRun(DROPOUT, RECIPES[recipe])
    exact = run.fp32_twin().next_gradients()["1"]
    here = run.next_gradients(scale=run.scaler.scale)["1"]
    assert 0.7 < (exact == 0).float().mean() < 0.8
    # Rounding changes the sign of a few inputs of ReLU.
    assert ((exact == 0) != (here == 0)).float().mean() < 0.005
    assert run.step().underflow < 0.01


@pytest.mark.parametrize("count", ["0", "-1", "two", ""])
def test_invalid_thread_counts_are_refused(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("LABKIT_THREADS", count)
    with pytest.raises(ValueError, match="expected a positive integer"), one_thread():
        pass


def test_a_count_that_torch_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    monkeypatch.setenv("LABKIT_THREADS", str(10**30))
    with pytest.raises((ValueError, RuntimeError), match=r"(?i)overflow"), one_thread():
        pass
    monkeypatch.delenv("LABKIT_THREADS")
    torch.set_num_threads(3)
    try:
        with one_thread():
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


CNN = TASKS["digits_cnn"]
PARAMETERS = sum(p.numel() for p in CNN.make_model().parameters())
NORMS = sum(p.numel() for n, p in CNN.make_model().named_parameters() if n.startswith("norm"))


def run_of(recipe: str, steps: int = 2, task: str = "digits_cnn") -> TrainingRun:
    """Return a run of a task after some steps."""
    run = TrainingRun(TASKS[task], RECIPES[recipe], seed=3)
    for _ in range(steps):
        run.step()
    return run


@pytest.mark.parametrize(
    "recipe", ["FP32", "O1", "O2", "FP16 no master", "FP16 stochastic", "FP16 Kahan", "BF16"]
)
def test_a_fork_repeats_the_run_bit_for_bit(recipe: str) -> None:
    run = run_of(recipe)
    # A fork must take along a learning rate that was changed during the run.
    run.engine.optimizer.param_groups[0]["lr"] *= 0.75
    fork = run.fork()
    again = run.fork()
    ours = [fork.step() for _ in range(3)]
    # The steps of the fork did not change the run.
    assert [run.step() for _ in range(3)] == ours
    assert [again.step() for _ in range(3)] == ours


def test_a_fork_may_have_another_scaler() -> None:
    run = run_of("O2")
    scaled = run.fork(replace(RECIPES["O2"], scaler=static(8.0)))
    assert scaled.scaler.scale == 8.0
    assert all(map(torch.equal, run.weights.master_weights, scaled.weights.master_weights))


def test_a_fork_into_other_formats_converts_weights_and_moments() -> None:
    run = run_of("FP32")
    for other in ("O1", "O2", "O3", "BF16"):
        fork = run.fork(other)
        here, there = run.engine.optimizer.state, fork.engine.optimizer.state
        for (ours, mine), (weight, theirs) in zip(here.items(), there.items(), strict=True):
            assert torch.equal(weight, ours.to(weight.dtype)), other
            assert torch.equal(theirs["exp_avg"], mine["exp_avg"].to(weight.dtype)), other
            assert theirs["step"] == mine["step"]
        assert fork.step().step == 3


def test_swallowed_updates_are_those_of_stored_weights() -> None:
    recipes = ("FP32", "FP16 static", "FP16 no master", "BF16 no master")
    fp32, masters, fp16, bf16 = (run_of(r, 0, "fine_tuning").step().swallowed for r in recipes)
    assert fp32 < 0.01
    assert masters == pytest.approx(fp32, abs=0.01)
    assert 0.2 < fp16 < bf16


def test_swallowed_updates_are_measured_in_some_steps_only() -> None:
    run = run_of("FP32", 0, "fine_tuning")
    first, *_, seventh = (run.step() for _ in range(7))
    assert first.swallowed is not None
    assert seventh.swallowed is None


def test_bytes_equal_those_of_the_formats() -> None:
    # Adam keeps a step count of 4 bytes for each parameter.
    counters = 4 * len(list(CNN.make_model().parameters()))
    rest = PARAMETERS - NORMS
    for recipe, weights, masters, moments in (
        ("FP32", 4 * PARAMETERS, 0, 4 * PARAMETERS),
        ("O1", 4 * PARAMETERS, 0, 4 * PARAMETERS),
        ("O2", 2 * rest + 4 * NORMS, 4 * rest, 4 * PARAMETERS),
        ("O3", 2 * PARAMETERS, 0, 2 * PARAMETERS),
    ):
        held = bytes_held(run_of(recipe, 1).engine)
        sizes = (
            held["weights"],
            held["gradients"],
            held["master weights"],
            held["optimizer state"],
        )
        assert sizes == (weights, weights, masters, 2 * moments + counters), recipe


SMALL = replace(TASKS["digits"], batch_size=16)
RECIPE_NAMES = ("FP32", "O1", "O2", "O3")


def stage_run(recipe, scale=None):
    """Return a run of small batches, with its own loss scale unless another one is given."""
    run = TrainingRun(SMALL, RECIPES[recipe], measure_every=0)
    if scale is not None:
        run.scaler = replace(run.scaler, scale=scale)
    return run


def tensors_at(step, name):
    """Return the tensors of a stage by name."""
    return {tensor.name: tensor for tensor in step.stages[STAGES.index(name)].tensors}


def assert_watching_changes_nothing(task, recipe, steps):
    """Watch each step of a run, and compare it with a run that is not watched."""
    watched = TrainingRun(task, RECIPES[recipe], measure_every=0)
    alone = TrainingRun(task, RECIPES[recipe], measure_every=0)
    for _ in range(steps):
        step = watch_step(watched)
        record = alone.step()
        assert step.step == record.step
        assert step.loss == record.loss
        assert step.scale == record.scale
        assert step.found_inf == record.found_inf
        assert step.stepped == record.stepped
    assert watched.scaler == alone.scaler
    expected = alone.model.state_dict()
    for name, value in watched.model.state_dict().items():
        assert torch.equal(value, expected[name]), name
    # The next step has no hooks of the watched ones.
    assert watched.step().loss == alone.step().loss


@pytest.mark.parametrize("recipe", RECIPE_NAMES)
def test_watching_changes_no_step_of_a_run(recipe):
    assert_watching_changes_nothing(SMALL, recipe, steps=3)


# Layers of these models return a tuple: their weights are watched, but not their outputs.
TUPLES = ("gpt", "char_lstm")


@pytest.mark.parametrize("name", TUPLES)
def test_watching_layers_that_return_tuples_changes_no_step(name):
    assert_watching_changes_nothing(replace(TASKS[name], batch_size=2), "O1", steps=1)


@pytest.mark.parametrize("name", ["digits", *TUPLES])
def test_weights_of_every_trained_layer_are_watched(name):
    run = TrainingRun(replace(TASKS[name], batch_size=2), RECIPES["O1"], measure_every=0)
    layers = {
        name.rpartition(".")[0] for name, p in run.model.named_parameters() if p.requires_grad
    }
    watched = set(tensors_at(watch_step(run), "copy back"))
    assert watched == {f"{layer} weights" for layer in layers}


def test_gradients_and_updates_equal_plain_torch():
    run = stage_run("FP32", scale=2.0**10)
    torch.manual_seed(0)
    plain = SMALL.make_model()
    inputs, targets = run.batch(1)
    loss = F.cross_entropy(plain(inputs), targets)
    loss.backward()
    step = watch_step(run)
    assert step.loss == pytest.approx(loss.item(), rel=1e-6)
    for stage, mark, factor in (
        ("scaled backward", "∇", 1024.0),
        ("unscale", "∇", 1.0),
        ("step", "Δ", 0.1),
    ):
        for layer in ("linear1", "linear3"):
            tensor = tensors_at(step, stage)[f"{mark} {layer} weights"]
            module = plain.get_submodule(layer)
            gradient = torch.cat([module.weight.grad.flatten(), module.bias.grad.flatten()])
            assert tensor.elements == gradient.numel()
            assert tensor.largest == pytest.approx(factor * gradient.abs().max().item(), rel=1e-4)
            # Of updates, those that rounding swallows are zeros as well.
            if stage != "step":
                assert tensor.zeros == int((gradient == 0).sum())
    unscaled, scaled = step.stages[STAGES.index("loss")].tensors
    assert scaled.largest == 1024 * step.loss
    assert unscaled.largest == step.loss


def test_stages_of_a_step_have_the_dtypes_of_the_recipe():
    half, single = torch.float16, torch.float32
    stages = ("cast weights", "scaled backward", "unscale", "step", "copy back")
    for name, expected in {
        "FP32": [{single}] * 5,
        "O1": [{single}, {half, single}, {single}, {single}, {single}],
        "O2": [{half}, {half}, {single}, {single}, {half}],
        "O3": [{half}, {half}, {single}, {half}, {half}],
    }.items():
        step = watch_step(stage_run(name))
        dtypes = [{tensor.dtype for tensor in tensors_at(step, stage).values()} for stage in stages]
        assert dtypes == expected, name


def test_under_o1_outputs_are_fp16_but_gradients_of_weights_fp32():
    step = watch_step(stage_run("O1"))
    forward = tensors_at(step, "forward")
    gradients = tensors_at(step, "scaled backward")
    assert forward["linear1 output"].dtype == torch.float16
    assert forward["relu1 output"].dtype == torch.float16
    assert gradients["∇ linear1 output"].dtype == torch.float16
    assert gradients["∇ linear1 weights"].dtype == torch.float32


def test_a_weight_that_stays_nan_has_not_moved():
    run = stage_run("O3")
    with torch.no_grad():
        for weight in run.weights.model_weights:
            weight.fill_(torch.nan)
    step = watch_step(run)
    assert step.weights > 0
    assert (step.moved, step.model_moved) == (0, 0)


class TestScaleTooHigh:
    """A watched step whose scale of 2^40 is too high."""

    def test_the_step_is_skipped(self):
        step = watch_step(stage_run("O2", scale=2.0**40))
        assert step.found_inf
        assert not step.stepped

    def test_an_overflow_is_found_where_inf_is_checked(self):
        step = watch_step(stage_run("O2", scale=2.0**40))
        assert any(tensor.non_finite for tensor in tensors_at(step, "check for inf").values())

    def test_the_scale_is_halved(self):
        run = stage_run("O2", scale=2.0**40)
        step = watch_step(run)
        assert (step.scale, step.scale_after, run.scaler.scale) == (2.0**40, 2.0**39, 2.0**39)

    def test_the_updates_are_zeros(self):
        step = watch_step(stage_run("O2", scale=2.0**40))
        assert (step.moved, step.model_moved) == (0, 0)
        for tensor in tensors_at(step, "step").values():
            assert tensor.zeros == tensor.elements, tensor.name

    def test_no_weight_moves(self):
        run = stage_run("O2", scale=2.0**40)
        before = [weight.detach().clone() for weight in run.weights.model_weights]
        watch_step(run)
        assert all(map(torch.equal, before, run.weights.model_weights))


def test_fp16_misses_updates_that_the_master_keeps():
    run = stage_run("O2")
    step = [watch_step(run) for _ in range(3)][-1]
    assert step.weights == sum(p.numel() for p in run.model.parameters())
    assert step.model_moved > 0
    assert step.model_moved < step.moved
    assert step.moved <= step.weights


def test_worked_example_a_summary_of_special_values():
    tensor = summarize("x", torch.tensor([0.0, -(2.0**-24), 3.0, math.inf, math.nan]).half())
    assert tensor.smallest == 2.0**-24
    assert tensor.largest == 3.0
    assert tensor.zeros == 1
    assert tensor.non_finite == 2


def test_worked_example_a_summary_of_zeros():
    zeros = summarize("zeros", torch.zeros(3))
    assert zeros.smallest == 0.0
    assert zeros.largest == 0.0
    assert zeros.zeros == 3
