"""Binary floating-point formats as rows of data.

Idea: a format is defined by its sign bit, exponent bits, significand bits, and the meaning of its
last codes. Everything else (bias, largest value, smallest value, spacing) is derived.

Invariant: float64 represents every value of every `Format` exactly.

Source: IEEE 754-2019, 3.3 to 3.6; OCP 8-bit Floating Point (OFP8) 1.0, table 1; OCP Microscaling
    (MX) 1.0, 5.3 and 5.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np

from labkit.formats.rows import Rows


class Specials(Enum):
    """Meaning of the codes with the largest exponent field."""

    IEEE = "infinities and NaNs fill the whole last exponent"
    FN = "no infinities; only the very last code (of each sign) is NaN"
    NONE = "every code is a finite number"


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: sign, exponent and significand, from the high bit to the low.

    A normal code represents (-1)^sign * 2^(exponent - bias) * 1.significand. A subnormal code
    (exponent field 0) represents (-1)^sign * 2^emin * 0.significand.

    Attributes:
        name: for display.
        exponent_bits: width of the exponent field (2 to 11).
        significand_bits: stored bits of the significand, without the hidden one (0 to 52).
        specials: which codes are infinities and NaNs.
        signed: False if there is no sign bit, and nothing below zero.
        has_zero: False if exponent field 0 is a normal number, without zero and subnormals
            (E8M0); only in an unsigned format.

    Raises:
        TypeError: `specials` is not one of `Specials`.
        ValueError: the widths are invalid, or float64 does not represent all values.

    >>> mine = Format("mine", exponent_bits=4, significand_bits=7)
    >>> mine.bits, mine.bias, mine.max, mine.smallest_normal
    (12, 7, 255.0, 0.015625)
    """

    name: str
    exponent_bits: int
    significand_bits: int
    specials: Specials = Specials.IEEE
    signed: bool = True
    has_zero: bool = True

    def __post_init__(self) -> None:
        self._check_width("exponent_bits", self.exponent_bits, 2, 11)
        self._check_width("significand_bits", self.significand_bits, 0, 52)
        if not isinstance(self.specials, Specials):
            raise TypeError(
                f"format {self.name!r}: expected specials to be one of Specials.IEEE, Specials.FN "
                f"and Specials.NONE, got {self.specials!r}"
            )
        if self.specials is Specials.IEEE and self.significand_bits == 0:
            raise ValueError(
                f"format {self.name!r}: infinity and NaN differ in the significand, which needs 1 "
                "bit or more, got 0. Give significand_bits=1 or more, or specials=Specials.FN."
            )
        if not (self.signed and self.has_zero) and self.specials is not Specials.FN:
            raise ValueError(
                f"format {self.name!r}: without a sign or a zero it needs a NaN for numbers that "
                "it cannot represent, and has no infinities. Give specials=Specials.FN."
            )
        if self.signed and not self.has_zero:
            raise ValueError(
                f"format {self.name!r}: expected a sign and a zero, or a zero alone, or neither as "
                "in E8M0, got a sign without a zero. Give signed=False."
            )
        # 1023 is float64's largest exponent
        if self.emax > 1023:
            raise ValueError(
                f"format {self.name!r}: values up to 2^{self.emax} do not fit in float64, which "
                "carries them here. With 11 exponent bits only specials=Specials.IEEE fits."
            )

    def _check_width(self, field: str, width: int, low: int, high: int) -> None:
        if (
            isinstance(width, bool)
            or not isinstance(width, int | np.integer)
            or not low <= width <= high
        ):
            raise ValueError(
                f"format {self.name!r}: expected {field} to be an integer from {low} to {high}, "
                f"got {width!r} (FP64, 11 and 52, is the widest). FP16, for instance, is "
                "Format('FP16', 5, 10)."
            )

    @property
    def bits(self) -> int:
        """Width of a code: sign, exponent and significand."""
        return self.signed + self.exponent_bits + self.significand_bits

    @property
    def codes(self) -> int:
        """Number of codes, NaNs included."""
        return 1 << self.bits

    @property
    def code_dtype(self) -> np.dtype[np.unsignedinteger]:
        """The smallest unsigned integer type for a code."""
        itemsize = 1
        while 8 * itemsize < self.bits:
            itemsize *= 2
        return np.dtype(f"u{itemsize}")

    @property
    def precision(self) -> int:
        """Significant bits of a normal number: the stored ones and the hidden one."""
        return self.significand_bits + 1

    @property
    def bias(self) -> int:
        """Number that is subtracted from the exponent field: half of the largest field."""
        return (1 << (self.exponent_bits - 1)) - 1

    @property
    def sign_mask(self) -> int:
        """The sign bit; 0 in an unsigned format."""
        return self.signed << (self.bits - 1)

    @cached_property
    def max_code(self) -> int:
        """The code of the largest finite value: the last before the specials."""
        last = (1 << (self.exponent_bits + self.significand_bits)) - 1
        if self.specials is Specials.IEEE:
            # the whole last exponent
            return last - (1 << self.significand_bits)
        if self.specials is Specials.FN:
            return last - 1
        return last

    @property
    def infinity_code(self) -> int | None:
        """The code of +infinity, or None."""
        return self.max_code + 1 if self.specials is Specials.IEEE else None

    @property
    def nan_code(self) -> int | None:
        """The code of the default NaN (quiet: first significand bit set), or None."""
        if self.specials is Specials.NONE:
            return None
        if self.specials is Specials.FN:
            return self.max_code + 1
        # with no bit of the significand set, it would be infinity
        quiet_bit = 1 << (self.significand_bits - 1)
        return self.max_code + 1 + quiet_bit

    @cached_property
    def emin(self) -> int:
        """Exponent of the smallest normal number."""
        # zero and the subnormals take exponent field 0
        smallest_field = 1 if self.has_zero else 0
        return smallest_field - self.bias

    @cached_property
    def emax(self) -> int:
        """Exponent of the largest finite number."""
        return (self.max_code >> self.significand_bits) - self.bias

    @cached_property
    def max(self) -> float:
        """The largest finite value."""
        fraction_mask = (1 << self.significand_bits) - 1
        significand = (1 << self.significand_bits) + (self.max_code & fraction_mask)
        return float(np.ldexp(float(significand), self.emax - self.significand_bits))

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value with full precision, 2^emin."""
        return float(np.ldexp(1.0, self.emin))

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value; it is `smallest_normal` in a format without subnormals."""
        if not self.has_zero:
            return self.smallest_normal
        return float(np.ldexp(1.0, self.emin - self.significand_bits))

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger value, 2^-significand_bits."""
        return float(np.ldexp(1.0, -self.significand_bits))

    def contains(self, other: Format) -> bool:
        """Return whether every finite value of `other` is also a value of this format.

        >>> FP32.contains(FP16), FP16.contains(BF16), BF16.contains(FP16)
        (True, False, False)
        """
        # exponents of the smallest ulp
        finest = self.emin - self.significand_bits
        finest_of_other = other.emin - other.significand_bits
        return (
            self.significand_bits >= other.significand_bits
            and self.max >= other.max
            and finest <= finest_of_other
            and self.signed >= other.signed
            and self.has_zero >= other.has_zero
        )


# name, exponent bits, significand bits
FP64 = Format("FP64", 11, 52)
FP32 = Format("FP32", 8, 23)
# an FP32 operand as Tensor Cores use it: 19 bits, stored in 32 bits
TF32 = Format("TF32", 8, 10)
FP16 = Format("FP16", 5, 10)
BF16 = Format("BF16", 8, 7)
E5M2 = Format("E5M2", 5, 2)
E4M3 = Format("E4M3", 4, 3, Specials.FN)
E3M2 = Format("E3M2", 3, 2, Specials.NONE)
E2M3 = Format("E2M3", 2, 3, Specials.NONE)
E2M1 = Format("E2M1", 2, 1, Specials.NONE)
# powers of two: the scale of MX blocks
E8M0 = Format("E8M0", 8, 0, Specials.FN, signed=False, has_zero=False)

_ROWS = (FP64, FP32, TF32, FP16, BF16, E5M2, E4M3, E3M2, E2M3, E2M1, E8M0)
FORMATS: dict[str, Format] = Rows({row.name: row for row in _ROWS})
