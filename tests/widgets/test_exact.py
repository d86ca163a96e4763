"""The arithmetic that pages do by themselves is that of labkit.formats: codes, values, text, every rounding."""

import math
import random
import re
from decimal import ROUND_DOWN, Context, Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from labkit.formats import (
    FORMATS,
    FP64,
    Format,
    Rounding,
    classify,
    decode,
    exact_decimal,
    hex_float,
    next_down,
    next_up,
    parse,
    round_to,
    ulp,
)
from labkit.widgets.base.number_words import brief, number
from labkit.widgets.exact.rows import exact_text
from tests.widgets.pages import Scripts

FOLDERS = ("exact", "bits")
CODES = """(name, codes) => codes.map((text) => {
  const [format, code] = [F[name], BigInt(text)];
  const value = decode(code, format);
  const finite = Number.isFinite(value);
  return [
    value, Number.isNaN(value) ? null : encode(value, format), classOf(code, format), neighbour(value, format, 1),
    neighbour(value, format, -1), exactText(value), hexFloat(value), finite ? exactDecimal(value) : "",
    ...(finite ? [ulpOf(value, format), brief(exactly(value)), leading(exactly(value), 20)] : []),
    ...(finite ? [spaced(exactly(value)), numberText(value)] : []),
  ];
})"""
PARSE = """(name, texts) => texts.map((text) => {
  try {
    const { kind, exact, value, code } = parse(text, F[name]);
    return [kind, exact && [exact.n, exact.d], value, code];
  } catch (error) { return error.message; }
})"""
ROUND = "(name, mode, all) => all.map((x) => roundValue(x, F[name], mode))"
TEXTS = [
    "0.1", "1/3", "-1/3", "2^-24", "1.5*2^-14", "3×2^-7", "0x1.8p-3", "-0", "0", "inf", "-inf", "nan", "∞", "65520",
    "65519.99", "1e400", "1e-4000", "-5", "1e-50", "0x3c00", "0b0_01111_0000000000", "  7 ", "+3", "−2", ".5", "5.",
    "2**(-3)", "2^5000", "abc", "0,1", "3c00", "0x1.8", "", "1/0", "1e99999", "--1",
    "-0x3c00", "0x123456789abcdef01", "9" * 1300,
]  # fmt: skip


@pytest.fixture
def chance() -> random.Random:
    return random.Random(7)


def same(a: float | None, b: float | None) -> bool:
    if a is None or b is None:
        return a is b
    return bool(np.isnan(a) and np.isnan(b)) or (a == b and np.signbit(a) == np.signbit(b))


def beside(value: float, format: Format, step: Any) -> float | None:
    found = float(step(value, format))
    return None if np.isnan(found) or found == value else found


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda row: row.name)
def test_codes_values_and_their_text(js: Scripts, chance: random.Random, format: Format) -> None:
    codes = range(format.codes) if format.bits <= 8 else sorted({chance.randrange(format.codes) for _ in range(1500)})
    for code, found in zip(codes, js.run(CODES, format.name, [str(code) for code in codes]), strict=True):
        value = float(decode(code, format))
        assert same(found[0], value), code
        assert found[1] == (None if np.isnan(value) else code)
        assert found[2] == classify(code, format), code
        up, down = (None if np.isnan(value) else beside(value, format, step) for step in (next_up, next_down))
        assert same(found[3], up), code
        assert same(found[4], down), code
        assert found[5:7] == [exact_text(value), hex_float(value)]
        if np.isfinite(value):
            decimal, spacing, short, cut, for_sentences, written = found[7:]
            assert (decimal, spacing) == (exact_decimal(value), float(ulp(value, format))), code
            assert (short, written) == (brief(value), number(value)), code
            shown = Context(prec=20, rounding=ROUND_DOWN).create_decimal(exact_decimal(value))
            assert (Decimal(cut.replace("…", "")), "…" in cut) == (shown, shown != Decimal(exact_decimal(value))), code
            power = abs(value) > 8 and value == math.ldexp(math.copysign(0.5, value), math.frexp(value)[1])
            assert not power or for_sentences == f"{'-' * (value < 0)}2^{math.frexp(value)[1] - 1} = {short}", code


@pytest.mark.parametrize("format", FORMATS.values(), ids=lambda row: row.name)
def test_text_is_read_exactly_and_refused_in_the_same_words(js: Scripts, chance: random.Random, format: Format) -> None:
    texts = [*TEXTS, *(repr(chance.uniform(-1, 1) * 2.0 ** chance.randint(-60, 60)) for _ in range(150))]
    texts += [f"{chance.randint(1, 9999)}/{chance.randint(1, 99999)}" for _ in range(50)]
    for text, found in zip(texts, js.run(PARSE, format.name, texts), strict=True):
        if isinstance(found, str):
            with pytest.raises(ValueError, match=f"^{re.escape(found)}$"):
                parse(text, format)
            continue
        expected = parse(text, format)
        kind, exact, value, code = found
        assert (kind, code) == (expected.kind, expected.code), text
        assert same(value, expected.value), text
        assert (exact and Fraction(*exact)) == expected.exact, text


@pytest.mark.parametrize("format", [row for row in FORMATS.values() if row is not FP64], ids=lambda row: row.name)
def test_every_rounding(js: Scripts, chance: random.Random, format: Format) -> None:
    low, high = format.emin - format.significand_bits - 3, format.emax + 2
    numbers = [chance.choice((-1, 1)) * chance.random() * 2.0 ** chance.randint(low, high) for _ in range(200)]
    held = [float(decode(chance.randrange(format.max_code), format)) for _ in range(60)]
    numbers += [0.0, -0.0, np.inf, *held, *(value + float(ulp(value, format)) / 2 for value in held)]
    numbers = [number for number in numbers if np.isfinite(number)]
    for mode in (mode for mode in Rounding if mode is not Rounding.STOCHASTIC):
        for x, value in zip(numbers, js.run(ROUND, format.name, mode.name, numbers), strict=True):
            assert same(value, float(round_to(x, format, mode))), (mode, x)
