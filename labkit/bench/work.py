"""What is run for a case: on which numbers, by which function of torch, under which settings, and compared with what?

Idea: operands are cut from one pool of random numbers for each dtype, larger than the cache, so a call finds fresh
operands by moving on in it. The same functions that are timed are checked against FP64 on a few rows.

Invariant: operands are normally distributed, never zeros; settings are put back when the work is done.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.bench.cases import Case, ConvCase, ElementwiseCase, GemmCase, output_format
from labkit.bench.triton_gemm import TILES, matmul
from labkit.formats import TF32, Format, ulp
from labkit.gemm import fp32_precision
from labkit.interop import dtype_of

CPU_CACHE = 32 * 2**20  # bytes; the last cache of most CPUs that one core sees
ALIGNED = 64  # elements: operands begin at multiples of 64 bytes or more, as torch's own tensors do
MOST_SETS = 500
REDUCTIONS = (  # of torch.backends.cuda.matmul
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)
ROWS_CHECKED = 16


class Pool:
    """Random numbers on a device, one buffer for each dtype, from which operands are cut."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._numbers: dict[torch.dtype, Tensor] = {}
        self._cache = CPU_CACHE
        if self.device.type == "cuda":
            self._cache = getattr(torch.cuda.get_device_properties(self.device), "L2_cache_size", 2**27)

    def sets(self, case: Case) -> list[tuple[Tensor, ...]]:
        """Return operands for a case, so many different ones that together they are twice as large as the cache."""
        dtype = _dtype(case.format)
        shapes = _stored_shapes(case)
        sizes = [math.ceil(math.prod(shape) / ALIGNED) * ALIGNED for shape in shapes]
        count = min(MOST_SETS, math.ceil(2 * self._cache / (sum(sizes) * dtype.itemsize)))
        numbers = self._random(count * sum(sizes), dtype)
        starts = np.cumsum([0, *sizes * count])
        found = []
        for first in range(0, len(shapes) * count, len(shapes)):
            stored = [numbers[starts[first + i] :][: math.prod(shape)].view(shape) for i, shape in enumerate(shapes)]
            found.append(_as_used(case, stored))
        return found

    def _random(self, count: int, dtype: torch.dtype) -> Tensor:
        if dtype not in self._numbers or len(self._numbers[dtype]) < count:
            self._numbers.pop(dtype, None)  # give its memory back first
            generator = torch.Generator(self.device).manual_seed(0)
            wide = torch.float64 if dtype is torch.float64 else torch.float32
            self._numbers[dtype] = torch.randn(count, generator=generator, device=self.device, dtype=wide).to(dtype)
        return self._numbers[dtype]


def _dtype(format: Format) -> torch.dtype:
    return torch.float32 if format is TF32 else dtype_of(format)


def _stored_shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of the operands as they lie in memory, the last dimension contiguous."""
    match case:
        case GemmCase(m=m, n=n, k=k, layout=layout):
            return [(m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k)]
        case ConvCase(kernel=kernel):  # channels last: how Tensor Cores want them
            return [
                (case.images, case.height, case.width, case.channels),
                (case.filters, kernel, kernel, case.channels),
            ]
        case ElementwiseCase(elements=elements):
            return [(elements,)]
    raise TypeError(f"{type(case).__name__} is no case of the lab; those are GemmCase, ConvCase and ElementwiseCase.")


def _as_used(case: Case, stored: list[Tensor]) -> tuple[Tensor, ...]:
    if isinstance(case, GemmCase):
        return tuple(tensor.t() if way == "T" else tensor for tensor, way in zip(stored, case.layout, strict=True))
    if isinstance(case, ConvCase):
        return tuple(tensor.permute(0, 3, 1, 2) for tensor in stored)
    return tuple(stored)


def computation(case: Case) -> Callable[..., Tensor]:
    """Return what torch is asked to compute for a case: a function of its operands and of where the result goes.

    >>> x = torch.tensor([-4.0, 0.0, 3.0])
    >>> computation(ElementwiseCase("hardswish by hand", 3))(x, out=torch.empty(3))
    tensor([-0., 0., 3.])
    """
    match case:
        case GemmCase(reduced=reduced) if case.format.bits == 8:
            return lambda a, b, out: _fp8_mm(a, b, out, reduced)
        case GemmCase(kernel=kernel) if kernel:
            tile = next(row for row in TILES if row.name == kernel)
            return lambda a, b, out: matmul(a, b, tile, out)
        case GemmCase():
            return lambda a, b, out: torch.mm(a, b, out=out)
        case ConvCase(kernel=kernel):
            return lambda images, filters, out: F.conv2d(images, filters, padding=kernel // 2)
        case ElementwiseCase(op="copy"):
            return lambda x, out: out.copy_(x)
        case ElementwiseCase(op="hardswish"):
            return lambda x, out: torch.ops.aten.hardswish.out(x, out=out)
    return lambda x, out: torch.add(x, 3, out=out).clamp_(0, 6).mul_(x).div_(6)


def _fp8_mm(a: Tensor, b: Tensor, out: Tensor, fast: bool) -> Tensor:
    one = _one(a.device)
    return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast)


@cache
def _one(device: torch.device) -> Tensor:
    """Return the scale 1, made once: making it would be timed, too."""
    return torch.ones((), device=device)


def caller(case: Case, sets: list[tuple[Tensor, ...]]) -> Callable[[int], Tensor]:
    """Return the function that computes a case on its i-th operands, counted in a ring."""
    compute = computation(case)
    dtype, device = _dtype(output_format(case.format)), sets[0][0].device
    out = torch.empty(_result_shape(case), dtype=dtype, device=device)
    return lambda i: compute(*sets[i % len(sets)], out=out)


def _result_shape(case: Case) -> tuple[int, ...]:
    match case:
        case GemmCase(m=m, n=n):
            return (m, n)
        case ElementwiseCase(elements=elements):
            return (elements,)
    return (0,)  # a convolution makes its own


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """Set torch's precision as a case asks: TF32 only where the format says so, reduced accumulation likewise."""
    matmul = torch.backends.cuda.matmul
    before = {name: getattr(matmul, name) for name in REDUCTIONS if hasattr(matmul, name)}
    try:
        for name in before:
            setattr(matmul, name, getattr(case, "reduced", False))
        with fp32_precision("tf32" if case.format is TF32 else "ieee"):
            yield
    finally:
        for name, value in before.items():
            setattr(matmul, name, value)


def error_in_ulps(case: Case, operands: tuple[Tensor, ...], result: Tensor) -> float:
    """Return the median distance of a result from FP64, in ulps of the result's format.

    Compares the first rows of a product, the first image of a convolution, the first elements of the rest. The median,
    for where a sum happens to come out near zero its error is thousands of the ulps there.
    """
    exact = _in_fp64(case, operands)
    given = result[: len(exact)].to(torch.float64)
    spacing = torch.from_numpy(ulp(exact.cpu().numpy(), output_format(case.format)))
    distance = (given - exact).abs().cpu() / spacing
    return float(distance.median())


def _in_fp64(case: Case, operands: tuple[Tensor, ...]) -> Tensor:
    rows = 1 if isinstance(case, ConvCase) else ROWS_CHECKED
    first, *others = (operand.to(torch.float64) for operand in (operands[0][:rows], *operands[1:]))
    if isinstance(case, GemmCase):
        return first @ others[0]
    if isinstance(case, ConvCase):
        return F.conv2d(first, others[0], padding=case.kernel // 2)
    return F.hardswish(first) if case.flops else first
