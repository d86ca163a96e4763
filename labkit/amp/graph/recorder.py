"""A recorder of the calls that reach torch, as nodes of a graph of torch.fx.

Idea: Python code may depend on a shape, and a graph keeps what the code decided. So a shape must
not depend on the numbers in a tensor. torch says so itself: while a call runs, a mode below it sees
whether torch reads a number out of a tensor, as it does for each size that a tensor gives.

Invariant: a recorded run returns the same as an unrecorded one. An operation that a graph cannot
hold, or that may differ the next time, ends the record with a reason and a line number, and the run
continues.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import _get_qualified_name
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.amp.casting.casts import NATIVE
from labkit.amp.casting.lists import Entry, Rule
from labkit.instrument.user_code import is_library
from labkit.modes import mapped

# dtype -> the method of Tensor that casts to it
METHODS = {dtype: method.__name__ for dtype, method in NATIVE.items()}
# types of the arguments, beside tensors, that a graph can hold
_PLAIN = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their results depend only on the shapes, dtypes and devices of the inputs.
_FACTS = frozenset(
    [
        "__get__",
        "__len__",
        "__hash__",
        "__format__",
        "__repr__",
        "size",
        "dim",
        "ndimension",
        "numel",
        "nelement",
        "stride",
        "storage_offset",
        "element_size",
        "is_contiguous",
        "is_floating_point",
        "is_complex",
        "is_signed",
        "is_same_size",
        "is_tensor",
        "get_device",
        "result_type",
        "can_cast",
        "promote_types",
        "broadcast_shapes",
        "has_names",
        "is_inference",
        "is_storage",
        "is_pinned",
    ]
)
# The shape of their results depends on numbers, which they need not read one by one.
_DATA_SHAPED = frozenset(
    [
        "nonzero",
        "argwhere",
        "masked_select",
        "unique",
        "unique_consecutive",
        "unique_dim",
        "_unique",
        "_unique2",
        "bincount",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
        "to_sparse",
        "to_sparse_bsc",
        "to_sparse_bsr",
        "to_sparse_csc",
        "to_sparse_csr",
    ]
)
# types of arguments, as a schema of torch writes them, that never size a result
_VALUE_TYPES = frozenset(
    [
        "Tensor",
        "Optional[Tensor]",
        "List[Tensor]",
        "List[Optional[Tensor]]",
        "number",
        "Optional[number]",
        "float",
        "Optional[float]",
        "bool",
        "Optional[bool]",
    ]
)
# These take numbers of such types, but size their results by them.
_SIZED_BY_VALUES = frozenset(["arange", "range"])
# integers that choose elements, and size nothing: operation -> position and name of the argument
_CHOICES: dict[str, tuple[int | str, ...]] = {
    "select": (2, "index"),
    "narrow": (2, "start"),
    "roll": (1, "shifts"),
    "tril": (1, "diagonal"),
    "triu": (1, "diagonal"),
}
# These read numbers for a text, which a graph does not repeat.
_TEXTS = frozenset(["__format__", "__repr__"])
# With a mask, the shape of their results depends on numbers; by their tags, it always does.
_INDEXING = torch.ops.aten.index.Tensor
_ONE_HOT = torch.ops.aten.one_hot.default


@dataclass(frozen=True)
class Call:
    """One call that reached torch, as `node.meta["call"]`.

    Attributes:
        number: the number of the user's operation that this call is, or belongs to, from 1.
        op: the name of that operation.
        entry: its rule.
        cast: whether this call is a cast that autocast made for the operation.
        dtype: the dtype of the first tensor that the call returned.
        shape: its shape.
        where: file and line of the user's code that called the operation.
    """

    number: int
    op: str
    entry: Entry
    cast: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    where: str = field(compare=False)


@dataclass(frozen=True)
class Source:
    """A tensor that was not made in the trace, as `node.meta["source"]`.

    Attributes:
        dtype: its dtype.
        weight: whether it is an FP32 leaf that requires a gradient.
        gradient: whether it requires a gradient.
        written: whether an operation of the trace wrote into it, directly or through a view.
    """

    dtype: torch.dtype
    weight: bool
    gradient: bool
    written: bool


class CallRecorder(TorchFunctionMode):
    """The outermost mode of a traced run, which records the calls that reach torch.

    Attributes:
        graph: the calls, in order; its placeholders are the tensors that were not made in the
            trace: inputs, weights, buffers and constants.
        sources: these tensors, each with its placeholder.
        problem: why the trace has ended, or "".
        paused: whether the calls are part of a call that is recorded as a whole.
        inference: whether inference mode was enabled at the start.
        grad: whether gradients are enabled at the end of the graph so far.
        current: the number, the name and the rule of the user's current operation.
    """

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.graph = fx.Graph()
        self.sources = list[tuple[fx.Node, Tensor]]()
        self.problem = ""
        self.paused = False
        self.inference = torch.is_inference_mode_enabled()
        self.grad = torch.is_grad_enabled()
        self.current: tuple[int, str, Entry] = (0, "", Entry(Rule.KEEP, "outside of autocast"))
        # id of a tensor -> its node, and the tensor, so that no other tensor gets its id
        self._nodes: dict[int, tuple[fx.Node, Tensor]] = {}
        # torch's counts of the changes of each source, when the trace first met it
        self._versions: list[int] = []
        for tensor in inputs:
            self._source(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.ended:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        data_shaped = _is_data_shaped(name, args, kwargs)
        reads = _Reads()
        # before the call, which may write into its arguments
        target, arguments = _as_graph_call(func, name, args)
        arguments, keywords = self.to_nodes((arguments, kwargs))
        with _seen_by(reads):
            out = func(*args, **kwargs)
        is_iterator = name == "__iter__"
        if is_iterator:
            # a graph cannot hold an iterator
            name = "unbind"
            target = "unbind"
            out = list(out)
        # `to_nodes`, or a call inside this one, may have ended the trace
        if not self.ended:
            data_shaped = data_shaped or reads.data_shaped
            sized = reads.number and not _reads_values_only(name, args, kwargs)
            refusal = self._refusal(name, data_shaped, sized, arguments, keywords, out)
            if refusal:
                self.refuse(refusal)
            elif name == "__setitem__" or _holds(out, Tensor):
                self.append(target, arguments, keywords, out)
        return iter(out) if is_iterator else out

    def _refusal(
        self, name: str, data_shaped: bool, sized: bool, arguments: Any, keywords: Any, out: Any
    ) -> str:
        """Return why a graph cannot hold a call, or "".

        Args:
            name: the name of the operation.
            data_shaped: whether the shape of the result depends on the numbers in a tensor.
            sized: whether a number that was read out of a tensor may size the result.
            arguments: the arguments, with nodes for tensors.
            keywords: the keyword arguments, with nodes for tensors.
            out: what the call returned.
        """
        if torch._C._are_functorch_transforms_active():
            return (
                f"{name} is called inside a transform of torch.func, which replaces tensors by "
                "others"
            )
        if torch.is_inference_mode_enabled() != self.inference:
            return "inference mode is switched in the middle"
        if data_shaped:
            return f"the shape of what {name} returns depends on the numbers in a tensor"
        returns_tensor = name == "__setitem__" or _holds(out, Tensor)
        if not returns_tensor and name not in _FACTS and _holds((arguments, keywords), fx.Node):
            return (
                f"{name} tells Python what is in a tensor, and with other numbers it may continue "
                "differently"
            )
        if sized and name not in _TEXTS:
            return (
                f"{name} reads a number out of a tensor, and with another number the shape of what "
                "it returns may differ"
            )
        return ""

    @property
    def ended(self) -> bool:
        """Whether calls are not recorded, because of a problem or inside a recorded call."""
        return self.paused or bool(self.problem)

    def begin(self, name: str, entry: Entry) -> None:
        """Start an operation of the user's, to which the following calls belong."""
        number = self.current[0] + 1
        self.current = (number, name, entry)

    def record_cast(self, tensor: Tensor, result: Tensor) -> None:
        """Record a cast of autocast for the current operation, unless it changed nothing."""
        if result is not tensor and not self.ended:
            self.append(METHODS[result.dtype], (self.to_nodes(tensor),), {}, result, cast=True)

    def refuse(self, why: str) -> None:
        """End the trace with a reason; the first one stays."""
        if not self.problem:
            self.problem = f"{line_in_user_code()}: {why}"

    def to_nodes(self, values: Any) -> Any:
        """Return any values with a node for each tensor; refuse values that a graph cannot hold."""
        for leaf in tree_leaves(values):
            if not _is_holdable(leaf):
                self.refuse(_why_not_holdable(leaf))
        return mapped(values, self._node)

    def append(self, target: Any, args: Any, kwargs: Any, out: Any, cast: bool = False) -> None:
        """Record a call.

        Args:
            target: the name of a method of Tensor, or a function.
            args: the arguments, with nodes for tensors.
            kwargs: the keyword arguments, with nodes for tensors.
            out: what the call returned.
            cast: whether it is a cast of autocast.
        """
        self._set_grad(torch.is_grad_enabled())
        # x.half() does the same as x.to(torch.float16), in half the time
        if target == "to" and len(args) == 2 and not kwargs and args[1] in METHODS:
            target = METHODS[args[1]]
            args = args[:1]
        if isinstance(target, str):
            node = self.graph.call_method(target, args, kwargs)
        else:
            function = target if _has_its_name(target) else _wrapped(target)
            node = self.graph.call_function(function, args, kwargs)
        number, op, entry = self.current
        # A call that returns no tensor, such as `x[0] = 1`, is noted as one of bool: no number
        # format has this dtype.
        dtype = torch.bool
        shape: tuple[int, ...] = ()
        tensors = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        with torch._C.DisableTorchFunction():
            if tensors:
                dtype = tensors[0].dtype
                shape = tuple(tensors[0].shape)
            node.meta["call"] = Call(
                number=number,
                op=op,
                entry=entry,
                cast=cast,
                dtype=dtype,
                shape=shape,
                where=line_in_user_code(),
            )
            self._name_results(node, out)

    def _set_grad(self, enabled: bool) -> None:
        """Switch gradients in the graph where they were switched in the run."""
        if enabled != self.grad:
            self.graph.call_function(torch._C._set_grad_enabled, (enabled,))
            self.grad = enabled

    def _name_results(self, node: fx.Node, out: Any) -> None:
        """Record the node of each tensor in a result, which may be nested."""
        if isinstance(out, Tensor):
            self._nodes[id(out)] = (node, out)
        elif isinstance(out, list | tuple):
            for index, part in enumerate(out):
                if isinstance(part, Tensor | list | tuple):
                    part_node = self.graph.call_function(operator.getitem, (node, index))
                    if isinstance(part, Tensor):
                        part_node.meta["dtype"] = part.dtype
                    self._name_results(part_node, part)

    def _node(self, tensor: Tensor) -> fx.Node:
        if id(tensor) not in self._nodes:
            with torch._C.DisableTorchFunction():
                if tensor.grad_fn is not None:
                    self.refuse(
                        "a tensor was made where torch shows no call: in torch.jit, or an extension"
                    )
            self._source(tensor)
        return self._nodes[id(tensor)][0]

    def _source(self, tensor: Tensor) -> None:
        """Record a tensor that was not made in the trace, after the other placeholders."""
        if id(tensor) in self._nodes:
            return
        # the placeholders of a graph come first
        if self.sources:
            last, _ = self.sources[-1]
            insertion = self.graph.inserting_after(last)
        else:
            insertion = self.graph.inserting_before()
        with insertion:
            node = self.graph.placeholder(f"source_{len(self.sources)}")
        self._nodes[id(tensor)] = (node, tensor)
        self.sources.append((node, tensor))
        self._versions.append(_version_of(tensor))

    def finish(self, results: list[Any], grad: bool) -> fx.Graph:
        """End the graph and return it.

        Args:
            results: the nodes of the output.
            grad: whether gradients are enabled after the run.
        """
        self._set_grad(grad)
        self.graph.output(tuple(results))
        for (node, tensor), version in zip(self.sources, self._versions, strict=True):
            weight = tensor.requires_grad and tensor.is_leaf and tensor.dtype is torch.float32
            node.meta["source"] = Source(
                tensor.dtype,
                weight=weight,
                gradient=tensor.requires_grad,
                written=_version_of(tensor) != version,
            )
        return self.graph


class _Reads(TorchDispatchMode):
    """A mode that sees what one call reads out of tensors, and changes nothing.

    torch reads a size that a tensor gives by `item`, which no mode of functions sees.

    Attributes:
        number: whether a number was read out of a tensor.
        data_shaped: whether an operation ran whose result has a shape that depends on numbers.
    """

    # operations such as flex_attention raise an error under a mode that does not say so
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = False
        self.data_shaped = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        tags = getattr(func, "tags", ())
        if torch.Tag.data_dependent_output in tags:
            self.number = True
        elif func is _INDEXING:
            self.data_shaped |= _is_masked(args)
        elif torch.Tag.dynamic_output_shape in tags and func is not _ONE_HOT:
            self.data_shaped = True
        return func(*args, **(kwargs or {}))


def _seen_by(reads: _Reads) -> AbstractContextManager[Any]:
    """Return a context in which a mode sees the operations; transforms of torch.func have none."""
    return nullcontext() if torch._C._are_functorch_transforms_active() else reads


def _version_of(tensor: Tensor) -> int:
    """Return torch's count of a tensor's changes; 0 for tensors of inference mode, without one."""
    with torch._C.DisableTorchFunction():
        return 0 if tensor.is_inference() else tensor._version


def _as_graph_call(func: Any, name: str, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the target and the arguments with which a graph makes a call."""
    # a graph reads an attribute by getattr, and calls a method by its name
    if name == "__get__":
        return getattr, (args[0], func.__self__.__name__)
    for method in (name, f"__{name}__"):
        if getattr(Tensor, method, None) is func:
            return method, args
    return func, args


def _holds(values: Any, kind: type) -> bool:
    """Return whether any container holds an object of a type."""
    return any(isinstance(leaf, kind) for leaf in tree_leaves(values))


def _is_holdable(value: object) -> bool:
    """Return whether a graph can hold an argument."""
    if isinstance(value, slice):
        return not _unholdable_bounds(value)
    return value is None or value is Ellipsis or isinstance(value, (Tensor, *_PLAIN))


def _unholdable_bounds(value: slice) -> list[object]:
    """Return the bounds of a slice that a graph cannot hold."""
    bounds = (value.start, value.stop, value.step)
    return [bound for bound in bounds if bound is not None and not isinstance(bound, int)]


def _why_not_holdable(value: object) -> str:
    """Return why a graph cannot hold an argument."""
    if not isinstance(value, slice):
        return f"a {type(value).__name__} is not a value that a graph can hold"
    bound = _unholdable_bounds(value)[0]
    if isinstance(bound, Tensor):
        return (
            "a bound of a slice is a tensor, and with another number in it the slice has another "
            "shape"
        )
    return f"a bound of a slice has the type {type(bound).__name__}, which a graph cannot hold"


def _reads_values_only(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return whether no number that a call reads out of its tensors can size its result.

    The schemas of the operation say so: each tensor is where they take a tensor, or a number that
    is no size. Any argument of an operation without a schema, such as a function in Python,
    may be a size.
    """
    # a tensor as an index chooses one element; as a bound of a slice it was refused
    if name in ("__getitem__", "__setitem__"):
        return True
    if name in _SIZED_BY_VALUES:
        return False
    places = [
        place
        for place, argument in (*enumerate(args), *kwargs.items())
        if _holds(argument, Tensor) and place not in _CHOICES.get(name, ())
    ]
    return all(_takes_values(name, place) for place in places)


@cache
def _takes_values(name: str, place: int | str) -> bool:
    """Return whether an argument of an operation, by position or name, is never a size."""
    types = set()
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{name}"):
        # others are operations of TorchScript on numbers and lists
        if not any("Tensor" in str(result.type) for result in schema.returns):
            continue
        for position, argument in enumerate(schema.arguments):
            # torch's functions name it "input", and its schemas "self"
            own_name = "input" if argument.name == "self" else argument.name
            if place == own_name or (place == position and not argument.kwarg_only):
                types.add(str(argument.type))
    return bool(types) and types <= _VALUE_TYPES


def _is_data_shaped(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether the shape of a call's result depends on the numbers in a tensor."""
    if name in _DATA_SHAPED:
        return True
    if name == "__getitem__":
        return _is_masked(args)
    # without the two tensors to choose from, the result has the indices
    if name == "where":
        return len(args) + len(kwargs) == 1
    if name == "one_hot":
        # -1, the default, is one class more than the largest number
        classes = args[1] if len(args) > 1 else kwargs.get("num_classes", -1)
        return isinstance(classes, Tensor) or classes == -1
    # with one argument, a tensor, it returns indices
    if name == "repeat_interleave":
        repeats = args[1] if len(args) > 1 else kwargs.get("repeats")
        return not isinstance(repeats, int)
    if name == "tensor_split":
        return _holds((args[1:], kwargs.get("tensor_indices_or_sections")), Tensor)
    return False


def _is_masked(args: Any) -> bool:
    """Return whether an index holds a boolean mask."""
    indices = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, Tensor)]
    with torch._C.DisableTorchFunction():
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def _has_its_name(function: Callable[..., Any]) -> bool:
    """Return whether torch.fx can write a function by its name: whether the name leads to it."""
    value: Any = torch
    for part in _get_qualified_name(function).removeprefix("torch.").split("."):
        value = getattr(value, part, None)
    return value is function or not function.__module__.startswith("torch")


@cache
def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of this module that calls another one.

    torch.fx writes only the functions of torch by their names.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = function.__name__
    call.__qualname__ = function.__name__
    return call


def line_in_user_code() -> str:
    """Return file and line of the innermost frame that is neither torch's nor the lab's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
