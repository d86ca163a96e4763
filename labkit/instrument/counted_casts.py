"""Which casts does a forward pass make?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.instrument.guard import Failed, reporting


class CountedCasts(TorchDispatchMode):
    """Counts casts between dtypes of numbers, whoever asks for them: torch's autocast or the model; or a source."""

    def __init__(self, casts: dict[str, tuple[int, int]], told: bool, failed: Failed) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._casts, self._look, self._failed = casts, not told, failed

    @contextmanager
    def one(self) -> Iterator[None]:
        """Be open around one cast that a source tells of."""
        before, self._look = self._look, True
        try:
            yield
        finally:
            self._look = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self._look and func is torch.ops.aten._to_copy.default:
            with reporting(self._failed, "counting casts"):
                self._count(args[0], result)
        return result

    def _count(self, before: Tensor, after: Tensor) -> None:
        if after.is_floating_point() and after.dtype != before.dtype:
            name = f"{before.dtype} to {after.dtype}".replace("torch.", "")
            times, size = self._casts.get(name, (0, 0))
            self._casts[name] = (times + 1, size + after.numel() * after.element_size())
