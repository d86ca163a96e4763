"""Sums in the orders that real kernels use, for the error that is achievable.

Idea: a rigorous bound is seldom reached, since roundings cancel: relative to the sum of magnitudes,
errors grow like the square root of K at most, and the bound like K. What a right kernel does reach
is found by trying: the same terms are added one by one, backwards, in lanes as threads do, in
slices as split-K does, and along a tree.

Invariant: each order rounds where its kernel would and nowhere else; Tensor Cores are
`labkit.gemm.emulate`, bit for bit. (For BF16 the rounding of a sum is torch's, from FP32.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from labkit.formats import BF16, FP16, FP32, FP64, Rounding, round_to
from labkit.gemm import emulate
from labkit.gemm.blocks import to_half
from labkit.testing.bound import Arithmetic, Floats

# Additions in the longest chain that is emulated.
LONGEST = 2**17


@dataclass(frozen=True)
class Order:
    """An order: each lane adds its terms one by one, then the lanes are added pairwise.

    Attributes:
        lanes: number of lanes; None: as many as terms, so that all are added along a tree.
        slices: whether a lane has neighbouring terms; otherwise neighbours are in different lanes.
        backwards: whether the last term is the first one.
    """

    lanes: int | None
    slices: bool = False
    backwards: bool = False

    def lanes_of(self, terms: int) -> int:
        """Return the number of lanes for so many terms, at least 1."""
        if self.lanes is None:
            return max(1, terms)
        return self.lanes


ORDERS: dict[str, Order] = {
    "one by one": Order(lanes=1),
    "one by one, backwards": Order(lanes=1, backwards=True),
    "4 slices": Order(lanes=4, slices=True),
    "8 lanes": Order(lanes=8),
    "32 lanes": Order(lanes=32),
    "pairwise": Order(lanes=None),
}


def sums(x: Floats, y: Floats | None, how: Arithmetic, only: str = "") -> Iterator[Floats]:
    """Yield the sum of x * y over the first dimension, in each order.

    The sums are in FP64, before the final rounding.

    Args:
        x: operand [K, n].
        y: operand [K, n]; None for a sum of the numbers x.
        how: the arithmetic of the additions.
        only: name of the one order to yield.

    >>> ones = np.ones((4096, 1))
    >>> [float(found[0]) for found in sums(ones, ones, Arithmetic("FP16", FP16))]
    [2048.0, 2048.0, 4096.0, 4096.0, 4096.0, 4096.0]
    """
    # Operands are rounded to nearest by software, or cut by hardware.
    if how.operands is not None:
        for rounding in (Rounding.NEAREST_EVEN, Rounding.TOWARD_ZERO):
            left = np.asarray(round_to(x, how.operands, rounding), np.float64)
            right = (
                None if y is None else np.asarray(round_to(y, how.operands, rounding), np.float64)
            )
            yield from sums(left, right, replace(how, operands=None), only)
        return
    with np.errstate(over="ignore", invalid="ignore"):
        if how.spec is not None and y is not None:
            yield from _blocks(x, y, how)
            return
        rounded = rounding_of(how)
        terms = rounded(x if y is None else x * y)
        for name in names_of_orders(len(terms)):
            if only in ("", name):
                yield np.asarray(_sum_in_order(terms, ORDERS[name], rounded), np.float64)


def names_of_orders(terms: int) -> list[str]:
    """Return the names of the orders in which sums of so many terms are emulated.

    >>> names_of_orders(2**18)
    ['4 slices', '8 lanes', '32 lanes', 'pairwise']
    """
    names = []
    for name, order in ORDERS.items():
        longest_chain = math.ceil(terms / order.lanes_of(terms))
        if longest_chain <= LONGEST:
            names.append(name)
    return names


def rounding_of(how: Arithmetic) -> Callable[[Floats], Floats]:
    """Return the function that rounds a sum to the accumulator's format.

    FP32 sums stay in float32, which is faster.
    """
    if how.rounding is not Rounding.NEAREST_EVEN:
        return lambda values: np.asarray(round_to(values, how.format, how.rounding), np.float64)
    if how.format == FP16:
        return to_half
    if how.format == BF16:
        return lambda values: np.asarray(
            torch.from_numpy(values).float().bfloat16().double(), np.float64
        )
    if how.format not in (FP32, FP64):
        raise ValueError(
            f"expected an accumulator in FP16, BF16, FP32 or FP64, got {how.format.name}"
        )
    kind: type = np.float32 if how.format == FP32 else np.float64
    return lambda values: values.astype(kind, copy=False)


def _sum_in_order(terms: Floats, order: Order, rounded: Callable[[Floats], Floats]) -> Floats:
    """Return the sum over the first dimension, with every partial sum rounded."""
    if order.backwards:
        terms = terms[::-1]
    lanes = order.lanes_of(len(terms))
    # zeros fill the last lanes
    terms = np.concatenate([terms, np.zeros((-len(terms) % lanes, *terms.shape[1:]), terms.dtype)])
    # each step adds one term to every lane
    if order.slices:
        steps = terms.reshape(lanes, -1, *terms.shape[1:]).swapaxes(0, 1)
    else:
        steps = terms.reshape(-1, lanes, *terms.shape[1:])
    total = np.zeros(steps.shape[1:], terms.dtype)
    for step in steps:
        total = rounded(total + step)
    # an odd last lane is kept for the next round
    while len(total) > 1:
        pairs = rounded(total[0 : len(total) // 2 * 2 : 2] + total[1::2])
        total = np.concatenate([pairs, total[len(pairs) * 2 :]])
    return np.asarray(total[0])


def _blocks(x: Floats, y: Floats, how: Arithmetic) -> Iterator[Floats]:
    """Yield Tensor Core sums in four orders.

    They are K as it is, backwards, interleaved, and in 4 slices that FP32 adds up.
    """
    assert how.spec is not None
    a = x.T[:, None, :].astype(np.float32)
    b = y.T[:, :, None].astype(np.float32)
    places = np.arange(len(x))
    for order in (places, places[::-1], np.argsort(places % 4, kind="stable")):
        yield emulate(a[:, :, order], b[:, order], None, how.spec)[:, 0, 0].astype(np.float64)
    parts = [
        emulate(a[:, :, part], b[:, part], None, how.spec)[:, 0, 0]
        for part in np.array_split(places, 4)
    ]
    # the partial sums are float32, in which numpy adds them
    total = _sum_in_order(np.stack(parts), ORDERS["one by one"], lambda sums: sums)
    yield total.astype(np.float64)
