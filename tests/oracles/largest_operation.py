"""How large is the largest operation that torch carries out inside a function? Watched below everything of ours."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class _Watch(TorchDispatchMode):
    """Keep the largest number of elements that an operation reads or writes; views and empty memory do not count."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        aliases = [returned.alias_info for returned in func._schema.returns]
        is_view = any(alias is not None and not alias.is_write for alias in aliases)
        if not is_view and not func._schema.name.startswith("aten::empty"):
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
            self.largest = max([self.largest, *(tensor.numel() for tensor in tensors)])
        return result


def largest_operation(function: Callable[..., Any], *given: Any) -> int:
    """Return the elements of the largest tensor that an operation inside function(*given) reads or writes.

    >>> largest_operation(lambda x: [piece + 1 for piece in x.split(3)], torch.ones(10))
    3
    """
    with _Watch() as watch:
        function(*given)
    return watch.largest
