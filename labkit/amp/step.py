"""Gradients of one training step, from backward to the optimizer, and the events for listeners.

Backward leaves gradients in the model, scaled and in the model's format. They are added up in FP32
for each loss, still scaled. Then all are unscaled and summed, once, and one step uses them. Scaled
and unscaled gradients are never mixed, and none is used twice. Whether they are finite is computed
on their device; `read_found_inf` brings the results to the host in one transfer, with all other
values that the step needs. Without a listener no event is constructed.

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

A step without any gradient returns to "created". A step whose forward pass cast finite numbers to
infinity (`labkit.amp.ranges`) is skipped, and the scale stays.

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
from labkit.amp.loss_scaling.magnitudes import largest_magnitudes
from labkit.amp.loss_scaling.readings import read_scalars
from labkit.amp.loss_scaling.scaler import StepReport
from labkit.amp.loss_scaling.unscale import non_finite_flags, unscale_with_flags
from labkit.amp.masters.weights import Weights
from labkit.gemm.half_storage import HALVES
from labkit.instrument.events import StepEvent

StepListener = Callable[["StepEvent[StepReport]"], object]

# one for each tensor that the optimizer steps; None for a tensor without a gradient
Gradients = list[Tensor | None]


class Stage(Enum):
    """The stages of a step's gradients, in order; zero_grad returns to the first."""

    SCALED = "multiplied by the scale of their loss; another backward may add to them"
    UNSCALED = "summed over the losses and unscaled, to inspect, clip and step with"
    CONSUMED = "used by a step, taken or skipped"


@dataclass(frozen=True)
class _ModelGradients:
    """Gradients that the last backward left in the model, with their loss, scale and versions."""

    loss_id: int
    scale: float
    gradients: list[tuple[nn.Parameter, Tensor, int]]

    def changed(self) -> bool:
        """Return whether a gradient was replaced or edited in place since backward."""
        return any(
            p.grad is not gradient or gradient._version != version
            for p, gradient, version in self.gradients
        )

    def __getstate__(self) -> dict[str, Any]:
        """Store how often each gradient has changed, because a copy's version restarts."""
        edits = [(p, g, g._version - version) for p, g, version in self.gradients]
        return {**self.__dict__, "gradients": edits}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the gradients of the copied model, which copy.deepcopy and pickle omit."""
        gradients: list[tuple[nn.Parameter, Tensor, int]] = []
        for parameter, gradient, edits in state["gradients"]:
            parameter.grad = gradient
            gradients.append((parameter, gradient, gradient._version - edits))
        self.__dict__.update(state, gradients=gradients)


class StepGradients:
    """The gradients of one step, from the model to the optimizer.

    Attributes:
        stage: the stage of the gradients.
        found_inf: loss -> whether its gradients hold inf or NaN; set by `read_found_inf`.
        maybe_changed: whether the unscaled gradients may have changed since they were checked, so
            that `read_found_inf` checks again.
        clippings: pending clips, which `read_found_inf` completes.
        zeros: parameters whose gradient is zeros until backward adds to it -> its layout.
    """

    def __init__(
        self, weights: Weights, zeros: Mapping[nn.Parameter, torch.layout] | None = None
    ) -> None:
        self.weights = weights
        self.zeros = dict(zeros or {})
        zeros_in_model: list[tuple[nn.Parameter, Tensor, int]] = []
        for parameter, layout in self.zeros.items():
            parameter.grad = torch.zeros_like(parameter, layout=layout)
            zeros_in_model.append((parameter, parameter.grad, parameter.grad._version))
        # the zeros that are in the model until the first backward; None without any
        self._zeros_in_model: _ModelGradients | None = None
        if zeros_in_model:
            self._zeros_in_model = _ModelGradients(0, 1.0, zeros_in_model)
        # parameters that had a gradient since zero_grad, each with the layout of its gradient
        self._layouts = list(self.zeros.items())
        self.stage = Stage.SCALED
        self.found_inf: dict[int, bool] = {}
        self.maybe_changed = False
        self.clippings: list[Clipping] = []
        # flags for inf and NaN: a list for each loss, on the devices of its gradients
        self._flags: dict[int, list[Tensor]] = {}
        self._in_model: _ModelGradients | None = None
        # the sums for each loss and scale, as long as they are scaled
        self._sums: dict[tuple[int, float], Gradients] = {}
        # the sum for all losses, after unscaling
        self._total: Gradients = []

    @property
    def has_pending(self) -> bool:
        """Whether there are gradients that no step has used."""
        if self._in_model is not None or self._sums:
            return True
        return self.stage is Stage.UNSCALED and any(g is not None for g in self._total)

    def before_backward(self) -> None:
        """Prepare for another backward: accumulate the gradients of the last one.

        Raises:
            RuntimeError: the gradients are unscaled or consumed already, or another backward
                computed them.
        """
        if self.stage is not Stage.SCALED:
            state = "unscaled, and maybe clipped"
            if self.stage is Stage.CONSUMED:
                state = "used by a step"
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
        self._zeros_in_model = None
        self._layouts += [(p, gradient.layout) for p, gradient, _ in gradients]

    def gradient_layouts(self) -> dict[nn.Parameter, torch.layout]:
        """Return parameter -> layout of its gradient, for those with a gradient since zero_grad."""
        in_model = [(p, p.grad.layout) for p in self.weights.model_weights if p.grad is not None]
        return dict(self._layouts + in_model)

    def _collect(self) -> None:
        """Move the gradients out of the model, and add them to those of the same loss and scale."""
        collected = self._in_model
        if collected is None:
            self._require_no_foreign_gradients()
            return
        if collected.scale != 1 and collected.changed():
            raise RuntimeError(
                "gradients were changed between backward() and step(), while they are "
                f"{collected.scale:g} times too large. Clipping would make them far too small, and "
                "another engine's backward() mixes two scales. Use engine.clip(max_norm), or "
                "change the unscaled gradients that engine.gradients() returns."
            )
        key = (collected.loss_id, collected.scale)
        gradients = self.weights.scaled_gradients()
        if key in self._sums:
            gradients = _added(self._sums[key], gradients)
        self._sums[key] = gradients
        for parameter in self.weights.model_weights:
            parameter.grad = None
        self._in_model = None

    def _require_no_foreign_gradients(self) -> None:
        """Refuse gradients in the model that no backward of this engine has computed."""
        in_model = [name for p, name in self.weights.names.items() if p.grad is not None]
        if not in_model:
            return
        # the zeros of zero_grad(set_to_none=False) are ours, as long as nothing was added to them
        zeros = self._zeros_in_model
        if zeros is not None and len(in_model) == len(zeros.gradients) and not zeros.changed():
            return
        raise RuntimeError(
            "expected gradients of this engine's backward() only, got one of "
            f"{in_model[0]!r} from elsewhere, whose scale is unknown. Call "
            "engine.backward(loss), not loss.backward(). If another engine's loss reaches "
            "this model, call that engine's backward(loss, other_engines=[this_engine]), "
            "or zero_grad() before this engine's backward()."
        )

    def unscaled(self) -> Gradients:
        """Return the sum of all losses' gradients, unscaled.

        Raises:
            RuntimeError: the scaled gradients were changed.
        """
        if self.stage is Stage.SCALED:
            self._collect()
            self._total = [None] * len(self.weights.optimizer_weights)
            for (loss_id, scale), scaled in self._sums.items():
                self._total, flags = add_unscaled(self._total, scaled, scale)
                self._flags.setdefault(loss_id, []).extend(flags)
            # a sum of the finite gradients of several losses may overflow
            self.maybe_changed = len(self._sums) > 1
            self._sums = {}
            self.stage = Stage.UNSCALED
        return self._total

    def read_found_inf(self, others: Sequence[Tensor] = ()) -> list[float]:
        """Set `found_inf`, complete the pending clips, and read other scalars in the same transfer.

        Args:
            others: scalars, each on its device.

        Returns:
            The values of `others`.
        """
        gradients = [g for g in self._total if g is not None]
        again = non_finite_flags(gradients) if self.maybe_changed else []
        if self.weights.dtype in HALVES:
            # O3's optimizer gets the sums in FP16, which may be infinite there
            again = non_finite_flags([g.to(self.weights.dtype) for g in gradients])
        flags = [flag for flags in self._flags.values() for flag in flags]
        lengths = [clipping.length for clipping in self.clippings]
        # One transfer for all of them, consumed below in the same order. `list` reads the flags of
        # a loss to the end, where `any` would stop at the first.
        values = iter(read_scalars([*flags, *again, *lengths, *others]))
        found_inf: dict[int, bool] = {}
        for loss_id, own_flags in self._flags.items():
            found_inf[loss_id] = any(list(islice(values, len(own_flags))))
        changed_to_inf = any(list(islice(values, len(again))))
        # inf or NaN that came after the first check cannot be traced to one loss, so all have it
        if changed_to_inf and not any(found_inf.values()):
            found_inf = dict.fromkeys(found_inf, True)
        self.found_inf = found_inf
        for clipping in self.clippings:
            finish_clipping(gradients, clipping, next(values))
        self.clippings = []
        self.maybe_changed = False
        return list(values)

    def clip(self, max_norm: float, norm_type: float, measure: Measure) -> Tensor:
        """Clip the unscaled gradients, on a GPU without waiting for it.

        Returns:
            The total norm before clipping, a scalar.
        """
        self.unscaled()
        self._total = coalesced(self._total)
        gradients = [g for g in self._total if g is not None]
        self._finish_clippings()
        if not gradients or gradients[0].is_cpu:
            return clip_(gradients, max_norm, norm_type, measure)
        clipping = clip_without_waiting_(gradients, max_norm, norm_type, measure)
        self.clippings.append(clipping)
        return clipping.length

    def to_change(self) -> Gradients:
        """Return the unscaled gradients, which the caller may change: they are checked again."""
        self.unscaled()
        self._total = coalesced(self._total)
        self._finish_clippings()
        self.maybe_changed = True
        return self._total

    def _finish_clippings(self) -> None:
        """Wait for the device, and complete the pending clips."""
        gradients = [g for g in self._total if g is not None]
        for clipping in self.clippings:
            finish_clipping(gradients, clipping, float(clipping.length))
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
        bad_weights = self.bad_weights
        loss_size = self.loss_size
        # The step reads them before a diagnosis is due. Here they are read if it did not.
        if bad_weights is None or loss_size is None:
            *sizes, loss_size = read_scalars(largest_magnitudes([*weights.model_weights, loss]))
            bad_weights = not_finite(weights.stepped_names, sizes)
        if bad_weights:
            return (
                f" Weight {bad_weights[0]!r} holds inf or NaN itself: resume from an earlier "
                "checkpoint."
            )
        if not math.isfinite(loss_size):
            return f" The unscaled loss is {loss.item()}: the cause is in the forward pass."
        return ""


def not_finite(names: Iterable[str], sizes: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the tensors whose largest magnitude is inf or NaN.

    `sizes` may have more numbers than there are names: those are of other tensors.
    """
    return tuple(name for name, size in zip(names, sizes, strict=False) if not math.isfinite(size))


def add_unscaled(
    total: Gradients, scaled: Gradients, scale: float
) -> tuple[Gradients, list[Tensor]]:
    """Unscale gradients, in place where they are FP32, and add them to a sum of unscaled ones.

    Returns:
        The new sum, and flags on the gradients' devices: not 0 where a tensor of `scaled` holds inf
        or NaN.
    """
    present = [gradient for gradient in scaled if gradient is not None]
    unscaled, flags = unscale_with_flags(present, scale, in_place=True)
    in_order = iter(unscaled)
    with_gaps = [None if gradient is None else next(in_order) for gradient in scaled]
    return _added(total, with_gaps), flags


def _added(first: Gradients, second: Gradients) -> Gradients:
    """Add gradients in FP32; a gradient that only one side has is returned unchanged."""
    return [_sum_of_two(a, b) for a, b in zip(first, second, strict=True)]


def _sum_of_two(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None:
        return b
    if b is None:
        return a
    total = _fp32(a) + _fp32(b)
    # FP32 gradients keep their duplicates, as in a plain loop
    narrow = a.dtype != torch.float32 or b.dtype != torch.float32
    return total.coalesce() if total.is_sparse and narrow else total


def coalesced(gradients: Sequence[Tensor | None]) -> Gradients:
    """Return gradients whose sparse ones hold each element once, as a norm requires."""
    return [g.coalesce() if g is not None and g.is_sparse else g for g in gradients]


def _fp32(gradient: Tensor) -> Tensor:
    return gradient if gradient.dtype == torch.float64 else gradient.float()
