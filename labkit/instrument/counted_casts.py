"""Which casts does a forward pass make?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class CountedCasts(TorchDispatchMode):
    """Counts casts between dtypes of numbers, whoever asks for them: torch's autocast or the model; or a source."""

    def __init__(self, casts: dict[str, tuple[int, int]], told: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._casts, self._look = casts, not told

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
        is_cast = self._look and func is torch.ops.aten._to_copy.default and result.is_floating_point()
        if is_cast and result.dtype != args[0].dtype:
            name = f"{args[0].dtype} to {result.dtype}".replace("torch.", "")
            times, size = self._casts.get(name, (0, 0))
            self._casts[name] = (times + 1, size + result.numel() * result.element_size())
        return result
