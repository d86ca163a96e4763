"""Settings of operations, which are torch's: padding, dimensions, dtypes, and what is refused."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from labkit import testing
from labkit.testing import (
    VerdictKind,
    assert_explained,
    compare,
    convolution,
    layer_norm,
    matmul,
    mean,
    rms_norm,
    softmax,
    sum_over,
)
from tests.testing.kernels import normal
from tests.testing.test_clues import PRODUCT, A, B


@pytest.mark.parametrize(
    "settings",
    [
        {"padding": "same"},
        {"padding": "valid"},
        {"padding": "same", "dilation": 2},
        {"padding": (1, 2), "stride": (2, 1), "dilation": [1, 2]},
    ],
)
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("window", [(3, 3), (4, 2)])
def test_convolutions_take_the_padding_of_torch(
    settings: dict[str, object], window: tuple[int, int]
) -> None:
    x = normal(52, 2, 3, 9, 8)
    w = normal(53, 4, 3, *window)
    got = F.conv2d(x, w, **settings)
    operation = convolution(x, w, **settings)
    assert compare(got, operation)
    got[-1, -1, -1, -1] += 0.01
    assert not compare(got, operation)


@pytest.mark.parametrize(("shape", "dim"), [((3, 0), 1), ((2, 0, 3), 1), ((), 0)])
def test_reductions_of_nothing_and_of_a_number_are_torchs(shape: tuple[int, ...], dim: int) -> None:
    x = torch.zeros(shape)
    assert compare(torch.softmax(x, dim), softmax(x, dim)).kind is VerdictKind.EQUAL
    assert compare(torch.sum(x, dim), sum_over(x, dim)).kind is VerdictKind.EQUAL


def test_a_mean_over_no_dimension_is_torchs() -> None:
    x = normal(54, 3, 4)
    assert compare(torch.mean(x, ()), mean(x, ()))


def test_a_softmax_along_a_negative_dimension_has_the_shape_of_x() -> None:
    x = normal(54, 3, 4)
    assert softmax(x, -2).value.shape == x.shape


def test_a_dtype_of_torch_names_the_accumulator() -> None:
    assert compare(PRODUCT.half(), matmul(A, B), accumulator=torch.float32, out="FP16")


def test_the_name_of_a_format_may_be_lower_case() -> None:
    assert assert_explained(PRODUCT.half(), A, B, out="fp16").explained


X2 = torch.ones(3, 4)
IMAGE = torch.ones(1, 3, 8, 8)
FILTERS = torch.ones(4, 3, 3, 3)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ValueError, "dim within the 2 dimensions of x, got 7", lambda: softmax(X2, dim=7)),
        (ValueError, r"dim: expected each dimension once, got \(0, 0\)", lambda: mean(X2, (0, 0))),
        (ValueError, "each dimension once", lambda: sum_over(X2, (1, -1))),
        (TypeError, "dim: expected an int, got 'a'", lambda: sum_over(X2, "a")),
        (ValueError, "a number or more to normalize", lambda: layer_norm(torch.zeros(3, 0))),
        (ValueError, "eps: expected a number from 0 on", lambda: rms_norm(X2, eps=-1.0)),
        (
            ValueError,
            "'same' or 'valid', got 'full'",
            lambda: convolution(IMAGE, FILTERS, padding="full"),
        ),
        (
            ValueError,
            r"with stride \[2, 2\], got 'same'",
            lambda: convolution(IMAGE, FILTERS, padding="same", stride=2),
        ),
        (
            ValueError,
            "padding: expected a number from 0 on, or 2 of them",
            lambda: convolution(IMAGE, FILTERS, padding=(1, 1, 1)),
        ),
        (
            ValueError,
            "stride: expected a number from 1 on",
            lambda: convolution(IMAGE, FILTERS, stride=0),
        ),
        (
            TypeError,
            "padding: expected an int or a Sequence, got 1.5",
            lambda: convolution(IMAGE, FILTERS, padding=1.5),
        ),
        (
            ValueError,
            "a window that fits the padded image",
            lambda: convolution(IMAGE, FILTERS, dilation=9),
        ),
        (
            ValueError,
            r"bias of shape \[4\].*got \[3\]",
            lambda: convolution(IMAGE, FILTERS, torch.ones(3)),
        ),
        (TypeError, "groups: expected an int", lambda: convolution(IMAGE, FILTERS, groups="a")),
        (
            ValueError,
            "groups: expected 1 or more, got 0",
            lambda: convolution(IMAGE[:, :0], FILTERS, groups=0),
        ),
        (
            ValueError,
            "expected an accumulator of FP16, BF16, FP32, FP64, V100, .* got 'FP31'",
            lambda: testing.arithmetic("FP31"),
        ),
        (
            ValueError,
            "expected an accumulator of FP16, BF16, FP32, FP64, got TF32",
            lambda: testing.arithmetic("TF32"),
        ),
    ],
)
def test_settings_are_refused_with_what_was_expected(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message):
        call()
