"""Traces: the operations of a network with the casts of autocast, as a graph of torch.fx.

Idea: the network runs once under autocast and `half_storage`, and the outermost mode records the
calls that reach torch as nodes of a graph. Autocast's casts are nodes, too, each with the operation
that it belongs to. A trace is a record of eager autocast, so it equals eager autocast.

Invariant: a traced run returns the same as an untraced one. An operation that a graph cannot hold,
or that may differ the next time, ends the trace with a reason and a line number, and the run
continues.

Limits: Python code without tensors is not traced. A print, or a global variable, stays as in the
trace.
"""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx
from torch.fx.node import _get_qualified_name
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves

from labkit.amp.casting.autocast import autocast
from labkit.amp.casting.casts import NATIVE
from labkit.amp.casting.lists import Entry, Rule
from labkit.formats import Format
from labkit.gemm import half_storage
from labkit.modes import ATTRIBUTE, mapped, nested_contexts

METHODS = {dtype: method.__name__ for dtype, method in NATIVE.items()}
_LABKIT = Path(__file__).parents[2]
_PACKAGES = ("amp", "frameworks", "gemm", "modes")
_NOT_THE_USERS = (
    str(Path(torch.__file__).parent),
    *(str(_LABKIT / package) for package in _PACKAGES),
)
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
# The shape of their results depends on numbers, and Python code may depend on the shape.
_DATA_SHAPED = frozenset(
    [
        "nonzero",
        "argwhere",
        "masked_select",
        "unique",
        "unique_consecutive",
        "bincount",
        "histc",
        "repeat_interleave",
        "_pack_padded_sequence",
        "_pad_packed_sequence",
    ]
)


@dataclass(frozen=True)
class Call:
    """One call that reached torch, as `node.meta["call"]`.

    Attributes:
        number: the operation of the user's that this is, or belongs to, counted from 1; op, entry:
            its name and rule.
        cast: this is a cast that autocast made for `op`.
        dtype, shape: those of the first tensor that was returned.
        where: file and line of the user's that called it.
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
    """A tensor from before the trace, as `node.meta["source"]`.

    It is marked as a weight, and as one that needs a gradient.
    """

    dtype: torch.dtype
    weight: bool
    gradient: bool


class CallRecorder(TorchFunctionMode):
    """The outermost mode of a traced run, which records the calls that reach torch.

    Attributes:
        graph: the calls, in order; its placeholders are the tensors that were not made in the
            trace: inputs, weights ...
        sources: these tensors, each with its placeholder.
        problem: why there is no trace; "" as long as there is one.
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
        # alive until the end, so that no other tensor has its id
        self._nodes: dict[int, tuple[fx.Node, Tensor]] = {}
        for tensor in inputs:
            self._source(tensor)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.ended:
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        target = func
        arguments = args
        # in a graph, an attribute is read by getattr, and a method called by its name
        if name == "__get__":
            target, arguments = getattr, (args[0], func.__self__.__name__)
        else:
            target = next(
                (m for m in (name, f"__{name}__") if getattr(Tensor, m, None) is func), func
            )
        masked = name == "__getitem__" and _is_masked(args)
        # now: the operation may write in place
        arguments, keywords = self.to_nodes((arguments, kwargs))
        out = func(*args, **kwargs)
        if name == "__iter__":
            name = "unbind"
            target = "unbind"
            out = list(out)
        if self.ended:
            pass
        elif torch._C._are_functorch_transforms_active():
            self.refuse(
                f"{name} is called inside a transform of torch.func, which replaces tensors by "
                "others"
            )
        elif torch.is_inference_mode_enabled() != self.inference:
            self.refuse("inference mode is switched in the middle")
        elif name in _DATA_SHAPED or masked:
            self.refuse(f"the shape of what {name} returns depends on the numbers in a tensor")
        elif name == "__setitem__" or any(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):
            self.append(target, arguments, keywords, out)
        elif name not in _FACTS and any(
            isinstance(leaf, fx.Node) for leaf in tree_leaves((arguments, keywords))
        ):
            self.refuse(
                f"{name} tells Python what is in a tensor, and with other numbers it may go on "
                "differently"
            )
        return out if name != "unbind" or func is Tensor.unbind else iter(out)

    @property
    def ended(self) -> bool:
        """Whether calls are not recorded.

        The trace has a problem, or they are part of a recorded call.
        """
        return self.paused or bool(self.problem)

    def begin(self, name: str, entry: Entry) -> None:
        """Count an operation of the user's, to which the calls that follow belong."""
        self.current = (self.current[0] + 1, name, entry)

    def cast(self, tensor: Tensor, result: Tensor) -> Tensor:
        """Record a cast of autocast for the current operation; return it."""
        if result is not tensor and not self.ended:
            self.append(METHODS[result.dtype], (self.to_nodes(tensor),), {}, result, cast=True)
        return result

    def refuse(self, why: str) -> None:
        """End the trace with a reason."""
        self.problem = self.problem or f"{where()}: {why}"

    def to_nodes(self, values: Any) -> Any:
        """Return values with a node for each tensor.

        End the trace at a value that a graph cannot hold.
        """
        for leaf in tree_leaves(values):
            parts = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else ()
            numbers = isinstance(leaf, slice) and all(
                part is None or isinstance(part, int) for part in parts
            )
            if not (
                numbers or leaf is None or leaf is Ellipsis or isinstance(leaf, (Tensor, *_PLAIN))
            ):
                self.refuse(f"a {type(leaf).__name__} is not a value that a graph can hold")
        return mapped(values, self._node)

    def append(self, target: Any, args: Any, kwargs: Any, out: Any, cast: bool = False) -> None:
        """Record a call, whose arguments are nodes, and name the tensors that it returned."""
        self._set_grad(torch.is_grad_enabled())
        if target == "to" and len(args) == 2 and not kwargs and args[1] in METHODS:
            # the same, in half the time
            target = METHODS[args[1]]
            args = args[:1]
        if not isinstance(target, str) and not _has_its_name(target):
            target = _by_itself(target)
        node = self.graph.create_node(
            "call_method" if isinstance(target, str) else "call_function", target, args, kwargs
        )
        first = next((leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), None)
        with torch._C.DisableTorchFunction():
            dtype, shape = (torch.bool, ()) if first is None else (first.dtype, tuple(first.shape))
            node.meta["call"] = Call(*self.current, cast, dtype, shape, where())
            self._name_results(node, out)

    def _set_grad(self, enabled: bool) -> None:
        if enabled != self.grad:
            self.graph.call_function(torch._C._set_grad_enabled, (enabled,))
            self.grad = enabled

    def _name_results(self, node: fx.Node, out: Any) -> None:
        if isinstance(out, Tensor):
            self._nodes[id(out)] = node, out
        elif isinstance(out, list | tuple):
            for index, part in enumerate(out):
                if isinstance(part, Tensor | list | tuple):
                    self._name_results(
                        self.graph.call_function(operator.getitem, (node, index)), part
                    )

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
        if id(tensor) not in self._nodes:
            with (
                self.graph.inserting_after(self.sources[-1][0])
                if self.sources
                else self.graph.inserting_before()
            ):
                node = self.graph.placeholder(f"source_{len(self.sources)}")
            self._nodes[id(tensor)] = node, tensor
            self.sources.append((node, tensor))

    def finished(self, results: list[Any], grad: bool) -> fx.Graph:
        """Return the graph, whose output are the results."""
        self._set_grad(grad)
        self.graph.output(tuple(results))
        for node, t in self.sources:
            weight = t.requires_grad and t.is_leaf and t.dtype is torch.float32
            node.meta["source"] = Source(t.dtype, weight, t.requires_grad)
        return self.graph


def _is_masked(args: Any) -> bool:
    """Whether an index holds a boolean mask."""
    indices = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, Tensor)]
    with torch._C.DisableTorchFunction():
        return any(index.dtype in (torch.bool, torch.uint8) for index in indices)


def _has_its_name(function: Callable[..., Any]) -> bool:
    """Whether a function of torch is found where its name says; torch.fx writes it by its name."""
    value: Any = torch
    for part in _get_qualified_name(function).removeprefix("torch.").split("."):
        value = getattr(value, part, None)
    return value is function or not function.__module__.startswith("torch")


@cache
def _by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another one, from a module whose functions torch.fx keeps."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = function.__name__
    call.__qualname__ = function.__name__
    return call


def where() -> str:
    """Return file and line of the innermost frame that is neither torch's nor the lab's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True)
class CallTrace:
    """A recorded run. Two of one network under the same circumstances have equal lines.

    Attributes:
        graph: the calls, on the sources: the inputs first, then weights, buffers and constants.
        spec: how the graph's results were nested.
        lines: the target, the arguments and the description of each node.
    """

    graph: fx.Graph
    spec: Any
    lines: list[tuple[Any, ...]]


def trace(
    model: Callable[..., Any],
    format: Format,
    inputs: list[Tensor],
    args: Any,
    kwargs: Any,
    modes: Sequence[Any] = (),
) -> tuple[Any, Any]:
    """Call a model under autocast.

    Returns:
        The call's result, and a (`CallTrace`, source tensors) or why there is none. `modes` are
        open around it as well; they change no operation.
    """
    recorder = CallRecorder(inputs)
    device = inputs[0].device if inputs else torch.device("cpu")
    drawn = _drawn()
    grad = torch.is_grad_enabled()
    # then a part of the network may be: it is traced as it was written
    compiled = "torch._dynamo" in sys.modules
    plain = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    recording = (recording_functions(recorder), plain, recorder, half_storage(device))
    with nested_contexts(lambda: (*recording, TracedAutocast(format, recorder), *modes)):
        out = model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            leaves, spec = tree_flatten(out)
            results = recorder.to_nodes(leaves)
    if drawn != _drawn():
        recorder.refuse(
            "forward draws from Python's or numpy's random numbers, or sets torch's seed"
        )
    if recorder.problem:
        return out, recorder.problem
    graph = recorder.finished(results, grad)
    lines = [
        (node.target, repr((node.args, node.kwargs)), *node.meta.values()) for node in graph.nodes
    ]
    return out, (CallTrace(graph, spec, lines), [tensor for _, tensor in recorder.sources])


class TracedAutocast(autocast):
    """Autocast that reports each operation, and the casts that it makes for it, to a recorder."""

    sees_all = True

    def __init__(self, format: Format, recorder: CallRecorder) -> None:
        super().__init__(format, cache=False)
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # autocast passes these on before it looks at the lists
        if type(func) is ATTRIBUTE:
            self.entry_for(func, func.__name__)
        return super().__torch_function__(func, types, args, kwargs)

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        self.recorder.begin(name, entry)
        return entry

    def call(
        self, function: Callable[..., Any], name: str, entry: Entry, args: Any, kwargs: Any
    ) -> Any:
        self.recorder.begin(name, entry)
        return super().call(function, name, entry, args, kwargs)

    def _decide(self, rule: Rule, args: Any, kwargs: Any) -> Any:
        to, change = super()._decide(rule, args, kwargs)
        return to, change and (lambda tensor: self.recorder.cast(tensor, change(tensor)))


@cache
def applied_eagerly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return a function that applies a custom autograd Function under the active modes.

    Eager autocast does the same.
    """

    def apply_(*args: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return function.apply(*args)

    # the name of an operation in place: it may be one
    apply_.__name__ = f"{function.__name__}_"
    apply_.is_custom = True  # type: ignore[attr-defined]
    return apply_


@contextmanager
def recording_functions(recorder: CallRecorder) -> Iterator[None]:
    """Record each custom autograd Function as one call with its own backward pass.

    No mode intercepts these.
    """
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original.__get__(None, cls)
        stack = _get_current_function_mode_stack()
        if recorder not in stack or recorder.ended:
            return plain(*args, **kwargs)
        nodes = recorder.to_nodes(args)
        recorder.paused = True
        try:
            out = plain(*args, **kwargs)
        finally:
            recorder.paused = False
        if not recorder.problem:
            recorder.append(applied_eagerly(cls), nodes, kwargs, out)
        return out

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


def _drawn() -> Any:
    """Return torch's seed, and the state of random numbers drawn outside torch's functions."""
    # numpy's global generator is the user's, if any
    legacy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), repr(legacy), torch.initial_seed()


def difference(last: CallTrace | None, now: CallTrace) -> str:
    """Say where two traces differ; "" where they do not, or there is one only."""
    if last is None or last.lines == now.lines:
        return ""
    pairs = zip(last.lines, now.lines, strict=False)
    called = next((b[2] for a, b in pairs if a != b and isinstance(b[-1], Call)), None)
    place = "at its end" if called is None else f"{called.where}, in {called.op}"
    return f"{place}. A graph cannot hold what Python decides at each call"
