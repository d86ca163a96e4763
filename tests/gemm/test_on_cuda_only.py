"""Operations with a half kernel on CUDA and none on a CPU: FP32, rounded once. Torch's OpInfo names them."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp import autocast
from labkit.gemm import half_storage

with warnings.catch_warnings(action="ignore"):
    opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")

FP16, BF16 = torch.float16, torch.bfloat16


def on_cuda_only(dtype: torch.dtype) -> list[Any]:
    """Torch's own list: operations that CUDA has in a dtype, and a CPU in FP32 but not in that dtype."""
    ops = [op for op in opinfo.op_db if dtype in op.dtypesIfCUDA and dtype not in op.dtypes]
    return [op for op in ops if torch.float32 in op.dtypes]


LIST = [(dtype, op) for dtype in (FP16, BF16) for op in on_cuda_only(dtype)]


def test_worked_example_average_pooling_in_three_dimensions() -> None:
    x = torch.tensor([1, 1 + 2.0**-10]).half().reshape(1, 1, 2, 1)
    with pytest.raises(NotImplementedError, match="not implemented for 'Half'"):
        F.avg_pool3d(x, (1, 2, 1))
    with half_storage("cpu"):
        assert F.avg_pool3d(x, (1, 2, 1)).item() == 1  # the mean 1 + 2^-11 is a tie, and 1 is even


UPCAST = {FP16: torch.float32, BF16: torch.float32, torch.complex32: torch.complex64}


def cast(value: Any, dtypes: dict[torch.dtype, torch.dtype]) -> Any:
    """Return a copy without history, its tensors cast as the table says."""
    return tree_map_only(Tensor, lambda t: t.detach().clone().to(dtypes.get(t.dtype, t.dtype)), value)


def run(op: Any, sample: Any) -> tuple[list[Tensor], list[Tensor]]:
    """Return results and gradients of one of torch's sample inputs; the loss is linear, so its gradient is exact."""
    leaves = [t for t in tree_leaves(sample) if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex())]
    for leaf in leaves:
        leaf.requires_grad_(op.supports_autograd)
    torch.manual_seed(0)  # the noise of rrelu
    out = [t for t in tree_leaves(op.op(sample[0], *sample[1], **sample[2])) if isinstance(t, Tensor)]
    if not out[0].requires_grad:
        return out, []
    sums = [real(t).sum() for t in out]
    return out, [g for g in torch.autograd.grad(sum(sums), leaves, allow_unused=True) if g is not None]


def real(tensor: Tensor) -> Tensor:
    """Return FP32 numbers, two for a complex one."""
    return torch.view_as_real(tensor.to(torch.complex64).resolve_conj()) if tensor.is_complex() else tensor.float()


@pytest.mark.filterwarnings("ignore")
def test_each_operation_that_only_cuda_has_in_half_is_fp32s_rounded_once() -> None:
    assert {"nn.functional.avg_pool3d", "nn.functional.rrelu", "fft.irfftn"} <= {op.name for _, op in LIST}
    for dtype, op in LIST:
        half = {torch.float32: dtype, torch.complex64: torch.complex32}
        for given in list(op.sample_inputs("cpu", torch.float32))[:4]:
            sample = cast((given.input, given.args, given.kwargs), half)
            with half_storage("cpu"):
                ours, of_ours = run(op, cast(sample, {}))
            want, of_want = run(op, cast(sample, UPCAST))
            for a, b in zip(ours + of_ours, cast(want + of_want, half), strict=True):
                assert a.dtype == b.dtype, (op.full_name, dtype)
                assert torch.equal(real(a).nan_to_num(), real(b).nan_to_num()), (op.full_name, dtype)


def test_inside_autocast_where_an_fp16_tensor_meets_them() -> None:
    x, weight = torch.randn(1, 2, 4, 4, 4), torch.randn(3, 2, 1, 1, 1, requires_grad=True)
    with half_storage("cpu"), autocast():
        y = F.avg_pool3d(F.conv3d(x, weight), 2)
        z = F.rrelu(y, training=True)
    z.float().sum().backward()
    assert (y.dtype, z.dtype) == (FP16, FP16)
    assert weight.grad is not None


def test_in_place_it_is_the_tensor_that_was_given() -> None:
    x = torch.linspace(-2, 2, 9).half()
    torch.manual_seed(0)
    wanted = F.rrelu(x.float(), training=True).half()
    for inplace in (True, False):
        torch.manual_seed(0)
        with half_storage("cpu"):
            y = F.rrelu(given := x.clone(), training=True, inplace=inplace)
        assert torch.equal(y, wanted)
        assert (y is given, torch.equal(given, x)) == (inplace, not inplace)


def test_what_a_gpu_refuses_is_refused() -> None:
    """There are no complex numbers in BF16, and an inverse has no half kernel anywhere."""
    with half_storage("cpu"), pytest.raises(RuntimeError, match="BFloat16"):
        torch.fft.fft(torch.ones(4).bfloat16())
    with half_storage("cpu"), pytest.raises(RuntimeError, match="Half"):
        torch.linalg.inv(torch.eye(2).half())
    with half_storage("cpu"), pytest.raises((RuntimeError, NotImplementedError)):
        F.multi_margin_loss(torch.ones(2, 3).half(), torch.tensor([0, 1]), weight=torch.ones(3))
