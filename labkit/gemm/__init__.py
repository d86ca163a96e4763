"""Emulation of Tensor Cores, instruction by instruction, and of FP16 and FP32 accumulators."""

from labkit.gemm.accumulators import (
    ACCUMULATORS,
    EXACT,
    PAIRWISE_FP32,
    SEQUENTIAL_FP16,
    SEQUENTIAL_FP32,
    Accumulator,
    accumulate,
    as_accumulator,
)
from labkit.gemm.blocks import emulate, emulator
from labkit.gemm.explain import AlignedTerm, BlockSum, explain
from labkit.gemm.half_storage import GEMMS, half_storage, rounds_once
from labkit.gemm.mma import ROWS, SPECS, TURING_4, MmaSpec, as_spec
from labkit.gemm.precision import fp32_precision, has_tf32, is_ieee_on_cpu
from labkit.gemm.product import matmul
from labkit.gemm.tf32 import tf32_products

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
    "MmaSpec",
    "accumulate",
    "as_accumulator",
    "as_spec",
    "emulate",
    "emulator",
    "explain",
    "fp32_precision",
    "half_storage",
    "has_tf32",
    "is_ieee_on_cpu",
    "matmul",
    "rounds_once",
    "tf32_products",
]
