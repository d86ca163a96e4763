"""Updates that a weight does not notice: a thousand small steps, six ways to take them, two sliders.

Idea: the kernel calculates all six curves for wherever the sliders stand, in a few milliseconds, and sends them as one
buffer of float32. While the hand rests it does so ahead, for all places that one slider can go to, so the next
movement is drawn without asking. The rule behind the curves is the learner's to find, so no word here names it.

Invariant: `curves`, `ends`, `moved` and `sentence` belong to the present `weight` and `update`; every number in a
sentence is one of the curves'.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from math import frexp
from typing import TYPE_CHECKING, Any

import numpy as np
import traitlets
from numpy.typing import NDArray

from labkit.formats import FP16, ulp
from labkit.widgets.base.figures import (
    BROAD,
    FORMAT_COLOURS,
    QUIET,
    End,
    captioned,
    name_ends,
    new_figure,
    on_any_page,
    panel,
    raised,
    still,
    why_still,
)
from labkit.widgets.base.number_words import number
from labkit.widgets.base.widget import LabWidget
from labkit.widgets.swallowed.curves import METHODS, Curve, curves, moved, stochastic_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARRIVED, NEAR = 0.02, 0.1  # what may be missing, as a share of the way, besides one ulp of FP16
DASHES = {  # on and off, in widths of the line
    "FP16 + Kahan": (0, (6, 3)),
    "FP16 + stochastic": (0, (1, 1.5)),
    "FP16 + FP32 master": (0, (8, 2, 1, 2)),
}
WHY_STATIC = why_still(
    "to slide, or go on in code: swallowed.update = 2**-11; print(swallowed.sentence)", "This figure stands"
)
# Four positions in each binade; all of them are exact in FP32, FP16 and BF16, so every method starts from the same.
WEIGHTS = tuple((1 + i % 4 / 4) * 2.0 ** (i // 4 - 4) for i in range(33))  # 2^-4 to 2^4
UPDATES = tuple((1 + i % 4 / 4) * 2.0 ** (i // 4 - 20) for i in range(57))  # 2^-20 to 2^-6
MOST_STEPS = 100_000
POINTS = 250  # of each curve that is sent ahead: as many as a picture has room for; the whole curve follows
AHEAD_STEPS = 2000  # more would take too long to calculate for every place of a slider


def quarters(value: float) -> str:
    """Write a number that is a few quarters times a power of two as such, and in decimal.

    >>> quarters(2.0**-12), quarters(1.25 * 2.0**-9), quarters(1.0), quarters(0.0001)
    ('2^-12 = 2.441e-4', '1.25 × 2^-9 = 0.002441', '2^0 = 1', '1e-4')
    """
    half, above = frexp(value)
    if half * 8 != int(half * 8):
        return short(value)
    return f"{f'{2 * half:g} × ' if half != 0.5 else ''}2^{above - 1} = {short(value)}"


def short(value: float) -> str:
    """Write a number with four digits.

    >>> short(0.755859375), short(-0.5), short(0.000244140625)
    ('0.7559', '−0.5', '2.441e-4')
    """
    return number(float(f"{value:.4g}"))


def rows(curves: Mapping[str, Curve], exact_end: float) -> list[dict[str, Any]]:
    """Return the table: for each method its end value, what is missing, and in how many steps the weight moved."""
    return [
        {
            "name": name,
            "end": short(float(curve[-1])),
            "off": "+" * bool(curve[-1] > exact_end) + short(float(curve[-1]) - exact_end),
            "moved": f"{moved(curve):,}",
        }
        for name, curve in curves.items()
    ]


def sentence(curves: Mapping[str, Curve], weight: float, update: float) -> str:
    """Say which methods arrived where the exact sum does, which never moved, and where the others ended.

    >>> from labkit.widgets.swallowed.curves import curves
    >>> sentence(curves(1.0, 2.0**-12, 1000), 1.0, 2.0**-12)
    '1,000 updates of 2^-12 should take the weight from 1 to 0.7559: FP32, FP16 + Kahan and FP16 + FP32
     master arrive, FP16 + stochastic comes near at 0.7471, FP16 and BF16 have not moved once.'
    """
    steps = len(next(iter(curves.values()))) - 1
    end = weight - steps * update
    found: dict[str, list[str]] = {"arrive": [], "near": [], "still": [], "short": [], "far": []}
    for name, curve in curves.items():
        found[_outcome(curve, end, steps * update)].append(name)
    said = []
    if found["arrive"]:
        said.append(f"{_listed(found['arrive'])} {'arrives' if len(found['arrive']) == 1 else 'arrive'}")
    said += [f"{name} comes near at {short(float(curves[name][-1]))}" for name in found["near"]]
    if found["still"]:
        said.append(f"{_listed(found['still'])} {'has' if len(found['still']) == 1 else 'have'} not moved once")
    for kind, words in (("short", "too short a way"), ("far", "too far")):
        said += [f"{name} ends at {short(float(curves[name][-1]))}, {words}" for name in found[kind]]
    size = quarters(update).split(" = ")[0]
    start = f"{steps:,} updates of {size} should take the weight from {short(weight)} to {short(end)}"
    return f"{start}: {', '.join(said)}."


def _outcome(curve: Curve, exact_end: float, way: float) -> str:
    end = float(curve[-1])
    if moved(curve) == 0:
        return "still"
    missing = abs(end - exact_end) - float(ulp(end, FP16))
    if missing <= NEAR * way:
        return "arrive" if missing <= ARRIVED * way else "near"
    return "short" if end > exact_end else "far"


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


@on_any_page
def static_swallowed(curves: Mapping[str, Curve], weight: float, update: float, *, why: str = WHY_STATIC) -> Figure:
    """Draw the weight against the steps for each method, beside the exact line."""
    figure = new_figure(9, 4.6)
    axes = figure.add_axes((0.08, 0.33, 0.66, 0.58))
    steps = len(next(iter(curves.values()))) - 1
    exact = [weight, weight - steps * update]
    axes.plot([0, steps], exact, color=QUIET, alpha=0.5, linewidth=BROAD + 2, solid_capstyle="round")
    ends = []
    for name, curve in curves.items():
        colour, last = FORMAT_COLOURS[name.split(" ")[0]], float(curve[-1])
        axes.plot(curve, color=colour, linestyle=DASHES.get(name, "-"), linewidth=1.8)
        ends.append(End(f"{name}  {short(last)}", last, colour))
    axes.set_xlim(0, steps)
    name_ends(axes, ends)
    axes.set_xlabel("updates", fontsize=9, color=QUIET)
    panel(axes, raised(f"w = {quarters(weight)}, update = {quarters(update)}; grey: exact"))
    return captioned(figure, (0.08, 0.19), sentence(curves, weight, update), why)


class SwallowedUpdates(LabWidget, folders=("swallowed",)):
    """The weight while w <- w - update is repeated, in FP32, FP16, BF16, and in FP16 with three remedies.

    Args:
        weight: w before the first update.
        update: what is subtracted each time, lr * g.
        steps: how often.

    What can be read and set: `weight`, `update`, `highlight` (the name of one curve, or ""). What can be read:
    `curves` (method -> weights, [steps + 1]), `ends`, `moved`, `sentence`.

    Raises:
        TraitError: weight or update is not a positive number that FP16 holds, or rounds to 0 there.
        ValueError: steps is not between 1 and 100,000.

    >>> swallowed = SwallowedUpdates(weight=1.0, update=2.0**-10)
    >>> swallowed.ends["FP16"], swallowed.moved["FP16"]
    (0.0234375, 1000)
    """

    weight = traitlets.Float(1.0).tag(sync=True)
    update = traitlets.Float(2.0**-12).tag(sync=True)
    highlight = traitlets.Unicode("").tag(sync=True)
    sentence = traitlets.Unicode().tag(sync=True)
    _buffer = traitlets.Bytes().tag(sync=True)  # float32 [methods, steps + 1]
    _now = traitlets.Dict().tag(sync=True)
    _places = traitlets.Dict().tag(sync=True)

    def __init__(self, weight: float = 1.0, update: float = 2.0**-12, steps: int = 1000) -> None:
        if not 1 <= steps <= MOST_STEPS:
            raise ValueError(f"steps goes from 1 to {MOST_STEPS:,}; it was given {steps}")
        self.steps = steps
        self.curves: dict[str, Curve] = {}
        places = {"weights": list(WEIGHTS), "updates": list(UPDATES)}
        texts = {f"{name}_texts": [quarters(value) for value in values] for name, values in places.items()}
        super().__init__(weight=weight, update=update, _places={**places, **texts, "ahead": steps <= AHEAD_STEPS})
        self._follow()
        self.on_msg(self._look_ahead)

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
            raise traitlets.TraitError(f"{name} is a number that FP16 holds, from 2^-24 to 65504; it was given {value}")
        return value

    @traitlets.validate("highlight")
    def _valid_highlight(self, proposal: dict[str, Any]) -> str:
        value: str = proposal["value"]
        if value and value not in METHODS:
            raise traitlets.TraitError(f"there is no curve {value!r}; there are {', '.join(METHODS)}")
        return value

    @traitlets.observe("weight", "update")
    def _follow(self, _change: object = None) -> None:
        self.curves = self._curves_at(self.weight, self.update)
        drawn = np.stack([self.curves[name] for name in METHODS]).astype(np.float32)
        now = self._described(self.weight, self.update, self.curves)
        with self.hold_sync():
            self._buffer = drawn.tobytes()
            self.sentence = now["sentence"]
            self._now = now

    def _look_ahead(self, _widget: object, content: Any, _buffers: object) -> None:
        """Send the curves for every place that one slider can go to while the other stays.

        `content` says which, and where the other stands: {"ahead": "update", "at": 1.0}; anything else is ignored.
        """
        if not isinstance(content, dict) or self.steps > AHEAD_STEPS:
            return
        axis, at = content.get("ahead"), content.get("at")
        if not isinstance(at, float | int) or not FP16.smallest_subnormal <= at <= FP16.max:
            return
        lines = {"weight": [(w, float(at)) for w in WEIGHTS], "update": [(float(at), u) for u in UPDATES]}
        places = lines.get(str(axis), [])
        if not places:
            return
        found = [self._curves_at(*place) for place in places]
        sampled = np.linspace(0, self.steps, min(self.steps, POINTS) + 1).round().astype(np.int64)
        drawn = np.stack([[curves[name][sampled] for name in METHODS] for curves in found]).astype(np.float32)
        texts = [self._described(*place, curves) for place, curves in zip(places, found, strict=True)]
        self.send({"kind": "ahead", "axis": axis, "places": texts}, [drawn.tobytes()])

    def _curves_at(self, weight: float, update: float) -> dict[str, Curve]:
        known = None  # the stochastic curve, whose steps are chance and cannot be guessed ahead
        if weight in WEIGHTS and update in UPDATES and self.steps <= 1000:
            column = WEIGHTS.index(weight) * len(UPDATES) + UPDATES.index(update)
            known = np.asarray(_all_positions(self.steps)[:, column], np.float64)
        return curves(weight, update, self.steps, known)

    def _described(self, weight: float, update: float, curves: dict[str, Curve]) -> dict[str, Any]:
        exact = weight - self.steps * update
        texts = {"weight_text": quarters(weight), "update_text": quarters(update)}
        said = {"rows": rows(curves, exact), "sentence": sentence(curves, weight, update)}
        return {"weight": weight, "update": update, **texts, "exact": exact, "steps": self.steps, **said}

    def still(self) -> dict[str, Any]:
        return still(self.sentence, WHY_STATIC, static_swallowed(self.curves, self.weight, self.update))


@cache
def _all_positions(steps: int) -> NDArray[np.float16]:
    """Return the stochastic curves of all positions, [steps + 1, weights * updates]; a fifth of a second, once."""
    grid = np.meshgrid(WEIGHTS, UPDATES, indexing="ij")
    return stochastic_table(grid[0].ravel(), grid[1].ravel(), steps)
