"""Where does a batch come from, and where does it go?

Source: fastai.data.core, DataLoaders.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only


class DataLoaders:
    """A loader of training data, one of validation data, and the device that batches go to."""

    def __init__(self, *loaders: Any, device: torch.device | str | None = None) -> None:
        self.loaders, self.device = loaders, torch.device(device or "cpu")

    def __getitem__(self, i: int) -> Any:
        return self.loaders[i]

    def one_batch(self) -> Any:
        """Return the first training batch, on the device."""
        return on_device(self.device, next(iter(self.loaders[0])))

    train = property(lambda self: self.loaders[0])
    valid = property(lambda self: (*self.loaders, ())[1])  # without one, nothing is validated


def on_device(device: torch.device, batch: Any) -> Any:
    """Return a batch with its tensors on a device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)
