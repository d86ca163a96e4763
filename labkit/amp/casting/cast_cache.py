"""Cache of the casts of weights under autocast.

Idea: the cast of a weight is cached until the outermost autocast region closes. The cache holds
values without history: each use gets a cast of its own in the graph, so a weight's gradients are
added up in FP32, as without a cache. So a cast made under no_grad can serve a later use that needs
gradients, and a cached cast does not keep its weight alive.

Invariant: values and gradients are bit-equal with and without a cache. A weight that was edited in
place is cast again, because an entry stores the weight's version. (torch's autocast returns the
stale cast. Neither detects an edit through `.data`, nor does autograd.) With gradients, a lookup
takes as long as a cast of some 50,000 elements: a cache costs a little time for smaller weights,
and saves much for larger ones.

Source: torch.amp (the tensors: FP32 leaves that require gradients; the end of their casts).
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn

_Key = tuple[int, int, bool]


class CastCache:
    """Casts of weights, with counts of hits and misses.

    Attributes:
        hits: number of lookups that found a cast.
        misses: number of lookups that did not.

    >>> cache, weight = CastCache(), nn.Parameter(torch.ones(2))
    >>> cache.find(weight, torch.float16) is None
    True
    >>> cache.keep(weight, torch.float16, weight.half())
    >>> cache.find(weight, torch.float16)
    tensor([1., 1.], dtype=torch.float16)
    >>> (cache.hits, cache.misses)
    (1, 1)
    """

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        # version and address of the weight, its cast, a reference that ends with the weight, `to`
        self._casts: dict[_Key, tuple[int, int, Tensor, weakref.ref[Tensor], object]] = {}

    def find(self, weight: Tensor, to: object) -> Tensor | None:
        """Return the values of a cached cast, without history, if the weight has not changed since.

        Args:
            weight: the weight.
            to: identifies the cast: a dtype, or any other object that distinguishes two casts of
                one weight.
        """
        cached = self._casts.get(_key(weight, to))
        if cached is not None:
            version, address, cast, _reference, _to = cached
            if version == weight._version and address == weight.data_ptr():
                self.hits += 1
                return cast
        self.misses += 1
        return None

    def keep(self, weight: Tensor, to: object, cast: Tensor) -> None:
        """Cache the values of a cast until the weight is edited or deleted."""
        key = _key(weight, to)
        casts = self._casts

        def remove(_: object) -> None:
            casts.pop(key, None)

        # The key has ids. They are not reused while it is in the dict: a deleted weight removes its
        # casts, and an entry holds a reference to `to`.
        reference = weakref.ref(weight, remove)
        casts[key] = (weight._version, weight.data_ptr(), cast.detach(), reference, to)

    def clear(self) -> None:
        """Remove all casts, but not the counts."""
        self._casts.clear()

    def __len__(self) -> int:
        return len(self._casts)


def _key(weight: Tensor, to: object) -> _Key:
    # By identity, since hashing a format takes longer than a lookup. A cast made in inference mode
    # cannot be used for gradients outside of it.
    return id(weight), id(to), torch.is_inference_mode_enabled()


def keeps(tensor: Tensor) -> bool:
    """Return whether the casts of a tensor are cached: whether it is an FP32 leaf with gradients.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> keeps(weight), keeps(weight * 1), keeps(weight.detach())
    (True, False, False)
    """
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        # tensors of other classes, and views, may have no storage of their own
        and type(tensor) in (nn.Parameter, Tensor)
        and not tensor._is_view()
        and not torch._C._are_functorch_transforms_active()
        and not tensor.is_inference()
    )
