"""Explanation of autocast's decisions about a network, and of the casts that remain in its graph.

Idea: one row for each operation of the trace, with the casts made for it. Each pass over the graph
is a view of the same rows: colour (list), propagate (result's dtype), insert (required casts),
cancel (casts without effect), hoist (weights that are cast once for several uses).

Invariant: rows are from the trace of an actual run. The bytes of their casts, each multiplied by
its `times`, add up to the cost of a forward pass.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import torch
from torch import fx

from labkit.amp.casting.lists import Rule
from labkit.amp.graph.cast_graph import CastGraph, Decided
from labkit.amp.graph.recorder import Call, Source
from labkit.findings import counted
from labkit.formats.arguments import describe_value
from labkit.interop import format_of

_ONLY_CASTS = frozenset(["to", "half", "float", "bfloat16", "type", "type_as"])


@dataclass(frozen=True)
class GraphCast:
    """A cast that autocast made, with its formats and size, and what became of it.

    Attributes:
        weight: whether it casts a weight.
        source: name of the format that is cast.
        to: name of the format that it is cast to.
        elements: number of elements that it casts.
        fate: "stays", "cancelled" or "hoisted": the first of a weight's casts is made, the others
            link to it.
        times: how often a forward pass of the graph makes it: 1 or 0.
        name: "input", or the name of the tensor in its layer: "weight", "bias".
        tensor: the number of the node in the trace whose tensor is cast.
        origin: the row that returned that tensor; -1, -2, ... is an input or a buffer of the
            network, None a weight.
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
        return self.elements * (_bytes_of(self.source) + _bytes_of(self.to))


def _bytes_of(format: str) -> int:
    # a graph casts between FP32, FP16 and BF16
    return 4 if format == "FP32" else 2


@dataclass(frozen=True)
class GraphRow:
    """An operation of a traced forward pass.

    Attributes:
        op: its name.
        rule: the autocast list that it is on.
        why: the reason.
        where: file and line.
        result: format of what it returns; "" if that is not a floating-point tensor.
        casts: the casts that autocast made for it.
        takes: the rows whose results it reads, in order; -1, -2, ... are the inputs of the network,
            then its buffers.
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
        """A sentence on the casts of autocast and of the graph, and the bytes that these move."""
        casts = self.casts
        remaining = sum(cast.times for cast in casts)
        moved = sum(cast.times * cast.bytes for cast in casts)
        return (
            f"Autocast makes {counted(len(casts), 'cast')} here, and the graph {remaining}; they "
            f"read and write {moved / 2**10:,.1f} KiB in each forward pass."
        )

    def __str__(self) -> str:
        lines = [("operation", "list", "gives", "casts", "KiB", "why")]
        lines += [_cells(row) for row in self.rows]
        widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
        table: list[str] = []
        for line in lines:
            padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
            table.append("  ".join(padded).rstrip())
        return "\n".join([*table, "", self.sentence])


def _cells(row: GraphRow) -> tuple[str, str, str, str, str, str]:
    """Return a row of the table of an `Explanation`."""
    made = [cast for cast in row.casts if cast.times]
    casts: list[str] = []
    kib = ""
    if made:
        names = ", ".join(cast.name for cast in made)
        casts.append(f"{names}: {made[0].to}")
        kib = f"{sum(cast.bytes for cast in made) / 2**10:.1f}"
    casts += [f"{cast.fate} {cast.name}" for cast in row.casts if not cast.times]
    return (row.op, row.rule.value, row.result, "; ".join(casts), kib, row.why)


class CallsNetwork(Protocol):
    """An object that calls a network, such as an engine; `call` is the network or its graph."""

    @property
    def call(self) -> object: ...


def explain(graph: CastGraph | CallsNetwork) -> Explanation:
    """Return the decisions of autocast about a network, and the casts that the passes left.

    Args:
        graph: a graph that was built, after two calls, or the engine of a recipe with `graph=True`,
            after two forward passes.

    Raises:
        TypeError: it is neither a graph nor an engine.
        ValueError: no graph was built; the message says why.

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
    # Engines import this package, so an engine is recognized by its attribute `call`.
    cast_graph = graph if isinstance(graph, CastGraph) else getattr(graph, "call", None)
    if cast_graph is None:
        raise TypeError(
            "graph: expected a CastGraph, or an Engine of a recipe with graph=True, got "
            f"{describe_value(graph)}"
        )
    if not isinstance(cast_graph, CastGraph):
        raise ValueError(
            "this recipe has no graph: autocast decides at each call. Take RECIPES['O1 graph']."
        )
    decided = cast_graph.decided
    if decided.run is None or decided.trace is None:
        why = decided.why or "it is built by the second forward pass, which has not run yet"
        raise ValueError(f"there is no graph: {why}.")
    explainer = _Explainer(decided, decided.trace.graph)
    calls = [node for node in decided.trace.graph.nodes if "call" in node.meta]
    # the casts of an operation come before it, and have its number
    for _, nodes in groupby(calls, key=lambda node: node.meta["call"].number):
        explainer.add_operation(list(nodes))
    return Explanation(tuple(explainer.rows))


class _Explainer:
    """The rows of an `Explanation`, made from a trace, operation by operation.

    Attributes:
        rows: the rows so far.
    """

    def __init__(self, decided: Decided, graph: fx.Graph) -> None:
        self.rows: list[GraphRow] = []
        self._numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._fates = {id(call): "cancelled" for call in decided.removed}
        self._fates |= {id(call): "hoisted" for call in decided.linked}
        sources = [node for node in graph.nodes if node.op == "placeholder"]
        # the inputs come first
        owned = sources[len(sources) - len(decided.tensors) :]
        self._names: dict[fx.Node, str] = {}
        for node, (_, name) in zip(owned, decided.tensors, strict=True):
            self._names[node] = name
        inputs = [node for node in sources if not node.meta["source"].weight]
        # tensor -> the row that returned it, or a negative number for an input or a buffer
        self._origins: dict[fx.Node, int] = {node: -1 - i for i, node in enumerate(inputs)}
        # of a weight's casts to a dtype, the first is made, others link to it
        self._hoisted: set[tuple[fx.Node, torch.dtype]] = set()

    def add_operation(self, nodes: Sequence[fx.Node]) -> None:
        """Add the row of an operation: its casts, and the calls that it consists of."""
        row = len(self.rows)
        casts: list[GraphCast] = []
        # a dict, whose keys are a set in order
        takes: dict[int, None] = {}
        for node in nodes:
            call: Call = node.meta["call"]
            origins = [
                self._origins[tensor] for tensor in node.all_input_nodes if tensor in self._origins
            ]
            takes |= dict.fromkeys(origin for origin in origins if origin != row)
            # a cast has the origin of the tensor that is cast
            origin = origins[0] if call.cast and origins else row
            self._origins |= dict.fromkeys(_results(node), origin)
            if call.cast:
                (tensor,) = node.all_input_nodes
                casts.append(self._cast(call, tensor))
        last = nodes[-1]
        call = last.meta["call"]
        if not casts and call.op in _ONLY_CASTS:
            # The network casts by itself. That is not a row; the result has the input's origin.
            origin = next(iter(takes), -1)
            self._origins |= dict.fromkeys(_results(last), origin)
            return
        # an attribute, such as x.T, is read by getattr(x, "T")
        op = str(last.args[1]) if last.target is getattr else call.op.strip("_")
        self.rows.append(
            GraphRow(
                op=op,
                rule=call.entry.rule,
                why=call.entry.why,
                where=call.where,
                result=_name(call.dtype),
                casts=tuple(casts),
                takes=tuple(takes),
            )
        )

    def _cast(self, call: Call, tensor: fx.Node) -> GraphCast:
        """Return the description of a cast, with what the passes did to it."""
        fate = self._fates.get(id(call), "stays")
        made = fate == "stays"
        if fate == "hoisted":
            made = (tensor, call.dtype) not in self._hoisted
            self._hoisted.add((tensor, call.dtype))
        # a part of a list or tuple has neither, but a dtype
        source = tensor.meta.get("source") or tensor.meta.get("call")
        return GraphCast(
            weight=isinstance(source, Source) and source.weight,
            source=_name(tensor.meta["dtype"] if source is None else source.dtype),
            to=_name(call.dtype),
            elements=math.prod(call.shape),
            fate=fate,
            times=int(made),
            name=self._names.get(tensor, "input"),
            tensor=self._numbers[tensor],
            origin=self._origins.get(tensor),
        )


def _results(node: fx.Node) -> list[fx.Node]:
    """Return the nodes of a call's results: the call, and the parts of a list or tuple."""
    results = [node]
    for user in node.users:
        if user.target is operator.getitem and "call" not in user.meta:
            results += _results(user)
    return results


def _name(dtype: torch.dtype) -> str:
    return format_of(dtype).name if dtype.is_floating_point else ""
