"""The lists: the policy of CUDA, its reasons, and what is registered on top. The oracle is what torch ships.

torch states its policy twice, and both are read here: in a C++ header, as four lists of names; and in the code behind
them, which runs on tensors that only say they are on a GPU (FakeTensor), so no GPU is needed to ask what it returns.
"""

import logging
import re
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp import (
    POLICY,
    CastEvent,
    Rule,
    autocast,
    float_function,
    half_function,
    promote_function,
    register,
    rule_for,
)
from labkit.amp.casting.lists import FEW_HALF_KERNELS, NO_HALF_KERNEL

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_half_kernel_runs_in_fp32() -> None:
    """torch's OpInfo says which; a Fourier transform has one for a GPU and powers of two."""
    opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    half, seen = torch.float16, set[str]()
    others = {"broadcast_shapes", "norm", "sparse.sampled_addmm", "svd_lowrank", "pca_lowrank"}  # these two: products
    for op in opinfo.op_db:
        without = half not in op.dtypes and (half not in op.dtypesIfCUDA or op.name.startswith("fft."))
        if torch.float32 not in op.dtypes or not without or op.name in others | seen or "signal" in op.name:
            continue
        seen.add(op.name)
        sample = next(iter(op.sample_inputs("cpu", torch.float32)))
        given = tree_map_only(torch.Tensor, torch.Tensor.detach, (sample.input, sample.args, sample.kwargs))
        narrow = tree_map_only(torch.Tensor, lambda t: t.half() if t.is_floating_point() else t, given)
        wide = tree_map_only(torch.Tensor, lambda t: t.float() if t.is_floating_point() else t, narrow)
        want = op.op(wide[0], *wide[1], **wide[2])
        with autocast():
            got = op.op(narrow[0], *narrow[1], **narrow[2])
        for ours, theirs in zip(tree_leaves(got), tree_leaves(want), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    assert {"fft.rfft2", "linalg.qr", "pinverse", "stft"} <= seen


def test_every_entry_has_a_reason_and_every_operator_its_operations_rule() -> None:
    assert all(entry.why for entry in POLICY.values())
    assert rule_for("__matmul__") is rule_for("matmul")
    assert rule_for("mm.default") is rule_for("mm")
    for name, rule in (("exp", Rule.DENY), ("softmax", Rule.SET_DTYPE), ("relu", Rule.KEEP), ("__get__", Rule.KEEP)):
        assert rule_for(name).rule is rule


# --- registration ---------------------------------------------------------------------------------------------------


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


def test_an_operation_of_torch_changes_list_however_it_is_called() -> None:
    x = torch.ones(2)
    with autocast():
        registered = half_function(torch.sigmoid)
        assert {f(x).dtype for f in (torch.sigmoid, torch.Tensor.sigmoid, lambda t: t.sigmoid())} == {torch.float16}
        registered.undo()
        assert torch.sigmoid(x).dtype == torch.float32


def test_a_registration_ends_with_its_block_even_by_an_exception() -> None:
    with float_function("relu"):
        assert rule_for("relu").rule is Rule.DENY
    assert rule_for("relu").rule is Rule.KEEP
    with pytest.raises(ZeroDivisionError), float_function("relu"):
        raise ZeroDivisionError
    assert rule_for("relu").rule is Rule.KEEP


def test_the_last_registration_counts_and_undoing_follows_no_order() -> None:
    first, second = half_function("relu"), float_function("relu")
    assert rule_for("relu").rule is Rule.DENY
    first.undo()
    assert rule_for("relu").rule is Rule.DENY
    second.undo()
    second.undo()
    assert rule_for("relu").rule is Rule.KEEP
    with register("matmul", Rule.KEEP, "for a test"):
        assert rule_for("__matmul__").why == "for a test"
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
        assert called(registered, tensors, autocast(listen=events.append)) == [expected] * len(given)
        assert [(e.op, e.to) for e in events] == [("mine", expected)]
        assert (registered.__name__, registered.__doc__) == ("mine", "Mine.")
        for region in (nullcontext(), autocast(enabled=False)):
            assert called(registered, tensors, region) == given, "outside of a region nothing is cast"
        registered.undo()
        assert called(registered, tensors, autocast()) == given


def test_inside_a_registered_function_or_method_the_lists_hold_as_everywhere() -> None:
    class Layer(torch.nn.Module):
        @float_function
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32
            return x @ x  # still a matrix product: apex's meaning, and not that of custom_fwd(cast_inputs=...)

    x = torch.ones(2, 2).half().requires_grad_()
    with autocast():
        y = Layer()(x)
    assert y.dtype == torch.float16
    y.sum().backward()
    assert (x.grad.dtype, x.grad.tolist()) == (torch.float16, [[4, 4], [4, 4]])


def test_threads_that_register_do_not_lose_each_others_rules() -> None:
    names, start, wrong = [f"operation_{i}" for i in range(8)], threading.Barrier(8), []

    def work(name: str) -> None:
        start.wait()
        for _ in range(200):
            with half_function(name):
                wrong.extend([name] if rule_for(name).rule is not Rule.ALLOW else [])
            wrong.extend([name] if rule_for(name).rule is not Rule.KEEP else [])

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_unregistrable_functions_are_reported() -> None:
    with pytest.raises(TypeError, match="got 3"):
        half_function(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"expected one of Rule\.ALLOW"):
        register("relu", "allow")  # type: ignore[arg-type]
    with half_function("relu") as registered, pytest.raises(TypeError, match="call torch's function"):
        registered(torch.ones(1))
    with half_function(doubled) as registered, pytest.raises(TypeError, match="undo that first"):
        float_function(registered)


# --- torch's autocast on a GPU that is not there --------------------------------------------------------------------


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


def dtypes_on_a_gpu(function: Callable[..., Any], args: Any, region: Any) -> tuple[torch.dtype, ...] | str:
    """Return the dtypes of what a function returns for such arguments on a GPU in a region, or the error's type."""
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
    ("sum_to_size", torch.float16): "returns its input where there is nothing to sum; we cast first",
    ("norm", torch.float16): "torch refuses the nuclear norm of FP16; ours is computed in FP32",
    ("linalg.matrix_norm", torch.float16): "the same",
    ("linalg.matrix_power", torch.float32): "its dtype depends on the exponent, and FP16 has no inverse: kept",
    ("svd_lowrank", torch.float32): "torch's products are FP16, and its QR of them fails on tensors that exist: kept",
    ("pca_lowrank", torch.float32): "the same",
    ("ldexp", torch.float16): "a FakeTensor takes it apart below autocast; on a card it is FP32: tests/gpu",
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
    caplog.set_level(logging.CRITICAL + 1, "torch._subclasses.fake_tensor")  # what it refuses, it logs at length
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
                    differ.setdefault((op.name, given), set()).add((getattr(way, "__name__", str(way)), theirs, ours))
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
    for way in (lambda x: 1 / x, lambda x: 2.0**x, torch.square, lambda x: F.pairwise_distance(x, x)):
        for region in (torchs_cuda_autocast(torch.float16), autocast()):
            assert dtypes_on_a_gpu(way, sample, region) == (torch.float32,)
