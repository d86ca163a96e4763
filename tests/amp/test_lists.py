"""The lists: the policy of CUDA, its reasons, and what is registered on top. The oracle is what
torch ships. And the ledger of a forward pass: what it writes down is what autocast does, and errors
are those numpy finds. And custom_fwd and custom_bwd: operations whose forward and backward somebody
wrote. The meaning is torch.amp's.

torch states its policy twice, and both are read here: in a C++ header, as four lists of names; and
in the code behind them, which runs on tensors that only say they are on a GPU (FakeTensor), so no
GPU is needed to ask what it returns.
"""

import copy
import itertools
import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp import (
    POLICY,
    RECIPES,
    CastEvent,
    CastGraph,
    Rule,
    autocast,
    custom_bwd,
    custom_fwd,
    float_function,
    half_function,
    promote_function,
    register,
    rule_for,
)
from labkit.amp.casting.ledger import difference, ledger
from labkit.amp.casting.lists import FEW_HALF_KERNELS, NO_HALF_KERNEL
from labkit.formats import BF16, E4M3, FP16, FP32
from labkit.frameworks import torch_amp
from labkit.gemm import half_storage
from labkit.modes import open_modes

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": Rule.ALLOW,
    "AT_FORALL_FP32": Rule.DENY,
    "AT_FORALL_FP32_SET_OPT_DTYPE": Rule.SET_DTYPE,
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": Rule.APPEND_DTYPE,
    "AT_FORALL_PROMOTE": Rule.PROMOTE,
}


def header() -> dict[str, Rule]:
    """Return {operation: its list} as torch's header has them."""
    text = HEADER.read_text()
    found: dict[str, Rule] = {}
    for macro, rule in MACROS.items():
        (body,) = re.findall(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", text)
        names = re.findall(r"_\(\s*(?:ADD_NS\()?(\w+)", body)
        assert names, macro
        found.update(dict.fromkeys(names, rule))
    return found


def test_each_operation_of_torchs_header_is_on_the_same_list() -> None:
    theirs = header()
    assert len(theirs) > 100
    assert {name: rule_for(name).rule for name in theirs} == theirs
    assert all(entry.why for entry in POLICY.values())
    assert rule_for("__matmul__") is rule_for("matmul")
    assert rule_for("mm.default") is rule_for("mm")
    assert rule_for("relu").rule is rule_for("__get__").rule is Rule.KEEP


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_half_kernel_runs_in_fp32() -> None:
    """torch's OpInfo says which; a Fourier transform has one for a GPU and powers of two."""
    opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    half, seen = torch.float16, set[str]()
    # these two: products
    others = {"broadcast_shapes", "norm", "sparse.sampled_addmm", "svd_lowrank", "pca_lowrank"}
    for op in opinfo.op_db:
        without = half not in op.dtypes and (
            half not in op.dtypesIfCUDA or op.name.startswith("fft.")
        )
        if (
            torch.float32 not in op.dtypes
            or not without
            or op.name in others | seen
            or "signal" in op.name
        ):
            continue
        seen.add(op.name)
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))
        given = tree_map_only(
            torch.Tensor, torch.Tensor.detach, (sample.input, sample.args, sample.kwargs)
        )
        narrow = tree_map_only(
            torch.Tensor, lambda t: t.half() if t.is_floating_point() else t, given
        )
        wide = tree_map_only(
            torch.Tensor, lambda t: t.float() if t.is_floating_point() else t, narrow
        )
        want = op.op(wide[0], *wide[1], **wide[2])
        with autocast():
            got = op.op(narrow[0], *narrow[1], **narrow[2])
        for ours, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert {"fft.rfft2", "linalg.qr", "pinverse", "stft"} <= seen


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_an_operation_of_torch_changes_list_however_it_is_called() -> None:
    x = torch.ones(2)
    with autocast():
        registered = half_function(torch.sigmoid)
        assert {
            f(x).dtype for f in (torch.sigmoid, torch.Tensor.sigmoid, lambda t: t.sigmoid())
        } == {torch.float16}
        registered.undo()
        assert torch.sigmoid(x).dtype == torch.float32


def test_the_last_registration_counts_and_ends_in_any_order_or_with_its_block() -> None:
    first, second = half_function("relu"), float_function("relu")
    first.undo()
    assert rule_for("relu").rule is Rule.DENY
    second.undo()
    second.undo()
    assert rule_for("relu").rule is Rule.KEEP
    with suppress(ZeroDivisionError), register("matmul", Rule.KEEP, "for a test"):
        assert rule_for("__matmul__").why == "for a test"
        raise ZeroDivisionError
    assert rule_for("__matmul__").rule is Rule.ALLOW


def test_a_python_function_casts_its_arguments() -> None:
    seen: list[torch.dtype] = []

    def mine(*tensors: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        """Mine."""
        seen.extend(t.dtype for t in tensors)
        return tensors[0] * scale

    def called(function: Any, tensors: list[torch.Tensor], region: Any) -> list[torch.dtype]:
        seen.clear()
        with region:
            function(*tensors, scale=2.0)
        return list(seen)

    half, single = torch.float16, torch.float32
    for decorate, given, expected in (
        (half_function, [single], half),
        (float_function, [half], single),
        (promote_function, [half, single], single),
        (promote_function, [half, half], half),
    ):
        registered, tensors = decorate(mine), [torch.ones(2, dtype=dtype) for dtype in given]
        events: list[CastEvent] = []
        assert called(registered, tensors, autocast(listen=events.append)) == [expected] * len(
            given
        )
        assert [(e.op, e.to) for e in events] == [("mine", expected)]
        assert (registered.__name__, registered.__doc__) == ("mine", "Mine.")
        for region in (nullcontext(), autocast(enabled=False)):
            assert called(registered, tensors, region) == given, (
                "outside of a region nothing is cast"
            )
        registered.undo()
        assert called(registered, tensors, autocast()) == given


def test_inside_a_registered_function_or_method_the_lists_hold_as_everywhere() -> None:
    class Layer(torch.nn.Module):
        @float_function
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32
            # still a matrix product: apex's meaning, and not that of custom_fwd(cast_inputs=...)
            return x @ x

    with autocast():
        assert Layer()(torch.ones(2, 2).half()).dtype == torch.float16


def test_unregistrable_functions_are_reported() -> None:
    with pytest.raises(TypeError, match="got 3"):
        half_function(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected one of Rule\.ALLOW"):
        register("relu", "allow")  # type: ignore[arg-type]
    with (
        half_function("relu") as registered,
        pytest.raises(TypeError, match="call torch's function"),
    ):
        registered(torch.ones(1))
    with half_function(doubled) as registered, pytest.raises(TypeError, match="undo that first"):
        float_function(registered)


@contextmanager
def torchs_cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """torch.autocast("cuda"), whose constructor would switch itself off where there is no GPU."""
    before = torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", False)
        torch.set_autocast_dtype("cuda", before)


def dtypes_on_a_gpu(
    function: Callable[..., Any], args: Any, region: Any
) -> tuple[torch.dtype, ...] | str:
    """Return the dtypes of what a function returns for such arguments on a GPU in a region, or the
    error's type.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(t: torch.Tensor) -> torch.Tensor:
        empty = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
        return FakeTensor(mode, empty, torch.device("cuda:0"))

    (input_, rest, kwargs) = tree_map_only(torch.Tensor, fake, args)
    try:
        with mode, region, warnings.catch_warnings(action="ignore"):
            out = function(input_, *rest, **kwargs)
    except Exception as error:  # what the two refuse is compared as well
        return type(error).__name__
    return tuple(t.dtype for t in tree_leaves(out) if isinstance(t, torch.Tensor))


# Where we differ on purpose: (operation, dtype given) -> why.
DIFFERENT = {
    (
        "sum_to_size",
        torch.float16,
    ): "returns its input where there is nothing to sum; we cast first",
    ("norm", torch.float16): "torch refuses the nuclear norm of FP16; ours is computed in FP32",
    ("linalg.matrix_norm", torch.float16): "the same",
    (
        "linalg.matrix_power",
        torch.float32,
    ): "its dtype depends on the exponent, and FP16 has no inverse: kept",
    (
        "svd_lowrank",
        torch.float32,
    ): "torch's products are FP16, and its QR of them fails on tensors that exist: kept",
    ("pca_lowrank", torch.float32): "the same",
    (
        "ldexp",
        torch.float16,
    ): "a FakeTensor takes it apart below autocast; on a card it is FP32: tests/gpu",
    ("mvlgamma", torch.float16): "the same",
    ("torch.ops.aten._safe_softmax.default", torch.float16): "the same",
}


def ways_to_call(op: Any) -> list[Callable[..., Any]]:
    ways = [op.op, op.method_variant, op.operator_variant, *(alias.op for alias in op.aliases)]
    return list({id(way): way for way in ways if way is not None}.values())


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute of work, and all of it Python's: a busy machine multiplies it
@pytest.mark.parametrize("given", [torch.float32, torch.float16])
def test_every_operation_torch_knows_returns_the_dtypes_of_cuda_autocast(
    given: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    # what it refuses, it logs at length
    caplog.set_level(logging.CRITICAL + 1, "torch._subclasses.fake_tensor")
    differ: dict[tuple[str, torch.dtype], set[Any]] = {}
    compared = 0
    for op in op_db:
        samples = op.sample_inputs("cpu", torch.float32) if torch.float32 in op.dtypes else ()
        for _, sample in zip(range(2), samples):  # noqa: B905
            args = (sample.input, sample.args, sample.kwargs)
            leaves = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
            if any(t.layout != torch.strided for t in leaves):
                continue
            to = lambda t: t.detach().to(given) if t.dtype == torch.float32 else t.detach()  # noqa: E731
            args = tree_map_only(torch.Tensor, to, args)
            for way in ways_to_call(op):
                theirs = dtypes_on_a_gpu(way, args, torchs_cuda_autocast(torch.float16))
                ours = dtypes_on_a_gpu(way, args, autocast())
                compared += 1
                if theirs != ours:
                    differ.setdefault((op.name, given), set()).add(
                        (getattr(way, "__name__", str(way)), theirs, ours)
                    )
    assert compared > 1000
    ours_alone = NO_HALF_KERNEL | FEW_HALF_KERNELS  # CUDA has no kernel, or for few sizes
    for key, ways in list(differ.items()):
        names = {name for name, *_ in ways} - {"<lambda>"} or {key[0].replace(".", "_")}
        if names <= ours_alone or key in DIFFERENT:
            del differ[key]
    assert differ == {}


def test_reciprocals_of_fp16_are_fp32_as_on_a_gpu() -> None:
    """1 / x is no name on torch's lists: it calls reciprocal, which is."""
    sample = (torch.ones(2, 2).half(), (), {})
    for way in (
        lambda x: 1 / x,
        lambda x: 2.0**x,
        torch.square,
        lambda x: F.pairwise_distance(x, x),
    ):
        for region in (torchs_cuda_autocast(torch.float16), autocast()):
            assert dtypes_on_a_gpu(way, sample, region) == (torch.float32,)


def by_hand(x, w):
    """A classifier's loss with its softmax written out."""
    powers = (x @ w).exp()
    return -(powers / powers.sum(-1, keepdim=True))[:, 0].log().mean()


@pytest.fixture
def operands():
    """x and w such that logits reach beyond 11.09, where exp leaves FP16."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(8, 16, generator=generator) * 2, torch.randn(16, 10, generator=generator)


def ops(rows):
    return [row.op for row in rows]


def test_worked_example_of_a_softmax_by_hand(operands):
    rows = ledger(by_hand, *operands)
    assert ops(rows) == ["matmul", "exp", "sum", "div", "log", "mean", "neg"]
    assert [row.rule for row in rows[:4]] == [Rule.ALLOW, Rule.DENY, Rule.SET_DTYPE, Rule.KEEP]
    matmul, exp = rows[:2]
    assert (matmul.input_dtypes, matmul.to, matmul.result) == (
        (torch.float32,) * 2,
        torch.float16,
        torch.float16,
    )
    assert (exp.input_dtypes, exp.to, exp.result) == (
        (torch.float16,),
        torch.float32,
        torch.float32,
    )
    assert matmul.shape == (8, 10)
    assert all(row.why for row in rows)
    assert not any(row.moved or row.problem or row.overflowed for row in rows)
    denied = ledger(by_hand, *operands, overrides=dict.fromkeys(ops(rows), Rule.DENY))
    assert {(row.result, row.error) for row in denied} == {(torch.float32, 0.0)}


def test_errors_and_overflows_are_those_that_numpy_finds(operands):
    x, w = (t.numpy() for t in operands)
    exact = x @ w
    half = (
        x.astype(np.float16).astype(np.float32) @ w.astype(np.float16).astype(np.float32)
    ).astype(np.float16)
    powers = np.exp(half.astype(np.float32))
    matmul, exp = ledger(by_hand, *operands)[:2]

    def relative(found, true):
        found, true = found.astype(np.float64), true.astype(np.float64)
        return np.linalg.norm(found - true) / np.linalg.norm(true)

    # FP32 sums may differ in their last bit
    assert matmul.error == pytest.approx(relative(half, exact), rel=1e-3)
    assert exp.error == pytest.approx(relative(powers, np.exp(exact)), rel=1e-3)
    assert matmul.largest == pytest.approx(np.abs(exact).max(), rel=1e-6)
    assert matmul.ulps == matmul.error * 1024
    with np.errstate(over="ignore"):
        beyond = int(np.isinf(powers.astype(np.float16)).sum())
    assert beyond > 0
    exp = ledger(by_hand, *operands, overrides={"exp": Rule.ALLOW})[1]
    assert (exp.overflowed, exp.error, exp.moved, exp.home) == (
        beyond,
        float("inf"),
        True,
        Rule.DENY,
    )
    masked = torch.tensor([1.0, float("-inf"), 2.0])
    assert difference(masked.half(), masked) == (0.0, 0, 0), "a mask is no error"
    assert difference(torch.tensor([1.0, 0.0, float("nan")]).half(), masked) == (float("inf"), 1, 0)


@pytest.mark.parametrize("format", [FP16, BF16, E4M3], ids=lambda format: format.name)
def test_nothing_moved_is_autocast_itself(operands, format):
    events = []
    with half_storage("cpu"), autocast(format, listen=events.append):
        result = by_hand(*operands)
    rows = ledger(by_hand, *operands, format=format)
    listed = [row for row in rows if row.rule is not Rule.KEEP]
    assert [(row.op, row.input_dtypes, row.to, row.why) for row in listed] == [
        (event.op, event.input_dtypes, event.to, event.why)
        for event in events
        if event.rule is not Rule.KEEP
    ]
    exact = by_hand(*(t.double() for t in operands))
    assert rows[-1].result == result.dtype
    assert rows[-1].error == pytest.approx(
        float(abs(result.double() - exact) / exact), rel=1e-2, abs=1e-6
    )


def test_modules_are_named_views_are_silent_and_attention_is_opened_up():
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)
    )
    rows = ledger(net, torch.randn(2, 1, 8, 8))
    assert {row.op: row.where for row in rows} == {
        "conv2d": "0",
        "batch_norm": "1",
        "relu": "2",
        "linear": "4",
    }
    in_place = ledger(lambda x: (x @ x).relu_().transpose(0, 1), torch.rand(3, 3))
    assert ops(in_place) == ["matmul", "relu_"]
    rows = ledger(
        nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True), torch.randn(2, 5, 16)
    )
    allowed = [row.op for row in rows if row.rule is Rule.ALLOW]
    assert allowed == ["linear", "scaled_dot_product_attention", "linear", "linear", "linear"]
    assert len({row.key for row in rows}) == len(rows)


def test_the_model_and_the_random_generator_are_left_as_they_were():
    net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    x, hidden = torch.randn(5, 4), nn.Linear(4, 4)(torch.randn(5, 4))
    before, state = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    dropout = ledger(net, x, overrides={"linear": Rule.DENY})[-1]
    assert (dropout.op, dropout.error < 1e-3) == ("dropout", True), (
        "both runs drop the same elements"
    )
    # A loss as people write it: the function is copied, the network that it closes over is not.
    rows = ledger(lambda x, y: F.mse_loss(net(x), y), hidden, torch.zeros(5, 3))
    assert ops(rows) == ["linear", "batch_norm", "dropout", "mse_loss"]
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())
    assert net.training
    assert all(p.grad is None for p in net.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_what_torch_refuses_ends_the_ledger():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    first, second, relu = ledger(net, torch.randn(2, 4), overrides={"linear 2": Rule.KEEP})
    assert (first.result, first.problem, first.rule) == (torch.float16, "", Rule.ALLOW)
    assert (second.key, second.rule, second.result) == ("linear 2", Rule.KEEP, None)
    assert "dtype" in second.problem
    assert (relu.result, relu.problem) == (None, "")
    p, y = torch.rand(4, 2).sigmoid(), torch.ones(4, 2)
    (row,) = ledger(F.binary_cross_entropy, p, y)
    assert row.rule is Rule.BANNED
    assert "binary_cross_entropy_with_logits" in row.problem
    (moved,) = ledger(F.binary_cross_entropy, p, y, overrides={"binary_cross_entropy": Rule.DENY})
    assert (moved.result, moved.problem) == (torch.float32, "")


def test_bad_overrides_are_refused():
    for overrides, says in (
        ({"softmax": Rule.ALLOW}, "calls no softmax; it calls exp"),
        ({"exp 2": Rule.ALLOW}, "calls no exp 2"),
        ({"exp": Rule.BANNED}, "expected overrides to allow, deny, promote, keep"),
        ({"exp": "allow"}, "expected overrides to allow, deny, promote, keep"),
    ):
        with pytest.raises(ValueError, match=says):
            ledger(torch.exp, torch.ones(2), overrides=overrides)


def test_a_model_that_asks_for_dtypes_has_no_ledger():
    def model(x):
        y = x @ x
        return y.exp() if y.dtype == torch.float32 else y.log()

    with pytest.raises(ValueError, match="calls other operations under autocast"):
        ledger(model, torch.rand(2, 2))


seen: dict[str, torch.dtype] = {}


def pair(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    a, b = (torch.randn(8, 8, generator=g).to(dtype).requires_grad_() for _ in range(2))
    return a, b


def product_by(
    forward_by: Any, backward_by: Any, wrap: Any = lambda method: method
) -> Callable[..., Tensor]:
    """Return a matrix product with these decorators, which notes the dtypes that it meets."""

    class Product(torch.autograd.Function):
        @staticmethod
        @wrap
        @forward_by
        def forward(ctx: Any, a: Tensor, b: Tensor, counts: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            seen["forward"], seen["counts"], seen["inside"] = (
                a.dtype,
                counts.dtype,
                (a.float() @ b.float()).dtype,
            )
            return a @ b

        @staticmethod
        @wrap
        @backward_by
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
            a, b = (t.to(gradient.dtype) for t in ctx.saved_tensors)
            seen["backward"] = (gradient.float() @ gradient.float()).dtype
            return gradient @ b.t(), a.t() @ gradient, None

    return Product.apply  # looked up before any region is open, as libraries do


def results_of(
    product: Callable[..., Tensor], region: Any, backward_inside: bool
) -> tuple[Any, ...]:
    (a, b), counts = pair(torch.bfloat16), torch.tensor([1])
    with region:
        y = product(a, b, counts)
        if backward_inside:
            y.float().square().sum().backward()
    if not backward_inside:
        y.float().square().sum().backward()
    return dict(seen), y, a.grad, b.grad


@pytest.mark.filterwarnings(
    "ignore:.*is deprecated:FutureWarning", "ignore:User provided device_type of 'cuda'"
)
def test_our_decorators_and_torchs_do_in_our_regions_what_torchs_do_in_torchs() -> None:
    """The oracle is torch.autocast on a CPU; its lists and ours agree on matrix products."""
    between = lambda method: wraps(method)(lambda *args: method(*args))  # noqa: E731
    bf16 = torch.bfloat16
    for cast, wrapped, inside in itertools.product(
        (FP32, FP16, None), (False, True), (True, False)
    ):
        dtype, wrap = (
            {FP32: torch.float32, FP16: torch.float16, None: None}[cast],
            {"wrap": between} if wrapped else {},
        )
        on_cpu, on_cuda = (
            product_by(
                partial(custom.custom_fwd, cast_inputs=dtype, **on),
                partial(custom.custom_bwd, **on),
                **wrap,
            )
            for custom, on in ((torch.amp, {"device_type": "cpu"}), (torch.cuda.amp, {}))
        )
        own = product_by(
            custom_fwd if cast is None else custom_fwd(cast_inputs=cast), custom_bwd, **wrap
        )
        want = results_of(on_cpu, torch.autocast("cpu", bf16), inside)
        for function, region in (
            (own, autocast(BF16)),
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
            assert results_of(own, region, inside)[0] == outside[0]


class NetWithTorchs(torch.nn.Linear):
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

    def forward(self, x: Tensor) -> Tensor:
        return self.InFp32.apply(super().forward(x), self.weight)


@pytest.mark.filterwarnings("ignore:Dynamo")
def test_graphs_and_compiled_models_apply_such_functions_as_eager_autocast_does() -> None:
    torch.manual_seed(0)
    eager, x = NetWithTorchs(8, 8), torch.randn(8, 8)
    graph, compiled = (
        CastGraph(copy.deepcopy(eager), FP16),
        torch.compile(copy.deepcopy(eager), backend="eager"),
    )
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


def test_a_forward_pass_outside_of_a_region_has_a_backward_pass_without() -> None:
    for device in ("cpu", "cuda"):
        a, b = pair()
        with half_storage(device):
            y = product_by(custom_fwd, custom_bwd)(a, b, torch.tensor([1]))
        with autocast():
            y.sum().backward()
        assert seen["backward"] == torch.float32


def test_half_a_pair_is_refused() -> None:
    class Half(Plain):
        backward = staticmethod(custom_bwd(Plain.backward))

    with pytest.raises(RuntimeError, match="forward has no custom_fwd"):
        Half.apply(torch.ones(1, requires_grad=True)).backward()


# --- backward called inside a region: what Python computes in it is cast, as under torch's autocast
class Plain(torch.autograd.Function):
    """An elementwise product whose backward multiplies matrices in FP32, and notes what
    came of it.
    """

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


def noted(
    region: Any, inside: bool, suspended: bool, run: Callable[[Tensor, Tensor], object]
) -> list[torch.dtype]:
    """Return the dtypes of matrix products in a custom backward and three kinds of hooks, of FP32
    gradients.
    """
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
    """Matrix products are on torch's CPU list as on CUDA's, so torch's own region says what is
    right.
    """
    places = [(True, False), (True, True), (False, False)]
    for (inside, suspended), (how, run) in itertools.product(places, PASSES.items()):
        theirs = noted(torch_autocast, inside, suspended, run)
        assert noted(autocast, inside, suspended, run) == theirs, (inside, suspended, how)
        assert set(theirs) == {torch.float16 if inside and not suspended else torch.float32}


def test_a_thread_of_autograd_has_the_regions_of_the_thread_that_called_backward() -> None:
    """For a GPU, backward runs in another thread, where torch opens the caller's modes by itself;
    here by hand.
    """
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
