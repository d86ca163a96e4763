"""Timing of benchmark cases, and their numerical error.

Idea: a case is timed under the conditions of training. Operands are random, since products of zeros
draw less power, and a GPU runs at a higher clock then. They are cut from a pool of numbers that is
larger than the cache, so that each call reads other operands from memory, except for the smallest
cases. A GPU is timed by CUDA events, a CPU by the host's clock. The timings of all cases are
interleaved, so that a slowdown of the machine affects all of them, and the median of the rounds
counts. The timed functions are checked against FP64 on a few rows.

Invariant: operands are normally distributed. torch's thread count and precision settings are
restored. Cases that could not be timed are reported with the reason.

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

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.bench.cases import Case, ConvCase, ElementwiseCase, GemmCase, output_format
from labkit.bench.triton_gemm import TILES, matmul
from labkit.formats import TF32, Format, ulp
from labkit.formats.arguments import require_kind
from labkit.gemm import fp32_precision
from labkit.interop import dtype_of

# bytes: the part of the last-level cache that one core of most CPUs can use
CPU_CACHE = 32 * 2**20
# bytes: assumed for a GPU whose cache size torch does not tell; larger than those of today's GPUs
GPU_CACHE = 2**27
# elements: operands begin at multiples of 64 bytes or more, as torch's own tensors do
ALIGNED = 64
# sets of operands for a case: those of the smallest cases fit into the cache
MOST_SETS = 500
# settings in torch.backends.cuda.matmul
REDUCTIONS = (
    "allow_fp16_accumulation",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)
# rows of a result that are compared with FP64
ROWS_CHECKED = 16
# timings of each case
ROUNDS = 9
# calls are timed in groups of about this long
GROUP_SECONDS = {"cuda": 5e-3, "cpu": 20e-3}
# calls in a group
MOST_CALLS = 500
# time limit of a case, which has at least FEWEST rounds
CASE_SECONDS = 1.0
FEWEST = 3
# seconds: cases with longer expected calls are left out
LONGEST_CALL = 2.0


class Pool:
    """Random numbers on a device, one buffer for each dtype, from which operands are cut."""

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        self._numbers: dict[torch.dtype, Tensor] = {}
        self._cache = CPU_CACHE
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self._cache = getattr(properties, "L2_cache_size", GPU_CACHE)

    def sets(self, case: Case) -> list[tuple[Tensor, ...]]:
        """Return sets of operands that fill the cache twice, but at most MOST_SETS."""
        dtype = _dtype(case.format)
        shapes = _stored_shapes(case)
        sizes = [math.ceil(math.prod(shape) / ALIGNED) * ALIGNED for shape in shapes]
        set_bytes = sum(sizes) * dtype.itemsize
        count = min(MOST_SETS, math.ceil(2 * self._cache / set_bytes))
        numbers = self._random(count * sum(sizes), dtype)
        sets = []
        start = 0
        for _ in range(count):
            stored = []
            for shape, size in zip(shapes, sizes, strict=True):
                stored.append(numbers[start : start + math.prod(shape)].view(shape))
                start += size
            sets.append(_as_used(case, stored))
        return sets

    def _random(self, count: int, dtype: torch.dtype) -> Tensor:
        """Return `count` or more numbers of a dtype."""
        if dtype in self._numbers and len(self._numbers[dtype]) >= count:
            return self._numbers[dtype]
        # release the memory of the smaller buffer before a larger one is made
        self._numbers.pop(dtype, None)
        generator = torch.Generator(self.device).manual_seed(0)
        # torch draws no random numbers in 8 bits
        wide = torch.float64 if dtype is torch.float64 else torch.float32
        numbers = torch.randn(count, generator=generator, device=self.device, dtype=wide)
        self._numbers[dtype] = numbers.to(dtype)
        return self._numbers[dtype]


def _dtype(format: Format) -> torch.dtype:
    # TF32 is a way to multiply FP32 numbers, without a dtype of its own
    return torch.float32 if format is TF32 else dtype_of(format)


def _stored_shapes(case: Case) -> list[tuple[int, ...]]:
    """Return the shapes of the operands in memory, with a contiguous last dimension."""
    if isinstance(case, GemmCase):
        a = (case.m, case.k)
        b = (case.k, case.n)
        if case.layout[0] == "T":
            a = (case.k, case.m)
        if case.layout[1] == "T":
            b = (case.n, case.k)
        return [a, b]
    if isinstance(case, ConvCase):
        # channels last, as Tensor Cores need them
        images = (case.images, case.height, case.width, case.channels)
        filters = (case.filters, case.kernel, case.kernel, case.channels)
        return [images, filters]
    return [(case.elements,)]


def _as_used(case: Case, stored: list[Tensor]) -> tuple[Tensor, ...]:
    """Return views of the stored operands in the shapes of the case's formula."""
    if isinstance(case, GemmCase):
        a, b = stored
        if case.layout[0] == "T":
            a = a.t()
        if case.layout[1] == "T":
            b = b.t()
        return a, b
    if isinstance(case, ConvCase):
        # from channels last to torch's [images, channels, height, width]
        return tuple(tensor.permute(0, 3, 1, 2) for tensor in stored)
    return tuple(stored)


def computation(case: Case) -> Callable[..., Tensor]:
    """Return the computation of a case: a function of its operands and of the tensor `out`.

    It writes the result into `out`, except for a convolution and a product of FP8, and returns
    the result.

    Raises:
        ValueError: no tile of the Triton kernel has the name that the case gives.

    >>> x = torch.tensor([-4.0, 0.0, 3.0])
    >>> computation(ElementwiseCase("hardswish by hand", 3))(x, out=torch.empty(3))
    tensor([-0., 0., 3.])
    """
    if isinstance(case, GemmCase):
        if case.format.bits == 8:
            return lambda a, b, out: _fp8_mm(a, b, out, case.reduced)
        if case.kernel:
            tiles = {tile.name: tile for tile in TILES}
            if case.kernel not in tiles:
                raise ValueError(
                    f'expected a kernel of "" (torch) or a tile: {"; ".join(tiles)}; got '
                    f"{case.kernel!r}"
                )
            return lambda a, b, out: matmul(a, b, tiles[case.kernel], out)
        return lambda a, b, out: torch.mm(a, b, out=out)
    if isinstance(case, ConvCase):
        padding = case.kernel // 2
        return lambda images, filters, out: F.conv2d(images, filters, padding=padding)
    if case.op == "copy":
        return lambda x, out: out.copy_(x)
    if case.op == "hardswish":
        return lambda x, out: torch.ops.aten.hardswish.out(x, out=out)
    # by hand: one kernel for each of these calls
    return lambda x, out: torch.add(x, 3, out=out).clamp_(0, 6).mul_(x).div_(6)


def _fp8_mm(a: Tensor, b: Tensor, out: Tensor, fast: bool) -> Tensor:
    one = _one(a.device)
    return torch._scaled_mm(
        a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=fast
    )


@cache
def _one(device: torch.device) -> Tensor:
    """Return the scale 1; it is cached, so that its creation is not timed."""
    return torch.ones((), device=device)


def caller(case: Case, sets: list[tuple[Tensor, ...]]) -> Callable[[int], Tensor]:
    """Return a function that computes a case on its i-th set of operands, modulo their number."""
    compute = computation(case)
    first = sets[0][0]
    shape = first.shape
    if isinstance(case, GemmCase):
        shape = torch.Size((case.m, case.n))
    out = torch.empty(shape, dtype=_dtype(output_format(case.format)), device=first.device)
    return lambda i: compute(*sets[i % len(sets)], out=out)


@contextmanager
def settings(case: Case) -> Iterator[None]:
    """Set torch's precision for a case, and restore it after the block.

    TF32 is on only for the format TF32, and reduced accumulation only for `reduced=True`.
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

    It compares the first rows of a product, the first image of a convolution, or the first elements
    of an element-wise operation. It is the median, since the error of a sum that is near zero is
    thousands of ulps.
    """
    exact = _in_fp64(case, operands)
    actual = result[: len(exact)].to(torch.float64)
    spacing = torch.from_numpy(ulp(exact.cpu().numpy(), output_format(case.format)))
    distance = (actual - exact).abs().cpu() / spacing
    return float(distance.median())


def _in_fp64(case: Case, operands: tuple[Tensor, ...]) -> Tensor:
    """Return the first rows of a case's result, computed in FP64."""
    rows = 1 if isinstance(case, ConvCase) else ROWS_CHECKED
    first = operands[0][:rows].to(torch.float64)
    if isinstance(case, ElementwiseCase):
        return first if case.op == "copy" else F.hardswish(first)
    second = operands[1].to(torch.float64)
    if isinstance(case, ConvCase):
        return F.conv2d(first, second, padding=case.kernel // 2)
    return first @ second


@dataclass(frozen=True)
class GemmRun:
    """Timed case.

    Attributes:
        case: the case.
        seconds: seconds of one call, the median over the rounds.
        low: first quartile of these seconds.
        high: third quartile of these seconds.
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
    runs = run_cases(
        [case], device, rounds=rounds, threads=threads, left_out=lambda _, why: reasons.append(why)
    )
    if not runs:
        raise RuntimeError(f"{case.label} was not timed on {device}: {reasons[0]}")
    return runs[0]


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

    A case that raises an error, for example for lack of memory, is left out from then on.

    Args:
        cases: the cases to time, in the order of the result.
        device: "cpu" or "cuda".
        rounds: number of timings of each case after a warm-up; cases with long calls have fewer,
            but at least three.
        threads: number of CPU threads. With one thread, its CPU time is measured, which other load
            does not affect.
        stop: called before each timing; True ends the measurement, and timed cases are returned.
        left_out: called with each case that was not timed, and the reason.
        progress: called after each round with the runs so far.

    Raises:
        TypeError: rounds or threads is not a whole number.
        ValueError: rounds or threads is below 1.
    """
    require_kind(rounds, int, "rounds")
    require_kind(threads, int, "threads")
    if rounds < 1 or threads < 1:
        raise ValueError(f"expected rounds and threads of 1 or more, got {rounds} and {threads}")
    torch_device = torch.device(device)
    runs: list[GemmRun] = []
    with _threads(threads), torch.no_grad():
        prepared = _prepare(
            cases, Pool(torch_device), _clock(torch_device, threads), stop, left_out
        )
        timed: dict[_PreparedCase, list[float]] = {each: [] for each in prepared}
        for _ in range(rounds):
            for each, seconds in list(timed.items()):
                # every prepared case is timed once, even after the end
                if seconds and (each.is_finished(seconds) or stop()):
                    continue
                try:
                    seconds.append(each.seconds())
                except RuntimeError as error:
                    left_out(each.case, _reason(error))
                    del timed[each]
            runs = [each.result(seconds) for each, seconds in timed.items()]
            progress(runs)
    return runs


# (function of the number of a call, number of calls) -> mean seconds of a call
_Clock = Callable[[Callable[[int], Tensor], int], float]


def _prepare(
    cases: Sequence[Case],
    pool: Pool,
    clock: _Clock,
    stop: Callable[[], bool],
    left_out: Callable[[Case, str], None],
) -> list[_PreparedCase]:
    """Check and warm up cases, as long as `stop` allows; the others are reported to `left_out`."""
    # seconds for each FLOP, by the last case of a format
    rates: dict[Format, float] = {}
    prepared = []
    for case in cases:
        expected = case.flops * rates.get(case.format, 0.0)
        if stop():
            left_out(case, "the time was up")
            continue
        if expected > LONGEST_CALL:
            left_out(case, f"one call would take about {expected:.0f} s")
            continue
        try:
            ready = _PreparedCase(case, pool, clock)
        except (RuntimeError, AttributeError) as error:
            # this torch or device has no kernel for it, or too little memory
            left_out(case, _reason(error))
            continue
        prepared.append(ready)
        if case.flops:
            rates[case.format] = ready.last / case.flops
    return prepared


def _reason(error: Exception) -> str:
    """Return the first line of an error's message, or its type if it has none."""
    return str(error).partition("\n")[0] or type(error).__name__


class _PreparedCase:
    """Case that is checked and warmed up.

    Attributes:
        case: the case.
        call: computes the case on its i-th set of operands.
        group: number of calls that are timed together, about GROUP_SECONDS.
        error: median distance of the first rows from FP64, in ulps.
        last: seconds of a call in the warm-up.
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
        group = round(GROUP_SECONDS[pool.device.type] / self.last)
        self.group = max(1, min(MOST_CALLS, group))
        if self.group > 1:
            self.last = self.seconds()

    def seconds(self) -> float:
        """Time a group of calls, and return the mean seconds of a call."""
        with settings(self.case):
            return self.clock(self.call, self.group)

    def is_finished(self, seconds: list[float]) -> bool:
        return len(seconds) >= FEWEST and self.group * sum(seconds) > CASE_SECONDS

    def result(self, seconds: list[float]) -> GemmRun:
        if len(seconds) > 1:
            low, median, high = quantiles(seconds, n=4, method="inclusive")
        else:
            low = median = high = seconds[0]
        return GemmRun(
            case=self.case,
            seconds=_five_digits(median),
            low=_five_digits(low),
            high=_five_digits(high),
            calls=self.group * len(seconds),
            error=_five_digits(self.error),
        )


def _five_digits(number: float) -> float:
    """Return a measured number with five significant digits: the others are noise."""
    return float(f"{number:.5g}")


def _clock(device: torch.device, threads: int) -> _Clock:
    """Return a clock, which calls a function with 0, 1, ... and returns the mean seconds."""
    if device.type == "cuda":
        return _cuda_clock
    now = time.perf_counter
    # Windows counts the time of a thread in steps of 1/64 s
    is_fine = time.get_clock_info("thread_time").resolution < 1e-6 and sys.platform != "win32"
    if threads == 1 and is_fine:
        now = time.thread_time

    def clock(call: Callable[[int], Tensor], group: int) -> float:
        start = now()
        for i in range(group):
            call(i)
        # a clock may show the same time twice, and a rate divides by it
        return max(now() - start, 1e-9) / group

    return clock


def _cuda_clock(call: Callable[[int], Tensor], group: int) -> float:
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for i in range(group):
        call(i)
    end.record()
    end.synchronize()
    milliseconds = max(start.elapsed_time(end), 1e-6)
    return float(milliseconds) / 1e3 / group


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
