"""Verdict on a result: equal, rounding, or a fault.

Idea: what a kernel stores is the rounded sum, so a result between the rounded exact - e and the
rounded exact + e is possible, and any other is not. Of what is possible, most is never reached: the
operation is replayed in several orders on at most 4,096 elements, one half drawn at random, the
other half those nearest to the bound. The *need* of an element is the least error before the final
rounding that explains it; a share is a need divided by the bound.

- equal: every element is the exact result, rounded once;
- rounding of another order: within the bound, and as large as orders that were tried reach;
- larger than any order reaches: within the bound, but one share is 4 times the largest of all
  replays, or the shares of the random half have twice the root mean square of every replay;
- a known fault fits better: within the bound, but the operation with a known fault is far nearer
  than rounding lets it be (`suspects`, "rival");
- cannot be rounding: an element is outside of its interval, or NaN or infinite where the operation
  is not;
- cannot be judged: the bound of every element is infinite.

The sign of zero is counted, and not judged: most contracts of kernels leave it open.

Invariant: "cannot be rounding" is a proof for the arithmetic that was named; "larger than any order
reaches" is strong evidence, and depends on the orders of `orders`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np

from labkit.formats import (
    FP16,
    FP32,
    FP64,
    Format,
    FormatLike,
    Overflow,
    Rounding,
    as_format,
    as_member,
    encode,
    field_bits,
    round_to,
    ulp,
)
from labkit.formats.arguments import require_kind
from labkit.testing.bound import AnyArithmetic, Arithmetic, Floats, arithmetic
from labkit.testing.operations import Array, Operation, Places, matmul, values_of
from labkit.testing.suspects import Rival, rival, suspects

ELEMENTS = 2**12  # that are replayed, at most
WORK = 2**20  # terms that are replayed in one order, at most
LONGEST = 10**6  # terms of a sum that is replayed
TIMES_LARGEST, TIMES_TYPICAL = 4.0, 2.0
FEWEST = 32  # elements whose root mean square says something


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
        elements: number of elements, and how many differ from the exact result rounded once.
        worst: the element that decides, or None if nothing differs.
        reached: the largest share of the bound that a replay reached, of the needs of the result
            (`share`) the largest.
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


def compare(
    got: Array,
    operation: Operation,
    *,
    out: FormatLike | None = None,
    accumulator: AnyArithmetic = FP32,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
) -> Verdict:
    """Return the verdict on the result of a kernel.

    The sign of zero is not judged: `Verdict.zeros` counts zeros of the other sign.

    Args:
        got: the result, on any device.
        operation: `matmul(a, b)`, `softmax(x)` and so on: what the kernel was to compute, from the
            same operands.
        out: format in which the kernel stores; by default that of `got`.
        accumulator: a format or its name, a GPU's name ("H100": its Tensor Cores), or an
            `Arithmetic`.
        rounding: direction of the final rounding.
        overflow: what the final rounding makes of values beyond the format.

    Raises:
        TypeError: `got` holds no floats.
        ValueError: its shape is not that of the operation; its values are not values of `out`.

    >>> from labkit.testing import matmul
    >>> a = np.float16([[1.0, 2.0**-11, 2.0**-11]])
    >>> print(compare(np.float16([[1.0]]), matmul(a, np.ones((3, 1), np.float16)), out=FP16).kind)
    cannot be rounding
    """
    require_kind(operation, Operation, "operation", "For example: labkit.testing.matmul(a, b)")
    if out is not None:
        out = as_format(out, "out")
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    values, stored = values_of(got, "got")
    out = out or stored
    if values.shape != operation.value.shape:
        raise ValueError(
            f"expected a result of shape {list(operation.value.shape)}, got {list(values.shape)}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        if out != stored and not ((round_to(values, out) == values) | np.isnan(values)).all():
            raise ValueError(
                f"expected values of {out.name}, got others in a result stored as {stored.name}"
            )
    how = arithmetic(accumulator, operation.formats, operation.rounded)
    judge = _Judge(
        values.reshape(-1), operation.value.reshape(-1), operation, how, out, rounding, overflow
    )
    return judge.verdict()


def assert_explained(
    got: Array,
    a: Array | Operation,
    b: Array | None = None,
    *,
    out: FormatLike | None = None,
    accumulator: AnyArithmetic = FP32,
    **settings: Any,
) -> Verdict:
    """Assert that rounding explains a result, and return the verdict.

    Args:
        got: the result, on any device.
        a: the left operand of a matrix product, or an operation.
        b: the right operand; None with an operation.
        out: as in `compare`.
        accumulator: as in `compare`.
        **settings: further arguments of `compare`, and of `matmul`: bias, scale, operands.

    Raises:
        Unexplained: rounding does not explain it.

    >>> import torch
    >>> a, b = torch.randn(8, 64).half(), torch.randn(64, 8).half()
    >>> assert assert_explained((a.float() @ b.float()).half(), a, b, out=FP16, accumulator="FP32")
    """
    of_product = {
        name: settings.pop(name) for name in ("bias", "scale", "operands") if name in settings
    }
    if isinstance(a, Operation):
        if b is not None or of_product:
            raise TypeError(
                "expected an operation alone, or two operands; bias, scale and operands belong to "
                "`matmul`"
            )
        operation = a
    elif b is None:
        raise TypeError(
            "expected two operands of a matrix product, or an operation such as softmax(x)"
        )
    else:
        operation = matmul(a, b, **of_product)
    verdict = compare(got, operation, out=out, accumulator=accumulator, **settings)
    if not verdict:
        raise Unexplained(verdict)
    return verdict


@dataclass(frozen=True, eq=False)
class _Judge:
    """A result and its exact values, flattened."""

    got: Floats
    exact: Floats
    operation: Operation
    how: Arithmetic
    out: Format
    rounding: Rounding
    overflow: Overflow

    def verdict(self) -> Verdict:
        name = f"{self.operation.name}, K={self.operation.terms:,}, accumulator {self.how.name}"
        if not self.got.size:
            return Verdict(
                VerdictKind.EQUAL,
                name,
                self.out,
                0,
                0,
                unjudged=("nothing: the result has no elements",),
            )
        special = ~np.isfinite(self.exact)
        bound = np.where(special, 0.0, self.operation.error(self.how).reshape(-1))
        nearest = self.stored(self.exact)
        same = (self.got == nearest) | (np.isnan(self.got) & np.isnan(nearest))
        differing = int((~same).sum())
        unbounded = np.isinf(bound)
        zeros = self.other_zeros(nearest)
        unjudged = []
        if unbounded.any():
            unjudged.append(
                f"{int(unbounded.sum()):,} elements whose bound is infinite: the accumulator may "
                "overflow, or the sum is too long for it"
            )
        if not differing:
            return Verdict(
                VerdictKind.EQUAL,
                name,
                self.out,
                self.got.size,
                0,
                unjudged=tuple(unjudged),
                zeros=zeros,
            )
        need = np.where(same | unbounded, 0.0, self.need(self.got, self.exact))
        outside = self.outside(np.flatnonzero(~same & ~unbounded), bound)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(need == 0, 0.0, np.where(unbounded, 0.0, need / bound))
        share[outside] = np.where(np.isfinite(share[outside]), share[outside], np.inf)

        def found(kind: VerdictKind, at: int, part: float = 1.0, **more: Any) -> Verdict:
            worst = self.element(at, float(bound[at]), float(need[at]))
            clues: tuple[str, ...] = more.pop("suspects", ())
            if kind in (VerdictKind.LARGER, VerdictKind.IMPOSSIBLE):
                clues = suspects(
                    self.got,
                    self.exact,
                    bound * part,
                    self.operation,
                    self.how,
                    self.stored,
                    self.out,
                )
            return Verdict(
                kind,
                name,
                self.out,
                self.got.size,
                differing,
                worst,
                float(share[at]),
                suspects=clues,
                unjudged=tuple(unjudged),
                zeros=zeros,
                **more,
            )

        if outside.size:
            return found(VerdictKind.IMPOSSIBLE, int(outside[np.argmax(share[outside])]))
        if self.operation.terms > LONGEST:
            unjudged.append(
                f"whether an order reaches it: sums of more than {LONGEST:,} terms are not replayed"
            )
            return found(VerdictKind.ROUNDING, int(np.argmax(share)))
        # differing infinities and NaN were found outside before this
        if (special | unbounded).all():
            return found(VerdictKind.UNJUDGED, int(np.argmax(~same)))
        largest, typical, own, other = self.replay(share, bound, special | unbounded)
        at = int(np.argmax(share))
        numbers: dict[str, Any] = {"reached": largest}
        numbers["typical"] = None if own is None else (own, typical)
        if share[at] > TIMES_LARGEST * largest or (
            own is not None and own > TIMES_TYPICAL * typical
        ):
            return found(VerdictKind.LARGER, at, min(1.0, TIMES_LARGEST * largest), **numbers)
        if other is not None:
            return found(VerdictKind.SUSPECTED, at, rival=other, suspects=(other.name,), **numbers)
        return found(VerdictKind.ROUNDING, at, **numbers)

    def other_zeros(self, nearest: Floats) -> int:
        """Return how many zeros have another sign than the exact result rounded once."""
        zeros = np.flatnonzero((self.got == 0) & (nearest == 0))
        other = np.signbit(self.got[zeros]) != np.signbit(nearest[zeros])
        # the sign of a sum that is exactly 0 depends on the order of its terms
        known = (self.exact[zeros] != 0) | (self.operation.terms == 1)
        return int((other & known).sum())

    def stored(self, values: Floats) -> Floats:
        """Round as the kernel does when it stores."""
        if self.out == FP64:
            return values
        with np.errstate(over="ignore", invalid="ignore"):
            if (
                self.out in (FP16, FP32)
                and self.rounding is Rounding.NEAREST_EVEN
                and self.overflow is Overflow.TO_INFINITY
            ):
                return values.astype(np.float16 if self.out == FP16 else np.float32).astype(
                    np.float64
                )
            return np.asarray(round_to(values, self.out, self.rounding, self.overflow), np.float64)

    def need(self, got: Floats, exact: Floats) -> Floats:
        """Return the least errors that explain the results, or inf if none do.

        They allow for the change of spacing at a power of two.
        """
        half = 0.5 if self.rounding is Rounding.NEAREST_EVEN else 1.0
        with np.errstate(invalid="ignore"):
            away = np.abs(got - exact)
            least = np.maximum(away - half * ulp(got, self.out), 0.0) if self.out != FP64 else away
        return np.where(
            np.isnan(away),
            np.where(np.isnan(got) & np.isnan(exact) | (got == exact), 0.0, np.inf),
            least,
        )

    def outside(self, places: Places, bound: Floats) -> Places:
        """Return which of some elements lie outside of what rounding allows."""
        with np.errstate(invalid="ignore"):
            places = places[~(np.abs(self.got[places] - self.exact[places]) <= bound[places])]
        got = self.got[places]
        exact = self.exact[places]
        e = bound[places]
        low = self.stored(exact - e)
        high = self.stored(exact + e)
        within = (low <= got) & (got <= high) | np.isnan(got) & (np.isnan(low) | np.isnan(high))
        # a format without infinities overflows
        within |= np.isnan(high) & (low <= got) | np.isnan(low) & (got <= high)
        finite = ~np.isnan(exact)
        return places[~np.where(finite, within, np.isnan(got))]

    def replay(
        self, share: Floats, bound: Floats, skipped: Any
    ) -> tuple[float, float, float | None, Rival | None]:
        """Replay the operation at some elements.

        Returns:
            The largest share of all replays, the typical one of the worst replay, that of the
            result, and the known fault that fits the result better.
        """
        usable = np.flatnonzero(~skipped)
        many = min(ELEMENTS, max(8, WORK // max(1, self.operation.terms)), usable.size)
        drawn = np.random.default_rng(0).choice(usable, (many + 1) // 2, replace=False)
        rest = usable.size - (many - drawn.size)
        order = np.argpartition(share[usable], min(rest, usable.size - 1))
        nearest = usable[order[rest:]]
        places = np.concatenate([drawn, nearest])
        least = (self.operation.terms + 4) * 2.0**-52  # the error of FP64
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            replayed = self.operation.replay(self.how, places)
            e = np.where(bound[places] > 0, bound[places], np.inf)
            shares = np.nan_to_num(np.abs(replayed - self.exact[places]) / e, nan=0.0, posinf=0.0)
            kept = self.stored(replayed)
            needs = self.need(kept, self.exact[places]) / e
        at = places[: drawn.size]
        once = self.stored(self.exact[drawn])
        right = np.concatenate([kept[:, : drawn.size], once[None]])
        other = rival(self.got[at], self.exact[at], right, at, self.operation, self.out)
        largest = max(float(shares.max(initial=0.0)), least)
        few = drawn.size < FEWEST or np.count_nonzero(share[drawn]) < FEWEST
        if few:
            return largest, 0.0, None, other
        typical = np.sqrt((np.nan_to_num(needs[:, : drawn.size], posinf=0.0) ** 2).mean(1)).max()
        return largest, float(typical), float(np.sqrt((share[drawn] ** 2).mean())), other

    def element(self, at: int, bound: float, need: float) -> Element:
        ends = self.stored(
            np.array([self.exact[at] - bound, self.exact[at] + bound, self.exact[at]])
        )
        index = tuple(int(each) for each in np.unravel_index(at, self.operation.value.shape))
        low, high, nearest = (float(each) for each in ends)
        return Element(
            index, float(self.got[at]), float(self.exact[at]), nearest, low, high, need, bound
        )
