"""What becomes of each bit inside a Tensor Core? One block of its sum, bit by bit, on every generation.

Idea: `labkit.gemm.explain` keeps every station of a block; the browser gets them as rows of bits. What a learner turns
is how small the small terms are, and which GPU adds them.

Invariant: `value` is what `labkit.gemm.emulate` returns for the present terms, and `sentence` belongs to them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import traitlets

from labkit.formats import FP16, FP32
from labkit.gemm import SPECS, BlockSum
from labkit.widgets.base.assets import script, style
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.tour import tour_of
from labkit.widgets.base.widget import LabWidget, limited
from labkit.widgets.mma_block.presets import PRESETS, Preset, Terms
from labkit.widgets.mma_block.view import results, sheet, walk
from labkit.widgets.mma_block.words import exact_sum, sentence, told

RESULTS = {format.name: format for format in (FP32, FP16)}
WHY_STATIC = why_still(
    "to turn it, or go on in code: board.gpu = 'H100'; board.knob = -25; print(board.sentence)", "This sheet stands"
)


class MmaBlock(LabWidget):
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

    _esm = script("mma_block")
    _css = style("mma_block")
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
        """The operands and C: (a, b, c)."""
        return self._preset.make(self.knob)

    @property
    def value(self) -> float:
        """D, after the last block."""
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
        """Return what is shown where widgets do not run."""
        return still(f"{self.blocks[self.block]}\n\n{self.sentence}", WHY_STATIC)
