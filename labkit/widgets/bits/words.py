"""What does the bit explorer know, say and show?

Idea: its state is one number in one format. Typing, flipping a bit, stepping and changing the format each make a new
state from the old one; everything on the screen (bits, formula, facts, comparison, sentence) is read off the state.

Invariant: `code` always is what `format` holds of `number`; text that cannot be read changes neither, it only brings a
`problem` in words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from labkit.formats import (
    Format,
    NumberClass,
    classify,
    decode,
    encode,
    exact_decimal,
    hex_float,
    next_down,
    next_up,
    parse,
    ulp,
)
from labkit.widgets.base.number_words import brief, leading, power_of_two, spaced

LONGEST_DECIMAL = 24  # characters; a value with more is put into the box as a hex-float


@dataclass(frozen=True)
class Explored:
    """A number, and what a format makes of it."""

    format: Format
    code: int
    number: str  # the real number meant, as every format can read it: never a code
    text: str  # what stands in the box
    problem: str = ""  # what could not be done, in words; empty when all is well

    @property
    def value(self) -> float:
        """What the code stands for."""
        return float(decode(self.code, self.format))

    @property
    def kind(self) -> str:
        """The class of the code, a `NumberClass`."""
        return str(classify(self.code, self.format))

    @property
    def exact(self) -> Fraction | None:
        """The number meant; None for infinities and NaN."""
        return parse(self.number, self.format).exact


def explore(text: str, format: Format) -> Explored:
    """Read text as a number of a format.

    Raises:
        ValueError: as `parse`; the message says what would do.

    >>> from labkit.formats import FP16
    >>> hex(explore("0.1", FP16).code), explore("0x3c01", FP16).number
    ('0x2e66', '1.0009765625')
    """
    reading = parse(text, format)
    return Explored(format, reading.code, exact_text(reading.value) if reading.kind == "code" else text, text)


def typed(state: Explored, text: str) -> Explored:
    """Return the state after text was typed; bad text stays in the box, beside the number that was there."""
    try:
        return explore(text, state.format)
    except ValueError as error:
        said = str(error) if text.strip() else "Nothing is typed. Give a number, such as 0.1, or a code, such as 0x1."
        return replace(state, text=text, problem=said)


def with_code(state: Explored, code: int) -> Explored:
    """Return the state with other bits; the number follows them.

    Raises:
        ValueError: the code does not fit the format.
    """
    number = exact_text(float(decode(code, state.format)))
    return Explored(state.format, code, number, number)


def flipped(state: Explored, bit: int) -> Explored:
    """Return the state with one bit turned over; bit 0 is the last one of the significand.

    Raises:
        ValueError: the format has no such bit.
    """
    if not 0 <= bit < state.format.bits:
        raise ValueError(f"{state.format.name} has the bits 0 to {state.format.bits - 1}; it was given bit {bit}")
    return with_code(state, state.code ^ (1 << bit))


def stepped(state: Explored, direction: int) -> Explored:
    """Return the state at the next larger (+1) or smaller (-1) value; where there is none it says so.

    >>> from labkit.formats import FP16
    >>> stepped(explore("1", FP16), +1).text
    '1.0009765625'
    """
    there = neighbour(state, direction)
    if there is None:
        side = "larger" if direction > 0 else "smaller"
        return replace(state, problem=f"{state.format.name} has no {side} value than {name_of(state.value)}.")
    return with_code(state, int(encode(there, state.format)))


def in_format(state: Explored, format: Format) -> Explored:
    """Return the same number in another format; one that the other format has no code for is kept, with a reason."""
    try:
        return explore(state.number, format)
    except ValueError as error:
        return replace(state, problem=str(error))


def neighbour(state: Explored, direction: int) -> float | None:
    """Return the value next to this one, or None at the end of the line and beside NaN."""
    value = state.value
    there = float((next_up if direction > 0 else next_down)(value, state.format))
    return None if np.isnan(there) or there == value else there


def exact_text(value: float) -> str:
    """Write a value so that every format reads exactly it: in decimal where that is short, else as a hex-float.

    >>> exact_text(0.0999755859375), exact_text(2.0**-24), exact_text(-0.0)
    ('0.0999755859375', '0x1p-24', '-0')
    """
    if not np.isfinite(value):
        return str(float(value))
    written = exact_decimal(value)
    return written if len(written) <= LONGEST_DECIMAL else hex_float(value)


def name_of(value: float) -> str:
    """Name a value in a sentence.

    >>> name_of(65504.0), name_of(2.0**-24), name_of(-float("inf"))
    ('65504', '2^-24 = 5.96e-8', 'minus infinity')
    """
    if not np.isfinite(value):
        return "NaN" if np.isnan(value) else "infinity" if value > 0 else "minus infinity"
    written = exact_text(value)
    if not written.startswith(("0x", "-0x")):
        return written
    return leading(value) if power_of_two(value) is None else spaced(value)


def sentence(state: Explored) -> str:
    """Say in one sentence what the format makes of the number.

    >>> from labkit.formats import FP16
    >>> sentence(explore("0.1", FP16))
    '0.1 is no FP16 number: the nearest one is 0.0999755859375, which is 2.44e-5 below it (0.4 ulp).'
    >>> sentence(explore("70000", FP16))
    '70000 is beyond the largest FP16 number, 65504, and becomes infinity.'
    """
    name, value, number = state.format.name, state.value, state.exact
    if number is None:
        return _special_sentence(state)
    if np.isnan(value):
        return f"{_number(state)} becomes NaN: {_why_nan(state.format, number)}."
    if np.isinf(value) or abs(number) > abs(Fraction(value)) == Fraction(state.format.max):
        end = "becomes infinity" if np.isinf(value) else "becomes that"
        return f"{_number(state)} is beyond the largest {name} number, {name_of(state.format.max)}, and {end}."
    error = Fraction(value) - number
    if error == 0:
        step = spaced(float(ulp(value, state.format)))
        if value == 0:
            return f"{_number(state)} is exact in {name}: zero has a code for each sign, and +0 equals -0."
        return f"{_number(state)} is exact in {name}: a {state.kind} number, whose ulp is {step}."
    if value == 0:
        least = spaced(state.format.smallest_subnormal)
        return f"{_number(state)} underflows in {name}: it becomes 0, for the smallest above 0 is {least}."
    side = "above" if error > 0 else "below"
    far = f"{brief(abs(error))} {side} it ({ulps(error, value, state.format)})"
    lost = ", subnormal," if state.kind == NumberClass.SUBNORMAL else ","
    return f"{_number(state)} is no {name} number: the nearest one is {name_of(value)}{lost} which is {far}."


def ulps(error: Fraction, value: float, format: Format) -> str:
    """Write an error in units of the last place of the value."""
    return f"{brief(abs(error) / Fraction(float(ulp(value, format))), 2)} ulp"


def _number(state: Explored) -> str:
    """Name the number meant: as it was typed, if that is short."""
    if state.number.strip().lower().startswith(("0x", "-0x")) or len(state.number) > 40:
        return spaced(state.exact or Fraction(0))
    return state.number.strip()


def _special_sentence(state: Explored) -> str:
    name, code = state.format.name, hex_code(state.code, state.format)
    if state.kind == NumberClass.NAN:
        meant = state.number.strip().lower()
        if "inf" in meant or "∞" in meant:
            which = "Minus infinity" if meant.startswith(("-", "−")) else "Infinity"
            return f"{which} becomes NaN, {code}: {_why_nan(state.format, None)}."
        return f"{code} is NaN in {name}, not a number: the answer to 0/0, and equal to nothing, not even to itself."
    if state.kind == NumberClass.INFINITY:
        return f"{code} is {name_of(state.value)} in {name}: whatever rounds beyond {name_of(state.format.max)}."
    return f"An infinity becomes {name_of(state.value)}, the last {name} number: {name} has no infinity and no NaN."


def _why_nan(format: Format, number: Fraction | None) -> str:
    if number is not None and not format.signed and number < 0:
        return f"{format.name} has no sign"
    if number == 0:
        return f"{format.name} has no zero"
    return f"{format.name} ends at {name_of(format.max)} and has no infinity"


def hex_code(code: int, format: Format) -> str:
    """Write a code in hex, all its digits.

    >>> from labkit.formats import FP16
    >>> hex_code(1, FP16)
    '0x0001'
    """
    return f"0x{code:0{-(-format.bits // 4)}x}"
