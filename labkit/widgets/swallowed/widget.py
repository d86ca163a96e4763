"""Swallowed updates: many small updates of a weight, computed by six methods.

The page computes the curves at every movement of its two sliders (curves.js). Python computes the
same curves for the traits (curves.py).
"""

from __future__ import annotations

from math import frexp
from typing import Any

import traitlets

from labkit.findings import counted
from labkit.formats import FP16
from labkit.formats.arguments import require_kind
from labkit.widgets.base.figures import still, why_still
from labkit.widgets.base.number_words import number
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.swallowed.curves import METHODS, Curve, curves, moved, random_bits

WHY_STATIC = why_still(
    "to slide, or go on in code: swallowed.update = 2**-11; print(swallowed.ends)",
    "This weight stands",
)
# The positions of the sliders, four in each binade. All of them are exact in FP32, FP16 and BF16,
# so that all methods begin with the same numbers.
# 2^-4 to 2^4
WEIGHTS = tuple((1 + i % 4 / 4) * 2.0 ** (i // 4 - 4) for i in range(33))
# 2^-20 to 2^-6
UPDATES = tuple((1 + i % 4 / 4) * 2.0 ** (i // 4 - 20) for i in range(57))
MOST_STEPS = 100_000


def quarters(value: float) -> str:
    """Return a number in decimal, and if it is a few quarters times a power of two, also as such.

    >>> quarters(2.0**-12), quarters(1.25 * 2.0**-9), quarters(1.0), quarters(0.0001)
    ('2^-12 = 2.441e-4', '1.25 × 2^-9 = 0.002441', '2^0 = 1', '1e-4')
    """
    # value = half * 2^above, and half is at least 0.5 and below 1.
    half, above = frexp(value)
    if half * 8 != int(half * 8):
        return short(value)
    factor = "" if half == 0.5 else f"{2 * half:g} × "
    return f"{factor}2^{above - 1} = {short(value)}"


def short(value: float) -> str:
    """Return a number with four digits.

    >>> short(0.755859375), short(-0.5), short(0.000244140625)
    ('0.7559', '−0.5', '2.441e-4')
    """
    return number(float(f"{value:.4g}"))


class SwallowedUpdates(LabWidget, folder="swallowed"):
    """A weight while w <- w - update is repeated in FP32, FP16, BF16, and FP16 with remedies.

    Args:
        weight: w before the first update.
        update: The number that is subtracted in each step, lr * g.
        steps: The number of updates.

    Traits to read and set: `weight`, `update` and `highlight` (the name of one curve, or ""). To
    read: `curves` (method -> weights, [steps + 1]), `ends`, `moved`, and `sentence`, which the page
    sets when it shows the widget.

    Raises:
        TraitError: `weight` or `update` is not between 2^-24 and 65504, or `highlight` is not the
            name of a method.
        TypeError: `steps` is not an int.
        ValueError: `steps` is not between 1 and 100,000.

    >>> swallowed = SwallowedUpdates(weight=1.0, update=2.0**-10)
    >>> swallowed.ends["FP16"], swallowed.moved["FP16"]
    (0.0234375, 1000)
    """

    weight = traitlets.Float(1.0).tag(sync=True)
    update = traitlets.Float(2.0**-12).tag(sync=True)
    highlight = traitlets.Unicode("").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _places = traitlets.Dict().tag(sync=True)
    # A uint32 number for the stochastic rounding of each step.
    _random = traitlets.Bytes().tag(sync=True)

    def __init__(self, weight: float = 1.0, update: float = 2.0**-12, steps: int = 1000) -> None:
        require_kind(steps, int, "steps")
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"steps: expected 1 to {MOST_STEPS:,}, got {steps}")
        self.steps = steps
        random = random_bits(steps).astype("<u4").tobytes()
        places = {"weights": list(WEIGHTS), "updates": list(UPDATES), "steps": steps}
        super().__init__(weight=weight, update=update, _places=places, _random=random)

    @property
    def curves(self) -> dict[str, Curve]:
        """The weight after each step, for each method."""
        return curves(self.weight, self.update, self.steps)

    @property
    def ends(self) -> dict[str, float]:
        """The weight after the last step, for each method."""
        return {name: float(curve[-1]) for name, curve in self.curves.items()}

    @property
    def moved(self) -> dict[str, int]:
        """In how many steps the weight changed, for each method."""
        return {name: moved(curve) for name, curve in self.curves.items()}

    @traitlets.validate("weight", "update")
    def _valid_number(self, proposal: dict[str, Any]) -> float:
        value: float = proposal["value"]
        name = proposal["trait"].name
        if not FP16.smallest_subnormal <= value <= FP16.max:
            raise traitlets.TraitError(
                f"{name}: expected a number that FP16 holds, 2^-24 to 65504, got {value}"
            )
        return value

    @traitlets.validate("highlight")
    def _valid_highlight(self, proposal: dict[str, Any]) -> str:
        value: str = proposal["value"]
        if value and value not in METHODS:
            raise traitlets.TraitError(
                f"highlight: expected one of {', '.join(METHODS)} or an empty text, got {value!r}"
            )
        return value

    def still(self) -> dict[str, Any]:
        ends = ", ".join(f"{name} {short(end)}" for name, end in self.ends.items())
        words = (
            f"{counted(self.steps, 'update')} of {quarters(self.update)} take the weight "
            f"{short(self.weight)} to: {ends}."
        )
        return still(words, WHY_STATIC)
