"""What can be seen of a training step while it happens?

Idea: an engine tells whoever listens at four moments. What listens changes nothing, and who does not listen pays
nothing: no event is made where nobody is there.

Invariant: of a step that is taken or skipped, the moments come in the order of `Moment`; forward and scaled once for
each backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from torch import Tensor

from labkit.amp.scaling.scaler import StepReport


class Moment(Enum):
    """Where in a step an event was."""

    FORWARD = "the loss is computed"
    SCALED = "backward has left gradients in the model, multiplied by the scale, in the model's format"
    UNSCALED = "the gradients of all losses are one FP32 sum without a scale; the step takes or skips them now"
    STEPPED = "the weights have moved, or the step was skipped"


@dataclass(frozen=True)
class StepEvent:
    """A moment of a training step.

    moment     which
    loss       [], FP32, unscaled: of the last backward pass
    scale      what it is multiplied by
    gradients  parameter name -> gradient, at SCALED as they are in the model, from UNSCALED on in FP32; before, empty
    report     what became of the step; None before STEPPED
    """

    moment: Moment
    loss: Tensor
    scale: float
    gradients: Mapping[str, Tensor]
    report: StepReport | None = None


StepListener = Callable[[StepEvent], object]
