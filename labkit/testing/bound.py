"""Rigorous error bounds of sums, for any order of the additions.

A kernel computes s = x[1] y[1] + ... + x[K] y[K] from operands that are exact as they are stored.
With S = |x[1] y[1]| + ... + |x[K] y[K]|, `sum_error` returns an e with |computed - s| <= e before
the result is stored.

**IEEE additions.** An addition returns (a + b)(1 + d), |d| <= u, with u = 2^-p to nearest and
2^(1-p) toward zero for p bits of precision. In any order a term passes through at most K - 1
additions, and through one rounding more where the format does not represent the product of two
operands. With h such roundings

    e = ((1 + u)^h - 1) S.

Sums of multiples of the smallest subnormal never underflow inexactly. Where products are finer,
each rounding adds one smallest subnormal. If S exceeds the largest number, one order may overflow
and another not: then e is infinite, and the element cannot be judged.

**Tensor Cores** (`labkit.gemm.mma`). A block aligns its L products and C to the largest exponent E
among them, cuts each term to F bits behind the point, adds exactly, and cuts the sum to r bits. The
largest term loses nothing, so n products lose less than n 2^(E-F). Cut terms are no larger than the
terms, so no partial sum exceeds S, and 2^E <= S'. Here S' is S with subnormal operands raised to
the smallest normal number, as which they are aligned. However K is divided, all blocks together
lose less than K 2^-F (S' + 2^-126) by cutting terms. A slice of K (split-K) has at least one full
block, so there are B <= 2 ceil(K / L) blocks. Each loses at most 2^-r S by cutting its sum, and as
many FP32 additions of partial sums may follow:

    e = (K 2^-F (S' + 2^-126) + B (2^-r + 2^-24) S) (1 + 2^-24)^B.

If C and D are FP16, the sum of a block is rounded to nearest, 2^-11.

**Operands** that a kernel rounds first (FP32 to TF32 or BF16) have a relative error of w = 2^(1-p)
at most, since hardware may cut them. That adds (2 w + w^2) S', and S grows by as much.

**The error of this module.** The exact result and S are FP64 sums; their error, K 2^-53 S in any
order, is part of e.

**The rounding at the end** is monotonic. So |computed - s| <= e implies that the stored result lies
between the rounded s - e and the rounded s + e, also where these are subnormal or infinite
(`compare`).

Invariant: no kernel that adds as described exceeds e; tests/testing compares with exact arithmetic.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., 3.1, 4.2; arXiv:2511.10909
    (Tensor Cores).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.formats import (
    BF16,
    FORMATS,
    FP16,
    FP32,
    FP64,
    Format,
    FormatLike,
    Rounding,
    as_format,
    as_member,
)
from labkit.formats.arguments import require_kind
from labkit.gemm import SPECS, Accumulator, MmaSpec
from labkit.gemm.accumulators import instruction_for

# formats of partial sums
ACCUMULATORS = (FP16, BF16, FP32, FP64)
NEAREST = (Rounding.NEAREST_EVEN, Rounding.NEAREST_AWAY)
Floats: TypeAlias = NDArray[np.float64]
AnyArithmetic: TypeAlias = "str | Format | Accumulator | MmaSpec | Arithmetic"


@dataclass(frozen=True)
class Arithmetic:
    """How a kernel adds.

    Attributes:
        name: for display.
        format: format of partial sums.
        rounding: rounding of every addition: to nearest, or toward zero.
        spec: instruction of a Tensor Core, whose blocks take the place of single additions.
        operands: format that operands are rounded to before they are multiplied; None if they are
            used as they are stored.
    """

    name: str
    format: Format = FP32
    rounding: Rounding = Rounding.NEAREST_EVEN
    spec: MmaSpec | None = None
    operands: Format | None = None

    @property
    def unit(self) -> float:
        """Largest relative error of one addition."""
        return unit_roundoff(self.format, self.rounding)

    @property
    def operand_error(self) -> float:
        """Largest relative error of a product that is due to rounded operands."""
        w = 0.0 if self.operands is None else unit_roundoff(self.operands, Rounding.TOWARD_ZERO)
        return 2 * w + w * w


def unit_roundoff(format: FormatLike, rounding: Rounding | str = Rounding.NEAREST_EVEN) -> float:
    """Return the largest relative error of one rounding: 2^-p to nearest, 2^(1-p) in other modes.

    >>> unit_roundoff(FP16) == 2**-11, unit_roundoff(FP16, Rounding.TOWARD_ZERO) == 2**-10
    (True, True)
    """
    precision = as_format(format).precision
    if as_member(Rounding, rounding, "rounding") in NEAREST:
        return float(2.0**-precision)
    return float(2.0 ** (1 - precision))


def arithmetic(
    accumulator: AnyArithmetic,
    operands: tuple[Format, ...] = (),
    multiplied_as: Format | None = None,
) -> Arithmetic:
    """Return the arithmetic of an accumulator.

    It is passed as a format, a row of SPECS, the name of a format or GPU, or an Arithmetic.

    Args:
        accumulator: a format or its name, a row of SPECS or a GPU's name, or an Arithmetic.
        operands: formats of the operands. Tensor Cores multiply FP16, BF16, TF32 and FP8 operands;
            for FP32 operands, sums and other operations, a GPU adds as an FP32 unit.
        multiplied_as: the format that the kernel rounds operands to, TF32 for instance.

    Raises:
        ValueError: the name is unknown; the GPU has no such instruction.

    >>> arithmetic("H100", (FP16, FP16)).name, arithmetic("FP32").unit == 2**-24
    ('H100 Tensor Cores', True)
    """
    if isinstance(accumulator, Arithmetic):
        return accumulator
    if isinstance(accumulator, Accumulator):
        accumulator = accumulator.format or FP64
    if not isinstance(accumulator, str | Format | MmaSpec):
        accumulator = as_format(accumulator, "accumulator")
    if isinstance(accumulator, str):
        known: dict[str, Format | MmaSpec] = {**FORMATS, **SPECS}
        name = next((name for name in known if name.upper() == accumulator.upper()), None)
        if name is None:
            listed = ", ".join([*(format.name for format in ACCUMULATORS), *SPECS])
            raise ValueError(f"expected an accumulator of {listed}, got {accumulator!r}")
        accumulator = known[name]
    if isinstance(accumulator, Format):
        if accumulator not in ACCUMULATORS:
            listed = ", ".join(format.name for format in ACCUMULATORS)
            raise ValueError(f"expected an accumulator of {listed}, got {accumulator.name}")
        return Arithmetic(accumulator.name, accumulator, operands=multiplied_as)
    assert isinstance(accumulator, MmaSpec)
    formats = tuple(multiplied_as or format for format in operands)
    if len(formats) != 2 or FP32 in formats or FP64 in formats:
        return Arithmetic(f"{accumulator.name}, FP32 units", FP32, operands=multiplied_as)
    spec = instruction_for(accumulator, *formats)
    return Arithmetic(f"{spec.name} Tensor Cores", spec.result, spec=spec, operands=multiplied_as)


def sum_error(
    how: Arithmetic,
    terms: int,
    size: Floats | float,
    *,
    extra: int = 0,
    grid: float = 0.0,
    gain: float = 1.0,
) -> Floats:
    """Return the bound of the errors of sums of `terms` terms, before they are stored.

    Args:
        how: the arithmetic of the additions.
        terms: number of terms of each sum.
        size: S in FP64, or the larger S'.
        extra: further roundings that a term or the sum passes through: of the product, of a scale,
            of a division.
        grid: a number that divides all terms; from the smallest subnormal on, no addition
            underflows.
        gain: largest factor that is applied after an underflow.

    Returns:
        A bound for each element of `size`; inf where an order of the additions may overflow.

    Raises:
        ValueError: terms or extra is negative.

    >>> float(sum_error(Arithmetic("FP32"), 4096, np.array(1.0))) < 4096 * 2**-24 * 1.001
    True
    """
    require_kind(how, Arithmetic, "how", "For example: arithmetic(FP32)")
    require_kind(terms, int, "terms")
    require_kind(extra, int, "extra")
    for name, count in (("terms", terms), ("extra", extra)):
        if count < 0:
            raise ValueError(f"{name}: expected 0 or more, got {count}")
    require_kind(size, (float, np.ndarray), "size", "Pass the sum of magnitudes, in FP64")
    size = np.asarray(size, np.float64)
    grown = 1 + how.operand_error
    tiny = how.format.smallest_subnormal
    if how.spec is None:
        growth = growth_of(max(terms - 1, 0) + extra, how.unit)
        slope = growth
        least = (terms + extra) * tiny * (1 + growth) * gain if terms and grid < tiny else 0.0
    else:
        blocks = 2 * math.ceil(terms / how.spec.block_length)
        half = how.spec.result == FP16
        loss = 2.0**-11 if half else 2.0**-how.spec.result_significand_bits
        growth = (1 + growth_of(blocks, loss if half else 0.0)) * (
            1 + growth_of(blocks + extra, 2.0**-24)
        ) - 1
        cut = terms * 2.0**-how.spec.fraction_bits
        slope = (cut + blocks * (loss + 2.0**-24) + extra * 2.0**-24) * (1 + growth)
        least = cut * (1 + growth) * 2.0**how.spec.result.emin + (blocks + extra) * tiny * gain
    own = (terms + 4) * 2.0**-53 + how.operand_error
    margin = (1 + (terms + 8) * 2.0**-52) * (1 + 2.0**-40)
    top = float(np.max(size, initial=0.0))
    # Elements with infinity or NaN are compared by kind.
    if not np.isfinite(top):
        size = np.nan_to_num(size, nan=0.0, posinf=0.0)
        top = float(np.max(size, initial=0.0))
    with np.errstate(over="ignore", invalid="ignore"):
        error = (
            size * ((slope * grown + own) * margin)
            if slope + own < math.inf
            else np.full(size.shape, np.inf)
        )
        error += least
        largest = (1 + growth) * grown * margin
        return (
            np.where(size * largest > how.format.max, np.inf, error)
            if top * largest > how.format.max
            else error
        )


def growth_of(steps: int, unit: float) -> float:
    """Return (1 + unit)^steps - 1, infinite rather than an overflow."""
    exponent = steps * math.log1p(unit)
    # e^709 is the largest that FP64 holds
    return math.expm1(exponent) if exponent < 700 else math.inf
