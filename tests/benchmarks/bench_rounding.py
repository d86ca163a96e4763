"""Speed of `round_tensor` and `exponent_histogram`, next to torch's casts, to copying and to other libraries.

Run by hand: .venv/bin/python tests/benchmarks/bench_rounding.py [--device cuda] [--elements 10000000]

The yardstick of rounding is torch's own cast to FP16 and back (aims: FP16 and BF16 within 1.5 of it, a format of one's
own within 4, gfloat's array path at least 20 times ours); that of a histogram is `copy_`, which is what reading costs.
A histogram is also timed beside two processes that compute, with one thread and with two (on the wall, best of
several): two threads shall be no slower than one by more than what the others take.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

import gfloat
import ml_dtypes
import numpy as np
import torch
from gfloat.formats import format_info_bfloat16, format_info_binary16, format_info_ocp_e4m3
from measuring import Call, medians, options, print_ratios

from labkit.formats import BF16, E4M3, FP16, Format
from labkit.instrument import exponent_histogram
from labkit.interop import round_tensor

MINE = Format("1-4-7", exponent_bits=4, significand_bits=7)
GFLOAT_MINE = gfloat.FormatInfo(
    name="1-4-7", k=12, precision=8, bias=7, is_signed=True, domain=gfloat.Domain.Extended,
    has_nz=True, num_high_nans=127, has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
GFLOAT = {FP16: format_info_binary16, BF16: format_info_bfloat16, E4M3: format_info_ocp_e4m3, MINE: GFLOAT_MINE}
ML_DTYPES = {FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3: ml_dtypes.float8_e4m3fn}
TORCH = {FP16: torch.float16, BF16: torch.bfloat16, E4M3: torch.float8_e4m3fn}


def rounding_calls(tensor: torch.Tensor, format: Format) -> dict[str, Call]:
    """Return whatever can round to this format, the yardstick first."""
    array = tensor.cpu().numpy()
    found: dict[str, Call] = {
        "torch .half().float()": lambda: tensor.half().float(),
        "round_tensor": partial(round_tensor, tensor, format),
        "gfloat": lambda: gfloat.round_ndarray(GFLOAT[format], array),
    }
    if format in TORCH:
        found["torch's cast"] = lambda: tensor.to(TORCH[format]).float()
        found["ml_dtypes"] = lambda: array.astype(ML_DTYPES[format]).astype(np.float32)
    return found


def histogram_calls(values: torch.Tensor) -> dict[str, Call]:
    """Return histograms of several kinds of numbers; numpy's is given a tenth, for it is so slow."""
    there, edges, part = torch.empty_like(values), 2.0 ** np.arange(-40, 10), values[: len(values) // 10].cpu()
    inputs = {
        "FP32": values,
        "FP16": values.half(),
        "BF16": values.bfloat16(),
        "half zeros": values.relu(),
        "subnormal": torch.randint(1, 2**23, values.shape, dtype=torch.int32).view(torch.float32).to(values.device),
    }
    return {
        "copy_": lambda: there.copy_(values),
        **{name: partial(exponent_histogram, given) for name, given in inputs.items()},
        "a tenth by numpy": lambda: np.histogram(part.abs().numpy(), edges),
    }


def spin() -> None:
    while True:
        sum(range(10_000))


def fastest(call: Callable[[], object], rounds: int = 8) -> float:
    """Return the wall seconds of the fastest of several calls."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    chosen = options(__doc__, device="cpu", elements=10_000_000)
    values = (torch.randn(chosen.elements, generator=torch.Generator().manual_seed(0)) * 8).to(chosen.device)
    for format in (FP16, BF16, E4M3, MINE):
        print_ratios(format.name, medians(rounding_calls(values, format), device=chosen.device, fewest=3))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exponent_histogram(values)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"memory of a histogram on top: {grown / values.nbytes:.2f} of the FP32 tensor's")
    print_ratios("exponent_histogram", medians(histogram_calls(values), device=chosen.device))
    for others in (0, 2):
        with ExitStack() as ended:
            for process in [multiprocessing.Process(target=spin, daemon=True) for _ in range(others)]:
                process.start()
                ended.callback(process.terminate)
            took = {}
            for threads in (1, 2):
                torch.set_num_threads(threads)
                took[f"{threads} threads"] = fastest(partial(exponent_histogram, values))
            print_ratios(f"histogram beside {others} others", took)


if __name__ == "__main__":
    main()
