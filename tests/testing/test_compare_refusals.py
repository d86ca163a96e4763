"""Input of a comparison that is refused, and accumulators by the name of a GPU."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from labkit import testing
from labkit.formats import BF16, E4M3, FP16, FP32
from labkit.gemm import SPECS, accumulate
from labkit.testing import assert_explained, compare, matmul, sum_over
from tests.testing.test_compare import EXACT, A, B


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (
            ValueError,
            r"b\[..., k, n\] with one k, got \[24, 200\] and \[24, 200\]",
            lambda: matmul(A, A),
        ),
        (
            ValueError,
            r"result of shape \[24, 16\], got \[16, 24\]",
            lambda: compare(EXACT.T, matmul(A, B)),
        ),
        (TypeError, "expected floats in a, got torch.int64", lambda: matmul(A.long(), B)),
        (
            TypeError,
            "float16, float32 or float64 in got, got int64",
            lambda: compare(np.arange(4), matmul(A, B)),
        ),
        (
            ValueError,
            "expected values of FP16",
            lambda: compare(EXACT.float(), matmul(A, B), out=FP16),
        ),
        (
            ValueError,
            "an accumulator of FP16, BF16, FP32, FP64, V100.*H100",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator="H1"),
        ),
        (
            ValueError,
            "FP16, BF16, FP32, FP64, got E4M3",
            lambda: compare(EXACT.half(), matmul(A, B), accumulator=E4M3),
        ),
        (
            ValueError,
            "V100 Tensor Cores take FP16",
            lambda: compare(EXACT.half(), matmul(A.bfloat16(), B.bfloat16()), accumulator="V100"),
        ),
        (ValueError, "bias to broadcast", lambda: matmul(A, B, bias=torch.ones(7))),
        (ValueError, "two vectors", lambda: testing.dot(A, B)),
        (
            ValueError,
            r"one channel or more, got \[4, 0, 3\]",
            lambda: testing.convolution(torch.zeros(1, 0, 8), torch.zeros(4, 0, 3)),
        ),
        (
            ValueError,
            r"one channel or more, got \[0, 3, 3\]",
            lambda: testing.convolution(torch.zeros(1, 3, 8), torch.zeros(0, 3, 3)),
        ),
        (ValueError, "dim within the 2 dimensions", lambda: sum_over(A, 5)),
        (
            ValueError,
            "expected E4M3 values in a",
            lambda: matmul(A.float(), B.float(), operands=E4M3),
        ),
        (TypeError, "expected a dense tensor for a, got", lambda: matmul(A.to_sparse(), B)),
        (TypeError, "an operation alone", lambda: assert_explained(EXACT, matmul(A, B), B)),
    ],
)
def test_bad_input_is_refused_with_what_was_expected(
    error: type[Exception], message: str, call: Callable[[], object]
) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", SPECS)
def test_a_gpus_name_is_its_instruction_for_fp16(name: str) -> None:
    assert_explained(accumulate(A, B, None, SPECS[name], FP32), A, B, accumulator=name)


@pytest.mark.parametrize("name", SPECS)
def test_a_gpus_name_is_its_fp32_units_for_fp32(name: str) -> None:
    assert_explained(A.float() @ B.float(), A.float(), B.float(), accumulator=name)


# The Tensor Cores of a V100 and a T4 do not take BF16.
@pytest.mark.parametrize("name", [name for name in SPECS if name not in ("V100", "T4")])
def test_a_gpus_name_is_its_instruction_for_bf16(name: str) -> None:
    a = A.bfloat16()
    b = B.bfloat16()
    assert_explained(accumulate(a, b, None, SPECS[name], BF16), a, b, accumulator=name)
