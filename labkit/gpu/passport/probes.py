"""Probes of a passport: calls that CUDA is expected to refuse, and host waits of one training step.

The calls stand in `refusals.toml`: some that CUDA refuses and the CPU takes, and some that both take. The name of a row
is what the report says of it: "layer_norm of Half with weights of Float: refused, as expected". A wait is a call that
makes Python wait for the device, or copies from host to device.

Source: torch.cuda.set_sync_debug_mode, which is asked too; a dispatch mode says in which line of the lab it was.
"""

from __future__ import annotations

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

    example  Python, with `torch`, `F` and `device`; raises where it is refused
    words    that torch's message contains where it is refused for this reason
    source   where the refusal was read
    refused  on CUDA; the CPU takes every row
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
    for row in tomllib.loads(Path(__file__).with_name("refusals.toml").read_text(encoding="utf-8"))["row"]
)
BY_NAME = {row.name: row for row in REFUSALS}


def reason_of(message: str) -> str:
    """Return the name of the first expected refusal whose words a message contains; "" where there is none.

    >>> reason_of("RuntimeError: expected scalar type Half but found Float")
    'layer_norm of Half with weights of Float'
    """
    return next((row.name for row in REFUSALS if row.words and row.words in message), "")


READS = {"aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero", "aten::nonzero", "aten::masked_select",
         "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive"}  # fmt: skip
COPIES = {"aten::_to_copy", "aten::copy_"}


class HostWaits(TorchDispatchMode):
    """Count, by operation and line, the waits for a device of this type and the copies to it.

    >>> with HostWaits("cpu") as seen:
    ...     _ = torch.ones(2).sum().item()
    >>> sum(seen.waits.values())
    1
    """

    def __init__(self, device: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.device, self.operations = device, 0
        self.waits: Counter[str] = Counter()
        self.copies: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name, takes = func._schema.name, [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        there = [tensor.device.type == self.device for tensor in takes]
        gives = isinstance(out, Tensor) and out.device.type == self.device
        self.operations += (any(there) or gives) and not func.is_view
        masked = name in ("aten::index", "aten::index_put_") and any(
            isinstance(index, Tensor) and index.dtype == torch.bool for index in args[1]
        )
        if any(there) and (name in READS or masked or (name in COPIES and not (gives and there[0]))):
            kind = self.copies if name in COPIES and gives else self.waits
            kind[f"{name} at {_line()}"] += 1
        elif name in COPIES and gives and not all(there):
            self.copies[f"{name} at {_line()}"] += 1
        return out


def _line() -> str:
    """Return the innermost line of the lab, this file aside."""
    frames = [frame for frame in traceback.extract_stack() if "labkit" in frame.filename and frame.filename != __file__]
    return f"labkit/{frames[-1].filename.rpartition('labkit/')[2]}:{frames[-1].lineno}" if frames else "torch"


def synchronizations(step: Callable[[], object]) -> int | None:
    """Return how often CUDA says that a step synchronizes; None where this torch cannot say it."""
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
    return {row.key: row.count for row in profiled.key_averages() if row.key.startswith(("cuda", "cuLaunch"))}
