"""Knobs of a training: their recipes, what they change, and which of them are fixed."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from labkit.amp import RECIPES, Recipe, WeightRounding
from labkit.train import TASKS
from labkit.widgets.live_training.knobs import (
    ACCUMULATORS,
    MASTERS,
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
from labkit.widgets.workbench.lines import torch_lines
from tests.widgets.forked_runs import DIGITS


@pytest.mark.parametrize("preset", PRESETS)
def test_knobs_of_a_preset_give_its_recipe(preset: str) -> None:
    assert recipe_of(knobs_of(RECIPES[preset])) == RECIPES[preset]


@pytest.mark.parametrize("format", ["FP32", "FP16", "BF16"])
@pytest.mark.parametrize("autocast", [False, True])
def test_no_combination_of_knobs_contradicts_itself(format: str, autocast: bool) -> None:
    for accumulator, masters, scaling in product(ACCUMULATORS, MASTERS, Scaling):
        # A contradiction raises.
        recipe_of(Knobs(format, autocast, False, accumulator, masters, scaling))


def test_a_recipe_without_knobs_is_refused() -> None:
    with pytest.raises(ValueError, match="no knob for all of"):
        knobs_of(RECIPES["FP8"])


@pytest.mark.parametrize(
    ("knob", "position"),
    [
        ("scaling", Scaling.OFF),
        ("log2_scale", 3),
        ("masters", "forgotten"),
        ("log2_lr", 2),
        ("epsilon", 1e-4),
    ],
)
def test_a_run_continues_after_a_knob(knob: str, position: Any) -> None:
    before = knobs_of(RECIPES["O2"])
    assert lives_on(before, replace(before, **{knob: position}))


@pytest.mark.parametrize(
    ("knob", "position"),
    [
        ("format", "BF16"),
        ("autocast", True),
        ("norms_fp32", False),
        ("accumulator", "FP16"),
        ("masters", "none"),
    ],
)
def test_a_run_begins_again_after_a_knob(knob: str, position: Any) -> None:
    before = knobs_of(RECIPES["O2"])
    assert not lives_on(before, replace(before, **{knob: position}))


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


# How code calls the setting of a recipe for which there is no knob.
WITHOUT_A_KNOB = {
    "TF32": "TF32",
    "FP16 Kahan": "Kahan",
    "BF16 stochastic": "stochastic",
    "FP8 delayed": "E4M3",
    "MXFP8": "MXFP8",
    "NVFP4": "NVFP4",
    "unit scaled": "E4M3",
}


def without_a_knob(recipe: Recipe) -> tuple[Any, Any, bool]:
    """Return the settings of a recipe for which there is no knob."""
    return recipe.rounding, recipe.products, recipe.tf32


@pytest.mark.parametrize("name", WITHOUT_A_KNOB)
def test_knobs_of_a_recipe_give_this_recipe(name: str) -> None:
    assert recipe_of(knobs_of(RECIPES[name])) == RECIPES[name]


@pytest.mark.parametrize("name", WITHOUT_A_KNOB)
def test_a_turned_knob_keeps_the_settings_without_a_knob(name: str) -> None:
    scaled = recipe_of(replace(knobs_of(RECIPES[name]), scaling=Scaling.DYNAMIC))
    assert without_a_knob(scaled) == without_a_knob(RECIPES[name])


@pytest.mark.parametrize("name", WITHOUT_A_KNOB)
def test_the_name_after_a_turned_knob_has_the_setting(name: str) -> None:
    scaled = recipe_of(replace(knobs_of(RECIPES[name]), scaling=Scaling.DYNAMIC))
    assert WITHOUT_A_KNOB[name] in scaled.name


@pytest.mark.parametrize("name", WITHOUT_A_KNOB)
def test_the_code_of_knobs_names_the_setting(name: str) -> None:
    assert WITHOUT_A_KNOB[name] in torch_lines(knobs_of(RECIPES[name]), DIGITS)


@pytest.mark.parametrize("name", WITHOUT_A_KNOB)
def test_another_format_of_weights_ends_the_settings(name: str) -> None:
    elsewhere = recipe_of(replace(knobs_of(RECIPES[name]), format="FP16", masters="kept"))
    assert without_a_knob(elsewhere) == (WeightRounding.NEAREST, None, False)


@pytest.mark.parametrize(
    ("knobs", "task", "fixed"),
    [
        (
            Knobs("FP32"),
            "digits",
            {"autocast", "norms_fp32", "accumulator", "masters", "epsilon"},
        ),
        (Knobs(autocast=True), "gpt", {"norms_fp32", "masters"}),
        (Knobs(), "gpt", set()),
    ],
)
def test_knobs_without_effect_have_a_reason(knobs: Knobs, task: str, fixed: set[str]) -> None:
    assert set(why_fixed(knobs, TASKS[task])) == fixed


def test_a_scale_is_no_change_while_scaling_is_off() -> None:
    assert changed(Knobs(), Knobs(log2_scale=4)) == ""


def test_a_change_is_named_by_its_knobs() -> None:
    assert changed(Knobs(), Knobs("BF16", accumulator="V100")) == "BF16, sums of a V100"
