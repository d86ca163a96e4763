"""What the kernels of `wrong` and `right` compute, and steps that they share."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from labkit.formats import BF16, TF32, Format
from labkit.gemm import SPECS
from labkit.testing import Operation, amax, convolution, layer_norm, matmul, mean, rms_norm, softmax, sum_over

Run = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """Arguments of kernels, what they are to compute, and how."""

    arguments: tuple[Any, ...]
    operation: Operation
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    name: str
    thread: str
    case: str
    run: Run


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _of(operation: Callable[..., Operation], *arguments: Any, **how: Any) -> Case:
    return Case(arguments, operation(*arguments, **how))


def _along_rows(operation: Callable[[Tensor, int], Operation], x: Tensor) -> Case:
    return Case((x,), operation(x, 1))


def _product(dtype: torch.dtype = torch.float32, **settings: Any) -> Case:
    a, b = normal(1, 64, 500).to(dtype), normal(2, 500, 48).to(dtype)
    return Case((a, b), matmul(a, b), settings)


def _narrower(operands: Format) -> Case:
    """A product of FP32 numbers that may be rounded to other operands."""
    a, b = normal(1, 64, 500), normal(2, 500, 48)
    return Case((a, b), matmul(a, b, operands=operands), {"accumulator": "A100"})


def _epilogue(**more: Any) -> Case:
    a, b = normal(1, 64, 500).half(), normal(2, 500, 48).half()
    return Case((a, b, *more.values()), matmul(a, b, **more))


def _square() -> Case:
    a, b = normal(1, 64, 500)[:, :64].half(), normal(2, 500, 48)[:64].half() @ normal(3, 48, 64).half()
    return _of(matmul, a, b)


def _fp8(**settings: Any) -> Case:
    """FP8 operands and their scales: of each row of A, and of each column of B."""
    a, b = normal(7, 48, 256), normal(8, 256, 40)
    of_a, of_b = a.abs().amax(1, keepdim=True) / 448, b.abs().amax(0, keepdim=True) / 448
    a, b = (a / of_a).to(torch.float8_e4m3fn), (b / of_b).to(torch.float8_e4m3fn)
    return Case((a, b, of_a, of_b), matmul(a, b, scale=of_a.double() * of_b.double()), settings)


def _blocks() -> Case:
    """Two blocks of 128 along K, each with its scale."""
    x, y = normal(8, 32, 256), normal(9, 256, 24)
    scales = torch.tensor([0.5, 4.0])
    parts = [x[:, i * 128 : (i + 1) * 128].to(torch.float8_e4m3fn) for i in range(2)]
    wide = torch.cat([part.float() * scale for part, scale in zip(parts, scales, strict=True)], 1)
    return Case((parts, scales, y.bfloat16()), matmul(wide, y.bfloat16().float()))


CASES: dict[str, Callable[[], Case]] = {
    "fp16": lambda: _product(torch.float16),
    "fp16 to fp32": lambda: _product(torch.float16),
    **{name: partial(_product, torch.float16, accumulator=name) for name in SPECS},
    "bf16": lambda: _product(torch.bfloat16),
    "fp32": _product,
    "positive": lambda: _of(matmul, normal(1, 64, 500).abs().half(), normal(2, 500, 48).abs().half()),
    "tf32 allowed": lambda: _narrower(TF32),
    "bf16 allowed": lambda: _narrower(BF16),
    "square": _square,
    "bias": lambda: _epilogue(bias=normal(4, 48)),
    "alpha": lambda: _epilogue(scale=0.75),
    "batch": lambda: _of(matmul, normal(5, 6, 24, 96).half(), normal(6, 6, 96, 32).half()),
    "fp8": _fp8,
    "fp8 H100": lambda: _fp8(accumulator="H100"),
    "blocks": _blocks,
    "conv": lambda: _of(convolution, normal(10, 2, 8, 14, 14).half(), (normal(11, 6, 8, 3, 3) / 4).half(), padding=1),
    "conv dilated": lambda: _of(
        convolution, normal(10, 2, 8, 14, 14).half(), (normal(11, 6, 8, 3, 3) / 4).half(), padding=2, dilation=2
    ),
    "conv rectangle": lambda: _of(convolution, normal(12, 2, 4, 10, 16), normal(13, 6, 4, 3, 5), padding=(1, 2)),
    "conv groups": lambda: _of(convolution, normal(14, 2, 8, 10, 10), normal(15, 12, 4, 3, 3), groups=2),
    "sparse conv": lambda: _of(convolution, normal(16, 2, 64, 8, 8).half(), normal(17, 4, 64, 3, 3).half()),
    "softmax": lambda: _of(softmax, (normal(18, 40, 250) * 2).half()),
    "softmax low": lambda: _of(softmax, normal(19, 40, 256) - 110),  # scores far below 0
    "layer norm": lambda: _of(layer_norm, (normal(20, 40, 250) + 0.5).half(), normal(21, 250), normal(22, 250)),
    "layer norm fp32": lambda: _of(layer_norm, normal(20, 40, 250) + 0.5, normal(21, 250), normal(22, 250)),
    "layer norm far": lambda: _of(layer_norm, normal(23, 40, 256) + 300),  # a mean of 300 standard deviations
    "layer norm small": lambda: _of(layer_norm, (normal(24, 40, 256) * 2**-9).half()),
    "rms norm": lambda: _of(rms_norm, (normal(25, 40, 2880) + 0.25).bfloat16(), normal(26, 2880).bfloat16()),
    "rms norm small": lambda: _of(rms_norm, (normal(27, 40, 640) * 0.014).half()),  # mean squares near 2e-4
    "sum": lambda: _along_rows(sum_over, normal(28, 60, 180)),
    "mean": lambda: _along_rows(mean, normal(28, 60, 180)),
    "long sum": lambda: _along_rows(sum_over, normal(29, 16, 20_000).abs().half()),
    "max": lambda: _along_rows(amax, -normal(30, 60, 36).abs() - 1),
}


@cache
def case(name: str) -> Case:
    """Return the operands and the operation of a name."""
    return CASES[name]()


def tiles(a: Tensor, b: Tensor, size: int = 64) -> Iterator[Tensor]:
    for k in range(0, a.shape[-1], size):
        yield a[..., k : k + size].float() @ b[..., k : k + size, :].float()


def chunked(a: Tensor, b: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Partial sums of K in FP32, added in another dtype."""
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=dtype)
    for part in tiles(a, b, size):
        total = (total.float() + part).to(dtype)
    return total


def full(a: Tensor, b: Tensor) -> Tensor:
    return a.float() @ b.float()


def scaled(y: Tensor, *scales: Tensor) -> Tensor:
    for scale in scales:
        y = y * scale
    return y


def block_scaled(parts: list[Tensor], scales: Tensor, y: Tensor) -> Tensor:
    cut = y.float().split(128)
    return torch.stack([p.float() @ q * s for p, q, s in zip(parts, cut, scales, strict=True)]).sum(0)


def online(x: Tensor, block: int, rescale: Callable[[Tensor, Tensor], Tensor], first: float = -math.inf) -> Tensor:
    """Online softmax: the sum is scaled whenever the maximum grows."""
    top, total = torch.full((len(x), 1), first), torch.zeros(len(x), 1)
    for part in x.float().split(block, 1):
        new = torch.maximum(top, part.amax(1, keepdim=True))
        total = total * rescale(top, new) + torch.exp(part - new).sum(1, keepdim=True)
        top = new
    return torch.exp(x.float() - top) / total


def rescale(old: Tensor, new: Tensor) -> Tensor:
    return torch.exp(old - new)


def norm(x: Tensor, w: Tensor | float = 1.0, b: Tensor | float = 0.0, eps: float = 1e-5, **other: Any) -> Tensor:
    """Layer norm with parts that a fault replaces: mean, variance, and the reciprocal of the deviation."""
    x = x.float()
    centre = other.get("mean", lambda x: x.mean(1, keepdim=True))(x)
    variance = other.get("variance", lambda d: (d * d).mean(1, keepdim=True))(x - centre)
    rstd = other.get("rstd", lambda v: torch.rsqrt(v + eps))(variance)
    return (x - centre) * rstd * w + b


def rms(x: Tensor, w: Tensor | float = 1.0, eps: float = 1e-6, **other: Any) -> Tensor:
    wide = x.float()
    squares = other.get("squares", lambda x: (x * x).mean(1, keepdim=True))(wide)
    rstd = other.get("rstd", lambda s: torch.rsqrt(s + eps))(squares)
    return wide * rstd * (w.float() if isinstance(w, Tensor) else w)
