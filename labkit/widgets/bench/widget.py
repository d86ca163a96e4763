"""What do the workbench and the live training share as widgets? A bench, its words and its picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import traitlets

from labkit.train import Place, RunRecord, StepRecord
from labkit.train import place as place_of
from labkit.widgets.bench.commands import Choose, Do, Fork, Turn
from labkit.widgets.bench.controller import Bench
from labkit.widgets.bench.figure import static_bench
from labkit.widgets.bench.labels import epsilon_text
from labkit.widgets.bench.outbox import BenchOutbox, positions
from labkit.widgets.bench.positions import EPSILONS, Scaling
from labkit.widgets.bench.report import record_of
from labkit.widgets.bench.words import scene, sentence
from labkit.widgets.driven.devices import chosen
from labkit.widgets.driven.widget import DrivenWidget

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class BenchWidget(DrivenWidget):
    """What the workbench and the live training share: a bench, its words and its picture."""

    _offers = traitlets.Dict().tag(sync=True)  # what the page offers for each knob

    def __init__(self, bench: Bench, outbox: BenchOutbox) -> None:
        self.bench = bench
        super().__init__(bench, outbox)
        self._offers = positions(bench)

    @property
    def history(self) -> tuple[StepRecord, ...]:
        """The steps of the run so far."""
        return tuple(self.bench.run.steps)

    @property
    def place(self) -> Place:
        """Where it trains."""
        return self.bench.place

    @property
    def sentence(self) -> str:
        """What the figure shows now, in words."""
        return sentence(scene(self.bench))

    def figure(self, why: str = "") -> Figure:
        """Return a picture of the steps so far that stands still, for reports and for hosts without widgets."""
        return static_bench(self.bench, why=why)

    def record(self) -> RunRecord:
        """Return the record of the run whose knobs are on show; it says where it was trained.

        Raises:
            ValueError: nothing has run yet.
        """
        return record_of(self.bench)

    def train_on(self, device: str | Place) -> None:
        """Begin anew on another device: "cpu", "gpu", or one of `labkit.train.places()`; returns at once.

        Raises:
            ValueError: there is no such device here.
        """
        self.driver.command(Choose(place=place_of(device)))

    def command(self, content: Mapping[str, Any]) -> Turn | Fork | Choose | Do:
        """Return the command in a browser's message: a knob that was turned, or a device.

        Raises:
            ValueError: it holds none.
        """
        match content.get("do"):
            case "turn":
                return Turn({content["knob"]: position(content["knob"], content["to"])})
            case "choose" if "place" in content:
                return Choose(place=chosen(content["place"], self.place))
        raise ValueError(f"the page asked for {content!r}, which this widget does not know")


def position(knob: str, to: Any) -> Any:
    """Return a knob's position from what a page or a caller calls it."""
    if knob == "scaling":
        return Scaling(to)
    if knob == "epsilon":
        return next((e for e in EPSILONS if epsilon_text(e) == to), to)
    return to
