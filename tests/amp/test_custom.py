"""custom_fwd and custom_bwd: operations whose forward and backward somebody wrote. The meaning is torch.amp's."""

import itertools
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial, wraps
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from labkit.amp import RECIPES, CastGraph, autocast, custom_bwd, custom_fwd
from labkit.formats import BF16, FP16, FP32
from labkit.frameworks import torch_amp
from labkit.gemm import half_storage
from labkit.modes import open_modes

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


def torchs(wrap: Any, forward_by: Any, backward_by: Any) -> Callable[..., Tensor]:
    """Return a matrix product with torch's decorators, which notes the dtypes that it meets."""

    class Theirs(torch.autograd.Function):
        @staticmethod
        @wrap
        @forward_by
        def forward(ctx: Any, a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            seen["forward"], seen["counts"], seen["inside"] = a.dtype, counts.dtype, (a.float() @ b.float()).dtype
            return a @ b

        @staticmethod
        @wrap
        @backward_by
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
            a, b = (t.to(gradient.dtype) for t in ctx.saved_tensors)
            seen["backward"] = (gradient.float() @ gradient.float()).dtype
            return gradient @ b.t(), a.t() @ gradient, None

    return Theirs.apply  # looked up before any region is open, as libraries do


def results_of(product: Callable[..., Tensor], region: Any, backward_inside: bool) -> tuple[Any, ...]:
    (a, b), counts = pair(torch.bfloat16), torch.tensor([1])
    with region:
        y = product(a, b, counts)
        if backward_inside:
            y.float().square().sum().backward()
    if not backward_inside:
        y.float().square().sum().backward()
    return dict(seen), y, a.grad, b.grad


@pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning", "ignore:User provided device_type of 'cuda'")
def test_torchs_own_decorators_do_in_our_regions_what_they_do_in_torchs() -> None:
    """The oracle is torch.autocast on a CPU; its lists and ours agree on matrix products."""
    plain, between = (lambda method: method), lambda method: wraps(method)(lambda *args: method(*args))
    bf16 = torch.bfloat16
    for dtype, wrap, inside in product((torch.float32, torch.float16, None), (plain, between), (True, False)):
        on_cpu, on_cuda = (
            torchs(wrap, partial(custom.custom_fwd, cast_inputs=dtype, **on), partial(custom.custom_bwd, **on))
            for custom, on in ((torch.amp, {"device_type": "cpu"}), (torch.cuda.amp, {}))
        )
        want = results_of(on_cpu, torch.autocast("cpu", bf16), inside)
        for function, region in (
            (on_cpu, autocast(BF16)),
            (on_cuda, autocast(BF16)),  # a GPU's function, rehearsed on a CPU
            (on_cpu, torch_amp.autocast("cpu", bf16)),
            (on_cpu, replace(RECIPES["O1"], autocast=BF16).forward("cpu")),
        ):
            got = results_of(function, region, inside)
            assert got[0] == want[0], (dtype, inside, region)
            for ours, theirs in zip(got[1:], want[1:], strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-7)
        outside = results_of(on_cpu, nullcontext(), inside)
        for region in (autocast(enabled=False), torch_amp.autocast("cuda", enabled=False)):
            assert results_of(on_cpu, region, inside)[0] == outside[0]


class NetWithTorchs(torch.nn.Module):
    """A layer, and a product that torch's decorators keep in FP32, forward and backward."""

    class InFp32(torch.autograd.Function):
        @staticmethod
        @partial(torch.amp.custom_fwd, device_type="cpu", cast_inputs=torch.float32)
        def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a @ b

        @staticmethod
        @partial(torch.amp.custom_bwd, device_type="cpu")
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
            a, b = ctx.saved_tensors
            return gradient @ b.t(), a.t() @ gradient

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.InFp32.apply(self.layer(x), self.layer.weight)


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_graphs_and_compiled_models_apply_such_functions_as_eager_autocast_does() -> None:
    eager, graph = NetWithTorchs(), CastGraph(NetWithTorchs(), FP16)
    x, compiled = torch.randn(8, 8), torch.compile(NetWithTorchs(), backend="eager")
    for model in (eager, graph, graph, graph, compiled):
        with half_storage("cpu"), autocast():
            y = model(x)
        assert y.dtype == torch.float32
        (model.model if model is graph else model).zero_grad()
        y.sum().backward()
    assert graph.why == ""
    assert graph.decided.run is not None
    want = [p.grad for p in eager.parameters()]
    for model in (graph.model, compiled):
        assert all(map(torch.equal, want, (p.grad for p in model.parameters())))


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
    for region in (nullcontext(), autocast(enabled=False)):
        with region:
            assert InFp32.apply(a, b).dtype == torch.bfloat16
    for device in ("cpu", "cuda"):  # a forward pass without autocast has a backward pass without
        a, b = pair()
        with half_storage(device):
            y = Product.apply(a, b)
        with autocast():
            y.sum().backward()
        assert seen["backward"] == torch.float32


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


# --- backward called inside a region: what Python computes in it is cast, as under torch's autocast -------------------


class Plain(torch.autograd.Function):
    """An elementwise product whose backward multiplies matrices in FP32, and notes what came of it."""

    @staticmethod
    def forward(ctx: Any, a: Tensor) -> Tensor:
        return a * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        notes.append((gradient.float() @ gradient.float()).dtype)
        return gradient


notes: list[torch.dtype] = []
PASSES: dict[str, Callable[[Tensor, Tensor], object]] = {
    "y.backward()": lambda y, a: y.backward(),
    "torch.autograd.backward": lambda y, a: torch.autograd.backward(y, inputs=[a]),
    "torch.autograd.grad": lambda y, a: torch.autograd.grad(y, a),
}
torch_autocast = partial(torch.autocast, "cpu", torch.float16)


def noted(region: Any, inside: bool, suspended: bool, run: Callable[[Tensor, Tensor], object]) -> list[torch.dtype]:
    """Return the dtypes of matrix products in a custom backward and three kinds of hooks, of FP32 gradients."""
    notes.clear()
    a, layer = torch.ones(2, 2, requires_grad=True), torch.nn.Identity()
    product = lambda gradient: notes.append((gradient @ gradient).dtype)  # noqa: E731
    a.register_hook(product)
    a.register_post_accumulate_grad_hook(lambda leaf: product(leaf.grad))
    layer.register_full_backward_hook(lambda module, given, out: product(out[0]))
    with region():
        y = Plain.apply(layer(a)).sum()
        with region(enabled=False) if suspended else nullcontext():
            if inside:
                run(y, a)
    if not inside:
        run(y, a)
    return list(notes)


def test_hooks_and_custom_functions_see_autocast_where_they_see_torchs() -> None:
    """Matrix products are on torch's CPU list as on CUDA's, so torch's own region says what is right."""
    places = [(True, False), (True, True), (False, False)]
    for (inside, suspended), (how, run) in itertools.product(places, PASSES.items()):
        theirs = noted(torch_autocast, inside, suspended, run)
        assert noted(autocast, inside, suspended, run) == theirs, (inside, suspended, how)
        assert set(theirs) == {torch.float16 if inside and not suspended else torch.float32}


def test_a_thread_of_autograd_has_the_regions_of_the_thread_that_called_backward() -> None:
    """For a GPU, backward runs in another thread, where torch opens the caller's modes by itself; here by hand."""
    seen: list[torch.dtype] = []
    a = torch.ones(2, 2)

    def device_thread(modes: tuple[Any, ...]) -> None:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)
        seen.append((a @ a).dtype)
        for _ in modes:
            torch._C._pop_torch_function_stack()
        seen.append((a @ a).dtype)

    with half_storage("cpu"), autocast(BF16), autocast():
        for enabled in (True, False):
            with autocast(enabled=enabled):
                thread = threading.Thread(target=device_thread, args=(open_modes(),))
                thread.start()
                thread.join()
    assert seen == [torch.float16, torch.float32, torch.float32, torch.float32]
