"""Autocast: which operation runs in which dtype, and why. The oracle is torch's own list of CUDA cases."""

import itertools
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from labkit.amp import CastEvent, Rule, autocast, rule_for
from labkit.formats import BF16, E4M3, E5M2, E8M0, FP16, FP64, TF32, Format
from labkit.gemm import half_storage
from labkit.interop import round_tensor


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


def test_a_region_may_be_open_twice_and_still_casts_and_tells_once() -> None:
    events: list[CastEvent] = []
    region = autocast(listen=events.append)
    a = torch.ones(2, 2)
    with region, region:
        a @ a
        with autocast(enabled=False), region:
            assert (a @ a).dtype == torch.float16
        a @ a
    assert len(events) == 3
    assert (a @ a).dtype == torch.float32


def test_as_a_decorator_it_may_call_itself() -> None:
    @autocast()
    def power(a: torch.Tensor, n: int) -> torch.Tensor:
        """a to the n."""
        return a if n == 1 else a @ power(a, n - 1)

    def later() -> Iterator[int]:
        yield 1

    assert power(torch.ones(2, 2), 4).dtype == torch.float16
    assert power(torch.eye(2), 250).tolist() == [[1, 0], [0, 1]]  # each level inside 250 regions, and cast once
    assert (power.__name__, power.__doc__) == ("power", "a to the n.")
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32
    with pytest.raises(TypeError, match="runs after its call has returned"):
        autocast()(later)


def test_a_decorated_function_may_run_in_many_threads() -> None:
    """Each has its own region, and a thread without one casts nothing."""
    start, seen, outside = threading.Barrier(4), [], []

    @autocast()
    def product() -> torch.dtype:
        start.wait()
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    def work() -> None:
        outside.append((torch.ones(2, 2) @ torch.ones(2, 2)).dtype)
        seen.extend(product() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    with autocast():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (seen, outside) == ([torch.float16] * 80, [torch.float32] * 4)


def test_an_explicit_dtype_is_honoured_by_name_and_position() -> None:
    x, events = torch.ones(2, 3).half(), list[CastEvent]()
    with autocast(listen=events.append):
        assert x.softmax(-1, torch.float16).dtype == torch.float16
        assert x.softmax(-1, dtype=torch.float16).dtype == torch.float16
        assert torch.sum(x, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert x.norm(dtype=torch.float16).dtype == torch.float16
        assert (x.sum().dtype, x.norm().dtype) == (torch.float32, torch.float32)
    assert [(e.op, e.to, e.elements) for e in events] == [
        ("softmax", None, 0), ("softmax", None, 0), ("sum", None, 0), ("norm", None, 0),
        ("sum", torch.float32, 6), ("norm", torch.float32, 6),
    ]  # fmt: skip


def test_tensors_in_lists_and_dicts_are_cast_too() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2).half()
    with autocast():
        assert torch.cat([a, b]).dtype == torch.float32
        assert torch.einsum("ij,jk", [a, b]).dtype == torch.float16
        assert F.linear(input=a, weight=b).dtype == torch.float16
        assert torch.linalg.multi_dot((a, b, a)).dtype == torch.float16


def test_what_is_not_floating_point_is_left_alone() -> None:
    a, out = torch.ones(2, 2), torch.zeros(2, 2)
    with autocast():
        assert (a.double() @ a.double()).dtype == torch.float64
        assert torch.arange(4).sum().dtype == torch.int64
        torch.mm(a, a, out=out)
    assert out.tolist() == [[2, 2], [2, 2]], "a result goes where it was asked for"


def test_banned_operations_name_the_safe_form() -> None:
    with autocast(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.full((2,), 0.5), torch.ones(2))
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


def test_fp16_and_bf16_meet_in_fp32() -> None:
    # Neither holds the other: 1e10 is beyond FP16, and 1 + 2^-10 is none of BF16's numbers. torch refuses the pair.
    half, brain = torch.tensor([1 + 2.0**-10]).half(), torch.tensor([1e10]).bfloat16()
    with autocast():
        both = torch.cat([half, brain])
    assert both.dtype == torch.float32
    assert torch.equal(both, torch.cat([half.float(), brain.float()]))


def explicit(group: str, function: Callable[..., Any], kwargs: Any, *args: Any) -> Any:
    """What the lists ask for, written as casts: all to FP16 for fp16 rows, all to FP32 for the others."""
    to = torch.float16 if group.endswith("fp16") else torch.float32
    cast = lambda t: t.to(to) if t.is_floating_point() else t  # noqa: E731
    return function(*tree_map_only(torch.Tensor, cast, args), **kwargs)


class Operands(TorchFunctionMode):
    """Below autocast: notes the dtype of the gradient that comes to each operand of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[torch.dtype] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        listed = rule_for(func.__name__).rule is not Rule.KEEP
        for operand in tree_leaves(args) if listed else ():
            if isinstance(operand, torch.Tensor) and operand.requires_grad:
                operand.register_hook(lambda gradient: self.seen.append(gradient.dtype))
        return func(*args, **(kwargs or {}))


def with_gradients(run: Callable[..., Any], args: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]] | str:
    """Return floating-point results, and the gradients of floating-point arguments; or the type of torch's error."""
    leaf = lambda t: t.clone().requires_grad_() if t.is_floating_point() else t  # noqa: E731
    args = tree_map_only(torch.Tensor, leaf, args)
    leaves = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.requires_grad]
    try:
        out = [t for t in tree_leaves(run(*args)) if isinstance(t, torch.Tensor) and t.is_floating_point()]
        loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        return type(error).__name__
    return out, [torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True)]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(1e3, 2e3, 3e3), b.nan_to_num(1e3, 2e3, 3e3))


def test_dtypes_values_and_gradients_are_those_of_torchs_own_list_of_cuda_cases() -> None:
    """Each row returns the dtype that CUDA autocast returns, and the values and gradients of casts written out."""
    rows = cases()
    assert len(rows) > 90
    for number, (group, name, function, args, kwargs, expected) in enumerate(rows):
        case, below = f"{group} {name}, row {number}", Operands()

        def under_autocast(*given: Any, below=below, function=function, kwargs=kwargs) -> Any:
            with below, autocast():
                return function(*given, **kwargs)

        with warnings.catch_warnings(action="ignore"):  # some rows are deprecated upstream
            if name in NOT_ON_A_CPU:
                with pytest.raises((NotImplementedError, TypeError)):
                    under_autocast(*args)
                continue
            out = under_autocast(*args)
            want = with_gradients(partial(explicit, group, function, kwargs), args)
            got = with_gradients(under_autocast, args)
        assert (out[0] if isinstance(out, tuple | list) else out).dtype == expected, case
        if isinstance(want, str) or isinstance(got, str):
            assert got == want, f"{case}: a kernel that torch lacks on a CPU is lacking for both"
            continue
        assert all(same(a, b) for a, b in zip(got[0] + got[1], want[0] + want[1], strict=True)), case
        assert set(below.seen) <= {torch.float16 if group.endswith("fp16") else torch.float32}, case


# --- any format, by emulation -----------------------------------------------------------------------------------------


class Stored(torch.autograd.Function):
    """Storage in a format, written out: values rounded forward, gradients rounded backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: Format, gradients: Format) -> torch.Tensor:
        ctx.gradients = gradients
        return round_tensor(x.detach(), values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return round_tensor(gradient, ctx.gradients), None, None


def test_an_emulated_format_equals_rounding_written_out() -> None:
    for format, gradients in ((E4M3, None), (E4M3, E5M2), (E5M2, None), (TF32, None), (FP16, BF16)):
        torch.manual_seed(0)
        first, second = nn.Linear(6, 8), nn.Linear(8, 3)
        x, target = torch.randn(4, 6), torch.randn(4, 3)
        parameters = [*first.parameters(), *second.parameters()]

        events: list[CastEvent] = []
        with autocast(format, gradient_format=gradients, listen=events.append):
            y = second(F.relu(first(x)))
            loss = F.mse_loss(y.softmax(-1), target)
        ours = torch.autograd.grad(loss, parameters)

        s = lambda t, row=(format, gradients or format): Stored.apply(t, *row)  # noqa: E731
        hidden = F.relu(s(F.linear(s(x), s(first.weight), s(first.bias))))
        z = s(F.linear(s(hidden), s(second.weight), s(second.bias)))
        want = torch.autograd.grad(F.mse_loss(z.softmax(-1), target), parameters)

        assert y.dtype == torch.float32
        assert torch.equal(y, z), (format, gradients)
        assert all(map(torch.equal, ours, want)), (format, gradients)
        assert [(e.op, e.to, e.elements) for e in events] == [
            ("linear", format, 24 + 48 + 8), ("linear", format, 32 + 24 + 3),
            ("softmax", torch.float32, 0), ("mse_loss", torch.float32, 0),
        ]  # fmt: skip


def test_a_mask_of_infinities_masks_in_a_format_that_has_none() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x, mask = torch.randn(1, 4, 8), nn.Transformer.generate_square_subsequent_mask(4)
    with autocast(E4M3):
        y = layer(x, src_mask=mask)
        late = layer(torch.cat([x[:, :3], x[:, 3:] + 1], 1), src_mask=mask)
        overflowed = torch.full((1, 1), 449.0 * 2) @ torch.ones(1, 1)
        rounded = torch.full((1, 1), 1.06).half() @ torch.ones(1, 1).half()
    assert y.isfinite().all()
    assert torch.equal(y[:, :3], late[:, :3]), "nobody sees what comes later"
    assert overflowed.isnan().all(), "a number that is too large is still told"
    assert (rounded.dtype, rounded.item()) == (torch.float32, 1.0), "FP16 tensors are rounded, too"


def test_a_second_derivative_goes_through_an_emulated_format() -> None:
    x = torch.tensor([[1.5]], requires_grad=True)
    with autocast(E5M2):
        (slope,) = torch.autograd.grad(x @ x, x, create_graph=True)
        slope.sum().backward()
    assert (slope.item(), x.grad) == (3.0, torch.tensor([[2.0]]))


# --- activation checkpointing -----------------------------------------------------------------------------------------


def block() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1), nn.Dropout(0.3))


REGIONS: dict[str, Callable[[], Any]] = {
    "FP16": autocast,
    "FP16, no cache": lambda: autocast(cache=False),
    "E4M3": lambda: autocast(E4M3, gradient_format=E5M2),
    "off inside": lambda: autocast(enabled=False),
}


@pytest.mark.parametrize("region", REGIONS)
def test_a_checkpointed_block_is_bit_equal_to_a_plain_one(region: str) -> None:
    def gradients(run: Callable[..., torch.Tensor], inside: bool) -> list[torch.Tensor]:
        net, x = block(), torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        torch.manual_seed(2)
        with half_storage("cpu"), autocast(BF16), REGIONS[region]():
            y = run(net, x * 1)
            loss = (y.float() ** 2).sum() * 1024
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        return [y.detach(), x.grad, *(p.grad for p in net.parameters())]

    for inside, reentrant in itertools.product((True, False), (True, False)):
        plain = gradients(lambda net, x: net(x), inside)
        again = gradients(partial(checkpoint, use_reentrant=reentrant), inside)
        assert all(same(a, b) for a, b in zip(plain, again, strict=True)), (inside, reentrant)
        assert not torch._C._len_torch_function_stack()


def test_a_block_that_fails_the_second_time_leaves_no_region_open() -> None:
    calls: list[int] = []

    def fails_again(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError
        return x @ x

    with autocast():
        y = checkpoint(fails_again, torch.ones(2, 2, requires_grad=True), use_reentrant=False)
    with pytest.raises(ZeroDivisionError):
        y.float().sum().backward()
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


@pytest.mark.slow
def test_a_graph_that_must_be_whole_is_refused_with_what_would_do() -> None:
    for region in (autocast, partial(half_storage, "cpu")):
        torch._dynamo.reset()
        compiled = torch.compile(nn.Linear(2, 2), backend="eager", fullgraph=True)
        with region(), pytest.raises(RuntimeError, match="Compile without it: the result is the same") as refused:
            compiled(torch.ones(1, 2))
        assert "labkit.amp.to_model_format" in str(refused.value)
    torch._dynamo.reset()
