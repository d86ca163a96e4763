"""Loss scales in apex's words, and optimizers whose steps take the gradients of several losses and models.

Idea: each optimizer is prepared on its own: its gradients go the way of `frameworks.steps`, which its own methods know
from then on. A loss whose gradients hold inf or NaN lets the next step of each of its optimizers pass. The rule of the
scale is `labkit.amp.decide`.

Invariant: a step is taken with the unscaled sum of all losses since the last one, finite ones where a scale moves.

Source: apex.amp.scaler, LossScaler (names, defaults; a static scale looks at no gradient); apex.amp.handle, scale_loss
(which steps are skipped); apex.amp._process_optimizer (stash, in-place patches of step, zero_grad and add_param_group);
apex.amp.frontend (load_state_dict).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import wraps
from types import MethodType
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from labkit.amp import PRESETS, ScalerState, autocast, decide, initial, static
from labkit.amp.casting.autocast import current
from labkit.frameworks.steps import Steps
from labkit.modes import as_now


class LossScaler:
    """The scale of one loss.

    Args:
        loss_scale: "dynamic", or a number that never moves.
        min_loss_scale: where backing off stops; None: nowhere.
        max_loss_scale: where growing stops.

    >>> scaler = LossScaler("dynamic")
    >>> scaler.must_skip(found_inf=True), scaler.loss_scale()
    (True, 32768.0)
    """

    def __init__(
        self, loss_scale: float | str, min_loss_scale: float | None = None, max_loss_scale: float = 2.0**24
    ) -> None:
        try:
            if loss_scale != "dynamic":
                self.config = static(float(loss_scale), skip_on_inf=False)
            else:
                least, apex = min_loss_scale or PRESETS["apex"].floor, PRESETS["apex"]
                start = min(apex.init_scale, max_loss_scale)
                self.config = replace(apex, init_scale=start, floor=least, cap=max_loss_scale)
        except ValueError as error:
            raise ValueError(f"{loss_scale=}, {min_loss_scale=}, {max_loss_scale=}: {error}") from None
        self._loss_scale, self._unskipped = initial(self.config).scale, 0  # scripts set them, for lack of another way

    @property
    def dynamic(self) -> bool:
        """Whether the scale moves."""
        return self.config.dynamic

    def loss_scale(self) -> float:
        """Return what the loss is multiplied by now."""
        return self._loss_scale

    def must_skip(self, found_inf: bool) -> bool:
        """Move the scale after a backward pass; return whether its gradients must not reach the weights."""
        decision = decide(ScalerState(self._loss_scale, self._unskipped), found_inf, self.config)
        self._loss_scale, self._unskipped = decision.after.scale, decision.after.growth_tracker
        return decision.skip


def load(stored: Mapping[str, Any], scalers: Sequence[LossScaler]) -> None:
    """Go on from an `amp.state_dict()`.

    Raises:
        RuntimeError: it holds something else; then nothing is loaded.

    Warns:
        UserWarning: it is of another number of losses; those that both have are loaded.
    """
    if not isinstance(stored, Mapping) or any("loss_scaler" not in key for key in stored):
        keys = ", ".join(map(repr, stored)) if isinstance(stored, Mapping) else repr(stored)
        raise RuntimeError(
            f"Error(s) in loading state_dict. Unexpected key(s) in state_dict: {keys}. "
            "This is no amp.state_dict(): that of the model or the optimizer is loaded by those."
        )
    if len(stored) != len(scalers):
        warnings.warn(
            f"state_dict contains {len(stored)} entries, while {len(scalers)} loss_scalers are used: give "
            f"amp.initialize num_losses={len(stored)} to go on with all of them.",
            stacklevel=3,
        )
    try:
        states = [ScalerState(float(each["loss_scale"]), int(each["unskipped"])) for each in stored.values()]
    except (KeyError, TypeError, ValueError) as error:
        wrong = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise RuntimeError(f"Error(s) in loading state_dict: {wrong}. Nothing was loaded.") from None
    for scaler, state in zip(scalers, states, strict=False):
        scaler._loss_scale, scaler._unskipped = state.scale, state.growth_tracker


LOG = logging.getLogger("labkit.frameworks.apex")


@contextmanager
def scaled(
    loss: Tensor, prepared: list[Prepared], scaler: LossScaler, *, delay: bool = False, checks: bool = True
) -> Iterator[Tensor]:
    """Yield a loss in FP32 times its scale; then unscale what it left, unless that is delayed, and move the scale.

    Raises:
        RuntimeError: gradients of another scale wait.
        TypeError: the loss is no tensor.
    """
    scale = scaler.loss_scale()
    for optimizer in prepared:
        optimizer.require_free(scale)
    try:
        for optimizer in prepared:
            optimizer.before_backward()
        yield wide(loss) * scale
    except BaseException:
        for optimizer in prepared:
            optimizer.undo()
        raise
    if delay:
        for optimizer in prepared:
            optimizer.scaled_by = scale
        return
    found = [optimizer.unscale(scale) for optimizer in prepared]
    if checks and scaler.must_skip(any(found)):
        LOG.warning("Gradient overflow.  Skipping step, reducing loss scale to %s", scaler.loss_scale())
        for optimizer in prepared:
            optimizer.skips = True


def wide(loss: Tensor) -> Tensor:
    """Return a loss in FP32."""
    if not isinstance(loss, Tensor):
        raise TypeError(f"the loss is the tensor that was computed, without .item() or float(); given: {loss!r}")
    return loss.float()


NESTED = (
    "A block of scale_loss is open for this optimizer, and another began in it: they would unscale the same gradients "
    "twice. End the first one before, or add the losses up and scale their sum."
)


class Prepared(Steps):
    """What the face keeps of one optimizer, or of what wraps one: anything with `param_groups` and `step`.

    scaled_by  what the gradients in the model are multiplied by, while nobody has unscaled them (delay_unscale)
    skips      the next step is not taken, for inf or NaN in a loss's gradients
    """

    def __init__(self, optimizer: Any, names: Mapping[Tensor, str], *, masters: bool) -> None:
        super().__init__(optimizer, names, masters=masters)
        self.masters, self.skips = masters, False
        self.scaled_by: float | None = None
        self._step, self._zero_grad = optimizer.step, optimizer.zero_grad
        self._add_param_group = getattr(optimizer, "add_param_group", None)

    def require_free(self, scale: float) -> None:
        """Refuse a loss of this scale where gradients of another one wait, or a block of `scale_loss` is open.

        Raises:
            RuntimeError: so it is.
        """
        if self.scaled_by not in (None, scale):
            raise RuntimeError(
                f"gradients that are {self.scaled_by:g} times too large wait here (delay_unscale=True), and this "
                f"loss has the scale {scale:g}: their sum has none. Unscale each loss, or give them one loss_id."
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
        """Step, or let this one pass; then the masters are copied into the model, and their gradients are gone.

        Raises:
            RuntimeError: gradients are still scaled; a closure is given where a step is skipped or has masters; or
                the gradients of a closure held inf or NaN.
        """
        if self.scaled_by is not None:
            raise RuntimeError(
                f"step() would take gradients that are {self.scaled_by:g} times too large: the last scale_loss had "
                "delay_unscale=True. Call the last one before a step without it."
            )
        closure = args[0] if args else kwargs.get("closure")
        if closure is not None and (self.skips or self.masters):
            raise RuntimeError(
                "Currently, Amp does not support closure use with optimizers: it would run backward inside the step, "
                "where nobody unscales. Run it before, and call step() without one."
            )
        skips, self.skips = self.skips, False
        result = None if skips else self._take(*args, **kwargs)
        if self.skips:
            raise RuntimeError(
                "A closure's gradients held inf or NaN, and the step that called it could not be skipped: the weights "
                "are spoilt. Take an optimizer that steps once (SGD, Adam ...), or a smaller static loss_scale."
            )
        self.forget()
        return result

    def _take(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(callable, as_now, (args, kwargs))  # a closure's forward is cast as any other
        with autocast(enabled=False) if current() is not None else nullcontext():
            self.adopt_edits()
            result = self._step(*args, **kwargs)
            self.copy_back()
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget gradients in the model too, which the optimizer does not know if it steps masters."""
        self._zero_grad(*args, **kwargs)
        self._waiting = None if self._waiting is None or self.scaled_by is not None else [None] * len(self._waiting)
        self.scaled_by = None
        self.forget(model=True)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Give the optimizer more to step, by masters where it steps masters."""
        self.add_group(param_group, self._add_param_group)  # type: ignore[arg-type]


def listed_optimizers(optimizers: Any) -> list[Any]:
    """Return the optimizers that `initialize` was given, as a list.

    Raises:
        TypeError: it was given something else.
        RuntimeError: one of them was here before.
    """
    listed = [] if optimizers is None else optimizers if isinstance(optimizers, list) else [optimizers]
    for optimizer in listed:
        if not (hasattr(optimizer, "param_groups") and hasattr(optimizer, "step")):
            raise TypeError(
                f"optimizers must be either a single optimizer or a list of optimizers; it was given {optimizer!r}."
            )
        if hasattr(optimizer, "_amp_stash"):
            raise RuntimeError(
                "A given optimizer should only be passed through amp.initialize once. Make a new one, over "
                "model.parameters() of a model in FP32."
            )
    return listed


def patch(optimizer: Any, prepared: Prepared) -> None:
    """Let the optimizer's own methods go through what was prepared, as apex patches them."""
    optimizer._amp_stash = prepared

    @wraps(optimizer.step)  # with the mark that a schedule has left on it, if there was one before
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        return prepared.step(*args, **kwargs)

    optimizer.step = MethodType(step, optimizer)  # bound, as schedulers of torch expect it
    optimizer.zero_grad = prepared.zero_grad
    if hasattr(optimizer, "add_param_group"):
        optimizer.add_param_group = prepared.add_param_group


def __getattr__(name: str) -> Any:
    if name.startswith("Fused"):
        raise AttributeError(f"{name} is a kernel of apex's for GPUs; torch.optim.SGD, Adam and others step the same.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
