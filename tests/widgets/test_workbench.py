"""The workbench without a browser: knobs, recipes, restarts, forks, texts and exports."""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from labkit.amp import RECIPES, Recipe, WeightRounding, static
from labkit.train import TASKS, Task, TrainingRun, load, train
from labkit.widgets.driven.controller import Button, Phase
from labkit.widgets.live_training import knobs as every
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.knobs import (
    PRESETS,
    Knobs,
    Scaling,
    changed,
    knobs_of,
    lives_on,
    recipe_of,
    turn,
    why_fixed,
)
from labkit.widgets.live_training.words import names, sentence
from labkit.widgets.workbench.lines import torch_lines
from labkit.widgets.workbench.widget import Workbench

DIGITS = TASKS["digits"]


def bench_of(recipe: str = "O2", task: str = "digits", steps: int = 24) -> ForkedRun:
    return ForkedRun(TASKS[task], RECIPES[recipe], steps=steps, device="cpu")


def run_through(bench: ForkedRun, steps: int | None = None) -> ForkedRun:
    """Press Start, and let it run to the end or for some steps."""
    bench.handle(Button.START)
    while bench.due and (steps is None or bench.run.done < steps):
        bench.tick()
    if bench.due:
        bench.handle(Button.PAUSE)
    return bench


def losses(steps) -> list[float]:
    return [step.loss for step in steps]


def test_every_preset_and_combination_of_knobs_is_a_recipe() -> None:
    for name in PRESETS:
        assert recipe_of(knobs_of(RECIPES[name])) == RECIPES[name]
    formats = ("FP32", "FP16", "BF16")
    for position in product(
        formats, (False, True), (False,), every.ACCUMULATORS, every.MASTERS, Scaling
    ):
        # A combination that contradicts itself would raise.
        recipe_of(Knobs(*position))


def test_a_recipe_without_knobs_is_refused() -> None:
    with pytest.raises(ValueError, match="no knob for all of"):
        knobs_of(RECIPES["FP8"])


def test_some_knobs_continue_a_run_and_others_begin_it_again() -> None:
    before = knobs_of(RECIPES["O2"])
    continues = {
        "scaling": Scaling.OFF,
        "log2_scale": 3,
        "masters": "forgotten",
        "log2_lr": 2,
        "epsilon": 1e-4,
    }
    restarts = {
        "format": "BF16",
        "autocast": True,
        "norms_fp32": False,
        "accumulator": "FP16",
        "masters": "none",
    }
    for changes, expected in ((continues, True), (restarts, False)):
        for knob, value in changes.items():
            assert lives_on(before, replace(before, **{knob: value})) is expected, knob


def test_an_unknown_position_is_refused() -> None:
    with pytest.raises(ValueError, match="masters: expected one of kept, forgotten, none"):
        turn(Knobs(), {"masters": "gone"})


def test_an_unknown_knob_is_refused() -> None:
    with pytest.raises(ValueError, match=r"knob: expected one of format, .*, got 'scale'"):
        turn(Knobs(), {"scale": 1})


def test_a_position_is_taken_by_its_value() -> None:
    turned = turn(Knobs(), {"scaling": "static", "autocast": 1})
    assert turned.scaling is Scaling.STATIC
    assert turned.autocast is True


# Recipes with a setting for which there is no knob, and how names and code call it.
WITHOUT_A_KNOB = pytest.mark.parametrize(
    ("name", "setting"),
    [
        ("TF32", "TF32"),
        ("FP16 Kahan", "Kahan"),
        ("BF16 stochastic", "stochastic"),
        ("FP8 delayed", "E4M3"),
        ("MXFP8", "MXFP8"),
        ("NVFP4", "NVFP4"),
        ("unit scaled", "E4M3"),
    ],
)


def without_a_knob(recipe: Recipe) -> tuple[Any, Any, bool]:
    """Return the settings of a recipe for which there is no knob."""
    return recipe.rounding, recipe.products, recipe.tf32


@WITHOUT_A_KNOB
def test_knobs_of_a_recipe_give_this_recipe(name: str, setting: str) -> None:
    assert recipe_of(knobs_of(RECIPES[name])) == RECIPES[name]


@WITHOUT_A_KNOB
def test_a_turned_knob_keeps_the_settings_without_a_knob(name: str, setting: str) -> None:
    scaled = recipe_of(replace(knobs_of(RECIPES[name]), scaling=Scaling.DYNAMIC))
    assert without_a_knob(scaled) == without_a_knob(RECIPES[name])
    assert setting in scaled.name


@WITHOUT_A_KNOB
def test_the_code_of_knobs_names_the_setting(name: str, setting: str) -> None:
    assert setting in torch_lines(knobs_of(RECIPES[name]), DIGITS)


@WITHOUT_A_KNOB
def test_another_format_of_weights_ends_the_settings(name: str, setting: str) -> None:
    elsewhere = recipe_of(replace(knobs_of(RECIPES[name]), format="FP16", masters="kept"))
    assert without_a_knob(elsewhere) == (WeightRounding.NEAREST, None, False)


def test_knobs_without_effect_have_a_reason() -> None:
    assert set(why_fixed(Knobs("FP32"), DIGITS)) == {
        "autocast",
        "norms_fp32",
        "accumulator",
        "masters",
        "epsilon",
    }
    assert set(why_fixed(Knobs(autocast=True), TASKS["gpt"])) == {"norms_fp32", "masters"}
    assert why_fixed(Knobs(), TASKS["gpt"]) == {}


def test_a_scale_is_no_change_while_scaling_is_off() -> None:
    assert changed(Knobs(), Knobs(log2_scale=4)) == ""


def test_a_change_is_named_by_its_knobs() -> None:
    assert changed(Knobs(), Knobs("BF16", accumulator="V100")) == "BF16, sums of a V100"


def test_a_refused_change_has_a_notice() -> None:
    bench = bench_of("O1")
    bench.handle(partial(bench.turn, {"masters": "forgotten"}))
    assert (
        bench.notice
        == "Not done: under autocast the weights are FP32 themselves, and their own master"
    )


def test_a_fork_before_the_first_step_is_refused() -> None:
    bench = bench_of("O1")
    bench.handle(partial(bench.fork_after, 3))
    assert bench.notice.startswith("Not done: a fork needs a run to leave")


def test_both_runs_train_as_train_does() -> None:
    bench = run_through(bench_of("O2", "small_targets"))
    task = TASKS["small_targets"]
    assert losses(bench.run.steps) == losses(train(task, RECIPES["O2"], steps=24).steps)
    assert losses(bench.fp32.steps) == losses(train(task, RECIPES["FP32"], steps=24).steps)


def test_a_fork_without_a_change_trains_as_its_run() -> None:
    bench = run_through(bench_of("O2", "small_targets"))
    bench.handle(partial(bench.fork_after, 13))
    assert bench.phase is Phase.PAUSED
    run_through(bench)
    assert [s.step for s in bench.fork.steps] == list(range(14, 25))
    assert losses(bench.fork.steps) == losses(bench.run.steps[13:])
    assert f"Up to step {bench.fork.done} every loss is the same, bit for bit." in sentence(bench)


def test_fork_has_the_knobs_of_its_step() -> None:
    bench = run_through(bench_of("FP16 static"), steps=8)
    bench.handle(partial(bench.turn, {"log2_lr": 2}))
    run_through(bench)
    assert [m.label for m in bench.run.marks] == ["learning rate × 4"]
    for step, exponent in ((7, 0), (15, 2)):
        bench.handle(partial(bench.fork_after, step))
        assert bench.selected.wanted.log2_lr == exponent
    run_through(bench)
    assert losses(bench.fork.steps) == losses(bench.run.steps[15:])


def test_a_fork_after_a_part_of_a_step_is_refused() -> None:
    bench = run_through(bench_of("FP16 static"), steps=4)
    bench.handle(partial(bench.fork_after, 2.5))
    assert bench.notice == "Not done: a fork: expected a whole step from 0 to 4, got 2.5"
    assert bench.fork is None


def test_a_fork_may_have_another_learning_rate() -> None:
    bench = run_through(bench_of("FP32"))
    bench.handle(partial(bench.fork_after, 5))
    bench.handle(partial(bench.turn, {"log2_lr": -1}))
    run_through(bench)
    run = TrainingRun(DIGITS, RECIPES["FP32"], measure_every=0)
    for step in range(24):
        if step == 5:
            run.engine.optimizer.param_groups[0]["lr"] /= 2
        loss = run.step().loss
    assert bench.fork.steps[-1].loss == loss


def test_another_format_begins_a_fork_again() -> None:
    bench = run_through(bench_of("O2"), steps=9)
    bench.handle(partial(bench.fork_after, 4))
    assert names(bench) == ["O2", "fork"]
    bench.handle(partial(bench.turn, {"format": "BF16"}))
    assert bench.fork.origin == 4
    run_through(bench)
    assert bench.fork.run.recipe.model.name == "BF16"


def test_another_format_begins_a_run_again_without_its_fork() -> None:
    bench = run_through(bench_of("O2"), steps=9)
    bench.handle(partial(bench.fork_after, 4))
    run_through(bench)
    bench.handle(partial(bench.choose, branch=0))
    bench.handle(partial(bench.turn, {"autocast": True}))
    assert bench.fork is None
    assert bench.run.done == 0
    assert len(bench.previous) == 24
    assert bench.notice.startswith("Another format is another run")


def test_a_run_is_kept_while_another_task_is_chosen() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.fork_after, 3))
    bench.handle(partial(bench.turn, {"log2_lr": -1}))
    bench.handle(Button.START)
    fork = bench.fork
    steps = list(bench.run.steps)
    fp32 = bench.fp32
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    run_through(bench, 2)
    bench.handle(partial(bench.choose, task=DIGITS))
    assert bench.phase == Phase.PAUSED
    assert bench.fork == fork
    assert bench.run.steps == steps
    assert bench.fp32 == fp32
    assert bench.notice == "Your run of digits is as you left it, after step 5."
    assert run_through(bench).phase is Phase.FINISHED


def test_each_task_keeps_a_run_of_its_own() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    run_through(bench, 2)
    bench.handle(partial(bench.choose, task=DIGITS))
    assert bench.run.done == 5
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    assert bench.run.done == 2


def test_a_task_chosen_with_a_recipe_begins_with_it() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.choose, task=TASKS["small_targets"]))
    bench.handle(partial(bench.choose, task=DIGITS, recipe=RECIPES["FP32"]))
    assert bench.selected.wanted.format == "FP32"


def test_nothing_is_chosen_with_a_recipe_without_knobs() -> None:
    bench = run_through(bench_of("O2"), 5)
    bench.handle(partial(bench.fork_after, 3))
    odd = replace(RECIPES["FP16"], scaler=static(1000.0))
    bench.handle(partial(bench.choose, task=TASKS["small_targets"], recipe=odd, branch=0))
    assert "starts at 1000" in bench.notice
    assert bench.task is DIGITS
    assert bench.active == 1


def test_frames_have_each_step_once() -> None:
    bench = bench_of("O2")
    sent = []
    bench.send = lambda content, buffers: sent.append((content, buffers))
    run_through(bench, 5)
    bench.post(urgent=True)
    run_through(bench, 9)
    bench.post(urgent=True)
    assert [len(buffers[4]) // 20 for _, buffers in sent] == [5, 4]


def test_the_frame_after_a_fork_has_all_steps() -> None:
    bench = bench_of("O2")
    sent = []
    bench.send = lambda content, buffers: sent.append((content, buffers))
    run_through(bench, 9)
    bench.post(urgent=True)
    bench.handle(partial(bench.fork_after, 3))
    bench.post(urgent=True)
    assert sent[-1][0]["whole"]
    assert [len(b) // 20 for b in sent[-1][1][4:6]] == [9, 0]


@pytest.fixture
def state_after_two_steps() -> Any:
    """The state of a workbench of SGD under O2."""
    widget = Workbench("digits", "O2", steps=24, device="cpu")
    run_through(widget.forked_run, 2)
    yield widget.state()
    widget.close()


def test_state_counts_the_bytes_of_both_runs(state_after_two_steps: Any) -> None:
    state = state_after_two_steps
    assert [row["name"] for row in state["memory"]] == ["FP32", "O2"]
    fp32, o2 = (row["bytes"] for row in state["memory"])
    assert o2[0] * 2 == fp32[0]
    assert o2[1] == fp32[0]


def test_state_says_why_a_knob_is_fixed(state_after_two_steps: Any) -> None:
    assert state_after_two_steps["fixed"] == {
        "epsilon": "this task is trained with SGD, which has no epsilon"
    }


def test_each_part_of_the_memory_is_read_aloud(page) -> None:
    widget = Workbench("digits", "O2", steps=24, device="cpu")
    root = page.show(widget)
    memory = widget.state()["memory"]
    widget.close()
    for row in memory:
        parts = root.get_by_role("group", name=row["name"], exact=True).get_by_role("img")
        labels = [part.get_attribute("aria-label") for part in parts.all()]
        assert labels == [t for t, held in zip(row["texts"], row["bytes"], strict=True) if held]


def test_state_names_the_format_of_products() -> None:
    widget = Workbench("digits", "FP8 delayed", steps=12, device="cpu")
    run_through(widget.forked_run)
    (branch,) = widget.state()["branches"]
    assert branch["name"] == "E4M3"
    assert branch["format"] == "E4M3"
    assert widget.forked_run.run.steps[0].underflow is not None
    widget.close()


def test_a_refused_workbench_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    close = Workbench.close

    def noted_close(widget: Workbench) -> None:
        closed.append(widget)
        close(widget)

    monkeypatch.setattr(Workbench, "close", noted_close)
    with pytest.raises(ValueError, match="log2_scale: expected a whole number from 0 to 30"):
        Workbench("digits", "O2", device="cpu", knobs={"log2_scale": 31})
    assert [widget.comm for widget in closed] == [None]


def test_the_record_of_a_fork_has_the_steps_before_it(tmp_path) -> None:
    widget = Workbench("digits", "O2", steps=12, device="cpu", folder=tmp_path)
    run_through(widget.forked_run)
    widget.forked_run.handle(partial(widget.forked_run.fork_after, 6))
    widget.forked_run.handle(partial(widget.forked_run.turn, {"log2_lr": 1}))
    run_through(widget.forked_run)
    widget.forked_run.handle(widget.command({"do": "save", "what": "record"}))
    assert widget.forked_run.notice.startswith("The record is in ")
    record = load(tmp_path / "digits-fork-seed0.json")
    assert [s.step for s in record.steps] == list(range(1, 13))
    assert (
        record.recipe
        == "FP16 with dynamic scaling and 2 times the learning rate; forked after step 6 from O2"
    )
    assert record.memory["master weights"] > 0
    widget.close()


def test_the_picture_of_a_fork_is_saved_beside_its_record(tmp_path) -> None:
    widget = Workbench("digits", "O2", steps=12, device="cpu", folder=tmp_path)
    run_through(widget.forked_run)
    widget.forked_run.handle(partial(widget.forked_run.fork_after, 6))
    run_through(widget.forked_run)
    widget.save("picture")
    assert (tmp_path / "digits-fork-seed0.png").read_bytes().startswith(b"\x89PNG")
    widget.close()


def test_a_record_that_cannot_be_saved_leaves_the_run_as_it_is(tmp_path) -> None:
    folder = tmp_path / "a file"
    folder.touch()
    widget = Workbench("digits", "O2", steps=12, device="cpu", folder=folder)
    run_through(widget.forked_run, steps=2)
    phase = widget.phase
    for what in ("record", "picture"):
        widget.forked_run.notice = ""
        widget.forked_run.handle(widget.command({"do": "save", "what": what}))
        assert widget.forked_run.notice.startswith("Not done: ")
        assert "a file" in widget.forked_run.notice
    assert widget.phase is phase
    widget.close()


def plain_losses(knobs: Knobs, task: Task, steps: int = 12) -> list[float]:
    """Return the losses of the printed program, on the batches of the workbench."""
    # The run has the same initial weights and batches.
    run = TrainingRun(task, RECIPES["FP32"], 0)
    scope = {"model": run.model, "make_optimizer": task.make_optimizer, "loss_of": task.loss}
    scope["batches"] = [run.batch(step) for step in range(1, steps + 1)]
    exec(torch_lines(knobs, task), scope)
    return scope["losses"]


def test_printed_lines_give_the_same_losses() -> None:
    for task in ("digits", "autoencoder"):
        bench = run_through(bench_of("FP32", task, 12))
        assert plain_losses(bench.run.wanted, TASKS[task]) == losses(bench.run.steps), task
    for recipe in ("O1", "O2", "O3", "FP16 static", "FP16 no master", "BF16", "BF16 no master"):
        bench = run_through(bench_of(recipe, "digits", 12))
        # Some ulps of the format, over twelve steps.
        bound = 2.0**-5 if "BF16" in recipe else 2.0**-8
        assert plain_losses(bench.run.wanted, DIGITS) == pytest.approx(
            losses(bench.run.steps), rel=bound
        ), recipe


class CustomAdam(torch.optim.Adam):
    """An optimizer with a name that torch.optim lacks."""


def make_custom(weights: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    return CustomAdam(weights, lr=lr / 2)


def test_printed_lines_name_the_optimizer() -> None:
    class Adam(torch.optim.Adam):
        """An optimizer of a notebook with the name of torch's, which cannot be imported."""

    unnamed = "optimizer = make_optimizer(model.parameters())"
    for make_optimizer, line in (
        (partial(CustomAdam, lr=1e-3), f"from {__name__} import CustomAdam"),
        (partial(make_custom, lr=1e-3), "optimizer = make_custom(model.parameters(), lr=0.001)"),
        # A learning rate with all its digits.
        (
            partial(torch.optim.Adam, lr=0.1 / 3),
            f"torch.optim.Adam(model.parameters(), lr={0.1 / 3 * 4!r})",
        ),
        # Without options, the learning rate is unknown.
        (torch.optim.Adam, unnamed),
        (partial(Adam, lr=1e-3), unnamed),
        (
            partial(torch.optim.Adam, lr=1e-3, betas=(0.8, 0.9)),
            "torch.optim.Adam(model.parameters(), lr=0.004, betas=",
        ),
        # The repr of this option is no Python literal.
        (partial(CustomAdam, lr=np.float64(1e-3)), unnamed),
    ):
        task = replace(DIGITS, name="custom", make_optimizer=make_optimizer)
        bench = ForkedRun(task, RECIPES["FP32"], steps=12, device="cpu")
        bench.handle(partial(bench.turn, {"log2_lr": 2}))
        run_through(bench)
        assert line in torch_lines(bench.run.wanted, task)
        assert plain_losses(bench.run.wanted, task) == losses(bench.run.steps), line


def test_printed_lines_have_all_digits_of_a_scaler() -> None:
    growth_factor = 2.0 ** (1 / 1000)
    scaler = replace(
        RECIPES["FP16 dynamic"].scaler, growth_factor=growth_factor, floor=1.0, cap=2.0**24
    )
    knobs = knobs_of(replace(RECIPES["FP16 dynamic"], name="slow", scaler=scaler))
    lines = torch_lines(knobs, DIGITS)
    assert f"growth_factor={growth_factor!r}," in lines
    assert "no such knobs; here they were floor=1.0, cap=16777216.0" in lines


def large_loss(out: Tensor, targets: Tensor) -> Tensor:
    return DIGITS.loss(out, targets) * 1e8


def test_printed_lines_skip_steps_with_inf_as_the_run_does() -> None:
    task = replace(DIGITS, name="large", loss=large_loss)
    bench = ForkedRun(task, RECIPES["FP16"], steps=4, device="cpu")
    run_through(bench)
    assert bench.run.wanted.scaling is Scaling.OFF
    assert not any(step.stepped for step in bench.run.steps)
    # Without a step the loss of a batch is finite, and that of the first weights.
    assert np.isfinite(plain_losses(bench.run.wanted, task, steps=4)).all()


def reopened(bench: Workbench) -> ForkedRun:
    again = Workbench.from_code(bench.code, device="cpu")
    bench.close()
    again.close()
    return again.forked_run


@pytest.mark.parametrize("recipe", PRESETS)
def test_a_code_names_what_a_bench_was_opened_with(recipe: str) -> None:
    bench = Workbench("digits_cnn", recipe, 7, steps=20, device="cpu")
    assert bench.code == f"digits_cnn; {recipe}; seed=7; steps=20"
    assert bench.state()["opens"] == f'Workbench.from_code("{bench.code}")'


@pytest.mark.parametrize("recipe", PRESETS)
def test_a_code_opens_every_recipe(recipe: str) -> None:
    again = reopened(Workbench("digits_cnn", recipe, 7, steps=20, device="cpu"))
    assert (again.task, again.seed, again.total) == (TASKS["digits_cnn"], 7, 20)
    assert again.selected.wanted == knobs_of(RECIPES[recipe])


def test_a_code_opens_every_position_of_a_knob() -> None:
    """Some knobs of O0 are fixed until its format is FP16."""
    for recipe, (knob, positions) in product(("O0", "O2"), every.POSITIONS.items()):
        for position in (positions[0], positions[len(positions) // 2], positions[-1]):
            bench = Workbench(
                "digits_cnn", recipe, device="cpu", knobs={"format": "FP16", knob: position}
            )
            assert getattr(bench.forked_run.selected.wanted, knob) == position
            assert reopened(bench).selected.wanted == bench.forked_run.selected.wanted, (
                recipe,
                knob,
                position,
            )


def test_a_code_opens_all_knobs_together() -> None:
    positions = {
        "format": "BF16",
        "autocast": True,
        "norms_fp32": False,
        "accumulator": "FP16",
        "masters": "forgotten",
    }
    positions |= {"scaling": Scaling.STATIC, "log2_scale": 17, "log2_lr": -3, "epsilon": 1e-4}
    bench = Workbench("digits_cnn", "O1", device="cpu", knobs=positions)
    assert reopened(bench).selected.wanted == turn(knobs_of(RECIPES["O1"]), positions)


def test_invalid_codes_are_refused() -> None:
    for code, message in (
        ("", "task: expected one of segmentation"),
        ("digits", "recipe: expected one of FP32"),
        ("digit; O2", "task: expected one of segmentation"),
        ("digits; O9; seed=0", "recipe: expected one of FP32"),
        ("digits; FP8; seed=0", "no knob for all of"),
        ("digits; O2; seed", "'seed' is not a setting"),
        ("digits; O2; seed=-1", "seed: expected a whole number from 0 on, got '-1'"),
        ("digits; O2; steps=0", "steps: expected a whole number from 1 on"),
        ("digits; O2; speed=9", "knob: expected one of format, autocast"),
        ("digits; O2; masters=gone", "masters: expected one of kept, forgotten, none, got 'gone'"),
        ("digits; O2; log2_scale=31", "log2_scale: expected a whole number from 0 to 30"),
        ("digits; O2; seed=1; seed=2", "seed: expected to be given once, got 'digits; O2; seed"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Workbench.from_code(code, device="cpu")


def test_a_code_that_is_not_a_text_is_refused() -> None:
    with pytest.raises(TypeError, match="a code: expected a text, got"):
        Workbench.from_code(None)


def test_a_custom_task_has_no_code() -> None:
    bench = Workbench(replace(TASKS["digits"], name="mine"), "O2", device="cpu")
    bench.close()
    with pytest.raises(ValueError, match="of your own has no code"):
        _ = bench.code
    assert bench.state()["opens"] == ""
