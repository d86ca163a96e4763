"""Numbers that are read from tensors, with as few waits for a device as possible.

A number on a device is known to the host only when the device has computed it. So scalars of a step
are read together, and a number that is read again and again is cached.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def read_scalars(scalars: Sequence[Tensor]) -> list[float]:
    """Read scalars, each on its device, to the host, with one wait for all.

    >>> read_scalars([torch.tensor(1.0), torch.tensor(True)])
    [1.0, 1.0]
    """
    home = next((scalar.device for scalar in scalars if not scalar.is_cpu), None)
    if home is None or len(scalars) == 1:
        return [float(scalar.item()) for scalar in scalars]
    # copies to one device do not block; `tolist` is the only wait
    gathered = [
        scalar if scalar.device == home else scalar.to(home, non_blocking=True)
        for scalar in scalars
    ]
    values: list[float] = torch.stack(gathered).tolist()
    return [float(value) for value in values]


class Readings:
    """A cache of the values of 1-element tensors, because reading a tensor makes the host wait.

    An edit of a tensor invalidates its cached value, unless it goes through `.data`.
    """

    def __init__(self) -> None:
        # id of a tensor -> the tensor, so that its id is not reused, its version and its value
        self._values: dict[int, tuple[Tensor, int, float]] = {}

    def read(self, tensor: Tensor) -> float:
        """Return the number in a 1-element tensor.

        >>> readings, scale = Readings(), torch.tensor(8.0)
        >>> readings.read(scale), readings.read(scale.mul_(2))
        (8.0, 16.0)
        """
        known = self._values.get(id(tensor))
        if known is None or known[1] != tensor._version:
            value = float(tensor)
            self._values[id(tensor)] = (tensor, tensor._version, value)
            return value
        return known[2]

    def write(self, tensor: Tensor, value: float) -> None:
        """Fill a tensor with a number that its dtype holds exactly, and cache the number."""
        tensor.fill_(value)
        self._values[id(tensor)] = (tensor, tensor._version, value)

    def clear(self) -> None:
        """Discard all cached values."""
        self._values.clear()
