"""What happens around one backward pass, when its loss has several optimizers?

Source: apex.amp.handle, scale_loss.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from labkit.frameworks.apex.optimizers import Prepared
from labkit.frameworks.apex.scalers import LossScaler

LOG = logging.getLogger("labkit.frameworks.apex")


@contextmanager
def scaled(
    loss: Tensor, prepared: list[Prepared], scaler: LossScaler, *, delay: bool = False, checks: bool = True
) -> Iterator[Tensor]:
    """Yield a loss in FP32 times its scale; then unscale what it left, unless that is delayed, and move the scale.

    Raises:
        RuntimeError: gradients of another scale wait.
        TypeError: the loss is no tensor.
    """
    scale = scaler.loss_scale()
    for optimizer in prepared:
        optimizer.require_free(scale)
    try:
        for optimizer in prepared:
            optimizer.before_backward()
        yield wide(loss) * scale
    except BaseException:
        for optimizer in prepared:
            optimizer.undo()
        raise
    if delay:
        for optimizer in prepared:
            optimizer.scaled_by = scale
        return
    found = [optimizer.unscale(scale) for optimizer in prepared]
    if checks and scaler.must_skip(any(found)):
        LOG.warning("Gradient overflow.  Skipping step, reducing loss scale to %s", scaler.loss_scale())
        for optimizer in prepared:
            optimizer.skips = True


def wide(loss: Tensor) -> Tensor:
    """Return a loss in FP32."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss is the tensor that was computed, without .item() or float(); given: {loss!r}")
    return loss.float()
