"""Explanation of autocast's decisions about a network, and of the casts that remain in its graph.

Idea: one row for each operation of the trace, with the casts made for it. Each pass over the graph is a view of the
same rows: colour (list), propagate (result's dtype), insert (required casts), cancel (casts without effect), hoist
(weights that are cast once for several uses).

Invariant: rows are from the trace of an actual run; with the `times` of each, they add up to the cost of a step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from labkit.amp.casting.lists import Rule
from labkit.amp.engine import Engine
from labkit.amp.graph.cast_graph import CastGraph
from labkit.amp.graph.trace import Ref
from labkit.interop import format_of

_ONLY_CASTS = frozenset("to half float bfloat16 type type_as".split())


@dataclass(frozen=True)
class GraphCast:
    """A cast that autocast made: of a weight or not, from and to which format, elements, and what became of it.

    name   "input", or what a layer calls the tensor: "weight", "bias"
    fate   "stays", "cancelled" or "hoisted": the first of a weight's casts is kept, the others link to it
    times  how often a step makes it: 1 or 0
    tensor, origin  which tensor of the trace is cast, and the row that returned it; -1, -2, ... is an input of the
                    network, None a weight
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

    op, rule, why  its name, the list it is on and the reason
    where          file and line
    result         format of what it returns; "" if that is no floating-point tensor
    casts          those that autocast made for it
    takes          the rows whose results it reads, in order; -1, -2, ... are the inputs of the network
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
        left, moved = sum(cast.times for cast in casts), sum(cast.times * cast.bytes for cast in casts)
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
            lines.append((row.op, row.rule.value, row.result, "; ".join([said, *gone]).strip("; "), kib, row.why))
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        return "\n".join([*(line.rstrip() for line in table), "", self.sentence])


def explain(graph: CastGraph | Engine) -> Explanation:
    """Return what autocast decided about a network, operation by operation, and what the passes left of its casts.

    Args:
        graph: one that has run, or the engine of a recipe with `graph=True`, after its third forward pass.

    Raises:
        ValueError: there is no graph; the message says why.

    >>> from labkit.amp import RECIPES
    >>> engine = Engine(torch.nn.Linear(2, 1), torch.optim.SGD, RECIPES["O1 graph"])
    >>> for _ in range(2):
    ...     with engine.forward():
    ...         y = engine(torch.ones(4, 2))
    >>> print(explain(engine))
    operation  list   gives  casts                      KiB  why
    linear     allow  FP16   input, weight, bias: FP16  0.1  matrix product: Tensor Cores, FP32 accumulation
    <BLANKLINE>
    Autocast makes 3 casts here, and the graph 3; they read and write 0.1 KiB in each forward pass.
    """
    decides = graph.call if isinstance(graph, Engine) else graph
    if not isinstance(decides, CastGraph):
        raise ValueError("this recipe has no graph: autocast decides at each call. Take RECIPES['O1 graph'].")
    known = decides.decided
    if known.run is None or known.trace is None:
        raise ValueError(
            f"there is no graph: {known.why or 'the third forward pass runs as one, and it did not come yet'}."
        )
    weights = {source.number for source in known.trace.sources if source.weight}
    formats: dict[int, str] = {source.number: _name(source.dtype) for source in known.trace.sources}
    fates = {id(step): ("cancelled", 0) for step in known.gone}
    first = set[tuple[int, torch.dtype]]()  # of a weight's casts to a dtype: it is made, the others link to it
    for step in known.linked:
        key = (step.args[0].number, step.dtype)
        fates[id(step)] = ("hoisted", int(key not in first))
        first.add(key)
    own = known.trace.sources[len(known.trace.sources) - len(known.tensors) :]
    names = {source.number: name for source, (_, name) in zip(own, known.tensors, strict=True)}
    given = [source.number for source in known.trace.sources if not source.weight]
    origins = {number: -1 - i for i, number in enumerate(given)}  # of a tensor: the row that returned it
    rows: list[GraphRow] = []
    for _, group in groupby(known.trace.steps, key=lambda step: step.call):
        calls, casts, takes = list(group), [], dict[int, None]()
        for step in calls:
            read = [origins[ref.number] for ref in _refs((step.args, step.kwargs)) if ref.number in origins]
            takes |= dict.fromkeys(origin for origin in read if origin != len(rows))
            origins |= dict.fromkeys(
                (ref.number for ref in _refs(step.out)), read[0] if step.cast and read else len(rows)
            )
            if step.cast:
                number = step.args[0].number
                fate, times = fates.get(id(step), ("stays", 1))
                source, to, name = formats.get(number, "FP32"), _name(step.dtype), names.get(number, "input")
                what = (number in weights, source, to, math.prod(step.shape), fate, times, name)
                casts.append(GraphCast(*what, number, origins.get(number)))
            if isinstance(step.out, Ref):
                formats[step.out.number] = _name(step.dtype)
        last = calls[-1]
        if casts or last.op not in _ONLY_CASTS:
            op = last.args[1] if last.target is getattr else last.op.strip("_")
            result = _name(last.dtype)
            rows.append(GraphRow(op, last.entry.rule, last.entry.why, last.where, result, tuple(casts), tuple(takes)))
        else:  # a cast of the network's own: what it returns comes from where its input does
            origins |= dict.fromkeys((ref.number for ref in _refs(last.out)), next(iter(takes), -1))
    return Explanation(tuple(rows))


def _refs(values: Any) -> list[Ref]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Ref)]


def _name(dtype: torch.dtype) -> str:
    return format_of(dtype).name if dtype.is_floating_point else ""
