"""Timing of benchmark cases, and their numerical error.

Idea: a case is timed under the conditions of training. Operands are random, since products of zeros
draw less power and a GPU clocks higher. They are cut from a pool for each dtype that exceeds the
cache, so that each call uses new ones. CUDA events time a GPU, the host's clock a CPU. Timings of
the cases are interleaved, so that a slowdown of the machine affects all, and the median of the
rounds counts. The timed functions are checked against FP64 on a few rows.

Invariant: operands are normally distributed, never zeros. torch's thread count and precision
settings are restored. Cases that could not be timed are reported with the reason.

The launch overhead is part of the time: a product of microseconds is timed as torch runs it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from statistics import quantiles

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.bench.cases import Case, ConvCase, ElementwiseCase, GemmCase, output_format
from labkit.bench.triton_gemm import TILES, matmul
from labkit.formats import TF32, Format, ulp
from labkit.gemm import fp32_precision
from labkit.interop import dtype_of

CPU_CACHE = 32 * 2**20  # bytes; the last-level cache of most CPUs, for one core
# elements: operands begin at multiples of 64 bytes or more, as torch's own tensors do
ALIGNED = 64
MOST_SETS = 500
REDUCTIONS = (  # of torch.backends.cuda.matmul
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)
ROWS_CHECKED = 16


class Pool:
    """Random numbers on a device, one buffer for each dtype, for cutting operands."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._numbers: dict[torch.dtype, Tensor] = {}
        self._cache = CPU_CACHE
        if self.device.type == "cuda":
            self._cache = getattr(
                torch.cuda.get_device_properties(self.device), "L2_cache_size", 2**27
            )

    def sets(self, case: Case) -> list[tuple[Tensor, ...]]:
        """Return sets of operands for a case, together twice as large as the cache."""
        dtype = _dtype(case.format)
        shapes = _stored_shapes(case)
        sizes = [math.ceil(math.prod(shape) / ALIGNED) * ALIGNED for shape in shapes]
        count = min(MOST_SETS, math.ceil(2 * self._cache / (sum(sizes) * dtype.itemsize)))
        numbers = self._random(count * sum(sizes), dtype)
        starts = np.cumsum([0, *sizes * count])
        found = []
        for first in range(0, len(shapes) * count, len(shapes)):
            stored = [
                numbers[starts[first + i] :][: math.prod(shape)].view(shape)
                for i, shape in enumerate(shapes)
            ]
            found.append(_as_used(case, stored))
        return found

    def _random(self, count: int, dtype: torch.dtype) -> Tensor:
        if dtype not in self._numbers or len(self._numbers[dtype]) < count:
            self._numbers.pop(dtype, None)  # release its memory first
            generator = torch.Generator(self.device).manual_seed(0)
            wide = torch.float64 if dtype is torch.float64 else torch.float32
            self._numbers[dtype] = torch.randn(
                count, generator=generator, device=self.device, dtype=wide
            ).to(dtype)
        return self._numbers[dtype]


def _dtype(format: Format) -> torch.dtype:
    return torch.float32 if format is TF32 else dtype_of(format)


def _stored_shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of the operands in memory, with a contiguous last dimension."""
    match case:
        case GemmCase(m=m, n=n, k=k, layout=layout):
            return [(m, k) if layout[0] == "N" else (k, m), (k, n) if layout[1] == "N" else (n, k)]
        case ConvCase(kernel=kernel):  # channels last, for Tensor Cores
            images = (case.images, case.height, case.width, case.channels)
            return [images, (case.filters, kernel, kernel, case.channels)]
    return [(case.elements,)]


def _as_used(case: Case, stored: list[Tensor]) -> tuple[Tensor, ...]:
    if isinstance(case, GemmCase):
        return tuple(
            tensor.t() if way == "T" else tensor
            for tensor, way in zip(stored, case.layout, strict=True)
        )
    if isinstance(case, ConvCase):
        return tuple(tensor.permute(0, 3, 1, 2) for tensor in stored)
    return tuple(stored)


def computation(case: Case) -> Callable[..., Tensor]:
    """Return the computation of a case: a function of its operands and of the result's tensor.

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
    return torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast
    )


@cache
def _one(device: torch.device) -> Tensor:
    """Return the scale 1, made once: making it would be timed, too."""
    return torch.ones((), device=device)


def caller(case: Case, sets: list[tuple[Tensor, ...]]) -> Callable[[int], Tensor]:
    """Return the function that computes a case on its i-th operands, counted in a ring."""
    compute = computation(case)
    first = sets[0][0]
    # a convolution makes its own result
    shape = (case.m, case.n) if isinstance(case, GemmCase) else first.shape
    out = torch.empty(shape, dtype=_dtype(output_format(case.format)), device=first.device)
    return lambda i: compute(*sets[i % len(sets)], out=out)


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """Set torch's precision as a case asks.

    TF32 and reduced accumulation are on only if the format says so.
    """
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

    Compares the first rows of a product, the first image of a convolution, the first elements of
    the rest. The median counts, since the error of a sum near zero is thousands of the ulps there.
    """
    exact = _in_fp64(case, operands)
    actual = result[: len(exact)].to(torch.float64)
    spacing = torch.from_numpy(ulp(exact.cpu().numpy(), output_format(case.format)))
    distance = (actual - exact).abs().cpu() / spacing
    return float(distance.median())


def _in_fp64(case: Case, operands: tuple[Tensor, ...]) -> Tensor:
    rows = 1 if isinstance(case, ConvCase) else ROWS_CHECKED
    first, *others = (operand.to(torch.float64) for operand in (operands[0][:rows], *operands[1:]))
    if isinstance(case, GemmCase):
        return first @ others[0]
    if isinstance(case, ConvCase):
        return F.conv2d(first, others[0], padding=case.kernel // 2)
    return F.hardswish(first) if case.flops else first


ROUNDS = 9
# calls are timed in groups of about this long
GROUP_SECONDS = {"cuda": 5e-3, "cpu": 20e-3}
MOST_CALLS = 500  # in a group
CASE_SECONDS = 1.0  # time limit of a case, after FEWEST rounds
FEWEST = 3
LONGEST_CALL = 2.0  # seconds; cases with longer expected calls are left out


@dataclass(frozen=True)
class GemmRun:
    """Timed case.

    Attributes:
        seconds: seconds of one call, the median over the rounds.
        low: first quartile of the same.
        high: third quartile.
        calls: number of timed calls.
        error: median distance of the first rows from FP64, in ulps of the result's format.

    >>> from labkit.bench.cases import GemmCase
    >>> GemmRun(GemmCase(1000, 1000, 1000), 0.001, 0.001, 0.001, 10, 0.25).tflops
    2.0
    """

    case: Case
    seconds: float
    low: float
    high: float
    calls: int
    error: float

    @property
    def tflops(self) -> float:
        """Speed in 10^12 additions and multiplications a second."""
        return self.case.flops / self.seconds / 1e12

    @property
    def gbps(self) -> float:
        """Bandwidth in 10^9 bytes a second, counting the least bytes that must be moved."""
        return self.case.bytes / self.seconds / 1e9


def run_case(
    case: Case, device: torch.device | str = "cpu", *, rounds: int = ROUNDS, threads: int = 1
) -> GemmRun:
    """Time one case, as `run_cases` does.

    Raises:
        RuntimeError: the case cannot run on the device, or takes too long.

    >>> from labkit.formats import FP32
    >>> from labkit.bench.cases import GemmCase
    >>> run_case(GemmCase(16, 16, 16, FP32), rounds=1).error < 16  # a sum of 16 terms
    True
    """
    reasons: list[str] = []
    found = run_cases(
        [case], device, rounds=rounds, threads=threads, left_out=lambda _, why: reasons.append(why)
    )
    if not found:
        raise RuntimeError(f"{case.label} was not timed on {device}: {reasons[0]}")
    return found[0]


def run_cases(
    cases: Sequence[Case],
    device: torch.device | str = "cpu",
    *,
    rounds: int = ROUNDS,
    threads: int = 1,
    stop: Callable[[], bool] = lambda: False,
    left_out: Callable[[Case, str], None] = lambda case, why: None,
    progress: Callable[[list[GemmRun]], None] = lambda runs: None,
) -> list[GemmRun]:
    """Time cases in interleaved rounds; return those that could be timed, in their order.

    A case that raises, for example without memory, is left out from then on.

    Args:
        cases: what is timed, in the order of the result.
        device: "cpu" or "cuda".
        rounds: number of timings of each case after a warm-up; three for long calls.
        threads: number of CPU threads. With one, the CPU time of the thread counts, so other load
            does not.
        stop: called before each timing; True ends the measurement, and timed cases are returned.
        left_out: called with each case that was not timed, and the reason.
        progress: called after each round with the runs so far.

    Raises:
        ValueError: rounds or threads is below 1.
    """
    if rounds < 1 or threads < 1:
        raise ValueError(f"expected rounds and threads of 1 or more, got {rounds} and {threads}")
    where = torch.device(device)
    clock = _clock(where, threads)
    pool = Pool(where)
    timed: dict[_PreparedCase, list[float]] = {}
    # seconds for each FLOP, by the last case of a format
    rates: dict[Format, float] = {}
    runs: list[GemmRun] = []
    with _threads(threads), torch.no_grad():
        for case in cases:
            expected = case.flops * rates.get(case.format, 0.0)
            if stop():
                left_out(case, "the time was up")
            elif expected > LONGEST_CALL:
                left_out(case, f"one call would take about {expected:.0f} s")
            else:
                try:
                    ready = _PreparedCase(case, pool, clock)
                except (RuntimeError, AttributeError) as refused:
                    # no kernel in this torch or device, or no memory
                    left_out(case, str(refused).splitlines()[0])
                else:
                    timed[ready] = []
                    if case.flops:
                        rates[case.format] = ready.last / case.flops
        for _ in range(rounds):
            for ready, seconds in [*timed.items()]:
                if seconds and (ready.is_finished(seconds) or stop()):
                    continue
                try:
                    seconds.append(ready.seconds())
                except RuntimeError as refused:
                    left_out(ready.case, str(refused).splitlines()[0])
                    del timed[ready]
            runs = [ready.result(seconds) for ready, seconds in timed.items()]
            progress(runs)
    return runs


_Clock = Callable[[Callable[[int], Tensor], int], float]


class _PreparedCase:
    """Case that is checked and warmed up, with calls in groups of about GROUP_SECONDS.

    `last` is the latest timing.
    """

    def __init__(self, case: Case, pool: Pool, clock: _Clock) -> None:
        sets = pool.sets(case)
        self.case = case
        self.clock = clock
        self.call = caller(case, sets)
        self.group = 1
        with settings(case):
            self.error = error_in_ulps(case, sets[0], self.call(0))
        self.last = self.seconds()
        self.group = max(1, min(MOST_CALLS, round(GROUP_SECONDS[pool.device.type] / self.last)))
        if self.group > 1:
            self.last = self.seconds()

    def seconds(self) -> float:
        with settings(self.case):
            return self.clock(self.call, self.group)

    def is_finished(self, seconds: list[float]) -> bool:
        return len(seconds) >= FEWEST and self.group * sum(seconds) > CASE_SECONDS

    def result(self, seconds: list[float]) -> GemmRun:
        # one timing is all three quartiles
        quartiles = seconds * 3
        if len(seconds) > 1:
            quartiles = quantiles(seconds, n=4, method="inclusive")
        low, middle, high = quartiles
        # more digits are noise
        middle, low, high, error = (float(f"{x:.5g}") for x in (middle, low, high, self.error))
        return GemmRun(self.case, middle, low, high, self.group * len(seconds), error)


def _clock(device: torch.device, threads: int) -> _Clock:
    """Return a clock: the mean seconds of a group of calls, each with other operands."""
    if device.type == "cuda":
        return _cuda_clock
    # Windows counts in 1/64 s
    fine = time.get_clock_info("thread_time").resolution < 1e-6
    now = (
        time.thread_time if threads == 1 and fine and sys.platform != "win32" else time.perf_counter
    )

    def clock(call: Callable[[int], Tensor], group: int) -> float:
        began = now()
        for i in range(group):
            call(i)
        return max(now() - began, 1e-9) / group

    return clock


def _cuda_clock(call: Callable[[int], Tensor], group: int) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for i in range(group):
        call(i)
    ended.record()
    ended.synchronize()
    return float(max(began.elapsed_time(ended), 1e-6)) / 1e3 / group


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
