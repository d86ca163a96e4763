"""FP16 GEMMs on a CPU: FP16 in, FP32 accumulate, one rounding, forward and backward."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.gemm import half_storage


def test_worked_example_4096_ones() -> None:
    # An FP16 accumulator stops counting at 2048 (2048 + 1 rounds back to 2048); an FP32 one does not.
    total = np.float16(0)
    for _ in range(4096):
        total += np.float16(1)
    assert total == 2048
    with half_storage("cpu"):
        assert (torch.ones(1, 4096).half() @ torch.ones(4096, 1).half()).item() == 4096


def test_forward_and_backward_of_a_linear_layer_round_once() -> None:
    # The three GEMMs of a linear layer, written out: Y = X W^T, dX = dY W, dW = dY^T X, each rounded once.
    g = torch.Generator().manual_seed(0)
    x = torch.randn(16, 40, generator=g).half().requires_grad_()
    w = torch.randn(24, 40, generator=g).half().requires_grad_()
    dy = torch.randn(16, 24, generator=g).half()
    with half_storage("cpu"):
        y = F.linear(x, w)
    y.backward(dy)
    assert y.dtype == x.grad.dtype == w.grad.dtype == torch.float16  # type: ignore[union-attr]
    assert torch.equal(y, (x.float() @ w.float().T).half())
    assert torch.equal(x.grad, (dy.float() @ w.float()).half())  # type: ignore[arg-type]
    assert torch.equal(w.grad, (dy.float().T @ x.float()).half())  # type: ignore[arg-type]


def test_against_a_gemm_in_fp64() -> None:
    # Error bound: k additions in FP32, each off by at most 2^-24 of the sum of |a||b|, then half an ulp of FP16.
    g = torch.Generator().manual_seed(1)
    a, b = torch.randn(64, 256, generator=g).half(), torch.randn(256, 64, generator=g).half()
    with half_storage("cpu"):
        ours = (a @ b).numpy()
    exact = (a.double() @ b.double()).numpy()
    accumulated = 256 * 2.0**-24 * (a.double().abs() @ b.double().abs()).numpy()
    assert (np.abs(ours - exact) <= np.spacing(np.abs(ours)) / 2 + accumulated).all()
    assert (ours != exact.astype(np.float16)).mean() < 0.01, "and it rarely shows"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_norms_take_half_inputs_and_fp32_weights(dtype: torch.dtype) -> None:
    x = torch.randn(4, 8, 5, 5).to(dtype)
    norm = nn.GroupNorm(2, 8)
    with half_storage("cpu"):
        y = norm(x)
    assert y.dtype == dtype
    assert torch.equal(y, norm(x.float()).to(dtype))


def test_running_statistics_in_fp16_are_kept() -> None:
    # O3's batch norm has FP16 buffers; a kernel that works on FP32 copies must round them back.
    x = torch.randn(64, 2, generator=torch.Generator().manual_seed(0)).half() * 3 + 5
    half, wide = nn.BatchNorm1d(2).half(), nn.BatchNorm1d(2)
    with half_storage("cpu"):
        half(x)
    wide(x.float())
    assert wide.running_mean is not None
    assert wide.running_mean.abs().min() > 0.1
    assert torch.equal(half.running_mean, wide.running_mean.half())  # type: ignore[arg-type]
    assert torch.equal(half.running_var, wide.running_var.half())  # type: ignore[arg-type, union-attr]


def test_a_result_goes_where_it_was_asked_for() -> None:
    a, b, out = torch.ones(2, 3).half(), torch.ones(3, 2).half(), torch.zeros(2, 2).half()
    with half_storage("cpu"):
        torch.matmul(a, b, out=out)
    assert torch.equal(out, torch.full((2, 2), 3.0).half())


def test_mixed_operands_are_refused_as_on_a_gpu() -> None:
    with half_storage("cpu"), pytest.raises(RuntimeError, match="dtype"):
        F.linear(torch.ones(2, 3).half(), torch.ones(4, 3))


def test_fp32_passes_through_untouched() -> None:
    a, b = torch.randn(8, 8), torch.randn(8, 8)
    with half_storage("cpu"):
        assert torch.equal(a @ b, torch.matmul(a, b))
        assert (a @ b).dtype == torch.float32


def test_a_gpu_needs_no_help() -> None:
    assert half_storage("cuda").__class__.__name__ == "nullcontext"
