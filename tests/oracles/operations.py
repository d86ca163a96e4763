"""Operations that torch runs inside of a function, with their elements, observed below labkit's
code.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Keep, by name, the most elements that an operation read or wrote; views and empty memory do
    not count.
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


def operations(function: Callable[..., Any], *given: Any) -> dict[str, int]:
    """Return operation -> the elements of the largest tensor that it read or wrote inside
    function(*given).

    >>> operations(lambda x: [piece.neg() + 1 for piece in x.split(3)], torch.ones(10))
    {'neg': 3, 'add': 3}
    """
    with _Watch() as watch:
        function(*given)
    return watch.largest
