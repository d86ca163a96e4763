"""Functions that torch wrote in Python: their parts are seen, and their results stay the same."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import CastEvent, autocast
from labkit.gemm import half_storage
from labkit.modes import body_of, is_composite


def test_worked_example_attention_is_made_of_matrix_products() -> None:
    x = torch.randn(2, 5, 16)
    events = list[CastEvent]()
    with autocast(listen=events.append):
        y, _ = nn.MultiheadAttention(16, 4, batch_first=True)(x, x, x)
    assert y.dtype == torch.float16
    products = [event.op for event in events if event.op in ("linear", "baddbmm", "bmm", "softmax")]
    assert products == ["linear", "bmm", "softmax", "bmm", "linear"]


X = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(F.relu, (X,)), (F.normalize, (X,)), (F.softmax, (X, -1)), (F.layer_norm, (X, (8,)))],
    ids=["relu", "normalize", "softmax", "layer_norm"],
)
def test_the_body_computes_what_the_function_does(function, arguments) -> None:
    assert is_composite(function)
    assert torch.equal(body_of(function)(*arguments), function(*arguments))


def test_a_method_of_a_tensor_is_not_a_composite() -> None:
    assert not is_composite(torch.Tensor.unflatten)


def test_a_mode_ends_after_a_composite_that_fails() -> None:
    with autocast(), pytest.raises(AttributeError):
        F.normalize("no tensor")
    assert (X.T @ X).dtype == torch.float32


# The bodies of these functions would call a mode for the same function again, without an end:
# max_pool2d calls one of two others, and a helper of meshgrid handles meshgrid itself.


def test_max_pooling_is_not_entered() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4).half()
    assert not is_composite(F.max_pool2d)
    with half_storage("cpu"):
        assert F.max_pool2d(image, 2).flatten().tolist() == [5, 7, 13, 15]


def test_meshgrid_is_not_entered() -> None:
    assert not is_composite(torch.meshgrid)
    rows, _ = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    with autocast():
        rows_in_mode, _ = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    assert torch.equal(rows_in_mode, rows)
