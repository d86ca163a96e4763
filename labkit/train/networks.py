"""Small networks of families that are trained in mixed precision.

Idea: every network is a plain torch module in FP32, independent of precision. Layers have readable
names for histograms: conv1, norm1, relu1, conv2, ...

Invariant: initial weights are drawn from torch's global generator, which the run seeds.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# The approximate share of a canvas's pixels that one class of digits covers.
RARE = 0.01


class Unit(nn.Module):
    """Multiplication by a constant, the unit in which the layers before it compute."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.unit


LAYER_NAMES = {
    nn.Conv2d: "conv",
    nn.GroupNorm: "norm",
    nn.BatchNorm2d: "norm",
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.MaxPool2d: "pool",
    nn.PixelShuffle: "shuffle",
    nn.Flatten: "flatten",
    nn.Linear: "linear",
    Unit: "unit",
}


def chain(*layers: nn.Module) -> nn.Sequential:
    """Return the layers in sequence, named by kind and number.

    >>> list(dict(chain(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)).named_children()))
    ['linear1', 'relu1', 'linear2']
    """
    counts: Counter[str] = Counter()
    named: dict[str, nn.Module] = {}
    for layer in layers:
        kind = LAYER_NAMES[type(layer)]
        counts[kind] += 1
        named[f"{kind}{counts[kind]}"] = layer
    return nn.Sequential(OrderedDict(named))


def mlp(hidden: int = 128, depth: int = 4) -> nn.Module:
    """Return a classifier of 8 x 8 digits with `depth` hidden layers."""
    layers: list[nn.Module] = [nn.Flatten()]
    inputs = 64
    for _ in range(depth):
        layers += [nn.Linear(inputs, hidden), nn.ReLU()]
        inputs = hidden
    layers.append(nn.Linear(hidden, 10))
    return chain(*layers)


def batch_norm_cnn(channels: int = 16) -> nn.Module:
    """Return a classifier of 8 x 8 digits: two blocks of convolution and batch norm."""
    first = (
        nn.Conv2d(1, channels, 3, padding=1),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    second = (
        nn.Conv2d(channels, 2 * channels, 3, padding=1),
        nn.BatchNorm2d(2 * channels),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    return chain(*first, *second, nn.Flatten(), nn.Linear(2 * channels * 4, 10))


def gauss_conv(depth: int = 6, channels: int = 32, deviation: float = 0.01) -> nn.Module:
    """Return plain convolutions without normalisation, all weights drawn from N(0, deviation)."""
    layers: list[nn.Module] = []
    for i in range(depth):
        inputs = 1 if i == 0 else channels
        layers += [nn.Conv2d(inputs, channels, 3, padding=1), nn.ReLU()]
        if i == 1:
            layers.append(nn.MaxPool2d(2))
    net = chain(*layers, nn.Flatten(), nn.Linear(channels * 4 * 4, 10))
    for name, parameter in net.named_parameters():
        if name.endswith("weight"):
            # as in AlexNet, regardless of depth
            nn.init.normal_(parameter, std=deviation)
        else:
            nn.init.zeros_(parameter)
    return net


def segmenter(channels: int = 32) -> nn.Module:
    """Return a network that predicts, for each pixel of a canvas, which of ten digits cover it."""
    first = (*_block(1, channels), nn.MaxPool2d(2))
    return chain(
        *first, *_block(channels, channels), *_block(channels, channels), *_pixel_head(channels, 2)
    )


def patch_segmenter(channels: int = 32, patch: int = 4) -> nn.Module:
    """Return a `segmenter` at a third of the cost: its first convolution is strided."""
    first = _block(1, channels, nn.Conv2d(1, channels, patch + 2, stride=patch, padding=1))
    return chain(
        *first,
        *_block(channels, channels),
        *_block(channels, channels),
        *_pixel_head(channels, patch),
    )


def _block(inputs: int, outputs: int, conv: nn.Conv2d | None = None) -> tuple[nn.Module, ...]:
    if conv is None:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1)
    return conv, nn.GroupNorm(4, outputs), nn.ReLU()


def _pixel_head(channels: int, upscale: int) -> tuple[nn.Module, ...]:
    """Return layers for ten logits of every pixel, with a bias of the log odds of RARE."""
    head = nn.Conv2d(channels, 10 * upscale**2, 1)
    assert head.bias is not None
    nn.init.constant_(head.bias, math.log(RARE / (1 - RARE)))
    return head, nn.PixelShuffle(upscale)


def autoencoder(hidden: int = 64, code: int = 24) -> nn.Module:
    """Return a network from 8 x 8 pixels through `code` numbers back to 64 pixels."""
    encoder = (nn.Flatten(), nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, code), nn.ReLU())
    return chain(*encoder, nn.Linear(code, hidden), nn.ReLU(), nn.Linear(hidden, 64))


def tanh_mlp(inputs: int = 8, hidden: int = 64) -> nn.Module:
    """Return a regression of one number from `inputs` numbers, with an initial output of 0."""
    last = nn.Linear(hidden, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return chain(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), last)


def painter(inputs: int, unit: float, hidden: int = 64) -> nn.Module:
    """Return a regression of one number from `inputs` numbers, in a `unit` of brightness.

    By the chain rule, the last layer multiplies every gradient before it by `unit`.
    """
    brightness = nn.Linear(hidden, 1)
    nn.init.zeros_(brightness.bias)
    first = (nn.Linear(inputs, hidden), nn.Tanh())
    return chain(*first, nn.Linear(hidden, hidden), nn.Tanh(), brightness, Unit(unit))


class CharLstm(nn.Module):
    """LSTM that predicts the next character: characters [n, t] -> logits [n, t, vocabulary]."""

    def __init__(self, vocabulary: int, width: int = 96) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(characters))
        return self.head(states)  # type: ignore[no-any-return]


class _Attention(nn.Module):
    """Causal self-attention: [n, t, width] -> [n, t, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, t, width = x.shape
        q, k, v = self.qkv(x).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(n, t, width))  # type: ignore[no-any-return]


class _Transformer(nn.Module):
    """Pre-norm transformer block: attention and a two-layer network, each with a residual."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = _Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))  # type: ignore[no-any-return]


class Gpt(nn.Module):
    """Transformer for the next character: characters [n, t] -> logits [n, t, vocabulary]."""

    def __init__(
        self, vocabulary: int, length: int, width: int = 64, heads: int = 4, depth: int = 2
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(_Transformer(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, characters: Tensor) -> Tensor:
        places = torch.arange(characters.shape[1], device=characters.device)
        x = self.blocks(self.embedding(characters) + self.position(places))
        return self.head(self.norm(x))  # type: ignore[no-any-return]


class Unet(nn.Module):
    """U-Net that classifies each pixel: images [n, 1, h, w] -> logits [n, classes, h, w].

    Both h and w are even.
    """

    def __init__(self, classes: int = 3, channels: int = 16) -> None:
        super().__init__()
        self.down = nn.Sequential(*_block(1, channels), *_block(channels, channels))
        self.bottom = nn.Sequential(
            nn.MaxPool2d(2), *_block(channels, 2 * channels), *_block(2 * channels, 2 * channels)
        )
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.merge = nn.Sequential(*_block(2 * channels, channels), nn.Conv2d(channels, classes, 1))

    def forward(self, images: Tensor) -> Tensor:
        fine = self.down(images)
        coarse = self.up(self.bottom(fine))
        return self.merge(torch.cat([fine, coarse], dim=1))  # type: ignore[no-any-return]
