"""One block of a Tensor Core's sum, bit by bit, on every generation.

Idea: what a block does to its terms shows best where one term is large and the others are small, so each preset has a
knob that moves how small. `labkit.gemm.explain` records every station of a block; here its bits are laid out in
columns, each a power of two: kept bits up to the edge, cut ones behind it.

Invariant: every operand, and C, is an FP16 number; `value` is what `labkit.gemm.emulate` returns for the present
terms; a row's characters are the bits of `explain`'s record, and every number in `sentence` is read from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import traitlets

from labkit.formats import FP16, FP32, Format, round_to, ulp
from labkit.gemm import SPECS, AlignedTerm, BlockSum, MmaSpec, emulate, explain
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import brief, power_of_two
from labkit.widgets.base.widget import LabWidget, limited, tour_of

Terms = tuple[list[float], list[float], float]
PRODUCTS = 16
CUT = (8, 14)  # columns behind the edge: a few always, for bits to fall into; more would be too small to read
MORE = "…"
RESULTS = {format.name: format for format in (FP32, FP16)}
WHY_STATIC = why_still(
    "to turn it, or go on in code: board.gpu = 'H100'; board.knob = -25; print(board.sentence)", "This sheet stands"
)


@dataclass(frozen=True)
class Preset:
    """Operands that follow from one whole number.

    knob              what the number means
    low, high, start  its range, and where it begins
    result            name of the format of C and D that suits
    make              number -> (a, b, c)
    told              number -> how it is written
    """

    name: str
    knob: str
    low: int
    high: int
    start: int
    result: str
    make: Callable[[int], Terms]
    told: Callable[[int], str]


def _power(exponent: int) -> tuple[float, float]:
    """Return two FP16 numbers whose product is 2^exponent."""
    half = exponent // 2
    return 2.0**half, 2.0 ** (exponent - half)


def small_terms(exponent: int) -> Terms:
    """Return 1 as C, and 16 products of 2^exponent each.

    >>> a, b, c = small_terms(-24)
    >>> c + sum(x * y for x, y in zip(a, b)) == 1 + 2.0**-20
    True
    """
    a, b = _power(exponent)
    return [a] * PRODUCTS, [b] * PRODUCTS, 1.0


def cancelled(exponent: int) -> Terms:
    """Return 2^16 and 2^exponent and -2^16 as products, and C = 0.

    >>> a, b, c = cancelled(-8)
    >>> sum(x * y for x, y in zip(a, b))
    0.00390625
    """
    a, b = _power(exponent)
    return [256.0, a, -256.0], [256.0, b, 256.0], 0.0


def ones(exponent: int) -> Terms:
    """Return 2^exponent as C, what has been counted so far, and 16 products 1 * 1."""
    return [1.0] * PRODUCTS, [1.0] * PRODUCTS, 2.0**exponent


def drawn(seed: int) -> Terms:
    """Return 16 products and C of normally distributed FP16 numbers."""
    values = np.asarray(round_to(np.random.default_rng(seed).standard_normal(2 * PRODUCTS + 1), FP16))
    return values[:PRODUCTS].tolist(), values[PRODUCTS:-1].tolist(), float(values[-1])


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("1 and small terms", "each product", -30, -12, -24, "FP32", small_terms, "2^{}".format),
        Preset("large, small, minus large", "the small one", -16, 0, -8, "FP32", cancelled, "2^{}".format),
        Preset("ones", "counted so far", 0, 15, 13, "FP16", ones, "2^{}".format),
        Preset("random", "draw", 1, 30, 1, "FP32", drawn, "{}".format),
    )
}


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
    exact = exact_sum(terms)
    error, told_exact = Fraction(last.result) - exact, told(exact)
    places = brief(abs(error) / Fraction(float(ulp(last.result, last.format))), 2)
    end = f"{when}D = {told(last.result)}, {places} ulp {'below' if error < 0 else 'above'} the exact sum."
    if error == 0:
        end = f"{when}D = {told(last.result)}, exactly."
    elif exact.denominator == 1 or "^" in told_exact:
        end = f"{when}D = {told(last.result)}, where the exact sum is {told_exact}."
    elsewhere: dict[float, list[str]] = {}
    for gpu, value in found.items():
        if value != last.result:
            elsewhere.setdefault(value, []).append(gpu)
    said = []
    for value, gpus in elsewhere.items():
        names = " and ".join(filter(None, (", ".join(gpus[:-1]), gpus[-1])))
        said.append(f"{names} {'gets' if len(gpus) == 1 else 'get'} {told(value)}")
    others = f"{'; '.join(said)}." if said else "All generations agree."
    return " ".join([_aligned(blocks, index), *_rounded(blocks[index]), end, others])


def _aligned(blocks: Sequence[BlockSum], index: int) -> str:
    block = blocks[index]
    where = f", block {index + 1} of {len(blocks)}," if len(blocks) > 1 else ""
    products = _count(len(block.terms) - 1, "product")
    said = (
        f"The {block.spec.name}{where} aligns {products} and C to 2^{block.exponent} and "
        f"keeps {block.spec.fraction_bits} bits behind the point, down to 2^{block.unit_exponent}"
    )
    lost = [term for term in block.terms if term.cut]
    gone = [term for term in lost if not term.kept]
    if not lost:
        return f"{said}: nothing is cut off."
    if len(gone) == len(lost):
        return f"{said}: {_count(len(gone), 'term')} {'is' if len(gone) == 1 else 'are'} cut off altogether."
    bits = max(len(term.cut_bits) for term in lost)
    and_gone = f", and {len(gone)} all of theirs" if gone else ""
    part = len(lost) - len(gone)
    return f"{said}: {_count(part, 'term')} {'loses' if part == 1 else 'lose'} up to {_count(bits, 'bit')}{and_gone}."


def _rounded(block: BlockSum) -> list[str]:
    if not block.dropped_bits:
        return []
    bits = _count(len(block.dropped_bits), "more bit")
    if block.format == FP16:
        return [f"The sum has {bits} than FP16 holds and is rounded {'up' if block.rounded_up else 'down'}."]
    return [f"The sum has {bits} than FP32 holds; {'they are' if len(block.dropped_bits) > 1 else 'it is'} cut off."]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


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
    >>> from labkit.widgets.mma_block.widget import small_terms
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


class MmaBlock(LabWidget, folders=("mma_block",)):
    """One block of a Tensor Core's sum D = A*B + C, for one element of D: aligned, cut, added, rounded.

    Args:
        preset: a name in PRESETS: "1 and small terms", "large, small, minus large", "ones", "random".
        gpu: a row of SPECS.
        knob: the preset's number; where it begins unless given.
        result: "FP32" or "FP16", the format of C and D; what suits the preset unless given.

    What can be read and set: `preset`, `gpu`, `knob`, `block` (the first is 0), `result`. What can be read: `sentence`,
    `value` (D after the last block), `blocks` (labkit.gemm.BlockSum records), `found` (GPU -> its D).

    Raises:
        TraitError: there is no such preset, GPU or result; the knob is out of its range; there is no such block.

    >>> board = MmaBlock("1 and small terms", "V100")
    >>> board.value, board.found["H100"] == 1 + 2.0**-20
    (1.0, True)
    >>> board.gpu, board.knob = "H100", -25
    >>> board.value == 1 + 2.0**-21, len(board.blocks)
    (True, 1)
    """

    tour = traitlets.List(tour_of("mma_block")).tag(sync=True)

    preset = traitlets.Unicode().tag(sync=True)
    gpu = traitlets.Unicode().tag(sync=True)
    knob = traitlets.Int().tag(sync=True)
    block = traitlets.Int(0).tag(sync=True)
    result = traitlets.Unicode().tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _view = traitlets.Dict().tag(sync=True)
    _choices = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        preset: str = "1 and small terms",
        gpu: str = "V100",
        knob: int | None = None,
        *,
        result: str | None = None,
    ) -> None:
        self._ready = False
        self.blocks: tuple[BlockSum, ...] = ()
        self.found: dict[str, float] = {}
        super().__init__(_choices={"presets": list(PRESETS), "gpus": list(SPECS), "results": list(RESULTS)})
        self.preset, self.gpu = preset, gpu
        chosen = PRESETS[preset]
        self.result = chosen.result if result is None else result
        self.knob = chosen.start if knob is None else knob
        self._ready = True
        self._calculate()

    @property
    def terms(self) -> Terms:
        return self._preset.make(self.knob)

    @property
    def value(self) -> float:
        return self.blocks[-1].result

    @property
    def _preset(self) -> Preset:
        return PRESETS[self.preset]

    @limited("preset", "gpu", "result")
    def _names(self) -> dict[str, Collection[Any]]:
        return {"preset": PRESETS, "gpu": SPECS, "result": RESULTS}

    @limited("knob", "block")
    def _numbers(self) -> dict[str, Collection[Any]]:
        return {"knob": range(self._preset.low, self._preset.high + 1), "block": range(len(self.blocks))}

    @traitlets.observe("preset")
    def _begin(self, _change: object = None) -> None:
        """Start where a preset is most telling: its own knob and result."""
        if not self._ready:
            return
        self._ready = False
        with self.hold_sync():
            self.knob, self.result = self._preset.start, self._preset.result
            self._ready = True
            self._calculate()

    @traitlets.observe("gpu", "knob", "result")
    def _calculate(self, _change: object = None) -> None:
        if not self._ready:
            return
        out = RESULTS[self.result]
        self.blocks = walk(self.terms, SPECS[self.gpu], out)
        self.found = results(self.terms, out)
        with self.hold_sync():
            self.block = min(self.block, len(self.blocks) - 1)
            self._show()

    @traitlets.observe("block")
    def _show(self, _change: object = None) -> None:
        if not (self._ready and self.block < len(self.blocks)):
            return
        preset, block = self._preset, self.blocks[self.block]
        with self.hold_sync():
            self._view = {
                **sheet(block, self.block * block.spec.block_length),
                "blocks": len(self.blocks),
                "found": {gpu: told(value) for gpu, value in self.found.items()},
                "exact": told(exact_sum(self.terms)),
                "knob": {"label": preset.knob, "low": preset.low, "high": preset.high},
                "told": preset.told(self.knob),
                "length": f"{block.spec.block_length} products in a block",
            }
            self.sentence = sentence(self.blocks, self.block, self.terms, self.found)

    def still(self) -> dict[str, Any]:
        return still(f"{self.blocks[self.block]}\n\n{self.sentence}", WHY_STATIC)
