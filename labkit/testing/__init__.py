"""Tests of numerical kernels that tell rounding from faults, by bounds that are derived."""

from labkit.testing.bound import Arithmetic, arithmetic, sum_error, unit_roundoff
from labkit.testing.compare import (
    Element,
    Unexplained,
    Verdict,
    VerdictKind,
    assert_explained,
    compare,
)
from labkit.testing.norms import layer_norm, rms_norm, softmax
from labkit.testing.operations import Operation, amax, convolution, dot, matmul, mean, sum_over

__all__ = [
    "Arithmetic",
    "Element",
    "Operation",
    "Unexplained",
    "Verdict",
    "VerdictKind",
    "amax",
    "arithmetic",
    "assert_explained",
    "compare",
    "convolution",
    "dot",
    "layer_norm",
    "matmul",
    "mean",
    "rms_norm",
    "softmax",
    "sum_error",
    "sum_over",
    "unit_roundoff",
]
