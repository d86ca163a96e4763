"""Probes of a passport: calls that CUDA is expected to refuse, and host waits of one training step.

The calls are in `refusals.toml`: some that CUDA refuses and the CPU accepts, and some that both
accept. The report shows a row by its name: "layer_norm of Half with weights of Float: refused, as
expected".

A dispatch mode counts waits and copies by the line of the lab that causes them.
`torch.cuda.set_sync_debug_mode` counts synchronizations independently.
"""

from __future__ import annotations

import os
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Refusal:
    """One call, and whether CUDA refuses it.

    Attributes:
        name: name in reports.
        example: Python code that uses `torch`, `F` and `device`, and raises where it is refused.
        words: text that torch's message contains if it is refused for this reason.
        source: where the refusal is documented.
        refused: whether CUDA refuses it; the CPU accepts every row.
    """

    name: str
    example: str
    words: str
    source: str
    refused: bool = True

    def call(self, device: str) -> None:
        """Run the example on a device."""
        exec(self.example, {"torch": torch, "F": F, "device": device})


_TABLE = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))
REFUSALS = tuple(Refusal(**row) for row in _TABLE["row"])
BY_NAME = {row.name: row for row in REFUSALS}


def reason_of(message: str) -> str:
    """Return the name of the first expected refusal whose words a message contains, or "".

    >>> reason_of("RuntimeError: expected scalar type Half but found Float")
    'layer_norm of Half with weights of Float'
    """
    for row in REFUSALS:
        if row.words and row.words in message:
            return row.name
    return ""


# The folder that holds the package, with a separator at its end.
TOP = f"{Path(__file__).parents[3]}{os.sep}"
# Operations that read values on the host, or whose shape depends on values: each waits.
READS = {
    "aten::_local_scalar_dense",
    "aten::is_nonzero",
    "aten::equal",
    "aten::nonzero",
    "aten::masked_select",
    "aten::bincount",
    "aten::_unique",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave",
}
# Views and allocations, which launch nothing.
NO_OPERATIONS = {
    "aten::detach",
    "aten::view",
    "aten::_unsafe_view",
    "aten::alias",
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
# Indexing, which waits if an index is a mask.
BY_MASK = {
    "aten::index",
    "aten::index_put",
    "aten::index_put_",
    "aten::_unsafe_index",
    "aten::_index_put_impl_",
}
COPIES = {"aten::_to_copy", "aten::copy_"}


class HostWaits(TorchDispatchMode):
    """Count operations on a device, and its waits and copies by operation and line.

    An operation is a dispatched one that has a tensor on the device among its arguments or makes
    one there, but not a view or an allocation. A wait blocks the host until the device has finished
    all that was launched before. A copy moves host memory to the device; from pageable memory, it
    waits, too.

    >>> with HostWaits("cpu") as seen:
    ...     _ = torch.ones(2).sum().item()
    >>> sum(seen.waits.values())
    1
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device = device
        self.operations = Counter[str]()
        self.waits = Counter[str]()
        self.copies = Counter[str]()

    def __torch_dispatch__(
        self,
        func: torch._ops.OpOverload[Any, Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        devices = [tensor.device.type for tensor in _tensors((args, kwargs))]
        has_input = self.device in devices
        has_output = any(tensor.device.type == self.device for tensor in _tensors(out))
        if not has_input and not has_output:
            return out
        if not func.is_view and name not in NO_OPERATIONS:
            self.operations[name] += 1
        copies_to_host = name in COPIES and has_input and not has_output
        copies_to_device = name in COPIES and any(device != self.device for device in devices)
        if name == "aten::lift_fresh" and self.device != "cpu":
            # torch.tensor([...], device="cuda") copies from the host
            copies_to_device = True
        if name in READS or copies_to_host or (has_input and _by_mask(name, args)):
            self.waits[f"{name} at {line_of_the_lab()}"] += 1
        elif has_output and copies_to_device:
            self.copies[f"{name} at {line_of_the_lab()}"] += 1
        return out


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _by_mask(name: str, args: tuple[Any, ...]) -> bool:
    """Return whether an operation indexes by a mask, and so waits for the number of its ones."""
    if name not in BY_MASK:
        return False
    if not any(index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])):
        return False
    value = args[2] if len(args) > 2 else None
    if value is None:
        return True
    # `x[mask] = number` becomes masked_fill, which does not wait
    accumulates = len(args) > 3 and bool(args[3])
    is_number = value.numel() == 1 and value.device.type == "cpu"
    return accumulates or not is_number


def line_of_the_lab() -> str:
    """Return the innermost line of the lab outside this file, as "file:line".

    Without one, it is the innermost line outside of installed packages, or else "torch".
    """
    stack = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_stack()
        if frame.filename != __file__
    ]
    own = [place for place in stack if place.startswith(f"{TOP}labkit{os.sep}")]
    others = [place for place in stack if "site-packages" not in place]
    if own:
        return own[-1].removeprefix(TOP)
    if others:
        return others[-1].removeprefix(TOP)
    return "torch"


def synchronizations(step: Callable[[], object]) -> int | None:
    """Return how often a step synchronizes, by CUDA's count; None if torch does not report it."""
    if not hasattr(torch._C, "_cuda_set_sync_debug_mode"):
        return None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchronizing CUDA operation" in str(each.message) for each in caught)


def launches(step: Callable[[], object]) -> dict[str, int]:
    """Return name -> number of calls of the CUDA runtime in a step, by torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    return {
        row.key: row.count
        for row in profiled.key_averages()
        if row.key.startswith(("cuda", "cuLaunch"))
    }
