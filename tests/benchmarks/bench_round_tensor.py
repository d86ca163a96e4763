"""How fast does `round_tensor` round 10^7 float32 numbers, next to torch's casts and to other libraries?

Run by hand: .venv/bin/python tests/benchmarks/bench_round_tensor.py [--device cuda] [--extra DIRECTORY]

One thread, the best of several runs of each, all in one process; the yardstick is torch's own cast to FP16 and back
(aims: FP16 and BF16 within 1.5 of it, a custom format within 4), the others are printed as multiples of ours (aim:
gfloat's array path at least 20). `--extra` names a directory with qtorch or pychop, where there are any
(`pip install --no-deps --target DIRECTORY qtorch pychop`).
"""

import argparse
import importlib
import platform
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version

import gfloat
import ml_dtypes
import numpy as np
import torch
from gfloat.formats import format_info_bfloat16, format_info_binary16, format_info_ocp_e4m3

from labkit.formats import BF16, E4M3, FP16, Format
from labkit.interop import round_tensor

ELEMENTS = 10_000_000
YARDSTICK = "torch .half().float()"
MINE = Format("1-4-7", exponent_bits=4, significand_bits=7)
GFLOAT_MINE = gfloat.FormatInfo(
    name="1-4-7", k=12, precision=8, bias=7, is_signed=True, domain=gfloat.Domain.Extended,
    has_nz=True, num_high_nans=127, has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
GFLOAT = {FP16: format_info_binary16, BF16: format_info_bfloat16, E4M3: format_info_ocp_e4m3, MINE: GFLOAT_MINE}
ML_DTYPES = {FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3: ml_dtypes.float8_e4m3fn}
TORCH = {FP16: torch.float16, BF16: torch.bfloat16, E4M3: torch.float8_e4m3fn}


def race(works: dict[str, Callable[[], object]], device: str, rounds: int) -> dict[str, float]:
    """Seconds of the fastest run of each, taking turns, so that all meet the same state of the memory.

    On the CPU those this process was given: a busy machine does not count.
    """
    clock = time.perf_counter if device == "cuda" else time.process_time
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = clock()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            best[name] = min(best[name], clock() - start)
    return best


def others(tensor: torch.Tensor, format: Format) -> dict[str, Callable[[], object]]:
    """Whoever else can round to this format, under a name."""
    array = tensor.cpu().numpy()
    found: dict[str, Callable[[], object]] = {}
    if format in ML_DTYPES:
        found["numpy" if format is FP16 else "ml_dtypes"] = lambda: array.astype(ML_DTYPES[format]).astype(np.float32)
    found["gfloat"] = lambda: gfloat.round_ndarray(GFLOAT[format], array)
    for module, make in {"qtorch.quant": _qtorch, "pychop": _pychop}.items():
        try:
            found[module.split(".")[0]] = make(importlib.import_module(module), tensor, format)
        except Exception as reason:  # a missing or unbuildable guest is no failure of ours
            print(f"  ({module.split('.')[0]} left out: {type(reason).__name__}: {str(reason)[:80]})")
    return found


def _qtorch(quant: object, tensor: torch.Tensor, format: Format) -> Callable[[], object]:
    exponent, significand = format.exponent_bits, format.significand_bits
    return lambda: quant.float_quantize(tensor, exp=exponent, man=significand, rounding="nearest")


def _pychop(pychop: object, tensor: torch.Tensor, format: Format) -> Callable[[], object]:
    pychop.backend("torch")
    chop = pychop.Chop(exp_bits=format.exponent_bits, sig_bits=format.significand_bits)
    return lambda: chop(tensor)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    arguments.add_argument("--extra", help="directory with qtorch or pychop")
    chosen = arguments.parse_args()
    sys.path += [chosen.extra] if chosen.extra else []
    torch.set_num_threads(1)
    tensor = (torch.randn(ELEMENTS, generator=torch.Generator().manual_seed(0)) * 8).to(chosen.device)
    device = torch.cuda.get_device_name() if chosen.device == "cuda" else platform.processor() or platform.machine()
    versions = ", ".join(f"{package} {version(package)}" for package in ("torch", "numpy", "gfloat", "ml_dtypes"))
    print(f"{versions}; {device}, one thread; {ELEMENTS:.0e} float32")

    for format in (FP16, BF16, E4M3, MINE):
        works = {YARDSTICK: lambda: tensor.half().float(), "round_tensor": partial(round_tensor, tensor, format)}
        if format in TORCH:
            works[f"torch's {format.name} cast"] = lambda format=format: tensor.to(TORCH[format]).float()
        seconds = race(works, chosen.device, rounds=12) | race(others(tensor, format), chosen.device, rounds=3)
        ours = seconds["round_tensor"]
        print(f"{format.name}: {ours / seconds[YARDSTICK]:.2f} times the yardstick")
        for name, taken in seconds.items():
            print(f"    {name:22} {taken * 1e3:8.1f} ms   {taken / ours:7.2f} x ours")


if __name__ == "__main__":
    main()
