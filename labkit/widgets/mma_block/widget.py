"""One block of a Tensor Core's sum, bit by bit, on every generation.

What a block does to its terms shows best where one term is large and the others are small, so each
preset has a knob that moves how small. The page computes every bit (sum.js), as
`labkit.gemm.explain` does.

Invariant: every operand, and C, is an FP16 number; `value` is what `labkit.gemm.emulate` returns
for the present terms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import traitlets

from labkit.formats import FP16, FP32, Format, round_to
from labkit.gemm import SPECS, BlockSum, MmaSpec, emulate, explain
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.widget import LabWidget, limited, tour_of
from labkit.widgets.exact.rows import format_row

Terms = tuple[list[float], list[float], float]
PRODUCTS = 16
RESULTS = {format.name: format for format in (FP32, FP16)}
WHY_STATIC = why_still(
    "to turn it, or go on in code: board.gpu = 'H100'; board.knob = -25; print(board.value)",
    "This sheet stands",
)


@dataclass(frozen=True)
class Preset:
    """Operands that follow from one whole number.

    Attributes:
        knob: what the number means.
        low, high, start: its range, and where it begins.
        result: name of the format of C and D that suits.
        make: number -> (a, b, c).
    """

    name: str
    knob: str
    low: int
    high: int
    start: int
    result: str
    make: Callable[[int], Terms]


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
    values = np.asarray(
        round_to(np.random.default_rng(seed).standard_normal(2 * PRODUCTS + 1), FP16)
    )
    return values[:PRODUCTS].tolist(), values[PRODUCTS:-1].tolist(), float(values[-1])


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("1 and small terms", "each product", -30, -12, -24, "FP32", small_terms),
        Preset("large, small, minus large", "the small one", -16, 0, -8, "FP32", cancelled),
        Preset("ones", "counted so far", 0, 15, 13, "FP16", ones),
        Preset("random", "draw", 1, 30, 1, "FP32", drawn),
    )
}


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
    """Return D of each GPU for a sum, all its blocks."""
    a, b, c = terms
    left = np.array([a])
    right = np.array([b]).T
    start = np.array([[c]])
    return {gpu: float(emulate(left, right, start, spec, out)[0, 0]) for gpu, spec in SPECS.items()}


def choices() -> dict[str, Any]:
    """Return presets with their terms by position, specifications and formats, as JSON."""
    presets = [
        {
            **{
                name: getattr(preset, name)
                for name in ("name", "knob", "low", "high", "start", "result")
            },
            "power": preset.make is not drawn,
            "terms": {knob: preset.make(knob) for knob in range(preset.low, preset.high + 1)},
        }
        for preset in PRESETS.values()
    ]
    names = ("name", "block_length", "fraction_bits", "result_significand_bits")
    specs = [{name: getattr(spec, name) for name in names} for spec in SPECS.values()]
    return {
        "presets": presets,
        "specs": specs,
        "formats": [format_row(row) for row in (FP16, *RESULTS.values())],
    }


class MmaBlock(LabWidget, folder="mma_block"):
    """One block of a Tensor Core's sum D = A*B + C for one element: aligned, cut, added, rounded.

    Args:
        preset: a name in PRESETS: "1 and small terms", "large, small, minus large", "ones",
            "random".
        gpu: a row of SPECS.
        knob: the preset's number; where it begins unless given.
        result: "FP32" or "FP16", the format of C and D; what suits the preset unless given.

    Traits to read and set: `preset`, `gpu`, `knob`, `block` (the first is 0), `result`. To read:
    `value` (D after the last block), `blocks` (labkit.gemm.BlockSum records), `found` (GPU -> its
    D), and `sentence`, which the page forms once it shows the widget.

    Raises:
        TraitError: the preset does not exist, GPU or result; the knob is out of its range; there is
            no such block.

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
    _choices = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        preset: str = "1 and small terms",
        gpu: str = "V100",
        knob: int | None = None,
        *,
        result: str | None = None,
    ) -> None:
        chosen = PRESETS.get(preset)
        super().__init__(_choices=choices(), preset=preset, gpu=gpu)
        if chosen is not None:
            self.knob = chosen.start if knob is None else knob
            self.result = chosen.result if result is None else result

    @property
    def terms(self) -> Terms:
        return self._preset.make(self.knob)

    @property
    def blocks(self) -> tuple[BlockSum, ...]:
        """Every block of the sum, in order."""
        return walk(self.terms, SPECS[self.gpu], RESULTS[self.result])

    @property
    def found(self) -> dict[str, float]:
        """D of each GPU."""
        return results(self.terms, RESULTS[self.result])

    @property
    def value(self) -> float:
        return self.blocks[-1].result

    @property
    def _preset(self) -> Preset:
        return PRESETS[self.preset]

    @limited("preset", "gpu", "result")
    def _names(self) -> dict[str, Collection[Any]]:
        return {"preset": PRESETS, "gpu": SPECS, "result": RESULTS}

    def _ranges(self) -> dict[str, Collection[Any]]:
        blocks = -(-len(self._preset.make(self._preset.start)[0]) // SPECS[self.gpu].block_length)
        return {"knob": range(self._preset.low, self._preset.high + 1), "block": range(blocks)}

    _valid_number = limited("knob", "block")(_ranges)

    @traitlets.observe("preset")
    def _begin(self, _change: object) -> None:
        """Start where a preset is most telling, at its own knob and result, which a page sends."""
        if self._property_lock:
            return
        with self.hold_sync():
            self.block = 0
            self.knob = self._preset.start
            self.result = self._preset.result

    @traitlets.observe("gpu")
    def _stay_inside(self, _change: object) -> None:
        self.block = min(self.block, len(self._ranges()["block"]) - 1)

    def still(self) -> dict[str, Any]:
        return still(f"{self.blocks[self.block]}\n", WHY_STATIC)
