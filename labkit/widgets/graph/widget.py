"""The five passes that decide all casts of a network before it runs, played operation by operation.

The network is traced, and the decisions of autocast are shown in the order in which a compiler
makes them, as five passes: colour, propagate, insert, cancel, hoist. A slider selects the visit of
one pass to one operation.

Invariant: rows come from a forward pass that was run (`labkit.amp.explain`).
"""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import torch
import traitlets
from torch import Tensor, nn

from labkit.amp import CastGraph, Explanation, autocast, explain
from labkit.amp.graph.explain import GraphCast, GraphRow
from labkit.formats import FP16, FormatLike
from labkit.gemm import half_storage
from labkit.train.determinism import one_thread, preserve_rng
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.ledger.widget import list_of

# Name of a pass -> the question that it answers for each operation.
PASSES = {
    "colour": "which list is each operation on?",
    "propagate": "which format comes out of each?",
    "insert": "which casts does that ask for?",
    "cancel": "which casts do nothing, or what another does?",
    "hoist": "which weights are cast once for several uses?",
}
WHY_STATIC = why_still(
    "to play the passes, or go on in code: passes.position = 7; print(passes.sentence)",
    "This graph stands",
)


def row_view(row: GraphRow) -> dict[str, Any]:
    """Return an operation and its casts as JSON (`Row` and `Cast` of view.js)."""
    casts = [
        {
            "text": _text(cast),
            "to": cast.to,
            "fate": cast.fate,
            "times": cast.times,
            "tensor": cast.tensor,
            "origin": cast.origin,
        }
        for cast in row.casts
    ]
    return {
        "op": row.op,
        "list": list_of(row.rule),
        "why": row.why,
        "result": row.result,
        "casts": casts,
        "takes": list(row.takes),
    }


def explained_lines(explanation: Explanation) -> list[str]:
    """Return the sentence of each position of the slider.

    The first position is before all passes. Then each pass visits each operation. At the last
    position the sentence is about the whole graph, instead of the last visit.
    """
    between = [f"{name}: {_look(name, row)}" for name in PASSES for row in explanation.rows]
    return [
        "A forward pass as it was called. Five passes decide its casts, once.",
        *between[:-1],
        explanation.sentence,
    ]


def _text(cast: GraphCast) -> str:
    """Return a cast as text, such as "weight FP32 → FP16"."""
    return f"{cast.name} {cast.source} → {cast.to}"


def _look(name: str, row: GraphRow) -> str:
    """Return the sentence of a visit of a pass to an operation."""
    match name:
        case "colour":
            why = row.why[:1].upper() + row.why[1:]
            return f"{row.op} is on the {list_of(row.rule)} list. {why}."
        case "propagate":
            return f"{row.op} returns {row.result or 'no floating-point numbers'}."
        case "insert" if not row.casts:
            return f"{row.op} takes its inputs as they are."
        case "insert":
            kib = sum(cast.bytes for cast in row.casts) / 2**10
            return (
                f"{row.op} asks for {', '.join(map(_text, row.casts))}: {kib:.1f} KiB to read "
                "and write."
            )
        case "cancel":
            gone = [_text(cast) for cast in row.casts if cast.fate == "cancelled"]
            if gone:
                return f"at {row.op}, {', '.join(gone)} repeats an existing cast, and goes."
            return f"at {row.op} there is nothing to take out."
    shared = next((cast for cast in row.casts if cast.fate == "hoisted"), None)
    if shared is None:
        return f"{row.op} has no weight that is used again."
    done = "is cast here, for all its uses" if shared.times else "was cast already"
    return (
        f"the {shared.name} of {row.op} {done}; the gradient of each use reaches the FP32 "
        "tensor by itself."
    )


class TwoScores(nn.Module):
    """A small network in which each pass finds something.

    A weight has two uses, an input has two, and one operation is a softmax.
    """

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(16, 16, bias=False)
        self.out = nn.Linear(16, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Return scores of x [n, 16] among y [n, 16], as 4 numbers each."""
        scores = self.project(x) @ self.project(y).T
        return self.out(scores.softmax(-1) @ x)  # type: ignore[no-any-return]


class CastPasses(LabWidget, folder="graph"):
    """The passes that decide all casts of a network before it runs, operation by operation.

    Args:
        model: A module with FP32 weights; None for `TwoScores`.
        *inputs: The arguments of its forward pass; ignored without a model.
        format: The 16-bit format, FP16 or BF16, or its name.

    Trait to read and set: `position`, from 0 (before all passes) to five times the number of
    operations, where it begins. To read: `sentence` (that of the position) and `explanation`.

    Raises:
        ValueError: The network has no graph; the message has the line and the reason.
        TraitError: The position does not exist.

    >>> passes = CastPasses()
    >>> passes.position = 1
    >>> passes.sentence
    'colour: linear is on the allow list. Matrix product: Tensor Cores, FP32 accumulation.'
    """

    position = traitlets.Int(0).tag(sync=True)
    _rows: traitlets.List[dict[str, Any]] = traitlets.List().tag(sync=True)
    _said: traitlets.List[str] = traitlets.List().tag(sync=True)
    _passes: traitlets.List[list[str]] = traitlets.List().tag(sync=True)

    def __init__(
        self, model: nn.Module | None = None, *inputs: Any, format: FormatLike = FP16
    ) -> None:
        if model is None:
            with preserve_rng(torch.device("cpu")):
                model = TwoScores()
            inputs = (torch.ones(8, 16), torch.ones(8, 16))
        # A copy, since a forward pass changes the running statistics of a batch norm.
        graph = CastGraph(copy.deepcopy(model), format)
        device = next((p.device for p in model.parameters()), torch.device("cpu"))
        with one_thread(), preserve_rng(device):
            # The first call traces the graph, the second one runs it.
            for _ in range(2):
                with half_storage(device), autocast(format):
                    graph(*inputs)
        self.explanation = explain(graph)
        rows = [row_view(row) for row in self.explanation.rows]
        said = explained_lines(self.explanation)
        super().__init__(
            _rows=rows,
            _said=said,
            _passes=[list(row) for row in PASSES.items()],
            position=len(said) - 1,
        )

    @property
    def sentence(self) -> str:
        return self._said[self.position]

    @limited("position")
    def _places(self) -> dict[str, Collection[Any]]:
        return {"position": range(len(self._said))}

    def still(self) -> dict[str, Any]:
        return still(str(self.explanation), WHY_STATIC)
