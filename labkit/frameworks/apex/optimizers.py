"""Loss scales in apex's words, and optimizers whose steps take the gradients of several losses and models.

Idea: each optimizer is prepared on its own. Before a backward pass the gradients that wait in it, unscaled, are put
aside; after it, the new ones are unscaled and added to them. A loss whose gradients hold inf or NaN lets the next step
of each of its optimizers pass. Which master belongs to which weight, and the way back, is `labkit.amp.Weights`; the
rule of the scale is `labkit.amp.decide`.

Invariant: between two losses `stepped.grad` is the unscaled sum of all losses since the last step, in FP32 where a
master is stepped, or the next step is skipped.

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

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp import PRESETS, ScalerState, Weights, autocast, decide, initial, static, unscale
from labkit.amp.casting.autocast import current
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


Groups = list[dict[str, Any]]
NESTED = (
    "A block of scale_loss is open for this optimizer, and another began in it: they would unscale the same gradients "
    "twice. End the first one before, or add the losses up and scale their sum."
)


class Prepared:
    """What the face keeps of one optimizer, or of what wraps one: anything with `param_groups` and `step`.

    scaled_by  what the gradients in the model are multiplied by, while nobody has unscaled them (delay_unscale)
    skips      the next step is not taken, for inf or NaN in a loss's gradients
    """

    def __init__(self, optimizer: Any, names: Mapping[Tensor, str], *, masters: bool) -> None:
        self.optimizer, self.names = optimizer, names
        self.scaled_by: float | None = None
        self.skips = False
        self._step, self._zero_grad = optimizer.step, optimizer.zero_grad
        self._add_param_group = getattr(optimizer, "add_param_group", None)
        self._waiting: list[Tensor | None] | None = None  # a list while a block of scale_loss is open
        self._weights: list[Weights] | None = [] if masters else None
        if masters:
            self._make_masters(optimizer.param_groups, self._step_masters)
        recast_state(optimizer)

    def _make_masters(self, groups: Groups, receive: Any) -> None:
        """Make the masters of groups that the optimizer has, or gets: `receive` puts them there."""
        assert self._weights is not None
        given = [
            {**group, "params": [p] if isinstance(p := group["params"], nn.Parameter) else list(p)} for group in groups
        ]
        trained = [[p for p in group["params"] if p.requires_grad] for group in given]
        named = _Named({p: self.names.get(p, "of a group") for weights in trained for p in weights})

        def place(with_masters: Groups) -> Any:
            for group, mastered in zip(given, with_masters, strict=True):
                masters = iter(mastered["params"])
                group["params"] = [next(masters) if p.requires_grad else p for p in group["params"]]
            receive(given)
            return self.optimizer

        self._weights.append(Weights(named, place, groups=[{"params": weights} for weights in trained]))

    def _step_masters(self, groups: Groups) -> None:
        for group, mastered in zip(self.optimizer.param_groups, groups, strict=True):
            for weight, master in zip(group["params"], mastered["params"], strict=True):
                if master is not weight and weight in self.optimizer.state:
                    self.optimizer.state[master] = self.optimizer.state.pop(weight)
            group["params"] = mastered["params"]

    def _pairs(self) -> list[tuple[Tensor, Tensor]]:
        """Return (weight of a model, what the optimizer steps for it), the same tensor where it has no master."""
        if self._weights is None:
            return [(p, p) for group in self.optimizer.param_groups for p in group["params"]]
        return [pair for w in self._weights for pair in zip(w.model_weights, w.master_weights, strict=True)]

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

    def before_backward(self) -> None:
        """Put aside the unscaled gradients of the losses before."""
        if self.scaled_by is not None:
            return  # what is there is scaled, and this loss adds to it
        for weights in self._weights or ():
            weights.adopt_edits()
        pairs = self._pairs()
        self._waiting = [stepped.grad for _, stepped in pairs]
        for weight, _ in pairs:
            weight.grad = None

    def unscale(self, scale: float) -> bool:
        """Unscale what backward left, add it to what waits, and return whether any of it holds inf or NaN."""
        if self._waiting is None:
            raise RuntimeError(NESTED)
        pairs = self._pairs()
        self.scaled_by = None
        arrived = [i for i, (weight, _) in enumerate(pairs) if weight.grad is not None]
        plain, found_inf = unscale([pairs[i][0].grad for i in arrived], scale, in_place=True)  # type: ignore[misc]
        new = dict(zip(arrived, plain, strict=True))
        for i, (_, stepped) in enumerate(pairs):
            before, gradient = self._waiting[i], new.get(i)
            total = before if gradient is None else gradient if before is None else before + gradient
            stepped.grad = None if total is None else total.to(stepped.dtype)
        self._waiting = None
        return found_inf

    def undo(self) -> None:
        """Leave the gradients that waited, and none of those that are scaled: the block of `scale_loss` has failed."""
        if self.scaled_by is None and self._waiting is not None:
            for (weight, stepped), before in zip(self._pairs(), self._waiting, strict=True):
                weight.grad = None
                stepped.grad = before
            self._waiting = None

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
        if closure is not None and (self.skips or self._weights is not None):
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
        self._forget_masters_gradients()
        return result

    def _take(self, *args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(callable, as_now, (args, kwargs))  # a closure's forward is cast as any other
        with autocast(enabled=False) if current() is not None else nullcontext():
            for weights in self._weights or ():
                weights.adopt_edits()
            result = self._step(*args, **kwargs)
            for weights in self._weights or ():
                weights.copy_back()
        return result

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """Forget gradients in the model too, which the optimizer does not know if it steps masters."""
        self._zero_grad(*args, **kwargs)
        self._waiting = None if self._waiting is None or self.scaled_by is not None else [None] * len(self._waiting)
        self.scaled_by = None
        for weight, stepped in self._pairs():
            if weight is not stepped:
                weight.grad = None
        self._forget_masters_gradients()

    def _forget_masters_gradients(self) -> None:
        for weight, stepped in self._pairs():
            if weight is not stepped:
                stepped.grad = None

    def add_param_group(self, group: dict[str, Any]) -> None:
        """Give the optimizer more to step, by masters where it steps masters."""
        if self._weights is None:
            self._add_param_group(group)  # type: ignore[misc]
        else:
            self._make_masters([group], lambda groups: self._add_param_group(groups[0]))  # type: ignore[misc]


class _Named(nn.Module):
    """Parameters under the names that they have in the models they are from."""

    def __init__(self, named: Mapping[nn.Parameter, str]) -> None:
        super().__init__()
        self._named = named

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((name, parameter) for parameter, name in self._named.items())


@torch.no_grad()
def recast_state(optimizer: Any) -> None:
    """Cast what an optimizer remembers of each parameter, its momentum for instance, to the parameter's dtype."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape and value.is_floating_point():
                state[name] = value if name == "step" else value.to(parameter.dtype)


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

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        prepared.zero_grad(*args, **kwargs)

    def add_param_group(self: Any, param_group: dict[str, Any]) -> None:
        prepared.add_param_group(param_group)

    for method in (step, zero_grad, add_param_group):  # bound, as schedulers of torch expect them
        if hasattr(optimizer, method.__name__):
            setattr(optimizer, method.__name__, MethodType(method, optimizer))


def __getattr__(name: str) -> Any:
    if name.startswith("Fused"):
        raise AttributeError(f"{name} is a kernel of apex's for GPUs; torch.optim.SGD, Adam and others step the same.")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
