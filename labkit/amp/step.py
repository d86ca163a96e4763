"""One training step's gradients, between backward and the optimizer, and the moments at which listeners see them.

Backward leaves gradients in the model, scaled and in the model's format. From there each loss's are added up in FP32,
still scaled; then all are unscaled and summed, once; then a step takes them. Scaled and unscaled ones never meet, and
none are taken twice. Whether they are finite is decided on their device; `look` brings the answers to the host, in one
transfer with whatever else a step has to know. Listeners change nothing, and no event is made without one.

Invariant: `unscaled()` is the gradient of the sum of all losses since the last zero_grad, in FP32. Of a step that is
taken or skipped, the moments come in the order of `Moment`; forward and scaled once for each backward pass.

Source: torch.amp.GradScaler (READY, UNSCALED, STEPPED); apex.amp.scale_loss (sums in FP32, a scale for each loss).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.loss_scaling.clip import Clipping, finish_clipping
from labkit.amp.loss_scaling.scaler import StepReport
from labkit.amp.loss_scaling.unscale import non_finite_flags, read, unscale_with_flags
from labkit.amp.masters.weights import Weights


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


Sum = list[Tensor | None]  # gradients, one for each tensor that the optimizer steps


class Stage(Enum):
    """How far the gradients have come; each stage leads to the next, and zero_grad back to the first."""

    SCALED = "each loss's are multiplied by its scale, and another backward may add to them"
    UNSCALED = "they are one sum without a scale, which may be looked at, clipped and stepped with"
    TAKEN = "a step has used them, or was skipped"


@dataclass(frozen=True)
class _Left:
    """What the last backward left in the model: of which loss, at which scale, and each gradient's version then."""

    loss_id: int
    scale: float
    gradients: list[tuple[nn.Parameter, Tensor, int]]

    def changed(self) -> bool:
        return any(p.grad is not gradient or gradient._version != version for p, gradient, version in self.gradients)

    def __getstate__(self) -> dict[str, Any]:
        """Write down how often each gradient was changed since: a copy's version begins anew."""
        return {**self.__dict__, "gradients": [(p, g, g._version - version) for p, g, version in self.gradients]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Put the gradients into the copied model, which copy.deepcopy and pickle leave without."""
        for parameter, gradient, _ in state["gradients"]:
            parameter.grad = gradient
        self.__dict__.update(state, gradients=[(p, g, g._version - times) for p, g, times in state["gradients"]])


class StepGradients:
    """The gradients of one step, on their way from the model to the optimizer.

    stage             how far they have come
    found             loss -> found_inf, once `look` has waited for the device
    maybe_changed     the unscaled ones may have been written to since they were checked: `look` checks them again
    clippings         what they were clipped to, for `look` to finish where the device could not
    zeros             parameters that have a gradient of zeros until backward adds to it -> its layout
    """

    def __init__(self, weights: Weights, zeros: Mapping[nn.Parameter, torch.layout] | None = None) -> None:
        self.weights = weights
        self.zeros = dict(zeros or {})
        for parameter, layout in self.zeros.items():
            parameter.grad = torch.zeros_like(parameter, layout=layout)
        made = [(p, p.grad, p.grad._version) for p in self.zeros if p.grad is not None]
        self._made = _Left(0, 1.0, made) if made else None  # as long as no backward has come
        self._reached = dict(self.zeros)
        self.stage = Stage.SCALED
        self.found: dict[int, bool] = {}
        self.maybe_changed = False
        self.clippings: list[Clipping] = []
        self._flags: dict[int, list[Tensor]] = {}  # of each loss, on the devices of its gradients
        self._left: _Left | None = None
        self._sums: dict[tuple[int, float], Sum] = {}  # of each loss and scale, while they are scaled
        self._total: Sum = []  # of all losses, once they are not

    @property
    def wait(self) -> bool:
        """Whether gradients are here that no step has used."""
        scaled = self._left is not None or bool(self._sums)
        return scaled or (self.stage is Stage.UNSCALED and any(gradient is not None for gradient in self._total))

    def before_backward(self) -> None:
        """Prepare for another backward: add up what the last one left.

        Raises:
            RuntimeError: what is here is unscaled, and may be clipped or used; or it is none of the engine's.
        """
        if self.stage is not Stage.SCALED:
            taken = self.stage is Stage.TAKEN
            what = "a step that was taken" if taken else "a step of which some are unscaled and maybe clipped"
            raise RuntimeError(f"backward() would add to the gradients of {what}. Call zero_grad() first.")
        self._collect()

    def after_backward(self, loss_id: int, scale: float) -> None:
        """Note whose gradients backward has just left in the model, and by what they are multiplied."""
        there = [(p, p.grad, p.grad._version) for p in self.weights.model_weights if p.grad is not None]
        self._left, self._made = _Left(loss_id, scale, there), None
        self._reached.update((p, gradient.layout) for p, gradient, _ in there)

    def reached(self) -> dict[nn.Parameter, torch.layout]:
        """Return the parameters that have or had a gradient since they were last set to None -> its layout."""
        return self._reached | {p: p.grad.layout for p in self.weights.model_weights if p.grad is not None}

    def _collect(self) -> None:
        """Take the gradients out of the model, and add them to those of the same loss and scale."""
        if self._left is None:
            foreign = [name for parameter, name in self.weights.names.items() if parameter.grad is not None]
            made = self._made
            if foreign and (made is None or len(foreign) != len(made.gradients) or made.changed()):
                raise RuntimeError(
                    f"{foreign[0]!r} has a gradient that this engine's backward() did not leave, so its scale "
                    "is unknown. Call engine.backward(loss), not loss.backward(); where another engine's loss comes "
                    "through this model, engine.backward(loss, also=[this]), or zero_grad() before this engine's turn."
                )
            return
        if self._left.scale != 1 and self._left.changed():
            raise RuntimeError(
                f"gradients were changed between backward() and step(), while they are {self._left.scale:g} times too "
                "large. Clipping would leave nothing of them, and another engine's backward() mixes two scales. Use "
                "engine.clip(max_norm), or change what engine.gradients() returns: it is unscaled."
            )
        key = (self._left.loss_id, self._left.scale)
        here, before = self.weights.scaled_gradients(), self._sums.get(key)
        self._sums[key] = here if before is None else _added(before, here)
        for parameter in self.weights.model_weights:
            parameter.grad = None
        self._left = None

    def unscaled(self) -> Sum:
        """Return the sum of all losses' gradients, unscaled; None for a tensor that none reached.

        Raises:
            RuntimeError: the scaled ones were changed.
        """
        if self.stage is Stage.SCALED:
            self._collect()
            self._total = [None] * len(self.weights.optimizer_weights)
            for number, ((loss_id, scale), scaled) in enumerate(self._sums.items()):
                plain, flags = unscale_with_flags([g for g in scaled if g is not None], scale, in_place=True)
                each = iter(plain)
                these = [None if g is None else next(each) for g in scaled]
                self._total = _added(self._total, these) if number else these
                self._flags.setdefault(loss_id, []).extend(flags)
            self.maybe_changed = len(self._sums) > 1  # finite ones may have a sum that is not
            self._sums = {}
            self.stage = Stage.UNSCALED
        return self._total

    def look(self, others: Sequence[Tensor] = ()) -> list[float]:
        """Wait for the device, once; set `found`, finish what was clipped, and return the values of `others`.

        `others` are scalars on their devices that come to the host in the same transfer.
        """
        here = [g for g in self._total if g is not None]
        again = non_finite_flags(here) if self.maybe_changed else []
        flags = [flag for flags in self._flags.values() for flag in flags]
        values = iter(read([*flags, *again, *(clipping.length for clipping in self.clippings), *others]))
        found = {i: any(list(islice(values, len(flags)))) for i, flags in self._flags.items()}
        anywhere = any(list(islice(values, len(again))))
        self.found = dict.fromkeys(found, True) if anywhere and not any(found.values()) else found
        for clipping in self.clippings:
            finish_clipping(here, clipping, next(values))
        self.clippings, self.maybe_changed = [], False
        return list(values)

    def finish_clippings(self) -> None:
        """Wait for the device, and multiply by what was too small for one factor."""
        here = [g for g in self._total if g is not None]
        for clipping in self.clippings:
            finish_clipping(here, clipping, float(clipping.length))
        self.clippings = []


@dataclass(frozen=True)
class Seen:
    """What a step read from the device, in one transfer.

    edited        the model's weights were changed since the last step
    beyond_range  the forward pass cast finite numbers to infinity
    culprits      the names of the gradients that hold inf or NaN; None: not determined
    bad_weights   those of the weights, likewise
    loss_size     the magnitude of the loss, likewise
    """

    edited: bool
    beyond_range: bool
    culprits: tuple[str, ...] | None
    bad_weights: tuple[str, ...] | None
    loss_size: float | None


def not_finite(names: Iterable[str], sizes: Sequence[float]) -> tuple[str, ...]:
    """Return the names of the tensors whose largest magnitude is inf or NaN."""
    return tuple(name for name, size in zip(names, sizes, strict=False) if not math.isfinite(size))


def finite(tensor: Tensor) -> bool:
    """Whether a tensor, dense or sparse, holds neither inf nor NaN."""
    return bool(torch.isfinite(tensor._values() if tensor.is_sparse else tensor).all())


def _added(these: Sum, those: Sum) -> Sum:
    """Add up in FP32; what only one side has comes through as it is."""
    pairs = zip(these, those, strict=True)
    sums = (b if a is None else a if b is None else _fp32(a) + _fp32(b) for a, b in pairs)
    return [total.coalesce() if total is not None and total.is_sparse else total for total in sums]


def _fp32(gradient: Tensor) -> Tensor:
    return gradient if gradient.dtype == torch.float64 else gradient.float()
