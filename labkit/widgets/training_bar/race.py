"""How far is a race? A bar that a comparison fills, a run at a time, and the line of the run that ended last.

Idea: `labkit.train.compare` calls back with every record; this is something to call. The notebook's stop button ends
the race, and the same cell again goes on where it was: finished runs are on record.

Invariant: the bar is full when every run is there, also those that were read and not trained.
"""

from __future__ import annotations

import ipywidgets
from IPython.display import display

from labkit.train import RunRecord


class RaceProgress:
    """A bar for `total` runs: `compare(task, recipes, seeds, progress=RaceProgress(len(recipes) * len(seeds)))`.

    Raises:
        ValueError: total is less than 1.

    >>> bar = RaceProgress(6)
    HBox(children=(...))
    >>> bar.line
    '0 of 6 runs'
    """

    def __init__(self, total: int) -> None:
        if total < 1:
            raise ValueError(f"a race has 1 run or more; it was given {total}")
        self._bar = ipywidgets.IntProgress(value=0, max=total, layout=ipywidgets.Layout(width="20em"))
        self._text = ipywidgets.Label(f"0 of {total} runs")
        display(ipywidgets.HBox([self._bar, self._text]))  # type: ignore[no-untyped-call]

    @property
    def line(self) -> str:
        """Return what stands beside the bar."""
        return str(self._text.value)

    def __call__(self, record: RunRecord) -> None:
        """Count a run that is there, and say what it reached."""
        self._bar.value += 1
        self._text.value = (
            f"{self._bar.value} of {self._bar.max} runs; {record.recipe}, seed {record.seed}: "
            f"{record.metric_name} {record.metric:.3f}"
        )
