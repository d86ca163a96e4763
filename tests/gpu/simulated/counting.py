"""Counts of what a piece of code costs a GPU: operations, host waits and copies from the host, with file and line.

An operation is a dispatched one that has a tensor on the card among its arguments or makes one there; views and
allocations are none. A wait is an operation (or a call of torch.cuda) that answers the host: the host stands still
until the card has done all that was asked before. A copy moves host memory to the
card; from pageable memory, it waits, too.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.gpu.simulated import ROOT

LABKIT, HERE = f"{ROOT}/labkit/", f"{ROOT}/tests/gpu/simulated/"

# Operations whose result has a shape that depends on values, or is the host's: each waits.
WAITS = {
    "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal", "aten::nonzero", "aten::masked_select",
    "aten::bincount", "aten::_unique", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::repeat_interleave",
}  # fmt: skip
NO_OPERATIONS = {
    "aten::detach", "aten::view", "aten::_unsafe_view", "aten::alias", "aten::empty", "aten::empty_like",
    "aten::empty_strided", "aten::new_empty", "aten::new_empty_strided",
}  # fmt: skip
BY_MASK = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_unsafe_index", "aten::_index_put_impl_"}


@dataclass
class Counts:
    """What was counted: operations by name; waits and copies as "operation @ file:line < caller's file:line"."""

    operations: Counter[str] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)


def place() -> str:
    """Return the two innermost lines of labkit on the stack, or the innermost line of anybody's outside of torch."""
    stack = [(frame.filename, frame.lineno) for frame in traceback.extract_stack()]
    ours = [f"{file.removeprefix(LABKIT)}:{line}" for file, line in stack if file.startswith(LABKIT)]
    if ours:
        return " < ".join(reversed(ours[-2:]))
    others = [place for place in stack if "site-packages" not in place[0] and not place[0].startswith(HERE)]
    return "{}:{}".format(*others[-1]) if others else "backward"


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _by_mask(name: str, arguments: Any) -> bool:
    """Whether an operation indexes by a mask, and so counts its ones; `x[mask] = number` becomes masked_fill."""
    if name not in BY_MASK or not any(t.dtype in (torch.bool, torch.uint8) for t in _tensors(arguments[1])):
        return False
    value = arguments[2] if len(arguments) > 2 else None
    accumulates = len(arguments) > 3 and bool(arguments[3])
    return value is None or accumulates or not (value.numel() == 1 and value.device.type == "cpu")


class _Counting(TorchDispatchMode):
    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        name, given, made = func._schema.name, _tensors((args, kwargs)), _tensors(result)
        on_card = any(t.is_cuda for t in given)
        if not on_card and not any(t.is_cuda for t in made):
            return result
        if not func.is_view and name not in NO_OPERATIONS:
            self.counts.operations[name] += 1
        to_host = on_card and name in ("aten::_to_copy", "aten::copy_") and not any(t.is_cuda for t in made)
        from_host = any(t.is_cuda for t in made) and (
            name == "aten::lift_fresh"  # torch.tensor([...], device="cuda")
            or (name in ("aten::_to_copy", "aten::copy_") and any(not t.is_cuda for t in given))
        )
        if name in WAITS or to_host or (on_card and _by_mask(name, args)):
            self.counts.waits.append(f"{name} @ {place()}")
        elif from_host:
            self.counts.copies.append(f"{name} @ {place()}")
        return result


@contextmanager
def counted() -> Iterator[Counts]:
    """Count what the block does; the counts may be read while it runs and afterwards."""
    from tests.gpu.simulated.runtime import waiting

    counts = Counts()

    def listener(name: str) -> None:
        counts.waits.append(f"{name} @ {place()}")

    waiting.append(listener)
    try:
        with _Counting(counts):
            yield counts
    finally:
        waiting.remove(listener)
