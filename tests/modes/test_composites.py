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


def test_the_body_computes_the_same() -> None:
    x = torch.randn(3, 8)
    for func, args in (
        (F.relu, (x,)),
        (F.normalize, (x,)),
        (F.softmax, (x, -1)),
        (F.layer_norm, (x, (8,))),
    ):
        assert is_composite(func)
        assert torch.equal(body_of(func)(*args), func(*args))
    assert not is_composite(torch.Tensor.unflatten)
    with autocast(), pytest.raises(AttributeError):
        F.normalize("no tensor")
    assert (x.T @ x).dtype == torch.float32, "a mode is gone after a composite that fails"


def test_a_function_that_leaves_asking_to_another_is_left_alone() -> None:
    """max_pool2d calls one of two functions, and meshgrid's helper asks about meshgrid: entered,
    they never end.
    """
    image = torch.arange(16.0).reshape(1, 1, 4, 4).half()
    assert not is_composite(F.max_pool2d)
    with half_storage("cpu"):
        assert F.max_pool2d(image, 2).flatten().tolist() == [5, 7, 13, 15]
    rows, _ = torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")
    with autocast():
        assert torch.equal(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")[0], rows)
