"""Parsing and formatting of numbers: decimals, hex-floats, powers of two, fractions, codes.

Idea: a text is an exact number or a code. It is parsed exactly, and rounded to the format once. The
texts of values are exact, too.

Invariant: `parse(exact_decimal(value), format)` and `parse(hex_float(value), format)` return the
value.

Source: IEEE 754-2019, 5.12 (text); ISO C 6.4.4.2 (hex-floats).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

import numpy as np

from labkit.formats.arguments import FormatLike, as_format, as_member, require_kind
from labkit.formats.arithmetic import Term, normalise, round_term, value_of
from labkit.formats.codes import decode, encode, split
from labkit.formats.format import FP16, Format
from labkit.formats.rounding import Overflow, Rounding, deterministic, round_to

# The messages of this module are those of labkit/widgets/exact/numbers.js, too.

# The number of characters of a text; the longest exact decimal of a float64 has 1,077.
LONGEST = 1200
# The largest exponent of 2 and of 10. Every format overflows far below. Larger ones would be slow
# to parse, and Python shows no integers of more than 4,300 digits.
LARGEST_EXPONENT = 3000

# What to do instead of rounding a text or a fraction stochastically.
ROUND_A_FLOAT = "Round a float: round_to(value, format, rounding, random_bits=...)"

_NUMBER = r"(?P<number>\d+\.?\d*|\.\d+)"
# kind of a text -> its pattern, after the sign; the first that matches counts
_PATTERNS = {
    "code": r"0x[0-9a-f]+|0b[01]+",
    "hex-float": (
        r"0x(?=\.?[0-9a-f])(?P<whole>[0-9a-f]*)\.?(?P<part>[0-9a-f]*)p(?P<power>[+-]?\d+)"
    ),
    "decimal": _NUMBER + r"(e(?P<exponent>[+-]?\d+))?",
    "power of two": rf"({_NUMBER}\s*[*x·]\s*)?2(\^|\*\*)\(?(?P<power>[+-]?\d+)\)?",
    "fraction": r"(?P<numerator>\d+)\s*/\s*(?P<denominator>\d+)",
    "special": r"(?P<name>inf|infinity|∞|nan)",
}


@dataclass(frozen=True)
class Reading:
    """A parsed number, and its value in a format.

    Attributes:
        kind: "code", "decimal", "hex-float", "power of two", "fraction" or "special".
        exact: the number as typed; None for infinities, NaN and the codes of those.
        value: the number rounded to the format.
        code: code of the value.
    """

    kind: str
    exact: Fraction | None
    value: float
    code: int


def parse(
    text: str,
    format: FormatLike = FP16,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
) -> Reading:
    """Parse a number from text, and round it to a format once.

    Codes are written 0x3C00 or 0b0_01111_0000000000; numbers 0.1, -1e-7, 0x1.8p-3, 2^-24,
    1.5*2^-14, 1/3, inf or nan.

    Raises:
        ValueError: the text is not a number, a code is too long, the format has no such special
            value, or the rounding is stochastic.

    >>> parse("0x3c01", FP16).value
    1.0009765625
    >>> parse("0.1", FP16)
    Reading(kind='decimal', exact=Fraction(1, 10), value=0.0999755859375, code=11878)
    >>> parse("3c00", FP16)
    Traceback (most recent call last):
    ValueError: '3c00' is not a number. For a code write 0x3c00. Known forms: 0.1, 1e-7, ...
    """
    require_kind(text, str, "text", "Round a number by round_to(number, format)")
    format = as_format(format)
    rounding = deterministic(rounding, ROUND_A_FLOAT)
    overflow = as_member(Overflow, overflow, "overflow")
    if len(text) > LONGEST:
        raise ValueError(
            f"this text has {len(text)} characters, {LONGEST} is the most a number needs. "
            f"{KNOWN_FORMS}"
        )
    cleaned = text.strip().lower().replace("−", "-").replace("×", "x")
    sign = ""
    body = cleaned
    if cleaned[:1] in ("+", "-"):
        sign = cleaned[0]
        body = cleaned[1:].lstrip()
    # codes may have spaces or underscores between their fields
    if body[:2] in ("0b", "0x"):
        compact = re.sub(r"[\s_]", "", body)
    else:
        compact = body
    for kind, pattern in _PATTERNS.items():
        match = re.fullmatch(pattern, compact, re.ASCII)
        if match is None:
            continue
        if kind == "code":
            return _read_code(sign + compact, format, grouped=compact != body)
        is_negative = sign == "-"
        if kind == "special":
            special = np.nan if match["name"] == "nan" else np.inf
            # `round_to` refuses a NaN that the format lacks
            value = float(round_to(-special if is_negative else special, format, overflow=overflow))
            return Reading(kind, None, value, int(encode(value, format)))
        magnitude = _exact(kind, match.groupdict())
        exact = -magnitude if is_negative else magnitude
        if magnitude == 0 and is_negative:
            # A Fraction has no negative zero.
            value = float(round_to(-0.0, format, rounding, overflow))
        else:
            value = round_fraction(exact, format, rounding, overflow)
        return Reading(kind, exact, value, int(encode(value, format)))
    raise ValueError(_not_a_number(text, body))


def exact_decimal(value: float | np.floating | np.ndarray) -> str:
    """Format a value in decimal with all its digits.

    >>> exact_decimal(2.0**-24)
    '0.000000059604644775390625'
    """
    require_kind(value, (float, np.ndarray), "value")
    return f"{Decimal(float(value)):f}"


def hex_float(value: float | np.floating | np.ndarray) -> str:
    """Format a value as a hex-float: a hexadecimal significand, p, and the exponent of two.

    Trailing zeros of the significand are left out.

    >>> hex_float(-1.5), hex_float(2.0**-24), hex_float(65504.0)
    ('-0x1.8p+0', '0x1p-24', '0x1.ffcp+15')
    """
    require_kind(value, (float, np.ndarray), "value")
    if not np.isfinite(value):
        return str(float(value))
    return re.sub(r"\.?0*p", "p", float(value).hex())


def field_bits(code: int, format: FormatLike = FP16) -> str:
    """Format a code in binary, with a space between its fields.

    >>> field_bits(0x3C01, FP16)
    '0 01111 0000000001'
    """
    format = as_format(format)
    widths = (int(format.signed), format.exponent_bits, format.significand_bits)
    texts = []
    for field, width in zip(split(code, format), widths, strict=True):
        # an unsigned format has no sign, and E8M0 no significand
        if width:
            texts.append(f"{int(field):0{width}b}")
    return " ".join(texts)


def round_fraction(
    exact: Fraction,
    format: FormatLike,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
) -> float:
    """Round any fraction to a format, once: 1/3, or a decimal that float64 does not represent.

    Raises:
        ValueError: the rounding is stochastic.

    >>> round_fraction(Fraction(1, 3), FP16)
    0.333251953125
    """
    require_kind(exact, (Fraction, int), "exact", "For example: Fraction(1, 3)")
    format = as_format(format)
    rounding = deterministic(rounding, ROUND_A_FLOAT)
    overflow = as_member(Overflow, overflow, "overflow")
    if exact == 0:
        return float(round_to(0.0, format, rounding, overflow))
    if exact < 0 and not format.signed:
        # All negative numbers have the same result. They may be too large for a float64, so -1 is
        # rounded for them.
        return float(round_to(-1.0, format, rounding, overflow))
    # The first bit of the fraction is that of 2^top or of 2^(top - 1).
    top = abs(exact.numerator).bit_length() - exact.denominator.bit_length()
    # Enough places for the precision, guard, round and sticky, and for the uncertain first bit.
    places = max(0, format.precision + 3 - top)
    quotient, remainder = divmod(abs(exact.numerator) << places, exact.denominator)
    # A remainder sets the last bit, as a sticky bit.
    significand = np.asarray(quotient | (remainder > 0), object)
    term = Term(np.asarray(exact < 0), significand, np.asarray(-places))
    rounded = round_term(normalise(term, format), format, rounding).rounded
    return float(value_of(rounded, format, rounding, overflow))


def _exact(kind: str, parts: dict[str, str | None]) -> Fraction:
    """Return the exact magnitude of a number.

    Args:
        kind: kind of the text.
        parts: the named groups of its pattern; None for a group that is missing in the text.
    """
    power = int(parts.get("power") or 0)
    exponent = int(parts.get("exponent") or 0)
    if max(abs(power), abs(exponent)) > LARGEST_EXPONENT:
        raise ValueError(
            f"the exponent is beyond {LARGEST_EXPONENT}; no format comes near that. Give a smaller "
            "one."
        )
    if kind == "hex-float":
        whole = parts["whole"] or ""
        part = parts["part"] or ""
        # each hexadecimal digit after the point is 4 bits
        return int(whole + part, 16) * Fraction(2) ** (power - 4 * len(part))
    if kind == "fraction":
        numerator = int(parts["numerator"] or 0)
        denominator = int(parts["denominator"] or 0)
        if denominator == 0:
            raise ValueError("a fraction over 0 is not a number; for infinity write inf.")
        return Fraction(numerator, denominator)
    return Fraction(parts["number"] or 1) * Fraction(2) ** power * Fraction(10) ** exponent


def _read_code(text: str, format: Format, grouped: bool) -> Reading:
    """Read a code without blanks.

    Args:
        text: the code, maybe with a sign, which is refused.
        format: the format of the code.
        grouped: whether blanks separated its fields.
    """
    if text[0] in "+-":
        raise ValueError(
            f"{text!r}: a code has no sign in front, its first bit is the sign. -1.0 in FP16 is "
            "0xbc00."
        )
    code = int(text, 0)
    bits = code.bit_length()
    # with one digit too many, separated fields would be read as other fields
    if grouped and text.startswith("0b"):
        bits = max(bits, len(text.removeprefix("0b")))
    if bits > format.bits:
        raise ValueError(f"{text!r} has {bits} bits; {format.name} codes have {format.bits}.")
    value = float(decode(code, format))
    exact = Fraction(value) if np.isfinite(value) else None
    return Reading("code", exact, value, code)


KNOWN_FORMS = (
    "Known forms: 0.1, 1e-7, 0x1.8p-3, 2^-24, 1.5*2^-14, 1/3, inf, nan; a code as 0x3c00 or "
    "0b0011110000000000."
)


def _not_a_number(text: str, body: str) -> str:
    """Return the message about a text that is not a number, with a hint on a frequent mistake."""
    hint = ""
    if re.fullmatch(r"\d+,\d+(e[+-]?\d+)?", body):
        hint = f"Write a decimal point, not a comma: {text.replace(',', '.').strip()}. "
    elif re.fullmatch(r"0x[0-9a-f]*\.[0-9a-f]*", body):
        hint = f"A hex-float ends in p and a power of two: {text.strip()}p0. "
    elif body.startswith("0b"):
        hint = "A code in binary has only the digits 0 and 1. "
    elif re.fullmatch(r"[0-9a-f]+", body):
        hint = f"For a code write 0x{body}. "
    return f"{text!r} is not a number. {hint}{KNOWN_FORMS}"
