"""Passes that remove unneeded casts from the graph of a trace.

Idea: `cancel` removes casts that restore an earlier value, and repeated ones. `hoist` casts a
weight with several uses once, before the first use, as autocast's cache does.

Invariant: values and gradients stay equal bit for bit. So a differentiable cast is not shared: each
use of a weight keeps a link of its own to the FP32 weight, where gradients are added up in FP32.
(If FP16 gradients were added up before the cast, small ones would be swallowed.) For the same
reason, a pair of casts stays if other operations use the FP32 tensor between them.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves

from labkit.amp.casting.casts import Cast
from labkit.amp.graph.recorder import METHODS, Call
from labkit.formats import FP16

# A cast between torch dtypes does not round the gradient again. That holds for any of them; FP16 is
# an example.
_NATIVE = Cast(FP16)
# (input, dtype) -> its cast
_Casts = dict[tuple[fx.Node, torch.dtype | None], fx.Node]


def cancel(graph: fx.Graph) -> list[Call]:
    """Remove casts that restore an earlier value, and repeated ones without a gradient.

    A cast stays if without it, gradients would be added up in another order or another format, or
    would flow where the model switched them off.

    Returns:
        The casts that were removed.
    """
    removed: list[Call] = []
    # those since the last operation that wrote into a tensor: after a write, an earlier cast may
    # hold other values than its input
    casts: _Casts = {}
    has_gradients = _modes(graph)
    for node in list(graph.nodes):
        if _writes(node):
            casts.clear()
        if not is_cast(node):
            continue
        source = _input(node)
        earlier = _earlier_with_same_value(node, casts, has_gradients)
        if earlier is None:
            casts[source, _dtype(node)] = node
            continue
        removed.append(node.meta["call"])
        node.replace_all_uses_with(earlier)
        graph.erase_node(node)
        # without this use, the cast before may have become unneeded, too
        if is_cast(source) and not source.users:
            removed.append(source.meta["call"])
            # later casts must not use a node that the graph no longer has
            del casts[_input(source), _dtype(source)]
            graph.erase_node(source)
    return removed


def _modes(graph: fx.Graph) -> dict[fx.Node, bool]:
    """Return for each node whether gradients are switched on there, as `torch.no_grad` does."""
    mode = True
    switches = [node for node in graph.nodes if node.target is torch._C._set_grad_enabled]
    if switches:
        # a graph has a switch only where the mode changes, so before the first it is the opposite
        mode = not switches[0].args[0]
    modes = {}
    for node in graph.nodes:
        if node.target is torch._C._set_grad_enabled:
            mode = bool(node.args[0])
        modes[node] = mode
    return modes


def _earlier_with_same_value(
    node: fx.Node, casts: _Casts, has_gradients: dict[fx.Node, bool]
) -> fx.Node | None:
    """Return the earlier node that has the value of a cast, if there is one.

    Args:
        node: the cast.
        casts: the earlier casts.
        has_gradients: node -> whether gradients are switched on there.
    """
    source = _input(node)
    to = _dtype(node)
    # x.half().float().half(): the first cast has the value
    if is_cast(source) and _dtype(source) is torch.float32:
        first = _input(source)
        if _dtype(first) is to:
            unwritten = casts.get((first, torch.float32)) is source
            one_mode = has_gradients[first] == has_gradients[source] == has_gradients[node]
            is_equal = unwritten and one_mode and _adds_up_alike(first, source, node)
            return first if is_equal else None
    # The same cast of an input again. A cast with a gradient is not shared, nor one of an input
    # that an operation writes into.
    if source.op == "placeholder":
        origin = source.meta["source"]
        if not origin.gradient and not origin.written:
            return casts.get((source, to))
    return None


def _adds_up_alike(first: fx.Node, wide: fx.Node, node: fx.Node) -> bool:
    """Return whether gradients add up to the same bits if `first` replaces `node`.

    Args:
        first: an FP16 or BF16 tensor.
        wide: its cast to FP32.
        node: the cast of `wide` back to the format of `first`.
    """
    # the gradients of several uses of `wide` are added up in FP32
    if _number_of_uses(wide) > 1:
        return False
    # those of several uses of `node` are added up before those of other uses of `first`
    return _number_of_uses(node) <= 1 or _number_of_uses(first) <= 1


def _number_of_uses(node: fx.Node) -> int:
    """Return how often a node is an argument; an operation may have it twice."""
    uses = 0
    for user in node.users:
        arguments = tree_leaves((user.args, user.kwargs))
        uses += sum(argument is node for argument in arguments)
    return uses


def hoist(graph: fx.Graph) -> list[Call]:
    """Cast a weight that is used several times once, before the first use.

    Returns:
        The casts that became links to it.
    """
    links: list[Call] = []
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    for weight in sources:
        source = weight.meta["source"]
        # a weight that is written between two uses has two values
        if not source.weight or source.written:
            continue
        casts = [node for node in weight.users if is_cast(node) and node.meta["call"].cast]
        if len(casts) < 2:
            continue
        # The placeholders come first in a graph, so after the last one is before every use.
        with graph.inserting_after(sources[-1]):
            values = graph.call_function(values_of, (weight, _dtype(casts[0])))
            values.meta["call"] = casts[0].meta["call"]
        # a link for each use keeps their gradients apart until they reach the FP32 weight
        for cast in casts:
            with graph.inserting_before(cast):
                link = graph.call_function(linked, (weight, values))
            links.append(cast.meta["call"])
            cast.replace_all_uses_with(link)
            graph.erase_node(cast)
    return links


def values_of(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight's cast, without history."""
    return weight.detach().to(dtype)


def linked(weight: Tensor, values: Tensor) -> Tensor:
    """Return a weight's cast with history, from its values: gradients reach the FP32 weight."""
    return _NATIVE.linked(weight, values)


def is_cast(node: object) -> TypeGuard[fx.Node]:
    """Return whether a node changes a dtype and nothing else."""
    return (
        isinstance(node, fx.Node) and node.op == "call_method" and node.target in METHODS.values()
    )


def _input(cast: fx.Node) -> fx.Node:
    source = cast.args[0]
    assert isinstance(source, fx.Node)
    return source


def _dtype(node: fx.Node) -> torch.dtype | None:
    for key in ("call", "source"):
        if key in node.meta:
            dtype: torch.dtype = node.meta[key].dtype
            return dtype
    # a part of a list or tuple is neither
    return None


def _writes(node: fx.Node) -> bool:
    """Return whether an operation may write into one of its tensors."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    # `x += y` is __iadd__. Names such as __invert__ are counted, too, which costs a cast at most.
    is_operator = name == "__setitem__" or name.startswith("__i")
    # running statistics
    is_norm = name in ("batch_norm", "instance_norm")
    return in_place or is_operator or is_norm or "out" in node.kwargs
