"""What becomes of each optimizer step that a watch hears of?

Idea: torch's hooks tell of steps that were taken, sources of scalers and of steps that were skipped. Whichever tells,
the weights are looked at before and after, and where inf or NaN came, the step is asked again where from.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from labkit.instrument.faults import state_faults
from labkit.instrument.log import Log
from labkit.instrument.records import Finding, Skip
from labkit.instrument.replay import Call
from labkit.instrument.sample import Sample, finite, length, own_part
from labkit.instrument.sources import Gradients

SMALL = 4096  # elements: a gradient that is looked at in each step costs next to nothing


class OptimizerSteps:
    """The part of a watch that hears of steps, as `labkit.instrument.sources` tells of them."""

    model: nn.Module
    _log: Log
    _sample: Sample | None
    _calls: list[Call]
    _stepped: set[int]  # ids of the optimizers that have stepped in this step, or were skipped
    _parameters: dict[str, nn.Parameter]
    _weight_names: dict[int, str]
    _held: dict[int, tuple[Any, int, dict[str, Tensor]]]
    _only: torch.optim.Optimizer | None
    _loss: Callable[[Any], Tensor] | None
    _scale: Callable[[], float]
    _known_scale: float | None  # in this step
    _scaled: bool
    _inside_step: bool
    _by_source: bool

    @property
    def step(self) -> int:
        """The number of the step that is running, from 0."""
        return self._log.step

    @abstractmethod
    def _next(self) -> None: ...

    def _scale_now(self) -> float:
        if self._known_scale is None:
            self._known_scale = float(self._scale())
        return self._known_scale

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Hear what the next loss is multiplied by."""
        self._scale, self._scaled = scale, True
        if self._sample is None or not self._sample.norms:  # else gradients of this step were counted by what was known
            self._known_scale = None

    def holds(self, optimizer: Any) -> bool:
        """Say whether an optimizer has parameters of the model."""
        return (self._only is None or optimizer is self._only) and bool(self._held_by(optimizer))

    def _held_by(self, optimizer: Any) -> dict[str, Tensor]:
        """Return the model's parameters that an optimizer steps; looked up once, and when it has more."""
        total = sum(len(group["params"]) for group in optimizer.param_groups)
        _, known, held = self._held.get(id(optimizer), (None, 0, {}))
        if known != total:
            stepped = [p for group in optimizer.param_groups for p in group["params"] if id(p) in self._weight_names]
            held = {self._weight_names[id(p)]: p for p in stepped}
            if held:  # an optimizer that is kept is the only one of its id
                self._held[id(optimizer)] = optimizer, total, held
        return held

    def before_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._by_source or not self.holds(optimizer):
            return
        self._inside_step = True
        held = self._held_by(optimizer)
        if id(optimizer) in self._stepped:
            self._next()
        if self._sample is not None or not (self._scaled or self._looks_finite(held)):
            self.before_step(optimizer, held, _unscaled_gradients(optimizer, held))

    @staticmethod
    def _looks_finite(weights: dict[str, Tensor]) -> bool:
        """Look at one small gradient, which costs next to nothing: inf and NaN come to nearly all of them."""
        for weight in weights.values():
            if weight.numel() <= SMALL and weight.grad is not None and not weight.grad.is_sparse:
                return math.isfinite(abs(own_part(weight.grad).sum().item()))
        return True

    def after_optimizer(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not self._by_source and self.holds(optimizer):
            skipped = getattr(optimizer, "found_inf", None)  # of a fused optimizer, which skips by itself
            held = self._held_by(optimizer) if self._sample is not None or skipped else {}
            if skipped:
                self.skipped(optimizer, {name: p.grad for name, p in held.items()})
            else:
                self.after_step(optimizer, held, {name: p.grad for name, p in held.items()})

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Be open while a scaler decides on a step: it was skipped if the optimizer's hooks were not called."""
        if id(optimizer) in self._stepped:
            self._next()
        yield
        if id(optimizer) not in self._stepped:
            self.skipped(optimizer, {name: p.grad for name, p in self._held_by(optimizer).items()})

    @contextmanager
    def step_by_engine(self) -> Iterator[None]:
        """Be open while an engine steps, which tells of it itself: not torch's hooks."""
        self._by_source = True
        try:
            yield
        finally:
            self._by_source = False

    def before_unscale(self, optimizer: Any) -> None:
        """Compare the gradients that are still scaled with those that backward left."""
        if self._sample is None or id(optimizer) in self._stepped:
            return
        norms, scale = self._sample.norms, self._scale_now()
        held = {n: p.grad for n, p in self._held_by(optimizer).items() if p.grad is not None and n in norms}
        left, now = math.hypot(*(norms[n] for n in held)) * scale, length(held.values())
        if scale != 1 and math.isfinite(left) and now < 0.999 * left:
            says = f"while {scale:g} times too large, they were shortened from {left:.3g} to {now:.3g}; unscale_ first"
            self._log.find(Finding("clipped while scaled", "", self.step, says))

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights that a step is about to move, and at its unscaled gradients."""
        if id(optimizer) in self._stepped:
            self._next()
        if self._sample is not None:
            if self._by_source:
                self._sample.forget_gradients()
            self._replay_in_fp32(self._sample, gradients)
            self._sample.look_before(self._parameters, weights, gradients)
            self._log.note_sums(weights)
        counted = self._sample.counts["weight gradients"].values() if self._sample is not None else ()
        if not self._scaled and (self._sample is None or any(h.non_finite for h in counted)):
            self._name_culprit(gradients)

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights after a step."""
        self._inside_step = False
        self._stepped.add(id(optimizer))
        if self._sample is None or not self._sample.before:
            return
        self._sample.look_after(weights, gradients)
        self._log.note_moves(self._sample)
        self._sample.measure(self._parameters.values(), weights.values(), optimizer)
        for finding in state_faults(optimizer, weights, self.step):
            self._log.find(finding)

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Note a step that was not taken, and whose fault that was."""
        self._stepped.add(id(optimizer))
        self._inside_step = False
        culprits = tuple(name for name, g in gradients.items() if g is not None and not finite(g))
        shown = ", ".join(culprits[:3]) + f" and {len(culprits) - 3} more" * (len(culprits) > 3)
        why = why or f"inf or NaN in {shown or 'a gradient'}"
        self._log.skips.append(Skip(self.step, self._scale_now(), culprits, why))
        self._name_culprit(gradients)

    def _replay_in_fp32(self, sample: Sample, gradients: Gradients) -> None:
        observed, sample.kept = sample.kept, None
        if observed is not None:
            self._log.compare_with_fp32(self.model, self._calls, self._scale_now, observed, gradients, self._loss)

    def _name_culprit(self, gradients: Gradients) -> None:
        self._log.name_culprit(self.model, self._calls, self._scale_now, gradients)


def no_scale() -> float:
    """Return what a loss is multiplied by that nobody scales."""
    return 1.0


def _unscaled_gradients(optimizer: Any, held: dict[str, Tensor]) -> Gradients:
    """Return the gradients that a step is about to take; a fused optimizer unscales them inside."""
    scale = getattr(optimizer, "grad_scale", None)
    return {n: p.grad if scale is None or p.grad is None else p.grad / scale for n, p in held.items()}
