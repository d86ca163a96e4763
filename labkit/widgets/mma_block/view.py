"""Where does each bit of a Tensor Core's sum stand?

Idea: every column is a power of two, so a term's bits stand where alignment has put them: kept ones up to the edge, cut
ones behind it. `explain` computes them; here they are only laid out as rows of characters for the browser.

Invariant: a row's characters, read from left to right, are the bits of `explain`'s record, and all rows have the same
columns.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from labkit.formats import Format
from labkit.gemm import SPECS, AlignedTerm, BlockSum, MmaSpec, emulate, explain
from labkit.widgets.mma_block.presets import Terms
from labkit.widgets.mma_block.words import told

CUT = (8, 14)  # columns behind the edge: a few always, for bits to fall into; more would be too small to read
MORE = "…"


@dataclass(frozen=True)
class Row:
    """One line of the sheet.

    bits   a character for each column: 0, 1, or a blank where nothing stands
    kinds  for each column k (kept), z (a zero kept before the first 1 or behind the last), c (cut off by alignment),
           d (dropped by rounding), or a blank
    role   "product", "C", "sum" or "D"
    """

    name: str
    value: str
    sign: str
    bits: str
    kinds: str
    role: str


def walk(terms: Terms, spec: MmaSpec, out: Format) -> tuple[BlockSum, ...]:
    """Return every block of a sum, in order: each takes the last one's result as its C.

    >>> from labkit.formats import FP32
    >>> from labkit.widgets.mma_block.presets import small_terms
    >>> [len(walk(small_terms(-24), SPECS[gpu], FP32)) for gpu in ("V100", "A100", "H100")]
    [4, 2, 1]
    """
    a, b, c = terms
    blocks: list[BlockSum] = []
    for start in range(0, len(a), spec.block_length):
        part = slice(start, start + spec.block_length)
        blocks.append(explain(a[part], b[part], blocks[-1].result if blocks else c, spec, out))
    return tuple(blocks)


def results(terms: Terms, out: Format) -> dict[str, float]:
    """Return what each GPU makes of a sum, all its blocks."""
    a, b, c = terms
    left, right, start = np.array([a]), np.array([b]).T, np.array([[c]])
    return {gpu: float(emulate(left, right, start, spec, out)[0, 0]) for gpu, spec in SPECS.items()}


def sheet(block: BlockSum, first_product: int) -> dict[str, Any]:
    """Return the rows of one block and the columns they stand in, as the browser gets them.

    top    exponent of the first column; `edge` columns are kept, the others lie behind the edge
    point  exponent of the place before the point: what all terms are aligned to
    """
    unit = block.unit_exponent
    top = max(block.exponent + 1, unit + abs(block.total).bit_length() - 1, block.result_exponent)
    longest = max(len(term.cut_bits) for term in block.terms)
    low = unit - min(max(longest, CUT[0]), CUT[1])
    products = [
        _term(term, f"a{first_product + i}·b{first_product + i}", "product", block, top, low)
        for i, term in enumerate(block.terms[:-1])
    ]
    rows = [_term(block.terms[-1], "C", "C", block, top, low), *products, *_ends(block, top, low)]
    return {
        "rows": [asdict(row) for row in rows],
        "columns": top - low + 1,
        "edge": top - unit + 1,
        "lead": top - block.exponent,
        "first": f"2^{block.exponent}",
        "last": f"2^{unit}",
        "keeps": f"{block.spec.fraction_bits} bits behind the point",
    }


def _term(term: AlignedTerm, name: str, role: str, block: BlockSum, top: int, low: int) -> Row:
    kept = term.kept_bits.replace(".", "")
    blanks = top - block.exponent - 1  # aligned terms have two places before the point
    cut = term.cut_bits
    room = block.unit_exponent - low
    shown = cut if len(cut) <= room else cut[: room - 1] + MORE
    kinds = _inner(kept) + "c" * len(shown)
    sign = "−" if term.negative and term.value else ""
    return Row(
        name, told(term.value, 5), sign, _wide(" " * blanks + kept + shown, top, low),
        _wide(" " * blanks + kinds, top, low), role,
    )  # fmt: skip


def _ends(block: BlockSum, top: int, low: int) -> tuple[Row, Row]:
    """Return the exact sum of what was kept, and the result: the bits that D has, and those that rounding drops."""
    unit, sign = block.unit_exponent, "−" if block.total < 0 else ""
    bits = f"{abs(block.total):0{top - unit + 1}b}"
    total = Row("sum", told(block.total * 2.0**unit), sign, _wide(bits, top, low), _wide(_inner(bits), top, low), "sum")
    significand = block.result_bits.replace(".", "")
    if block.rounded_up:
        significand = f"{int(significand, 2) + 1:0{len(significand)}b}"
    before = top - block.result_exponent - (len(significand) + 1 - len(block.result_bits))  # a carry comes in front
    shown = significand[: max(1, top - low + 1 - before)]
    dropped = block.dropped_bits
    kinds = " " * before + "k" * len(shown) + "d" * len(dropped)
    zero = block.total == 0
    result = Row("D", told(block.result), sign, _wide("" if zero else " " * before + shown + dropped, top, low),
                 _wide("" if zero else kinds, top, low), "D")  # fmt: skip
    return total, result


def _inner(bits: str) -> str:
    """Return the kinds of kept bits: k from the first 1 to the last, z around them.

    >>> _inner("0010100")
    'zzkkkzz'
    """
    inner = bits.strip("0")
    lead = bits.find(inner) if inner else 0
    return ("z" * lead + "k" * len(inner)).ljust(len(bits), "z")


def _wide(text: str, top: int, low: int) -> str:
    """Fill up, or cut, to the columns of the sheet."""
    return text.ljust(top - low + 1)[: top - low + 1]
