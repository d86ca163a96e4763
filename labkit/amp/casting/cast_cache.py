"""Cache of the casts of weights under autocast.

Idea: the cast of a weight is cached until the outermost autocast region closes. The cache holds
values without history: each use gets a cast of its own in the graph, so a weight's gradients are
added up in FP32, as without a cache. So a cast made under no_grad can serve a later use that needs
gradients, and a cached cast does not keep its weight alive.

Invariant: values and gradients are bit-equal with and without a cache. A weight that was edited in
place is cast again, because the key is the tensor and its version. (torch's autocast returns the
stale cast. Neither detects an edit through `.data`, nor does autograd.) With gradients, finding a
cast takes as long as casting some 50,000 elements; for smaller weights a cache costs a little time,
for larger ones it saves much.

Source: torch.amp (which tensors: FP32 leaves that ask for gradients; when it is cleared).
"""

from __future__ import annotations

import weakref
from typing import Any

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
        self._casts: dict[_Key, tuple[int, int, Tensor, weakref.ref[Tensor], Any]] = {}

    def find(self, weight: Tensor, to: Any) -> Tensor | None:
        """Return the values of a cached cast, without history, if the weight has not changed since.

        `to` identifies the cast: a dtype, or any other object that distinguishes two casts of one
        weight.
        """
        cached = self._casts.get(_key(weight, to))
        if cached is not None:
            version, address, cast, *_ = cached
            if version == weight._version and address == weight.data_ptr():
                self.hits += 1
                return cast
        self.misses += 1
        return None

    def keep(self, weight: Tensor, to: Any, cast: Tensor) -> None:
        """Cache the values of a cast until the weight is edited or deleted."""
        key = _key(weight, to)
        casts = self._casts
        alive = weakref.ref(weight, lambda _: casts.pop(key, None) and None)
        # Deleting a weight removes its casts, and they hold a reference to `to`, so ids are not
        # reused.
        casts[key] = (weight._version, weight.data_ptr(), cast.detach(), alive, to)

    def clear(self) -> None:
        """Remove all casts, but not the counts."""
        self._casts.clear()

    def __len__(self) -> int:
        return len(self._casts)


def _key(weight: Tensor, to: Any) -> _Key:
    # By identity: hashing a format takes longer than a lookup. An inference tensor is useless
    # outside its mode.
    return id(weight), id(to), torch.is_inference_mode_enabled()


def keeps(tensor: Tensor) -> bool:
    """Return whether the casts of a tensor are cached: those of FP32 leaves that require gradients.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> keeps(weight), keeps(weight * 1), keeps(weight.detach())
    (True, False, False)
    """
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        # others may have no storage of their own
        and type(tensor) in (nn.Parameter, Tensor)
        and not tensor._is_view()
        and not torch._C._are_functorch_transforms_active()
        and not tensor.is_inference()
    )
