"""One block of a Tensor Core's sum, bit by bit, on every generation.

The effect of alignment is largest if one term is large and the others are small. So each preset has
a knob for their size. The page computes every bit (sum.js), as `labkit.gemm.explain` does.

Invariant: every operand, and C, is an FP16 number; `value` equals the result of
`labkit.gemm.emulate` for the current terms.
"""

from __future__ import annotations

import math
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
    """Operands that follow from one whole number, the knob.

    Attributes:
        name: the name of the preset.
        knob: the meaning of the number, as a label.
        low: the least number.
        high: the largest number.
        start: the first number.
        result: the name of the format of C and D that suits the preset.
        make: the function from the number to (a, b, c).
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
    """Return 2^exponent as C, the count so far, and 16 products 1 * 1 that are added to it."""
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
        Preset(
            name="1 and small terms",
            knob="each product",
            low=-30,
            high=-12,
            start=-24,
            result="FP32",
            make=small_terms,
        ),
        Preset(
            name="large, small, minus large",
            knob="the small one",
            low=-16,
            high=0,
            start=-8,
            result="FP32",
            make=cancelled,
        ),
        Preset(
            name="ones",
            knob="counted so far",
            low=0,
            high=15,
            start=13,
            result="FP16",
            make=ones,
        ),
        Preset(
            name="random",
            knob="draw",
            low=1,
            high=30,
            start=1,
            result="FP32",
            make=drawn,
        ),
    )
}


def walk(terms: Terms, spec: MmaSpec, out: Format) -> tuple[BlockSum, ...]:
    """Return the blocks of a sum in order. The result of each block is the C of the next one.

    >>> from labkit.formats import FP32
    >>> from labkit.widgets.mma_block.widget import small_terms
    >>> [len(walk(small_terms(-24), SPECS[gpu], FP32)) for gpu in ("V100", "A100", "H100")]
    [4, 2, 1]
    """
    a, b, total = terms
    blocks: list[BlockSum] = []
    for start in range(0, len(a), spec.block_length):
        part = slice(start, start + spec.block_length)
        block = explain(a[part], b[part], total, spec, out)
        blocks.append(block)
        total = block.result
    return tuple(blocks)


def results(terms: Terms, out: Format) -> dict[str, float]:
    """Return the final D of a sum on each GPU."""
    a, b, c = terms
    left = np.array([a])
    right = np.array([b]).T
    start = np.array([[c]])
    return {gpu: float(emulate(left, right, start, spec, out)[0, 0]) for gpu, spec in SPECS.items()}


def choices() -> dict[str, Any]:
    """Return presets with their terms by position, specifications and formats, as JSON."""
    presets = [
        {
            "name": preset.name,
            "knob": preset.knob,
            "low": preset.low,
            "high": preset.high,
            "start": preset.start,
            "result": preset.result,
            # Whether the knob is an exponent of 2.
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
        preset: The name of a preset, a key of `PRESETS`.
        gpu: The name of a GPU, a key of `labkit.gemm.SPECS`.
        knob: The number of the preset; None for its first number.
        result: "FP32" or "FP16", the format of C and D; None for that of the preset.

    Traits to read and set: `preset`, `gpu`, `knob`, `block` (its index) and `result`. To read:
    `value` (D after the last block), `blocks`, `found` (D on each GPU), and `sentence`, which the
    page sets when it shows the widget.

    Raises:
        TraitError: The preset, GPU, result or block does not exist, or the knob is out of its
            range.

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
        super().__init__(_choices=choices(), preset=preset, gpu=gpu)
        # The range of the knob depends on the preset, which is valid from here on.
        self.knob = self._preset.start if knob is None else knob
        self.result = self._preset.result if result is None else result

    @property
    def terms(self) -> Terms:
        return self._preset.make(self.knob)

    @property
    def blocks(self) -> tuple[BlockSum, ...]:
        """Every block of the sum, in order."""
        return walk(self.terms, SPECS[self.gpu], RESULTS[self.result])

    @property
    def found(self) -> dict[str, float]:
        """Name of each GPU -> its D."""
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
        preset = self._preset
        a, _, _ = preset.make(preset.start)
        blocks = math.ceil(len(a) / SPECS[self.gpu].block_length)
        return {"knob": range(preset.low, preset.high + 1), "block": range(blocks)}

    _valid_number = limited("knob", "block")(_ranges)

    @traitlets.observe("preset")
    def _begin(self, _change: object) -> None:
        """Start a preset at its own knob and result."""
        # A page sends the knob and the result with the preset, and they must not be overwritten.
        # ipywidgets sets `_property_lock` while it takes the traits of a page.
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
