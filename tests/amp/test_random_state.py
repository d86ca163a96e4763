"""States of random generators in checkpoints: of the same kind of device to the bit, of another one with a warning."""

from __future__ import annotations

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from labkit.amp import RECIPES, Engine
from labkit.amp.masters.without_master import require_state, restore


def test_a_state_of_the_same_kind_goes_on_to_the_bit() -> None:
    before, after = torch.Generator().manual_seed(1), torch.Generator()
    torch.rand(3, generator=before)
    with warnings.catch_warnings(action="error"):
        restore(after, before.get_state())
    assert torch.equal(torch.rand(3, generator=before), torch.rand(3, generator=after))


def test_a_gpus_state_seeds_a_cpus_generator_and_says_so() -> None:
    of_a_gpu = torch.arange(16, dtype=torch.uint8)
    drawn = []
    for state in (of_a_gpu, of_a_gpu, of_a_gpu + 1):
        generator = torch.Generator()
        with pytest.warns(UserWarning, match="drawn on a GPU when this was saved, and are drawn on a CPU now"):
            restore(generator, state)
        drawn.append(torch.rand(4, generator=generator))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_what_is_no_state_is_refused_and_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()
    for check in (require_state, restore):
        with pytest.raises(RuntimeError):
            check(generator, torch.zeros(3, dtype=torch.uint8))
    assert torch.equal(generator.get_state(), before)


def test_a_checkpoint_of_a_stochastic_recipe_goes_on_on_another_kind_of_device() -> None:
    """The state dict of a GPU's engine differs from this one in its generator alone."""
    for recipe in ("FP16 stochastic", "BF16 stochastic", "NVFP4"):
        engine = Engine(nn.Linear(32, 4), partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
        state = engine.state_dict()
        state["products" if "products" in state else "weights"]["generator"] = torch.arange(16, dtype=torch.uint8)
        with pytest.warns(UserWarning, match="not bit for bit"):
            engine.load_state_dict(state)
        with engine.forward():
            loss = engine(torch.ones(2, 32)).square().mean()
        engine.backward(loss)
        assert engine.step().stepped, recipe
