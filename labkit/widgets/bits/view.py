"""Which texts does the bit explorer put on the screen?

Idea: the browser draws and knows no numbers. Each field with its bits and weights, each line of the formula (as pieces
of text that belong to S, E, F or none), each fact and each row of the comparison is written here.

Invariant: a view is plain JSON, and whole: nothing in it comes from an earlier state.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from labkit.formats import Format, NumberClass, exact_decimal, field_bits, hex_float, split, ulp
from labkit.widgets.base.number_words import brief, leading, percent_of, spaced
from labkit.widgets.bits.words import Explored, exact_text, hex_code, in_format, name_of, neighbour, sentence, ulps

Piece = tuple[str, str, bool]  # text; the field it belongs to: "S", "E", "F" or ""; raised?
SHORT = 12  # stored significand bits that still make a readable fraction, 1/1024
SHORT_POWER = 10  # 512 still fits under a bit
NAMES = {"S": "sign", "E": "exponent", "F": "significand"}


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
        "before": _named(neighbour(state, -1)),
        "after": _named(neighbour(state, +1)),
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
        bits = [
            {"bit": bit + i, "on": bool(int(field) >> i & 1), "weight": _weight(letter, i, format)}
            for i in reversed(range(width))
        ]
        if bits:
            rows.append({"letter": letter, "name": NAMES[letter], "bits": bits, "says": says})
    return rows


def formula(state: Explored) -> list[list[Piece]]:
    """Return the formula of the class of the code: with letters, with the bits, and with what they amount to.

    >>> from labkit.formats import FP16
    >>> from labkit.widgets.bits.words import explore
    >>> for line in formula(explore("1.5", FP16)): print("".join(text for text, _, _ in line))
    (−1)S × 2E − 15 × 1.F
    (−1)0 × 215 − 15 × 1.1000000000 (binary)
    20 × 1.5
    """
    format, kind = state.format, state.kind
    sign, exponent, significand = (int(field) for field in split(state.code, format))
    minus: Piece = ("−" if sign else "", "S", False)
    if kind in (NumberClass.INFINITY, NumberClass.NAN):
        return [[minus, (_why_special(format, kind), "", False)]]
    if kind == NumberClass.ZERO:
        return [[minus, ("0: all bits of E and F are 0, and the formula would give 0 too", "", False)]]
    subnormal = kind == NumberClass.SUBNORMAL
    hidden, power = (0, format.emin) if subnormal else (1, exponent - format.bias)
    bits = f"{significand:0{format.significand_bits}b}" if format.significand_bits else ""
    whole = leading(hidden + Fraction(significand, 1 << format.significand_bits), 20)
    letters = _product("S", "E", "F", format, subnormal)
    filled = [
        *_product(str(sign), str(exponent), bits, format, subnormal),
        *([(" (binary)", "", False)] if bits else []),
    ]
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


def _named(value: float | None) -> str | None:
    return None if value is None else name_of(value)


def _widths(format: Format) -> tuple[int, int, int]:
    return int(format.signed), format.exponent_bits, format.significand_bits


def _weight(letter: str, i: int, format: Format) -> str:
    if letter == "S":
        return "±"
    if letter == "E":
        return str(1 << i) if i < SHORT_POWER else f"2^{i}"
    return f"2^{i - format.significand_bits}"


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


def _why_special(format: Format, kind: str) -> str:
    if kind == NumberClass.INFINITY:
        return "infinity: all bits of E are 1 and all bits of F are 0"
    if format.infinity_code is None:
        fields = "E and F" if format.significand_bits else "E"
        return f"NaN, not a number: all bits of {fields} are 1 ({format.name} has no infinity)"
    return "NaN, not a number: all bits of E are 1 and F is not 0"


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
