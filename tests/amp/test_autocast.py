"""Autocast: the dtype of each operation, the cache of casts, and recurrent layers.

Results are compared with torch's own list of CUDA cases, with explicit casts, with regions that
cache nothing, and with FP32 layers.
"""

import gc
import itertools
import threading
import warnings
import weakref
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.checkpoint import checkpoint

from labkit.amp import CastCache, CastEvent, Recipe, autocast
from labkit.amp.casting.autocast import _open
from labkit.formats import BF16, E4M3, E5M2, E8M0, FP16, FP64, TF32, Format
from labkit.frameworks.torch_amp import autocast as drop_in
from labkit.gemm import SEQUENTIAL_FP16, half_storage
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


def test_a_region_opened_twice_casts_once() -> None:
    events = list[CastEvent]()
    a = torch.ones(2, 2)
    region = autocast(listen=events.append)
    with region, region:
        a @ a
        with autocast(enabled=False), region:
            assert (a @ a).dtype == torch.float16
        a @ a
    assert len(events) == 3
    assert (a @ a).dtype == torch.float32


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


def test_threads_do_not_share_a_cache_of_casts() -> None:
    """As for a GPU's backward pass, torch enters a region in another thread by itself."""
    weight = torch.nn.Parameter(torch.ones(2, 2))
    dtypes = list[torch.dtype]()
    entries = list[int]()

    def multiply() -> None:
        region = autocast()
        torch._C._push_on_torch_function_stack(region)
        try:
            dtypes.append((weight @ weight).dtype)
            # A region that `__enter__` did not enter has no `__exit__` that clears the cache.
            entries.append(len(_open.cache._casts))
        finally:
            torch._C._pop_torch_function_stack()

    own = _open.cache
    thread = threading.Thread(target=multiply)
    thread.start()
    thread.join()
    assert dtypes == [torch.float16]
    assert entries == [0]
    assert _open.cache is own
    assert len(own._casts) == 0


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


def test_formats_that_fp32_cannot_emulate_are_refused() -> None:
    for format, message in (
        (FP64, "FP64 has numbers that FP32 cannot hold"),
        (E8M0, "E8M0 has no zero or no sign"),
    ):
        with pytest.raises(ValueError, match=message):
            autocast(format)
        with pytest.raises(ValueError, match=f"recipe 'mine': {message}"):
            Recipe("mine", autocast=format)
        with pytest.raises(ValueError, match=f"recipe 'mine': {message}"):
            Recipe("mine", autocast=E4M3, gradient_format=format)


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


class Stored(torch.autograd.Function):
    """Storage in a format, written out: values rounded forward, gradients rounded backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, values: Format, gradients: Format) -> torch.Tensor:
        ctx.gradients = gradients
        return round_tensor(x.detach(), values)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return round_tensor(gradient, ctx.gradients), None, None


def stored_in(values: Format, gradients: Format, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with its values and its gradients as these formats store them."""
    result: torch.Tensor = Stored.apply(tensor, values, gradients)
    return result


def test_an_emulated_format_equals_rounding_written_out() -> None:
    for format, gradients in ((E4M3, None), (E4M3, E5M2), (E5M2, None), (TF32, None), (FP16, BF16)):
        torch.manual_seed(0)
        first = nn.Linear(6, 8)
        second = nn.Linear(8, 3)
        x = torch.randn(4, 6)
        target = torch.randn(4, 3)
        parameters = [*first.parameters(), *second.parameters()]

        events: list[CastEvent] = []
        with autocast(format, gradient_format=gradients, listen=events.append):
            y = second(F.relu(first(x)))
            loss = F.mse_loss(y.softmax(-1), target)
        ours = torch.autograd.grad(loss, parameters)

        stored = partial(stored_in, format, gradients or format)
        hidden = F.relu(stored(F.linear(stored(x), stored(first.weight), stored(first.bias))))
        z = stored(F.linear(stored(hidden), stored(second.weight), stored(second.bias)))
        want = torch.autograd.grad(F.mse_loss(z.softmax(-1), target), parameters)

        assert y.dtype == torch.float32
        assert torch.equal(y, z), (format, gradients)
        assert all(map(torch.equal, ours, want)), (format, gradients)
        assert [(e.op, e.to, e.elements) for e in events] == [
            ("linear", format, 24 + 48 + 8),
            ("linear", format, 32 + 24 + 3),
            ("softmax", torch.float32, 0),
            ("mse_loss", torch.float32, 0),
        ]


def test_a_mask_of_infinities_masks_in_a_format_that_has_none() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(1, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    with autocast(E4M3):
        y = layer(x, src_mask=mask)
        late = layer(torch.cat([x[:, :3], x[:, 3:] + 1], 1), src_mask=mask)
    assert y.isfinite().all()
    assert torch.equal(y[:, :3], late[:, :3]), "a masked position changed an earlier one"


def test_emulated_overflow_is_nan_in_a_format_without_infinity() -> None:
    with autocast(E4M3):
        # E4M3 ends at 448.
        overflowed = torch.full((1, 1), 449.0 * 2) @ torch.ones(1, 1)
    assert overflowed.isnan().all()


def test_fp16_operands_are_rounded_to_an_emulated_format() -> None:
    with autocast(E4M3):
        # The neighbours of 1.06 in E4M3 are 1 and 1.125.
        rounded = torch.full((1, 1), 1.06).half() @ torch.ones(1, 1).half()
    assert rounded.dtype == torch.float32
    assert rounded.item() == 1.0


def test_a_second_derivative_goes_through_an_emulated_format() -> None:
    x = torch.tensor([[1.5]], requires_grad=True)
    with autocast(E5M2):
        (slope,) = torch.autograd.grad(x @ x, x, create_graph=True)
        slope.sum().backward()
        assert (
            torch.func.vmap(torch.func.grad(lambda x: (x @ x).sum()))(x.detach()[None]).item()
            == 3.0
        )
    assert slope.item() == 3.0
    assert x.grad == torch.tensor([[2.0]])


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


def test_worked_example_of_a_layer_called_twice() -> None:
    layer = nn.Linear(3, 3)
    x = torch.ones(2, 3)
    events = list[CastEvent]()
    with autocast(listen=events.append) as region:
        layer(layer(x))
        assert len(region.cache) == 2
        with autocast(BF16) as inner:
            layer(x)
            assert len(inner.cache) == 4, "the cache lacks a cast of one of the two formats"
        layer(x)
    assert region.cache.hits == 4
    assert region.cache.misses == 4
    assert [e.cached for e in events] == [0, 2, 2]
    # A closed region keeps the counts and no casts.
    assert len(region.cache) == 0


def test_the_cache_keeps_no_weight_alive() -> None:
    with autocast() as region:
        layer = nn.Linear(2, 2)
        weight = weakref.ref(layer.weight)
        layer(torch.ones(1, 2))
        del layer
        gc.collect()
        assert weight() is None
        assert len(region.cache) == 0


def test_an_edit_in_a_region_invalidates_the_cached_cast() -> None:
    """torch's own autocast multiplies by the old weight here."""
    w = nn.Parameter(torch.ones(2, 2))
    x = torch.ones(1, 2)
    products = []
    for region in (torch.autocast("cpu", torch.bfloat16), autocast(BF16)):
        with region, torch.no_grad():
            torch.mm(x, w)
            w.mul_(2)
            products.append(torch.mm(x, w)[0, 0].item())
            w.div_(2)
    assert products == [2, 4]
    with autocast():
        x @ w
        # The parameter gets other memory.
        w.data = torch.full((2, 2), 3.0)
        assert (x @ w)[0, 0].item() == 6


def test_weight_used_twice_has_the_same_gradient_uncached() -> None:
    """Weight tying: an embedding of 5 words is also the last layer.

    Gradients are added up in FP32 either way.
    """
    for format in (FP16, BF16, E4M3):
        gradients = []
        for cache in (True, False):
            torch.manual_seed(0)
            table = nn.Embedding(5, 4)
            middle = nn.Linear(4, 4)
            with half_storage("cpu"), autocast(format, cache=cache) as region:
                hidden = table(torch.tensor([0, 2, 4]))
                for _ in range(3):
                    hidden = middle(hidden)
                loss = F.cross_entropy(F.linear(hidden, table.weight), torch.tensor([1, 3, 0]))
            loss.backward()
            gradients.append([table.weight.grad, middle.weight.grad, middle.bias.grad])
            # Three tensors are used seven times.
            hits, misses = (4, 3) if cache else (0, 0)
            assert region.cache.hits == hits
            assert region.cache.misses == misses
        assert all(map(torch.equal, *gradients)), format
        assert gradients[0][0].dtype == torch.float32


def test_a_cast_from_under_no_grad_serves_a_use_with_gradients() -> None:
    """A cast without history is not reused where gradients are on.

    torch once did, and the weight got no gradient. Nor is a cast that was made in inference mode
    reused outside of it.
    """
    for without in (torch.no_grad, torch.inference_mode):
        w = nn.Parameter(torch.ones(2, 2))
        x = torch.ones(1, 2, requires_grad=True)
        with autocast() as region:
            with without():
                x @ w
            y = x @ w
            with without():
                assert not (x @ w).requires_grad
        y.float().sum().backward()
        if without is torch.no_grad:
            # The second and the third product find the casts of both operands.
            assert region.cache.hits == 4
        assert w.grad.tolist() == [[1, 1], [1, 1]]
        assert x.grad is not None


def test_only_casts_of_fp32_leaves_with_gradients_are_cached() -> None:
    w = nn.Parameter(torch.ones(2, 2))
    for description, tensor in {
        "activation": w * 1,
        "frozen": nn.Parameter(torch.ones(2, 2), requires_grad=False),
        "plain": torch.ones(2, 2),
        "FP16": nn.Parameter(torch.ones(2, 2).half()),
        "FP64": nn.Parameter(torch.ones(2, 2).double()),
        "view": w.detach()[:].requires_grad_(),
    }.items():
        with autocast() as region:
            tensor @ tensor
            # pow is an FP32 operation, and casts no operand to FP16.
            w.pow(2)
            assert len(region.cache) == 0, description
            assert region.cache.misses == 0, description


def test_a_weight_with_a_reused_address_is_cast_again() -> None:
    cache = CastCache()
    memory = np.zeros(1, np.float32)
    identities = set()
    numbers = torch.from_numpy(memory)
    for value in range(50):
        # Python gives the object the address of the dead one before, and both have the same memory.
        w = nn.Parameter(numbers)
        memory[0] = value
        identities.add((id(w), w.data_ptr(), w._version))
        assert cache.find(w, torch.float16) is None
        cache.keep(w, torch.float16, w.detach().half())
        assert cache.find(w, torch.float16).item() == value
        del w
    assert len(identities) < 50, "no address was used twice, so the test shows nothing"


def test_one_weight_in_nested_regions_native_and_emulated() -> None:
    """FP16 with gradients in BF16 is emulated in FP32 tensors.

    A cast that is cached there must not become an operand of native FP16.
    """
    # The format of values, and the format of gradients.
    formats = [(FP16, None), (FP16, BF16), (BF16, None), (E4M3, None), (E4M3, E5M2)]
    for outer, inner in itertools.product(formats, formats):
        results = []
        for cache in (True, False):
            torch.manual_seed(0)
            layer = nn.Linear(4, 4)
            x = torch.randn(3, 4)
            with half_storage("cpu"), autocast(outer[0], gradient_format=outer[1], cache=cache):
                y = layer(x)
                with autocast(inner[0], gradient_format=inner[1], cache=cache):
                    z = layer(y)
                out = layer(z)
            out.float().square().sum().backward()
            results.append([y, z, out, *(p.grad for p in layer.parameters())])
        assert all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(*results, strict=True)
        ), (outer, inner)


def o1() -> AbstractContextManager[Any]:
    """Open the regions that the engine opens under O1."""
    regions = ExitStack()
    regions.enter_context(half_storage("cpu"))
    regions.enter_context(autocast())
    return regions


OPTIONS: list[tuple[Any, dict[str, Any]]] = [
    *(
        (cell, options)
        for cell in (nn.LSTM, nn.GRU, nn.RNN)
        for options in (
            {},
            {"batch_first": True, "bias": False},
            {"bidirectional": True, "num_layers": 2},
        )
    ),
    (nn.LSTM, {"proj_size": 3}),
]


def random_normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_worked_example_an_lstm_after_a_linear_layer() -> None:
    for region in (o1, partial(drop_in, "cpu", torch.float16)):
        first = nn.Linear(3, 5)
        layer = nn.LSTM(5, 6)
        with region():
            between = first(random_normal(7, 2, 3))
            y, (h, c) = layer(between)
        assert {t.dtype for t in (between, y, h, c)} == {torch.float16}
        y.float().sum().backward()
        assert {p.grad.dtype for p in (*first.parameters(), *layer.parameters())} == {torch.float32}


def run(
    layer: nn.RNNBase, x: Tensor, state: Any, packed: bool
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """Return outputs and end state of a recurrent layer, and gradients of a weighted sum of them.

    With `packed`, the input is a packed sequence of four lengths.
    """
    states = [t.requires_grad_() for t in ((state,) if isinstance(state, Tensor) else state or ())]
    x = x.requires_grad_()
    lengths = torch.tensor([5, 7, 2, 5])
    inputs = (
        pack_padded_sequence(x, lengths, layer.batch_first, enforce_sorted=False) if packed else x
    )
    output, last = layer(inputs, state)
    out = [output.data if packed else output, *(last if isinstance(last, tuple) else (last,))]
    loss = sum((t.float() * torch.linspace(0.5, 1, t.numel()).view(t.shape)).sum() for t in out)
    return out, torch.autograd.grad(loss, [x, *states, *layer.parameters()])


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_recurrent_layers_equal_fp32_but_for_rounding() -> None:
    """The oracle is torch's FP32 layer on the FP16 values of input, weights and state.

    A sequence of seven steps rounds seven times, and the tolerance is one epsilon for each.
    """
    for (cell, options), with_state, packed in itertools.product(
        OPTIONS, (False, True), (False, True)
    ):
        torch.manual_seed(0)
        layer = cell(5, 6, **options)
        exact = cell(5, 6, **options)
        exact.load_state_dict(
            {name: value.half().float() for name, value in layer.state_dict().items()}
        )
        rows = 4 if layer.bidirectional else 1
        sizes = (layer.proj_size or 6, 6)
        state: Any = tuple(random_normal(rows, 4, size, seed=1).half().float() for size in sizes)
        if cell is not nn.LSTM:
            state = state[0]
        if not with_state:
            state = None
        x = random_normal(*((4, 7, 5) if layer.batch_first else (7, 4, 5))).half()
        with o1():
            ours, gradients = run(layer, x.clone(), state, packed)
        want, want_gradients = run(exact, x.float(), state, packed)
        case = (cell.__name__, options, with_state, packed)
        for a, b in zip(ours, want, strict=True):
            assert a.dtype == torch.float16, case
            assert a.shape == b.shape, case
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon, case
        for a, b in zip(gradients, want_gradients, strict=True):
            assert (a.float() - b).abs().max() < 7 * FP16.epsilon * b.abs().max(), case


# --- torch's recurrent layers ask torch whether autocast is on ------------------------------------


def refused(layer: nn.Module, x: Tensor) -> bool:
    """Return whether the layer refuses the dtype of x, as it does outside of autocast."""
    try:
        layer(x)
    except ValueError as error:
        return "does not match weight dtype" in str(error)
    return False


def test_torch_refuses_half_inputs_outside_of_a_region() -> None:
    layer = nn.GRU(3, 3)
    x = torch.ones(2, 1, 3).half()
    with half_storage("cpu"):
        assert refused(layer, x)
        with autocast():
            assert not refused(layer, x)
            with autocast(enabled=False):
                assert refused(layer, x)
                with autocast(BF16), autocast():
                    assert not refused(layer, x)
                assert refused(layer, x)
            assert not refused(layer, x)
    with pytest.raises(ZeroDivisionError), o1():
        raise ZeroDivisionError
    assert refused(layer, x), "torch reports autocast after an exception"


def test_autocast_of_torch_is_off_in_other_threads_and_devices() -> None:
    devices = ("cpu", "cuda", "mps", "xpu", "xla", "mtia", "hpu")
    in_thread: list[bool] = []

    def ask() -> None:
        in_thread.append(torch._C._is_any_autocast_enabled())

    with autocast():
        assert torch._C._is_any_autocast_enabled()
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        assert not any(torch.is_autocast_enabled(device) for device in devices)
    assert in_thread == [False]


def test_an_lstm_in_an_emulated_format_takes_fp16_inputs() -> None:
    layer = nn.LSTM(3, 4)
    x = random_normal(5, 2, 3)
    with half_storage("cpu"), autocast(E4M3):
        y, _ = layer(x.half())
        wide, _ = layer(x.half().float())
    assert y.dtype == torch.float32
    assert torch.equal(y, wide)
