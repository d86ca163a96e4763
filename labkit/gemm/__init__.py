"""What does the hardware do with a number? FP16 in, FP32 accumulate, one rounding; and how fast."""

from labkit.gemm.accumulated import matmul
from labkit.gemm.accumulators import (
    ACCUMULATORS,
    EXACT,
    PAIRWISE_FP32,
    SEQUENTIAL_FP16,
    SEQUENTIAL_FP32,
    Accumulator,
    accumulate,
)
from labkit.gemm.bench import GemmRun, run_case, run_cases
from labkit.gemm.bench_cases import ConvCase, ElementwiseCase, GemmCase, intensity, linear_gemms
from labkit.gemm.bench_record import GemmRecord, from_json, measure
from labkit.gemm.bench_sweeps import Extent, Sweep, formats_on, sweeps
from labkit.gemm.composites import body_of, is_composite
from labkit.gemm.device import DeviceReport, device_report
from labkit.gemm.emulate import emulate
from labkit.gemm.explain import AlignedTerm, BlockSum, explain
from labkit.gemm.half_storage import GEMMS, half_storage, mapped, rounds_once
from labkit.gemm.mma import ROWS, SPECS, TURING_4, MmaSpec
from labkit.gemm.recompute import LabMode, as_now, open_modes, under
from labkit.gemm.roofline import Roofline, roofline

__all__ = [
    "ACCUMULATORS",
    "EXACT",
    "GEMMS",
    "PAIRWISE_FP32",
    "ROWS",
    "SEQUENTIAL_FP16",
    "SEQUENTIAL_FP32",
    "SPECS",
    "TURING_4",
    "Accumulator",
    "AlignedTerm",
    "BlockSum",
    "ConvCase",
    "DeviceReport",
    "ElementwiseCase",
    "Extent",
    "GemmCase",
    "GemmRecord",
    "GemmRun",
    "LabMode",
    "MmaSpec",
    "Roofline",
    "Sweep",
    "accumulate",
    "as_now",
    "body_of",
    "device_report",
    "emulate",
    "explain",
    "formats_on",
    "from_json",
    "half_storage",
    "intensity",
    "is_composite",
    "linear_gemms",
    "mapped",
    "matmul",
    "measure",
    "open_modes",
    "roofline",
    "rounds_once",
    "run_case",
    "run_cases",
    "sweeps",
    "under",
]
