"""A checkpoint loads only into its equal: what every accumulator and every recipe saved, against every other.

The oracle is equality of the values themselves, name and source aside; who is refused is told what would do.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch

from labkit.amp import RECIPES, Engine, Recipe
from labkit.gemm import SEQUENTIAL_FP16, SPECS, TURING_4

ROWS: dict[str, Any] = {"FP32": None, "FP16": SEQUENTIAL_FP16, **SPECS, "Turing, blocks of 4": TURING_4}
ADDING = {name: replace(RECIPES["O2"], accumulator=row) for name, row in ROWS.items()}


@cache
def engine(recipe: Recipe) -> Engine:
    """An engine that has taken a step."""
    torch.manual_seed(0)
    made = Engine(torch.nn.Linear(2, 2), partial(torch.optim.SGD, lr=0.1), recipe)
    with made.forward():
        loss = made(torch.ones(4, 2)).square().mean()
    made.backward(loss)
    made.step()
    return made


def loads(saved: Recipe, into: Recipe) -> bool:
    """Whether a state is taken; one that is refused has changed nothing, and is told what to do instead."""
    before, refusal = engine(into).state_dict()["scalers"], ""
    try:
        engine(into).load_state_dict(copy.deepcopy(engine(saved).state_dict()))
    except ValueError as error:
        refusal = str(error)
    assert not refusal or engine(into).state_dict()["scalers"] == before
    assert not refusal or "Build the engine with the same one" in refusal
    return not refusal


def test_sums_of_one_kind_go_on_as_no_other() -> None:
    for saved in ADDING:
        assert [name for name, recipe in ADDING.items() if loads(ADDING[saved], recipe)] == [saved]


def test_a_recipe_goes_on_only_under_what_gives_the_same_numbers() -> None:
    same = {name: replace(recipe, name="", graph=False) for name, recipe in RECIPES.items()}
    for saved, recipe in RECIPES.items():
        taken = [name for name, other in RECIPES.items() if loads(recipe, other)]
        assert taken == [name for name in RECIPES if same[name] == same[saved]], saved
