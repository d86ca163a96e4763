"""Are the outputs of our autocast torch's, bit for bit, for every call of torch's own autocast test lists?

Idea: a row of the lists is called under both, and what they return is compared as bytes.

Invariant: a call that torch itself refuses is told as unusable, never as equal.
"""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

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
    for mine, its in zip(tree_leaves(given), tree_leaves(expected), strict=True):
        if not isinstance(its, Tensor):
            if mine != its:
                return f"{mine} instead of {its}"
        elif (mine.dtype, mine.shape) != (its.dtype, its.shape):
            return f"{mine.dtype} instead of {its.dtype}"
        elif not torch.equal(mine.contiguous().view(-1).view(torch.uint8), its.contiguous().view(-1).view(torch.uint8)):
            return f"{int((mine != its).sum())} of {its.numel()} values differ"
    return EQUAL


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
