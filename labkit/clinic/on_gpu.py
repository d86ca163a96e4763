"""What goes wrong only on a GPU, or in compiled code? Cards with what was published; `make gpu` asks the card at hand.

Idea: as a patient, a card is one function in two forms. `measure(device, cured, size)` returns a number, larger is
better: where the fault shows, the repaired form's is clearly larger, or the broken form is ended by the card's error.

Invariant: nothing is said to have been measured by the lab that no record holds. Evidence is a row of
data/published.csv, with its source and date, or a thread.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from labkit.bench import Published, published
from labkit.clinic.patient import Card, Kind
from labkit.records.turns import host_seconds

CLEARLY = 1.15  # how many times as good the repaired form is where a card shows the fault
ROWS_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class GpuCard(Card):
    """A fault that only a GPU shows.

    measure    (device, cured, size) -> a number, larger is better; `size` is that of a large matrix on this device
    unit       what the number counts
    evidence   which published rows show it
    """

    measure: Callable[[str, bool, int], float]
    unit: str
    evidence: Callable[[Published], bool]
    kind: Kind = Kind.GPU

    @property
    def id(self) -> str:
        """The name of its function."""
        return self.measure.__name__

    @property
    def title(self) -> str:
        """The fault in one sentence: what its function says of itself."""
        return self.measure.__doc__ or ""

    def published(self) -> list[str]:
        """Return what others published of it, the strongest first, as sentences with source and date."""
        rows = [row for row in published() if row.ratio and self.evidence(row)]
        return [_sentence(row) for row in sorted(rows, key=lambda row: -abs(math.log(row.ratio or 1)))[:ROWS_SHOWN]]

    def shows(self, broken: float | None, cured: float | None) -> bool:
        """Say whether two measurements show the fault; None stands for a form that was ended by the card's error."""
        return cured is not None and (broken is None or cured > CLEARLY * broken)


def _sentence(row: Published) -> str:
    what = f"{row.gpu}, {row.workload}{f', batch {row.batch}' if row.batch else ''}"
    number = f"{row.value:g} {row.unit} in {row.format}, x {row.ratio:.2f} against {row.reference}"
    return f"{what}: {number}. {row.software}, {row.date}; {row.source}"


def measured(card: GpuCard, device: str, cured: bool, size: int) -> tuple[float | None, str]:
    """Return what one form measures and "", or None and the error that ended it."""
    try:
        return card.measure(device, cured, size), ""
    except (RuntimeError, NotImplementedError) as error:
        return None, f"{type(error).__name__}: {error}"


def seconds(call: Callable[[], object], device: str) -> float:
    """Return what a call takes on a device, which has done its work when the clock stops; two calls warm up."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    host_seconds(call, 2, wait)
    return host_seconds(call, 10, wait)
