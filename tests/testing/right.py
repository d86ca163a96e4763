"""Right kernels: other orders of the additions, other cards, other algorithms of the same operation."""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import E4M3, TF32
from labkit.gemm import SPECS, emulate
from tests.testing.cases import Kernel, Run, block_scaled, chunked, full, norm, online, rescale, rms, tiles


def _sequential(a: Tensor, b: Tensor, places: Tensor | None = None) -> Tensor:
    """FP32 sums, one product after the other, in some order of K."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]) if places is None else places.tolist():
        total = total + a[:, k, None].float() * b[k].float()
    return total


def _fused(a: Tensor, b: Tensor) -> Tensor:
    """Fused multiply-adds in FP32."""
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total = (total.double() + a[:, k, None].double() * b[k].double()).float()
    return total


def _kahan(terms: Tensor) -> Tensor:
    """Compensated sum over the first dimension."""
    total, lost = torch.zeros_like(terms[0]), torch.zeros_like(terms[0])
    for term in terms:
        more = term - lost
        new = total + more
        total, lost = new, (new - total) - more
    return total


def _tree(terms: Tensor) -> Tensor:
    while len(terms) > 1:
        terms = torch.cat([terms[0 : len(terms) // 2 * 2 : 2] + terms[1::2], terms[len(terms) // 2 * 2 :]])
    return terms[0]


def _slices(a: Tensor, b: Tensor, count: int) -> Tensor:
    """Split-K with FP32 partial sums."""
    size = -(-a.shape[1] // count)
    return _tree(torch.stack(list(tiles(a, b, size))))


def _card(name: str, dtype: torch.dtype = torch.float32) -> Run:
    return lambda a, b: emulate(a, b, None, SPECS[name]).to(dtype)


def _promoted(a: Tensor, b: Tensor, of_a: Tensor, of_b: Tensor) -> Tensor:
    """FP8 blocks of an H100, and an FP32 sum of every 128 products (DeepSeek-V3)."""
    spec = SPECS["H100"].for_operands(E4M3)
    parts = [emulate(a[:, k : k + 128], b[k : k + 128], None, spec) for k in range(0, a.shape[1], 128)]
    return (_tree(torch.stack(parts)) * of_a * of_b).bfloat16()


def _unfolded(x: Tensor, w: Tensor, padding: int) -> Tensor:
    columns = F.unfold(x.float(), w.shape[2:], padding=padding)
    y = w.float().flatten(1) @ columns
    return y.reshape(len(x), len(w), *(n + 2 * padding - 2 for n in x.shape[2:]))


def _by_taps(x: Tensor, w: Tensor) -> Tensor:
    wide, (height, width) = F.pad(x.float(), (1, 1, 1, 1)), x.shape[2:]
    taps = [torch.einsum("nchw,oc->nohw", wide[:, :, i : i + height, j : j + width], w[:, :, i, j].float())
            for i in range(3) for j in range(3)]  # fmt: skip
    return torch.stack(taps).sum(0)


def _base_two(x: Tensor) -> Tensor:
    scaled = x.float() * math.log2(math.e)
    parts = torch.exp2(scaled - scaled.amax(1, keepdim=True))
    return parts * (1 / parts.sum(1, keepdim=True))


def _welford(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.float()
    centre, squares = torch.zeros(len(x)), torch.zeros(len(x))
    for n in range(x.shape[1]):
        off = x[:, n] - centre
        centre = centre + off / (n + 1)
        squares = squares + off * (x[:, n] - centre)
    return (x - centre[:, None]) * torch.rsqrt(squares / x.shape[1] + 1e-5)[:, None] * w + b


def _shifted(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    x = x.float()
    centre = x.mean(1, keepdim=True)
    scale = torch.rsqrt((x - centre).square().mean(1, keepdim=True) + 1e-5) * w
    return x * scale + (b - centre * scale)


_SHUFFLED = torch.randperm(500, generator=torch.Generator().manual_seed(31))

RIGHT: tuple[Kernel, ...] = (
    Kernel("torch, fp16", "", "fp16", torch.matmul),
    Kernel("through FP32, fp16", "", "fp16", lambda a, b: full(a, b).half()),
    Kernel("split-K in 4, fp16", "", "fp16", lambda a, b: _slices(a, b, 4).half()),
    Kernel("through FP32, bf16", "", "bf16", lambda a, b: full(a, b).bfloat16()),
    Kernel("split-K in 4, bf16", "", "bf16", lambda a, b: _slices(a, b, 4).bfloat16()),
    Kernel("one by one", "", "fp16", lambda a, b: _sequential(a, b).half()),
    Kernel("FP64 inside", "", "fp16", lambda a, b: (a.double() @ b.double()).float().half()),
    Kernel("tiles of 32", "", "fp16", lambda a, b: chunked(a, b, 32, torch.float32).half()),
    Kernel("one by one, FP32 out", "", "fp16 to fp32", _sequential),
    Kernel("fused, FP32 out", "", "fp16 to fp32", _fused),
    Kernel("backwards", "", "fp16 to fp32", lambda a, b: _sequential(a, b, torch.arange(499, -1, -1))),
    Kernel("shuffled", "", "fp16 to fp32", lambda a, b: _sequential(a, b, _SHUFFLED)),
    Kernel("split-K in 8", "", "fp16 to fp32", lambda a, b: _slices(a, b, 8)),
    Kernel("split-K in 32", "", "fp16 to fp32", lambda a, b: _slices(a, b, 32)),
    Kernel("Kahan", "", "fp16 to fp32", lambda a, b: _kahan(a.float().T[:, :, None] * b.float()[:, None])),
    Kernel("pairwise", "", "fp16 to fp32", lambda a, b: _tree(a.float().T[:, :, None] * b.float()[:, None])),
    Kernel("FP64, rounded", "", "fp16 to fp32", lambda a, b: (a.double() @ b.double()).float()),
    Kernel("an IEEE unit is allowed where an H100 is", "", "H100", _sequential),
    Kernel("positive, one by one", "", "positive", _sequential),
    Kernel("positive, split-K", "", "positive", lambda a, b: _slices(a, b, 4).half()),
    Kernel("V100", "", "V100", _card("V100")),
    Kernel("T4", "", "T4", _card("T4")),
    Kernel("A100", "", "A100", _card("A100")),
    Kernel("H100", "", "H100", _card("H100")),
    Kernel("B200", "", "B200", _card("B200")),
    Kernel("H100, FP16 stored", "", "H100", _card("H100", torch.float16)),
    Kernel("A100, split-K", "", "A100",
           lambda a, b: sum(emulate(a[:, part], b[part], None, SPECS["A100"])
                            for part in (slice(0, 256), slice(256, 500)))),
    Kernel("FP32, torch", "", "fp32", torch.matmul),
    Kernel("FP32, fused", "", "fp32", _fused),
    Kernel("FP32, split-K", "", "fp32", lambda a, b: _slices(a, b, 5)),
    Kernel("FP32, numpy", "", "fp32",
           lambda a, b: torch.from_numpy(np.einsum("ik,kj->ij", a.numpy(), b.numpy()))),
    Kernel("TF32 where it is allowed", "", "tf32 allowed",
           lambda a, b: emulate(a, b, None, SPECS["A100"].for_operands(TF32))),
    Kernel("BF16 operands where they are allowed", "", "bf16 allowed", lambda a, b: full(a.bfloat16(), b.bfloat16())),
    Kernel("bias in the epilogue", "", "bias", lambda a, b, bias: (full(a, b) + bias).half()),
    Kernel("bias first", "", "bias", lambda a, b, bias: torch.addmm(bias, a.float(), b.float()).half()),
    Kernel("alpha in the epilogue", "", "alpha", lambda a, b, alpha: (full(a, b) * alpha).half()),
    Kernel("batched", "", "batch", torch.bmm),
    Kernel("scales multiplied first", "", "fp8", lambda a, b, of_a, of_b: (full(a, b) * (of_a * of_b)).bfloat16()),
    Kernel("FP8 with promotion", "", "fp8 H100", _promoted),
    Kernel("block scales", "", "blocks", lambda parts, scales, y: block_scaled(parts, scales, y).bfloat16()),
    Kernel("convolution, torch", "", "conv", lambda x, w: F.conv2d(x, w, padding=1)),
    Kernel("convolution, unfolded", "", "conv", lambda x, w: _unfolded(x, w, 1).half()),
    Kernel("convolution, tap by tap", "", "conv", lambda x, w: _by_taps(x, w).half()),
    Kernel("convolution, dilated", "", "conv dilated",
           lambda x, w: F.conv2d(x.float(), w.float(), padding=2, dilation=2).half()),
    Kernel("convolution, groups", "", "conv groups", lambda x, w: F.conv2d(x, w, groups=2)),
    Kernel("softmax, torch", "", "softmax", lambda x: torch.softmax(x, 1)),
    Kernel("softmax, online", "", "softmax", lambda x: online(x, 50, rescale).half()),
    Kernel("softmax, base 2", "", "softmax", lambda x: _base_two(x).half()),
    Kernel("softmax, FP32 out", "", "softmax low", lambda x: online(x, 16, rescale)),
    Kernel("layer norm, torch", "", "layer norm fp32", lambda x, w, b: F.layer_norm(x, (250,), w, b)),
    Kernel("layer norm, Welford", "", "layer norm", lambda x, w, b: _welford(x, w, b).half()),
    Kernel("layer norm, shifted", "", "layer norm fp32", _shifted),
    Kernel("layer norm, two passes, far", "", "layer norm far", lambda x: norm(x)),
    Kernel("RMS norm", "", "rms norm", lambda x, w: rms(x, w).bfloat16()),
    Kernel("RMS norm, small", "", "rms norm small", lambda x: F.rms_norm(x.float(), (640,), eps=1e-6).half()),
    Kernel("sum, pairwise", "", "sum", lambda x: _tree(x.T)),
    Kernel("sum, Kahan", "", "sum", lambda x: _kahan(x.T)),
    Kernel("long sum", "", "long sum", lambda x: x.float().sum(1)),
    Kernel("mean, times 1 / n", "", "mean", lambda x: x.sum(1) * (1 / 180)),
    Kernel("mean, shares", "", "mean", lambda x: (x / 180).sum(1)),
)  # fmt: skip
