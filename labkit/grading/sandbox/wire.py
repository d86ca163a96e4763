"""Serialization of answers as plain JSON, so that no object of a learner's is ever compared.

`dump` writes down what a function returned, `load` reads it back, and only the result of `load` is compared: numbers,
strings, lists, tensors and `Instance`s. An object whose `__eq__` always returns True is reduced to a description. The
notebook and the grading process use the same format, so an answer means the same in both.

Invariant: `load` creates only the types named here, whatever its input; anything else is a ValueError.
"""

from __future__ import annotations

import base64
import dataclasses
import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from typing import Any, TypeAlias, cast

import numpy as np
import torch

from labkit.course import PACKAGE

Json: TypeAlias = list[Any]

OWN = ("labkit.", f"{PACKAGE}.")  # packages whose dataclasses and enums have a form as an answer
MAX_ITEMS = 1 << 20
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
}


@dataclass(frozen=True)
class Instance:
    """A labkit dataclass or enum as data: its name and its fields."""

    name: str
    fields: dict[str, object]


@dataclass(frozen=True)
class Opaque:
    """The description of a value of any other type. It equals no expected value."""

    what: str


@dataclass(frozen=True)
class Failure:
    """The reason why a call returned nothing. `where` is the line of the learner's code, if known.

    kind    "unsolved" (the starter is unchanged), "call" (it cannot be called so) or "error" (it raised)
    """

    kind: str
    message: str
    where: str = ""


class _TooLarge(Exception):
    pass


def dump(value: object) -> Json:
    """Return `value` as JSON: a list of a tag and what it takes to build the value again.

    Types are compared exactly (`type(value) is float`), so an instance of a subclass becomes an `Opaque`.
    Numpy scalars, numpy arrays without dimensions, fractions and decimals become Python numbers, named tuples and
    torch's sizes tuples, and an OrderedDict, a defaultdict or a Counter a dict. A tensor's gradient history, device and
    strides are dropped.

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
    ) as error:
        raise ValueError(f"this is not an answer written by dump: {str(json)[:80]}") from error


def _dump(value: object, budget: Iterator[int]) -> Json:
    if next(budget, None) is None:
        raise _TooLarge
    kind = type(value)
    if kind is list:
        return ["list", [_dump(item, budget) for item in cast("list[object]", value)]]
    # a named tuple's items
    if kind in (tuple, torch.Size) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
        return [
            "tuple",
            [_dump(item, budget) for item in tuple.__iter__(cast("tuple[object, ...]", value))],
        ]
    if kind in (dict, OrderedDict, defaultdict, Counter):
        pairs = dict.items(cast("dict[object, object]", value))
        return ["dict", [[_dump(key, budget), _dump(item, budget)] for key, item in pairs]]
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        return _dump_tensor(cast(torch.Tensor, value))
    if kind is np.ndarray:
        return _dump_array(cast("np.ndarray[Any, Any]", value))
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


def _dump_scalar(value: object) -> Json:
    if isinstance(value, np.generic) and type(value).__module__ == "numpy":
        value = value.item()
    if isinstance(value, Fraction) and type(value) is Fraction:
        value = int(value) if value.denominator == 1 else value.numerator / value.denominator
    if isinstance(value, Decimal) and type(value) is Decimal and not value.is_snan():
        value = float(value)
    kind = type(value)
    if value is None:
        return ["none"]
    if kind is bool:
        return ["bool", value]
    if kind is int and cast(int, value).bit_length() < 4096:
        return ["int", str(value)]
    if kind is float:
        return ["float", cast(float, value).hex()]
    if kind is str and len(cast(str, value)) < MAX_ITEMS:
        return ["str", value]
    return ["opaque", _description(value)]


def _description(value: object) -> str:
    """Return a description of a value that has no JSON form."""
    kind = type(value)
    if kind.__name__ == "generator":
        return "a generator (`return` gives a value, `yield` does not)"
    if kind.__name__ in ("function", "builtin_function_or_method", "method"):
        return "a function (are its parentheses missing?)"
    if kind is torch.dtype:
        return str(value)
    return (
        f"the class {value.__name__}"
        if isinstance(value, type)
        else f"an object of the class {kind.__name__}"
    )


def _is_labkit_dataclass(kind: type) -> bool:
    """Return whether this is a dataclass of labkit, and not a class of the same name defined by a learner."""
    module = sys.modules.get(kind.__module__)
    found = getattr(module, kind.__name__, None)
    return dataclasses.is_dataclass(kind) and kind.__module__.startswith(OWN) and found is kind


def _dump_tensor(tensor: torch.Tensor) -> Json:
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.layout is not torch.strided or tensor.is_meta:
        return ["opaque", f"a tensor of type {name}, {tensor.layout}, on {tensor.device}"]
    if tensor.numel() > MAX_ITEMS:
        raise _TooLarge
    plain = tensor.detach().cpu().resolve_neg()
    # a lone element's stride may be any number
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return ["tensor", name, list(tensor.shape), _text(flat.view(torch.uint8).numpy().tobytes())]


def _dump_array(array: np.ndarray[Any, Any]) -> Json:
    if array.dtype.kind not in "biuf":
        return ["opaque", f"an array of type {array.dtype}"]
    if array.ndim == 0:
        return _dump_scalar(array[()])
    if array.size > MAX_ITEMS:
        raise _TooLarge
    return ["array", array.dtype.str, list(array.shape), _text(array.tobytes())]


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
        case "array" | "tensor":
            return _load_elements(tag, *rest)
    raise ValueError(f"unknown tag {tag!r}")


def _load_elements(tag: str, dtype: str, shape: list[int], text: str) -> object:
    content = bytearray(base64.b64decode(text, validate=True))
    if tag == "array":
        if np.dtype(dtype).kind not in "biuf":
            raise ValueError(f"an array of {dtype} has no form as an answer")
        return np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape)
    if not content:
        return torch.zeros(0, dtype=DTYPES[dtype]).reshape(shape)
    return torch.frombuffer(content, dtype=torch.uint8).view(DTYPES[dtype]).reshape(shape)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
