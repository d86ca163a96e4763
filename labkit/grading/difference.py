"""The first difference between two answers, and values as text.

Both values come from labkit.grading.sandbox.wire, so no learner's code runs here.

Invariant: types, dtypes and shapes are compared before values. Three pairs of types are accepted as
equal: int for float (65536 for 65536.0), tuple for list, and torch's bool for Python's. NaN equals
NaN, and -0 equals 0.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from labkit.grading.exercise import Outcome
from labkit.grading.sandbox.kinds import is_array, is_boolean_tensor, is_tensor, with_article
from labkit.grading.sandbox.wire import Failure, Instance, Opaque

if TYPE_CHECKING:
    import numpy as np
    import torch

# The number of elements of a list or a tensor that a text shows.
SHOWN = 6
_NAMES = {
    "torch.float16": "FP16",
    "torch.bfloat16": "BF16",
    "torch.float32": "FP32",
    "torch.float64": "FP64",
    "torch.float8_e4m3fn": "E4M3",
    "torch.float8_e5m2": "E5M2",
}


def difference(expected: object, got: object, ulps: int = 0, two_zeros: bool = False) -> str | None:
    """Return the first difference of `got` from `expected`, as a sentence; None if they are equal.

    Args:
        expected: The reference's answer.
        got: The learner's answer.
        ulps: The number of representable values of its own format by which a float may differ.
        two_zeros: Whether the floats -0 and 0 differ as answers; inside a list or a tensor, they
            are equal. An int has one zero only.

    >>> difference([1.0, 2.0], (1, 2))
    >>> state = Instance("ScalerState", {"scale": 8.0})
    >>> difference(state, Instance("ScalerState", {"scale": 16.0}))
    '.scale: expected 8, got 16'
    >>> difference(1.0, None)
    'it returned None: did you forget `return`?'
    >>> difference({4: 1.0, -10: 0.0}, {-14: 0.0})
    'expected the keys [-10, 4], got [-14]'
    """
    if got is None and expected is not None:
        return "it returned None: did you forget `return`?"
    if isinstance(got, Failure):
        return f"{got.message}\n{got.where}".strip()
    if isinstance(got, Outcome):
        return None if got.passed else got.says
    are_floats = type(expected) is type(got) is float
    # Only zeros are equal and have different texts.
    if two_zeros and are_floats and expected == got and str(expected) != str(got):
        return _sentence("", show(expected), f"{show(got)}: zero has a sign too")
    return _differ(expected, got, ulps, "")


def by_name(found: str, expected: object, names: Sequence[str]) -> str:
    """Replace the index of a result at the start of a difference by the result's name.

    Args:
        found: The difference.
        expected: The reference's answer.
        names: The names of the results; without one for each, the difference is returned as it is.

    >>> by_name("[1][0, 0]: expected 1, got 2", (4.0, 1.0), ("y", "grad_x"))
    'grad_x[0, 0]: expected 1, got 2'
    >>> by_name("[1]: expected 1, got 2", (4.0, 1.0), ("the weight", "the scale"))
    'the scale: expected 1, got 2'
    >>> by_name("[1]: expected 1, got 2", [4.0, 1.0, 7.0], ("y", "grad_x"))
    '[1]: expected 1, got 2'
    """
    place = re.match(r"\[(\d+)\]", found)
    is_tuple = isinstance(expected, (list, tuple)) and len(expected) == len(names)
    if place is None or not is_tuple:
        return found
    name = names[int(place[1])]
    rest = found[place.end() :]
    gap = " " if " " in name and rest.startswith("[") else ""
    return f"{name}{gap}{rest}"


def show(value: object) -> str:
    """Return a value from the wire as text.

    >>> show(Instance("ScalerState", {"scale": 65536.0, "growth_tracker": 3}))
    'ScalerState(scale=65536, growth_tracker=3)'
    >>> import torch
    >>> show(torch.tensor([2.0**-24, 0.1], dtype=torch.float16))
    'FP16 tensor [2]: 2^-24 (5.96e-08), 0.09998'
    """
    if is_tensor(value):
        return _show_elements(value, "tensor")
    if is_array(value):
        return _show_elements(value, "array")
    match value:
        case bool() | None | str():
            return repr(value)
        case int() | float():
            return show_number(value)
        case list() | tuple():
            items = [show(item) for item in value[:SHOWN]]
            if len(value) > SHOWN:
                items.append("...")
            if isinstance(value, list):
                return f"[{', '.join(items)}]"
            # A tuple of one element has a comma, as Python writes it.
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        case dict():
            keys = _in_order(value) if all(map(_is_number, value)) else value
            items = [f"{show(key)}: {show(value[key])}" for key in keys]
            return "{" + ", ".join(items) + "}"
        case Instance(name, fields):
            return f"{name}({', '.join(f'{key}={show(item)}' for key, item in fields.items())})"
        case Opaque(what):
            return what
        case Outcome(says=says):
            return says
        case Failure():
            return "nothing: the call failed"
    raise TypeError(f"expected a value that `load` returns, got a {type(value).__name__}")


def show_number(value: float, digits: int = 6) -> str:
    """Return a number with at most `digits` digits; a small or large power of two as such, too.

    >>> show_number(2.0**-24), show_number(1e-9), show_number(65536.0), show_number(float("inf"))
    ('2^-24 (5.96e-08)', '1e-09', '65536', 'inf')
    """
    if isinstance(value, int):
        return str(value)
    significand, exponent = math.frexp(abs(value))
    if significand == 0.5 and not -6 <= exponent <= 20:
        sign = "-" if value < 0 else ""
        return f"{sign}2^{exponent - 1} ({abs(value):.3g})"
    return f"{value:.{digits}g}"


def bits(value: float) -> str:
    """Return the 16 bits of an FP16 number as sign, exponent and significand.

    >>> bits(2.0**-24)
    'S 0  E 00000  F 0000000001'
    """
    return bits_of_code(int.from_bytes(_as_fp16(value), "little"))


def bits_of_code(code: int) -> str:
    """Return the 16 bits of an FP16 code as sign, exponent and significand.

    >>> bits_of_code(0x3C01)
    'S 0  E 01111  F 0000000001'
    """
    digits = f"{code:016b}"
    return f"S {digits[0]}  E {digits[1:6]}  F {digits[6:]}"


def _differ(expected: object, got: object, ulps: int, at: str) -> str | None:
    if is_tensor(expected) and is_tensor(got):
        return _elements_differ(expected, got, ulps, at)
    if is_array(expected) and is_array(got):
        # before the conversion: torch has no dtype for some of numpy's, such as those of swapped
        # bytes
        if expected.dtype != got.dtype:
            return _sentence(at, f"an array in {expected.dtype}", f"one in {got.dtype}")
        from labkit.grading.sandbox.elements import as_tensor

        return _elements_differ(as_tensor(expected), as_tensor(got), ulps, at)
    if isinstance(expected, (list, tuple)) and isinstance(got, (list, tuple)):
        return _sequences_differ(expected, got, ulps, at)
    if isinstance(expected, dict) and isinstance(got, dict):
        return _fields_differ(expected, got, ulps, at, "[{!r}]")
    if isinstance(expected, Instance) and isinstance(got, Instance) and expected.name == got.name:
        return _fields_differ(expected.fields, got.fields, ulps, at, ".{}")
    if isinstance(expected, bool) and is_boolean_tensor(got):
        got = bool(got)
    if _is_number(expected) and _is_number(got):
        return _numbers_differ(cast(float, expected), cast(float, got), ulps, at)
    if type(expected) is type(got) and not isinstance(expected, (Instance, Opaque, Failure)):
        return None if expected == got else _sentence(at, show(expected), show(got))
    return _sentence(at, f"{_kind(expected)}", _kind(got))


def _sequences_differ(
    expected: Sequence[object], got: Sequence[object], ulps: int, at: str
) -> str | None:
    if len(expected) != len(got):
        return _sentence(at, f"a length of {len(expected)}", f"{len(got)}")
    for i, (a, b) in enumerate(zip(expected, got, strict=True)):
        found = _differ(a, b, ulps, f"{at}[{i}]")
        if found is not None:
            return found
    return None


def _fields_differ(
    expected: dict[Any, object], got: dict[Any, object], ulps: int, at: str, style: str
) -> str | None:
    if expected.keys() != got.keys():
        return _sentence(at, f"the keys {_show_keys(expected)}", _show_keys(got))
    for key, item in expected.items():
        found = _differ(item, got[key], ulps, at + style.format(key))
        if found is not None:
            return found
    return None


def _show_keys(fields: dict[Any, object]) -> str:
    return f"[{', '.join(map(show, _in_order(fields)))}]"


def _in_order(keys: Iterable[Any]) -> list[Any]:
    """Return the numbers in ascending order, then all other keys in alphabetical order."""
    keys = list(keys)
    numbers = sorted(key for key in keys if _is_number(key))
    others = sorted((key for key in keys if not _is_number(key)), key=str)
    return numbers + others


def _numbers_differ(expected: float, got: float, ulps: int, at: str) -> str | None:
    both_nan = expected != expected and got != got
    if expected == got or both_nan:
        return None
    # the difference of an int and a float may be rounded to 0, so without ulps they are not equal
    are_finite = _fits(expected) and _fits(got)
    if ulps and are_finite and abs(expected - got) <= ulps * math.ulp(expected):
        return None
    return _sentence(at, *_distinct(expected, got))


def _fits(value: float) -> bool:
    """Return whether a number is finite as a float. The int 2**2000 is not."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _elements_differ(expected: torch.Tensor, got: torch.Tensor, ulps: int, at: str) -> str | None:
    if expected.dtype != got.dtype:
        return _sentence(at, f"a tensor in {_name(expected)}", f"one in {_name(got)}")
    if expected.shape != got.shape:
        return _sentence(at, f"the shape {list(expected.shape)}", f"{list(got.shape)}")
    from labkit.grading.sandbox.elements import first_wrong

    first = first_wrong(expected, got, ulps)
    if first is None:
        return None
    index = ", ".join(map(str, _indices(first, expected.shape)))
    a = expected.reshape(-1)[first].item()
    b = got.reshape(-1)[first].item()
    place = f"{at}[{index}]" if index else at
    return _sentence(place, *_distinct(a, b)) + _in_bits(str(expected.dtype), a, b)


def _indices(place: int, shape: Sequence[int]) -> list[int]:
    """Return the indices of an element from its place in the flattened tensor."""
    indices = []
    for length in reversed(shape):
        place, index = divmod(place, length)
        indices.append(index)
    return indices[::-1]


def _in_bits(dtype: str, expected: float, got: float) -> str:
    """Return the bits of two FP16 numbers, or a note if an FP32 number was rounded to FP16."""
    if dtype == "torch.float16":
        return f"\nexpected  {bits(expected)}\ngot       {bits(got)}"
    if dtype == "torch.float32" and abs(expected) < 65520:
        (rounded,) = struct.unpack("<e", _as_fp16(expected))
        if rounded == got:
            return f"\nwhat you got is this number rounded to FP16: {bits(got)}"
    return ""


def _as_fp16(value: float) -> bytes:
    """Return the two bytes of a number rounded to FP16, the lower byte first."""
    try:
        return struct.pack("<e", value)
    # IEEE 754 rounds such a number to infinity.
    except OverflowError:
        return struct.pack("<e", math.copysign(math.inf, value))


def _distinct(expected: float, got: float) -> tuple[str, str]:
    """Return the texts of both numbers with enough digits to distinguish them."""
    for digits in (6, 9, 17):
        texts = show_number(expected, digits), show_number(got, digits)
        if texts[0] != texts[1]:
            return texts
    return repr(expected), repr(got)


def _sentence(at: str, expected: str, got: str) -> str:
    return f"{at}: expected {expected}, got {got}" if at else f"expected {expected}, got {got}"


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _kind(value: object) -> str:
    """Describe a value in a sentence about a wrong type."""
    if is_tensor(value):
        return f"a tensor in {_name(value)}"
    if isinstance(value, Instance):
        return with_article(value.name)
    if isinstance(value, (bool, str, Opaque)) or value is None:
        return show(value)
    return f"{with_article(type(value).__name__)} ({show(value)})"


def _name(elements: torch.Tensor | np.ndarray[Any, Any]) -> str:
    dtype = str(elements.dtype)
    return _NAMES.get(dtype, dtype.removeprefix("torch."))


def _show_elements(elements: torch.Tensor | np.ndarray[Any, Any], kind: str) -> str:
    flat = elements.reshape(-1)
    digits = 4 if "16" in str(elements.dtype) else 6
    items = [show_number(item, digits) for item in flat[:SHOWN].tolist()]
    if len(flat) > SHOWN:
        items.append("...")
    shape = ", ".join(str(length) for length in elements.shape)
    return f"{_name(elements)} {kind} [{shape}]: {', '.join(items)}"
