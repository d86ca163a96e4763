"""How fast does `round_tensor` round 10^7 float32 numbers, next to torch's casts and to other libraries?

Run by hand: .venv/bin/python tests/benchmarks/bench_round_tensor.py [--device cuda] [--extra DIRECTORY]

One thread, the best of several runs of each, all in one process; printed as milliseconds, as a multiple of torch's own
cast to FP16 and back (aims: FP16 and BF16 within 1.5, a custom format within 4), and for the others as a multiple of
ours (aim: gfloat's array path at least 20). `--extra` names a directory with qtorch or pychop, where there are any
(`pip install --no-deps --target DIRECTORY qtorch pychop`).
"""

import argparse
import importlib
import platform
import sys
import time
from collections.abc import Callable
from importlib.metadata import version

import gfloat
import ml_dtypes
import numpy as np
import torch
from gfloat.formats import format_info_bfloat16, format_info_binary16, format_info_ocp_e4m3

from labkit.formats import BF16, E4M3, FP16, Format
from labkit.interop import round_tensor

ELEMENTS = 10_000_000
MINE = Format("1-4-7", exponent_bits=4, significand_bits=7)
GFLOAT_MINE = gfloat.FormatInfo(
    name="1-4-7", k=12, precision=8, bias=7, is_signed=True, domain=gfloat.Domain.Extended,
    has_nz=True, num_high_nans=127, has_subnormals=True, is_twos_complement=False,
)  # fmt: skip
GFLOAT = {FP16: format_info_binary16, BF16: format_info_bfloat16, E4M3: format_info_ocp_e4m3, MINE: GFLOAT_MINE}
ML_DTYPES = {FP16: np.float16, BF16: ml_dtypes.bfloat16, E4M3: ml_dtypes.float8_e4m3fn}
TORCH = {FP16: torch.float16, BF16: torch.bfloat16, E4M3: torch.float8_e4m3fn}


def best_of(runs: int, work: Callable[[], object], device: str) -> float:
    """Seconds of the fastest run, after one that is not counted; on the CPU those this process was given."""
    clock = time.perf_counter if device == "cuda" else time.process_time
    seconds = []
    for _ in range(runs + 1):
        start = clock()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(clock() - start)
    return min(seconds[1:])


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

    reference = best_of(7, lambda: tensor.half().float(), chosen.device)
    print(f"torch .half().float() {reference * 1e3:8.1f} ms   = 1, the yardstick")
    for format in (FP16, BF16, E4M3, MINE):
        ours = best_of(7, lambda format=format: round_tensor(tensor, format), chosen.device)
        print(f"{format.name:6} round_tensor   {ours * 1e3:8.1f} ms   {ours / reference:6.2f} x the yardstick")
        if format in TORCH:
            cast = best_of(7, lambda format=format: tensor.to(TORCH[format]).float(), chosen.device)
            print(f"       torch's cast   {cast * 1e3:8.1f} ms   {cast / ours:6.2f} x ours")
        for name, work in others(tensor, format).items():
            theirs = best_of(2, work, "cpu" if name in ("gfloat", "numpy", "ml_dtypes") else chosen.device)
            print(f"       {name:14} {theirs * 1e3:8.1f} ms   {theirs / ours:6.2f} x ours")


if __name__ == "__main__":
    main()
