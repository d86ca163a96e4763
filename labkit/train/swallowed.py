"""Which share of its updates did a step of a run lose, because no weight could hold them?"""

from __future__ import annotations

from labkit.amp import Moment, StepEvent, Weights
from labkit.instrument import swallowed


class SwallowedUpdates:
    """Listens to a step: which share of the weights that outlast it, the masters where there are any, did not move."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.swallowed: float | None = None  # of a step that was taken

    def __call__(self, event: StepEvent) -> None:
        if event.moment is Moment.UNSCALED:
            self.before = {name: master.clone() for name, master in self.weights.named_masters().items()}
        elif event.moment is Moment.STEPPED and event.report is not None and event.report.stepped:
            dense = {name: g.to_dense() if g.is_sparse else g for name, g in event.gradients.items()}
            after = self.weights.named_masters()
            self.swallowed = swallowed(self.before.values(), after.values(), [dense.get(name) for name in after])
