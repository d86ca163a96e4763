"""A number in a format: the state of the bit explorer, and every text it shows.

Idea: typing, flipping a bit, stepping and changing the format each make a new `Explored` from the old one; everything
on the screen (bits, formula, facts, comparison, sentence) is read off it. The browser draws and knows no numbers.

Invariant: `code` always is what `format` holds of `number`; text that cannot be read changes neither, it only brings a
`problem` in words; a view is plain JSON and whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from labkit.formats import (
    Format,
    NumberClass,
    classify,
    decode,
    encode,
    exact_decimal,
    field_bits,
    hex_float,
    next_down,
    next_up,
    parse,
    split,
    ulp,
)
from labkit.widgets.base.number_words import brief, leading, percent_of, power_of_two, spaced

LONGEST_DECIMAL = 24  # characters; a value with more is put into the box as a hex-float
Piece = tuple[str, str, bool]  # text; the field it belongs to: "S", "E", "F" or ""; raised?
SHORT = 12  # stored significand bits that still make a readable fraction, 1/1024
SHORT_POWER = 10  # 512 still fits under a bit
NAMES = {"S": "sign", "E": "exponent", "F": "significand"}
WAYS = {"before": -1, "after": +1}


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
        return float(decode(self.code, self.format))

    @property
    def kind(self) -> str:
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


def view(state: Explored, others: list[Format]) -> dict[str, Any]:
    """Return everything the browser shows of a state, and of the same number in other formats."""
    value = state.value
    written = exact_decimal(value) if np.isfinite(value) else name_of(value)
    return {
        "format": state.format.name,
        "text": state.text,
        "problem": state.problem,
        "fields": fields(state),
        "value": written.replace("-", "−"),
        "about": f"≈ {brief(value)}".replace("-", "−") if np.isfinite(value) and len(written) > 18 else "",
        "formula": formula(state),
        "facts": facts(state),
        **{side: None if (there := neighbour(state, way)) is None else name_of(there) for side, way in WAYS.items()},
        "sentence": sentence(state),
        "rows": [comparison(state, format) for format in (state.format, *others)],
    }


def fields(state: Explored) -> list[dict[str, Any]]:
    """Return the fields from the high bit to the low: letter, name, bits (bit, on, weight), and what they say."""
    format = state.format
    rows, bit = [], format.bits
    parts = zip("SEF", _widths(format), split(state.code, format), _readings(state), strict=True)
    for letter, width, field, says in parts:
        bit -= width
        weights = {
            "S": ["±"],
            "E": [str(1 << i) if i < SHORT_POWER else f"2^{i}" for i in range(width)],
            "F": [f"2^{i - width}" for i in range(width)],
        }[letter]
        bits = [{"bit": bit + i, "on": bool(int(field) >> i & 1), "weight": weights[i]} for i in reversed(range(width))]
        if bits:
            rows.append({"letter": letter, "name": NAMES[letter], "bits": bits, "says": says})
    return rows


def formula(state: Explored) -> list[list[Piece]]:
    """Return the formula of the class of the code: with letters, with the bits, and with what they amount to.

    >>> from labkit.formats import FP16
    >>> from labkit.widgets.bits.explored import explore
    >>> for line in formula(explore("1.5", FP16)): print("".join(text for text, _, _ in line))
    (−1)S × 2E − 15 × 1.F
    (−1)0 × 215 − 15 × 1.1000000000 (binary)
    20 × 1.5
    """
    format, kind = state.format, state.kind
    sign, exponent, significand = (int(field) for field in split(state.code, format))
    minus: Piece = ("−" if sign else "", "S", False)
    if kind == NumberClass.INFINITY:
        return [[minus, ("infinity: all bits of E are 1 and all bits of F are 0", "", False)]]
    if kind == NumberClass.NAN:
        why = "all bits of E are 1 and F is not 0"
        if format.infinity_code is None:
            why = f"all bits of {'E and F' if format.significand_bits else 'E'} are 1 ({format.name} has no infinity)"
        return [[minus, (f"NaN, not a number: {why}", "", False)]]
    if kind == NumberClass.ZERO:
        return [[minus, ("0: all bits of E and F are 0, and the formula would give 0 too", "", False)]]
    subnormal = kind == NumberClass.SUBNORMAL
    hidden, power = (0, format.emin) if subnormal else (1, exponent - format.bias)
    bits = f"{significand:0{format.significand_bits}b}" if format.significand_bits else ""
    whole = leading(hidden + Fraction(significand, 1 << format.significand_bits), 20)
    letters = _product("S", "E", "F", format, subnormal)
    filled = _product(str(sign), str(exponent), bits, format, subnormal)
    filled += [(" (binary)", "", False)] if bits else []
    amounts = [minus, ("2", "", False), (_minus(power), "E", True), (" × ", "", False), (whole, "F", False)]
    return [[piece for piece in line if piece[0]] for line in (letters, filled, amounts)]


def facts(state: Explored) -> list[tuple[str, str]]:
    """Return what else there is to say of a code, as pairs of a name and a text."""
    value, format = state.value, state.format
    gap = spaced(float(ulp(value, format))) if np.isfinite(value) else "none"
    return [
        ("class", "NaN" if state.kind == NumberClass.NAN else state.kind),
        ("code", hex_code(state.code, format)),
        ("binary", field_bits(state.code, format)),
        ("hex-float", hex_float(value)),
        ("ulp", gap),
    ]


def comparison(state: Explored, format: Format) -> dict[str, Any]:
    """Return what a format makes of the number: its bits by field, its value, the error in three units."""
    there = state if format is state.format else in_format(state, format)
    if there.format is not format:
        return {"format": format.name, "bits": [], "value": "", "error": "no NaN", "relative": "", "ulps": ""}
    bits = field_bits(there.code, format).split(" ")
    letters = [letter for letter, width in zip("SEF", _widths(format), strict=True) if width]
    row = {"format": format.name, "bits": list(zip(letters, bits, strict=True)), "code": hex_code(there.code, format)}
    value, exact = there.value, state.exact
    short = leading(value) if np.isfinite(value) and value else name_of(value)
    row |= {"value": short.replace("-", "−"), "full": exact_text(value), "error": "", "relative": "", "ulps": ""}
    if exact is None or not np.isfinite(value):
        return row | {"error": "" if exact is None else "overflows" if np.isinf(value) else "no number"}
    error = Fraction(value) - exact
    if error == 0:
        return row | {"error": "exact"}
    signed = f"{'+' if error > 0 else '−'}{brief(abs(error)).replace('-', '−')}"
    return row | {
        "error": signed,
        "relative": percent_of(abs(error / exact)).replace("-", "−"),
        "ulps": ulps(error, value, format) if 0 < abs(value) < format.max else "",
    }


def _widths(format: Format) -> tuple[int, int, int]:
    return int(format.signed), format.exponent_bits, format.significand_bits


def _readings(state: Explored) -> tuple[str, str, str]:
    format, kind = state.format, state.kind
    sign, exponent, significand = (int(field) for field in split(state.code, format))
    last = f"{1 << format.significand_bits}" if format.significand_bits <= SHORT else f"2^{format.significand_bits}"
    part = f"{significand}/{last}"
    signs = "minus" if sign else "plus"
    if kind in (NumberClass.INFINITY, NumberClass.NAN):
        return signs, f"{exponent}: the last exponent", "0: infinity" if kind == NumberClass.INFINITY else "NaN"
    if kind in (NumberClass.ZERO, NumberClass.SUBNORMAL):
        return signs, f"0: exponent stays {_minus(format.emin)}", f"hidden bit 0, plus {part}"
    return signs, f"{exponent} − {format.bias} = {_minus(exponent - format.bias)}", f"hidden bit 1, plus {part}"


def _product(sign: str, exponent: str, significand: str, format: Format, subnormal: bool) -> list[Piece]:
    """Write (-1)^sign * 2^(exponent - bias) * 1.significand, or the same of a subnormal, without what is lacking."""
    signed: list[Piece] = [("(−1)", "", False), (sign, "S", True), (" × ", "", False)] if format.signed else []
    if subnormal:
        power: list[Piece] = [("2", "", False), (_minus(format.emin), "E", True)]
    else:
        power = [("2", "", False), (exponent, "E", True), (f" − {format.bias}", "", True)]
    if not format.significand_bits:
        return signed + power
    return [*signed, *power, (f" × {int(not subnormal)}.", "", False), (significand, "F", False)]


def _minus(number: int) -> str:
    return str(number).replace("-", "−")
