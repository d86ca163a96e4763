"""A network under autocast whose casts are decided before it runs.

The first two calls are traced. If both traces are equal, their graph runs from then on, and no mode
intercepts calls. The assumptions of a trace are compared before each run (`Guard`): the attributes
of every module and of the plain objects that it holds, and the global values that `forward` names.
If something differs, the network is traced again. Inputs of other shapes or dtypes, and evaluation,
have graphs of their own.

Invariant: a graph returns what eager autocast returns under `labkit.gemm.half_storage`, outputs,
gradients, running statistics and random numbers, bit for bit. On a CPU a graph contains that
emulation, even if the mode is not open. A change of anything that a guard compares is detected
before a graph runs; the numbers in a weight are not compared. Without a graph, eager autocast is
used, and `why` gives the reason with the line.

Limits: Python code, such as a print, does not run again. A guard compares neither what a function
called by `forward` looks up nor what lies deeper in an object. Inside lists and dicts it compares
by ==, so that 1, 1.0 and True are one value there, as are 0.0 and -0.0.
"""

from __future__ import annotations

import copy
import inspect
import operator
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from inspect import getattr_static
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_unflatten

from labkit.amp.casting.autocast import autocast, current
from labkit.amp.casting.lists import LISTS
from labkit.amp.graph.passes import cancel, hoist
from labkit.amp.graph.recorder import Call
from labkit.amp.graph.trace import CallTrace, TracedCall, difference, trace
from labkit.amp.masters.convert import uncompiled
from labkit.formats import BF16, FP16, FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.gemm.half_storage import HalfStorage
from labkit.interop import dtype_of

_NUMBERS = (bool, int, float, complex)
_PLAIN = (bool, int, float, str, list, dict, tuple, type(None))
# attributes of a module whose own attributes a guard does not compare
_NOT_OBJECTS = (*_PLAIN, nn.Module, Tensor, FunctionType, ModuleType, type)
# types of arguments whose value does not change
_CONSTANTS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)
# traces of one kind of call that may differ, before eager autocast is used for good
TRIES = 6
# kinds of calls (shapes, dtypes and modes) whose decisions are stored at once
KINDS = 32
# the dict that holds a tensor, and its key there
_Origin = tuple[dict[str, Any], str]


@dataclass(frozen=True)
class _GuardedValues:
    """Values that a trace assumes.

    Attributes:
        owner: what the values belong to, for messages: a module's name, a class, "".
        now: the dict with the values as they are now.
        then: a copy of the values as they were. It has all keys of `now`, or, for global values,
            only those that a trace assumes.
        only_these: whether further keys of `now` do not matter.
    """

    owner: str
    now: dict[str, Any]
    then: dict[str, Any]
    only_these: bool = False

    @cached_property
    def _numbers(self) -> dict[str, object]:
        return {key: value for key, value in self.then.items() if type(value) in _NUMBERS}

    def is_unchanged(self) -> bool:
        """Return whether the values are equal, in a few fast comparisons.

        Raises:
            RuntimeError, ValueError: a tensor or an array was replaced by another one, whose
                comparison has no truth value.
        """
        if self.only_these:
            equal = self.then.items() <= self.now.items()
        else:
            equal = self.now == self.then
        return equal and self._has_same_numbers()

    def _has_same_numbers(self) -> bool:
        """Return whether equal numbers have one type and one sign: 1 is not 1.0, nor 0.0 -0.0."""
        # a number that was not set again is the same object; this loop runs in C
        if all(map(operator.is_, map(self.now.get, self._numbers), self._numbers.values())):
            return True
        return all(_is_same(self.now.get(key), then) for key, then in self._numbers.items())

    def changed_key(self) -> str | None:
        """Return the key of a value that has changed, or None."""
        keys = self.then.keys() if self.only_these else self.then.keys() | self.now.keys()
        for key in keys:
            try:
                # in lists, identical objects are equal without a comparison
                same = bool([self.now.get(key)] == [self.then.get(key)])
                if key in self._numbers:
                    same = _is_same(self.now.get(key), self.then[key])
            except (RuntimeError, ValueError):
                same = False
            if not same:
                return key
        return None


def _is_same(one: object, other: object) -> bool:
    """Return whether two numbers have one type and one text, which the sign of zero is part of."""
    return type(one) is type(other) and repr(one) == repr(other)


class Guard:
    """The assumptions of a trace about a model's attributes and about global values."""

    def __init__(self, model: nn.Module) -> None:
        self._guarded: list[_GuardedValues] = []
        objects: list[object] = []
        for name, module in model.named_modules():
            self._add(name, vars(module))
            objects += [v for v in vars(module).values() if not isinstance(v, _NOT_OBJECTS)]
        for value in objects:
            if hasattr(value, "__dict__"):
                self._add(type(value).__name__, vars(value))
        for module_type in {type(module) for module in model.modules()}:
            forward = getattr_static(module_type, "forward", None)
            if isinstance(forward, FunctionType) and not forward.__module__.startswith("torch."):
                self._add_globals(forward)

    def _add(self, owner: str, attributes: dict[str, Any]) -> None:
        self._guarded.append(_GuardedValues(owner, attributes, _copy_containers(attributes)))

    def _add_globals(self, function: FunctionType) -> None:
        """Guard the global values of plain types that a function names."""
        values = function.__globals__
        then = {
            name: _copy_containers(values[name])
            for name in function.__code__.co_names
            if name in values and isinstance(values[name], _PLAIN)
        }
        if then:
            self._guarded.append(_GuardedValues("the global value", values, then, only_these=True))

    def changed(self) -> str:
        """Return the name of something that has changed, or ""."""
        try:
            if all(guarded.is_unchanged() for guarded in self._guarded):
                return ""
        except (RuntimeError, ValueError):
            pass
        for guarded in self._guarded:
            key = guarded.changed_key()
            if key is not None:
                return f"{guarded.owner} {key}".strip()
        return ""


def assumed_properties(leaf: object) -> Hashable:
    """Return the properties of an argument that a trace assumes, such as a tensor's shape."""
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad
    # 0.0 equals -0.0, and NaN does not equal itself
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)
    if isinstance(leaf, _CONSTANTS):
        return type(leaf), leaf
    # such a call has no graph
    return (type(leaf),)


def why_without_graph(model: nn.Module, leaves: list[Any]) -> str:
    """Return why a call with these arguments runs without a graph, or "".

    Hooks must run each time. A tensor must not be passed twice, since a graph distinguishes its
    arguments. Any other object may hold other values at the next call.
    """
    for leaf in leaves:
        if not isinstance(leaf, (Tensor, *_CONSTANTS)):
            return (
                f"an argument is a {type(leaf).__name__}, which may hold other values at each "
                "call; pass tensors and numbers"
            )
    inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    for name, module in model.named_modules():
        if (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
        ):
            return (
                f"module {name!r} has a hook, which is Python and has to run each time; without it "
                "there is a graph"
            )
    own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    distinct = own | {id(tensor) for tensor in inputs}
    if len(distinct) < len(own) + len(inputs):
        return "an input is passed twice, or is a weight of the network"
    return ""


def _copy_containers(value: Any) -> Any:
    """Return a copy of a dict or list and of those inside it; anything else is not copied."""
    if isinstance(value, dict):
        return {key: _copy_containers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_copy_containers(item) for item in value]
    return value


@dataclass
class Decided:
    """The decisions on one kind of call.

    Calls of one kind have inputs of the same shapes and dtypes, and the same modes of torch.

    Attributes:
        trace: the last trace.
        tensors: the origin of each of the graph's arguments after the inputs: a dict and a key.
        guard: the assumptions of the trace.
        run: the function that runs the graph, or None without one.
        graph: the graph that it runs.
        removed: the casts that the passes removed.
        linked: the casts that became links to a hoisted one.
        tries: how many calls were traced since there was a graph.
        why: why there is no graph, or "" if there is one or may be one later.
    """

    trace: CallTrace | None = None
    tensors: list[_Origin] = field(default_factory=list)
    guard: Guard | None = None
    run: Callable[..., Any] | None = None
    graph: fx.Graph | None = None
    removed: list[Call] = field(default_factory=list)
    linked: list[Call] = field(default_factory=list)
    tries: int = 0
    why: str = ""

    def is_valid(self) -> bool:
        """Return whether the assumptions of the last trace are still true."""
        return self.guard is not None and not self.guard.changed()


class CastGraph:
    """A network whose casts are decided once; called like the network, in a region of autocast.

    Outside of such a region, or under another mode that intercepts operations, the network itself
    is called. A mode with the attribute `intercepts_operations = False` does not change operations,
    so the graph runs under it.

    Args:
        model: a network with FP32 weights. If it was compiled, in place or not, the graph is
            compiled with the same options.
        format: FP16 or BF16, the format of the region.

    Raises:
        TypeError: model is not a module, or format is not a format.
        ValueError: format is another one.

    >>> from labkit.formats import FP16
    >>> graph = CastGraph(nn.Linear(2, 1), FP16)
    >>> for _ in range(3):
    ...     with autocast():
    ...         y = graph(torch.ones(4, 2))
    >>> y.dtype, graph.why, graph.decided.run is not None
    (torch.float16, '', True)
    """

    def __init__(self, model: nn.Module, format: FormatLike) -> None:
        require_kind(model, nn.Module, "model")
        self.model = model
        self.format = as_format(format)
        if self.format not in (FP16, BF16):
            raise ValueError(
                f"format: expected FP16 or BF16, got {self.format.name}. Other formats are "
                "emulated: call the network itself."
            )
        self.decided = Decided()
        self._kinds: dict[Hashable, Decided] = {}
        # the autocast lists that the decisions follow
        self._table = LISTS.table
        self._warned = set[str]()

    @property
    def why(self) -> str:
        """Why the last call in such a region used no graph; "" if it did, or later calls will."""
        return self.decided.why

    def __getstate__(self) -> dict[str, Any]:
        # a copy traces its own network
        return {"model": self.model, "format": self.format}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network, or its graph."""
        if not self._is_applicable():
            return self.model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            leaves: list[Any]
            spec: Hashable
            # most calls have only tensors, which need not be flattened
            if not kwargs and all(isinstance(arg, Tensor) for arg in args):
                leaves = list(args)
                spec = len(args)
            else:
                leaves, spec = tree_flatten((args, kwargs))
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            kind = self._kind(leaves, spec)
            if kind.run is not None and kind.is_valid():
                self.decided = kind
                return _run(kind, inputs)
            why = why_without_graph(self.model, leaves)
        if why:
            self.decided = Decided(why=why)
            return self.model(*args, **kwargs)
        # this kind has no graph, and nothing has changed since, or each call changes something
        if kind.why and (kind.tries >= TRIES or kind.is_valid()):
            self.decided = kind
            return self.model(*args, **kwargs)
        return self._trace(kind, inputs, args, kwargs)

    def _is_applicable(self) -> bool:
        """Return whether the region is a plain one of this format and no other mode is active."""
        region = current()
        if (
            type(region) is not autocast
            or region.listen is not None
            or region.accumulator is not None
        ):
            return False
        # a hook of all modules is Python code that must run each time
        if torch.nn.modules.module._has_any_global_hook():
            return False
        for mode in _get_current_function_mode_stack():
            if (
                mode is not region
                and type(mode) is not HalfStorage
                and getattr(mode, "intercepts_operations", True)
            ):
                return False
        return region.lower.dtype is dtype_of(self.format)

    def _kind(self, leaves: list[Any], spec: Hashable) -> Decided:
        """Return the decisions on calls of this kind."""
        # an operation was registered: decide again
        if self._table is not LISTS.table:
            self._kinds.clear()
            self._table = LISTS.table
        key = (
            spec,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            self.model.training,
            *[assumed_properties(leaf) for leaf in leaves],
        )
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS:
                oldest = next(iter(self._kinds))
                del self._kinds[oldest]
            kind = Decided()
            self._kinds[key] = kind
        return kind

    def _trace(
        self,
        kind: Decided,
        inputs: list[Tensor],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the network itself, and trace it."""
        model = uncompiled(self.model)
        self.decided = kind
        kind.run = None
        kind.why = ""
        guard = Guard(model)
        kind.guard = guard
        with _no_modes() as modes:
            passive = [mode for mode in modes if not getattr(mode, "intercepts_operations", True)]
            traced = trace(model, self.format, inputs, args, kwargs, passive)
        # a call that raised an error is not a try: it says nothing about the next one
        kind.tries += 1
        self._decide(kind, traced, traced.sources[len(inputs) :], guard.changed())
        if kind.why and kind.why not in self._warned:
            self._warned.add(kind.why)
            warnings.warn(
                "no graph of this network, so eager autocast is used, with the same numbers. "
                f"{kind.why}. Fix that, or use graph=False.",
                stacklevel=4,
            )
        return traced.out

    def _decide(
        self, kind: Decided, traced: TracedCall, tensors: list[Tensor], changed: str
    ) -> None:
        """Build a graph from a trace that equals the last one, or record why there is none.

        Args:
            kind: the decisions so far, with the last trace.
            traced: the call that was just traced.
            tensors: the sources of the trace, without the inputs.
            changed: what `forward` changed in the call, or "".
        """
        last = kind.trace
        last_tensors = kind.tensors
        kind.trace = traced.trace
        if traced.trace is None:
            kind.why = traced.problem
            return
        kind.tensors = _origins(uncompiled(self.model), tensors)
        differs = difference(last, traced.trace)
        if not differs:
            ids_before = [id(owner[name]) for owner, name in last_tensors]
            if ids_before != [id(tensor) for tensor in tensors]:
                differs = "a tensor is another one in each call, and not of a module"
        if last is not None and not changed and not differs:
            self._build_graph(kind, traced.trace)
        elif kind.tries >= TRIES:
            kind.why = f"it differs from call to call: {differs}"
            if changed:
                kind.why = f"forward changes {changed}"

    def _build_graph(self, kind: Decided, traced: CallTrace) -> None:
        """Apply the passes to a trace, and make a function of the graph."""
        try:
            kind.graph = copy.deepcopy(traced.graph)
            kind.removed = cancel(kind.graph)
            kind.linked = hoist(kind.graph)
            module = fx.GraphModule({}, kind.graph)
        except (RuntimeError, NotImplementedError, SyntaxError) as error:
            kind.why = f"torch.fx cannot write it: {error}"
            return
        kind.run = self._compiled(kind.graph, module.forward)
        # traces after a later change of the model begin a new count
        kind.tries = 0

    def _compiled(self, graph: fx.Graph, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that runs a graph, compiled if the network was compiled."""
        # torch.compile(model) stores its options in `dynamo_ctx`; model.compile() leaves them in
        # the closure of a function
        options = getattr(self.model, "dynamo_ctx", None)
        in_place = self.model._compiled_call_impl
        if options is None and in_place is not None:
            options = inspect.getclosurevars(in_place).nonlocals.get("self")
        if options is None:
            return forward
        own = {
            node.target
            for node in graph.nodes
            if getattr(node.target, "__module__", "").startswith("labkit.")
        }
        for function in own:
            if getattr(function, "is_custom", False):
                warnings.warn(
                    f"the graph runs, but is not compiled: {function.__name__} runs under the "
                    "modes, as in eager.",
                    stacklevel=7,
                )
                return forward
        # torch.compile cannot trace into these functions, so each stays one operation
        for function in own:
            torch.compiler.allow_in_graph(function)
        return options(forward)  # type: ignore[no-any-return]


def _run(kind: Decided, inputs: list[Tensor]) -> Any:
    """Run a graph, on the inputs and on the current tensors of the modules."""
    assert kind.run is not None
    assert kind.trace is not None
    grad = torch.is_grad_enabled()
    try:
        results = kind.run(*inputs, *[owner[name] for owner, name in kind.tensors])
    finally:
        if torch.is_grad_enabled() != grad:
            torch._C._set_grad_enabled(grad)
    spec = kind.trace.spec
    if spec.is_leaf():
        return results[0]
    return tree_unflatten(results, spec)


def _origins(model: nn.Module, tensors: list[Tensor]) -> list[_Origin]:
    """Return the dict and the key of each tensor: in a module, or of its own for a constant."""
    owned: dict[int, _Origin] = {}
    for module in model.modules():
        for owner in (vars(module), module._buffers, module._parameters):
            for name, value in owner.items():
                if isinstance(value, Tensor):
                    owned[id(value)] = (owner, name)
    return [owned.get(id(tensor), ({"constant": tensor}, "constant")) for tensor in tensors]


@contextmanager
def _no_modes() -> Iterator[list[TorchFunctionMode]]:
    """Disable all modes in the block; the block gets the list of them, outermost first."""
    modes = list(_get_current_function_mode_stack())
    for _ in modes:
        torch._C._pop_torch_function_stack()
    try:
        yield modes
    finally:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)
