"""Number formats as rows for exact/numbers.js, and values as text that reads back exactly."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.formats import Format, exact_decimal, hex_float

# In characters. A value whose decimal is longer is written as a hex-float.
LONGEST_DECIMAL = 24


def format_row(format: Format) -> dict[str, Any]:
    """Return the fields of a format as JSON; exact/numbers.js derives the rest.

    >>> from labkit.formats import E4M3
    >>> format_row(E4M3)["specials"]
    'FN'
    """
    return {
        "name": format.name,
        "exponent_bits": format.exponent_bits,
        "significand_bits": format.significand_bits,
        "signed": format.signed,
        "has_zero": format.has_zero,
        "specials": format.specials.name,
    }


def exact_text(value: float) -> str:
    """Return a text that every format reads as exactly this value: a short decimal, or a hex-float.

    >>> exact_text(0.0999755859375), exact_text(2.0**-24), exact_text(-0.0)
    ('0.0999755859375', '0x1p-24', '-0')
    """
    if not np.isfinite(value):
        return str(float(value))
    written = exact_decimal(value)
    return written if len(written) <= LONGEST_DECIMAL else hex_float(value)
