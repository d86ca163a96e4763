"""Must a weight be cast again each time it is used?

Idea: no; its cast is kept until the outermost autocast region closes. What is kept are values, not their history: each
use gets a cast of its own in the graph, so a weight's gradients are added up in FP32, as without a cache. That is also
why a cast made under no_grad can serve a later use that wants gradients, and why a kept cast keeps no weight alive.

Invariant: a cache changes nothing but time; values and gradients are bit-equal with and without. A weight that was
edited in place is cast again, for the key is the tensor and its version. (torch's autocast keeps the stale cast. What
neither can see, nor autograd, is an edit through `.data`.) Where gradients are wanted, finding a cast takes as long as
casting some 50,000 elements again; below that a cache costs a little time, above it saves much.

Source: torch.amp (which tensors: FP32 leaves that ask for gradients; when it is cleared).
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

_Key = tuple[int, int, bool]


class CastCache:
    """Casts of weights, and how often one was found.

    hits    casts that were found
    misses  casts that were looked for and not found

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
        self.hits = self.misses = 0
        self._kept: dict[_Key, tuple[int, int, Tensor, weakref.ref[Tensor], Any]] = {}

    def find(self, weight: Tensor, to: Any) -> Tensor | None:
        """Return the values of a cast that was kept, without history, if the weight is what it was then.

        `to` names the cast: a dtype, or whatever else tells two casts of one weight apart.
        """
        kept = self._kept.get(_key(weight, to))
        if kept is not None:
            version, place, cast, *_ = kept
            if version == weight._version and place == weight.data_ptr():
                self.hits += 1
                return cast
        self.misses += 1
        return None

    def keep(self, weight: Tensor, to: Any, cast: Tensor) -> None:
        """Keep the values of a cast as long as the weight lives and nobody edits it."""
        key, kept = _key(weight, to), self._kept
        alive = weakref.ref(weight, lambda _: kept.pop(key, None) and None)
        # A dead weight takes its casts with it, and `to` lives as long as they do: no other can have these ids.
        kept[key] = (weight._version, weight.data_ptr(), cast.detach(), alive, to)

    def clear(self) -> None:
        """Forget the casts; the counts stay."""
        self._kept.clear()

    def __len__(self) -> int:
        return len(self._kept)


def _key(weight: Tensor, to: Any) -> _Key:
    # By identity: to hash a format takes longer than to find a cast. An inference tensor is of no use outside its mode.
    return id(weight), id(to), torch.is_inference_mode_enabled()


def keeps(tensor: Tensor) -> bool:
    """Say whether a tensor is one whose cast is kept: an FP32 leaf that asks for gradients, as an optimizer steps them.

    >>> weight = nn.Parameter(torch.ones(2))
    >>> keeps(weight), keeps(weight * 1), keeps(weight.detach())
    (True, False, False)
    """
    return (
        tensor.requires_grad
        and tensor.is_leaf
        and tensor.dtype is torch.float32
        and type(tensor) in (nn.Parameter, Tensor)  # others may have no storage of their own
        and not tensor._is_view()
        and not torch._C._are_functorch_transforms_active()
        and not tensor.is_inference()
    )
