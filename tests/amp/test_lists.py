"""The lists of autocast, compared with torch's own policy for CUDA.

torch states its policy in a C++ header, as lists of names, and implements it in the operations of
its CUDA autocast. The tests read the header, and run the operations on FakeTensors that claim to be
on a GPU, so the dtypes of results are known on a machine without one.
"""

import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
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

HALF, SINGLE = torch.float16, torch.float32
HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": Rule.ALLOW,
    "AT_FORALL_FP32": Rule.DENY,
    "AT_FORALL_FP32_SET_OPT_DTYPE": Rule.SET_DTYPE,
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": Rule.APPEND_DTYPE,
    "AT_FORALL_PROMOTE": Rule.PROMOTE,
}


# --- the names on the lists ---


def rules_of_the_header() -> dict[str, Rule]:
    """Return {operation: its list} as torch's header states them."""
    text = HEADER.read_text(encoding="utf-8")
    rules: dict[str, Rule] = {}
    for macro, rule in MACROS.items():
        # The definition of a macro continues while its lines end with a backslash.
        (body,) = re.findall(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", text)
        # An entry is _(name), _(ADD_NS(name), ...) or _(name, overload).
        names = re.findall(r"_\(\s*(?:ADD_NS\()?(\w+)", body)
        assert names, macro
        rules.update(dict.fromkeys(names, rule))
    return rules


def test_operations_are_on_the_lists_of_the_header() -> None:
    expected = rules_of_the_header()
    # torch lists more than 100 operations; fewer mean that the header was not read completely.
    assert len(expected) > 100
    assert {name: rule_for(name).rule for name in expected} == expected


def test_every_entry_has_a_reason() -> None:
    assert [name for name, entry in POLICY.items() if not entry.why] == []


@pytest.mark.parametrize(("other_name", "name"), [("__matmul__", "matmul"), ("mm.default", "mm")])
def test_names_of_one_operation_share_an_entry(other_name: str, name: str) -> None:
    assert rule_for(other_name) is rule_for(name)


@pytest.mark.parametrize("name", ["relu", "__get__"])
def test_unlisted_operations_keep_their_dtype(name: str) -> None:
    assert rule_for(name).rule is Rule.KEEP


# Operations without a half kernel of their own that consist of matrix products.
CONSIST_OF_PRODUCTS = {"norm", "sparse.sampled_addmm", "svd_lowrank", "pca_lowrank"}


def lacks_half_kernel(op: Any) -> bool:
    """Return whether OpInfo lists no FP16 for an operation, or FP16 for few sizes of FFT only."""
    if HALF in op.dtypes:
        return False
    return HALF not in op.dtypesIfCUDA or op.name.startswith("fft.")


def with_floats_as(dtype: torch.dtype, arguments: Any) -> Any:
    """Return arguments whose floating-point tensors are cast, without a graph."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    return tree_map_only(torch.Tensor, cast, arguments)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_operations_without_a_half_kernel_run_in_fp32() -> None:
    """torch's OpInfo lists the operations without FP16 kernels; ours must equal them in FP32."""
    opinfo = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    compared = set[str]()
    for op in opinfo.op_db:
        if SINGLE not in op.dtypes or not lacks_half_kernel(op):
            continue
        if op.name in CONSIST_OF_PRODUCTS | compared:
            continue
        # These take sizes and no tensors, so there is nothing to cast.
        if op.name == "broadcast_shapes" or "signal" in op.name:
            continue
        compared.add(op.name)
        sample = next(iter(op.sample_inputs("cpu", SINGLE)))
        narrow = with_floats_as(HALF, (sample.input, sample.args, sample.kwargs))
        input_, args, kwargs = with_floats_as(SINGLE, narrow)
        expected = op.op(input_, *args, **kwargs)
        input_, args, kwargs = narrow
        with autocast():
            result = op.op(input_, *args, **kwargs)
        for ours, theirs in zip(tree_leaves(result), tree_leaves(expected), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)
    # Some operations that must be among them, or the selection is wrong.
    assert {"fft.rfft2", "linalg.qr", "pinverse", "stft"} <= compared


# --- functions registered on a list ---


def test_the_name_of_an_overload_registers_its_operation() -> None:
    with register("mm.default", Rule.DENY), autocast():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype == torch.float32


def test_a_rule_that_was_undone_is_not_entered_again() -> None:
    with register("sigmoid", Rule.DENY) as registered:
        pass
    with pytest.raises(RuntimeError, match="the rule of sigmoid was undone"):
        registered.__enter__()


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x + x


@pytest.mark.parametrize(
    "call",
    [torch.sigmoid, torch.Tensor.sigmoid, lambda tensor: tensor.sigmoid()],
    ids=["torch.sigmoid", "torch.Tensor.sigmoid", "tensor.sigmoid()"],
)
def test_registration_holds_however_an_operation_is_called(call: Callable[..., Any]) -> None:
    with autocast(), half_function(torch.sigmoid):
        assert call(torch.ones(2)).dtype == HALF


def test_undone_registration_has_no_effect() -> None:
    with autocast():
        half_function(torch.sigmoid).undo()
        assert torch.sigmoid(torch.ones(2)).dtype == SINGLE


def test_last_registration_takes_precedence() -> None:
    first = half_function("relu")
    second = float_function("relu")
    # The order in which registrations end does not matter.
    first.undo()
    assert rule_for("relu").rule is Rule.DENY
    second.undo()
    assert rule_for("relu").rule is Rule.KEEP


def test_registration_can_be_undone_twice() -> None:
    registered = half_function("relu")
    registered.undo()
    registered.undo()
    assert rule_for("relu").rule is Rule.KEEP


def test_registration_ends_with_its_block() -> None:
    with suppress(ZeroDivisionError), register("matmul", Rule.KEEP, "for a test"):
        assert rule_for("__matmul__").why == "for a test"
        raise ZeroDivisionError
    assert rule_for("__matmul__").rule is Rule.ALLOW


class Observed:
    """A Python function that records the dtypes of its tensors."""

    def __init__(self) -> None:
        self.dtypes: list[torch.dtype] = []

        def scaled(*tensors: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            """Return the first tensor, scaled."""
            self.dtypes.extend(tensor.dtype for tensor in tensors)
            return tensors[0] * scale

        self.function = scaled

    def dtypes_in(
        self, region: Any, function: Callable[..., Any], tensors: list[torch.Tensor]
    ) -> list[torch.dtype]:
        """Call the registered function in a region, and return the dtypes that it meets."""
        self.dtypes.clear()
        with region:
            function(*tensors, scale=2.0)
        return list(self.dtypes)


PYTHON_FUNCTIONS = pytest.mark.parametrize(
    ("decorate", "argument_dtypes", "expected"),
    [
        (half_function, [SINGLE], HALF),
        (float_function, [HALF], SINGLE),
        (promote_function, [HALF, SINGLE], SINGLE),
        (promote_function, [HALF, HALF], HALF),
    ],
)


@PYTHON_FUNCTIONS
def test_registered_python_function_gets_cast_arguments(
    decorate: Any, argument_dtypes: list[torch.dtype], expected: torch.dtype
) -> None:
    observed = Observed()
    tensors = [torch.ones(2, dtype=dtype) for dtype in argument_dtypes]
    events: list[CastEvent] = []
    with decorate(observed.function) as registered:
        dtypes = observed.dtypes_in(autocast(listen=events.append), registered, tensors)
    assert dtypes == [expected] * len(argument_dtypes)
    assert [(event.op, event.to) for event in events] == [("scaled", expected)]


@PYTHON_FUNCTIONS
def test_registered_python_function_casts_nothing_elsewhere(
    decorate: Any, argument_dtypes: list[torch.dtype], expected: torch.dtype
) -> None:
    observed = Observed()
    tensors = [torch.ones(2, dtype=dtype) for dtype in argument_dtypes]
    with decorate(observed.function) as registered:
        assert observed.dtypes_in(nullcontext(), registered, tensors) == argument_dtypes
        assert observed.dtypes_in(autocast(enabled=False), registered, tensors) == argument_dtypes
    assert observed.dtypes_in(autocast(), registered, tensors) == argument_dtypes


def test_registered_python_function_keeps_its_name_and_docstring() -> None:
    observed = Observed()
    with half_function(observed.function) as registered:
        assert registered.__name__ == "scaled"
        assert registered.__doc__ == "Return the first tensor, scaled."


def test_attributes_of_a_registered_object_do_not_change_its_calls() -> None:
    class Doubled:
        """A decorator, as many are written."""

        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            self.function = function
            self.name = self.entry = "its own"

        def __call__(self, x: Tensor) -> Tensor:
            return 2 * self.function(x)

    registered = half_function(Doubled(torch.neg))
    assert registered(torch.ones(1)).item() == -2
    assert (registered.name, registered.entry.rule) == ("Doubled", Rule.ALLOW)


def test_an_object_without_a_hash_can_be_registered() -> None:
    @dataclass
    class Scaled:
        factor: float

        def __call__(self, x: Tensor) -> Tensor:
            return x * self.factor

    registered = half_function(Scaled(2.0))
    with autocast():
        assert registered(torch.ones(1)).dtype == HALF


def test_lists_hold_inside_of_a_registered_method() -> None:
    """A matrix product inside of a float_function runs in FP16, as with apex.

    Inside of torch's custom_fwd(cast_inputs=...), autocast would be disabled.
    """

    class Layer(torch.nn.Module):
        @float_function
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == SINGLE
            return x @ x

    with autocast():
        assert Layer()(torch.ones(2, 2).half()).dtype == HALF


def test_only_functions_can_be_registered() -> None:
    with pytest.raises(TypeError, match=r"target: expected a function .*, got 3"):
        half_function(3)


def test_unknown_rule_is_refused() -> None:
    with pytest.raises(TypeError, match=r"rule: expected one of Rule\.ALLOW"):
        register("relu", "allow")


@pytest.mark.parametrize("name", ["sigmoyd", "", "nn"])
def test_a_name_that_torch_lacks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"the name of an operation of torch, got '{name}'"):
        register(name, Rule.DENY)


def test_a_name_that_is_almost_right_is_suggested() -> None:
    with pytest.raises(ValueError, match="Did you mean 'sigmoid'"):
        register("sigmoyd", Rule.DENY)


def test_registered_name_cannot_be_called() -> None:
    with (
        half_function("relu") as registered,
        pytest.raises(TypeError, match="call torch's function"),
    ):
        registered(torch.ones(1))


def test_registered_function_cannot_be_registered_again() -> None:
    with half_function(doubled) as registered, pytest.raises(TypeError, match="undo that first"):
        float_function(registered)


# --- dtypes of results, compared with torch's code for CUDA ---


@contextmanager
def torchs_cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Open torch.autocast("cuda"), whose constructor disables it on a machine without a GPU."""
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
    """Call a function with arguments that claim to be on a GPU, inside of a region.

    Returns:
        The dtypes of the result, or the name of the error's type: refusals are compared as well.
    """
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def fake(tensor: torch.Tensor) -> torch.Tensor:
        empty = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta"
        )
        return FakeTensor(mode, empty, torch.device("cuda:0"))

    input_, rest, kwargs = tree_map_only(torch.Tensor, fake, args)
    try:
        with mode, region, warnings.catch_warnings(action="ignore"):
            result = function(input_, *rest, **kwargs)
    except Exception as error:
        return type(error).__name__
    return tuple(leaf.dtype for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor))


ON_A_CARD = "FakeTensor decomposes it below autocast; on a card it is FP32, see tests/gpu"
LOW_RANK = "torch's products are FP16, and QR fails for FP16 tensors; ours keeps the dtype"
# Intended differences: (operation, dtype of its arguments) -> reason.
DIFFERENT = {
    ("sum_to_size", HALF): "returns its input if there is nothing to sum; we cast first",
    ("norm", HALF): "torch refuses the nuclear norm of FP16; ours is computed in FP32",
    ("linalg.matrix_norm", HALF): "as norm",
    (
        "linalg.matrix_power",
        SINGLE,
    ): "its dtype depends on the exponent, and FP16 has no inverse; ours keeps it",
    ("svd_lowrank", SINGLE): LOW_RANK,
    ("pca_lowrank", SINGLE): LOW_RANK,
    ("ldexp", HALF): ON_A_CARD,
    ("mvlgamma", HALF): ON_A_CARD,
    ("torch.ops.aten._safe_softmax.default", HALF): ON_A_CARD,
}


def ways_to_call(op: Any) -> list[Callable[..., Any]]:
    """Return the function, method, operator and aliases of an operation, each once."""
    ways = [op.op, op.method_variant, op.operator_variant]
    ways += [alias.op for alias in op.aliases]
    return list({id(way): way for way in ways if way is not None}.values())


def samples_of(op: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Yield up to two arguments of an operation with dense tensors, FP32 ones cast to a dtype."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        return tensor.to(dtype) if tensor.dtype == SINGLE else tensor

    if SINGLE not in op.dtypes:
        return
    # zip takes no third sample, which can be large.
    for _, sample in zip(range(2), op.sample_inputs("cpu", SINGLE), strict=False):
        args = (sample.input, sample.args, sample.kwargs)
        tensors = [leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor)]
        if all(tensor.layout == torch.strided for tensor in tensors):
            yield tree_map_only(torch.Tensor, cast, args)


def is_intended(op_name: str, dtype: torch.dtype, ways: set[str]) -> bool:
    """Return whether an operation differs from torch on purpose.

    CUDA has no half kernel of these operations, or has one for few sizes only. `ways` are the names
    of the functions that differ.
    """
    names = (ways - {"<lambda>"}) or {op_name.replace(".", "_")}
    return names <= NO_HALF_KERNEL | FEW_HALF_KERNELS or (op_name, dtype) in DIFFERENT


@pytest.mark.slow
# A minute of work, all of it in Python: a busy machine multiplies it.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", [SINGLE, HALF])
def test_results_have_the_dtypes_of_cuda_autocast(
    dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    """The operations are all of torch's OpInfo, called as function, method, operator and alias."""
    op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db
    # FakeTensor logs what it refuses, at length.
    caplog.set_level(logging.CRITICAL + 1, "torch._subclasses.fake_tensor")
    different_ways: dict[str, set[str]] = {}
    compared = 0
    for op in op_db:
        for args in samples_of(op, dtype):
            for way in ways_to_call(op):
                theirs = dtypes_on_a_gpu(way, args, torchs_cuda_autocast(HALF))
                ours = dtypes_on_a_gpu(way, args, autocast())
                # A refusal is compared as well, and does not count: every call might be refused.
                compared += isinstance(theirs, tuple)
                if theirs != ours:
                    name = getattr(way, "__name__", str(way))
                    different_ways.setdefault(op.name, set()).add(name)
    # OpInfo has some 600 operations, most with two samples; with fewer results, most were skipped.
    assert compared > 1000
    unintended = {
        name: ways for name, ways in different_ways.items() if not is_intended(name, dtype, ways)
    }
    assert unintended == {}


@pytest.mark.parametrize(
    "call",
    [lambda x: 1 / x, lambda x: 2.0**x, torch.square, lambda x: F.pairwise_distance(x, x)],
    ids=["1 / x", "2.0**x", "square", "pairwise_distance"],
)
@pytest.mark.parametrize("region", [lambda: torchs_cuda_autocast(HALF), autocast])
def test_operations_that_call_a_listed_one_return_fp32(
    call: Callable[..., Any], region: Callable[[], Any]
) -> None:
    """1 / x is not on torch's lists itself: it calls reciprocal, which is."""
    sample = (torch.ones(2, 2).half(), (), {})
    assert dtypes_on_a_gpu(call, sample, region()) == (SINGLE,)


def test_an_operator_is_registered_by_its_method() -> None:
    x = torch.ones(2, 2)
    calls: dict[str, Callable[[], Tensor]] = {
        "__add__": lambda: x + x,
        "__rmul__": lambda: 2 * x,
        "__sub__": lambda: x - x,
        "__rsub__": lambda: 2 - x,
        "__truediv__": lambda: x / x,
        "__rtruediv__": lambda: 2 / x,
        "__mod__": lambda: x % x,
        "__pow__": lambda: x**2,
        "__neg__": lambda: -x,
        "__iadd__": lambda: operator.iadd(x.clone(), x),
        "__itruediv__": lambda: operator.itruediv(x.clone(), x),
    }
    for name, call in calls.items():
        for target in (name, getattr(Tensor, name)):
            with autocast(), register(target, Rule.ALLOW):
                assert call().dtype is torch.float16, name
    with autocast(), register("__matmul__", Rule.DENY):
        assert (x @ x).dtype is torch.float32
