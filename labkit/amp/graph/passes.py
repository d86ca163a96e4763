"""Conversion of a trace to a graph, and passes that remove unneeded casts.

Idea: the graph is the trace, in torch.fx: one node for each call, with autocast's casts among them. Two passes follow.
`cancel` removes casts that restore an earlier value, and repeated ones. `hoist` casts a weight with several uses once,
before the first use, as autocast's cache does.

Invariant: values and gradients stay equal bit for bit. So a differentiable cast is not shared: each use of a weight
keeps a link of its own to the FP32 weight, where gradients are added up in FP32. (If FP16 gradients were added up
before the cast, small ones would be swallowed.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.node import _get_qualified_name, map_aggregate

from labkit.amp.casting.casts import NATIVE, Cast
from labkit.amp.graph.trace import CallTrace, Ref, Step
from labkit.formats import FP16

_METHODS = {dtype: method.__name__ for dtype, method in NATIVE.items()}
_NATIVE = Cast(FP16)  # the gradient of a cast between torch dtypes is not rounded again, whichever the format is


def build(trace: CallTrace) -> fx.Graph:
    """Return the graph of a trace; its arguments are the inputs of the trace."""
    graph, nodes = fx.Graph(), dict[int, fx.Node]()
    for source in trace.sources:
        nodes[source.number] = graph.placeholder(f"source_{source.number}")
        nodes[source.number].meta["source"] = source
    grad = trace.grad
    for step in trace.steps:
        if step.grad != grad:
            graph.call_function(torch._C._set_grad_enabled, (step.grad,))
            grad = step.grad
        target, args, kwargs = step.target, _with_nodes(step.args, nodes), _with_nodes(step.kwargs, nodes)
        if target == "to" and len(args) == 2 and not kwargs and args[1] in _METHODS:
            target, args = _METHODS[args[1]], args[:1]  # the same, in half the time
        target = target if isinstance(target, str) or _has_its_name(target) else _by_itself(target)
        node = graph.create_node("call_method" if isinstance(target, str) else "call_function", target, args, kwargs)
        node.meta["step"] = step
        _name_results(graph, nodes, node, step.out)
    if grad != trace.grad:
        graph.call_function(torch._C._set_grad_enabled, (trace.grad,))
    graph.output(_with_nodes(tuple(trace.leaves), nodes))
    return graph


def _has_its_name(function: Callable[..., Any]) -> bool:
    """Whether a function of torch is found where its name says; torch.fx writes it by its name."""
    value: Any = torch
    for part in _get_qualified_name(function).removeprefix("torch.").split("."):
        value = getattr(value, part, None)
    return value is function or not function.__module__.startswith("torch")


@cache
def _by_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls another, of a module whose functions torch.fx holds as they are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    call.__name__ = call.__qualname__ = function.__name__
    return call


def _name_results(graph: fx.Graph, nodes: dict[int, fx.Node], node: fx.Node, out: Any) -> None:
    if isinstance(out, Ref):
        nodes[out.number] = node
    elif isinstance(out, list | tuple):
        for index, part in enumerate(out):
            if isinstance(part, Ref | list | tuple):
                _name_results(graph, nodes, graph.call_function(operator.getitem, (node, index)), part)


def _with_nodes(values: Any, nodes: dict[int, fx.Node]) -> Any:
    return map_aggregate(values, lambda value: nodes[value.number] if isinstance(value, Ref) else value)


def cancel(graph: fx.Graph) -> list[Step]:
    """Take out casts that give back what was there, and repeated ones that no gradient comes back through."""
    gone: list[Step] = []
    made: dict[tuple[Any, Any], Any] = {}  # those since the last operation that wrote into a tensor
    for node in list(graph.nodes):
        if _writes(node):
            made.clear()
        if not is_cast(node):
            continue
        source: Any = node.args[0]
        to = _dtype(node)
        same: Any = None
        if source.op == "placeholder" and not source.meta["source"].gradient:
            same = made.get((source, to))
        first: Any = source.args[0] if is_cast(source) else None
        if first is not None and _dtype(source) is torch.float32 and _dtype(first) is to:
            same = first if made.get((first, torch.float32)) is source else None
        if same is None:
            made[source, to] = node
        else:
            gone.append(node.meta["step"])
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            if is_cast(source) and not source.users:
                gone.append(source.meta["step"])
                graph.erase_node(source)
    return gone


def hoist(graph: fx.Graph) -> list[Step]:
    """Cast a weight that is used several times once, before the first use; return the casts that became links to it."""
    linked_steps: list[Step] = []
    weights = [node for node in graph.nodes if node.op == "placeholder"]
    for weight in weights:
        casts = [node for node in weight.users if is_cast(node) and node.meta["step"].cast]
        if len(casts) < 2 or not weight.meta["source"].weight or any(_writes(user) for user in weight.users):
            continue
        with graph.inserting_before(weights[-1].next):
            values = graph.call_function(values_of, (weight, _dtype(casts[0])))
            values.meta["step"] = casts[0].meta["step"]
        for cast in casts:
            with graph.inserting_before(cast):
                link = graph.call_function(linked, (weight, values))
            linked_steps.append(cast.meta["step"])
            cast.replace_all_uses_with(link)
            graph.erase_node(cast)
    return linked_steps


def values_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight's cast, without history."""
    return weight.detach().to(dtype)


def linked(weight: Tensor, values: Tensor) -> Tensor:
    """Return the values of a weight's cast as its cast: their gradient reaches the FP32 weight."""
    return _NATIVE.linked(weight, values)


def is_cast(node: Any) -> bool:
    """Whether a node changes a dtype and nothing else."""
    return isinstance(node, fx.Node) and node.op == "call_method" and node.target in _METHODS.values()


def _dtype(node: fx.Node) -> torch.dtype | None:
    known = node.meta.get("step") or node.meta.get("source")
    return known.dtype if known is not None else None


def _writes(node: fx.Node) -> bool:
    """Whether an operation may write into one of its tensors."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    own = name.endswith("_") and not name.endswith("__")
    return own or "out" in node.kwargs or name == "__setitem__" or name.startswith("__i")
