"""What came of each epoch?

Source: fastai.learner, Recorder and AvgSmoothLoss.
"""

from __future__ import annotations

import math

from labkit.frameworks.fastai.callback.core import Callback


class Recorder(Callback):
    """Record losses: `values` has for each epoch the smoothed training loss, the mean validation loss, the metrics.

    A batch that was cancelled counts, as in fastai.
    """

    order, beta = 50, 0.98

    def before_fit(self) -> None:
        self.values: list[list[float]] = []
        self.losses: list[float] = []
        self.smooth = self.count = 0.0
        self.before_epoch()  # which is not reached where an epoch is cancelled at its begin

    def before_epoch(self) -> None:
        self.sums, self.seen = [0.0] * (1 + len(self.metrics)), 0

    def after_batch(self) -> None:
        if not self.yb:
            return
        if self.training:
            self.count += 1
            self.smooth += (1 - self.beta) * (self.loss.mean().item() - self.smooth)
            self.losses.append(self.smooth / (1 - self.beta**self.count))
        else:
            size, each = len(self.yb[0]), (self.loss.mean(), *(metric(self.pred, *self.yb) for metric in self.metrics))
            self.sums = [total + size * float(value) for total, value in zip(self.sums, each, strict=True)]
            self.seen += size

    def after_epoch(self) -> None:
        self.values.append([*self.losses[-1:], *(total / self.seen if self.seen else math.nan for total in self.sums)])
