"""Probes of a passport: calls that CUDA is expected to refuse, and host waits of one training step.

The calls stand in `refusals.toml`: some that CUDA refuses and the CPU takes, and some that both
take. The name of a row is what the report says of it: "layer_norm of Half with weights of Float:
refused, as expected". A wait is a call that makes Python wait for the device, or copies from host
to device.

Source: torch.cuda.set_sync_debug_mode, which runs too; a dispatch mode finds the line of the lab.
"""

from __future__ import annotations

import os
import tomllib
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
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
        example: Python, with `torch`, `F` and `device`; raises where it is refused.
        words: text of torch's message if it is refused for this reason.
        source: where the refusal was read.
        refused: on CUDA; the CPU takes every row.
    """

    name: str
    example: str
    words: str
    source: str
    refused: bool = True

    def call(self, device: str) -> None:
        """Run the example on a device."""
        exec(self.example, {"torch": torch, "F": F, "device": device})


REFUSALS = tuple(
    Refusal(**row)
    for row in tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))[
        "row"
    ]
)
BY_NAME = {row.name: row for row in REFUSALS}


def reason_of(message: str) -> str:
    """Return the name of the first expected refusal whose words a message contains, or "".

    >>> reason_of("RuntimeError: expected scalar type Half but found Float")
    'layer_norm of Half with weights of Float'
    """
    return next((row.name for row in REFUSALS if row.words and row.words in message), "")


TOP = f"{Path(__file__).parents[3]}{os.sep}"
# Operations whose result has a shape that depends on values, or is the host's: each waits.
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

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name
        devices = [tensor.device.type for tensor in _tensors((args, kwargs))]
        reads = self.device in devices
        arrives = any(tensor.device.type == self.device for tensor in _tensors(out))
        if not (reads or arrives):
            return out
        if not func.is_view and name not in NO_OPERATIONS:
            self.operations[name] += 1
        to_host = reads and name in COPIES and not arrives
        # as torch.tensor([...], device="cuda") does
        lifted = name == "aten::lift_fresh" and self.device != "cpu"
        if name in READS or to_host or (reads and _by_mask(name, args)):
            self.waits[f"{name} at {line_of_the_lab()}"] += 1
        elif arrives and (
            lifted or (name in COPIES and any(device != self.device for device in devices))
        ):
            self.copies[f"{name} at {line_of_the_lab()}"] += 1
        return out


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _by_mask(name: str, args: Any) -> bool:
    """Return whether an operation indexes by a mask and so counts its ones.

    `x[mask] = number` becomes masked_fill.
    """
    if name not in BY_MASK or not any(
        index.dtype in (torch.bool, torch.uint8) for index in _tensors(args[1])
    ):
        return False
    value = args[2] if len(args) > 2 else None
    accumulates = len(args) > 3 and bool(args[3])
    return value is None or accumulates or not (value.numel() == 1 and value.device.type == "cpu")


def line_of_the_lab() -> str:
    """Return the innermost line of the lab outside this file.

    Without one, the innermost line outside torch.
    """
    stack = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_stack()
        if frame.filename != __file__
    ]
    own = [place for place in stack if place.startswith(f"{TOP}labkit{os.sep}")]
    others = [place for place in stack if "site-packages" not in place]
    return (own or others or ["torch"])[-1].removeprefix(TOP)


def synchronizations(step: Callable[[], object]) -> int | None:
    """Return how often CUDA reports that a step synchronizes.

    It is None if this torch does not report it.
    """
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
    """Return name -> count of a step's calls of the CUDA runtime, by torch.profiler."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        step()
        torch.cuda.synchronize()
    return {
        row.key: row.count
        for row in profiled.key_averages()
        if row.key.startswith(("cuda", "cuLaunch"))
    }
