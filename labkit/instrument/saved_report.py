"""Values of JSON for the fields of a report, and the fields that a file's values stand for.

Idea: the annotations of the fields decide how a value is read, so each value is checked, and a
file that does not fit is distinguished from a mistake of the lab.

Invariant: only `UnreadableReport` says that a file does not fit; it names the place in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from labkit.findings import Finding, Status
from labkit.instrument.histogram import ExponentHistogram
from labkit.instrument.symptoms import Kind, finding

E = TypeVar("E", bound=Enum)
T = TypeVar("T")
# version of what `Report.save` writes as report.json; files of labkit 0.3.0 and older have none
SAVED_SCHEMA = "labkit.saved_report/1"
# field of a histogram -> its name in a file
_HISTOGRAM = {"lo": "lo", "counts": "counts", "zeros": "zeros", "non_finite": "bad"}
_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}
_OTHER_VERSION = "Load it with the labkit that saved it."
_CHANGED = "The file was changed after it was saved; save the report again."


class UnreadableReport(ValueError):
    """The values of a file are not those of a report that this version of the lab can read."""


def to_json(value: Any) -> Any:
    """Return any value of a report as values of JSON."""
    if isinstance(value, ExponentHistogram):
        plain = {name: getattr(value, field) for field, name in _HISTOGRAM.items()}
        return {**plain, "counts": value.counts.tolist()}
    if is_dataclass(value):
        return {name: to_json(item) for name, item in vars(value).items()}
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return value


def fields_from_json(kind: type, plain: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """Return the fields of a dataclass that `to_json` wrote as an object of JSON.

    Args:
        kind: the dataclass.
        plain: the object.
        place: where the object is in the file; "" for the whole file.

    Raises:
        UnreadableReport: a field is unknown or missing, or a value is of another type.
    """
    of_place = f" of {place}" if place else ""
    hints = get_type_hints(kind)
    known = {field.name: field for field in fields(kind)}
    for name in plain:
        if name not in known:
            raise UnreadableReport(
                f"expected fields of this version of the lab, got the field {name!r}{of_place}. "
                f"{_OTHER_VERSION}"
            )
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in plain:
            raise UnreadableReport(
                f"expected the field {name!r}{of_place}, got none. {_OTHER_VERSION}"
            )
    inside = f"{place}." if place else ""
    return {
        name: _from_json(hints[name], value, f"{inside}{name}") for name, value in plain.items()
    }


def _from_json(kind: Any, value: Any, place: str) -> Any:
    """Return the value of an annotated type that a value of JSON stands for."""
    origin = get_origin(kind)
    if origin is UnionType:
        return _optional(kind, value, place)
    if origin is tuple:
        return _tuple(get_args(kind), value, place)
    if origin is Mapping:
        _, of_values = get_args(kind)
        entries = _required(dict, value, place, "an object")
        return {key: _from_json(of_values, item, f"{place}.{key}") for key, item in entries.items()}
    if kind is ExponentHistogram:
        return _histogram(value, place)
    if kind is Finding:
        return _finding(_required(dict, value, place, "an object"), place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member(kind, value, place)
    if isinstance(kind, type) and is_dataclass(kind):
        entries = _required(dict, value, place, "an object")
        return kind(**fields_from_json(kind, entries, place))
    if kind is float and type(value) is int:
        return value
    # a bool is an int in Python, but another value in JSON
    if type(value) is not kind:
        raise _mistake(place, _NAMES[kind], value)
    return value


def _optional(kind: Any, value: Any, place: str) -> Any:
    """Return None, or the value of the other type of a union with None."""
    if value is None:
        return None
    (of_value,) = [each for each in get_args(kind) if each is not NoneType]
    return _from_json(of_value, value, place)


def _tuple(kinds: tuple[Any, ...], value: Any, place: str) -> tuple[Any, ...]:
    """Return a tuple, of any length if the annotation ends with an ellipsis."""
    items = _required(list, value, place, "a list")
    if kinds[-1] is Ellipsis:
        kinds = kinds[:1] * len(items)
    if len(items) != len(kinds):
        raise _mistake(place, f"a list of {len(kinds)}", value)
    return tuple(
        _from_json(kind, item, f"{place}[{index}]")
        for index, (kind, item) in enumerate(zip(kinds, items, strict=True))
    )


def _histogram(value: Any, place: str) -> ExponentHistogram:
    entries = _required(dict, value, place, "an object")
    if set(entries) != set(_HISTOGRAM.values()):
        raise _mistake(place, f"a histogram with {', '.join(_HISTOGRAM.values())}", value)
    counts = _tuple((int, ...), entries["counts"], f"{place}.counts")
    if any(not 0 <= count < 2**63 for count in counts):
        raise _mistake(f"{place}.counts", "counts of elements", list(counts))
    rest = {
        field: _from_json(int, entries[name], f"{place}.{name}")
        for field, name in _HISTOGRAM.items()
        if name != "counts"
    }
    return ExponentHistogram(counts=np.array(counts, dtype=np.int64), **rest)


def _finding(entries: dict[str, Any], place: str) -> Finding:
    # a report that version 0.2 saved
    if "says" in entries:
        old = {"what": str, "layer": str, "step": int | None, "says": str, "line": str}
        unknown = [name for name in entries if name not in old]
        missing = [name for name in old if name not in entries and name != "line"]
        if unknown or missing:
            raise _mistake(place, f"a finding with {', '.join(old)}", entries)
        read = {name: _from_json(old[name], entries[name], f"{place}.{name}") for name in entries}
        kind = _member(Kind, read["what"], f"{place}.what")
        return finding(kind, read["layer"], read["step"], read["says"], read.get("line", ""))
    read = fields_from_json(Finding, entries, place)
    if read["status"] is not Status.OK and not read.get("remedy"):
        raise _mistake(f"{place}.remedy", "a remedy", read.get("remedy", ""))
    return Finding(**read)


def _member(kind: type[E], value: Any, place: str) -> E:
    """Return the member of an enumeration that has a value."""
    for member in kind:
        if member.value == value:
            return member
    expected = ", ".join(repr(member.value) for member in kind)
    raise _mistake(place, f"one of {expected}", value)


def _required(kind: type[T], value: Any, place: str, name: str) -> T:
    """Return a value of a type, or refuse it."""
    if not isinstance(value, kind):
        raise _mistake(place, name, value)
    return value


def _mistake(place: str, expected: str, value: Any) -> UnreadableReport:
    text = repr(value)
    shown = text if len(text) <= 60 else f"{text[:60]}..."
    return UnreadableReport(f"{place}: expected {expected}, got {shown}. {_CHANGED}")
