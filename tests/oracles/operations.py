"""The operations that torch runs inside of a function, and the sizes of their tensors.

They are observed by a dispatch mode of torch, below labkit's own code.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Keeps the largest number of elements that each operation read or wrote.

    Views and the allocation of empty memory do not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest: dict[str, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        aliases = [returned.alias_info for returned in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and not name.startswith("empty"):
            sizes = [
                leaf.numel()
                for leaf in tree_leaves((args, kwargs, result))
                if isinstance(leaf, torch.Tensor)
            ]
            self.largest[name] = max([self.largest.get(name, 0), *sizes])
        return result


def operations(function: Callable[..., Any], *arguments: Any) -> dict[str, int]:
    """Return operation -> the elements of the largest tensor that it read or wrote.

    Args:
        function: The function that is observed.
        *arguments: Its arguments.

    >>> operations(lambda x: [piece.neg() + 1 for piece in x.split(3)], torch.ones(10))
    {'neg': 3, 'add': 3}
    """
    with _Watch() as watch:
        function(*arguments)
    return watch.largest
