"""What stands on the paper of an addition, and how are its numbers written?

Idea: `labkit.formats` calculates and keeps a record of every station; a `Sheet` holds that record beside what was
typed. No bit is computed here.

Invariant: every number that is written is read from the record, or is the exact result as a fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from labkit.formats import (
    Add,
    Align,
    Calculation,
    Format,
    Multiply,
    Normalise,
    Reading,
    Round,
    Term,
    add,
    multiply,
    parse,
)
from labkit.widgets.base.number_words import MINUS, leading

OPERATIONS = {"add": ("+", "sum"), "multiply": ("×", "product")}


@dataclass(frozen=True)
class Sheet:
    """A sum or a product on paper: what was typed, what the format made of it, and every station on the way.

    operation    "add" or "multiply"
    readings     a and b, as the format holds them
    calculation  the result and its steps, from labkit.formats
    """

    operation: str
    format: Format
    readings: tuple[Reading, Reading]
    calculation: Calculation

    @property
    def values(self) -> tuple[float, float]:
        """What is added: a and b, rounded to the format."""
        return self.readings[0].value, self.readings[1].value

    @property
    def finite(self) -> bool:
        """Whether both are numbers; otherwise there are no bits to add."""
        return all(np.isfinite(value) for value in self.values)

    @property
    def first(self) -> Align | Multiply:
        """The station where both terms are first seen."""
        station = self.calculation.steps[0]
        assert isinstance(station, Align | Multiply)
        return station

    @property
    def total(self) -> Term:
        """The exact result (of what alignment left), before the format cuts it."""
        station = self.calculation.steps[-3]
        assert isinstance(station, Add | Multiply)
        return station.total if isinstance(station, Add) else station.product

    @property
    def cut(self) -> Normalise:
        """The station that moves the window and names guard, round and sticky."""
        station = self.calculation.steps[-2]
        assert isinstance(station, Normalise)
        return station

    @property
    def final(self) -> Round:
        """The last station."""
        station = self.calculation.steps[-1]
        assert isinstance(station, Round)
        return station

    @property
    def value(self) -> float:
        """The result."""
        return float(self.calculation.value)

    @property
    def home(self) -> int:
        """The exponent that both terms are written with: that of the larger one, or the sum of both in a product."""
        a, b = (int(term.exponent) for term in (self.first.a, self.first.b))
        lead = self.format.significand_bits
        if self.operation == "multiply":
            return a + b + 2 * lead
        if 0 in self.values:
            return (b if self.values[0] == 0 else a) + lead
        return max(a, b) + lead

    @property
    def window(self) -> int:
        """The exponent of the first place that the format keeps of the result."""
        return self.home if not self.total.significand else int(self.cut.kept.exponent) + self.format.significand_bits

    @property
    def exact(self) -> Fraction:
        """The exact result of the two values; only where both are finite."""
        a, b = (Fraction(value) for value in self.values)
        return a + b if self.operation == "add" else a * b

    @property
    def error(self) -> Fraction | None:
        """Result minus exact result, in units of the last place kept; None where one of them is not finite."""
        if not self.finite or not np.isfinite(self.value):
            return None
        return (Fraction(self.value) - self.exact) / Fraction(2) ** int(self.cut.kept.exponent)


def sheet(a: str, b: str, format: Format, operation: str = "add") -> Sheet:
    """Calculate what was typed, in a format.

    Raises:
        ValueError: one of the texts is no number, see `labkit.formats.parse`.

    >>> from labkit.formats import FP16
    >>> sheet("1", "0.0001", FP16).value
    1.0
    """
    readings = parse(a, format), parse(b, format)
    run = {"add": add, "multiply": multiply}[operation]
    return Sheet(operation, format, readings, run(readings[0].value, readings[1].value, format))


def exact_number(exact: Fraction, digits: int = 24) -> str:
    """Write a binary fraction in decimal, all its digits, or the first few and an ellipsis.

    >>> exact_number(Fraction(1.0) + Fraction(2.0**-13))
    '1.0001220703125'
    >>> exact_number(Fraction(2.0**-24), digits=5)
    '5.9604…e-8'
    """
    return (MINUS if exact < 0 else "") + leading(abs(exact), digits, plain_from=-5)


def significand(term: Term, point: int, last: int | None = None) -> str:
    """Write the significand of a term in bits with the point behind place `point`, down to place `last`.

    >>> from labkit.formats.steps import to_term
    >>> from labkit.formats import FP16
    >>> significand(to_term(np.array(1.5), FP16), point=0)
    '1.1000000000'
    """
    last = int(term.exponent) if last is None else last
    top = max(point, int(term.exponent) + int(term.significand).bit_length() - 1)
    bits = "".join(bit(term, place) for place in range(top, last - 1, -1))
    whole = top - point + 1
    return bits[:whole] + ("." + bits[whole:] if bits[whole:] else "")


def bit(term: Term, place: int) -> str:
    """Return the bit that stands for 2^place in a term's significand."""
    behind = place - int(term.exponent)
    return str(int(term.significand) >> behind & 1) if behind >= 0 else "0"


def scientific(term: Term, format: Format) -> str:
    """Write a term as its format holds it: 1.1010001110 × 2^-14."""
    exponent = int(term.exponent) + format.significand_bits
    return f"{MINUS if term.negative else ''}{significand(term, exponent)} × 2^{exponent}"
