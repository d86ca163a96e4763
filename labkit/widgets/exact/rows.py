"""Number formats as rows for exact/numbers.js, and values as text that reads back exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
import traitlets

from labkit.formats import Format, as_format, exact_decimal, hex_float

# In characters. A value whose decimal is longer is written as a hex-float.
LONGEST_DECIMAL = 24


class FormatTrait(traitlets.Instance[Format]):
    """A trait that holds a format, and takes the name of one, too.

    Raises:
        TraitError: No format has this name.
    """

    def validate(self, obj: Any, value: Any) -> Any:
        """Return the format; a name is one of the widget's own formats, or of the lab's."""
        if isinstance(value, str) and value in obj._known:
            value = obj._known[value]
        elif isinstance(value, str):
            try:
                value = as_format(value)
            except ValueError as error:
                raise traitlets.TraitError(str(error)) from error
        return super().validate(obj, value)


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
