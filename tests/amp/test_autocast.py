"""Autocast: its regions, and the dtype of each operation.

Results are compared with torch's own list of CUDA cases and with explicit casts.
"""

import itertools
import threading
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from labkit.amp import CastEvent, autocast
from labkit.formats import BF16, E4M3, E5M2, FP16
from labkit.frameworks.torch_amp import autocast as drop_in
from labkit.gemm import SEQUENTIAL_FP16, half_storage


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


def test_a_decorated_function_may_call_itself() -> None:
    @autocast()
    def power(a: torch.Tensor, n: int) -> torch.Tensor:
        """Return the n-th power of a."""
        return a if n == 1 else a @ power(a, n - 1)

    # 250 nested regions are open in the innermost call; Python's limit of recursion is 1000.
    assert power(torch.eye(2), 250).tolist() == [[1, 0], [0, 1]]
    assert power(torch.ones(2, 2), 4).dtype == torch.float16
    assert power.__doc__ == "Return the n-th power of a."


def test_a_generator_cannot_be_decorated() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    async def later_numbers() -> AsyncIterator[int]:
        yield 1

    async def later() -> int:
        return 1

    for function in (numbers, later_numbers, later, partial(numbers)):
        with pytest.raises(TypeError, match="runs after its call has returned"):
            autocast()(function)
        with pytest.raises(TypeError, match="runs after its call has returned"):
            drop_in("cpu")(function)


def test_a_decorated_function_may_run_in_many_threads() -> None:
    """Each has its own region, and a thread without one casts nothing."""
    start = threading.Barrier(4)
    dtypes = list[torch.dtype]()

    def product() -> torch.dtype:
        start.wait()
        return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype

    decorated = autocast()(product)

    def work() -> None:
        dtypes.extend(function() for function in [product, decorated] * 10)

    threads = [threading.Thread(target=work) for _ in range(4)]
    with autocast():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # Four threads call each of the two functions ten times.
    assert Counter(dtypes) == {torch.float16: 40, torch.float32: 40}


def test_an_explicit_dtype_is_honoured_by_name_and_position() -> None:
    x = torch.ones(2, 3).half()
    events = list[CastEvent]()
    with autocast(listen=events.append):
        assert x.softmax(-1, torch.float16).dtype == torch.float16
        assert x.softmax(-1, dtype=torch.float16).dtype == torch.float16
        assert torch.sum(x, dtype=torch.bfloat16).dtype == torch.bfloat16
        assert x.norm(dtype=torch.float16).dtype == torch.float16
        assert x.sum().dtype == torch.float32
        assert x.norm().dtype == torch.float32
    assert [(e.op, e.to, e.elements) for e in events] == [
        ("softmax", None, 0),
        ("softmax", None, 0),
        ("sum", None, 0),
        ("norm", None, 0),
        ("sum", torch.float32, 6),
        ("norm", torch.float32, 6),
    ]


def test_fp64_and_integer_tensors_are_not_cast() -> None:
    a = torch.ones(2, 2)
    with autocast():
        assert (a.double() @ a.double()).dtype == torch.float64
        assert torch.arange(4).sum().dtype == torch.int64


def test_tensors_passed_by_name_are_cast() -> None:
    a = torch.ones(2, 2)
    with autocast():
        assert F.linear(input=a, weight=a.half()).dtype == torch.float16


def test_a_result_is_written_into_out() -> None:
    a = torch.ones(2, 2)
    out = torch.zeros(2, 2)
    with autocast():
        torch.mm(a, a, out=out)
    assert out.tolist() == [[2, 2], [2, 2]]


def test_fp16_and_bf16_are_promoted_to_fp32() -> None:
    """torch's autocast refuses this pair. FP16 cannot hold 1e10, and BF16 cannot hold 1 + 2^-10."""
    half = torch.tensor([1 + 2.0**-10]).half()
    bfloat = torch.tensor([1e10]).bfloat16()
    with autocast():
        both = torch.cat([half, bfloat])
    assert both.dtype == torch.float32
    assert torch.equal(both, torch.cat([half.float(), bfloat.float()]))


def test_banned_operations_name_the_safe_form() -> None:
    with autocast(), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
        F.binary_cross_entropy(torch.full((2,), 0.5), torch.ones(2))


def cases() -> list[tuple[str, str, object, tuple[object, ...], dict[str, object], torch.dtype]]:
    """Return the rows of torch's own lists of tests for CUDA autocast.

    A row is (group, name, function, args, kwargs, dtype that CUDA autocast returns).
    """
    lists = pytest.importorskip("torch.testing._internal.autocast_test_lists").AutocastTestLists(
        torch.device("cpu")
    )
    expected = {"fp16": torch.float16, "fp32": torch.float32, "promote": torch.float32}
    rows = []
    for group in [
        "torch_fp16",
        "nn_fp16",
        "methods_fp16",
        "torch_fp32",
        "nn_fp32",
        "methods_fp32",
        "torch_need_autocast_promote",
    ]:
        for name, args, *rest in getattr(lists, group):
            # A row of torch may end with keyword arguments and with other data.
            kwargs = next((item for item in rest if isinstance(item, dict)), {})
            home = next(m for m in (torch, torch._C._nn, torch.Tensor) if hasattr(m, name))
            rows.append(
                (group, name, getattr(home, name), args, kwargs, expected[group.split("_")[-1]])
            )
    return rows


# Two operations have no CPU kernel; torch's row of einsum passes its arguments in the wrong order.
NOT_ON_A_CPU = {"cudnn_convolution", "cudnn_convolution_transpose", "einsum"}


def explicit(group: str, function: Callable[..., Any], kwargs: Any, *args: Any) -> Any:
    """Call a function with explicit casts: to FP16 in groups of fp16, to FP32 in all others."""
    to = torch.float16 if group.endswith("fp16") else torch.float32

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(to) if tensor.is_floating_point() else tensor

    return function(*tree_map_only(torch.Tensor, cast, args), **kwargs)


def with_gradients(
    run: Callable[..., Any], args: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]] | str:
    """Return the floating-point results and the gradients of the floating-point arguments.

    Where torch raises an error, return the name of its type instead.
    """

    def leaf(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone().requires_grad_() if tensor.is_floating_point() else tensor

    args = tree_map_only(torch.Tensor, leaf, args)
    leaves = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor) and t.requires_grad]
    try:
        out = [
            t
            for t in tree_leaves(run(*args))
            if isinstance(t, torch.Tensor) and t.is_floating_point()
        ]
        # Different weights for the elements show gradients that land in a wrong place.
        loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
    except (RuntimeError, NotImplementedError) as error:
        return type(error).__name__
    return out, [
        torch.zeros_like(t) if g is None else g for g, t in zip(gradients, leaves, strict=True)
    ]


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether dtypes, shapes and values are equal; NaN equals NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def test_dtypes_and_gradients_are_those_of_torchs_cuda_cases() -> None:
    """Each row has the dtype of CUDA autocast, and the values and gradients of explicit casts."""
    rows = cases()
    # torch 2 lists more than 90 rows; fewer mean that the groups were not read.
    assert len(rows) > 90
    for number, (group, name, function, args, kwargs, expected) in enumerate(rows):
        case = f"{group} {name}, row {number}"
        under_autocast = autocast()(partial(function, **kwargs))
        # Some of torch's rows are deprecated.
        with warnings.catch_warnings(action="ignore"):
            if name in NOT_ON_A_CPU:
                with pytest.raises((NotImplementedError, TypeError)):
                    under_autocast(*args)
                continue
            out = under_autocast(*args)
            want = with_gradients(partial(explicit, group, function, kwargs), args)
            got = with_gradients(under_autocast, args)
        assert (out[0] if isinstance(out, tuple | list) else out).dtype == expected, case
        if isinstance(want, str) or isinstance(got, str):
            assert got == want, f"{case}: only one of the two lacks a CPU kernel"
            continue
        assert all(same(a, b) for a, b in zip(got[0] + got[1], want[0] + want[1], strict=True)), (
            case
        )


def block() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 8),
        nn.GELU(),
        nn.LayerNorm(8),
        nn.Linear(8, 8),
        nn.Softmax(-1),
        nn.Dropout(0.3),
    )


REGIONS: dict[str, Callable[[], Any]] = {
    "FP16": autocast,
    "FP16, no cache": lambda: autocast(cache=False),
    "E4M3": lambda: autocast(E4M3, gradient_format=E5M2),
    "off inside": lambda: autocast(enabled=False),
}


@pytest.mark.parametrize("region", REGIONS)
def test_a_checkpointed_block_is_bit_equal_to_a_plain_one(region: str) -> None:
    def gradients(run: Callable[..., torch.Tensor], inside: bool) -> list[torch.Tensor]:
        net = block()
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
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


@pytest.mark.slow
def test_fullgraph_compilation_is_refused_with_an_alternative() -> None:
    for region in (partial(autocast, E4M3), partial(half_storage, "cpu", SEQUENTIAL_FP16)):
        torch._dynamo.reset()
        compiled = torch.compile(nn.Linear(2, 2), backend="eager", fullgraph=True)
        with (
            region(),
            pytest.raises(
                RuntimeError, match="Compile without it: the result is the same"
            ) as refused,
        ):
            compiled.half()(torch.ones(1, 2).half())
        assert "labkit.amp.to_model_format" in str(refused.value)
    torch._dynamo.reset()
