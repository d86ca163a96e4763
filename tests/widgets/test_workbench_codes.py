"""Codes that open a workbench again."""

import re
from dataclasses import replace

import pytest

from labkit.amp import RECIPES
from labkit.train import TASKS
from labkit.widgets.live_training.forked_run import ForkedRun
from labkit.widgets.live_training.knobs import (
    POSITIONS,
    PRESETS,
    Scaling,
    knobs_of,
    turn,
)
from labkit.widgets.workbench.widget import Workbench


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


@pytest.mark.parametrize("recipe", ["O0", "O2"])
@pytest.mark.parametrize("knob", POSITIONS)
def test_a_code_opens_every_position_of_a_knob(recipe: str, knob: str) -> None:
    positions = POSITIONS[knob]
    for position in (positions[0], positions[len(positions) // 2], positions[-1]):
        # Some knobs of O0 are fixed until its format is FP16.
        turned = {"format": "FP16", knob: position}
        bench = Workbench("digits_cnn", recipe, device="cpu", knobs=turned)
        assert getattr(bench.forked_run.selected.wanted, knob) == position
        assert reopened(bench).selected.wanted == bench.forked_run.selected.wanted


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


@pytest.mark.parametrize(
    ("code", "message"),
    [
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
    ],
)
def test_an_invalid_code_is_refused(code: str, message: str) -> None:
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
