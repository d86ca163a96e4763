"""An addition or multiplication on paper, and each of its stations in a sentence.

Idea: `labkit.formats` calculates and records every station; a `Sheet` holds that record beside what was typed. No bit
is computed here.

Invariant: every number that is written is read from the record, or is the exact result as a fraction.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import cast

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
    encode,
    field_bits,
    multiply,
    parse,
)
from labkit.widgets.base.number_words import MINUS, leading, number

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
        return cast(Align | Multiply, self.calculation.steps[0])

    @property
    def total(self) -> Term:
        """The exact result (of what alignment left), before the format cuts it."""
        station = cast(Add | Multiply, self.calculation.steps[-3])
        return station.total if isinstance(station, Add) else station.product

    @property
    def cut(self) -> Normalise:
        """The station that moves the window and names guard, round and sticky."""
        return cast(Normalise, self.calculation.steps[-2])

    @property
    def final(self) -> Round:
        return cast(Round, self.calculation.steps[-1])

    @property
    def value(self) -> float:
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
    """Calculate what was typed, in a format; `labkit.formats.parse` refuses what is no number.

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

    >>> from labkit.formats.arithmetic import to_term
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


def sentences(sheet: Sheet) -> list[tuple[str, str]]:
    """Return (name of the station, what happens there), from the first to the last."""
    if not sheet.finite:
        (a, b), sign = map(number, sheet.values), OPERATIONS[sheet.operation][0]
        said = (
            f"{a} {sign} {b} = {number(sheet.value)}: with an infinity or a NaN a rule decides, and no bits are added."
        )
        return [("Write", _write(sheet)), ("Result", said)]
    if sheet.operation == "multiply":
        middle = [("Multiply", _multiply(sheet))]
    else:
        middle = [("Align", _align(sheet)), ("Add", _add(sheet))]
    last = [("Normalise", _normalise(sheet)), ("Guard, round, sticky", _decide(sheet)), ("Round", _round(sheet))]
    return [("Write", _write(sheet)), *middle, *last]


def hint(reading: Reading, format: Format) -> str:
    """Say what a format holds of what was typed.

    >>> from labkit.formats import FP16, parse
    >>> hint(parse("0.0001", FP16), FP16)
    'rounded to 1.0002e-4, 0x068E'
    """
    code = f"0x{reading.code:0{-(-format.bits // 4)}X}"
    shown = number(reading.value)
    if reading.exact is None:
        return f"{shown}, {code}"
    exactly = np.isfinite(reading.value) and reading.exact == Fraction(reading.value)
    return f"{shown} exactly, {code}" if exactly else f"rounded to {shown}, {code}"


def facts(sheet: Sheet) -> list[tuple[str, str]]:
    """Return what is known at the end: label and text of bits, code, value, exact result and error."""
    code = int(encode(sheet.value, sheet.format))
    found = [
        ("bits", field_bits(code, sheet.format)),
        ("code", f"0x{code:0{-(-sheet.format.bits // 4)}X}"),
        ("value", number(sheet.value) if not np.isfinite(sheet.value) else exact_number(Fraction(sheet.value))),
    ]
    if sheet.finite:
        found.append((f"exact {OPERATIONS[sheet.operation][1]}", exact_number(sheet.exact)))
    if sheet.error is not None:
        found.append(("error", _ulps(sheet.error)))
    return found


def _write(sheet: Sheet) -> str:
    said = []
    for name, reading, term in zip("ab", sheet.readings, (sheet.first.a, sheet.first.b), strict=True):
        if not np.isfinite(reading.value):
            said.append(f"{name} is {number(reading.value)}")
            continue
        rounded = reading.exact is not None and reading.exact != Fraction(reading.value)
        becomes = f", rounded to {sheet.format.name}," if rounded else ""
        exponent = int(term.exponent) + sheet.format.significand_bits
        sign = MINUS if term.negative else ""
        said.append(f"{name}{becomes} is {sign}{significand(term, exponent)} × 2^{exponent}")
    return f"{' and '.join(said)}."


def _align(sheet: Sheet) -> str:
    align, precision = cast(Align, sheet.first), sheet.format.precision
    if 0 in sheet.values:
        return "One of them is 0: there is nothing to align."
    shift = int(align.shift)
    if shift == 0:
        return f"Both are written with 2^{sheet.home} already: nothing moves."
    name, term = ("a", align.a) if align.a.exponent < align.b.exponent else ("b", align.b)
    places = f"{shift} place{'s' if shift > 1 else ''}"
    said = f"{name} has the smaller exponent. To be written with 2^{sheet.home} it moves {places} to the right"
    beyond = f"beyond the {precision} places that {sheet.format.name} keeps"
    if shift >= precision:
        return f"{said}, and all its {precision} bits now lie {beyond}."
    if int(term.significand) & ((1 << shift) - 1) == 0:
        return f"{said}; only zeros pass {beyond}."
    bits = f"{shift} of its {precision} bits now lie" if shift > 1 else f"1 of its {precision} bits now lies"
    return f"{said}, and {bits} {beyond}."


def _add(sheet: Sheet) -> str:
    low = sheet.home - sheet.format.significand_bits
    station = cast(Add, sheet.calculation.steps[1])
    total = station.total
    kept = significand(total, sheet.home, max(low, int(total.exponent)))
    beyond = "".join(bit(total, place) for place in range(low - 1, int(total.exponent) - 1, -1)).rstrip("0")
    what = "The signs differ, so one is subtracted: the result" if station.subtract else "The sum"
    sign = MINUS if total.negative and total.significand else ""
    said = f"{what} is {sign}{kept}"
    return f"{said}, and beyond the places kept {beyond}." if beyond else f"{said}, and nothing beyond the places kept."


def _multiply(sheet: Sheet) -> str:
    digits = significand(sheet.total, sheet.home).rstrip("0").rstrip(".") or "0"
    sign = MINUS if sheet.total.negative else ""
    exponents = [int(term.exponent) + sheet.format.significand_bits for term in (sheet.first.a, sheet.first.b)]
    last = f"({exponents[1]})" if exponents[1] < 0 else exponents[1]
    precision = sheet.format.precision
    return (
        f"The significands are multiplied, {sign}{digits}, and the exponents added, {exponents[0]} + {last} = "
        f"{sheet.home}. {precision} bits times {precision} bits give up to {2 * precision}: nothing is lost yet."
    )


def _normalise(sheet: Sheet) -> str:
    what, places = OPERATIONS[sheet.operation][1], sheet.format.precision
    if not sheet.total.significand:
        return f"The {what} is exactly 0: there is nothing to normalise."
    top = int(sheet.total.exponent) + int(sheet.total.significand).bit_length() - 1
    moved = sheet.window - sheet.home
    if top < sheet.window:
        return (
            f"The {what} begins at 2^{top}, but {sheet.format.name} has no exponent below {sheet.format.emin}: the "
            f"{places} places stay at 2^{sheet.window} and begin with zeros, a subnormal number."
        )
    if moved == 0:
        return f"The {what} begins at 2^{top}: the {places} places that {sheet.format.name} keeps are already there."
    if moved > 0:
        return f"The {what} begins one place further left, so the {places} places move there and the point with them."
    gone = f"{-moved} leading bits" if moved < -1 else "The leading bit"
    filled = ", and zeros fill up from the right" if int(sheet.cut.dropped) < 0 else ""
    return f"{gone} cancelled: the {places} places move to 2^{sheet.window}{filled}."


def _decide(sheet: Sheet) -> str:
    cut = sheet.cut
    said = f"Guard {int(cut.guard)}, round {int(cut.round)}, sticky {int(cut.sticky)}: "
    if not (cut.guard or cut.round or cut.sticky):
        return said + "nothing stands beyond the places kept, so the result is exact."
    way = "up" if sheet.final.up else "down"
    if not cut.guard:
        reason = "less than half of the last place, so round down"
    elif cut.round or cut.sticky:
        reason = "more than half of the last place, so round up"
    else:
        last = int(cut.kept.significand) & 1
        reason = f"exactly half. The last bit kept is {last} ({'odd' if last else 'even'}), so to be even round {way}"
    return f"{said}{reason}{_lost(sheet, '; {} is lost.', '.')}"


def _round(sheet: Sheet) -> str:
    sign, what = OPERATIONS[sheet.operation]
    a, b = sheet.values
    right = f"({number(b)})" if np.signbit(b) else number(b)
    said = f"{number(a)} {sign} {right} = {number(sheet.value)} in {sheet.format.name}"
    if sheet.error is None:
        return f"{said}: the {what}, {exact_number(sheet.exact, 8)}, is beyond the largest value, {sheet.format.max:g}."
    if sheet.error == 0:
        return f"{said}, exactly."
    trace = _lost(sheet, "; {} left no trace.", ".")
    return f"{said}. The exact {what} is {exact_number(sheet.exact, 12)}, so the error is {_ulps(sheet.error)}{trace}"


def _lost(sheet: Sheet, words: str, otherwise: str) -> str:
    """Return the words for the operand that a sum swallowed, if it did."""
    if sheet.operation == "add" and sheet.error:
        for name, other, own in zip("ba", sheet.values, reversed(sheet.values), strict=True):
            if sheet.value == other and own != 0:
                return words.format(name)
    return otherwise


def _ulps(error: Fraction) -> str:
    size = float(abs(error))
    if error == 0:
        return "0 ulp"
    text = f"{size:.3f}".rstrip("0") if size >= 0.001 else f"{size:.1e}".replace("e-0", "e-")
    return f"{MINUS if error < 0 else '+'}{text} ulp"
