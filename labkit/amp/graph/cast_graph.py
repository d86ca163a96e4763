"""A network under autocast whose casts are decided before it runs.

The first two calls are traced. If both traces are equal, their graph runs from then on, and no mode
intercepts calls. The assumptions of a trace are compared before each run (`Guard`): the attributes
of every module and of the plain objects that it holds, and the global values that `forward` names.
If something differs, the network is traced again. Inputs of other shapes or dtypes, and evaluation,
have graphs of their own.

Invariant: a graph returns what eager autocast returns, outputs, gradients, running statistics and
random numbers, bit for bit. A change of anything that a guard compares is detected before a graph
runs; the numbers in a weight are not compared. Without a graph, eager autocast is used, and `why`
gives the reason with the line.

Limits: Python code, such as a print, does not run again. A guard compares neither what a function
called by `forward` looks up nor what lies deeper in an object.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
from labkit.amp.graph.trace import Call, CallTrace, difference, trace
from labkit.amp.masters.convert import uncompiled
from labkit.formats import FormatLike, as_format
from labkit.formats.arguments import require_kind
from labkit.gemm.half_storage import HalfStorage
from labkit.interop import dtype_of

_PLAIN = (bool, int, float, str, list, dict, tuple, type(None))
# compared elsewhere, or without attributes
_LOOKED_AT = (*_PLAIN, nn.Module, Tensor, FunctionType, ModuleType, type)
# traces of one kind of call that may differ, before eager autocast is used for good
TRIES = 6
KINDS = 32  # shapes, dtypes and modes that are kept at once


class Guard:
    """The circumstances of a trace: dicts as they are now, and as they were."""

    def __init__(self, model: nn.Module) -> None:
        self.names = [(vars(module), name) for name, module in model.named_modules()]
        objects = [
            v
            for attributes, _ in self.names
            for v in attributes.values()
            if not isinstance(v, _LOOKED_AT)
        ]
        self.names += [(vars(v), type(v).__name__) for v in objects if hasattr(v, "__dict__")]
        self.whole = [(now, _copied(now)) for now, _ in self.names]
        # global values of plain kinds, by forward's names
        self.parts: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for kind in {type(module) for module in model.modules()}:
            forward = getattr_static(kind, "forward", None)
            if isinstance(forward, FunctionType) and not forward.__module__.startswith("torch."):
                known = forward.__globals__
                keys = [
                    n
                    for n in forward.__code__.co_names
                    if n in known and isinstance(known[n], _PLAIN)
                ]
                if keys:
                    self.parts += [(known, {key: _copied(known[key]) for key in keys})]

    def changed(self) -> str:
        """Name something that has changed; "" if nothing has."""
        try:
            if all(now == then for now, then in self.whole) and all(
                t.items() <= now.items() for now, t in self.parts
            ):
                return ""
        # another tensor or array, whose comparison has no truth value
        except (RuntimeError, ValueError):
            pass
        names = {id(now): name for now, name in self.names}
        for now, then in (*self.whole, *self.parts):
            for key in then.keys() | now.keys() if id(now) in names else then.keys():
                try:
                    # a list compares identical objects by identity
                    same = bool([now.get(key)] == [then.get(key)])
                except (RuntimeError, ValueError):
                    same = False
                if not same:
                    return f"{names.get(id(now), 'the global value')} {key}".strip()
        return ""


def described(leaf: Any) -> Any:
    """Return the properties of an argument that a trace assumes, such as a tensor's shape."""
    if isinstance(leaf, Tensor):
        return type(leaf), leaf.shape, leaf.dtype, leaf.device, leaf.requires_grad
    return (type(leaf), leaf) if isinstance(leaf, int | float | str | bool | None) else id(leaf)


def without_graph(model: nn.Module, inputs: list[Tensor]) -> str:
    """Return why a call runs without a graph, or "".

    Hooks must run each time, and no tensor may have two roles.
    """
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
    return (
        ""
        if len(distinct) == len(own) + len(inputs)
        else "an input is passed twice, or is a weight of the network"
    )


def _copied(value: Any) -> Any:
    """Return a container with the containers in it copied, and everything else as it is."""
    if isinstance(value, dict):
        return {key: _copied(item) for key, item in value.items()}
    return [_copied(item) for item in value] if isinstance(value, list) else value


@dataclass
class Decided:
    """The decisions on one kind of call.

    A kind has inputs of the same shapes and dtypes, and gradients or none.

    Attributes:
        trace: the last trace.
        tensors: the source of each of the graph's arguments after the inputs: a dict and a key.
        guard: the assumptions of the trace.
        run: the function that runs the graph, or None without one.
        graph: the graph that it runs.
        gone: the casts that the passes removed.
        linked: the casts that became links to a hoisted one.
        tries: how many calls were traced.
        why: why there is no graph, or "" if there is one or may be one later.
    """

    trace: CallTrace | None = None
    tensors: list[tuple[dict[str, Any], str]] = field(default_factory=list)
    guard: Guard | None = None
    run: Callable[..., Any] | None = None
    graph: fx.Graph | None = None
    gone: list[Call] = field(default_factory=list)
    linked: list[Call] = field(default_factory=list)
    tries: int = 0
    why: str = ""

    def is_valid(self) -> bool:
        """Return whether the assumptions of the last trace are still true."""
        return self.guard is not None and not self.guard.changed()


class CastGraph:
    """A network whose casts are decided once; called like the network, in a region of autocast.

    Outside of such a region, or under a foreign mode that intercepts operations, the network itself
    is called. A mode with the attribute `intercepts_operations = False` leaves all operations of a
    network alone, so the graph runs.

    Args:
        model: with FP32 weights. Of one that was compiled, in place or not, the graph is, with the
            same options.
        format: FP16 or BF16, as the region's.

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
        self.decided = Decided()
        self._kinds: dict[Any, Decided] = {}
        self._table = LISTS.table
        self._warned = set[str]()

    @property
    def why(self) -> str:
        """Why the last call did not use a graph; "" if it did, or later calls will."""
        return self.decided.why

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "format": self.format}  # a copy decides for itself

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the network, or its graph."""
        if not self._is_applicable():
            return self.model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            plain = not kwargs and all(isinstance(arg, Tensor) for arg in args)
            leaves, spec = (list(args), len(args)) if plain else tree_flatten((args, kwargs))
            inputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
            kind = self._kind(leaves, spec)
            if kind.run is not None and kind.is_valid():
                self.decided = kind
                return _run(kind, inputs)
            not_now = without_graph(self.model, inputs)
        if not_now or (kind.why and kind.is_valid()):
            self.decided = Decided(why=not_now) if not_now else kind
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
        # Python code that must run each time
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

    def _kind(self, leaves: list[Any], spec: Any) -> Decided:
        """Return the decisions on calls of this kind."""
        if self._table is not LISTS.table:  # an operation was registered: decide again
            self._kinds.clear()
            self._table = LISTS.table
        now = (
            spec,
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            self.model.training,
        )
        key = (*now, *[described(leaf) for leaf in leaves])
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= KINDS:
                self._kinds.pop(next(iter(self._kinds)))
            kind = Decided()
            self._kinds[key] = kind
        return kind

    def _trace(self, kind: Decided, inputs: list[Tensor], args: Any, kwargs: Any) -> Any:
        """Call the network itself, and trace it."""
        model = uncompiled(self.model)
        last = kind.trace
        self.decided = kind
        kind.run = None
        kind.why = ""
        kind.tries = kind.tries + 1
        guard = Guard(model)
        kind.guard = guard
        with _no_modes() as modes:
            passive = [mode for mode in modes if not getattr(mode, "intercepts_operations", True)]
            out, traced = trace(model, self.format, inputs, args, kwargs, passive)
        self._decide(kind, last, traced, len(inputs), guard.changed())
        if kind.why and kind.why not in self._warned:
            self._warned.add(kind.why)
            warnings.warn(
                "no graph of this network, so eager autocast is used, with the same numbers. "
                f"{kind.why}. Fix that, or use graph=False.",
                stacklevel=4,
            )
        return out

    def _decide(
        self, kind: Decided, last: CallTrace | None, traced: Any, inputs: int, changed: str
    ) -> None:
        """Build a graph from a trace that equals the last one, or record why there is none."""
        if isinstance(traced, str):
            kind.trace = None
            kind.why = traced
            return
        kind.trace, tensors = traced
        before = kind.tensors
        kind.tensors = _origins(uncompiled(self.model), tensors[inputs:])
        differ = difference(last, kind.trace)
        if not differ and [id(owner[name]) for owner, name in before] != [
            id(t) for t in tensors[inputs:]
        ]:
            differ = "a tensor comes from elsewhere, another one each time"
        if not changed and last is not None and not differ:
            try:
                kind.graph = copy.deepcopy(kind.trace.graph)
                kind.gone = cancel(kind.graph)
                kind.linked = hoist(kind.graph)
                module = fx.GraphModule({}, kind.graph)
            except (RuntimeError, NotImplementedError, SyntaxError) as error:
                kind.why = f"torch.fx has no way to write it: {error}"
                return
            kind.run = self._compiled(kind.graph, module.forward)
        elif kind.tries >= TRIES:
            kind.why = (
                f"forward changes {changed}"
                if changed
                else f"it differs from call to call: {differ}"
            )

    def _compiled(self, graph: fx.Graph, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that runs a graph.

        If the network was compiled, compiled with the same options.
        """
        # a function of torch, whose `self` has the options
        in_place = self.model._compiled_call_impl
        known = inspect.getclosurevars(in_place).nonlocals if in_place is not None else {}
        options = getattr(self.model, "dynamo_ctx", known.get("self"))
        if options is None:
            return forward
        own = {
            node.target
            for node in graph.nodes
            if getattr(node.target, "__module__", "").startswith("labkit.")
        }
        function = next((f.__name__ for f in own if getattr(f, "is_custom", False)), None)
        if function is not None:
            warnings.warn(
                f"the graph runs, but is not compiled: {function} runs under the modes, as in "
                "eager.",
                stacklevel=6,
            )
            return forward
        # torch.compile cannot trace into these functions, so each stays one operation
        for target in own:
            torch.compiler.allow_in_graph(target)
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
    return results[0] if len(results) == 1 and spec.is_leaf() else tree_unflatten(results, spec)


def _origins(model: nn.Module, tensors: list[Tensor]) -> list[tuple[dict[str, Any], str]]:
    """Return the owner and the name of each tensor: in a module, or as a constant."""
    owned: dict[int, tuple[dict[str, Any], str]] = {}
    for module in model.modules():
        for owner in (vars(module), module._buffers, module._parameters):
            owned |= {
                id(value): (owner, name)
                for name, value in owner.items()
                if isinstance(value, Tensor)
            }
    return [owned.get(id(tensor), ({"constant": tensor}, "constant")) for tensor in tensors]


@contextmanager
def _no_modes() -> Iterator[list[TorchFunctionMode]]:
    """Remove all modes while a network is traced under modes of its own."""
    modes = list(_get_current_function_mode_stack())
    for _ in modes:
        torch._C._pop_torch_function_stack()
    try:
        yield modes
    finally:
        for mode in modes:
            torch._C._push_on_torch_function_stack(mode)
