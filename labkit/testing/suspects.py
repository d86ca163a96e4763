"""Explanations of a difference that rounding does not explain.

Idea: each known fault is a hypothesis that is tried on the elements: another result, computed from the same operands.
One that fits the result much better than the operation itself is a suspect. It is a hint, not a proof.

Invariant: a hypothesis is named only if the differing elements that it was tried on fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from labkit.formats import BF16, FP16, TF32, Format, Rounding, round_to
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats
from labkit.testing.operations import Operation, Places

NEAREST = Rounding.NEAREST_EVEN
LONGEST = 2**14  # terms of sums that are computed with other accumulators
TRIED = 64  # elements that a hypothesis is tried on
TILES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST = 3  # suspects that are named
Stored = Callable[[Floats], Floats]


def suspects(
    got: Floats,
    exact: Floats,
    bound: Floats,
    operation: Operation,
    how: Arithmetic,
    stored: Stored,
    out: Format,
) -> tuple[str, ...]:
    """Return what would explain a result, the most likely first; flattened results and bounds."""
    shape = operation.value.shape
    with np.errstate(all="ignore"):
        wrong = np.flatnonzero(
            ~((stored(exact - bound) <= got) & (got <= stored(exact + bound))) & np.isfinite(exact)
        )
        wrong = wrong if wrong.size else np.flatnonzero((got != stored(exact)) & np.isfinite(exact))
        some = (
            wrong[np.linspace(0, wrong.size - 1, min(wrong.size, TRIED)).astype(int)]
            if wrong.size
            else wrong
        )
        if not some.size:
            return ("infinity or NaN where the operation has another value",)
        found = list(_of_values(got, exact, bound, wrong, stored, out, shape))
        if operation.pairs is not None:
            pairs = operation.pairs(some)
            found += _of_sums(got[some], bound[some], *pairs, stored, out)
            if not found and operation.terms <= LONGEST:
                found += _of_accumulators(got[some], *pairs, how, stored)
        if operation.others is not None:
            for name, values in operation.others().items():
                if (
                    _fits(
                        got[wrong],
                        np.broadcast_to(values, shape).reshape(-1)[wrong],
                        bound[wrong] * 2,
                        stored,
                    )
                    > 0.9
                ):
                    found.insert(0, name)
    return tuple(dict.fromkeys(found[:MOST]))


def _of_values(
    got: Floats,
    exact: Floats,
    bound: Floats,
    wrong: Places,
    stored: Stored,
    out: Format,
    shape: tuple[int, ...],
) -> Iterator[str]:
    """Yield explanations that follow from the values alone."""
    found, true = got[wrong], exact[wrong]
    if not np.isfinite(found).any():
        yield "infinity or NaN where the operation is finite: an overflow on the way, or a masked row"
        return
    if (np.abs(found) == out.max).all():
        yield "a result that saturates: if the kernel is meant to, pass overflow=Overflow.SATURATE"
    if (found == 0).all():
        small = (np.abs(true) < out.smallest_normal).all()
        yield (
            "subnormal results flushed to zero"
            if small
            else "elements that were not written, or masked: they are 0"
        )
        return
    everywhere = np.abs(exact) > 8 * (bound + out.smallest_normal)
    ratio = got[everywhere] / exact[everywhere]
    if ratio.size > 1 and np.isfinite(ratio).all():
        middle = float(np.median(ratio))
        if (
            abs(middle - 1) > 8 * out.epsilon
            and (np.abs(ratio / middle - 1) < 4 * out.epsilon).mean() > 0.95
        ):
            yield f"a scale: the result is {middle:.6g} times the exact one"
    cut = np.asarray(round_to(true, out, Rounding.TOWARD_ZERO), np.float64)
    if (found == cut).all():
        yield "rounding toward zero at the end"
    for middle_format in (BF16, FP16):
        twice = stored(np.asarray(round_to(true, middle_format), np.float64))
        if middle_format != out and (found == twice).all() and (twice != stored(true)).any():
            yield f"a double rounding: to {middle_format.name} first"
    if len(shape) > 1 and shape[-1] == shape[-2]:
        other = np.swapaxes(exact.reshape(shape), -1, -2).reshape(-1)[wrong]
        if np.allclose(
            found, other, rtol=4 * out.epsilon, atol=float(bound.max())
        ) and not np.array_equal(other, true):
            yield "the transposed result"
    for axis in range(len(shape)):
        for step in (1, -1):
            other = np.roll(exact.reshape(shape), step, axis).reshape(-1)
            if wrong.size > 4 and _fits(found, other[wrong], bound[wrong] * 2, stored) > 0.9:
                yield f"the result of the neighbour in dimension {axis} (an index off by {step})"


def _of_sums(
    got: Floats, bound: Floats, x: Floats, y: Floats | None, stored: Stored, out: Format
) -> Iterator[str]:
    """Yield explanations that other sums of the same terms give; x and y are [K, n]."""
    terms = x if y is None else x * y
    exact, count = terms.sum(0), len(terms)
    if not count:
        return
    for tile in (size for size in TILES if size < count):
        places = {"first": slice(0, tile), "last": slice(count - tile, count)}
        if count % tile and count % tile not in TILES:
            places[f"last {count % tile}, behind the last full tile of {tile},"] = slice(
                count - count % tile, count
            )
        for name, part in places.items():
            what = f"{name} {tile}" if name in ("first", "last") else name
            what = f"the {what} terms" if tile > 1 else f"the {name} term"
            if _fits(got, exact - terms[part].sum(0), bound, stored) > 0.9:
                yield (
                    f"{what} of each sum are missing"
                    if tile > 1
                    else f"{what} of each sum is missing"
                )
            elif _fits(got, exact + terms[part].sum(0), bound, stored) > 0.9:
                yield f"{what} of each sum counted twice"
    slack = bound + np.abs(got) * out.epsilon
    if (2 * count * slack < 0.1 * np.abs(terms).mean(0)).all() and (
        np.abs(got - exact + terms).min(0) <= slack
    ).all():
        yield "one term of each sum is missing"
    for format, rounding in (
        (TF32, NEAREST),
        (TF32, Rounding.TOWARD_ZERO),
        (FP16, NEAREST),
        (BF16, NEAREST),
    ):
        narrow = np.asarray(round_to(x, format, rounding), np.float64)
        narrow = narrow if y is None else narrow * round_to(y, format, rounding)
        if _fits(got, narrow.sum(0), bound, stored) > 0.9:
            yield f"operands that were {'rounded' if rounding is NEAREST else 'cut'} to {format.name} first"


def _of_accumulators(
    got: Floats, x: Floats, y: Floats | None, how: Arithmetic, stored: Stored
) -> Iterator[str]:
    """Yield the accumulator whose errors have the size of the result's, if there is one."""
    exact = (x if y is None else x * y).sum(0)
    own = np.sqrt(((got - exact) ** 2).mean())
    others = {
        f"sums in {format.name} instead of {how.format.name}": Arithmetic("", format)
        for format in (FP16, BF16)
        if format.precision < how.format.precision
    }
    if how.spec is None:
        zero = Arithmetic("", how.format, Rounding.TOWARD_ZERO)
        others[f"additions that round toward zero in {how.format.name}"] = zero
    ratios = {}
    for name, other in others.items():
        errors = [
            np.sqrt(((stored(found) - exact) ** 2).mean()) for found in orders.sums(x, y, other)
        ]
        ratios[name] = min(abs(np.log(error / own)) for error in errors)
    near = min(ratios, key=ratios.__getitem__, default="")
    if near and ratios[near] < np.log(2):
        yield f"{near}: the errors have this size"


def _fits(got: Floats, other: Floats, bound: Floats, stored: Stored) -> float:
    """Return the part of the elements that another exact result explains."""
    return float(((stored(other - bound) <= got) & (got <= stored(other + bound))).mean())
