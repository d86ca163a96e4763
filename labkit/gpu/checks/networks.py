"""What is trained to compare two engines? Four small networks with their batch, always the same.

Invariant: `task` gives the same weights and data at each call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class Attending(nn.Module):
    """A transformer's encoder layer over the input's rows, and a projection of the last."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[:, -1])
        return out


class Remembering(nn.Module):
    """An LSTM over the input's rows, and a projection of its last state."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def mlp(width: int, out: int) -> nn.Module:
    """Return four layers and a norm."""
    deep = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*deep, nn.LayerNorm(width), nn.Linear(width, out))


def cnn(width: int, out: int) -> nn.Module:
    """Return two convolutions with batch norm, for 8 channels of 16 x 16."""
    channels = max(8, width // 8)
    first = (nn.Conv2d(8, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
    second = (nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * channels, out))


CLASSES = 16  # widths are multiples of 8 everywhere, as Tensor Cores like them
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "MLP": mlp,
    "CNN": cnn,
    "transformer": Attending,
    "LSTM": Remembering,
}


def task(network: str, width: int, batch: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, a batch and its targets, always the same."""
    torch.manual_seed(0)
    shape = {"MLP": (width,), "CNN": (8, 16, 16)}.get(network, (32, width))
    model = NETWORKS[network](width, CLASSES).to(device)
    return model, torch.randn(batch, *shape, device=device), torch.randint(0, CLASSES, (batch,), device=device)
