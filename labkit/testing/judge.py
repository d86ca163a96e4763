"""How a result of a kernel is judged; `comparison` has the idea, `verdict` the answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit.findings import counted
from labkit.testing.bound import Floats
from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Places
from labkit.testing.suspects import Rival, rival, suspects
from labkit.testing.verdict import Element, Verdict, VerdictKind

# The largest and smallest number of elements that are replayed, if there are so many.
MOST_ELEMENTS = 2**12
LEAST_ELEMENTS = 8
# The largest number of terms that are replayed in one order.
MOST_TERMS = 2**20
# The number of terms of the longest sum that is replayed.
LONGEST_SUM = 10**6
# A share this many times the largest share of all replays is too large.
TIMES_LARGEST = 4.0
# Shares whose root mean square is this many times that of the worst replay are too large.
TIMES_TYPICAL = 2.0
# The smallest number of elements whose root mean square is evidence.
FEWEST = 32


def judge(result: KernelResult) -> Verdict:
    """Return the verdict on a result."""
    verdict = Verdict(
        VerdictKind.EQUAL,
        operation=(
            f"{result.operation.name}, K={result.operation.terms:,}, accumulator "
            f"{result.arithmetic.name}"
        ),
        out=result.out,
        elements=result.got.size,
        differing=0,
    )
    if not result.got.size:
        return replace(verdict, unjudged=("nothing: the result has no elements",))
    nearest = result.stored(result.exact)
    same = (result.got == nearest) | (np.isnan(result.got) & np.isnan(nearest))
    bound = _bound(result)
    verdict = replace(
        verdict,
        differing=int((~same).sum()),
        zeros=result.wrong_zero_signs(nearest),
        unjudged=_without_bound(bound),
    )
    if not verdict.differing:
        return verdict
    return _Judge(result, bound, same).judge(verdict)


def _bound(result: KernelResult) -> Floats:
    """Return the error bound of each element, 0 where the exact result is infinite or NaN."""
    bound = result.operation.error(result.arithmetic).reshape(-1)
    return np.where(np.isfinite(result.exact), bound, 0.0)


def _without_bound(bound: Floats) -> tuple[str, ...]:
    count = int(np.isinf(bound).sum())
    if not count:
        return ()
    return (
        f"{counted(count, 'element')} whose bound is infinite: the accumulator may overflow, "
        "or the sum is too long for it",
    )


@dataclass(frozen=True)
class _Replay:
    """What replays of an operation in several orders reach.

    Attributes:
        largest: the largest share of all replays.
        typical: the root mean square of the shares of the result, and that of the worst replay;
            None for too few elements.
        rival: the known fault that fits the result better, if there is one.
    """

    largest: float
    typical: tuple[float, float] | None
    rival: Rival | None


class _Judge:
    """A result with differing elements, and how much of the bound each of them needs."""

    def __init__(self, result: KernelResult, bound: Floats, same: np.ndarray) -> None:
        self.result = result
        self.bound = bound
        self.differs = ~same
        unbounded = np.isinf(bound)
        self.judged = np.isfinite(result.exact) & ~unbounded
        needs = result.needs(result.got, result.exact)
        self.needs = np.where(same | unbounded, 0.0, needs)
        self.outside = result.outside(np.flatnonzero(self.differs & ~unbounded), bound)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(self.needs == 0, 0.0, self.needs / bound)
        self.shares = np.where(unbounded, 0.0, shares)

    def judge(self, verdict: Verdict) -> Verdict:
        """Return the verdict, completed from one that counts what differs."""
        worst = int(np.argmax(self.shares))
        if self.outside.size:
            worst = int(self.outside[np.argmax(self.shares[self.outside])])
            verdict = replace(verdict, suspects=suspects(self.result, self.bound))
            return self._with_worst(verdict, VerdictKind.IMPOSSIBLE, worst)
        if self.result.operation.terms > LONGEST_SUM:
            remark = (
                f"whether an order reaches it: sums of more than {LONGEST_SUM:,} terms are not "
                "replayed"
            )
            verdict = replace(verdict, unjudged=(*verdict.unjudged, remark))
            return self._with_worst(verdict, VerdictKind.ROUNDING, worst)
        # differing infinities and NaN were found outside before this
        if not self.judged.any():
            worst = int(np.argmax(self.differs))
            return self._with_worst(verdict, VerdictKind.UNJUDGED, worst)

        replayed = self._replay()
        verdict = replace(verdict, reached=replayed.largest, typical=replayed.typical)
        if self._is_larger(self.shares[worst], replayed):
            # what is larger than replays must be explained within their share of the bound
            reachable = min(1.0, TIMES_LARGEST * replayed.largest)
            verdict = replace(verdict, suspects=suspects(self.result, self.bound * reachable))
            return self._with_worst(verdict, VerdictKind.LARGER, worst)
        if replayed.rival is not None:
            verdict = replace(verdict, rival=replayed.rival, suspects=(replayed.rival.name,))
            return self._with_worst(verdict, VerdictKind.SUSPECTED, worst)
        return self._with_worst(verdict, VerdictKind.ROUNDING, worst)

    @staticmethod
    def _is_larger(share: float, replayed: _Replay) -> bool:
        """Return whether errors are several times larger than any order reaches."""
        if share > TIMES_LARGEST * replayed.largest:
            return True
        if replayed.typical is None:
            return False
        of_result, of_replays = replayed.typical
        return of_result > TIMES_TYPICAL * of_replays

    def _with_worst(self, verdict: Verdict, kind: VerdictKind, place: int) -> Verdict:
        """Return the verdict of this kind, with the element that decides it."""
        result = self.result
        bound = float(self.bound[place])
        exact = result.exact[place]
        low, high, nearest = result.stored(np.array([exact - bound, exact + bound, exact]))
        index = np.unravel_index(place, result.operation.value.shape)
        worst = Element(
            index=tuple(int(each) for each in index),
            got=float(result.got[place]),
            exact=float(exact),
            nearest=float(nearest),
            low=float(low),
            high=float(high),
            need=float(self.needs[place]),
            bound=bound,
        )
        return replace(verdict, kind=kind, worst=worst, share=float(self.shares[place]))

    def _replay(self) -> _Replay:
        """Replay the operation in several orders, at some elements."""
        drawn, near_bound = self._chosen()
        result = self.result
        places = np.concatenate([drawn, near_bound])
        exact = result.exact[places]
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            replays = result.operation.replay(result.arithmetic, places)
            bound = np.where(self.bound[places] > 0, self.bound[places], np.inf)
            shares = np.nan_to_num(np.abs(replays - exact) / bound, nan=0.0, posinf=0.0)
            stored = result.stored(replays)
            shares_after_rounding = result.needs(stored, exact) / bound
        of_fp64 = (result.operation.terms + 4) * 2.0**-52
        largest = max(float(shares.max(initial=0.0)), of_fp64)

        # the elements near the bound were chosen, so they are not a sample: the random half is one
        count = drawn.size
        right = np.concatenate([stored[:, :count], result.stored(exact[:count])[None]])
        fault = rival(result.got[drawn], exact[:count], right, drawn, result.operation, result.out)
        typical = None
        if count >= FEWEST and np.count_nonzero(self.shares[drawn]) >= FEWEST:
            of_replays = np.nan_to_num(shares_after_rounding[:, :count], posinf=0.0)
            typical = (
                float(np.sqrt((self.shares[drawn] ** 2).mean())),
                float(np.sqrt((of_replays**2).mean(1)).max()),
            )
        return _Replay(largest, typical, fault)

    def _chosen(self) -> tuple[Places, Places]:
        """Return places to replay: one half drawn at random, the other nearest to the bound."""
        usable = np.flatnonzero(self.judged)
        count = max(LEAST_ELEMENTS, MOST_TERMS // max(1, self.result.operation.terms))
        count = min(MOST_ELEMENTS, count, usable.size)
        drawn = np.random.default_rng(0).choice(usable, (count + 1) // 2, replace=False)
        first = usable.size - (count - drawn.size)
        order = np.argpartition(self.shares[usable], min(first, usable.size - 1))
        return drawn, usable[order[first:]]
