"""Vectors of a format: FP32 numbers at which roundings differ, and their codes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.formats import (
    BF16,
    E4M3,
    E5M2,
    FP16,
    Format,
    Overflow,
    Rounding,
    encode,
    round_to,
)
from labkit.testing.vectors.tables import Table, Vectors

ROUNDED = {format.name: format for format in (FP16, BF16, E4M3, E5M2)}
SATURATING = ", saturating"
ROUNDED_NAMES = (*ROUNDED, f"E4M3{SATURATING}", f"E5M2{SATURATING}")
# from here on, FP32 has numbers below the smallest subnormal of a format
ROOM_BELOW = 2.0**-140


class RoundingVectors(Vectors):
    """FP32 numbers, and their codes in a format."""

    def __init__(self, name: str) -> None:
        self.format = ROUNDED[name.removesuffix(SATURATING)]
        self.saturates = name.endswith(SATURATING)

    def table(self) -> Table:
        rows = list(_rows(self.format))
        x = np.array([value for _, value in rows], np.float32)
        return {"rule": np.array([rule for rule, _ in rows]), "x": x, "codes": self._codes(x)}

    def format_of(self, key: str) -> Format | None:
        return self.format

    def mistakes(self, table: Table) -> dict[str, Table]:
        x = table["x"]
        subnormal = np.abs(x) < self.format.smallest_normal
        flushed = np.where(subnormal, np.copysign(np.float32(0), x), x)
        codes = {
            "toward zero": self._codes(x, Rounding.TOWARD_ZERO),
            "ties away from zero": self._codes(x, Rounding.NEAREST_AWAY),
            "saturates": self._codes(x, saturates=True),
            "overflows to infinity or NaN": self._codes(x, saturates=False),
            "subnormal numbers are zero": self._codes(flushed),
        }
        for first in (FP16, BF16):
            rounded = np.asarray(round_to(x, first), np.float32)
            codes[f"rounded to {first.name} first"] = self._codes(rounded)
        return {name: {"codes": wrong} for name, wrong in codes.items()}

    def _codes(
        self,
        x: NDArray[Any],
        rounding: Rounding = Rounding.NEAREST_EVEN,
        saturates: bool | None = None,
    ) -> NDArray[Any]:
        if saturates is None:
            saturates = self.saturates
        overflow = Overflow.SATURATE if saturates else Overflow.TO_INFINITY
        with np.errstate(over="ignore"):
            values = round_to(x.astype(np.float64), self.format, rounding, overflow)
        return np.asarray(encode(values, self.format))


def _rows(format: Format) -> Iterator[tuple[str, float]]:
    """Yield (rule, FP32 number): the numbers at which roundings differ."""
    for sign in (1.0, -1.0):
        for rule, value in (*_normal(format), *_subnormal(format), *_largest(format)):
            yield rule, sign * value
        yield "infinity", sign * np.inf
        yield "signed zero", sign * 0.0
        low = format.smallest_subnormal
        tiny = low * 2.0**-9 if low > ROOM_BELOW else 2.0**-149
        yield "underflow to a signed zero", sign * tiny
    yield "NaN", np.nan


def _normal(format: Format) -> Iterator[tuple[str, float]]:
    """Yield values of some exponents, and numbers between them and the next value."""
    for power in (0, format.emin, format.emax - 1, 1):
        for place in (0, 1, 2, (1 << format.significand_bits) - 1):
            value = 2.0**power * (1 + place * format.epsilon)
            half = 2.0**power * format.epsilon / 2
            yield "a value of the format", value
            yield "ties to even", value + half
            yield "to nearest: above the middle", value + half * (1 + 2.0**-8)
            yield "to nearest: below the middle", value + half * (1 - 2.0**-8)
            # so close that a first rounding to a wider format would make it a tie
            yield "one rounding: just above the middle", value + half * (1 + 2.0**-11)


def _subnormal(format: Format) -> Iterator[tuple[str, float]]:
    low = format.smallest_subnormal
    for place in (0, 1, 2, (1 << format.significand_bits) - 2):
        yield "subnormal numbers", place * low
        if low > ROOM_BELOW:
            yield "subnormal ties", (place + 0.5) * low
            yield "subnormal numbers", (place + 0.5 + 2.0**-6) * low
            yield "subnormal numbers", (place + 0.5 - 2.0**-6) * low


def _largest(format: Format) -> Iterator[tuple[str, float]]:
    """Yield numbers around the largest one, and around the middle to the next that would follow."""
    spacing = 2.0 ** (format.emax - format.significand_bits)
    yield "the largest number", format.max
    yield "the largest number", format.max + 0.4375 * spacing
    yield "overflow: half-way to the next number", format.max + 0.5 * spacing
    yield "overflow: beyond the largest number", format.max + 0.75 * spacing
    # FP32 has no numbers beyond BF16's
    if format != BF16:
        yield "overflow: beyond the largest number", format.max * 8
