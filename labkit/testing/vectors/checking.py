"""Vectors by name, in files, and the check of answers to them."""

from __future__ import annotations

import difflib
import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.formats import BLOCK_FORMATS
from labkit.gemm import SPECS
from labkit.records import write_atomic
from labkit.testing.vectors.blocks import BlockVectors
from labkit.testing.vectors.cards import CardVectors
from labkit.testing.vectors.rounding import ROUNDED_NAMES, RoundingVectors
from labkit.testing.vectors.tables import Answers, Table, Vectors, same

NAMES = (*ROUNDED_NAMES, *BLOCK_FORMATS, *SPECS)
ANSWERS = ("codes", "scales", "elements", "values", "d")


def vectors(name: str) -> Table:
    """Return the vectors of a format, a block format or a GPU.

    Args:
        name: one of NAMES, in capital or small letters.

    Raises:
        ValueError: the name is unknown.

    >>> table = vectors("BF16")
    >>> sorted(table), bool(check(table))
    (['codes', 'name', 'rule', 'x'], False)
    """
    name = listed_name(name)
    return {"name": np.array(name), **_vectors_of(name).table()}


def _vectors_of(name: str) -> Vectors:
    if name in SPECS:
        return CardVectors(name)
    if name in BLOCK_FORMATS:
        return BlockVectors(name)
    return RoundingVectors(name)


def listed_name(text: str) -> str:
    """Return the name in NAMES that a text spells in capital or small letters.

    Raises:
        ValueError: the name is unknown; the message suggests the nearest one.

    >>> listed_name("nvfp4")
    'NVFP4'
    """
    by_capitals = {name.upper(): name for name in NAMES}
    if text.upper() in by_capitals:
        return by_capitals[text.upper()]
    message = f"expected one of {_quoted(NAMES)}, got {text!r}"
    near = difflib.get_close_matches(text.upper(), by_capitals, n=1)
    if near:
        message += f". Did you mean {by_capitals[near[0]]!r}?"
    raise ValueError(message)


def _quoted(names: Iterable[str]) -> str:
    """Return names separated by commas, each in quotes: some names have a comma of their own."""
    return ", ".join(repr(name) for name in names)


def save(name: str, path: Path) -> int:
    """Write the vectors of a name as an .npz file, and return the number of rows."""
    table = vectors(name)
    buffer = io.BytesIO()
    np.savez(buffer, **table)  # type: ignore[arg-type]
    write_atomic(path, buffer.getvalue())
    return len(table["rule"])


def read(path: Path) -> Table:
    """Return the answers of an .npz file.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is not such a file.
    """
    # numpy takes any other file for a pickle, and names the option that would run its code
    if path.exists() and not zipfile.is_zipfile(path):
        raise ValueError(f"expected an .npz file, as np.savez writes it, got {path}")
    try:
        with np.load(path) as answers:
            return dict(answers)
    except zipfile.BadZipFile as error:
        raise ValueError(f"expected an .npz file, as np.savez writes it, got {path}") from error


def check_file(path: Path) -> list[str]:
    """Return what `check` finds in the answers of an .npz file.

    Raises:
        ValueError: it is not such a file; or as `check`.
    """
    return check(read(path))


def check(answers: Mapping[str, ArrayLike]) -> list[str]:
    """Return the rules that answers break, each with a counter-example, and the known mistake.

    Args:
        answers: arrays, or lists of numbers, under the names that the vectors have.

    Raises:
        ValueError: `answers` has no name, or an answer is missing, has another shape, or is of
            another kind: codes that are not integers, or numbers that are text.
    """
    arrays, table, kind = _with_vectors(answers)
    keys = [key for key in ANSWERS if key in table]

    # where standards leave a choice, any choice is right
    is_free = {key: np.zeros(len(table[key]), np.bool_) for key in keys}
    for _, rows in kind.choices(table, arrays):
        is_free["scales"] |= rows
        is_free["elements"] |= rows
    found: list[str] = []
    for key in keys:
        found += _broken_rules(kind, table, arrays, key, is_free[key])
    if found:
        for name, wrong in known_mistakes(table).items():
            if all(
                same(arrays[key], values, kind.format_of(key))[~is_free[key]].all()
                for key, values in wrong.items()
            ):
                found.append(f"these answers are those of a known mistake: {name}")
    return found


def _with_vectors(answers: Mapping[str, ArrayLike]) -> tuple[Table, Table, Vectors]:
    """Return answers as arrays, and the vectors that they answer.

    Raises:
        ValueError: the name or an answer is missing, or an answer has another shape or kind.
    """
    if "name" not in answers:
        raise ValueError(
            f'expected "name" in the file, one of {_quoted(NAMES)}. Copy it from the vectors.'
        )
    arrays = {key: np.asarray(values) for key, values in answers.items()}
    table = vectors(str(arrays["name"]))
    kind = _vectors_of(str(table["name"]))
    _require_answers(arrays, table, kind)
    return arrays, table, kind


def _require_answers(answers: Answers, table: Table, kind: Vectors) -> None:
    """Raise a ValueError for an answer that is missing, or has another shape or kind."""
    for key in ANSWERS:
        if key not in table:
            continue
        if key not in answers or answers[key].shape != table[key].shape:
            got = f"shape {list(answers[key].shape)}" if key in answers else "none"
            raise ValueError(
                f"expected {key!r} of shape {list(table[key].shape)} in the file, got {got}"
            )
        # a conversion to integers would take 56.5 for the code 56
        numbers = "integers"
        kinds = "iu"
        if kind.format_of(key) is None:
            numbers = "floats"
            kinds = "fiu"
        if answers[key].dtype.kind not in kinds:
            raise ValueError(f"expected {key!r} as {numbers}, got {answers[key].dtype}")


def _broken_rules(
    kind: Vectors, table: Table, answers: Answers, key: str, is_free: NDArray[np.bool_]
) -> Iterator[str]:
    """Yield the rules that one kind of answers breaks, each with its first counter-example."""
    rules = table["rule_of_values" if key == "values" else "rule"]
    is_same = same(answers[key], table[key], kind.format_of(key))
    # a row is wrong if any of its elements is
    is_wrong = ~(is_same.reshape(len(rules), -1).all(1) | is_free)
    for rule in dict.fromkeys(rules[is_wrong].tolist()):
        rows = np.flatnonzero(is_wrong & (rules == rule))
        count = int((rules == rule).sum())
        example = _example(kind, table, answers, key, int(rows[0]))
        yield f"{rule}: {len(rows)} of {count} rows; {example}"


def _example(kind: Vectors, table: Table, answers: Answers, key: str, row: int) -> str:
    """Return a description of a row's first wrong answer."""
    format = kind.format_of(key)
    got = np.atleast_1d(answers[key][row])
    wanted = np.atleast_1d(table[key][row])
    element = int(np.flatnonzero(~same(got, wanted, format))[0])
    where = f"row {row}"
    if len(wanted) > 1:
        where += f", element {element}"
    inputs = "given_elements" if key == "values" else "x"
    if inputs in table:
        numbers = np.atleast_1d(table[inputs][row])
        # one answer for a block, its scale, comes from the largest number
        chosen = element if len(wanted) > 1 else int(np.argmax(np.abs(numbers)))
        where += f", {numbers[chosen]!s}"
    if format is None:
        return f"{where}: expected {key} {wanted[element]!s}, got {got[element]!s}"
    return f"{where}: expected {key} {int(wanted[element]):#x}, got {int(got[element]):#x}"


def known_mistakes(table: Table) -> dict[str, Table]:
    """Return the answers of known mistakes, as far as they differ from the right ones."""
    kind = _vectors_of(str(table["name"]))
    return {
        name: wrong
        for name, wrong in kind.mistakes(table).items()
        if not all(
            same(values, table[key], kind.format_of(key)).all() for key, values in wrong.items()
        )
    }


def conventions(answers: Mapping[str, ArrayLike]) -> list[str]:
    """Return the choices of a block format's answers that standards leave open, with sources.

    Answers as `check` takes them. A choice that differs from the vectors' is not a fault.

    Raises:
        ValueError: as `check`.
    """
    arrays, table, kind = _with_vectors(answers)
    return [
        f"a convention, not a fault: {name}; row {int(np.flatnonzero(rows)[0])}"
        for name, rows in kind.choices(table, arrays)
        if rows.any()
    ]
