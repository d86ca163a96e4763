"""Outputs of our autocast beside torch's, bit for bit: each call of torch's autocast test lists, and recurrent layers.

Idea: a row of the lists is called under both, and what they return is compared as bytes. No list names RNN, GRU and
LSTM, which ask torch's own autocast: each is run behind a linear layer, as networks have it, forward and backward, with
padded and with packed input.

Invariant: both sides have the same weights and input. A call that torch itself refuses counts as unusable, never as
equal.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from labkit.frameworks import autocast
from labkit.gpu.checks.measure import Answers, each, left_out_lines

HOMES = {
    "torch": torch,
    "nn": torch._C._nn,
    "linalg": torch._C._linalg,  # type: ignore[attr-defined]
    "method": torch.Tensor,
}
EQUAL = "equal"


@dataclass(frozen=True)
class Row:
    """One way to call one operation of torch's autocast test lists."""

    group: str
    name: str
    home: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.group} {self.home}.{self.name}"

    def __call__(self) -> Any:
        return getattr(HOMES[self.home], self.name)(*self.args, **self.kwargs)


def rows(device: str) -> list[Row]:
    """Return every call that torch's autocast test lists name."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:  # the lists need no more of it than a base class for tests that nobody runs here
            sys.modules["expecttest"] = types.ModuleType("expecttest")
            sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    torch.manual_seed(0)
    calls = []
    for group, listed in vars(AutocastTestLists(torch.device(device))).items():
        for name, args, *rest in (row for row in listed if isinstance(row[1], tuple)):  # einsum's is malformed upstream
            kwargs = next((part for part in rest if isinstance(part, dict)), {})
            calls += [Row(group, name, home, args, kwargs) for home, module in HOMES.items() if hasattr(module, name)]
    return calls


def compare_row(row: Row, theirs: Callable[[], Any], ours: Callable[[], Any]) -> str:
    """Return "equal", "unusable: ..." where torch itself refuses, or how the two differ."""
    expected, their_error = _call(row, theirs)
    given, our_error = _call(row, ours)
    if their_error:
        refused = our_error and type(their_error) is type(our_error)
        return f"unusable: {_line(their_error)}" if refused else f"torch refuses ({_line(their_error)}), we do not"
    if our_error:
        return f"we refuse: {_line(our_error)}"
    pairs = zip(tree_leaves(given), tree_leaves(expected), strict=True)
    return next((how for mine, its in pairs if (how := difference(mine, its))), EQUAL)


def difference(mine: Any, its: Any) -> str:
    """Return how an output of ours differs from torch's, in any bit; "" where it does not."""
    if not isinstance(its, Tensor):
        return "" if mine == its else f"{mine} instead of {its}"
    if (mine.dtype, mine.shape) != (its.dtype, its.shape):
        return f"{mine.dtype} instead of {its.dtype}"
    same = torch.equal(mine.contiguous().view(-1).view(torch.uint8), its.contiguous().view(-1).view(torch.uint8))
    return "" if same else f"{int((mine != its).sum())} of {its.numel()} values differ"


def _call(row: Row, region: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        with region(), warnings.catch_warnings(action="ignore"):  # some rows are deprecated upstream
            return row(), None
    except Exception as refusal:
        return None, refusal


def _line(refusal: Exception) -> str:
    return (str(refusal).splitlines() or [type(refusal).__name__])[0][:80]


def check_autocast(device: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> dict[str, str]:
    """Return each call of the lists -> "equal" or how the two differ."""
    return {f"{number} {row}": compare_row(row, theirs, ours) for number, row in enumerate(rows(device))}


LAYERS: dict[str, Callable[..., nn.Module]] = {"RNN": nn.RNN, "GRU": nn.GRU, "LSTM": nn.LSTM}
LENGTHS = (7, 5, 2)


class Remembering(nn.Module):
    """A linear layer and a recurrent one over [n, t, width]; packed where asked for."""

    def __init__(self, layer: Callable[..., nn.Module], width: int, packed: bool) -> None:
        super().__init__()
        self.first, self.layer, self.packed = nn.Linear(width, width), layer(width, width, batch_first=True), packed

    def forward(self, x: Tensor) -> Tensor:
        out = self.first(x)
        if self.packed:
            out = nn.utils.rnn.pack_padded_sequence(out, list(LENGTHS), batch_first=True)
        outputs = self.layer(out)[0]
        rows: Tensor = outputs.data if self.packed else outputs
        return rows


def main(device: str = "cuda", *, width: int = 256, seconds: float = float("inf")) -> Iterator[Answers]:
    """Find layer -> "equal", or how ours differs from torch's; off a GPU ours is on both sides, a rehearsal."""
    answers: Answers = {"recurrent": {}}

    def run(layer: str) -> None:
        answers["recurrent"] |= compared(layer, device, width=width)

    yield from each([(name, partial(run, name)) for name in LAYERS], answers, seconds)


def compared(layer: str, device: str, *, width: int) -> dict[str, str]:
    """Return what `main` finds of one layer, with padded and with packed input."""
    ours = partial(autocast, device, torch.float16)
    theirs = partial(torch.autocast, device, torch.float16) if device == "cuda" else ours
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        return {
            f"{layer}{', packed' * packed}": _compared(LAYERS[layer], width, packed, device, theirs, ours)
            for packed in (False, True)
        }


def _compared(layer: Callable[..., nn.Module], width: int, packed: bool, device: str, theirs: Any, ours: Any) -> str:
    try:
        expected, given = (_results(layer, width, packed, device, region) for region in (theirs, ours))
    except (RuntimeError, ValueError) as refused:
        return f"refused: {str(refused).splitlines()[0][:80]}"
    apart = ((name, difference(given[name], its)) for name, its in expected.items())
    return next((f"{name}: {how}" for name, how in apart if how), EQUAL)


def _results(
    layer: Callable[..., nn.Module], width: int, packed: bool, device: str, region: Callable[[], Any]
) -> dict[str, Tensor]:
    """Return the outputs and each weight's gradient, always of the same weights and input."""
    torch.manual_seed(0)
    model = Remembering(layer, width, packed).to(device)
    x = torch.randn(len(LENGTHS), max(LENGTHS), width, device=device)
    with region():
        outputs = model(x)
    outputs.float().square().mean().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"outputs": outputs.detach(), **gradients}


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    lines = [f"{layer} under autocast: {how}" for layer, how in answers["recurrent"].items()]
    return "\n".join([*lines, *left_out_lines(answers)])
