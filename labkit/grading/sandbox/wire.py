"""Serialization of answers as plain JSON, so that no object of a learner's is ever compared.

`dump` writes down what a function returned, `load` reads it back, and only the result of `load` is
compared: numbers, strings, lists, tensors and `Instance`s. An object whose `__eq__` always returns
True is reduced to a description. The notebook and the grading process use the same format, so an
answer means the same in both.

Invariant: `load` creates only the types named here, whatever its input; anything else is a
ValueError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from labkit.course import PACKAGE
from labkit.grading.sandbox.kinds import (
    ARRAY_KINDS,
    is_array,
    is_numpy_scalar,
    is_tensor,
)

if TYPE_CHECKING:
    import numpy as np
    import torch

Json: TypeAlias = list[Any]

# Packages whose dataclasses and enums have a form as an answer.
OWN = ("labkit.", f"{PACKAGE}.")
MAX_ITEMS = 1 << 20
# Python converts integers of about 14,000 bits or less to text.
MAX_INT_BITS = 4096
# the classes of tensors that have a form as an answer; those of a subclass have none
TENSORS = (("torch", "Tensor"), ("torch.nn.parameter", "Parameter"))


@dataclass(frozen=True)
class Instance:
    """A labkit dataclass or enum as data: its name and its fields."""

    name: str
    fields: dict[str, object]

    def __hash__(self) -> int:
        # It may be a key of an answer, and a dict of fields has no hash.
        return hash(self.name)


@dataclass(frozen=True)
class Opaque:
    """The description of a value of any other type. It equals no expected value."""

    what: str


@dataclass(frozen=True)
class Failure:
    """The reason why a call returned nothing. `where` is the line of the learner's code, if known.

    Attributes:
        kind: "unsolved" (the starter is unchanged), "call" (it cannot be called so) or "error" (it
            raised).
    """

    kind: str
    message: str
    where: str = ""

    @property
    def what(self) -> str:
        """The message without the words of Python's exception, which differ by its version."""
        return self.message.partition(": ")[0] if self.kind == "error" else self.message


class _TooLarge(Exception):
    pass


def dump(value: object) -> Json:
    """Return `value` as JSON: a list of a tag and what it takes to build the value again.

    Types are compared exactly (`type(value) is float`), so an instance of a subclass becomes an
    `Opaque`. Numpy scalars, numpy arrays without dimensions, fractions and decimals become Python
    numbers, named tuples and torch's sizes tuples, and an OrderedDict, a defaultdict or a Counter a
    dict. A tensor's gradient history, device and strides are dropped.

    >>> dump([True, 2.0**-24])
    ['list', [['bool', True], ['float', '0x1.0000000000000p-24']]]
    >>> class Yes(float):
    ...     def __eq__(self, other): return True
    >>> dump(Yes(1.0))
    ['opaque', 'an object of the class Yes']
    """
    try:
        return _dump(value, iter(range(MAX_ITEMS)))
    except (_TooLarge, RecursionError):
        return [
            "opaque",
            f"a value with more than {MAX_ITEMS} elements, or one that contains itself",
        ]


def load(json: object) -> object:
    """Return the value that `dump` wrote.

    >>> load(dump((1, None, "a")))
    (1, None, 'a')

    Raises:
        ValueError: `json` was not written by `dump`.
    """
    try:
        return _load(cast(Json, json))
    except (
        LookupError,
        TypeError,
        AttributeError,
        RuntimeError,
        RecursionError,
        ValueError,
        # A float beyond the range, and a numpy dtype that is not one.
        OverflowError,
        SyntaxError,
    ) as error:
        raise ValueError(f"this is not an answer written by dump: {str(json)[:80]}") from error


def _dump(value: object, budget: Iterator[int]) -> Json:
    if next(budget, None) is None:
        raise _TooLarge
    kind = type(value)
    if kind is list:
        return ["list", [_dump(item, budget) for item in cast("list[object]", value)]]
    if _is_plain_tuple(kind):
        return [
            "tuple",
            [_dump(item, budget) for item in tuple.__iter__(cast("tuple[object, ...]", value))],
        ]
    if kind in (dict, OrderedDict, defaultdict, Counter):
        pairs = dict.items(cast("dict[object, object]", value))
        return ["dict", [[_dump(key, budget), _dump(item, budget)] for key, item in pairs]]
    if is_tensor(value) and (kind.__module__, kind.__name__) in TENSORS:
        return _dump_tensor(value)
    if is_array(value) and (kind.__module__, kind.__name__) == ("numpy", "ndarray"):
        return _dump_array(value)
    if kind is Failure:
        return ["failure", *dataclasses.astuple(cast(Failure, value))]
    if issubclass(kind, Enum) and kind.__module__.startswith(OWN):
        return ["instance", kind.__name__, {"name": ["str", str(cast(Enum, value).name)]}]
    if _is_labkit_dataclass(kind):
        fields = (
            (field.name, getattr(value, field.name))
            for field in dataclasses.fields(cast(Any, value))
        )
        return ["instance", kind.__name__, {name: _dump(item, budget) for name, item in fields}]
    return _dump_scalar(value)


def _is_plain_tuple(kind: type) -> bool:
    """Return whether this is a tuple, a named tuple, or the class of torch's shapes."""
    if kind is tuple or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return True
    torch = sys.modules.get("torch")
    return torch is not None and kind is torch.Size


def _dump_scalar(value: object) -> Json:
    if is_numpy_scalar(value):
        value = value.item()
    if isinstance(value, Fraction) and type(value) is Fraction:
        # one beyond the range of a float has no form
        with contextlib.suppress(OverflowError):
            value = int(value) if value.denominator == 1 else value.numerator / value.denominator
    if isinstance(value, Decimal) and type(value) is Decimal and not value.is_snan():
        value = float(value)
    kind = type(value)
    if value is None:
        return ["none"]
    if kind is bool:
        return ["bool", value]
    if kind is int and cast(int, value).bit_length() < MAX_INT_BITS:
        return ["int", str(value)]
    if kind is float:
        return ["float", cast(float, value).hex()]
    if kind is str and len(cast(str, value)) < MAX_ITEMS:
        return ["str", value]
    return ["opaque", _description(value)]


def _description(value: object) -> str:
    """Return a description of a value that has no JSON form."""
    kind = type(value)
    if kind is int:
        return f"an int of {MAX_INT_BITS} bits or more"
    if kind.__name__ == "generator":
        return "a generator (`return` gives a value, `yield` does not)"
    if kind.__name__ in ("function", "builtin_function_or_method", "method"):
        return "a function (are its parentheses missing?)"
    if (kind.__module__, kind.__name__) == ("torch", "dtype"):
        return str(value)
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"an object of the class {kind.__name__}"
    )


def _is_labkit_dataclass(kind: type) -> bool:
    """Return whether this is a dataclass of labkit, and not a learner's class of the same name."""
    module = sys.modules.get(kind.__module__)
    found = getattr(module, kind.__name__, None)
    return dataclasses.is_dataclass(kind) and kind.__module__.startswith(OWN) and found is kind


def _dump_tensor(tensor: torch.Tensor) -> Json:
    from labkit.grading.sandbox.elements import dump_tensor

    if tensor.numel() > MAX_ITEMS:
        raise _TooLarge
    return dump_tensor(tensor)


def _dump_array(array: np.ndarray[Any, Any]) -> Json:
    from labkit.grading.sandbox.elements import dump_array

    is_numeric = array.dtype.kind in ARRAY_KINDS
    if is_numeric and array.ndim == 0:
        return _dump_scalar(array[()])
    if is_numeric and array.size > MAX_ITEMS:
        raise _TooLarge
    return dump_array(array)


_SCALARS: dict[str, Callable[[Any], object]] = {
    "bool": bool,
    "int": int,
    "float": float.fromhex,
    "str": str,
}


def _load(json: Json) -> object:
    tag, *rest = json
    if tag in _SCALARS:
        return _SCALARS[tag](rest[0])
    match tag:
        case "none":
            return None
        case "list":
            return [_load(item) for item in rest[0]]
        case "tuple":
            return tuple(_load(item) for item in rest[0])
        case "dict":
            return {_load(key): _load(item) for key, item in rest[0]}
        case "instance":
            return Instance(
                str(rest[0]), {str(name): _load(item) for name, item in rest[1].items()}
            )
        case "opaque":
            return Opaque(str(rest[0]))
        case "failure":
            return Failure(*(str(part)[:1000] for part in rest))
        case "array":
            from labkit.grading.sandbox.elements import load_array

            return load_array(*rest)
        case "tensor":
            from labkit.grading.sandbox.elements import load_tensor

            return load_tensor(*rest)
    raise ValueError(f"unknown tag {tag!r}")
