"""Errors of long sums against K, for each accumulator, computed and drawn.

All accumulators add up the same products of FP16 numbers, and differ in where they round. The
numbers are positive: so the error of a sum whose terms are cut off grows with K, while errors of
rounding to nearest partly cancel.

Invariant: every point is the median of |D - exact| / exact over `ROWS` sums, where the exact sum is
computed in FP64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from labkit.formats import FP16
from labkit.gemm import PAIRWISE_FP32, SEQUENTIAL_FP16, SEQUENTIAL_FP32, SPECS, accumulate
from labkit.widgets.base.figures import (
    FATE_COLOURS,
    FORMAT_COLOURS,
    INK,
    described,
    new_figure,
    on_any_page,
    wrapped,
)
from labkit.widgets.base.number_words import two_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from labkit.gemm.accumulators import AnyAccumulator

LENGTHS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
# The number of sums for each K. It is odd, so that the median is one of them.
ROWS = 17
# Name -> accumulator, colour and style. Two curves never differ by colour alone.
WHO: dict[str, tuple[AnyAccumulator, str, str]] = {
    "FP16, one by one": (SEQUENTIAL_FP16, FORMAT_COLOURS["FP16"], "s-"),
    "V100, C and D in FP16": (replace(SPECS["V100"], result=FP16), FORMAT_COLOURS["FP16"], "v--"),
    "V100": (SPECS["V100"], FATE_COLOURS["underflowed"], "v-"),
    "A100": (SPECS["A100"], FATE_COLOURS["overflowed"], "^-"),
    "H100": (SPECS["H100"], FATE_COLOURS["normal"], "D-"),
    "FP32, one by one": (SEQUENTIAL_FP32, FORMAT_COLOURS["FP32"], "o--"),
    "FP32, in pairs": (PAIRWISE_FP32, FORMAT_COLOURS["FP32"], "o:"),
}


@dataclass(frozen=True)
class SumErrors:
    """Relative errors of sums of K products, for each accumulator.

    Attributes:
        lengths: The values of K.
        errors: Name of an accumulator -> median relative error at each K.
    """

    lengths: tuple[int, ...]
    errors: Mapping[str, tuple[float, ...]]


def sum_errors(lengths: Sequence[int] = LENGTHS, seed: int = 0) -> SumErrors:
    """Return the errors of sums of K products of FP16 numbers between 0 and 1.

    Args:
        lengths: The values of K.
        seed: The seed of the numbers.

    Raises:
        ValueError: A length is below 1, or there is none.

    >>> errors = sum_errors([16, 4096]).errors
    >>> one_by_one, v100, h100 = (errors[name][1] for name in ("FP16, one by one", "V100", "H100"))
    >>> one_by_one > 100 * v100 > 100 * h100
    True
    """
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths: expected 1 and more, got {list(lengths)}")
    generator = torch.Generator().manual_seed(seed)
    a, b = (torch.rand(ROWS, max(lengths), generator=generator).half() for _ in range(2))
    errors: dict[str, list[float]] = {name: [] for name in WHO}
    for k in lengths:
        left = a[:, None, :k]
        right = b[:, :k, None]
        exact = left.double() @ right.double()
        for name, (accumulator, _, _) in WHO.items():
            sums = accumulate(left, right, accumulator=accumulator).double()
            errors[name].append(float(((sums - exact).abs() / exact).median()))
    return SumErrors(tuple(lengths), {name: tuple(each) for name, each in errors.items()})


def sum_errors_sentence(found: SumErrors) -> str:
    """Return a sentence about the errors of the longest sums."""
    last = {name: each[-1] for name, each in found.errors.items()}
    return (
        f"At K = {found.lengths[-1]:,} the same sums are off by "
        f"{last['FP16, one by one']:.0%} in FP16 one by one. The error is {_parts(last['V100'])} "
        f"on the V100, {_parts(last['A100'])} on the A100, {_parts(last['H100'])} on the "
        f"H100, and {_parts(last['FP32, one by one'])} in FP32 one by one."
    )


def _parts(error: float) -> str:
    """Return an error in millionths, with two digits.

    >>> _parts(1.63e-4), _parts(4.2e-7)
    ('160 millionths', '0.42 millionths')
    """
    return f"{two_digits(1e6 * error)} millionths"


@on_any_page
def sum_errors_figure(found: SumErrors | None = None) -> Figure:
    """Return a figure of errors against K, with a sentence below it.

    Args:
        found: The errors; None to compute those of `LENGTHS`.
    """
    if found is None:
        found = sum_errors()
    figure = new_figure(9, 4.6, layout="constrained")
    axes = figure.subplots()
    for name, each in found.errors.items():
        _, colour, style = WHO[name]
        fill = "none" if ":" in style else colour
        axes.plot(found.lengths, each, style, color=colour, label=name, ms=5, lw=1.5, mfc=fill)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("K, the number of products in the sum", color=INK)
    axes.set_ylabel(f"relative error (median of {ROWS} sums)", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5))
    title = "Same inputs, emulated to the bit: error against K"
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    figure.supxlabel(wrapped(sum_errors_sentence(found), 110), fontsize=9.5)
    return described(figure, f"{title}.", sum_errors_sentence(found))
