"""Recipes: contradictions, their effect on numbers, and their form as a dict."""

import json
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import NO_SCALING, RECIPES, Recipe, WeightRounding
from labkit.formats import BF16, E4M3, E5M2, FP16
from labkit.gemm import SEQUENTIAL_FP16
from labkit.interop import round_tensor

CONTRADICTIONS = [
    ({"autocast": FP16, "model": FP16}, "autocast keeps the model in FP32.*Take autocast=None"),
    ({"model": E4M3}, "FP32, FP16 or BF16, got E4M3. Take model=FP32, autocast=E4M3"),
    (
        {"model": FP16, "optimizer": BF16, "master_weights": False},
        r"FP32 or the model's FP16, got BF16",
    ),
    ({"model": FP16, "optimizer": FP16}, "Take optimizer=FP32 or master_weights=False"),
    (
        {"model": FP16, "rounding": WeightRounding.KAHAN},
        "without FP32 masters.*master_weights=False",
    ),
    ({"master_weights": False, "rounding": WeightRounding.STOCHASTIC}, "Take a 16-bit model"),
    ({"gradient_format": E5M2}, "autocast is None"),
    ({"model": FP16, "gradient_format": E5M2}, "autocast is None"),
    ({"accumulator": SEQUENTIAL_FP16}, "this recipe is FP32"),
]


def test_a_contradiction_is_refused_with_its_reason() -> None:
    for settings, expected in CONTRADICTIONS:
        with pytest.raises(ValueError, match=rf"recipe 'mine': .*{expected}"):
            Recipe("mine", **settings)


def test_an_fp16_accumulator_stops_counting_at_2048() -> None:
    # FP16 represents every integer up to 2048, and 2048 + 1 rounds to 2048.
    for recipe in (RECIPES["O1"], replace(RECIPES["O2"], scaler=NO_SCALING)):
        dtype = torch.float32 if recipe.autocast else torch.float16
        a = torch.ones(1, 4096, dtype=dtype)
        b = torch.ones(4096, 1, dtype=dtype)
        with recipe.forward("cpu"):
            assert (a @ b).item() == 4096
        with replace(recipe, accumulator=SEQUENTIAL_FP16).forward("cpu"):
            assert (a @ b).item() == 2048


def test_fp8_rounds_forward_to_e4m3_and_gradients_to_e5m2() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    layer = nn.Linear(8, 3, bias=False)
    with RECIPES["FP8"].forward("cpu"):
        y = layer(x)
    gradient = torch.randn(4, 3)
    y.backward(gradient)
    with torch.no_grad():
        plain = F.linear(round_tensor(x, E4M3), round_tensor(layer.weight, E4M3))
        assert torch.equal(y, round_tensor(plain, E4M3))
        expected = round_tensor(round_tensor(gradient, E5M2).T @ round_tensor(x, E4M3), E5M2)
        assert torch.equal(layer.weight.grad, expected)


def test_recipes_as_json_differ_in_more_than_the_name() -> None:
    names_by_text: dict[str, list[str]] = {}
    for name, recipe in RECIPES.items():
        row = recipe.as_dict()
        del row["name"]
        names_by_text.setdefault(json.dumps(row), []).append(name)
    # O0 is apex's name for FP32.
    assert [names for names in names_by_text.values() if len(names) > 1] == [["FP32", "O0"]]


def test_a_recipe_as_a_dict_has_plain_values() -> None:
    row = replace(RECIPES["O2"], accumulator=SEQUENTIAL_FP16).as_dict()
    assert row["model"] == "FP16"
    assert row["autocast"] is None
    assert row["scaler"]["init_scale"] == 65536.0
    assert row["accumulator"] == SEQUENTIAL_FP16.name
