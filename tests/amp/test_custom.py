"""custom_fwd and custom_bwd: operations whose forward and backward somebody wrote. The meaning is torch.amp's."""

from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.amp import autocast, custom_bwd, custom_fwd
from labkit.formats import BF16, FP16, FP32
from labkit.gemm import half_storage

seen: dict[str, torch.dtype] = {}


class Product(torch.autograd.Function):
    """torch's example: a matrix product that runs in whatever dtype autocast chooses, forward and backward."""

    @staticmethod
    @custom_fwd
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return a.mm(b)

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        of_a = gradient.mm(b.t())
        seen["backward"] = of_a.dtype
        return of_a.to(a.dtype), a.t().mm(gradient).to(b.dtype)


class InFp32(torch.autograd.Function):
    """An operation that wants FP32 and no casts inside."""

    @staticmethod
    @custom_fwd(cast_inputs=FP32)
    def forward(ctx: Any, a: Tensor, b: Tensor, factor: float = 1.0) -> Tensor:
        ctx.save_for_backward(a, b)
        seen["forward"] = a.dtype
        return a.mm(b) * factor

    @staticmethod
    @custom_bwd
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        a, b = ctx.saved_tensors
        of_a = gradient.mm(b.t())
        seen["backward"] = of_a.dtype
        return of_a, a.t().mm(gradient), None


def pair(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, 8, generator=g).to(dtype).requires_grad_() for _ in range(2))
    return a, b


def test_worked_example_backward_runs_under_the_casts_of_forward() -> None:
    a, b = pair()
    with half_storage("cpu"), autocast(BF16):
        y = Product.apply(a, b)
    assert y.dtype == torch.bfloat16
    y.float().sum().backward()  # outside of the region
    assert seen["backward"] == torch.bfloat16
    assert (a.grad.dtype, b.grad.dtype) == (torch.float32, torch.float32)


def test_values_equal_torchs_own_decorators() -> None:
    """torch.amp on a CPU, in BF16, where its lists and ours agree on mm."""
    from torch.amp import custom_bwd as torch_bwd
    from torch.amp import custom_fwd as torch_fwd

    class Theirs(torch.autograd.Function):
        forward = staticmethod(torch_fwd(Product.forward.__wrapped__, device_type="cpu"))
        backward = staticmethod(torch_bwd(Product.backward.__wrapped__, device_type="cpu"))

    (a, b), (c, d) = pair(), pair()
    with autocast(BF16):
        ours = Product.apply(a, b)
    with torch.autocast("cpu", torch.bfloat16):
        theirs = Theirs.apply(c, d)
    ours.float().square().sum().backward()
    theirs.float().square().sum().backward()
    assert torch.equal(ours, theirs)
    assert torch.equal(a.grad, c.grad)
    assert torch.equal(b.grad, d.grad)


def test_inputs_are_cast_and_autocast_is_off_inside() -> None:
    a, b = pair(torch.float16)
    with autocast(FP16):
        y = InFp32.apply(a, b, 2.0)
        assert (a @ b).dtype == torch.float16, "and on again afterwards"
    assert (seen["forward"], y.dtype) == (torch.float32, torch.float32)
    assert torch.equal(y, (a.float() @ b.float()) * 2)
    with autocast(FP16):  # backward inside a region: still as forward was
        y.sum().backward()
    assert seen["backward"] == torch.float32
    assert a.grad.dtype == torch.float16


def test_outside_of_a_region_nothing_is_done() -> None:
    a, b = pair(torch.bfloat16)
    assert InFp32.apply(a, b).dtype == torch.bfloat16
    with autocast(enabled=False):
        assert InFp32.apply(a, b).dtype == torch.bfloat16


def test_a_forward_without_autocast_has_a_backward_without() -> None:
    for storage in (True, False):
        a, b = pair()
        with half_storage("cpu" if storage else "cuda"):
            y = Product.apply(a, b)
        with autocast():
            y.sum().backward()
        assert seen["backward"] == torch.float32


def test_integers_and_fp64_are_not_cast() -> None:
    class Kinds(torch.autograd.Function):
        @staticmethod
        @custom_fwd(cast_inputs=torch.float32)
        def forward(ctx: Any, *tensors: Tensor) -> Tensor:
            seen["kinds"] = tuple(t.dtype for t in tensors)  # type: ignore[assignment]
            return tensors[0].float()

    with autocast():
        Kinds.apply(torch.ones(1).half(), torch.ones(1).double(), torch.ones(1).long())
    assert seen["kinds"] == (torch.float32, torch.float64, torch.int64)


def test_half_a_pair_is_refused() -> None:
    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 2

        @staticmethod
        @custom_bwd
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * 2

    with pytest.raises(RuntimeError, match="forward has no custom_fwd"):
        Half.apply(torch.ones(1, requires_grad=True)).backward()


def test_an_operation_without_decorators_is_cast_in_forward_only() -> None:
    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a @ a

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            seen["plain"] = (gradient.float() @ gradient.float()).dtype
            return gradient.float()

    a = torch.ones(2, 2, requires_grad=True)
    with autocast():
        y = Plain.apply(a)
    y.sum().backward()
    assert (y.dtype, seen["plain"]) == (torch.float16, torch.float32)
