"""How are all tensors of a call changed, wherever they stand in its arguments?

Invariant: what is no tensor comes back as it is, and a container as a new one of its own type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Return arguments with every tensor in them changed, in lists, tuples and dicts too.

    >>> import torch
    >>> mapped(([torch.ones(2)], 3), lambda t: t.dtype)
    ([torch.float32], 3)
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = [mapped(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
