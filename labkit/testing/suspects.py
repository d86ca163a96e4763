"""Explanations of a difference that rounding does not explain.

Idea: each known fault is a hypothesis that is tried on the elements: another result, computed from
the same operands. One that fits the result much better than the operation itself is a suspect. It
is a hint, not a proof.

`rival` looks for one where the result is within the bound. Let t be the exact result, h that of a
fault, and s the size of a right kernel's error at an element, of its orders and its final rounding.
The part c of the fault in a result is the least squares fit of got - t by h - t, each divided by s.
It is near 0 for a right kernel and near 1 for the fault. With I = sum ((h - t) / s)^2, errors that
are independent change c by 1 / sqrt(I). A fault is named if

- sqrt(I) >= 16, and 3/4 <= c <= 5/4: a right kernel of independent errors is 12 standard deviations
  away from that;
- |c| <= 1/4 for each replay in another order, for errors that are not independent: c is three times
  what they reach;
- the rest, got - h, is at most twice as large as the error of the worst replay.

Elements with the same exact result may have the same error, so they count once.

Invariant: a hypothesis is named only if the differing elements that it was tried on fit it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.formats import BF16, FP16, FP64, TF32, Format, Rounding, round_to, ulp
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats
from labkit.testing.operations import Operation, Places

NEAREST = Rounding.NEAREST_EVEN
LONGEST = 2**14  # terms of sums that are computed with other accumulators
TRIED = 64  # elements that a hypothesis is tried on
TILES = (1, 2, 4, 8, 16, 32, 64, 128)
SLICES = (2, 3, 4, 5, 6, 8, 16)  # of split-K
MOST = 3  # faults with the same numbers that are named
FEWEST = 32  # elements at random places whose range says something
# terms of the sums of faults that are tried where a result is within the bound
WORK = 2**17
SIGMAS, PART = 16.0, 0.25  # of the module's text
BETTER = 4.0  # times nearer than the exact result is a fault that is named
Stored = Callable[[Floats], Floats]
Candidates = Iterator[tuple[str, Floats]]  # names, and the results that they predict


def suspects(
    got: Floats,
    exact: Floats,
    bound: Floats,
    operation: Operation,
    how: Arithmetic,
    stored: Stored,
    out: Format,
) -> tuple[str, ...]:
    """Return what would explain a result, the most likely first; flattened results and bounds.

    Faults that predict a result exclude each other, since each explains all of it: only the nearest
    one is named. Those that predict the same numbers are alternatives in one clue. Where none is
    near, the errors' size and place are compared.
    """
    shape = operation.value.shape
    with np.errstate(all="ignore"):
        wrong = np.flatnonzero(
            ~((stored(exact - bound) <= got) & (got <= stored(exact + bound))) & np.isfinite(exact)
        )
        if not wrong.size:
            wrong = np.flatnonzero((got != stored(exact)) & np.isfinite(exact))
        if not wrong.size:
            return ("infinity or NaN where the operation has another value",)
        if not np.isfinite(got[wrong]).any():
            return (
                (
                    "infinity or NaN where the operation is finite: an overflow on the way, or a "
                    "masked row"
                ),
            )
        some = wrong[np.linspace(0, wrong.size - 1, min(wrong.size, TRIED)).astype(int)]
        candidates: list[tuple[str, Floats]] = []
        if operation.others is not None:
            for name, values in operation.others(some).items():
                if _fits(got[some], values, bound[some] * 2, stored) > 0.9:
                    candidates.append((name, values))
        candidates += _of_values(got, exact, bound, wrong, some, stored, out, shape)
        if operation.pairs is not None:
            candidates += _of_sums(got[some], bound[some], some, operation, stored, out, how)
        own = _rms(got[some] - stored(exact[some]))
        away = [_rms(got[some] - stored(values)) for _, values in candidates]
        near = [i for i in np.argsort(away, kind="stable") if away[i] * BETTER <= own]
        if near:
            best = stored(candidates[near[0]][1])
            same = [
                candidates[i][0] for i in near if np.array_equal(stored(candidates[i][1]), best)
            ]
            names = list(dict.fromkeys(same))[:MOST]
            return (", or ".join(names) + " (the same numbers here)",) if names[1:] else (names[0],)
        part = _part(wrong, shape)
        if part is not None:
            axis, first, end = part
            where = (
                f"a fault in a part: only dimension {axis}, index {first} to {end - 1}, is wrong"
            )
            return (*_before(got, exact, shape, part), where)
        usable = np.flatnonzero(np.isfinite(exact) & np.isfinite(got))
        drawn = np.random.default_rng(0).choice(usable, min(usable.size, 4 * TRIED), replace=False)
        return tuple(_of_noise(got[drawn], exact[drawn], drawn, operation, how, stored))


def _of_values(
    got: Floats,
    exact: Floats,
    bound: Floats,
    wrong: Places,
    some: Places,
    stored: Stored,
    out: Format,
    shape: tuple[int, ...],
) -> Candidates:
    """Yield explanations from the values alone, with what they predict at some places."""
    found, true = got[wrong], exact[wrong]
    if (np.abs(found) == out.max).all():
        name = "a result that saturates: if the kernel is meant to, pass overflow=Overflow.SATURATE"
        yield name, got[some]
    if (found == 0).all():
        small = (np.abs(true) < out.smallest_normal).all()
        name = "elements that were not written, or masked: they are 0"
        yield ("subnormal results flushed to zero" if small else name), got[some]
        return
    everywhere = np.abs(exact) > 8 * (bound + out.smallest_normal)
    ratio = got[everywhere] / exact[everywhere]
    if ratio.size > 1 and np.isfinite(ratio).all():
        middle = float(np.median(ratio))
        slack = 2 * bound * abs(middle) + 4 * out.epsilon * np.abs(got)
        off = np.abs(got - middle * exact)[everywhere]
        # errors of the additions might look like a small scale
        clear = slack < 0.1 * abs(middle - 1) * np.abs(exact)
        if (
            abs(middle - 1) > 8 * out.epsilon
            and (off <= slack[everywhere]).mean() > 0.95
            and clear[everywhere].mean() > 0.5
        ):
            name = f"a scale: the result is {middle:.6g} times the exact one"
            yield name, middle * exact[some]
    offset = float(np.median(found - true))
    # errors of the additions might look like a small offset
    clear_offset = (10 * bound[wrong] < abs(offset)).mean() > 0.5
    if (
        clear_offset
        and wrong.size > 4
        and _fits(found, true + offset, bound[wrong] * 2, stored) > 0.9
    ):
        yield f"an offset: {offset:.3g} was added to the exact result", exact[some] + offset
    # Of all elements: a fault that makes only the wrong ones smaller is not rounding toward zero.
    known = np.isfinite(exact) & np.isfinite(got)
    cut = np.asarray(round_to(exact[known], out, Rounding.TOWARD_ZERO), np.float64)
    if (found == _at(cut, known, wrong)).all() and (got[known] == cut).mean() > 0.95:
        yield "rounding toward zero at the end", got[some]
    for middle_format in (BF16, FP16):
        twice = stored(np.asarray(round_to(exact[known], middle_format), np.float64))
        of_wrong = _at(twice, known, wrong)
        if (
            middle_format != out
            and (found == of_wrong).all()
            and (got[known] == twice).mean() > 0.95
            and (of_wrong != stored(true)).any()
        ):
            yield f"a double rounding: to {middle_format.name} first", got[some]
    if len(shape) > 1 and shape[-1] == shape[-2]:
        other = np.swapaxes(exact.reshape(shape), -1, -2).reshape(-1)
        if np.allclose(
            found, other[wrong], rtol=4 * out.epsilon, atol=float(bound.max())
        ) and not np.array_equal(other[wrong], true):
            yield "the transposed result", other[some]
    for axis in range(len(shape)):
        for step in (1, -1):
            other = np.roll(exact.reshape(shape), step, axis).reshape(-1)
            if wrong.size > 4 and _fits(found, other[wrong], bound[wrong] * 2, stored) > 0.9:
                name = f"the result of the neighbour in dimension {axis} (an index off by {step})"
                yield name, other[some]


def _of_sums(
    got: Floats,
    bound: Floats,
    places: Places,
    operation: Operation,
    stored: Stored,
    out: Format,
    how: Arithmetic,
) -> Candidates:
    """Yield explanations that other sums of the same terms give, at some places."""
    assert operation.pairs is not None
    x, y = operation.pairs(places)
    terms = x if y is None else x * y
    if not len(terms):
        return
    found = False
    for name, values in (*other_sums(x, y, operation.formats), *_narrow_parts(terms, how)):
        if _fits(got, values, bound, stored) > 0.9:
            found = True
            yield name, values
    exact = terms.sum(0)
    count = len(terms)
    slack = bound + np.abs(got) * out.epsilon
    away = np.abs(got - exact + terms)
    if (
        not found
        and (2 * count * slack < 0.1 * np.abs(terms).mean(0)).all()
        and (away.min(0) <= slack).all()
    ):
        lost = np.take_along_axis(terms, away.argmin(0)[None], 0)[0]
        yield "one term of each sum is missing", exact - lost


def other_sums(x: Floats, y: Floats | None, formats: tuple[Format, ...]) -> Candidates:
    """Yield sums of known faults: terms missing or counted twice, operands rounded.

    Args:
        x: operand [K, n].
        y: operand [K, n]; None for a sum of the numbers x.
        formats: formats of the operands.
    """
    terms = x if y is None else x * y
    exact = terms.sum(0)
    count = len(terms)
    for tile in (size for size in TILES if size < count):
        places = {"first": slice(0, tile), "last": slice(count - tile, count)}
        if count % tile and count % tile not in TILES:
            places[f"last {count % tile}, behind the last full tile of {tile},"] = slice(
                count - count % tile, count
            )
        for name, part in places.items():
            what = f"{name} {tile}" if name in ("first", "last") else name
            what = f"the {what} terms" if tile > 1 else f"the {name} term"
            are = "are" if tile > 1 else "is"
            more = terms[part].sum(0)
            yield f"{what} of each sum {are} missing", exact - more
            yield f"{what} of each sum counted twice", exact + more
    for format, rounding in (
        (TF32, NEAREST),
        (TF32, Rounding.TOWARD_ZERO),
        (FP16, NEAREST),
        (BF16, NEAREST),
    ):
        if all(each.precision <= format.precision and each.emin >= format.emin for each in formats):
            continue
        left = np.asarray(round_to(x, format, rounding), np.float64)
        right = y if y is None else np.asarray(round_to(y, format, rounding), np.float64)
        how = "rounded" if rounding is NEAREST else "cut"
        products = left if right is None else left * right
        yield f"operands that were {how} to {format.name} first", products.sum(0)


def _narrow_parts(terms: Floats, how: Arithmetic) -> Candidates:
    """Yield sums whose partial sums, of slices or tiles, are stored in a narrower format."""
    count = len(terms)
    sizes = {-(-count // parts): f"of {parts} slices" for parts in SLICES if parts < count}
    sizes |= {tile: f"of {tile} terms" for tile in TILES if 8 <= tile < count}
    for format in (FP16, BF16):
        if format.precision >= how.format.precision:
            continue
        for size, name in sizes.items():
            parts = np.add.reduceat(terms, range(0, count, size), axis=0)
            rounded = np.asarray(round_to(parts, format), np.float64)
            total = np.zeros(parts.shape[1:])
            for part in parts:
                total = np.asarray(round_to(total + part, format), np.float64)
            yield f"partial sums {name} that are stored in {format.name}", rounded.sum(0)
            yield f"partial sums {name} that are added up in {format.name}", total


def _of_noise(
    got: Floats,
    exact: Floats,
    places: Places,
    operation: Operation,
    how: Arithmetic,
    stored: Stored,
) -> Iterator[str]:
    """Yield the fault whose errors have the size of the result's, if there is one."""
    found: dict[str, Floats] = {}
    if operation.pairs is not None and operation.terms <= LONGEST:
        x, y = operation.pairs(places)
        others = {
            f"sums in {format.name} instead of {how.format.name}": Arithmetic("", format)
            for format in (FP16, BF16)
            if format.precision < how.format.precision
        }
        if how.spec is None:
            zero = Arithmetic("", how.format, Rounding.TOWARD_ZERO)
            others[f"additions that round toward zero in {how.format.name}"] = zero
        found = {name: np.stack(list(orders.sums(x, y, other))) for name, other in others.items()}
    if operation.noisy is not None:
        found |= operation.noisy(how, places)
    own = _rms(got - exact)
    differing = float((got != stored(exact)).mean())
    ratios: dict[str, float] = {}
    for name, replays in found.items():
        for replay in map(stored, replays):
            size = float(abs(np.log(_rms(replay - exact) / own)))
            # errors of additions are in all elements, not in a few
            part = float((replay != stored(exact)).mean())
            if part < 2 * differing and np.isfinite(size):
                ratios[name] = min(size, ratios.get(name, np.inf))
    near = min(ratios, key=ratios.__getitem__, default="")
    if near and ratios[near] < np.log(2):
        yield f"{near}: the errors have this size"


def _part(wrong: Places, shape: tuple[int, ...]) -> tuple[int, int, int] | None:
    """Return the part of a dimension that contains all wrong elements, or None for all of it.

    `FEWEST` elements or more at random places are all within three quarters of a dimension with a
    probability below 1e-3. Each index of the range has one: a row with a wrong variance is not a
    part.
    """
    if wrong.size < FEWEST:
        return None
    for axis, index in enumerate(np.unravel_index(wrong, shape)):
        first = int(index.min())
        end = int(index.max()) + 1
        filled = len(np.unique(index)) == end - first
        if filled and 2 <= end - first <= 0.75 * shape[axis]:
            return axis, first, end
    return None


def _before(
    got: Floats, exact: Floats, shape: tuple[int, ...], part: tuple[int, int, int]
) -> Iterator[str]:
    """Yield a remark if a part of a result holds a share of the part before it."""
    axis, first, end = part
    width = end - first
    if first < width:
        return
    true, found = (np.moveaxis(each.reshape(shape), axis, 0) for each in (exact, got))
    error = (found[first:end] - true[first:end]).reshape(-1)
    old = true[first - width : first].reshape(-1)
    share = float((error * old).sum() / (old * old).sum())
    if _rms(error - share * old) < 0.5 * _rms(error):
        yield (
            f"{share:.3g} times the part before it was added: an accumulator that was not cleared, "
            f"from index {first} of dimension {axis} on"
        )


def _at(values: Floats, known: NDArray[np.bool_], places: Places) -> Floats:
    """Return at some places what was computed for the known ones alone."""
    whole = np.full(known.shape, np.nan)
    whole[known] = values
    return whole[places]


def _rms(values: Floats) -> float:
    return float(np.sqrt((values * values).mean())) if values.size else 0.0


@dataclass(frozen=True)
class Rival:
    """A known fault that fits a result better than the exact result does.

    Attributes:
        name: the fault.
        part: share of the fault in the result: 0 in a right one, 1 if it is the fault.
        reached: the largest part in a replay of the operation in other orders.
        times: how many times nearer than the exact result it is, in root mean square.
    """

    name: str
    part: float
    reached: float
    times: float

    def __str__(self) -> str:
        return (
            f"{self.name}; it fits {self.times:.3g} times better than the exact result: its part "
            f"in the difference is {self.part:.3g}, and at most {self.reached:.1g} in other orders"
        )


def rival(
    got: Floats,
    exact: Floats,
    replays: Floats,
    places: Places,
    operation: Operation,
    out: Format,
) -> Rival | None:
    """Return the known fault that fits a result far better than rounding lets it, if there is one.

    Args:
        got: the result, at some places that were drawn at random.
        exact: the exact result there.
        replays: results of right kernels there, as they are stored, in several orders [orders, n].
        places: the places in the flattened result.
        operation: what the kernel was to compute.
        out: format of the output.
    """
    with np.errstate(all="ignore"):
        _, first = np.unique(exact, return_index=True)
        known = np.isfinite(exact[first]) & np.isfinite(got[first])
        first = first[known & np.isfinite(replays[:, first]).all(0)]
        if first.size < FEWEST:
            return None
        got = got[first]
        exact = exact[first]
        replays = replays[:, first]
        places = places[first]
        errors = replays - exact
        of_store = ulp(exact, out) ** 2 / 12 if out != FP64 else (exact * 2.0**-52) ** 2
        size = np.sqrt((errors**2).mean(0) + of_store)
        size = np.where(size > 0, size, np.inf)
        found = []
        for name, at, values in _rival_results(operation, places):
            away = (values - exact[at]) / size[at]
            off = (got[at] - exact[at]) / size[at]
            information = float((away * away).sum())
            if not np.isfinite(information) or information < SIGMAS**2:
                continue
            part = float((off * away).sum() / information)
            if abs(part - 1) > PART:
                continue
            others = errors[:, at] / size[at]
            reached = float(np.abs(others @ away / information).max())
            left = _rms(off - away)
            if reached <= PART and left <= 2 * max(map(_rms, others)):
                times = _rms(got[at] - exact[at]) / _rms(got[at] - values)
                found.append((left, Rival(name, part, reached, times)))
        return min(found, key=lambda each: each[0], default=(0.0, None))[1]


def _rival_results(operation: Operation, places: Places) -> Iterator[tuple[str, slice, Floats]]:
    """Yield names of faults, which of the places they are computed at, and their results."""
    if operation.others is not None:
        for name, values in operation.others(places).items():
            yield name, slice(None), values
    few = min(len(places), WORK // max(1, operation.terms))
    if operation.pairs is not None and few >= FEWEST:
        for name, values in other_sums(*operation.pairs(places[:few]), operation.formats):
            yield name, slice(0, few), values


def _fits(got: Floats, other: Floats, bound: Floats, stored: Stored) -> float:
    """Return the part of the elements that another exact result explains."""
    return float(((stored(other - bound) <= got) & (got <= stored(other + bound))).mean())
