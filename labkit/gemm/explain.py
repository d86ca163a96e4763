"""Step-by-step account of one block in a Tensor Core.

Idea: the model of `emulate` for one element of D and one block, in Python integers. Every step is
kept as data: each product, its shift, the bits that remain and those that are cut off, the sum, the
result.

Invariant: `explain(a, b, c, spec).result` is the result of `emulate` for that block, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labkit.formats import FP16, FP32, Format, FormatLike, Rounding, as_format
from labkit.formats.arguments import require_kind
from labkit.gemm.blocks import operand
from labkit.gemm.mma import RESULT_ROUNDING, ZERO_EXPONENT, MmaSpec, as_spec

Numbers: TypeAlias = Sequence[float] | Tensor | NDArray[Any]
# bits before the point of an aligned term: products of significands are below 4, binary 11.1...
WHOLE_BITS = 2


@dataclass(frozen=True)
class AlignedTerm:
    """A product, or C, aligned for the sum.

    Its value is (-1)^negative * significand * 2^(exponent - significand_bits).

    Attributes:
        name: "C", or "a0*b0" and so on.
        exponent: for a product the sum of its operands' exponents; its significand may be 2 or
            more.
        shift: places it is shifted to the right, to the block's largest exponent.
        kept: the remaining significand, an integer multiple of the block's unit.
        kept_bits: the same in binary, with its point.
        cut_bits: the bits cut off behind it, up to the last 1; "" if there are none.
    """

    name: str
    value: float
    negative: bool
    significand: int
    significand_bits: int
    exponent: int
    shift: int
    kept: int
    kept_bits: str
    cut_bits: str

    @property
    def cut(self) -> bool:
        """Whether any bits were cut off."""
        return self.cut_bits != ""


@dataclass(frozen=True)
class BlockSum:
    """One block of one element of D, step by step; `str()` returns a table.

    Attributes:
        spec: the instruction, whose F fraction bits each term keeps.
        format: format of C and D.
        terms: the products in order, then C.
        exponent: exponent to which all terms are aligned: the largest among them, at least -126;
            the unit is 2^(exponent - F).
        total: the exact sum of the aligned terms, in units.
        total_bits: the same in binary, without a sign, with its point.
        result_exponent: exponent of the normalised sum (the result's emin if that is larger).
        result_bits: significand of the result, with its point.
        dropped_bits: the bits of the sum behind it.
        rounded_up: the result was rounded up in its last place.
        result: D.
    """

    spec: MmaSpec
    format: Format
    terms: tuple[AlignedTerm, ...]
    exponent: int
    total: int
    total_bits: str
    result_exponent: int
    result_bits: str
    dropped_bits: str
    rounded_up: bool
    result: float

    @property
    def unit_exponent(self) -> int:
        """Exponent of the unit, the value of a term's last bit."""
        return self.exponent - self.spec.fraction_bits

    def __str__(self) -> str:
        width = max(len(term.name) for term in self.terms)
        lines = [
            f"{self.spec.name}, {self.spec.operands.name} operands: terms are aligned to "
            f"2^{self.exponent} and keep {self.spec.fraction_bits} bits behind the point"
        ]
        for term in self.terms:
            cut = f" | {term.cut_bits}" if term.cut_bits else ""
            alignment = f"2^{term.exponent:<4} >> {term.shift:<3}" if term.value else "zero"
            sign = "-" if term.negative else "+"
            lines.append(f"  {term.name:{width}}  {alignment:13} {sign}{term.kept_bits}{cut}")
        sign = "-" if self.total < 0 else "+"
        lines.append(f"  {'sum':{width}}  {'':13} {sign}{self.total_bits}")
        rounding = "rounded to nearest even" if self.format == FP16 else "truncated"
        dropped = f" | {self.dropped_bits}" if self.dropped_bits else ""
        lines.append(f"{rounding}: {sign}{self.result_bits}{dropped} * 2^{self.result_exponent}")
        lines.append(f"D = {self.result!r} ({self.format.name})")
        return "\n".join(lines)


def explain(
    a: Numbers, b: Numbers, c: float, spec: MmaSpec | str, out: FormatLike | None = None
) -> BlockSum:
    """Return how one block of a Tensor Core computes c + a[0]*b[0] + a[1]*b[1] + ..., term by term.

    Args:
        a: up to `spec.block_length` values of the operands' format.
        b: as many values as `a`.
        c: a value of the result format.
        spec: the instruction: a row of `SPECS`.
        out: FP32 or FP16; by default `spec.result`.

    Raises:
        ValueError: more products than a block has; different lengths; infinities and NaN, which
            follow IEEE 754 without alignment; values that the formats do not represent.

    >>> from labkit.gemm.mma import SPECS
    >>> print(explain([1.0, 1.0], [2.0**-24, -1.0], 1 + 2.0**-23, SPECS["V100"]))
    V100, FP16 operands: terms are aligned to 2^0 and keep 23 bits behind the point
      a0*b0  2^-14  >> 14  +00.00000000000000000000000 | 1
      a1*b1  2^0    >> 0   -01.00000000000000000000000
      C      2^0    >> 0   +01.00000000000000000000001
      sum                  +00.00000000000000000000001
    truncated: +1.00000000000000000000000 * 2^-23
    D = 1.1920928955078125e-07 (FP32)
    """
    spec = as_spec(spec)
    if out is not None:
        out = as_format(out, "out")
    format = out or spec.result
    if format not in spec.results:
        results = " or ".join(row.name for row in spec.results)
        raise ValueError(f"out: expected {results} for {spec.name}, got {format.name}")
    left = _values(a, spec.operands, "a")
    right = _values(b, spec.right, "b")
    start = float(_values([c], format, "c")[0])
    if len(left) != len(right):
        raise ValueError(f"expected as many values in a as in b, got {len(left)} and {len(right)}")
    if not 1 <= len(left) <= spec.block_length:
        raise ValueError(
            f"expected 1 to {spec.block_length} products for one block of {spec.name}, got "
            f"{len(left)}. Explain a longer sum block by block, with the last result as c."
        )
    exact: list[_ExactTerm] = []
    bits = spec.operands.significand_bits + spec.right.significand_bits
    for i, (x, y) in enumerate(zip(left.tolist(), right.tolist(), strict=True)):
        significand_x, exponent_x = _significand(x, spec.operands)
        significand_y, exponent_y = _significand(y, spec.right)
        # the product is exact and is not normalised: its significand may be 2 or more
        exact.append(
            _ExactTerm(
                name=f"a{i}*b{i}",
                value=x * y,
                significand=significand_x * significand_y,
                significand_bits=bits,
                exponent=exponent_x + exponent_y,
            )
        )
    significand, exponent = _significand(start, format)
    exact.append(_ExactTerm("C", start, significand, format.significand_bits, exponent))
    # zeros do not take part in the search for the largest exponent
    largest = ZERO_EXPONENT
    for term in exact:
        if term.value:
            largest = max(largest, term.exponent)
    terms = tuple(_align(term, largest, spec.fraction_bits) for term in exact)
    return _finish(spec, format, terms, largest)


class _ExactTerm(NamedTuple):
    """A product, or C, before it is aligned; the fields are those of `AlignedTerm`."""

    name: str
    value: float
    significand: int
    significand_bits: int
    exponent: int


def _align(term: _ExactTerm, exponent: int, fraction_bits: int) -> AlignedTerm:
    """Shift a term to the block's exponent and cut it to `fraction_bits` bits behind the point."""
    shift = exponent - term.exponent if term.value else 0
    # places of the shifted significand behind the unit, which are cut off
    places = term.significand_bits + shift - fraction_bits
    if places > 0:
        kept = term.significand >> places
        cut = term.significand & ((1 << places) - 1)
        cut_bits = f"{cut:0{places}b}".rstrip("0")
    else:
        kept = term.significand << -places
        cut_bits = ""
    return AlignedTerm(
        name=term.name,
        value=term.value,
        negative=math.copysign(1.0, term.value) < 0,
        significand=term.significand,
        significand_bits=term.significand_bits,
        exponent=term.exponent,
        shift=shift,
        kept=kept,
        kept_bits=_with_point(kept, fraction_bits),
        cut_bits=cut_bits,
    )


def _values(numbers: Numbers, format: Format, name: str) -> NDArray[np.float64]:
    if isinstance(numbers, Tensor | np.ndarray):
        matrix: Tensor | NDArray[Any] = numbers
    else:
        require_kind(numbers, Sequence, name, "Pass a list of numbers")
        for number in numbers:
            require_kind(number, float, name)
        try:
            matrix = np.asarray(numbers, np.float64)
        except OverflowError:
            raise ValueError(
                f"{name}: expected numbers that FP64 can hold, got an integer beyond them"
            ) from None
    values = operand(matrix, format, name).astype(np.float64).reshape(-1)
    if not np.isfinite(values).all():
        raise ValueError(
            f"expected finite numbers in {name}, got infinities or NaN. Use `emulate`."
        )
    return values


def _significand(value: float, format: Format) -> tuple[int, int]:
    """Return integers s and e with |value| = s * 2^(e - significand_bits)."""
    exponent = max(math.frexp(value)[1] - 1, format.emin)
    return int(math.ldexp(abs(value), format.significand_bits - exponent)), exponent


def _with_point(whole: int, fraction_bits: int, before: int = WHOLE_BITS) -> str:
    digits = f"{whole:0{fraction_bits + before}b}"
    return f"{digits[:-fraction_bits]}.{digits[-fraction_bits:]}"


def _finish(
    spec: MmaSpec, format: Format, terms: tuple[AlignedTerm, ...], exponent: int
) -> BlockSum:
    """Add the aligned terms, normalise once, round once."""
    total = sum(-term.kept if term.negative else term.kept for term in terms)
    unit = exponent - spec.fraction_bits
    bits = spec.result_significand_bits if format == FP32 else format.significand_bits
    result_exponent = max(unit + abs(total).bit_length() - 1, format.emin)
    places = result_exponent - bits - unit
    if places > 0:
        kept = abs(total) >> places
        rest = abs(total) & ((1 << places) - 1)
    else:
        kept = abs(total) << -places
        rest = 0
    nearest = RESULT_ROUNDING[format] is Rounding.NEAREST_EVEN
    # Above half a unit the rest goes up; at exactly half it does so where the kept number is odd.
    up = nearest and 2 * rest + (kept & 1) > 1 << max(places, 0)
    size = math.ldexp(kept + 1 if up else kept, result_exponent - bits)
    if size > format.max:
        size = math.inf
    return BlockSum(
        spec=spec,
        format=format,
        terms=terms,
        exponent=exponent,
        total=total,
        total_bits=_with_point(abs(total), spec.fraction_bits),
        result_exponent=result_exponent,
        result_bits=_with_point(kept, bits, before=1),
        dropped_bits=f"{rest:0{places}b}".rstrip("0") if rest else "",
        rounded_up=up,
        result=math.copysign(size, total),
    )
