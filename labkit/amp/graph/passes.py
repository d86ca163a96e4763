"""Passes that remove unneeded casts from the graph of a trace.

Idea: `cancel` removes casts that restore an earlier value, and repeated ones. `hoist` casts a
weight with several uses once, before the first use, as autocast's cache does.

Invariant: values and gradients stay equal bit for bit. So a differentiable cast is not shared: each
use of a weight keeps a link of its own to the FP32 weight, where gradients are added up in FP32.
(If FP16 gradients were added up before the cast, small ones would be swallowed.)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from labkit.amp.casting.casts import Cast
from labkit.amp.graph.trace import METHODS, Call
from labkit.formats import FP16

# the gradient of a cast between torch dtypes is not rounded again, whichever the format is
_NATIVE = Cast(FP16)


def cancel(graph: fx.Graph) -> list[Call]:
    """Remove casts that restore an earlier value, and repeated ones without a gradient.

    Returns:
        The casts that were removed.
    """
    gone: list[Call] = []
    # the casts since the last operation that wrote into a tensor
    made: dict[tuple[Any, Any], Any] = {}
    for node in list(graph.nodes):
        if _writes(node):
            made.clear()
        if not is_cast(node):
            continue
        source: Any = node.args[0]
        to = _dtype(node)
        # the earlier node with the same value: a cast of the same input, or what was cast to FP32
        same: Any = None
        if source.op == "placeholder" and not source.meta["source"].gradient:
            same = made.get((source, to))
        first: Any = source.args[0] if is_cast(source) else None
        if first is not None and _dtype(source) is torch.float32 and _dtype(first) is to:
            same = first if made.get((first, torch.float32)) is source else None
        if same is None:
            made[source, to] = node
        else:
            gone.append(node.meta["call"])
            node.replace_all_uses_with(same)
            graph.erase_node(node)
            # without this use, the cast before may have become unneeded, too
            if is_cast(source) and not source.users:
                gone.append(source.meta["call"])
                graph.erase_node(source)
    return gone


def hoist(graph: fx.Graph) -> list[Call]:
    """Cast a weight that is used several times once, before the first use.

    Returns:
        The casts that became links to it.
    """
    links: list[Call] = []
    weights = [node for node in graph.nodes if node.op == "placeholder"]
    for weight in weights:
        casts = [node for node in weight.users if is_cast(node) and node.meta["call"].cast]
        if (
            len(casts) < 2
            or not weight.meta["source"].weight
            or any(_writes(user) for user in weight.users)
        ):
            continue
        # after the last placeholder: before the first use, whichever that is
        with graph.inserting_before(weights[-1].next):
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
    """Return the values of a weight's cast as its cast: their gradient reaches the FP32 weight."""
    return _NATIVE.linked(weight, values)


def is_cast(node: Any) -> bool:
    """Whether a node changes a dtype and nothing else."""
    return (
        isinstance(node, fx.Node) and node.op == "call_method" and node.target in METHODS.values()
    )


def _dtype(node: fx.Node) -> torch.dtype | None:
    known = node.meta.get("call") or node.meta.get("source")
    return known.dtype if known is not None else None


def _writes(node: fx.Node) -> bool:
    """Whether an operation may write into one of its tensors."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    own = name.endswith("_") and not name.endswith("__")
    return own or "out" in node.kwargs or name == "__setitem__" or name.startswith("__i")
