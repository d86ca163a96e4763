"""Recipes: rows of values; one that contradicts itself does not exist."""

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

IMPOSSIBLE = [
    ({"autocast": FP16, "model": FP16}, "autocast keeps the model in FP32.*Take autocast=None"),
    ({"model": E4M3}, "FP32, FP16 or BF16, got E4M3. Take model=FP32, autocast=E4M3"),
    ({"model": FP16, "optimizer": BF16, "master_weights": False}, r"FP32 or the model's FP16, got BF16"),
    ({"model": FP16, "optimizer": FP16}, "Take optimizer=FP32 or master_weights=False"),
    ({"model": FP16, "rounding": WeightRounding.KAHAN}, "without FP32 masters.*master_weights=False"),
    ({"master_weights": False, "rounding": WeightRounding.STOCHASTIC}, "Take a 16-bit model"),
    ({"gradient_format": E5M2}, "autocast is None"),
    ({"model": FP16, "gradient_format": E5M2}, "autocast is None"),
    ({"accumulator": SEQUENTIAL_FP16}, "this recipe is FP32"),
]


def test_a_contradiction_is_refused_with_its_reason() -> None:
    for parts, expected in IMPOSSIBLE:
        with pytest.raises(ValueError, match=rf"recipe 'mine': .*{expected}"):
            Recipe("mine", **parts)


SHAPES = (1, 4096), (4096, 1)


def test_forward_opens_what_the_values_say() -> None:
    x, w = map(torch.ones, SHAPES)
    own = Recipe("BF16 O1", autocast=BF16)
    recipes = {RECIPES["FP32"]: "float32", RECIPES["O1"]: "float16", own: "bfloat16", RECIPES["FP8"]: "float32"}
    for recipe, expected in recipes.items():
        with recipe.forward("cpu"):
            assert str((x @ w).dtype) == f"torch.{expected}"


def test_an_fp16_accumulator_stops_counting_at_2048() -> None:
    for recipe in (RECIPES["O1"], replace(RECIPES["O2"], scaler=NO_SCALING)):
        a, b = (torch.ones(shape, dtype=torch.float32 if recipe.autocast else torch.float16) for shape in SHAPES)
        with recipe.forward("cpu"):
            assert (a @ b).item() == 4096
        with replace(recipe, accumulator=SEQUENTIAL_FP16).forward("cpu"):
            assert (a @ b).item() == 2048


def test_fp8_rounds_forward_to_e4m3_and_gradients_to_e5m2() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(4, 8), nn.Linear(8, 3, bias=False)
    with RECIPES["FP8"].forward("cpu"):
        y = layer(x)
    y.backward(gradient := torch.randn(4, 3))
    with torch.no_grad():
        plain = F.linear(round_tensor(x, E4M3), round_tensor(layer.weight, E4M3))
        assert torch.equal(y, round_tensor(plain, E4M3))
        expected = round_tensor(round_tensor(gradient, E5M2).T @ round_tensor(x, E4M3), E5M2)
        assert torch.equal(layer.weight.grad, expected)


def test_a_recipe_in_plain_values_is_json_and_tells_recipes_apart() -> None:
    written = {name: json.dumps(recipe.as_dict()) for name, recipe in RECIPES.items()}
    assert len(set(written.values())) == len(RECIPES)
    row = replace(RECIPES["O2"], accumulator=SEQUENTIAL_FP16).as_dict()
    assert (row["model"], row["autocast"], row["scaler"]["init_scale"]) == ("FP16", None, 65536.0)
    assert row["accumulator"] == SEQUENTIAL_FP16.name
