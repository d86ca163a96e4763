"""Small kernels on a CPU, right ones and ones with faults from public threads.

RIGHT and WRONG are the lists of them. A fault is planted as its thread describes it, but with small
sizes and values, and a few faults are in another place. Right kernels add in another order, emulate
a card, or use another algorithm of the same operation.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import BF16, E4M3, FP16, TF32, Format, Rounding
from labkit.gemm import SEQUENTIAL_FP16, SPECS, accumulate, emulate
from labkit.interop import round_tensor
from labkit.testing import (
    Operation,
    amax,
    convolution,
    layer_norm,
    matmul,
    mean,
    rms_norm,
    softmax,
    sum_over,
)

Run = Callable[..., Tensor]


@dataclass(frozen=True)
class Case:
    """A task for kernels.

    Attributes:
        arguments: The arguments of the kernel.
        operation: What it must compute.
        settings: Further arguments of `labkit.testing.compare`.
    """

    arguments: tuple[Any, ...]
    operation: Operation
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Kernel:
    """A kernel and what it is run on.

    Attributes:
        name: What is special about it: its fault, or its order of additions.
        thread: The public thread that reports the fault, OWNER/REPOSITORY#NUMBER; "" if right.
        case: The name of its case.
        run: The kernel.
    """

    name: str
    thread: str
    case: str
    run: Run


def normal(seed: int, *shape: int) -> Tensor:
    """Return normally distributed FP32 numbers that depend on the seed alone."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _of(operation: Callable[..., Operation], *arguments: Any, **how: Any) -> Case:
    """Return a case of an operation whose kernels take the same tensors."""
    return Case(arguments, operation(*arguments, **how))


def _along_rows(operation: Callable[[Tensor, int], Operation], x: Tensor) -> Case:
    """Return a case of a reduction over the second dimension."""
    return Case((x,), operation(x, 1))


def _product(dtype: torch.dtype = torch.float32, **settings: Any) -> Case:
    """Return a case of a matrix product [64, 500] @ [500, 48]."""
    a = normal(1, 64, 500).to(dtype)
    b = normal(2, 500, 48).to(dtype)
    return Case((a, b), matmul(a, b), settings)


def _narrower(operands: Format) -> Case:
    """Return a case of a product of FP32 numbers, which a kernel may round to a narrower format."""
    a = normal(1, 64, 500)
    b = normal(2, 500, 48)
    return Case((a, b), matmul(a, b, operands=operands), {"accumulator": "A100"})


def _epilogue(**more: Any) -> Case:
    """Return a case of a product in FP16 with a scale or a bias."""
    a = normal(1, 64, 500).half()
    b = normal(2, 500, 48).half()
    return Case((a, b, *more.values()), matmul(a, b, **more))


def _square() -> Case:
    """Return a case of a product [64, 64] @ [64, 64], in which B can be transposed."""
    a = normal(1, 64, 500)[:, :64].half()
    b = normal(2, 500, 48)[:64].half() @ normal(3, 48, 64).half()
    return _of(matmul, a, b)


def _fp8(**settings: Any) -> Case:
    """Return a case of a product in FP8, with a scale for each row of A and each column of B."""
    a = normal(7, 48, 256)
    b = normal(8, 256, 40)
    # The scales bring the largest magnitude to the largest number of E4M3.
    of_a = a.abs().amax(1, keepdim=True) / E4M3.max
    of_b = b.abs().amax(0, keepdim=True) / E4M3.max
    a = (a / of_a).to(torch.float8_e4m3fn)
    b = (b / of_b).to(torch.float8_e4m3fn)
    return Case((a, b, of_a, of_b), matmul(a, b, scale=of_a.double() * of_b.double()), settings)


def _blocks() -> Case:
    """Return a case of a product whose A has two blocks of 128 along K, each with its scale."""
    x = normal(8, 32, 256)
    y = normal(9, 256, 24)
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
    "positive": lambda: _of(
        matmul, normal(1, 64, 500).abs().half(), normal(2, 500, 48).abs().half()
    ),
    "tf32 allowed": lambda: _narrower(TF32),
    "bf16 allowed": lambda: _narrower(BF16),
    "square": _square,
    "bias": lambda: _epilogue(bias=normal(4, 48)),
    "alpha": lambda: _epilogue(scale=0.75),
    "batch": lambda: _of(matmul, normal(5, 6, 24, 96).half(), normal(6, 6, 96, 32).half()),
    "fp8": _fp8,
    "fp8 H100": lambda: _fp8(accumulator="H100"),
    "blocks": _blocks,
    "conv": lambda: _of(
        convolution, normal(10, 2, 8, 14, 14).half(), (normal(11, 6, 8, 3, 3) / 4).half(), padding=1
    ),
    "conv dilated": lambda: _of(
        convolution,
        normal(10, 2, 8, 14, 14).half(),
        (normal(11, 6, 8, 3, 3) / 4).half(),
        padding=2,
        dilation=2,
    ),
    "conv rectangle": lambda: _of(
        convolution, normal(12, 2, 4, 10, 16), normal(13, 6, 4, 3, 5), padding=(1, 2)
    ),
    "conv groups": lambda: _of(
        convolution, normal(14, 2, 8, 10, 10), normal(15, 12, 4, 3, 3), groups=2
    ),
    "sparse conv": lambda: _of(
        convolution, normal(16, 2, 64, 8, 8).half(), normal(17, 4, 64, 3, 3).half()
    ),
    "softmax": lambda: _of(softmax, (normal(18, 40, 250) * 2).half()),
    # Scores far below 0: exp of them underflows unless the maximum is subtracted.
    "softmax low": lambda: _of(softmax, normal(19, 40, 256) - 110),
    "layer norm": lambda: _of(
        layer_norm, (normal(20, 40, 250) + 0.5).half(), normal(21, 250), normal(22, 250)
    ),
    "layer norm fp32": lambda: _of(
        layer_norm, normal(20, 40, 250) + 0.5, normal(21, 250), normal(22, 250)
    ),
    # The mean is 300 standard deviations.
    "layer norm far": lambda: _of(layer_norm, normal(23, 40, 256) + 300),
    "layer norm small": lambda: _of(layer_norm, (normal(24, 40, 256) * 2**-9).half()),
    "rms norm": lambda: _of(
        rms_norm, (normal(25, 40, 2880) + 0.25).bfloat16(), normal(26, 2880).bfloat16()
    ),
    # The mean squares are near 2e-4, so that an eps of 1e-4 or 1e-5 shows.
    "rms norm small": lambda: _of(rms_norm, (normal(27, 40, 640) * 0.014).half()),
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
    """Yield the FP32 products of tiles of `size` terms along K."""
    for k in range(0, a.shape[-1], size):
        yield a[..., k : k + size].float() @ b[..., k : k + size, :].float()


def chunked(a: Tensor, b: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return a product whose partial sums of `size` terms are FP32, and are added in a dtype."""
    total = torch.zeros(*a.shape[:-1], b.shape[-1], dtype=dtype)
    for part in tiles(a, b, size):
        total = (total.float() + part).to(dtype)
    return total


def full(a: Tensor, b: Tensor) -> Tensor:
    """Return the product in FP32."""
    return a.float() @ b.float()


def block_scaled(parts: list[Tensor], scales: Tensor, y: Tensor) -> Tensor:
    """Return the sum of the products of blocks of 128 along K, each times its scale."""
    blocks = zip(parts, y.float().split(128), scales, strict=True)
    products = [part.float() @ y_part * scale for part, y_part, scale in blocks]
    return torch.stack(products).sum(0)


def online(
    x: Tensor, block: int, rescale: Callable[[Tensor, Tensor], Tensor], first: float = -math.inf
) -> Tensor:
    """Return a softmax whose sum is rescaled when a block has a larger maximum.

    Args:
        x: Scores [rows, terms].
        block: Terms that are read at a time.
        rescale: Old and new maximum -> the factor of the sum so far.
        first: The maximum before the first block.
    """
    top = torch.full((len(x), 1), first)
    total = torch.zeros(len(x), 1)
    for part in x.float().split(block, 1):
        new = torch.maximum(top, part.amax(1, keepdim=True))
        total = total * rescale(top, new) + torch.exp(part - new).sum(1, keepdim=True)
        top = new
    return torch.exp(x.float() - top) / total


def rescale(old: Tensor, new: Tensor) -> Tensor:
    """Return the right factor of a sum of exponentials when its maximum grows."""
    return torch.exp(old - new)


def norm(
    x: Tensor, w: Tensor | float = 1.0, b: Tensor | float = 0.0, eps: float = 1e-5, **other: Any
) -> Tensor:
    """Return a layer norm whose parts may be replaced by faulty ones.

    Args:
        x: Values [rows, terms].
        w: Weight.
        b: Bias.
        eps: Added to the variance.
        **other: Functions for the parts: `mean` of x, `variance` of x minus its mean, and `rstd`,
            the reciprocal of the standard deviation, of the variance.
    """
    x = x.float()
    centre = other.get("mean", lambda x: x.mean(1, keepdim=True))(x)
    variance = other.get("variance", lambda d: (d * d).mean(1, keepdim=True))(x - centre)
    rstd = other.get("rstd", lambda v: torch.rsqrt(v + eps))(variance)
    return (x - centre) * rstd * w + b


def rms(x: Tensor, w: Tensor | float = 1.0, eps: float = 1e-6, **other: Any) -> Tensor:
    """Return an RMS norm whose parts may be replaced by faulty ones.

    Args:
        x: Values [rows, terms].
        w: Weight.
        eps: Added to the mean of squares.
        **other: Functions for the parts: `squares`, the mean of squares of x, and `rstd`, the
            reciprocal of their root.
    """
    wide = x.float()
    squares = other.get("squares", lambda x: (x * x).mean(1, keepdim=True))(wide)
    rstd = other.get("rstd", lambda s: torch.rsqrt(s + eps))(squares)
    return wide * rstd * (w.float() if isinstance(w, Tensor) else w)


# ---- right kernels


def in_turn(a: Tensor, b: Tensor, places: Tensor | None = None) -> Tensor:
    """Return a product that adds one term after the other in FP32.

    Args:
        a: [m, k].
        b: [k, n].
        places: The order of the terms along K; by default from first to last.
    """
    if places is None:
        places = torch.arange(a.shape[1])
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in places.tolist():
        total = total + a[:, k, None].float() * b[k].float()
    return total


def _fused(a: Tensor, b: Tensor) -> Tensor:
    """Return a product of fused multiply-adds: each product and sum is rounded to FP32 once."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = (total.double() + a[:, k, None].double() * b[k].double()).float()
    return total


def _kahan(terms: Tensor) -> Tensor:
    """Return the compensated sum over the first dimension, by Kahan's algorithm."""
    total = torch.zeros_like(terms[0])
    lost = torch.zeros_like(terms[0])
    for term in terms:
        more = term - lost
        new = total + more
        total, lost = new, (new - total) - more
    return total


def _tree(terms: Tensor) -> Tensor:
    """Return the pairwise sum over the first dimension."""
    while len(terms) > 1:
        paired = len(terms) // 2 * 2
        terms = torch.cat([terms[0:paired:2] + terms[1:paired:2], terms[paired:]])
    return terms[0]


def slices(a: Tensor, b: Tensor, count: int) -> Tensor:
    """Return a split-K product: the FP32 sums of `count` slices of K are added pairwise."""
    size = math.ceil(a.shape[1] / count)
    return _tree(torch.stack(list(tiles(a, b, size))))


def _card(name: str, dtype: torch.dtype = torch.float32) -> Run:
    """Return a product as a card's Tensor Cores compute it, stored in a dtype."""
    return lambda a, b: emulate(a, b, None, SPECS[name]).to(dtype)


def _promoted(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    """Return a product in FP8 whose sums of 128 terms on an H100 are added in FP32.

    DeepSeek-V3 is trained so.
    """
    spec = SPECS["H100"].for_operands(E4M3)
    parts = [
        emulate(a[:, k : k + 128], b[k : k + 128], None, spec) for k in range(0, a.shape[1], 128)
    ]
    return (_tree(torch.stack(parts)) * of_a * of_b).bfloat16()


def _unfolded(x: Tensor, w: Tensor, padding: int) -> Tensor:
    """Return a convolution with windows of 3 x 3, as a product of unfolded windows."""
    columns = F.unfold(x.float(), w.shape[2:], padding=padding)
    y = w.float().flatten(1) @ columns
    return y.reshape(len(x), len(w), *(n + 2 * padding - 2 for n in x.shape[2:]))


def _by_taps(x: Tensor, w: Tensor) -> Tensor:
    """Return a padded convolution as the sum over the nine places of its window."""
    wide = F.pad(x.float(), (1, 1, 1, 1))
    height, width = x.shape[2:]
    taps = [
        torch.einsum(
            "nchw,oc->nohw", wide[:, :, i : i + height, j : j + width], w[:, :, i, j].float()
        )
        for i in range(3)
        for j in range(3)
    ]
    return torch.stack(taps).sum(0)


def _base_two(x: Tensor) -> Tensor:
    """Return a softmax by powers of two of scaled scores."""
    scaled = x.float() * math.log2(math.e)
    parts = torch.exp2(scaled - scaled.amax(1, keepdim=True))
    return parts * (1 / parts.sum(1, keepdim=True))


def _welford(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a layer norm whose mean and variance are updated by each term."""
    x = x.float()
    centre = torch.zeros(len(x))
    squares = torch.zeros(len(x))
    for n in range(x.shape[1]):
        off = x[:, n] - centre
        centre = centre + off / (n + 1)
        squares = squares + off * (x[:, n] - centre)
    return (x - centre[:, None]) * torch.rsqrt(squares / x.shape[1] + 1e-5)[:, None] * w + b


def _shifted(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Return a layer norm as x times a scale plus a shift."""
    x = x.float()
    centre = x.mean(1, keepdim=True)
    scale = torch.rsqrt((x - centre).square().mean(1, keepdim=True) + 1e-5) * w
    return x * scale + (b - centre * scale)


_NARROW = ("fp16", torch.float16), ("bf16", torch.bfloat16)
_SHUFFLED = torch.randperm(500, generator=torch.Generator().manual_seed(31))

RIGHT: tuple[Kernel, ...] = (
    Kernel("torch, fp16", "", "fp16", torch.matmul),
    *(
        Kernel(f"through FP32, {n}", "", n, lambda a, b, to=dtype: full(a, b).to(to))
        for n, dtype in _NARROW
    ),
    *(
        Kernel(f"split-K in 4, {n}", "", n, lambda a, b, to=dtype: slices(a, b, 4).to(to))
        for n, dtype in _NARROW
    ),
    Kernel("one by one", "", "fp16", lambda a, b: in_turn(a, b).half()),
    Kernel("FP64 inside", "", "fp16", lambda a, b: (a.double() @ b.double()).float().half()),
    Kernel("tiles of 32", "", "fp16", lambda a, b: chunked(a, b, 32, torch.float32).half()),
    Kernel("one by one, FP32 out", "", "fp16 to fp32", in_turn),
    Kernel("fused, FP32 out", "", "fp16 to fp32", _fused),
    Kernel("backwards", "", "fp16 to fp32", lambda a, b: in_turn(a, b, torch.arange(499, -1, -1))),
    Kernel("shuffled", "", "fp16 to fp32", lambda a, b: in_turn(a, b, _SHUFFLED)),
    *(
        Kernel(f"split-K in {n}", "", "fp16 to fp32", lambda a, b, n=n: slices(a, b, n))
        for n in (8, 32)
    ),
    Kernel(
        "Kahan",
        "",
        "fp16 to fp32",
        lambda a, b: _kahan(a.float().T[:, :, None] * b.float()[:, None]),
    ),
    Kernel(
        "pairwise",
        "",
        "fp16 to fp32",
        lambda a, b: _tree(a.float().T[:, :, None] * b.float()[:, None]),
    ),
    Kernel("FP64, rounded", "", "fp16 to fp32", lambda a, b: (a.double() @ b.double()).float()),
    Kernel("an IEEE unit is allowed where an H100 is", "", "H100", in_turn),
    Kernel("positive, one by one", "", "positive", in_turn),
    Kernel("positive, split-K", "", "positive", lambda a, b: slices(a, b, 4).half()),
    *(Kernel(name, "", name, _card(name)) for name in ("V100", "T4", "A100", "H100", "B200")),
    Kernel("H100, FP16 stored", "", "H100", _card("H100", torch.float16)),
    Kernel(
        "A100, split-K",
        "",
        "A100",
        lambda a, b: sum(
            emulate(a[:, part], b[part], None, SPECS["A100"])
            for part in (slice(0, 256), slice(256, 500))
        ),
    ),
    Kernel("FP32, torch", "", "fp32", torch.matmul),
    Kernel("FP32, fused", "", "fp32", _fused),
    Kernel("FP32, split-K", "", "fp32", lambda a, b: slices(a, b, 5)),
    Kernel(
        "FP32, numpy",
        "",
        "fp32",
        lambda a, b: torch.from_numpy(np.einsum("ik,kj->ij", a.numpy(), b.numpy())),
    ),
    Kernel(
        "TF32 where it is allowed",
        "",
        "tf32 allowed",
        lambda a, b: emulate(a, b, None, SPECS["A100"].for_operands(TF32)),
    ),
    Kernel(
        "BF16 operands where they are allowed",
        "",
        "bf16 allowed",
        lambda a, b: full(a.bfloat16(), b.bfloat16()),
    ),
    Kernel("bias in the epilogue", "", "bias", lambda a, b, bias: (full(a, b) + bias).half()),
    Kernel(
        "bias first", "", "bias", lambda a, b, bias: torch.addmm(bias, a.float(), b.float()).half()
    ),
    Kernel("alpha in the epilogue", "", "alpha", lambda a, b, alpha: (full(a, b) * alpha).half()),
    Kernel("batched", "", "batch", torch.bmm),
    Kernel(
        "scales multiplied first",
        "",
        "fp8",
        lambda a, b, of_a, of_b: (full(a, b) * (of_a * of_b)).bfloat16(),
    ),
    Kernel("FP8 with promotion", "", "fp8 H100", _promoted),
    Kernel(
        "block scales",
        "",
        "blocks",
        lambda parts, scales, y: block_scaled(parts, scales, y).bfloat16(),
    ),
    Kernel("convolution, torch", "", "conv", lambda x, w: F.conv2d(x, w, padding=1)),
    Kernel("convolution, unfolded", "", "conv", lambda x, w: _unfolded(x, w, 1).half()),
    Kernel("convolution, tap by tap", "", "conv", lambda x, w: _by_taps(x, w).half()),
    Kernel(
        "convolution, dilated",
        "",
        "conv dilated",
        lambda x, w: F.conv2d(x.float(), w.float(), padding=2, dilation=2).half(),
    ),
    Kernel("convolution, groups", "", "conv groups", lambda x, w: F.conv2d(x, w, groups=2)),
    Kernel("softmax, torch", "", "softmax", lambda x: torch.softmax(x, 1)),
    Kernel("softmax, online", "", "softmax", lambda x: online(x, 50, rescale).half()),
    Kernel("softmax, base 2", "", "softmax", lambda x: _base_two(x).half()),
    Kernel("softmax, FP32 out", "", "softmax low", lambda x: online(x, 16, rescale)),
    Kernel(
        "layer norm, torch", "", "layer norm fp32", lambda x, w, b: F.layer_norm(x, (250,), w, b)
    ),
    Kernel("layer norm, Welford", "", "layer norm", lambda x, w, b: _welford(x, w, b).half()),
    Kernel("layer norm, shifted", "", "layer norm fp32", _shifted),
    Kernel("layer norm, two passes, far", "", "layer norm far", lambda x: norm(x)),
    Kernel("RMS norm", "", "rms norm", lambda x, w: rms(x, w).bfloat16()),
    Kernel(
        "RMS norm, small",
        "",
        "rms norm small",
        lambda x: F.rms_norm(x.float(), (640,), eps=1e-6).half(),
    ),
    Kernel("sum, pairwise", "", "sum", lambda x: _tree(x.T)),
    Kernel("sum, Kahan", "", "sum", lambda x: _kahan(x.T)),
    Kernel("long sum", "", "long sum", lambda x: x.float().sum(1)),
    Kernel("mean, times 1 / n", "", "mean", lambda x: x.sum(1) * (1 / 180)),
    Kernel("mean, shares", "", "mean", lambda x: (x / 180).sum(1)),
)


# ---- kernels with a fault


def _to_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return FP32 values rounded toward zero to FP16 or BF16."""
    format = {torch.float16: FP16, torch.bfloat16: BF16}[dtype]
    return round_tensor(values, format, Rounding.TOWARD_ZERO).to(dtype)


def _truncated_sum(a: Tensor, b: Tensor) -> Tensor:
    """Return a product that adds one term after the other, and rounds each sum toward zero."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(a.shape[1]):
        total = total + a[:, k, None].double() * b[k].double()
        # The significand of FP64 has 29 bits more than that of FP32: they are cleared.
        total = (total.view(torch.int64) & -(1 << 29)).view(torch.float64)
    return total.float()


def _wrapped(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """Return a product whose last tile reads beyond K: the first terms once more."""
    places = torch.arange(math.ceil(a.shape[1] / tile) * tile) % a.shape[1]
    return full(a[:, places], b[places])


def _stale_tile(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """Return a product whose last tile is not full, and is filled up by the tile before."""
    k = a.shape[1] // tile * tile
    rest = a.shape[1] - k
    return full(a, b) + full(a[:, k - tile + rest : k], b[k - tile + rest : k])


def _race(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """Return a product that multiplies one tile twice, as the copy of the next comes too late."""
    parts = list(tiles(a, b, tile))
    parts[3] = parts[2]
    return torch.stack(parts).sum(0)


def _swapped_blocks(y: Tensor) -> Tensor:
    """Return a result whose first two blocks of 16 rows are swapped."""
    return torch.cat([y[16:32], y[:16], y[32:]])


def _winograd(image: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a convolution by Winograd's F(4x4, 3x3).

    `bt`, `g` and `at` are its matrices for the inputs, the weights and the outputs (Lavin and Gray,
    2016). Transformed inputs and weights, and their products, are rounded to the dtype.
    """
    bt = torch.tensor(
        [
            [4.0, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ]
    )
    g = torch.tensor(
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ]
    )
    at = torch.tensor(
        [[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
    )
    height = image.shape[2] - 2
    width = image.shape[3] - 2
    image = F.pad(image.float(), (0, -width % 4, 0, -height % 4))
    tiles = image.unfold(2, 6, 4).unfold(3, 6, 4)
    left = (bt @ tiles @ bt.T).to(dtype).float()
    right = (g @ weight.float() @ g.T).to(dtype).float()
    products = torch.einsum("nchwxy,ocxy->nohwxy", left, right).to(dtype).float()
    outputs = at @ products @ at.T
    images, channels, rows, columns = outputs.shape[:4]
    y = outputs.permute(0, 1, 2, 4, 3, 5).reshape(images, channels, rows * 4, columns * 4)
    return y[:, :, :height, :width]


def _softmax(x: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """Return a softmax that divides by a faulty total of its exponentials."""
    parts = torch.exp(x.float() - x.float().amax(1, keepdim=True))
    return parts / total(parts)


def _one_pass(x: Tensor) -> Tensor:
    """Return a layer norm whose variance is the mean of squares minus the square of the mean."""
    x = x.float()
    centre = x.mean(1, keepdim=True)
    return (x - centre) * torch.rsqrt((x * x).mean(1, keepdim=True) - centre * centre + 1e-5)


# Abbreviations in the table.
_T = "triton-lang/triton"
_TT = "tenstorrent/tt-metal"
_F = torch.float16
_B = torch.bfloat16

WRONG: tuple[Kernel, ...] = (
    # Products: terms that are missing, wrong or counted twice.
    Kernel(
        "drops K behind the last full tile",
        f"{_T}#630",
        "fp16",
        lambda a, b: full(a[:, :448], b[:448]).half(),
    ),
    Kernel(
        "drops the last term",
        "dmlc/minerva#40",
        "fp16",
        lambda a, b: full(a[:, :-1], b[:-1]).half(),
    ),
    Kernel(
        "reads wrapped rows in the last tile",
        f"{_T}#1760",
        "fp16",
        lambda a, b: _wrapped(a, b).half(),
    ),
    Kernel(
        "no mask: the tile before in shared memory",
        "gpu-mode/lectures#51",
        "fp16",
        lambda a, b: _stale_tile(a, b).half(),
    ),
    Kernel(
        "copy is late: one tile twice, another never",
        f"{_T}#5990",
        "bf16",
        lambda a, b: _race(a, b).bfloat16(),
    ),
    Kernel(
        "split-K: workspace holds an old slice",
        "ROCm/composable_kernel#2697",
        "fp16",
        lambda a, b: (full(a, b) + full(a[:, :125], b[:125])).half(),
    ),
    Kernel(
        "split-K: an empty slice adds its old accumulator",
        "NVIDIA/TensorRT-LLM#18369",
        "fp16",
        lambda a, b: (full(a, b) + 0.25).half(),
    ),
    Kernel(
        "split-K: the last slice wins",
        "microsoft/ark#199",
        "fp16",
        lambda a, b: full(a[:, 375:], b[375:]).half(),
    ),
    Kernel(
        "split-K: slices land in the output",
        "NVIDIA/cutlass#3538",
        "fp16",
        lambda a, b: full(a[:, :125], b[:125]).half(),
    ),
    Kernel(
        "edge tile of the output is not written",
        "facebookexperimental/triton#3401",
        "fp16",
        lambda a, b: F.pad(full(a, b)[:, :32], (0, 16)).half(),
    ),
    Kernel(
        "tiles of the output are swapped",
        "flagos-ai/FlagGems#989",
        "fp16",
        lambda a, b: _swapped_blocks(full(a, b)).half(),
    ),
    Kernel("transposed B", f"{_T}#187", "square", lambda a, b: full(a, b.T).half()),
    # Products: formats and rounding.
    Kernel(
        "FP16 accumulator",
        "sonos/tract#2588",
        "fp16",
        lambda a, b: accumulate(a, b, None, SEQUENTIAL_FP16, FP16),
    ),
    Kernel(
        "FP16 accumulator of the destination register",
        f"{_TT}#8449",
        "positive",
        lambda a, b: chunked(a, b, 32, _F),
    ),
    Kernel(
        "FP16 C and D in a Tensor Core",
        "ROCm/rocm-libraries#2739",
        "H100",
        lambda a, b: emulate(a, b, None, SPECS["H100"], FP16),
    ),
    Kernel("BF16 partial sums", "ROCm/aiter#5031", "bf16", lambda a, b: chunked(a, b, 64, _B)),
    Kernel(
        "FP16 partial sums of split-K",
        "uxlfoundation/oneDNN#3332",
        "fp16",
        lambda a, b: chunked(a, b, 125, _F),
    ),
    Kernel(
        "cuts the result to BF16",
        "stillwater-sc/universal#1133",
        "bf16",
        lambda a, b: _to_zero(full(a, b), _B),
    ),
    Kernel(
        "cuts the result to FP16", f"{_TT}#57408", "fp16", lambda a, b: _to_zero(full(a, b), _F)
    ),
    Kernel(
        "rounds FP32 sums toward zero",
        f"{_TT}#19882",
        "positive",
        lambda a, b: _truncated_sum(a, b),
    ),
    Kernel(
        "TF32 where FP32 was promised",
        "ml-explore/mlx#3860",
        "fp32",
        lambda a, b: full(round_tensor(a, TF32), round_tensor(b, TF32)),
    ),
    Kernel(
        "TF32 operands cut, not rounded",
        "tile-ai/tilelang#493",
        "fp32",
        lambda a, b: full(*(round_tensor(each, TF32, Rounding.TOWARD_ZERO) for each in (a, b))),
    ),
    Kernel(
        "BF16 operands where FP32 was promised",
        "vllm-project/vllm#55131",
        "fp32",
        lambda a, b: full(a.bfloat16(), b.bfloat16()),
    ),
    # Scales and biases.
    Kernel("bias is not added", "pytorch/helion#795", "bias", lambda a, b, bias: full(a, b).half()),
    Kernel(
        "bias missing where tiles are aggregated",
        "ROCm/tritonBLAS#67",
        "bias",
        lambda a, b, bias: torch.cat([full(a, b)[:32] + bias, full(a, b)[32:]]).half(),
    ),
    Kernel(
        "bias along the wrong axis",
        "openxla/xla#46897",
        "bias",
        lambda a, b, bias: (full(a, b) + F.pad(bias, (0, 16))[:, None]).half(),
    ),
    Kernel(
        "bias in every slice of K",
        "trymirai/uzu#481",
        "bias",
        lambda a, b, bias: (full(a, b) + 2 * bias).half(),
    ),
    Kernel(
        "sum is stored before alpha is applied",
        "NVIDIA/cutlass#423",
        "alpha",
        lambda a, b, alpha: (full(a, b).half().float() * alpha).half(),
    ),
    Kernel(
        "scale of A is missing",
        "ml-explore/mlx#3762",
        "fp8",
        lambda a, b, of_a, of_b: (full(a, b) * of_b).bfloat16(),
    ),
    Kernel(
        "scale is applied twice",
        "meta-pytorch/tritonbench#1145",
        "fp8",
        lambda a, b, of_a, of_b: (full(a, b) * of_a * of_b * of_b).bfloat16(),
    ),
    Kernel(
        "one scale of the tensor for all rows",
        "paiml/aprender#2810",
        "fp8",
        lambda a, b, of_a, of_b: (full(a, b) * of_a.amax() * of_b).bfloat16(),
    ),
    Kernel(
        "scale rounded to a power of two afterwards",
        "sgl-project/sglang#28418",
        "fp8",
        lambda a, b, of_a, of_b: (
            full(a, b) * torch.exp2(torch.log2(of_a).ceil()) * of_b
        ).bfloat16(),
    ),
    Kernel(
        "scale after the cast",
        "huggingface/transformers#46763",
        "fp8",
        lambda a, b, of_a, of_b: full(a, b).bfloat16() * (of_a * of_b).bfloat16(),
    ),
    Kernel(
        "first block's scale for all blocks",
        "mlc-ai/TIRx-kernels#5",
        "blocks",
        lambda parts, scales, y: block_scaled(parts, scales[:1].expand(2), y).bfloat16(),
    ),
    # Convolutions.
    Kernel(
        "dilation is ignored in the padding",
        "AlexeyAB/darknet#4836",
        "conv dilated",
        lambda x, w: F.conv2d(F.pad(x.float(), (1, 3, 1, 3)), w.float(), dilation=2).half(),
    ),
    Kernel(
        "padding of height and width swapped",
        "AlexeyAB/darknet#4836",
        "conv rectangle",
        lambda x, w: F.pad(F.conv2d(x, w, padding=(2, 1)), (1, 1))[:, :, 1:-1],
    ),
    Kernel(
        "window flipped",
        "ml-explore/mlx#2038",
        "conv",
        lambda x, w: F.conv2d(x.float(), w.float().flip(2, 3), padding=1).half(),
    ),
    Kernel(
        "gap between taps off by one",
        "Tencent/ncnn#75",
        "conv dilated",
        lambda x, w: F.conv2d(x.float(), w.float(), padding=1).half(),
    ),
    Kernel(
        "first group's channels for all groups",
        "ROCm/MIOpen#951",
        "conv groups",
        lambda x, w: F.conv2d(torch.cat([x[:, :4]] * 2, 1), w, groups=2),
    ),
    Kernel(
        "Winograd in FP16",
        "pytorch/pytorch#35655",
        "sparse conv",
        lambda x, w: _winograd(x, w, _F).half(),
    ),
    # Softmax.
    Kernel(
        "padded places count in the sum",
        "tensorflow/tensorflow#108244",
        "softmax",
        lambda x: _softmax(
            x, lambda p: p.sum(1, keepdim=True) + 6 * torch.exp(-x.float().amax(1, keepdim=True))
        ).half(),
    ),
    Kernel(
        "misses index 0 in the sum",
        "dmlc/minerva#40",
        "softmax",
        lambda x: _softmax(x, lambda p: p[:, 1:].sum(1, keepdim=True)).half(),
    ),
    Kernel(
        "last tile without the maximum",
        f"{_TT}#51278",
        "softmax",
        lambda x: _softmax(
            x,
            lambda p: (
                p[:, :224].sum(1, keepdim=True) + torch.exp(x[:, 224:].float()).sum(1, keepdim=True)
            ),
        ).half(),
    ),
    Kernel(
        "inverse correction",
        "Dao-AILab/flash-attention#991",
        "softmax",
        lambda x: online(x, 50, lambda old, new: torch.exp((new - old).clamp(max=80))).half(),
    ),
    Kernel(
        "no correction",
        "tile-ai/tilelang#1148",
        "softmax",
        lambda x: online(x, 50, lambda old, new: torch.ones_like(new)).half(),
    ),
    Kernel(
        "maximum of a masked block is 0",
        "Dao-AILab/flash-attention#2082",
        "softmax low",
        lambda x: online(x, 64, rescale, first=0.0),
    ),
    # Norms.
    Kernel(
        "eps added to the count",
        "xlite-dev/LeetCUDA#309",
        "layer norm small",
        lambda x: norm(x, rstd=lambda v: torch.rsqrt(v * 256 / (256 + 1e-5))).half(),
    ),
    Kernel(
        "eps outside of the root",
        "tile-ai/tilelang#1243",
        "layer norm small",
        lambda x: norm(x, rstd=lambda v: 1 / (v.sqrt() + 1e-5)).half(),
    ),
    Kernel(
        "variance over padded zeros",
        f"{_T}#9838",
        "layer norm",
        lambda x, w, b: norm(
            x,
            w,
            b,
            variance=lambda d: (
                ((d * d).sum(1, keepdim=True) + 6 * (x.float() - d).mean(1, keepdim=True) ** 2)
                / 250
            ),
        ).half(),
    ),
    Kernel(
        "variance divided by n - 1",
        "FluxML/Flux.jl#529",
        "layer norm",
        lambda x, w, b: norm(x, w, b, variance=lambda d: (d * d).sum(1, keepdim=True) / 249).half(),
    ),
    Kernel(
        "mean of squares minus square of mean", "pytorch/pytorch#55044", "layer norm far", _one_pass
    ),
    Kernel(
        "partial warp is left out of the squares",
        "flashinfer-ai/flashinfer#3879",
        "rms norm",
        lambda x, w: rms(
            x, w, squares=lambda x: (x[:, :2560] ** 2).sum(1, keepdim=True) / 2880
        ).bfloat16(),
    ),
    Kernel(
        "variance in place of mean of squares",
        "keras-team/keras#22393",
        "rms norm",
        lambda x, w: rms(x, w, squares=lambda x: x.var(1, keepdim=True, correction=0)).bfloat16(),
    ),
    Kernel(
        "eps of 1e-4",
        "nntrainer/nntrainer#4318",
        "rms norm small",
        lambda x: rms(x, eps=1e-4).half(),
    ),
    Kernel(
        "eps of 1e-5", "NVIDIA/cutlass#1112", "rms norm small", lambda x: rms(x, eps=1e-5).half()
    ),
    Kernel(
        "reciprocal in BF16",
        "amd/IRON#139",
        "rms norm",
        lambda x, w: rms(x, w, rstd=lambda s: torch.rsqrt(s + 1e-6).bfloat16().float()).bfloat16(),
    ),
    # Reductions.
    Kernel(
        "partial warp counted beyond its lanes",
        "flashinfer-ai/flashinfer#3880",
        "sum",
        lambda x: x.sum(1) + x[:, 168:].sum(1),
    ),
    Kernel("partial warp left out", "bytedance/lightseq#166", "sum", lambda x: x[:, :160].sum(1)),
    Kernel(
        "garbage in padded places",
        "torch-spyre/torch-spyre#4390",
        "mean",
        lambda x: (x.sum(1) + x[:, :12].sum(1)) / 180,
    ),
    Kernel("maximum begins at 0", f"{_TT}#12662", "max", lambda x: F.pad(x, (0, 28)).amax(1)),
)
