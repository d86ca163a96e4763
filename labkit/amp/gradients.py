"""Where are the gradients between backward and step, and are they still multiplied by a scale?

Idea: backward leaves them in the model, scaled and in the model's format. From there each loss's are added up in FP32,
still scaled; then all are unscaled and summed, once; then a step takes them. Scaled and unscaled ones never meet, and
nobody takes the same ones twice.

Invariant: `unscaled()` is the gradient of the sum of all losses since the last zero_grad, in FP32.

Source: torch.amp.GradScaler (READY, UNSCALED, STEPPED); apex.amp.scale_loss (sums in FP32, a scale for each loss).
"""

from __future__ import annotations

import torch
from torch import Tensor

from labkit.amp.masters.weights import Weights
from labkit.amp.scaling.unscale import unscale

Sum = list[Tensor | None]  # gradients, one for each tensor that the optimizer steps


class Gradients:
    """The gradients of one step, on their way from the model to the optimizer.

    found   loss -> found_inf, once they are unscaled
    lent    somebody may have changed them since: `look_again` before a step
    taken   a step, or the decision to skip it, has used them
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.found: dict[int, bool] = {}
        self.lent = self.taken = False
        self._arrived: tuple[int, float] | None = None  # loss and scale of what the last backward left in the model
        self._left: list[tuple[Tensor, int]] = []  # that, with the version it had then
        self._sums: dict[tuple[int, float], Sum] = {}  # of each loss and scale, scaled
        self._total: Sum | None = None  # of all losses, unscaled

    @property
    def wait(self) -> bool:
        """Whether gradients are here that no step has used."""
        unscaled = any(gradient is not None for gradient in self._total or ())
        return not self.taken and (self._arrived is not None or bool(self._sums) or unscaled)

    def make_room(self) -> None:
        """Prepare for another backward.

        Raises:
            RuntimeError: what is here is unscaled, and may be clipped or used; or it is none of the engine's.
        """
        if self.taken or self._total is not None:
            what = "a step that was taken" if self.taken else "a step of which some are unscaled and maybe clipped"
            raise RuntimeError(f"backward() would add to the gradients of {what}. Call zero_grad() first.")
        self._collect()

    def arrive(self, loss_id: int, scale: float) -> None:
        """Note whose gradients backward has just left in the model, and by what they are multiplied."""
        there = [p.grad for p in self.weights.model_weights if p.grad is not None]
        self._arrived, self._left = (loss_id, scale), [(gradient, gradient._version) for gradient in there]

    def _collect(self) -> None:
        if self._arrived is None:
            strange = [name for parameter, name in self.weights.names.items() if parameter.grad is not None]
            if strange:
                raise RuntimeError(
                    f"{strange[0]!r} has a gradient that this engine's backward() did not leave, and nobody knows how "
                    "it is scaled. Call engine.backward(loss), not loss.backward(); where another engine's loss comes "
                    "through this model, engine.backward(loss, also=[this]), or zero_grad() before this engine's turn."
                )
            return
        if self._arrived[1] != 1 and any(gradient._version != version for gradient, version in self._left):
            raise RuntimeError(
                f"gradients were changed between backward() and step(), while they are {self._arrived[1]:g} times too "
                "large. Clipping would leave nothing of them, and another engine's backward() mixes two scales. Use "
                "engine.clip(max_norm), or change what engine.gradients() returns: it is unscaled."
            )
        here, before = self.weights.gradients(), self._sums.get(self._arrived)
        self._sums[self._arrived] = here if before is None else _added(before, here)
        for parameter in self.weights.model_weights:
            parameter.grad = None
        self._arrived, self._left = None, []

    def unscaled(self) -> Sum:
        """Return the sum of all losses' gradients, unscaled, and set `found`; None for a tensor that none reached.

        Raises:
            RuntimeError: somebody changed the scaled ones.
        """
        if self._total is None:
            self._collect()
            self._total = [None] * len(self.weights.optimizer_weights)
            for (loss_id, scale), scaled in self._sums.items():
                plain, found_inf = unscale([g for g in scaled if g is not None], scale, in_place=True)
                each = iter(plain)
                self._total = _added(self._total, [None if g is None else next(each) for g in scaled])
                self.found[loss_id] = self.found.get(loss_id, False) or found_inf
            self.lent = len(self._sums) > 1  # finite ones may have a sum that is not
            self._sums = {}
        return self._total

    def look_again(self) -> None:
        """Look for inf and NaN in what a step would take, if it is not what was looked at before."""
        if not self.lent or any(self.found.values()):
            return
        if not all(finite(gradient) for gradient in self._total or () if gradient is not None):
            self.found = dict.fromkeys(self.found, True)


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
