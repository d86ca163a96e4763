"""Tables of vectors, and what each kind of them knows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from labkit.formats import Format, decode

Table: TypeAlias = dict[str, NDArray[Any]]
Answers: TypeAlias = Mapping[str, NDArray[Any]]


class Vectors(ABC):
    """The vectors of a format, a block format or a GPU."""

    @abstractmethod
    def table(self) -> Table:
        """Return the inputs, the right answers and the rule of each row."""

    @abstractmethod
    def format_of(self, key: str) -> Format | None:
        """Return the format of the codes in an answer; None for answers that are numbers."""

    @abstractmethod
    def mistakes(self, table: Table) -> dict[str, Table]:
        """Return the answers of known mistakes, by name."""

    def choices(self, table: Table, answers: Answers) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Yield conventions that some answers follow and the vectors do not, and which rows do."""
        return iter(())


def same(got: NDArray[Any], wanted: NDArray[Any], format: Format | None) -> NDArray[np.bool_]:
    """Return where answers are equal: bits, but any NaN is NaN.

    Args:
        got: answers, codes or numbers.
        wanted: the right answers.
        format: the format of codes; None for numbers.
    """
    if format is not None:
        got = _decoded(got, format)
        wanted = _decoded(wanted, format)
    equal = (got == wanted) & (np.signbit(got) == np.signbit(wanted))
    return np.asarray(equal | (np.isnan(got) & np.isnan(wanted)))


def _decoded(codes: NDArray[Any], format: Format) -> NDArray[np.float64]:
    # answers may be stored in a wider type, with bits above the code
    return np.asarray(decode(np.asarray(codes).astype(np.int64) & (format.codes - 1), format))
