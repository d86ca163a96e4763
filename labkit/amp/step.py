"""Gradients of one training step, from backward to the optimizer, and the events for listeners.

Backward leaves gradients in the model, scaled and in the model's format. They are added up in FP32
for each loss, still scaled. Then all are unscaled and summed, once, and one step uses them. Scaled
and unscaled gradients are never mixed, and none is used twice. Whether they are finite is computed
on their device; `read_found` brings the results to the host in one transfer, with all other values
that the step needs. Without a listener no event is constructed.

The states of a step's gradients, the calls that lead from one to the next, and where the gradients
are:

    created      zero_grad()   none, or zeros in the model
       |  backward()
    reached      scaled, in the model, in the model's format
       |  backward() again, or the next line
    accumulated  scaled, in FP32: one sum for each loss and scale      Stage.SCALED until here
       |  clip(), gradients() or step()
    unscaled     one FP32 sum of all losses; found_inf is on the device
       |  clip()               first factor applied on the device
    clipped      unscaled, the second factor is pending                Stage.UNSCALED
       |  step()               one transfer: found_inf, norms, ranges, edits
    decided      stepped or skipped                                    Stage.CONSUMED
       |  zero_grad()
    created

A step that found no gradient returns to created. One whose forward pass cast finite numbers to
infinity (`labkit.amp.ranges`) is decided as skipped, and the scale stays.

Invariant: `unscaled()` is the gradient of the sum of all losses since the last zero_grad, in FP32.
In each step, taken or skipped, events occur in the order of `Moment`; FORWARD and SCALED once for
each backward pass.

Source: torch.amp.GradScaler (READY, UNSCALED, STEPPED); apex.amp.scale_loss (sums in FP32, a scale
    for each loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.clip import (
    Clipping,
    Measure,
    clip_,
    clip_without_waiting_,
    finish_clipping,
)
from labkit.amp.loss_scaling.scaler import StepReport
from labkit.amp.loss_scaling.unscale import (
    largest_magnitudes,
    non_finite_flags,
    read,
    unscale_with_flags,
)
from labkit.amp.masters.weights import Weights
from labkit.instrument.events import StepEvent

StepListener = Callable[["StepEvent[StepReport]"], object]

# gradients, one for each tensor that the optimizer steps
Sum = list[Tensor | None]


class Stage(Enum):
    """The stages of a step's gradients, in order; zero_grad returns to the first."""

    SCALED = "those of each loss are multiplied by its scale, and another backward may add to them"
    UNSCALED = "they are one unscaled sum, to inspect, clip and step with"
    CONSUMED = "a step has used them, or was skipped"


@dataclass(frozen=True)
class _ModelGradients:
    """Gradients that the last backward left in the model, with their loss, scale and versions."""

    loss_id: int
    scale: float
    gradients: list[tuple[nn.Parameter, Tensor, int]]

    def changed(self) -> bool:
        return any(
            p.grad is not gradient or gradient._version != version
            for p, gradient, version in self.gradients
        )

    def __getstate__(self) -> dict[str, Any]:
        """Store how often each gradient has changed, because a copy's version restarts."""
        return {
            **self.__dict__,
            "gradients": [(p, g, g._version - version) for p, g, version in self.gradients],
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the gradients of the copied model, which copy.deepcopy and pickle omit."""
        for parameter, gradient, _ in state["gradients"]:
            parameter.grad = gradient
        self.__dict__.update(
            state, gradients=[(p, g, g._version - times) for p, g, times in state["gradients"]]
        )


class StepGradients:
    """The gradients of one step, from the model to the optimizer.

    Attributes:
        stage: their stage.
        found: loss -> found_inf, set by `read_found`.
        maybe_changed: the unscaled gradients may have been changed since they were checked:
            `read_found` checks again.
        clippings: pending clips, which `read_found` completes.
        zeros: parameters whose gradient is zeros until backward adds to it -> its layout.
    """

    def __init__(
        self, weights: Weights, zeros: Mapping[nn.Parameter, torch.layout] | None = None
    ) -> None:
        self.weights = weights
        self.zeros = dict(zeros or {})
        created: list[tuple[nn.Parameter, Tensor, int]] = []
        for parameter, layout in self.zeros.items():
            parameter.grad = torch.zeros_like(parameter, layout=layout)
            created.append((parameter, parameter.grad, parameter.grad._version))
        # the zeros that are in the model until the first backward
        self._created = _ModelGradients(0, 1.0, created) if created else None
        self._reached = list(self.zeros.items())
        self.stage = Stage.SCALED
        self.found: dict[int, bool] = {}
        self.maybe_changed = False
        self.clippings: list[Clipping] = []
        # flags for inf and NaN: a list for each loss, on the devices of its gradients
        self._flags: dict[int, list[Tensor]] = {}
        self._in_model: _ModelGradients | None = None
        # the sums for each loss and scale, as long as they are scaled
        self._sums: dict[tuple[int, float], Sum] = {}
        # the sum for all losses, after unscaling
        self._total: Sum = []

    @property
    def has_pending(self) -> bool:
        """Whether there are gradients that no step has used."""
        scaled = self._in_model is not None or bool(self._sums)
        return scaled or (
            self.stage is Stage.UNSCALED and any(gradient is not None for gradient in self._total)
        )

    def before_backward(self) -> None:
        """Prepare for another backward: accumulate the gradients of the last one.

        Raises:
            RuntimeError: the gradients are unscaled or consumed already, or another backward
                computed them.
        """
        if self.stage is not Stage.SCALED:
            state = (
                "used by a step" if self.stage is Stage.CONSUMED else "unscaled, and maybe clipped"
            )
            raise RuntimeError(
                f"backward() would add to gradients that are already {state}. Call zero_grad() "
                "first."
            )
        self._collect()

    def after_backward(self, loss_id: int, scale: float) -> None:
        """Record the loss and the scale of the gradients that backward just left."""
        gradients = [
            (p, p.grad, p.grad._version) for p in self.weights.model_weights if p.grad is not None
        ]
        self._in_model = _ModelGradients(loss_id, scale, gradients)
        self._created = None
        self._reached += [(p, gradient.layout) for p, gradient, _ in gradients]

    def reached(self) -> dict[nn.Parameter, torch.layout]:
        """Return the parameters with a gradient since they were last set to None -> its layout."""
        here = [(p, p.grad.layout) for p in self.weights.model_weights if p.grad is not None]
        return dict(self._reached + here)

    def _collect(self) -> None:
        """Move the gradients out of the model, and add them to those of the same loss and scale."""
        left = self._in_model
        if left is None:
            foreign = [
                name for parameter, name in self.weights.names.items() if parameter.grad is not None
            ]
            zeros = self._created
            if foreign and (
                zeros is None or len(foreign) != len(zeros.gradients) or zeros.changed()
            ):
                raise RuntimeError(
                    "expected gradients of this engine's backward() only, got one of "
                    f"{foreign[0]!r} from elsewhere, whose scale is unknown. Call "
                    "engine.backward(loss), not loss.backward(). If another engine's loss reaches "
                    "this model, call that engine's backward(loss, other_engines=[this_engine]), "
                    "or zero_grad() before this engine's backward()."
                )
            return
        if left.scale != 1 and left.changed():
            raise RuntimeError(
                "gradients were changed between backward() and step(), while they are "
                f"{left.scale:g} times too large. Clipping would make them far too small, and "
                "another engine's backward() mixes two scales. Use engine.clip(max_norm), or "
                "change the unscaled gradients that engine.gradients() returns."
            )
        key = (left.loss_id, left.scale)
        new = self.weights.scaled_gradients()
        before = self._sums.get(key)
        self._sums[key] = new if before is None else _added(before, new)
        for parameter in self.weights.model_weights:
            parameter.grad = None
        self._in_model = None

    def unscaled(self) -> Sum:
        """Return the sum of all losses' gradients, unscaled; None for a tensor without a gradient.

        Raises:
            RuntimeError: the scaled ones were changed.
        """
        if self.stage is Stage.SCALED:
            self._collect()
            self._total = [None] * len(self.weights.optimizer_weights)
            for (loss_id, scale), scaled in self._sums.items():
                self._total, flags = add_unscaled(self._total, scaled, scale)
                self._flags.setdefault(loss_id, []).extend(flags)
            # a sum of finite gradients may overflow
            self.maybe_changed = len(self._sums) > 1
            self._sums = {}
            self.stage = Stage.UNSCALED
        return self._total

    def read_found(self, others: Sequence[Tensor] = ()) -> list[float]:
        """Set `found`, complete the pending clips, and return the values of `others`.

        It waits for the device once: `others` are scalars on their devices, which are read in the
        same transfer.
        """
        gradients = [g for g in self._total if g is not None]
        again = non_finite_flags(gradients) if self.maybe_changed else []
        flags = [flag for flags in self._flags.values() for flag in flags]
        lengths = [clipping.length for clipping in self.clippings]
        # one transfer for all of them, consumed below in the same order
        values = iter(read([*flags, *again, *lengths, *others]))
        found = {i: any(list(islice(values, len(flags)))) for i, flags in self._flags.items()}
        anywhere = any(list(islice(values, len(again))))
        # inf or NaN that came after the first check belong to no loss, so to every one
        if anywhere and not any(found.values()):
            found = dict.fromkeys(found, True)
        self.found = found
        for clipping in self.clippings:
            finish_clipping(gradients, clipping, next(values))
        self.clippings = []
        self.maybe_changed = False
        return list(values)

    def clip(self, max_norm: float, norm_type: float, measure: Measure) -> Tensor:
        """Clip without waiting for the gradients' device, on a CPU at once.

        Returns:
            The norm before.
        """
        self.unscaled()
        self._total = coalesced(self._total)
        gradients = [g for g in self._total if g is not None]
        self._finish_clippings()
        if not gradients or gradients[0].is_cpu:
            return clip_(gradients, max_norm, norm_type, measure)
        self.clippings.append(clip_without_waiting_(gradients, max_norm, norm_type, measure))
        return self.clippings[-1].length

    def to_change(self) -> Sum:
        """Return the unscaled gradients, which the caller may change: they are checked again."""
        self.unscaled()
        self._total = coalesced(self._total)
        self._finish_clippings()
        self.maybe_changed = True
        return self._total

    def _finish_clippings(self) -> None:
        """Wait for the device, and complete the pending clips."""
        for clipping in self.clippings:
            finish_clipping(
                [g for g in self._total if g is not None], clipping, float(clipping.length)
            )
        self.clippings = []


class StepInspection(NamedTuple):
    """Values that a step reads from the device, in one transfer.

    Attributes:
        edited: the model's weights were changed since the last step.
        beyond_range: the forward pass cast finite numbers to infinity.
        culprits: the names of the gradients that hold inf or NaN; None: not read.
        bad_weights: the names of the weights that hold inf or NaN; None: not read.
        loss_size: the magnitude of the loss; None: not read.
    """

    edited: bool
    beyond_range: bool
    culprits: tuple[str, ...] | None
    bad_weights: tuple[str, ...] | None
    loss_size: float | None

    def cause_beyond_gradients(self, weights: Weights, loss: Tensor) -> str:
        """Return a sentence on a non-finite weight or loss, which no scale repairs, or ""."""
        bad, size = self.bad_weights, self.loss_size
        # the scaler's rule for skips in a row is not the usual one
        if bad is None or size is None:
            *sizes, size = read(largest_magnitudes([*weights.model_weights, loss]))
            bad = not_finite(weights.stepped_names, sizes)
        if bad:
            return f" Weight {bad[0]!r} holds inf or NaN itself: resume from an earlier checkpoint."
        if not math.isfinite(size):
            return f" The unscaled loss is {loss.item()}: the cause is in the forward pass."
        return ""


def not_finite(names: Iterable[str], sizes: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the tensors whose largest magnitude is inf or NaN."""
    return tuple(name for name, size in zip(names, sizes, strict=False) if not math.isfinite(size))


def add_unscaled(total: Sum, scaled: Sum, scale: float) -> tuple[Sum, list[Tensor]]:
    """Unscale gradients, in place where they are FP32, and add them to a sum of unscaled ones.

    Returns:
        the new sum, and flags on the gradients' devices: not 0 where one of `scaled` holds inf or
        NaN.
    """
    arrived = [gradient for gradient in scaled if gradient is not None]
    plain, flags = unscale_with_flags(arrived, scale, in_place=True)
    each = iter(plain)
    unscaled = [None if gradient is None else next(each) for gradient in scaled]
    return _added(total, unscaled), flags


def _added(first: Sum, second: Sum) -> Sum:
    """Add gradients in FP32; one that only one side has is returned unchanged."""
    pairs = zip(first, second, strict=True)
    return [_sum_of_two(a, b) for a, b in pairs]


def _sum_of_two(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    total = _fp32(a) + _fp32(b)
    # FP32 gradients keep their duplicates, as in a plain loop
    narrow = a.dtype != torch.float32 or b.dtype != torch.float32
    return total.coalesce() if total.is_sparse and narrow else total


def coalesced(gradients: Sequence[Tensor | None]) -> Sum:
    """Return gradients in which each row of a sparse one is one number: a norm needs that."""
    return [g.coalesce() if g is not None and g.is_sparse else g for g in gradients]


def _fp32(gradient: Tensor) -> Tensor:
    return gradient if gradient.dtype == torch.float64 else gradient.float()
