"""Tests of kernels and of trainings that tell rounding from faults, by bounds that are derived.

Invariant: importing the package imports no torch, since pytest loads its plugin with every test
run. The first use of a name imports its module (PEP 562).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labkit.testing.bound import Arithmetic, arithmetic, sum_error, unit_roundoff
    from labkit.testing.comparison import assert_explained, compare
    from labkit.testing.convolutions import convolution
    from labkit.testing.norms import layer_norm, rms_norm, softmax
    from labkit.testing.operation import Operation
    from labkit.testing.products import dot, matmul
    from labkit.testing.reductions import amax, mean, sum_over
    from labkit.testing.trainings import (
        TrainingDiff,
        TrainingsDiffer,
        TrainingVerdictKind,
        assert_same_training,
        compare_trainings,
    )
    from labkit.testing.verdict import Element, Unexplained, Verdict, VerdictKind

_MODULES = {
    "bound": ("Arithmetic", "arithmetic", "sum_error", "unit_roundoff"),
    "comparison": ("assert_explained", "compare"),
    "convolutions": ("convolution",),
    "norms": ("layer_norm", "rms_norm", "softmax"),
    "operation": ("Operation",),
    "products": ("dot", "matmul"),
    "reductions": ("amax", "mean", "sum_over"),
    "trainings": (
        "TrainingDiff",
        "TrainingVerdictKind",
        "TrainingsDiffer",
        "assert_same_training",
        "compare_trainings",
    ),
    "verdict": ("Element", "Unexplained", "Verdict", "VerdictKind"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Arithmetic",
    "Element",
    "Operation",
    "TrainingDiff",
    "TrainingVerdictKind",
    "TrainingsDiffer",
    "Unexplained",
    "Verdict",
    "VerdictKind",
    "amax",
    "arithmetic",
    "assert_explained",
    "assert_same_training",
    "compare",
    "compare_trainings",
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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
