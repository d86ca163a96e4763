"""Small trainings with one difference, as pairs for the comparison of recordings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from labkit.formats import TF32
from labkit.instrument import watch
from labkit.interop import round_tensor


class Attention(nn.Module):
    """Causal attention with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        return self.out(scores.masked_fill(hidden, -1e9).softmax(-1) @ v)


class Block(nn.Module):
    """Layer of a transformer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    """Small transformer: 12 tokens in, the next 12 out."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 24)
        self.place = nn.Parameter(torch.randn(12, 24) / 8)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.Sequential(Block(24), Block(24))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.embed(tokens) + self.place)
        return self.head(self.norm(self.blocks(x))).flatten(0, 1)


class Lstm(nn.Module):
    """Recurrent network: the last state decides."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 24, batch_first=True)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.lstm(x)[0][:, -1]))


class Wrapped(nn.Module):
    """The same layers under other names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.inner = network

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def mlp(dropout: float) -> nn.Module:
    """Return a network of three linear layers."""
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.LayerNorm(64),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def cnn(dropout: float) -> nn.Module:
    """Return a network of two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(256, 10),
    )


# Name -> a function of the dropout that makes the network, and the shape of one example.
NETWORKS: dict[str, tuple[Callable[[float], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (20,)),
    "cnn": (cnn, (1, 8, 8)),
    "lstm": (Lstm, (9, 6)),
    "gpt": (Gpt, (12,)),
}


@dataclass(frozen=True)
class Training:
    """A small training. A copy with another field differs from it by what the field says.

    Attributes:
        network: A name of NETWORKS.
        optimizer: "AdamW" or "SGD".
        steps: Number of steps.
        seed: Seed of the initial weights and of dropout.
        order: Seed of the order of the batches; 0 for the order in which they are drawn.
        batches: Number of batches, which are repeated.
        dropout: Probability of dropout.
        lr: Learning rate.
        eps: Epsilon of AdamW.
        norm_eps: Epsilon of layer norms.
        sums: How linear layers add: "" as torch does, "slices", or "backwards".
        operands: "tf32" if linear layers round their operands to TF32.
        half: Name of a linear layer that computes in FP16.
        ranks: Number of ranks that share a batch, 1 or 2.
        lost_from: The first step without the gradients of the second rank.
        mkldnn: Whether torch may use oneDNN.
        fused: Whether the optimizer is fused.
        clip: Largest norm of the gradients.
        scaled: Whether a GradScaler scales the loss.
        draws: Random numbers that are drawn before the first step.
        labels: Added to the classes, modulo 10.
        wrapped: Whether the layers have other names.
    """

    network: str = "mlp"
    optimizer: str = "AdamW"
    steps: int = 40
    seed: int = 0
    order: int = 0
    batches: int = 16
    dropout: float = 0.0
    lr: float = 1e-2
    eps: float = 1e-8
    norm_eps: float = 1e-5
    sums: str = ""
    operands: str = ""
    half: str = ""
    ranks: int = 1
    lost_from: int | None = None
    mkldnn: bool = True
    fused: bool = False
    clip: float | None = None
    scaled: bool = False
    draws: int = 0
    labels: int = 0
    wrapped: bool = False


def sliced(x: Tensor, weight: Tensor, bias: Tensor | None, how: str) -> Tensor:
    """Return a linear layer's result, with its terms added in another order."""
    if how == "backwards":
        out = x.flip(-1) @ weight.flip(-1).T
    else:
        half = x.shape[-1] // 2
        out = x[..., :half] @ weight[:, :half].T + x[..., half:] @ weight[:, half:].T
    return out if bias is None else out + bias


class _Rounded(torch.autograd.Function):
    """Rounding of operands, and of the gradients that come back, as of a product in TF32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return round_tensor(x, TF32)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return round_tensor(gradients[0], TF32)


def prepare(model: nn.Module, training: Training) -> None:
    """Change how the layers of a model compute."""
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = training.norm_eps
        if not isinstance(module, nn.Linear):
            continue
        if training.sums:
            module.forward = lambda x, m=module: sliced(x, m.weight, m.bias, training.sums)
        if training.operands:
            module.forward = lambda x, m=module: nn.functional.linear(
                _Rounded.apply(x), _Rounded.apply(m.weight), m.bias
            )
        if name == training.half:
            module.forward = lambda x, m=module: nn.functional.linear(
                x.half(), m.weight.half(), m.bias.half()
            )


def optimizer_of(model: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the optimizer of a training."""
    if training.optimizer == "SGD":
        return torch.optim.SGD(
            model.parameters(), lr=training.lr, momentum=0.9, fused=training.fused
        )
    return torch.optim.AdamW(
        model.parameters(), lr=training.lr, eps=training.eps, fused=training.fused
    )


def batches(training: Training) -> list[tuple[Tensor, Tensor]]:
    """Return the batches of an epoch, in the order of the training."""
    generator = torch.Generator().manual_seed(7)
    in_order = []
    for _ in range(training.batches):
        shape = (32, *NETWORKS[training.network][1])
        if training.network == "gpt":
            x = torch.randint(10, shape, generator=generator)
            y = (x.cumsum(-1) % 10).flatten()
        else:
            x = torch.randn(shape, generator=generator)
            y = (x.flatten(1)[:, :10] * 2 + x.flatten(1)[:, 10:20]).argmax(1)
        in_order.append((x, y))
    if training.order:
        generator = torch.Generator().manual_seed(training.order)
        places = torch.randperm(len(in_order), generator=generator)
        return [in_order[place] for place in places]
    return in_order


def record(training: Training, path: Path, every: int = 1) -> Path:
    """Run a training, record it, and return the file."""
    torch.manual_seed(training.seed)
    make, _ = NETWORKS[training.network]
    model = make(training.dropout)
    prepare(model, training)
    if training.wrapped:
        model = Wrapped(model)
    torch.rand(training.draws)
    optimizer = optimizer_of(model, training)
    scaler = torch.amp.GradScaler("cpu", enabled=training.scaled)
    epoch = batches(training)
    flags = nullcontext() if training.mkldnn else torch.backends.mkldnn.flags(enabled=False)
    with flags, watch(model, every=every, against_fp32_every=0).record(path):
        for number in range(training.steps):
            x, y = epoch[number % len(epoch)]
            y = (y + training.labels) % 10
            if training.ranks == 2:
                _step_of_two_ranks(model, x, y, number, training)
            else:
                scaler.scale(cross_entropy(model(x).float(), y)).backward()
            if training.clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), training.clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return path


def _step_of_two_ranks(
    model: nn.Module, x: Tensor, y: Tensor, number: int, training: Training
) -> None:
    """Leave the gradients that the first of two ranks has after the all-reduce of a step."""
    half = len(x) // 2
    cross_entropy(model(x[:half]), y[:half]).backward()
    if training.lost_from is not None and number >= training.lost_from:
        return
    parameters = dict(model.named_parameters())
    # The other rank has a copy of the model.
    copies = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    with torch.random.fork_rng():
        out = torch.func.functional_call(model, copies, (x[half:],))
        others = torch.autograd.grad(cross_entropy(out, y[half:]), list(copies.values()))
    for parameter, other in zip(parameters.values(), others, strict=True):
        assert parameter.grad is not None
        parameter.grad.add_(other).div_(2)
