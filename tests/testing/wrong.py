"""Kernels with faults that public threads report, as small functions on a CPU.

A row is a name, the thread that the fault was drawn from, its case, and the function. A fault is planted as the thread
describes it; sizes and values are small, and a few faults moved to another place.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.formats import BF16, FP16, TF32, Rounding
from labkit.gemm import SEQUENTIAL_FP16, SPECS, accumulate, emulate
from labkit.interop import round_tensor
from tests.testing.cases import Kernel, block_scaled, chunked, full, norm, online, rescale, rms, scaled, tiles


def _to_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    format = {torch.float16: FP16, torch.bfloat16: BF16}[dtype]
    return round_tensor(values, format, Rounding.TOWARD_ZERO).to(dtype)


def _truncated_sum(a: Tensor, b: Tensor) -> Tensor:
    """FP32 additions one by one, each rounded toward zero."""
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float64)
    for k in range(a.shape[1]):
        total = total + a[:, k, None].double() * b[k].double()
        total = (total.view(torch.int64) & -(1 << 29)).view(torch.float64)
    return total.float()


def _wrapped(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """The last tile reads on: at the row's beginning."""
    places = torch.arange(-(-a.shape[1] // tile) * tile) % a.shape[1]
    return full(a[:, places], b[places])


def _stale_tile(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """Where the last tile ends early, shared memory still holds the tile before."""
    k = a.shape[1] // tile * tile
    rest = a.shape[1] - k
    return full(a, b) + full(a[:, k - tile + rest : k], b[k - tile + rest : k])


def _race(a: Tensor, b: Tensor, tile: int = 64) -> Tensor:
    """One tile is read before the copy has arrived: the tile before is multiplied again."""
    parts = list(tiles(a, b, tile))
    parts[3] = parts[2]
    return torch.stack(parts).sum(0)


def _swapped_blocks(y: Tensor) -> Tensor:
    """Two blocks of rows are written to each other's place."""
    return torch.cat([y[16:32], y[:16], y[32:]])


def _winograd(image: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """F(4x4, 3x3) with its transformed operands in a dtype."""
    bt = torch.tensor([[4.0, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0],
                       [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1]])  # fmt: skip
    g = torch.tensor([[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6],
                      [1 / 24, -1 / 12, 1 / 6], [0, 0, 1]])  # fmt: skip
    at = torch.tensor([[1.0, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])
    height, width = image.shape[2] - 2, image.shape[3] - 2
    image = F.pad(image.float(), (0, -width % 4, 0, -height % 4))
    tiles = image.unfold(2, 6, 4).unfold(3, 6, 4)
    left = (bt @ tiles @ bt.T).to(dtype).float()
    right = (g @ weight.float() @ g.T).to(dtype).float()
    found = at @ torch.einsum("nchwxy,ocxy->nohwxy", left, right).to(dtype).float() @ at.T
    y = found.permute(0, 1, 2, 4, 3, 5).reshape(*found.shape[:2], found.shape[2] * 4, found.shape[3] * 4)
    return y[:, :, :height, :width]


def _softmax(x: Tensor, total: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    parts = torch.exp(x.float() - x.float().amax(1, keepdim=True))
    return parts / (parts.sum(1, keepdim=True) if total is None else total(parts))


def _one_pass(x: Tensor) -> Tensor:
    x = x.float()
    centre = x.mean(1, keepdim=True)
    return (x - centre) * torch.rsqrt((x * x).mean(1, keepdim=True) - centre * centre + 1e-5)


_T = "triton-lang/triton"
_TT = "tenstorrent/tt-metal"
_F = torch.float16
_B = torch.bfloat16

WRONG: tuple[Kernel, ...] = (
    # products: terms that are missing, wrong or counted twice
    Kernel("drops K behind the last full tile", f"{_T}#630", "fp16", lambda a, b: full(a[:, :448], b[:448]).half()),
    Kernel("drops the last term", "dmlc/minerva#40", "fp16", lambda a, b: full(a[:, :-1], b[:-1]).half()),
    Kernel("reads wrapped rows in the last tile", f"{_T}#1760", "fp16", lambda a, b: _wrapped(a, b).half()),
    Kernel("no mask: the tile before in shared memory", "gpu-mode/lectures#51", "fp16",
           lambda a, b: _stale_tile(a, b).half()),
    Kernel("copy is late: one tile twice, another never", f"{_T}#5990", "bf16", lambda a, b: _race(a, b).bfloat16()),
    Kernel("split-K: workspace holds an old slice", "ROCm/composable_kernel#2697", "fp16",
           lambda a, b: (full(a, b) + full(a[:, :125], b[:125])).half()),
    Kernel("split-K: an empty slice adds its old accumulator", "NVIDIA/TensorRT-LLM#18369", "fp16",
           lambda a, b: (full(a, b) + 0.25).half()),
    Kernel("split-K: the last slice wins", "microsoft/ark#199", "fp16", lambda a, b: full(a[:, 375:], b[375:]).half()),
    Kernel("split-K: slices land in the output", "NVIDIA/cutlass#3538", "fp16",
           lambda a, b: full(a[:, :125], b[:125]).half()),
    Kernel("edge tile of the output is not written", "facebookexperimental/triton#3401", "fp16",
           lambda a, b: F.pad(full(a, b)[:, :32], (0, 16)).half()),
    Kernel("tiles of the output are swapped", "flagos-ai/FlagGems#989", "fp16",
           lambda a, b: _swapped_blocks(full(a, b)).half()),
    Kernel("transposed B", f"{_T}#187", "square", lambda a, b: full(a, b.T).half()),
    # products: formats and rounding
    Kernel("FP16 accumulator", "sonos/tract#2588", "fp16",
           lambda a, b: accumulate(a, b, None, SEQUENTIAL_FP16, FP16)),
    Kernel("FP16 accumulator of the destination register", f"{_TT}#8449", "positive",
           lambda a, b: chunked(a, b, 32, _F)),
    Kernel("FP16 C and D in a Tensor Core", "ROCm/rocm-libraries#2739", "H100",
           lambda a, b: emulate(a, b, None, SPECS["H100"], FP16)),
    Kernel("BF16 partial sums", "ROCm/aiter#5031", "bf16", lambda a, b: chunked(a, b, 64, _B)),
    Kernel("FP16 partial sums of split-K", "uxlfoundation/oneDNN#3332", "fp16", lambda a, b: chunked(a, b, 125, _F)),
    Kernel("cuts the result to BF16", "stillwater-sc/universal#1133", "bf16", lambda a, b: _to_zero(full(a, b), _B)),
    Kernel("cuts the result to FP16", f"{_TT}#57408", "fp16", lambda a, b: _to_zero(full(a, b), _F)),
    Kernel("rounds FP32 sums toward zero", f"{_TT}#19882", "positive", lambda a, b: _truncated_sum(a, b)),
    Kernel("TF32 where FP32 was promised", "ml-explore/mlx#3860", "fp32",
           lambda a, b: full(round_tensor(a, TF32), round_tensor(b, TF32))),
    Kernel("TF32 operands cut, not rounded", "tile-ai/tilelang#493", "fp32",
           lambda a, b: full(*(round_tensor(each, TF32, Rounding.TOWARD_ZERO) for each in (a, b)))),
    Kernel("BF16 operands where FP32 was promised", "vllm-project/vllm#55131", "fp32",
           lambda a, b: full(a.bfloat16(), b.bfloat16())),
    # scales and biases
    Kernel("bias is not added", "pytorch/helion#795", "bias", lambda a, b, bias: full(a, b).half()),
    Kernel("bias missing where tiles are aggregated", "ROCm/tritonBLAS#67", "bias",
           lambda a, b, bias: torch.cat([full(a, b)[:32] + bias, full(a, b)[32:]]).half()),
    Kernel("bias along the wrong axis", "openxla/xla#46897", "bias",
           lambda a, b, bias: (full(a, b) + F.pad(bias, (0, 16))[:, None]).half()),
    Kernel("bias in every slice of K", "trymirai/uzu#481", "bias", lambda a, b, bias: (full(a, b) + 2 * bias).half()),
    Kernel("sum is stored before alpha is applied", "NVIDIA/cutlass#423", "alpha",
           lambda a, b, alpha: (full(a, b).half().float() * alpha).half()),
    Kernel("scale of A is missing", "ml-explore/mlx#3762", "fp8",
           lambda a, b, of_a, of_b: (full(a, b) * of_b).bfloat16()),
    Kernel("scale is applied twice", "meta-pytorch/tritonbench#1145", "fp8",
           lambda a, b, of_a, of_b: scaled(full(a, b), of_a, of_b, of_b).bfloat16()),
    Kernel("one scale of the tensor for all rows", "paiml/aprender#2810", "fp8",
           lambda a, b, of_a, of_b: (full(a, b) * of_a.amax() * of_b).bfloat16()),
    Kernel("scale rounded to a power of two afterwards", "sgl-project/sglang#28418", "fp8",
           lambda a, b, of_a, of_b: (full(a, b) * torch.exp2(torch.log2(of_a).ceil()) * of_b).bfloat16()),
    Kernel("scale after the cast", "huggingface/transformers#46763", "fp8",
           lambda a, b, of_a, of_b: (full(a, b).bfloat16() * (of_a * of_b).bfloat16())),
    Kernel("first block's scale for all blocks", "mlc-ai/TIRx-kernels#5", "blocks",
           lambda parts, scales, y: block_scaled(parts, scales[:1].expand(2), y).bfloat16()),
    # convolutions
    Kernel("dilation is ignored in the padding", "AlexeyAB/darknet#4836", "conv dilated",
           lambda x, w: F.conv2d(F.pad(x.float(), (1, 3, 1, 3)), w.float(), dilation=2).half()),
    Kernel("padding of height and width swapped", "AlexeyAB/darknet#4836", "conv rectangle",
           lambda x, w: F.pad(F.conv2d(x, w, padding=(2, 1)), (1, 1))[:, :, 1:-1]),
    Kernel("window flipped", "ml-explore/mlx#2038", "conv",
           lambda x, w: F.conv2d(x.float(), w.float().flip(2, 3), padding=1).half()),
    Kernel("gap between taps off by one", "Tencent/ncnn#75", "conv dilated",
           lambda x, w: F.conv2d(x.float(), w.float(), padding=1).half()),
    Kernel("first group's channels for all groups", "ROCm/MIOpen#951", "conv groups",
           lambda x, w: F.conv2d(torch.cat([x[:, :4]] * 2, 1), w, groups=2)),
    Kernel("Winograd in FP16", "pytorch/pytorch#35655", "sparse conv", lambda x, w: _winograd(x, w, _F).half()),
    # softmax
    Kernel("padded places count in the sum", "tensorflow/tensorflow#108244", "softmax",
           lambda x: _softmax(x, lambda p: p.sum(1, keepdim=True) + 6 * torch.exp(-x.float().amax(1, keepdim=True))
                              ).half()),
    Kernel("misses index 0 in the sum", "dmlc/minerva#40", "softmax",
           lambda x: _softmax(x, lambda p: p[:, 1:].sum(1, keepdim=True)).half()),
    Kernel("last tile without the maximum", f"{_TT}#51278", "softmax",
           lambda x: _softmax(x, lambda p: p[:, :224].sum(1, keepdim=True)
                              + torch.exp(x[:, 224:].float()).sum(1, keepdim=True)).half()),
    Kernel("inverse correction", "Dao-AILab/flash-attention#991", "softmax",
           lambda x: online(x, 50, lambda old, new: torch.exp((new - old).clamp(max=80))).half()),
    Kernel("no correction", "tile-ai/tilelang#1148", "softmax",
           lambda x: online(x, 50, lambda old, new: torch.ones_like(new)).half()),
    Kernel("maximum of a masked block is 0", "Dao-AILab/flash-attention#2082", "softmax low",
           lambda x: online(x, 64, rescale, first=0.0)),
    # norms
    Kernel("eps added to the count", "xlite-dev/LeetCUDA#309", "layer norm small",
           lambda x: norm(x, rstd=lambda v: torch.rsqrt(v * 256 / (256 + 1e-5))).half()),
    Kernel("eps outside of the root", "tile-ai/tilelang#1243", "layer norm small",
           lambda x: norm(x, rstd=lambda v: 1 / (v.sqrt() + 1e-5)).half()),
    Kernel("variance over padded zeros", f"{_T}#9838", "layer norm",
           lambda x, w, b: norm(x, w, b, variance=lambda d: ((d * d).sum(1, keepdim=True)
                                 + 6 * (x.float() - d).mean(1, keepdim=True) ** 2) / 250).half()),
    Kernel("variance divided by n - 1", "FluxML/Flux.jl#529", "layer norm",
           lambda x, w, b: norm(x, w, b, variance=lambda d: (d * d).sum(1, keepdim=True) / 249).half()),
    Kernel("mean of squares minus square of mean", "pytorch/pytorch#55044", "layer norm far", _one_pass),
    Kernel("partial warp is left out of the squares", "flashinfer-ai/flashinfer#3879", "rms norm",
           lambda x, w: rms(x, w, squares=lambda x: (x[:, :2560] ** 2).sum(1, keepdim=True) / 2880).bfloat16()),
    Kernel("variance in place of mean of squares", "keras-team/keras#22393", "rms norm",
           lambda x, w: rms(x, w, squares=lambda x: x.var(1, keepdim=True, correction=0)).bfloat16()),
    Kernel("eps of 1e-4", "nntrainer/nntrainer#4318", "rms norm small", lambda x: rms(x, eps=1e-4).half()),
    Kernel("eps of 1e-5", "NVIDIA/cutlass#1112", "rms norm small", lambda x: rms(x, eps=1e-5).half()),
    Kernel("reciprocal in BF16", "amd/IRON#139", "rms norm",
           lambda x, w: rms(x, w, rstd=lambda s: torch.rsqrt(s + 1e-6).bfloat16().float()).bfloat16()),
    # reductions
    Kernel("partial warp counted beyond its lanes", "flashinfer-ai/flashinfer#3880", "sum",
           lambda x: x.sum(1) + x[:, 168:].sum(1)),
    Kernel("partial warp left out", "bytedance/lightseq#166", "sum", lambda x: x[:, :160].sum(1)),
    Kernel("garbage in padded places", "torch-spyre/torch-spyre#4390", "mean",
           lambda x: (x.sum(1) + x[:, :12].sum(1)) / 180),
    Kernel("maximum begins at 0", f"{_TT}#12662", "max", lambda x: F.pad(x, (0, 28)).amax(1)),
)  # fmt: skip
