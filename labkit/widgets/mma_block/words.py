"""What does one block of a Tensor Core do, in words?

Idea: pure functions turn a record of `explain` into a sentence.

Invariant: every number in a sentence is read from the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from labkit.formats import FP16, ulp
from labkit.gemm import BlockSum
from labkit.widgets.base.number_words import brief, power_of_two
from labkit.widgets.mma_block.presets import Terms


def told(value: float | Fraction, digits: int = 8) -> str:
    """Write a number so that powers of two show, any other with so many digits.

    >>> [told(x) for x in (2048.0, 2.0**-8, 1 + 2.0**-20, -1 + 2.0**-9, 0.1)]
    ['2048', '2^-8', '1 + 2^-20', '-1 + 2^-9', '0.1']
    """
    exact = Fraction(value)
    if exact.denominator == 1 and abs(exact) < 10**6:
        return str(exact)
    k = power_of_two(exact)
    if k is not None:
        return f"{'-' if exact < 0 else ''}2^{k}"
    whole = round(exact)
    k = power_of_two(exact - whole) if whole else None
    if k is not None and k < -4 and abs(whole) < 10**6:
        return f"{whole} {'+' if exact > whole else '-'} 2^{k}"
    return brief(exact, digits)


def exact_sum(terms: Terms) -> Fraction:
    """Return C and all products, added without rounding."""
    a, b, c = terms
    return Fraction(c) + sum((Fraction(x) * Fraction(y) for x, y in zip(a, b, strict=True)), Fraction(0))


def sentence(blocks: Sequence[BlockSum], index: int, terms: Terms, found: Mapping[str, float]) -> str:
    """Say what one of the blocks does to its terms, what D is at the end, and who gets something else.

    found   GPU -> its D of the same sum
    """
    last, many = blocks[-1], len(blocks)
    when = "" if many == 1 else f"After {'both' if many == 2 else f'all {many}'} blocks "
    end = when + _end(last, exact_sum(terms))
    return " ".join([_aligned(blocks, index), *_rounded(blocks[index]), end, *_others(last, found)])


def _aligned(blocks: Sequence[BlockSum], index: int) -> str:
    block = blocks[index]
    where = f", block {index + 1} of {len(blocks)}," if len(blocks) > 1 else ""
    products = _count(len(block.terms) - 1, "product")
    said = (
        f"The {block.spec.name}{where} aligns {products} and C to 2^{block.exponent} and "
        f"keeps {block.spec.fraction_bits} bits behind the point, down to 2^{block.unit_exponent}"
    )
    return f"{said}: {_cut(block)}."


def _cut(block: BlockSum) -> str:
    """Say how many terms lose how much.

    A term whose every bit is cut is gone.
    """
    lost = [term for term in block.terms if term.cut]
    gone = [term for term in lost if not term.kept]
    if not lost:
        return "nothing is cut off"
    if len(gone) == len(lost):
        return f"{_count(len(gone), 'term')} {'is' if len(gone) == 1 else 'are'} cut off altogether"
    bits = max(len(term.cut_bits) for term in lost)
    and_gone = f", and {len(gone)} all of theirs" if gone else ""
    part = len(lost) - len(gone)
    return f"{_count(part, 'term')} {'loses' if part == 1 else 'lose'} up to {_count(bits, 'bit')}{and_gone}"


def _rounded(block: BlockSum) -> list[str]:
    if not block.dropped_bits:
        return []
    bits = _count(len(block.dropped_bits), "more bit")
    if block.format == FP16:
        return [f"The sum has {bits} than FP16 holds and is rounded {'up' if block.rounded_up else 'down'}."]
    return [f"The sum has {bits} than FP32 holds; {'they are' if len(block.dropped_bits) > 1 else 'it is'} cut off."]


def _end(last: BlockSum, exact: Fraction) -> str:
    error = Fraction(last.result) - exact
    if error == 0:
        return f"D = {told(last.result)}, exactly."
    places = error / Fraction(float(ulp(last.result, last.format)))
    way = "below" if error < 0 else "above"
    if exact.denominator == 1 or "^" in told(exact):
        return f"D = {told(last.result)}, where the exact sum is {told(exact)}."
    return f"D = {told(last.result)}, {brief(abs(places), 2)} ulp {way} the exact sum."


def _others(last: BlockSum, found: Mapping[str, float]) -> list[str]:
    """Name the GPUs that end elsewhere, grouped by where."""
    elsewhere: dict[float, list[str]] = {}
    for gpu, value in found.items():
        if value != last.result:
            elsewhere.setdefault(value, []).append(gpu)
    said = [f"{_list(gpus)} {'gets' if len(gpus) == 1 else 'get'} {told(value)}" for value, gpus in elsewhere.items()]
    return [f"{'; '.join(said)}."] if said else ["All generations agree."]


def _list(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
