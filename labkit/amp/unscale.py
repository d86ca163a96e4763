"""What were the gradients before the loss was scaled, and are they all finite?

Idea: convert to FP32 *before* dividing. The other way round, the division would push every small gradient off FP16's
bottom again, and all the scaling was for nothing.

Invariant: found_inf is False exactly when every gradient that is returned is finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def unscale(gradients: Sequence[Tensor], scale: float) -> tuple[list[Tensor], bool]:
    """Return the FP32 gradients of the unscaled loss, and whether any of them holds inf or NaN.

    The inputs stay as they are. The host waits for the device once, however many tensors there are.

    Raises:
        ValueError: scale is not a positive finite number.

    >>> unscale([torch.tensor([1024.0, 6e-8]).half()], scale=1024.0)
    ([tensor([1.0000e+00, 5.8208e-11])], False)
    """
    if not 0 < scale < float("inf"):
        raise ValueError(f"a loss scale is a positive finite number; it was given {scale!r}")
    unscaled = [g.float() / scale for g in gradients]
    finite = [torch.isfinite(g).all() for g in unscaled]  # not before: converting FP64 or a scale below 1 may overflow
    return unscaled, bool(finite) and not bool(torch.stack(finite).all())
