"""The time of a product on this machine, and its error.

Idea: a case is timed as it would run in training: random operands (a product of zeros draws less power, and a GPU
clocks higher for it), cut from one pool for each dtype that is larger than the cache, so that a call finds fresh ones.
CUDA events time a GPU, the host's clock a CPU. All cases take turns, round by round, so that a
machine that slows down slows all of them, and the median of the rounds counts. The same functions that are timed are
checked against FP64 on a few rows.

Invariant: operands are normally distributed, never zeros. Nothing stays changed: torch's thread count and its settings
of precision are put back. What could not be timed is named, with the reason.

What it does not do: hide the launch. A product of microseconds is timed as torch runs it, with what calling costs.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
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
from labkit.records.interleaved_timing import time_interleaved

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
    """Return the computation of a case: a function of its operands and of the tensor for the result.

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


ROUNDS = 9
GROUP_SECONDS = {"cuda": 5e-3, "cpu": 20e-3}  # calls are timed in groups of about this long
MOST_CALLS = 500  # in a group
CASE_SECONDS = 1.0  # a case that has had as much, in FEWEST rounds or more, gives its further turns away
FEWEST = 3
LONGEST_CALL = 2.0  # seconds; a call that is expected to take longer is left out


@dataclass(frozen=True)
class GemmRun:
    """A case that was timed.

    seconds  of one call: the median over the rounds
    low      first quartile of the same
    high     third quartile
    calls    how many calls were timed
    error    median distance of the first rows from the same in FP64, in ulps of the result's format

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
        """10^12 additions and multiplications a second."""
        return self.case.flops / self.seconds / 1e12

    @property
    def gbps(self) -> float:
        """10^9 bytes a second, of those that must at least be moved."""
        return self.case.bytes / self.seconds / 1e9


def run_case(case: Case, device: torch.device | str = "cpu", *, rounds: int = ROUNDS, threads: int = 1) -> GemmRun:
    """Time one case, as `run_cases` does.

    Raises:
        RuntimeError: it cannot run here; the message is torch's, or says how long it would take.

    >>> from labkit.formats import FP32
    >>> from labkit.bench.cases import GemmCase
    >>> run_case(GemmCase(16, 16, 16, FP32), rounds=1).error < 16  # a sum of 16 terms
    True
    """
    reasons: list[str] = []
    found = run_cases([case], device, rounds=rounds, threads=threads, left_out=lambda _, why: reasons.append(why))
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
    """Time cases that take turns; return those that could be timed, in their order.

    A case whose turn raises, by the memory that is gone for instance, is left out from then on.

    Args:
        rounds: how often each has its turn, after a first one that only warms up; three times, where calls are long.
        threads: of a CPU. With one, what counts is the time that this thread was given: a busy machine does not.
        stop: asked before each turn; True ends the timing, and whatever has had a turn is returned.
        left_out: told each case that was not timed, and why.
        progress: called after each round with the runs so far: who keeps them loses one round at most.

    Raises:
        ValueError: rounds or threads is below 1.
    """
    if rounds < 1 or threads < 1:
        raise ValueError(f"rounds and threads are 1 or more; they were given as {rounds} and {threads}.")
    where = torch.device(device)
    clock = _clock(where, threads)
    with _threads(threads), torch.no_grad():
        seconds: dict[_Ready, list[float]] = {timed: [] for timed in _warm_up(cases, where, clock, stop, left_out)}

    def turn(timed: _Ready) -> float:
        try:
            return timed.seconds(clock)
        except RuntimeError as refused:
            left_out(timed.case, str(refused).splitlines()[0])
            del seconds[timed]
            return float("nan")

    def over(timed: _Ready, _: object) -> bool:
        seen = seconds[timed]
        return bool(seen) and (timed.has_had_enough(seen) or stop())

    runs: list[GemmRun] = []
    for _ in range(rounds):
        with _threads(threads), torch.no_grad():
            turns = time_interleaved({timed: partial(turn, timed) for timed in seconds}, 1, over)
        for timed in seconds:
            seconds[timed] += turns[timed]
        runs = [timed.result(each) for timed, each in seconds.items()]
        progress(runs)
    return runs


_Clock = Callable[[Callable[[int], Tensor], int], float]


@dataclass(eq=False)
class _Ready:
    """A case that is ready to be called, in groups that take about GROUP_SECONDS."""

    case: Case
    call: Callable[[int], Tensor]
    error: float = 0.0
    group: int = 1

    def seconds(self, clock: _Clock) -> float:
        with settings(self.case):
            return clock(self.call, self.group)

    def has_had_enough(self, seconds: list[float]) -> bool:
        return len(seconds) >= FEWEST and self.group * sum(seconds) > CASE_SECONDS

    def result(self, seconds: list[float]) -> GemmRun:
        low, middle, high = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
        return GemmRun(
            self.case, _short(middle), _short(low), _short(high), self.group * len(seconds), _short(self.error)
        )


def _short(number: float) -> float:
    """Keep five digits: more of them would be noise."""
    return float(f"{number:.5g}")


def _warm_up(
    cases: Sequence[Case],
    device: torch.device,
    clock: _Clock,
    stop: Callable[[], bool],
    left_out: Callable[[Case, str], None],
) -> Iterator[_Ready]:
    """Yield each case that can run here: checked, warm, and with as many calls in a group as fill GROUP_SECONDS."""
    pool = Pool(device)
    pace: dict[Format, float] = {}  # seconds for each FLOP, by the last case of a format
    for case in cases:
        expected = case.flops * pace.get(case.format, 0.0)
        if stop():
            left_out(case, "the time was up")
        elif expected > LONGEST_CALL:
            left_out(case, f"one call would take about {expected:.0f} s")
        else:
            try:
                ready, seconds = _ready(case, pool, clock, device.type)
            except (RuntimeError, AttributeError) as refused:  # no kernel for it in this torch or device, or no memory
                left_out(case, str(refused).splitlines()[0])
            else:
                if case.flops:
                    pace[case.format] = seconds / case.flops
                yield ready


def _ready(case: Case, pool: Pool, clock: _Clock, kind: str) -> tuple[_Ready, float]:
    """Return a case that has been called, and the seconds of its last call."""
    sets = pool.sets(case)
    ready = _Ready(case, caller(case, sets))
    with settings(case):
        ready.error = error_in_ulps(case, sets[0], ready.call(0))
    seconds = ready.seconds(clock)
    ready.group = max(1, min(MOST_CALLS, round(GROUP_SECONDS[kind] / seconds)))
    return ready, ready.seconds(clock) if ready.group > 1 else seconds


def _clock(device: torch.device, threads: int) -> _Clock:
    """Return what tells the seconds of a call: the mean of a group of them, on other operands each."""
    if device.type == "cuda":
        return _cuda_clock
    fine = time.get_clock_info("thread_time").resolution < 1e-6  # Windows counts in 1/64 s
    now = time.thread_time if threads == 1 and fine and sys.platform != "win32" else time.perf_counter

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
