"""Autocast: which operation runs in which dtype, and why. The oracle is torch's own list of CUDA cases."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import CastEvent, Rule, autocast
from labkit.formats import BF16, E8M0, FP16, FP64


def test_worked_example_a_linear_layer_and_its_loss() -> None:
    layer, x = nn.Linear(4, 3), torch.randn(2, 4)
    events: list[CastEvent] = []
    with autocast(FP16, listen=events.append):
        y = layer(x)
        loss = F.mse_loss(y, torch.zeros(2, 3))
    assert (y.dtype, loss.dtype) == (torch.float16, torch.float32)
    assert [(e.op, e.rule, e.to, e.elements) for e in events] == [
        ("linear", Rule.ALLOW, torch.float16, 8 + 12 + 3),
        ("mse_loss", Rule.DENY, torch.float32, 6),
    ]
    assert all(e.why for e in events)


def test_values_equal_explicit_casts_forward_and_backward() -> None:
    torch.manual_seed(0)
    w, x = torch.randn(3, 4, requires_grad=True), torch.randn(2, 4)
    with autocast(FP16):
        F.linear(x, w).float().sum().backward()
    by_hand = w.detach().clone().requires_grad_()
    F.linear(x.half(), by_hand.half()).float().sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.float32
    assert torch.equal(w.grad, by_hand.grad)


def test_the_innermost_region_decides() -> None:
    a = torch.ones(2, 2)
    with autocast(FP16):
        with autocast(BF16):
            assert (a @ a).dtype == torch.bfloat16
        with autocast(enabled=False):
            assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.float16
    assert (a @ a).dtype == torch.float32


def test_an_exception_closes_the_region() -> None:
    with pytest.raises(ZeroDivisionError), autocast():
        raise ZeroDivisionError
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_a_region_belongs_to_its_thread() -> None:
    seen: list[torch.dtype] = []
    with autocast():
        other = threading.Thread(target=lambda: seen.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype))
        other.start()
        other.join()
    assert seen == [torch.float32]


def test_what_is_not_floating_point_is_left_alone() -> None:
    with autocast():
        assert (torch.ones(2, 2, dtype=torch.float64) @ torch.ones(2, 2, dtype=torch.float64)).dtype == torch.float64
        assert torch.arange(4).sum().dtype == torch.int64


def test_banned_operations_name_the_safe_form() -> None:
    with autocast(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.full((2,), 0.5), torch.ones(2))


def test_a_format_that_fp32_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="FP64 has numbers that FP32 cannot hold"):
        autocast(FP64)
    with pytest.raises(ValueError, match="E8M0 has no zero or no sign"):
        autocast(E8M0)


def cases() -> list[tuple[str, str, object, tuple[object, ...], dict[str, object], torch.dtype]]:
    """(group, name, function, args, kwargs, dtype that CUDA autocast returns) from torch's own test lists."""
    lists = pytest.importorskip("torch.testing._internal.autocast_test_lists").AutocastTestLists(torch.device("cpu"))
    expected = {"fp16": torch.float16, "fp32": torch.float32, "promote": torch.float32}
    rows = []
    for group in "torch_fp16 nn_fp16 methods_fp16 torch_fp32 nn_fp32 methods_fp32 torch_need_autocast_promote".split():
        for name, args, *rest in getattr(lists, group):
            kwargs = next((part for part in rest if isinstance(part, dict)), {})
            home = next(m for m in (torch, torch._C._nn, torch.Tensor) if hasattr(m, name))
            rows.append((group, name, getattr(home, name), args, kwargs, expected[group.split("_")[-1]]))
    return rows


# Without a CPU kernel, and a row that passes its arguments in the wrong order.
NOT_ON_A_CPU = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


@pytest.mark.parametrize("case", [pytest.param(c, id=f"{c[0]}-{c[1]}-{i}") for i, c in enumerate(cases())])
def test_dtypes_equal_cuda_autocast_by_torchs_own_list(case: tuple[object, ...]) -> None:
    _, name, function, args, kwargs, expected = case
    if name in NOT_ON_A_CPU:
        with pytest.raises((NotImplementedError, TypeError)), autocast():
            function(*args, **kwargs)  # type: ignore[operator]
        return
    with autocast(), warnings.catch_warnings(action="ignore"):  # some rows are deprecated upstream
        out = function(*args, **kwargs)  # type: ignore[operator]
    assert (out[0] if isinstance(out, tuple | list) else out).dtype == expected


def test_fp16_and_bf16_meet_in_fp32() -> None:
    # Neither holds the other: 1e10 is beyond FP16, and 1 + 2^-10 is none of BF16's numbers. torch refuses the pair.
    half, brain = torch.tensor([1 + 2.0**-10]).half(), torch.tensor([1e10]).bfloat16()
    with autocast():
        both = torch.cat([half, brain])
    assert both.dtype == torch.float32
    assert torch.equal(both, torch.cat([half.float(), brain.float()]))
