"""Traces: the operations of a network with the casts of autocast, as a graph of torch.fx.

Idea: the network runs once under autocast and `half_storage`, and the outermost mode records the
calls that reach torch (`CallRecorder`). Autocast's casts are recorded, too, each with the operation
that it belongs to. A trace is a record of eager autocast, so it equals eager autocast.

Invariant: a traced run returns the same as an untraced one.

Limits: Python code without tensors is not traced. A graph does not repeat a print, and reads no
global variable again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import TreeSpec, tree_flatten

from labkit.amp.casting.autocast import autocast
from labkit.amp.casting.lists import Entry, Rule
from labkit.amp.graph.recorder import Call, CallRecorder
from labkit.formats import Format
from labkit.gemm import half_storage
from labkit.modes import ATTRIBUTE, nested_contexts
from labkit.modes.replacing import Replacement


@dataclass(frozen=True)
class CallTrace:
    """A recorded run. Two runs of one network under the same circumstances have equal lines.

    Attributes:
        graph: the calls, on the sources: the inputs first, then weights, buffers and constants.
        spec: how the graph's results were nested.
        lines: one for each node of the graph.
    """

    graph: fx.Graph
    spec: TreeSpec
    lines: list[TraceLine]


class TraceLine(NamedTuple):
    """A node of a graph, in values that can be compared with those of another graph.

    Attributes:
        target: the name of a method or of a placeholder, or a function.
        arguments: the arguments, as text.
        descriptions: what the recorder notes about the node: a `Call` or a `Source`, the dtype of a
            tensor that is a part of a result, or nothing.
    """

    target: Callable[..., Any] | str
    arguments: str
    descriptions: tuple[Any, ...]

    @property
    def call(self) -> Call | None:
        """The call that this node is, or None."""
        for description in self.descriptions:
            if isinstance(description, Call):
                return description
        return None


class TracedCall(NamedTuple):
    """The result of a traced call.

    Attributes:
        out: what the model returned.
        trace: the trace, or None if there is a problem.
        sources: the tensors of the trace's placeholders.
        problem: why there is no trace, or "".
    """

    out: Any
    trace: CallTrace | None
    sources: list[Tensor]
    problem: str


def trace(
    model: Callable[..., Any],
    format: Format,
    inputs: list[Tensor],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    modes: Sequence[AbstractContextManager[Any]] = (),
) -> TracedCall:
    """Call a model under autocast, and trace the call.

    Args:
        model: the model, or any function of tensors.
        format: the format that autocast casts to.
        inputs: the tensors in the arguments.
        args: the arguments.
        kwargs: the keyword arguments.
        modes: modes to enter inside of the recording, which change no operation.
    """
    recorder = CallRecorder(inputs)
    device = inputs[0].device if inputs else torch.device("cpu")
    random_state = _random_state()
    grad = torch.is_grad_enabled()

    def contexts() -> Iterator[AbstractContextManager[Any]]:
        yield recording_functions()
        # A part of the network may be compiled, and a trace needs its Python code. The stance is
        # set when it is made, so it is made when it is entered.
        if "torch._dynamo" in sys.modules:
            yield torch.compiler.set_stance("force_eager")
        yield recorder
        yield half_storage(device)
        yield TracedAutocast(format, recorder)
        yield from modes

    with nested_contexts(contexts):
        out = model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            leaves, spec = tree_flatten(out)
            results = recorder.to_nodes(leaves)
    if random_state != _random_state():
        recorder.refuse(
            "forward draws from Python's or numpy's random numbers, or sets torch's seed"
        )
    if recorder.problem:
        return TracedCall(out, None, [], recorder.problem)
    graph = recorder.finish(results, grad)
    lines = [
        TraceLine(node.target, repr((node.args, node.kwargs)), tuple(node.meta.values()))
        for node in graph.nodes
    ]
    sources = [tensor for _, tensor in recorder.sources]
    return TracedCall(out, CallTrace(graph, spec, lines), sources, problem="")


class TracedAutocast(autocast):
    """Autocast that reports each operation, and the casts for it, to a recorder."""

    sees_all = True

    def __init__(self, format: Format, recorder: CallRecorder) -> None:
        super().__init__(format, cache=False)
        self.recorder = recorder

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        # autocast does not look up the rule of an attribute, but it is an operation of the trace
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
        if change is None:
            return to, None

        def change_and_record(tensor: Tensor) -> Tensor:
            result = change(tensor)
            self.recorder.record_cast(tensor, result)
            return result

        return to, change_and_record


@cache
def applied_eagerly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return a function that applies a custom autograd Function under the active modes, as eager.

    A graph runs without modes, but Python code inside the Function may need them.
    """

    def apply_(*args: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return function.apply(*args)

    # The Function may write into its inputs, so it has the name of an operation that does.
    apply_.__name__ = f"{function.__name__}_"
    apply_.is_custom = True  # type: ignore[attr-defined]
    return apply_


@cache
def _recorded_apply(apply: Any) -> Any:
    """Return `Function.apply` that records each call, if a recorder is active in its thread."""
    plain = apply.__func__

    def apply_and_record(cls: Any, *args: Any, **kwargs: Any) -> Any:
        recorder = _active_recorder()
        if recorder is None:
            return plain(cls, *args, **kwargs)
        nodes = recorder.to_nodes(args)
        recorder.paused = True
        try:
            out = plain(cls, *args, **kwargs)
        finally:
            recorder.paused = False
        if not recorder.problem:
            recorder.append(applied_eagerly(cls), nodes, kwargs, out)
        return out

    return classmethod(apply_and_record)


def _active_recorder() -> CallRecorder | None:
    """Return the recorder of this thread's trace, or None if no calls are recorded now."""
    for mode in _get_current_function_mode_stack():
        if isinstance(mode, CallRecorder) and not mode.ended:
            return mode
    return None


# counts the traces that are running, in any thread: the last one restores torch's method
_APPLY = Replacement(torch.autograd.Function, "apply", _recorded_apply)


@contextmanager
def recording_functions() -> Iterator[None]:
    """Record each custom autograd Function as one call with its own backward pass.

    No mode intercepts `Function.apply`, so it is replaced in the block.
    """
    _APPLY.open()
    try:
        yield
    finally:
        _APPLY.close()


def _random_state() -> tuple[object, str, int]:
    """Return the state of Python's and numpy's global generators, and torch's seed."""
    # user code may draw from numpy's global generator
    of_numpy = repr(np.random.get_state())  # noqa: NPY002
    return random.getstate(), of_numpy, torch.initial_seed()


def difference(last: CallTrace | None, now: CallTrace) -> str:
    """Return the place where two traces differ, or "" if they are equal or `last` is None."""
    if last is None or last.lines == now.lines:
        return ""
    place = "at its end"
    for before, after in zip(last.lines, now.lines, strict=False):
        if before != after and after.call is not None:
            place = f"{after.call.where}, in {after.call.op}"
            break
    return f"{place}. A graph cannot hold what Python decides at each call"
