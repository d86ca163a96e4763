"""The answers of `compare`."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from labkit.formats import FP64, Format, encode, field_bits
from labkit.testing.suspects import Rival


class VerdictKind(StrEnum):
    """Answers of `compare`."""

    EQUAL = "equal"
    ROUNDING = "rounding of another order"
    LARGER = "within the bound, but larger than any order reaches"
    SUSPECTED = "within the bound, but a known fault fits better"
    IMPOSSIBLE = "cannot be rounding"
    UNJUDGED = "cannot be judged"


@dataclass(frozen=True)
class Element:
    """The element that decides.

    Attributes:
        index: its place.
        got, exact: the value that was found, and the exact result in FP64.
        nearest: the exact result, rounded to the format of the output.
        low, high: ends of what rounding allows.
        need, bound: the least error before the final rounding that explains it, and the largest
            possible one.
    """

    index: tuple[int, ...]
    got: float
    exact: float
    nearest: float
    low: float
    high: float
    need: float
    bound: float


@dataclass(frozen=True)
class Verdict:
    """Answer of `compare`; true if the difference is rounding.

    Attributes:
        kind: the answer.
        operation: description of the operation and the arithmetic.
        out: format in which the kernel stores.
        elements: number of elements.
        differing: how many elements differ from the exact result rounded once.
        worst: the element that decides, or None if nothing differs.
        share: the need of that element, divided by its bound.
        reached: the largest share of the bound that a replay reached; None if nothing was replayed.
        typical: root mean square of the shares of the result, and that of the worst replay; None
            for too few elements.
        suspects: what would explain it, the most likely first.
        unjudged: what could not be judged, and why.
        rival: the known fault that fits better, if the kind is SUSPECTED.
        zeros: number of zeros whose sign is not that of the exact result rounded once; it is not
            judged. Where a sum of two terms or more is exactly 0, its sign depends on the order,
            and is not counted.
    """

    kind: VerdictKind
    operation: str
    out: Format
    elements: int
    differing: int
    worst: Element | None = None
    share: float = 0.0
    reached: float | None = None
    typical: tuple[float, float] | None = None
    suspects: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = field(default=())
    rival: Rival | None = None
    zeros: int = 0

    @property
    def explained(self) -> bool:
        """Whether rounding explains the result."""
        return self.kind in (VerdictKind.EQUAL, VerdictKind.ROUNDING)

    def __bool__(self) -> bool:
        return self.explained

    def __str__(self) -> str:
        lines = [f"{self.kind}: {self.operation}, out={self.out.name}"]
        lines.append(
            f"  {self.differing:,} of {self.elements:,} elements differ from the exact result "
            "rounded once"
        )
        if self.worst is not None:
            lines += _describe(self.worst, self.out)
        if self.reached is not None:
            lines.append(
                f"  largest share of the bound: {self.share:.3g}; of replays in other orders: "
                f"{self.reached:.3g}"
            )
        if self.typical is not None and not self.explained:
            lines.append(
                "  root mean square of shares: {:.3g}; of replays: {:.3g}".format(*self.typical)
            )
        if self.rival is not None:
            lines.append(f"  would explain it: {self.rival}")
        else:
            lines += [f"  would explain it: {each}" for each in self.suspects]
        lines += [f"  not judged: {each}" for each in self.unjudged]
        if self.zeros:
            have = "zero has" if self.zeros == 1 else "zeros have"
            lines.append(f"  not judged: {self.zeros:,} {have} the other sign")
        return "\n".join(lines)


class Unexplained(AssertionError):
    """An assertion that rounding does not explain; `verdict` has the details."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


def _describe(element: Element, out: Format) -> list[str]:
    place = ", ".join(map(str, element.index))
    rows = [("got", element.got), ("exact, rounded once", element.nearest)]
    lines = [f"  at [{place}]"]
    for name, value in rows:
        bits = f"  {field_bits(int(encode(value, out)), out)}" if out != FP64 else ""
        lines.append(f"    {name:<20} {value!r:<24}{bits}")
    lines.append(f"    {'exact':<20} {element.exact!r}")
    lines.append(f"    {'rounding allows':<20} {element.low!r} to {element.high!r}")
    if np.isfinite(element.need) and 0 < element.bound < np.inf:
        times = element.need / element.bound
        lines.append(
            f"    {'error needed':<20} {element.need:.4g}, {times:.3g} times the bound of "
            f"{element.bound:.4g}"
        )
    elif np.isfinite(element.need) and element.need and element.bound == 0:
        lines.append(f"    {'error needed':<20} {element.need:.4g}; the bound is 0")
    return lines
