"""What the kernels of `wrong` and `right` compute, and steps that they share."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from labkit.formats import BF16, TF32
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


def _fp8(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """FP8 operands and their scales: of each row of A, and of each column of B."""
    a, b = normal(seed, 48, 256), normal(seed + 1, 256, 40)
    of_a, of_b = a.abs().amax(1, keepdim=True) / 448, b.abs().amax(0, keepdim=True) / 448
    return (a / of_a).to(torch.float8_e4m3fn), (b / of_b).to(torch.float8_e4m3fn), of_a, of_b


@cache
def case(name: str) -> Case:
    """Return the operands and the operation of a name."""
    found = _product(name) or _scaled_product(name) or _convolution(name) or _rows(name)
    assert found is not None, name
    return found


def _product(name: str) -> Case | None:
    a, b = normal(1, 64, 500), normal(2, 500, 48)
    if name in ("fp16", "fp16 to fp32", *SPECS):
        a, b = a.half(), b.half()
        return Case((a, b), matmul(a, b), {"accumulator": name if name in SPECS else "FP32"})
    if name == "positive":
        a, b = a.abs().half(), b.abs().half()
        return Case((a, b), matmul(a, b))
    if name == "bf16":
        a, b = a.bfloat16(), b.bfloat16()
        return Case((a, b), matmul(a, b))
    if name == "fp32":
        return Case((a, b), matmul(a, b))
    if name in ("tf32 allowed", "bf16 allowed"):
        format = TF32 if name.startswith("tf32") else BF16
        return Case((a, b), matmul(a, b, operands=format), {"accumulator": "A100"})
    if name == "square":
        a, b = a[:, :64].half(), b[:64].half() @ normal(3, 48, 64).half()
        return Case((a, b), matmul(a, b))
    return None


def _scaled_product(name: str) -> Case | None:
    a, b = normal(1, 64, 500), normal(2, 500, 48)
    if name == "bias":
        a, b, bias = a.half(), b.half(), normal(4, 48)
        return Case((a, b, bias), matmul(a, b, bias=bias))
    if name == "alpha":
        a, b = a.half(), b.half()
        return Case((a, b, 0.75), matmul(a, b, scale=0.75))
    if name == "batch":
        a, b = normal(5, 6, 24, 96).half(), normal(6, 6, 96, 32).half()
        return Case((a, b), matmul(a, b))
    if name in ("fp8", "fp8 H100"):
        a, b, of_a, of_b = _fp8(7)
        settings = {"accumulator": "H100"} if name == "fp8 H100" else {}
        return Case((a, b, of_a, of_b), matmul(a, b, scale=of_a.double() * of_b.double()), settings)
    if name == "blocks":  # two blocks of 128 along K, each with its scale
        x, y = normal(8, 32, 256), normal(9, 256, 24)
        scales = torch.tensor([0.5, 4.0])
        parts = [x[:, i * 128 : (i + 1) * 128].to(torch.float8_e4m3fn) for i in range(2)]
        wide = torch.cat([part.float() * scale for part, scale in zip(parts, scales, strict=True)], 1)
        return Case((parts, scales, y.bfloat16()), matmul(wide, y.bfloat16().float()))
    return None


def _convolution(name: str) -> Case | None:
    if name in ("conv", "conv dilated"):
        image, weight = normal(10, 2, 8, 14, 14), normal(11, 6, 8, 3, 3) / 4
        more = {"padding": 2, "dilation": 2} if name == "conv dilated" else {"padding": 1}
        return Case((image.half(), weight.half()), convolution(image.half(), weight.half(), **more))
    if name == "conv rectangle":
        image, weight = normal(12, 2, 4, 10, 16), normal(13, 6, 4, 3, 5)
        return Case((image, weight), convolution(image, weight, padding=(1, 2)))
    if name == "conv groups":
        image, weight = normal(14, 2, 8, 10, 10), normal(15, 12, 4, 3, 3)
        return Case((image, weight), convolution(image, weight, groups=2))
    if name == "sparse conv":
        image, weight = normal(16, 2, 64, 8, 8), normal(17, 4, 64, 3, 3)
        return Case((image.half(), weight.half()), convolution(image.half(), weight.half()))
    return None


def _rows(name: str) -> Case | None:
    if name == "softmax":
        x = (normal(18, 40, 250) * 2).half()
        return Case((x,), softmax(x))
    if name == "softmax low":  # scores far below 0
        x = normal(19, 40, 256) - 110
        return Case((x,), softmax(x))
    if name in ("layer norm", "layer norm fp32"):
        x, w, b = normal(20, 40, 250) + 0.5, normal(21, 250), normal(22, 250)
        x = x if name.endswith("fp32") else x.half()
        return Case((x, w, b), layer_norm(x, w, b))
    if name == "layer norm far":  # a mean of 300 standard deviations
        x = normal(23, 40, 256) + 300
        return Case((x,), layer_norm(x))
    if name == "layer norm small":
        x = (normal(24, 40, 256) * 2**-9).half()
        return Case((x,), layer_norm(x))
    if name == "rms norm":
        x, w = (normal(25, 40, 2880) + 0.25).bfloat16(), normal(26, 2880).bfloat16()
        return Case((x, w), rms_norm(x, w))
    if name == "rms norm small":  # mean squares near 2e-4
        x = (normal(27, 40, 640) * 0.014).half()
        return Case((x,), rms_norm(x))
    if name in ("sum", "mean"):
        x = normal(28, 60, 180)
        return Case((x,), sum_over(x, 1) if name == "sum" else mean(x, 1))
    if name == "long sum":
        x = normal(29, 16, 20_000).abs().half()
        return Case((x,), sum_over(x, 1))
    if name == "max":
        x = -normal(30, 60, 36).abs() - 1
        return Case((x,), amax(x, 1))
    return None


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
