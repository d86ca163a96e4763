"""Faults of sums: terms missing or counted twice, operands or partial sums that were rounded."""

from __future__ import annotations

import numpy as np

from labkit.formats import BF16, FP16, TF32, Format, Rounding, round_to
from labkit.testing.bound import Arithmetic, Floats
from labkit.testing.suspects.evidence import Candidates, Evidence

# Terms that one pass of a kernel adds.
TILES = (1, 2, 4, 8, 16, 32, 64, 128)
# The smallest tile whose sums are stored.
SMALLEST_TILE = 8
# The slices of split-K.
SLICES = (2, 3, 4, 5, 6, 8, 16)
OPERAND_ROUNDINGS = (
    (TF32, Rounding.NEAREST_EVEN),
    (TF32, Rounding.TOWARD_ZERO),
    (FP16, Rounding.NEAREST_EVEN),
    (BF16, Rounding.NEAREST_EVEN),
)


def faults_of_sums(evidence: Evidence) -> Candidates:
    """Yield the faults of sums that the tried elements fit."""
    operation = evidence.result.operation
    if operation.pairs is None:
        return
    x, y = operation.pairs(evidence.tried)
    terms = x if y is None else x * y
    if not len(terms):
        return
    found = False
    candidates = [
        *other_sums(x, y, operation.formats),
        *_narrow_partial_sums(terms, evidence.result.arithmetic),
    ]
    for name, values in candidates:
        # another sum of the same terms is exact, so the kernel is wrong by one bound at most
        if evidence.explains(values, evidence.tried, bounds=1.0):
            found = True
            yield name, values
    if not found:
        yield from _one_missing_term(evidence, terms)


def other_sums(x: Floats, y: Floats | None, formats: tuple[Format, ...]) -> Candidates:
    """Yield the sums of known faults: terms missing or counted twice, operands rounded.

    Args:
        x: operand [K, n].
        y: operand [K, n]; None for a sum of the numbers x.
        formats: formats of the operands.
    """
    yield from _missing_or_repeated(x if y is None else x * y)
    yield from _rounded_operands(x, y, formats)


def _missing_or_repeated(terms: Floats) -> Candidates:
    """Yield sums without the terms of one tile at an end, and with them twice."""
    exact = terms.sum(0)
    for tile in TILES:
        if tile >= len(terms):
            break
        for name, part in _tiles_at_the_ends(tile, len(terms)).items():
            verb = "are" if tile > 1 else "is"
            at_end = terms[part].sum(0)
            yield f"{name} of each sum {verb} missing", exact - at_end
            yield f"{name} of each sum counted twice", exact + at_end


def _tiles_at_the_ends(tile: int, count: int) -> dict[str, slice]:
    """Return which of `count` terms the first tile and the last tiles hold, by name."""
    if tile == 1:
        return {"the first term": slice(0, 1), "the last term": slice(count - 1, count)}
    tiles = {
        f"the first {tile} terms": slice(0, tile),
        f"the last {tile} terms": slice(count - tile, count),
    }
    # a kernel that handles full tiles only forgets the terms behind them
    rest = count % tile
    if rest and rest not in TILES:
        name = f"the last {rest}, behind the last full tile of {tile}, terms"
        tiles[name] = slice(count - rest, count)
    return tiles


def _rounded_operands(x: Floats, y: Floats | None, formats: tuple[Format, ...]) -> Candidates:
    """Yield the sums of operands that were rounded to a narrower format first."""
    for format, rounding in OPERAND_ROUNDINGS:
        if all(each.precision <= format.precision and each.emin >= format.emin for each in formats):
            # the operands are numbers of this format already
            continue
        products = np.asarray(round_to(x, format, rounding), np.float64)
        if y is not None:
            products = products * np.asarray(round_to(y, format, rounding), np.float64)
        verb = "rounded" if rounding is Rounding.NEAREST_EVEN else "cut"
        yield f"operands that were {verb} to {format.name} first", products.sum(0)


def _narrow_partial_sums(terms: Floats, how: Arithmetic) -> Candidates:
    """Yield sums whose partial sums, of slices or tiles, are stored in a narrower format."""
    count = len(terms)
    lengths = {-(-count // slices): f"of {slices} slices" for slices in SLICES if slices < count}
    for tile in TILES:
        if SMALLEST_TILE <= tile < count:
            lengths[tile] = f"of {tile} terms"
    for format in (FP16, BF16):
        if format.precision >= how.format.precision:
            continue
        for length, name in lengths.items():
            partial_sums = np.add.reduceat(terms, range(0, count, length), axis=0)
            stored = np.asarray(round_to(partial_sums, format), np.float64)
            yield f"partial sums {name} that are stored in {format.name}", stored.sum(0)
            total = np.zeros(partial_sums.shape[1:])
            for partial_sum in partial_sums:
                total = np.asarray(round_to(total + partial_sum, format), np.float64)
            yield f"partial sums {name} that are added up in {format.name}", total


def _one_missing_term(evidence: Evidence, terms: Floats) -> Candidates:
    """Yield sums without the one term whose absence explains each tried element best."""
    got = evidence.result.got[evidence.tried]
    exact = terms.sum(0)
    allowed = evidence.bound[evidence.tried] + np.abs(got) * evidence.result.out.epsilon
    distances = np.abs(got - exact + terms)
    # among many small terms, one would always fit by chance
    is_clear = (2 * len(terms) * allowed < 0.1 * np.abs(terms).mean(0)).all()
    if is_clear and (distances.min(0) <= allowed).all():
        missing = np.take_along_axis(terms, distances.argmin(0)[None], 0)[0]
        yield "one term of each sum is missing", exact - missing
