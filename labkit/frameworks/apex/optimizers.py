"""apex's loss scales, and optimizers whose steps use the gradients of several losses and models.

Idea: each optimizer is prepared separately: its methods are patched to accumulate gradients by
`frameworks.steps`. A loss whose gradients hold inf or NaN skips the next step of each of its
optimizers.

Invariant: a step uses the unscaled sum of all losses since the last one, finite if the scale is
dynamic.

Source: apex.amp.scaler, LossScaler (names, defaults; a static scale looks at no gradient);
apex.amp.handle, scale_loss (which steps are skipped); apex.amp._process_optimizer (stash, in-place
patches of step, zero_grad and add_param_group).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from types import MethodType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from labkit.amp import PRESETS, autocast, static
from labkit.amp.casting.autocast import current
from labkit.frameworks.steps import LossScale, Steps
from labkit.modes import as_now


class LossScaler(LossScale):
    """The scale of one loss.

    Args:
        loss_scale: "dynamic", or a number that never changes.
        min_loss_scale: the smallest scale that backing off leads to; None: no limit.
        max_loss_scale: the largest scale that growing leads to.

    >>> scaler = LossScaler("dynamic")
    >>> scaler.must_skip(found_inf=True), scaler.loss_scale()
    (True, 32768.0)
    """

    def __init__(
        self,
        loss_scale: float | str,
        min_loss_scale: float | None = None,
        max_loss_scale: float = 2.0**24,
    ) -> None:
        try:
            if loss_scale != "dynamic":
                rule = static(float(loss_scale), skip_on_inf=False)
            else:
                apex = PRESETS["apex"]
                # None or 0: no limit but that of FP32
                floor = min_loss_scale or apex.floor
                start = min(apex.init_scale, max_loss_scale)
                rule = replace(apex, init_scale=start, floor=floor, cap=max_loss_scale)
        except ValueError as error:
            raise ValueError(
                f"{loss_scale=}, {min_loss_scale=}, {max_loss_scale=}: {error}"
            ) from None
        super().__init__(rule)

    @property
    def dynamic(self) -> bool:
        """Whether the scale is dynamic."""
        return self.rule.dynamic

    def loss_scale(self) -> float:
        return self.state.scale

    def _set_loss_scale(self, scale: float) -> None:
        self.state = replace(self.state, scale=scale)

    # apex has no public way to set a scale, so scripts set this attribute
    _loss_scale = property(loss_scale, _set_loss_scale)


NESTED = (
    "A block of scale_loss is open for this optimizer, and another began in it: they would unscale "
    "the same gradients twice. End the first block before the second one, or scale the sum of the "
    "losses."
)


class Prepared(Steps):
    """An optimizer prepared by `initialize`, or a wrapper with `param_groups` and `step`.

    Attributes:
        scaled_by: the scale of the gradients in the model, until they are unscaled (delay_unscale).
        skips: skip the next step, because of inf or NaN in a loss's gradients.
    """

    def __init__(self, optimizer: Any, names: Mapping[Tensor, str], *, masters: bool) -> None:
        super().__init__(optimizer, names, masters=masters)
        self.masters = masters
        self.skips = False
        self.scaled_by: float | None = None
        self._step = optimizer.step
        self._zero_grad = optimizer.zero_grad
        self._add_param_group = getattr(optimizer, "add_param_group", None)
        self._patch(optimizer)

    def _patch(self, optimizer: Any) -> None:
        """Replace the optimizer's methods by this object's, as apex patches them."""

        # A schedule that was constructed before has marked the method, to check the order of calls;
        # `wraps` copies the mark.
        @wraps(optimizer.step)
        def step(_: Any, *args: Any, **kwargs: Any) -> Any:
            return self.step(*args, **kwargs)

        # `step` has to be a bound method, since torch's schedules patch it in turn
        optimizer._amp_stash = self
        optimizer.step = MethodType(step, optimizer)
        optimizer.zero_grad = self.zero_grad
        if self._add_param_group is not None:
            optimizer.add_param_group = self.add_param_group

    def require_free(self, scale: float) -> None:
        """Raise an error for gradients of another scale, or a second block of `scale_loss`."""
        if self.scaled_by not in (None, scale):
            raise RuntimeError(
                f"expected a loss with the scale {self.scaled_by:g} of the pending gradients "
                f"(delay_unscale=True), got one with {scale:g}: their sum would have no scale. "
                "Unscale each loss, or use the same loss_id."
            )
        if self.scaled_by is None and self._waiting is not None:
            raise RuntimeError(NESTED)

    def unscale(self, scale: float) -> bool:
        if self._waiting is None:
            raise RuntimeError(NESTED)
        self.scaled_by = None
        return super().unscale(scale)

    def undo(self) -> None:
        if self.scaled_by is None:
            super().undo()

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Step or skip, copy the masters into the model, and clear their gradients."""
        if self.scaled_by is not None:
            raise RuntimeError(
                f"step() would use gradients that are {self.scaled_by:g} times too large: the last "
                "scale_loss had delay_unscale=True. Leave it out in the last scale_loss before a "
                "step."
            )
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (self.skips or self.masters):
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers: it would run "
                "backward inside the step, too late to unscale. Run it before, and call step() "
                "without one."
            )
        skips = self.skips
        self.skips = False
        result = None
        if not skips:
            result = self._take(*args, **kwargs)
        # a scale_loss in the step's closure has set it
        if self.skips:
            raise RuntimeError(
                "A closure's gradients held inf or NaN, and the step that called it could not be "
                "skipped: the weights are corrupt. Use an optimizer that steps once (SGD, Adam "
                "...), or a smaller static loss_scale."
            )
        self.forget()
        return result

    def _take(self, *args: Any, **kwargs: Any) -> Any:
        """Step, and copy the masters into the model."""
        # the forward pass of a closure is cast as outside of the step
        args, kwargs = tree_map_only(callable, as_now, (args, kwargs))
        with autocast(enabled=False) if current() is not None else nullcontext():
            self.adopt_edits()
            result = self._step(*args, **kwargs)
            self.copy_back()
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Clear the gradients of the optimizer and of the model, which may be different ones."""
        self._zero_grad(*args, **kwargs)
        if self.scaled_by is not None:
            # the block that left scaled gradients has ended
            self._waiting = None
        elif self._waiting is not None:
            # inside a block of scale_loss: the stash stays, and is empty
            self._waiting = [None] * len(self._waiting)
        self.scaled_by = None
        self.forget(model=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, or of masters if the optimizer steps masters."""
        self.add_group(param_group, self._add_param_group)  # type: ignore[arg-type]


@contextmanager
def unscaled_after(prepared: list[Prepared], scale: float, delay: bool) -> Iterator[list[bool]]:
    """Unscale the gradients that a block computes, when it ends.

    Args:
        prepared: the optimizers of the gradients.
        scale: the scale of the loss.
        delay: leave the gradients scaled.

    Yields:
        A list that is filled after the block: found_inf of each optimizer. It stays empty with
        `delay`.
    """
    found: list[bool] = []
    for optimizer in prepared:
        optimizer.require_free(scale)
    try:
        for optimizer in prepared:
            optimizer.before_backward()
        yield found
    except BaseException:
        for optimizer in prepared:
            optimizer.undo()
        raise
    for optimizer in prepared:
        if delay:
            optimizer.scaled_by = scale
        else:
            found.append(optimizer.unscale(scale))


def listed_optimizers(optimizers: Any) -> list[Any]:
    """Return optimizers as a list.

    Raises:
        TypeError: something is not an optimizer.
        RuntimeError: an optimizer was initialized before.
    """
    if optimizers is None:
        listed = []
    elif isinstance(optimizers, list):
        listed = optimizers
    else:
        listed = [optimizers]
    for optimizer in listed:
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
            raise TypeError(
                "optimizers must be either a single optimizer or a list of optimizers; got "
                f"{optimizer!r}."
            )
        if hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                "A given optimizer should only be passed through amp.initialize once. Make a new "
                "one, over model.parameters() of a model in FP32."
            )
    return listed


def __getattr__(name: str) -> Any:
    if name.startswith("Fused"):
        raise AttributeError(
            f"{name} is a kernel of apex for GPUs. torch.optim has the same optimizers: SGD, Adam, "
            "and others."
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
