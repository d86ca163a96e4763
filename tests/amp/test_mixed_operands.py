"""Calls in a converted network whose operands have two formats."""

import itertools
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine
from labkit.amp.casting.autocast import FLAGGED_DEVICE
from labkit.amp.masters.mixed_dtype_ops import mixed_dtype_ops
from labkit.gemm import SPECS
from tests.amp.test_conversion import LENGTH, WIDTH, Attention, causal_mask


def test_mask_passed_as_an_argument_still_masks() -> None:
    recipes = (
        RECIPES["O2"],
        RECIPES["O3"],
        RECIPES["BF16"],
        replace(RECIPES["O2"], accumulator=SPECS["V100"]),
    )
    for kind, recipe in itertools.product(("added mask", "fused mask"), recipes):
        torch.manual_seed(0)
        model = Attention(kind)
        x = torch.randn(2, LENGTH, WIDTH) / 8
        exact = model(x, causal_mask()).detach()
        engine = Engine(model, partial(torch.optim.SGD, lr=0.01), recipe)
        with engine.forward():
            out = engine(x, causal_mask())
        # A few times the epsilon of BF16, 2^-7, of outputs below 1.
        torch.testing.assert_close(out.detach(), exact, rtol=0, atol=0.02)


def test_a_product_of_two_dtypes_is_written_into_out() -> None:
    half = torch.full((2, 2), 2.0).half()
    for dtype, other in itertools.product((torch.float16, torch.float32), repeat=2):
        out = torch.zeros(2, 2, dtype=dtype)
        with mixed_dtype_ops():
            result = torch.mm(half, torch.ones(2, 2, dtype=other), out=out)
        assert result is out, (dtype, other)
        assert out.tolist() == [[4.0, 4.0], [4.0, 4.0]], (dtype, other)


def test_a_mode_that_opens_twice_restores_torchs_flag() -> None:
    mode = mixed_dtype_ops()
    before = torch.is_autocast_enabled(FLAGGED_DEVICE)
    with mode, mode:
        pass
    assert torch.is_autocast_enabled(FLAGGED_DEVICE) == before


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
def test_sparse_inputs_give_the_result_of_dense_ones() -> None:
    class SparseInput(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.to_dense())

    for recipe, x in itertools.product(("O2", "BF16"), (torch.eye(4), torch.zeros(4, 4))):
        engine = Engine(SparseInput(4, 2), partial(torch.optim.SGD, lr=0.1), RECIPES[recipe])
        for sparse in (x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()):
            assert torch.equal(engine(sparse), engine(x)), (recipe, sparse.layout)
