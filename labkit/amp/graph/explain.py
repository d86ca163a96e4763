"""Explanation of autocast's decisions about a network, and of the casts that remain in its graph.

Idea: one row for each operation of the trace, with the casts made for it. Each pass over the graph
is a view of the same rows: colour (list), propagate (result's dtype), insert (required casts),
cancel (casts without effect), hoist (weights that are cast once for several uses).

Invariant: rows are from the trace of an actual run; with the `times` of each, they add up to the
cost of a step.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import fx

from labkit.amp.casting.lists import Rule
from labkit.amp.graph.cast_graph import CastGraph
from labkit.amp.graph.trace import Source
from labkit.interop import format_of

_ONLY_CASTS = frozenset(["to", "half", "float", "bfloat16", "type", "type_as"])


@dataclass(frozen=True)
class GraphCast:
    """A cast that autocast made, with its formats and size, and what became of it.

    Attributes:
        weight: whether it casts a weight.
        source: name of the format that is cast.
        to: name of the format that it is cast to.
        elements: how many numbers it casts.
        fate: "stays", "cancelled" or "hoisted": the first of a weight's casts is kept, the others
            link to it.
        times: how often a step makes it: 1 or 0.
        name: "input", or what a layer calls the tensor: "weight", "bias".
        tensor: which tensor of the trace is cast.
        origin: the row that returned that tensor; -1, -2, ... is an input of the network, None a
            weight.
    """

    weight: bool
    source: str
    to: str
    elements: int
    fate: str
    times: int
    name: str = "input"
    tensor: int = 0
    origin: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes that it reads and writes, each time."""
        return self.elements * sum(4 if name == "FP32" else 2 for name in (self.source, self.to))


@dataclass(frozen=True)
class GraphRow:
    """An operation of a traced forward pass.

    Attributes:
        op, rule, why: its name, the list it is on and the reason.
        where: file and line.
        result: format of what it returns; "" if that is not a floating-point tensor.
        casts: those that autocast made for it.
        takes: the rows whose results it reads, in order; -1, -2, ... are the inputs of the network.
    """

    op: str
    rule: Rule
    why: str
    where: str
    result: str
    casts: tuple[GraphCast, ...]
    takes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """The operations of a graph, in order. Printed, it is a table."""

    rows: tuple[GraphRow, ...]

    @property
    def casts(self) -> tuple[GraphCast, ...]:
        """All casts that autocast made, whatever became of them."""
        return tuple(cast for row in self.rows for cast in row.casts)

    @property
    def sentence(self) -> str:
        """Say how many casts there were and are, and how many bytes a step moves for them."""
        casts = self.casts
        left = sum(cast.times for cast in casts)
        moved = sum(cast.times * cast.bytes for cast in casts)
        return (
            f"Autocast makes {len(casts)} casts here, and the graph {left}; they read and write "
            f"{moved / 2**10:,.1f} KiB in each forward pass."
        )

    def __str__(self) -> str:
        head = ("operation", "list", "gives", "casts", "KiB", "why")
        lines = [head]
        for row in self.rows:
            made = [cast for cast in row.casts if cast.times]
            said = ", ".join(cast.name for cast in made) + (f": {made[0].to}" if made else "")
            gone = [f"{cast.fate} {cast.name}" for cast in row.casts if not cast.times]
            kib = f"{sum(cast.bytes for cast in made) / 2**10:.1f}" if made else ""
            lines.append(
                (
                    row.op,
                    row.rule.value,
                    row.result,
                    "; ".join([said, *gone]).strip("; "),
                    kib,
                    row.why,
                )
            )
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            for line in lines
        ]
        return "\n".join([*(line.rstrip() for line in table), "", self.sentence])


class CallsNetwork(Protocol):
    """What calls a network, as an engine does; `call` is the network, or its graph."""

    @property
    def call(self) -> object: ...


def explain(graph: CastGraph | CallsNetwork) -> Explanation:
    """Return the decisions of autocast about a network, and the casts that the passes left.

    Args:
        graph: one that has run, or the engine of a recipe with `graph=True`, after its third
            forward pass.

    Raises:
        ValueError: there is no graph; the message says why.

    >>> from labkit.amp import RECIPES, Engine
    >>> engine = Engine(torch.nn.Linear(2, 1), torch.optim.SGD, RECIPES["O1 graph"])
    >>> for _ in range(2):
    ...     with engine.forward():
    ...         y = engine(torch.ones(4, 2))
    >>> print(explain(engine))
    operation  list   gives  casts                      KiB  why
    linear     allow  FP16   input, weight, bias: FP16  0.1  matrix product: Tensor Cores...
    <BLANKLINE>
    Autocast makes 3 casts here, and the graph 3; they read and write 0.1 KiB in each forward pass.
    """
    # an engine is above this package, and not imported here
    decides = graph if isinstance(graph, CastGraph) else getattr(graph, "call", None)
    if not isinstance(decides, CastGraph):
        raise ValueError(
            "this recipe has no graph: autocast decides at each call. Take RECIPES['O1 graph']."
        )
    known = decides.decided
    if known.run is None or known.trace is None:
        raise ValueError(
            "there is no graph: "
            f"{known.why or 'the third forward pass runs as one, and it did not come yet'}."
        )
    numbers = {node: number for number, node in enumerate(known.trace.graph.nodes)}
    fates = {id(call): "cancelled" for call in known.gone} | {
        id(call): "hoisted" for call in known.linked
    }
    sources = [node for node in numbers if node.op == "placeholder"]
    owned = sources[len(sources) - len(known.tensors) :]
    names = {node: name for node, (_, name) in zip(owned, known.tensors, strict=True)}
    inputs = [node for node in sources if not node.meta["source"].weight]
    # of a tensor: its row
    origins: dict[fx.Node, int] = {node: -1 - i for i, node in enumerate(inputs)}
    # of a weight's casts to a dtype, the first is made, others link to it
    hoisted: set[tuple[fx.Node, torch.dtype]] = set()
    rows: list[GraphRow] = []
    calls = [node for node in numbers if "call" in node.meta]
    for _, group in groupby(calls, key=lambda node: node.meta["call"].number):
        nodes = list(group)
        casts = []
        takes = dict[int, None]()
        for node in nodes:
            call = node.meta["call"]
            tensors = node.all_input_nodes
            read = [origins[tensor] for tensor in tensors if tensor in origins]
            takes |= dict.fromkeys(origin for origin in read if origin != len(rows))
            origins |= dict.fromkeys(_results(node), read[0] if call.cast and read else len(rows))
            if call.cast:
                (tensor,) = tensors
                fate = fates.get(id(call), "stays")
                made = fate == "stays" or (
                    fate == "hoisted" and (tensor, call.dtype) not in hoisted
                )
                hoisted |= {(tensor, call.dtype)} if fate == "hoisted" else set()
                source = tensor.meta.get("source") or tensor.meta.get("call")
                casts.append(
                    GraphCast(
                        weight=isinstance(source, Source) and source.weight,
                        source="FP32" if source is None else _name(source.dtype),
                        to=_name(call.dtype),
                        elements=math.prod(call.shape),
                        fate=fate,
                        times=int(made),
                        name=names.get(tensor, "input"),
                        tensor=numbers[tensor],
                        origin=origins.get(tensor),
                    )
                )
        last = nodes[-1]
        call = nodes[-1].meta["call"]
        if casts or call.op not in _ONLY_CASTS:
            op = last.args[1] if last.target is getattr else call.op.strip("_")
            rows.append(
                GraphRow(
                    op,
                    call.entry.rule,
                    call.entry.why,
                    call.where,
                    _name(call.dtype),
                    tuple(casts),
                    tuple(takes),
                )
            )
        else:  # a cast of the network's own: its result comes from where its input does
            origins |= dict.fromkeys(_results(last), next(iter(takes), -1))
    return Explanation(tuple(rows))


def _results(node: fx.Node) -> list[fx.Node]:
    """Return the nodes of a call's results: the call, and the parts of a list or tuple."""
    parts = [
        user for user in node.users if user.target is operator.getitem and "call" not in user.meta
    ]
    return [node, *(result for part in parts for result in _results(part))]


def _name(dtype: torch.dtype) -> str:
    return format_of(dtype).name if dtype.is_floating_point else ""
