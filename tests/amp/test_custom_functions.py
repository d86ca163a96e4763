"""Autograd functions with custom_fwd and custom_bwd, and hooks, under autocast.

Dtypes and results are compared with those under torch.autocast on a CPU, which casts the same
matrix products as on CUDA.
"""

import copy
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial, wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, CastGraph, autocast, custom_bwd, custom_fwd
from labkit.formats import BF16, FP16, FP32
from labkit.frameworks import torch_amp
from labkit.gemm import half_storage
from labkit.modes import open_modes

Decorator = Callable[[Any], Any]
Region = Callable[..., AbstractContextManager[Any]]
DTYPES = {FP32: torch.float32, FP16: torch.float16, None: None}


# --- a matrix product with decorators ---


class Product:
    """A matrix product as an autograd function, which records the dtypes that it meets.

    Args:
        forward_decorator: custom_fwd, ours or torch's.
        backward_decorator: custom_bwd, ours or torch's.
        wrapped: Whether another decorator is between these and staticmethod.
    """

    def __init__(
        self, forward_decorator: Decorator, backward_decorator: Decorator, wrapped: bool = False
    ) -> None:
        self.dtypes: dict[str, torch.dtype] = {}
        dtypes = self.dtypes

        def wrap(method: Callable[..., Any]) -> Callable[..., Any]:
            if not wrapped:
                return method
            return wraps(method)(lambda *args: method(*args))

        class Function(torch.autograd.Function):
            @staticmethod
            @wrap
            @forward_decorator
            def forward(ctx: Any, a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
                ctx.save_for_backward(a, b)
                dtypes["forward"] = a.dtype
                dtypes["counts"] = counts.dtype
                dtypes["product inside"] = (a.float() @ b.float()).dtype
                return a @ b

            @staticmethod
            @wrap
            @backward_decorator
            def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
                a, b = (tensor.to(gradient.dtype) for tensor in ctx.saved_tensors)
                dtypes["backward"] = (gradient.float() @ gradient.float()).dtype
                return gradient @ b.t(), a.t() @ gradient, None

        # Looked up before any region is open, as libraries do.
        self.apply = Function.apply

    def run(
        self, region: AbstractContextManager[Any], backward_inside: bool
    ) -> tuple[dict[str, torch.dtype], list[Tensor]]:
        """Run forward in a region, and backward inside of it or after it.

        Returns:
            The dtypes that the function met, and its result with the gradients of a and b.
        """
        a, b = operands(torch.bfloat16)
        with region:
            y = self.apply(a, b, torch.tensor([1]))
            if backward_inside:
                y.float().square().sum().backward()
        if not backward_inside:
            y.float().square().sum().backward()
        return dict(self.dtypes), [y, a.grad, b.grad]


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(8, 8, generator=generator).to(dtype).requires_grad_()
    b = torch.randn(8, 8, generator=generator).to(dtype).requires_grad_()
    return a, b


def our_product(cast_inputs: Any, wrapped: bool) -> Product:
    if cast_inputs is None:
        return Product(custom_fwd, custom_bwd, wrapped)
    return Product(custom_fwd(cast_inputs=cast_inputs), custom_bwd, wrapped)


def torchs_product(cast_inputs: Any, wrapped: bool) -> Product:
    """Return a product with torch.amp's decorators for a CPU."""
    on_cpu = {"device_type": "cpu"}
    forward = partial(torch.amp.custom_fwd, cast_inputs=DTYPES[cast_inputs], **on_cpu)
    return Product(forward, partial(torch.amp.custom_bwd, **on_cpu), wrapped)


def torchs_product_for_cuda(cast_inputs: Any, wrapped: bool) -> Product:
    """Return a product with torch.cuda.amp's decorators; it runs on a CPU here."""
    forward = partial(torch.cuda.amp.custom_fwd, cast_inputs=DTYPES[cast_inputs])
    return Product(forward, torch.cuda.amp.custom_bwd, wrapped)


OUR_REGIONS = {
    "autocast": (our_product, lambda: autocast(BF16)),
    "autocast, torch's decorators": (torchs_product, lambda: autocast(BF16)),
    "autocast, torch's decorators for CUDA": (torchs_product_for_cuda, lambda: autocast(BF16)),
    "torch_amp": (torchs_product, lambda: torch_amp.autocast("cpu", torch.bfloat16)),
    "recipe": (torchs_product, lambda: replace(RECIPES["O1"], autocast=BF16).forward("cpu")),
}
CASES = [
    pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:User provided device_type of 'cuda'"),
    pytest.mark.parametrize("backward_inside", [True, False], ids=["inside", "after"]),
    pytest.mark.parametrize("wrapped", [False, True], ids=["plain", "wrapped"]),
    pytest.mark.parametrize(
        "cast_inputs", [FP32, FP16, None], ids=["to FP32", "to FP16", "not cast"]
    ),
]


def all_cases(test: Callable[..., None]) -> Callable[..., None]:
    for mark in CASES:
        test = mark(test)
    return test


@all_cases
@pytest.mark.parametrize("name", OUR_REGIONS)
def test_decorators_act_in_our_regions_as_in_torchs(
    name: str, cast_inputs: Any, wrapped: bool, backward_inside: bool
) -> None:
    torchs_region = torch.autocast("cpu", torch.bfloat16)
    expected_dtypes, expected = torchs_product(cast_inputs, wrapped).run(
        torchs_region, backward_inside
    )
    product, region = OUR_REGIONS[name]
    dtypes, results = product(cast_inputs, wrapped).run(region(), backward_inside)
    assert dtypes == expected_dtypes
    for ours, theirs in zip(results, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=2**-7)


@all_cases
@pytest.mark.parametrize("product", [our_product, torchs_product], ids=["ours", "torch's"])
@pytest.mark.parametrize(
    "region",
    [lambda: autocast(enabled=False), lambda: torch_amp.autocast("cuda", enabled=False)],
    ids=["autocast", "torch_amp"],
)
def test_decorators_cast_nothing_in_a_disabled_region(
    product: Any, region: Region, cast_inputs: Any, wrapped: bool, backward_inside: bool
) -> None:
    expected, _ = torchs_product(cast_inputs, wrapped).run(nullcontext(), backward_inside)
    dtypes, _ = product(cast_inputs, wrapped).run(region(), backward_inside)
    assert dtypes == expected


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_backward_of_a_forward_without_a_region_casts_nothing(device: str) -> None:
    a, b = operands()
    product = Product(custom_fwd, custom_bwd)
    with half_storage(device):
        y = product.apply(a, b, torch.tensor([1]))
    with autocast():
        y.sum().backward()
    assert product.dtypes["backward"] == torch.float32


class NetWithProductInFp32(nn.Linear):
    """A layer and a product that torch's decorators keep in FP32, forward and backward."""

    class ProductInFp32(torch.autograd.Function):
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

    def forward(self, x: Tensor) -> Tensor:
        return self.ProductInFp32.apply(super().forward(x), self.weight)


def gradients_under_autocast(call: nn.Module, model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the gradients of a model after one step, and check the dtype of its result."""
    with half_storage("cpu"), autocast():
        y = call(x)
    assert y.dtype == torch.float32
    model.zero_grad()
    y.sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.fixture
def eager() -> NetWithProductInFp32:
    torch.manual_seed(0)
    return NetWithProductInFp32(8, 8)


def test_cast_graph_applies_custom_functions_as_eager(eager: nn.Module) -> None:
    x = torch.randn(8, 8)
    graph = CastGraph(copy.deepcopy(eager), FP16)
    expected = gradients_under_autocast(eager, eager, x)
    # The graph is traced and decided in the first calls, and replaces the model from then on.
    for _ in range(3):
        gradients = gradients_under_autocast(graph, graph.model, x)
    assert graph.why == ""
    assert graph.decided.run is not None
    assert all(map(torch.equal, expected, gradients))


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_compiled_model_applies_custom_functions_as_eager(eager: nn.Module) -> None:
    x = torch.randn(8, 8)
    compiled = torch.compile(copy.deepcopy(eager), backend="eager")
    expected = gradients_under_autocast(eager, eager, x)
    gradients = gradients_under_autocast(compiled, compiled, x)
    assert all(map(torch.equal, expected, gradients))


# --- backward called inside of a region: it is cast as under torch's autocast ---


class ProductInBackward(torch.autograd.Function):
    """The identity, whose backward multiplies FP32 matrices and records the dtype of the product.

    `dtypes` is a list that the caller passes.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, dtypes: list[torch.dtype]) -> Tensor:
        ctx.dtypes = dtypes
        return a * 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.dtypes.append((gradient.float() @ gradient.float()).dtype)
        return gradient, None


def test_custom_bwd_without_custom_fwd_is_refused() -> None:
    class Half(ProductInBackward):
        backward = staticmethod(custom_bwd(ProductInBackward.backward))

    y = Half.apply(torch.ones(1, requires_grad=True), [])
    with pytest.raises(RuntimeError, match="forward has no custom_fwd"):
        y.backward()


def dtypes_in_backward(
    region: Region, backward: Callable[[Tensor, Tensor], object], *, inside: bool, suspended: bool
) -> list[torch.dtype]:
    """Return the dtypes of matrix products in a custom backward and in three kinds of hooks.

    Args:
        region: Opens a region of autocast, ours or torch's.
        backward: Runs the backward pass of its first argument.
        inside: Whether the backward pass runs in the region or after it.
        suspended: Whether a disabled region is open inside of the region.
    """
    dtypes: list[torch.dtype] = []
    a = torch.ones(2, 2, requires_grad=True)
    layer = nn.Identity()

    def multiply(gradient: Tensor) -> None:
        dtypes.append((gradient @ gradient).dtype)

    a.register_hook(multiply)
    a.register_post_accumulate_grad_hook(lambda leaf: multiply(leaf.grad))
    layer.register_full_backward_hook(
        lambda module, grad_input, grad_output: multiply(grad_output[0])
    )
    with region():
        y = ProductInBackward.apply(layer(a), dtypes).sum()
        with region(enabled=False) if suspended else nullcontext():
            if inside:
                backward(y, a)
    if not inside:
        backward(y, a)
    return dtypes


@pytest.mark.parametrize(
    ("inside", "suspended", "expected"),
    [
        pytest.param(True, False, torch.float16, id="inside"),
        pytest.param(True, True, torch.float32, id="in a disabled region"),
        pytest.param(False, False, torch.float32, id="after"),
    ],
)
@pytest.mark.parametrize(
    "backward",
    [
        pytest.param(lambda y, a: y.backward(), id="y.backward"),
        pytest.param(lambda y, a: torch.autograd.backward(y, inputs=[a]), id="autograd.backward"),
        pytest.param(lambda y, a: torch.autograd.grad(y, a), id="autograd.grad"),
    ],
)
def test_hooks_and_custom_backward_are_cast_as_under_torch(
    backward: Callable[[Tensor, Tensor], object],
    inside: bool,
    suspended: bool,
    expected: torch.dtype,
) -> None:
    torchs = partial(torch.autocast, "cpu", torch.float16)
    theirs = dtypes_in_backward(torchs, backward, inside=inside, suspended=suspended)
    ours = dtypes_in_backward(autocast, backward, inside=inside, suspended=suspended)
    assert ours == theirs
    assert set(theirs) == {expected}


def dtypes_in_a_device_thread(modes: tuple[Any, ...]) -> list[torch.dtype]:
    """Return the dtypes of two products in another thread: with these modes open, and without.

    For a GPU, autograd runs backward in another thread and opens the caller's modes there by
    itself; here they are opened by hand.
    """
    dtypes: list[torch.dtype] = []
    a = torch.ones(2, 2)

    def run() -> None:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)
        dtypes.append((a @ a).dtype)
        for _ in modes:
            torch._C._pop_torch_function_stack()
        dtypes.append((a @ a).dtype)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return dtypes


@pytest.mark.parametrize(("enabled", "expected"), [(True, torch.float16), (False, torch.float32)])
def test_thread_of_autograd_has_the_regions_of_its_caller(
    enabled: bool, expected: torch.dtype
) -> None:
    with half_storage("cpu"), autocast(BF16), autocast(), autocast(enabled=enabled):
        assert dtypes_in_a_device_thread(open_modes()) == [expected, torch.float32]
