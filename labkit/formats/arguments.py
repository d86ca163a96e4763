"""Arguments that name a format or a choice: members of an enumeration, names, dtypes.

Idea: `FP16`, `"FP16"`, `torch.float16` and `numpy.float16` name the same format, and
`"TOWARD_ZERO"` names `Rounding.TOWARD_ZERO`. One function for each kind of argument accepts all
spellings, so every function of the lab accepts the same ones, and its errors have the same wording.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, EnumMeta
from numbers import Integral, Real
from typing import Protocol, TypeAlias, TypeVar

import numpy as np

from labkit.formats.format import FORMATS, Format


class DType(Protocol):
    """A dtype of torch or numpy; a Protocol, since this package does not import torch."""

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""


FormatLike: TypeAlias = Format | str | DType | type

# name of a dtype in torch or numpy -> name of its format
DTYPE_NAMES = {
    "float64": "FP64",
    "double": "FP64",
    "float32": "FP32",
    "float16": "FP16",
    "half": "FP16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "E4M3",
    "float8_e5m2": "E5M2",
    "float8_e8m0fnu": "E8M0",
}
# type in an annotation -> types of its instances, which include NumPy's numbers
NUMBERS: dict[type, tuple[type, ...]] = {
    int: (Integral,),
    float: (Real,),
    bool: (bool, np.bool_),
}
# characters of a value in a message
MOST_CHARACTERS = 60
_Row = TypeVar("_Row")
_Member = TypeVar("_Member", bound=Enum)


def as_format(format: FormatLike, argument: str = "format") -> Format:
    """Return the format that an argument names.

    Args:
        format: a `Format`, its name in any case, or a dtype of torch or numpy.
        argument: the argument's name, for the message.

    Raises:
        TypeError: the argument is none of these.
        ValueError: no format has this name, or the dtype has no format.

    >>> as_format("fp16").name, as_format("float16").name
    ('FP16', 'FP16')
    >>> as_format("FP17")
    Traceback (most recent call last):
    ...
    ValueError: format: expected one of FP64, FP32, TF32, FP16, ..., got 'FP17'
    """
    if isinstance(format, Format):
        return format
    name = _dtype_name(format)
    if not isinstance(format, str) and name is None:
        raise TypeError(
            f"{argument}: expected a Format, its name or a dtype, got {describe_value(format)}. "
            'For example: labkit.formats.FP16, "FP16" or torch.float16.'
        )
    spelling = format if isinstance(format, str) else str(name)
    format_name = DTYPE_NAMES.get(spelling.removeprefix("torch."), spelling).upper()
    if format_name not in FORMATS:
        raise ValueError(f"{argument}: expected one of {', '.join(FORMATS)}, got {spelling!r}")
    return FORMATS[format_name]


def as_member(kind: type[_Member], choice: _Member | str, argument: str) -> _Member:
    """Return the member of an enumeration that an argument names.

    Args:
        kind: the enumeration.
        choice: a member, its name in any case, or its value.
        argument: the argument's name, for the message.

    Raises:
        TypeError: `choice` is none of these; the message lists the names.

    >>> from labkit.formats.rounding import Rounding
    >>> as_member(Rounding, "toward_zero", "rounding") is Rounding.TOWARD_ZERO
    True
    """
    require_kind(kind, EnumMeta, "kind", "Pass the class of an enumeration")
    require_kind(argument, str, "argument")
    if isinstance(choice, kind):
        return choice
    if isinstance(choice, str):
        for member in kind:
            if choice in (member.value, str(member)) or choice.upper() == member.name:
                return member
    names = ", ".join(member.name for member in kind)
    raise TypeError(
        f"{argument}: expected one of {kind.__name__}: {names}, got {describe_value(choice)}"
    )


def as_row(
    value: _Row | str, kind: type[_Row], rows: Mapping[str, _Row], argument: str, remedy: str = ""
) -> _Row:
    """Return the row that an argument names: a row, or a name in a table, in any case.

    Args:
        value: what was passed.
        kind: the class of the rows.
        rows: name -> row.
        argument: the argument's name, for the message.
        remedy: a sentence on what to pass.

    Raises:
        TypeError: the argument is neither a row nor a name.
        ValueError: no row has this name.

    >>> as_row("bf16", Format, FORMATS, "format").name
    'BF16'
    """
    if isinstance(value, kind):
        return value
    known = ", ".join(rows)
    more = f". {remedy}" if remedy else ""
    if not isinstance(value, str):
        raise TypeError(
            f"{argument}: expected {_with_article(kind.__name__)} or one of {known}, "
            f"got {describe_value(value)}{more}"
        )
    for name, row in rows.items():
        if name.upper() == value.upper():
            return row
    raise ValueError(f"{argument}: expected one of {known}, got {value!r}{more}")


def require_kind(
    value: object, kind: type | tuple[type, ...], argument: str, remedy: str = ""
) -> None:
    """Raise a TypeError unless a value is an instance of a class, or of one of several.

    Args:
        value: what was passed.
        kind: the class or classes; a bool does not count as a number.
        argument: the argument's name, for the message.
        remedy: a sentence on what to pass.

    >>> require_kind("2", int, "losses", "Pass a whole number.")
    Traceback (most recent call last):
    ...
    TypeError: losses: expected an int, got '2'. Pass a whole number.
    """
    kinds = kind if isinstance(kind, tuple) else (kind,)
    accepted: list[type] = []
    for each in kinds:
        accepted += NUMBERS.get(each, (each,))
    # in Python, a bool is an int
    unwanted_bool = isinstance(value, bool) and bool not in kinds
    if isinstance(value, tuple(accepted)) and not unwanted_bool:
        return
    names = " or ".join(_with_article(each.__name__) for each in kinds)
    more = f". {remedy}" if remedy else ""
    raise TypeError(f"{argument}: expected {names}, got {describe_value(value)}{more}")


def _with_article(type_name: str) -> str:
    """Return the name of a type with "a" or "an"; None without one."""
    if type_name == "NoneType":
        return "None"
    # the "n" of numpy's class is spoken as a letter
    article = "an" if type_name[0].lower() in "aeiou" or type_name == "ndarray" else "a"
    return f"{article} {type_name}"


def _dtype_name(value: object) -> str | None:
    """Return the name of a dtype of torch or numpy, or of a scalar type of numpy; else None."""
    if isinstance(value, type):
        return value.__name__ if value.__module__ in ("numpy", "ml_dtypes") else None
    if isinstance(value, np.dtype):
        return value.name
    # by name, since this package does not import torch
    kind = type(value)
    if kind.__name__ == "dtype" and kind.__module__ == "torch":
        return str(value).removeprefix("torch.")
    return None


def describe_value(value: object) -> str:
    """Return a short description of a value for a message: the value itself, or its type.

    >>> describe_value(3), describe_value([3]), describe_value(10**5000)
    ('3', 'a list', 'a long int')
    """
    kind = type(value).__name__
    # Python refuses to write integers of more than 4,300 digits; a digit has at most 4 bits
    if isinstance(value, int) and value.bit_length() > 4 * MOST_CHARACTERS:
        return f"a long {kind}"
    if not isinstance(value, str | int | float | None):
        return _with_article(kind)
    text = repr(value)
    return text if len(text) <= MOST_CHARACTERS else f"a long {kind}"
