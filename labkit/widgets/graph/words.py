"""What does each pass over a graph say of an operation, in a sentence?"""

from __future__ import annotations

from typing import Any

from labkit.amp import Explanation
from labkit.amp.graph.explain import GraphCast, GraphRow
from labkit.widgets.ledger.view import list_of

PASSES = {
    "colour": "which list is each operation on?",
    "propagate": "which format comes out of each?",
    "insert": "which casts does that ask for?",
    "cancel": "which casts do nothing, or what another does?",
    "hoist": "which weights are cast once for several uses?",
}


def row_view(row: GraphRow) -> dict[str, Any]:
    """Return what the browser needs to draw an operation."""
    casts = [{"text": _text(cast), "to": cast.to, "fate": cast.fate, "times": cast.times} for cast in row.casts]
    return {"op": row.op, "list": list_of(row.rule), "why": row.why, "result": row.result, "casts": casts}


def said(explanation: Explanation) -> list[str]:
    """Return a sentence for each look of each pass at an operation, the one before the first and the one at the end."""
    looks = (_colour, _propagate, _insert, _cancel, _hoist)
    between = [f"{name}: {look(row)}" for name, look in zip(PASSES, looks, strict=True) for row in explanation.rows]
    return ["A forward pass as it was called. Five passes decide its casts, once.", *between[:-1], explanation.sentence]


def _text(cast: GraphCast) -> str:
    return f"{cast.name} {cast.given} → {cast.to}"


def _colour(row: GraphRow) -> str:
    return f"{row.op} is on the {list_of(row.rule)} list. {row.why[:1].upper()}{row.why[1:]}."


def _propagate(row: GraphRow) -> str:
    return f"{row.op} returns {row.result}." if row.result else f"{row.op} returns no floating-point numbers."


def _insert(row: GraphRow) -> str:
    if not row.casts:
        return f"{row.op} takes what it is given."
    kib = sum(cast.bytes for cast in row.casts) / 2**10
    return f"{row.op} asks for {', '.join(map(_text, row.casts))}: {kib:.1f} KiB to read and write."


def _cancel(row: GraphRow) -> str:
    gone = [cast for cast in row.casts if cast.fate == "cancelled"]
    if not gone:
        return f"at {row.op} there is nothing to take out."
    return f"at {row.op}, {', '.join(map(_text, gone))} gives what is there already, and goes."


def _hoist(row: GraphRow) -> str:
    shared = [cast for cast in row.casts if cast.fate == "hoisted"]
    if not shared:
        return f"{row.op} has no weight that is used again."
    done = "is cast here, for all its uses" if shared[0].times else "was cast already"
    return f"the {shared[0].name} of {row.op} {done}; the gradient of each use reaches the FP32 tensor by itself."
