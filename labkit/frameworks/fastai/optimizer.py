"""fastai's optimizers: groups with hyperparameters, stepped by small functions in a row.

Idea: a group is a list of parameters (`param_lists`) and a dict of hyperparameters (`hypers`). Each
stepper reads a parameter's state and its group's hyperparameters, and returns what changes in the
state. The class is torch's Optimizer with fastai's names, so that torch's schedules, hooks and
state dicts work as well: `param_groups` holds both.

Invariant: `param_lists`, `hypers` and `param_groups` are one thing under three names; a value that
is written into one is read from the others.

Source: fastai.optimizer, 2.8.12 (names, formulas, defaults).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["SGD", "Adam", "Optimizer"]

# (parameter, **state and hyperparameters) -> the entries of the state that change, or None
Stepper = Callable[..., dict[str, Any] | None]
# options of torch's groups that have other names here
_TORCHS_NAMES = {"momentum": "mom", "weight_decay": "wd"}
# entries of a state that are one number for each parameter -> the value if the entry is missing
_NUMBERS: dict[str, bool | int] = {"do_wd": True, "force_train": False, "step": 0}


class Optimizer(torch.optim.Optimizer):
    """Groups of parameters, and the functions that step them.

    Args:
        params: parameters, or a list of lists of them, which are groups; a dict with "params" and
            hyperparameters is a group with values of its own.
        cbs: the steppers, in their order.
        defaults: hyperparameters; each a number, a list or array with one for each group, or a
            slice (see `set_hyper`).

    Raises:
        ValueError: hyperparameters are given for another number of groups, or a group has one that
            is unknown.

    >>> one, other = (nn.Parameter(torch.ones(1)) for _ in range(2))
    >>> opt = SGD([[one], [other]], lr=slice(0.01, 0.1))
    >>> opt.hypers[0]["lr"], opt.hypers[1]["lr"], len(opt.param_lists)
    (0.01, 0.1, 2)
    """

    def __init__(self, params: Any, cbs: Sequence[Stepper], **defaults: Any) -> None:
        groups = _groups_of(params, set(defaults))
        for name, value in defaults.items():
            for group, each in zip(groups, _for_each(name, value, len(groups)), strict=True):
                group.setdefault(name, each)
        # torch's defaults, for groups that are added later
        group_defaults = {}
        if groups:
            group_defaults = {name: groups[-1][name] for name in defaults}
        super().__init__(groups, group_defaults)
        self.cbs = list(cbs)
        self.frozen_idx = 0

    def __getstate__(self) -> dict[str, Any]:
        own = {"cbs": self.cbs, "frozen_idx": self.frozen_idx}
        return {**super().__getstate__(), **own}

    @property
    def param_lists(self) -> list[list[nn.Parameter]]:
        """The parameters of each group; an assignment replaces the tensors that are stepped."""
        return [group["params"] for group in self.param_groups]

    @param_lists.setter
    def param_lists(self, lists: Sequence[Iterable[Tensor]]) -> None:
        # checked first, so that no group has changed after the error
        if len(lists) != len(self.param_groups):
            raise ValueError(
                f"param_lists: expected a list for each of {len(self.param_groups)} groups, got "
                f"{len(lists)}"
            )
        for group, params in zip(self.param_groups, lists, strict=True):
            group["params"] = list(params)

    @property
    def hypers(self) -> list[MutableMapping[str, Any]]:
        """The hyperparameters of each group; a change has an effect from the next step on."""
        return [_Hypers(group) for group in self.param_groups]

    def set_hypers(self, **hypers: Any) -> None:
        """Set hyperparameters; see `set_hyper`."""
        for name, value in hypers.items():
            self.set_hyper(name, value)

    def set_hyper(self, name: str, value: Any) -> None:
        """Set a hyperparameter of all groups.

        Args:
            name: "lr", "mom", "wd" ...
            value: a number for all groups; a list or array with one for each; slice(first, last),
                with steps of equal ratios between them; or slice(last), of which the other groups
                get a tenth.

        Raises:
            ValueError: the list has another length, or no group has such a hyperparameter.
        """
        # a group has "params", too, which is not one of them
        known = list(self.hypers[0])
        if name not in known:
            raise ValueError(
                f"expected a hyperparameter of this optimizer ({', '.join(known)}), got {name!r}"
            )
        values = _for_each(name, value, len(self.param_groups))
        for group, each in zip(self.param_groups, values, strict=True):
            group[name] = each

    def freeze_to(self, n: int) -> None:
        """Train only the groups from the n-th on, and parameters whose state has `force_train`.

        Warns:
            UserWarning: there is no such group, and nothing is trained.
        """
        count = len(self.param_groups)
        self.frozen_idx = n if n >= 0 else count + n
        if self.frozen_idx >= count:
            warnings.warn(
                f"Freezing {self.frozen_idx} groups; model has {count}; whole model is frozen.",
                stacklevel=2,
            )
        for index, group in enumerate(self.param_lists):
            for p in group:
                forced = self.state[p].get("force_train", False)
                p.requires_grad_(index >= self.frozen_idx or forced)

    def freeze(self) -> None:
        """Train only the last group.

        Warns:
            UserWarning: there is only one, and nothing is frozen.
        """
        if len(self.param_groups) < 2:
            warnings.warn(
                "freeze() trains the last group only, and this optimizer has one: nothing is "
                "frozen. Give Learner a splitter that returns several groups.",
                stacklevel=2,
            )
        self.freeze_to(-1)

    def unfreeze(self) -> None:
        """Train all groups."""
        self.freeze_to(0)

    def clear_state(self) -> None:
        """Clear all state, such as momentum, but the flags `do_wd` and `force_train`."""
        for group in self.param_lists:
            for p in group:
                state = self.state[p]
                self.state[p] = {k: v for k, v in state.items() if k in ("do_wd", "force_train")}

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Step every parameter that has a gradient.

        Raises:
            NotImplementedError: a closure is given.
        """
        if closure is not None:
            raise NotImplementedError(
                "fastai optimizers do not support closure: compute the loss before step()."
            )
        for group in self.param_groups:
            hypers = dict(_Hypers(group))
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                for stepper in self.cbs:
                    # a hyperparameter takes precedence over an entry of the state with its name
                    changes = stepper(p, **{**state, **hypers})
                    if changes is not None:
                        state.update(changes)


class _Hypers(MutableMapping[str, Any]):
    """View of the hyperparameters in a group of torch's: all entries but "params"."""

    def __init__(self, group: dict[str, Any]) -> None:
        self._group = group

    def __getitem__(self, name: str) -> Any:
        return self._group[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._group[name] = value

    def __delitem__(self, name: str) -> None:
        del self._group[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._group if name != "params")

    def __len__(self) -> int:
        return len(self._group) - 1

    def __repr__(self) -> str:
        return repr(dict(self))


def _groups_of(params: Any, known: set[str]) -> list[dict[str, Any]]:
    """Return parameters, lists of them or groups of torch's as groups of torch's."""
    listed = [params] if isinstance(params, Tensor) else list(params)
    if listed and isinstance(listed[0], Tensor):
        return [{"params": listed}]
    groups = []
    for each in listed:
        group = dict(each) if isinstance(each, dict) else {"params": list(each)}
        group = {_TORCHS_NAMES.get(name, name): value for name, value in group.items()}
        unknown = sorted(set(group) - known - {"params"})
        if unknown:
            raise ValueError(
                f"expected hyperparameters {', '.join(sorted(known))} in a group, got "
                f"{unknown[0]!r}"
            )
        groups.append(group)
    return groups


def _for_each(name: str, value: Any, count: int) -> list[Any]:
    """Return a hyperparameter's value for each of `count` groups."""
    if isinstance(value, slice) and value.stop is None:
        raise ValueError(f"expected {name} as slice(last) or slice(first, last), got {value}")
    if isinstance(value, slice) and value.start and count > 1:
        # a geometric sequence from start to stop
        ratio = (value.stop / value.start) ** (1 / (count - 1))
        return [value.start * ratio**index for index in range(count)]
    if isinstance(value, slice):
        return [value.stop / 10] * (count - 1) + [value.stop]
    is_listed = isinstance(value, list | tuple)
    if isinstance(value, np.ndarray | Tensor):
        is_listed = value.ndim > 0
        value = value.tolist()
    values = list(value) if is_listed else [value]
    if len(values) == 1:
        values *= count
    if len(values) != count:
        raise ValueError(
            f"Trying to set {len(values)} values for {name} but there are {count} parameter groups."
        )
    return values


# --- steppers -------------------------------------------------------------------------------------


def weight_decay(p: Tensor, lr: float, wd: float, do_wd: Any = True, **_: Any) -> None:
    """Shorten a parameter by lr * wd of itself."""
    if wd and do_wd is not False:
        p.mul_(1 - lr * wd * do_wd)


def l2_reg(p: Tensor, wd: float, do_wd: Any = True, **_: Any) -> None:
    """Add wd times the parameter to its gradient."""
    if wd and do_wd is not False:
        _gradient(p).add_(p * do_wd, alpha=wd)


def average_grad(
    p: Tensor, mom: float, dampening: bool = False, grad_avg: Tensor | None = None, **_: Any
) -> dict[str, Any] | None:
    """Keep a running sum of gradients, or their mean if `dampening`; without momentum, nothing."""
    if not mom and grad_avg is None and not dampening:
        return None
    average = torch.zeros_like(p) if grad_avg is None else grad_avg
    share = 1 - mom if dampening else 1.0
    return {"grad_avg": average.mul_(mom).add_(_gradient(p), alpha=share)}


def average_sqr_grad(
    p: Tensor, sqr_mom: float, sqr_avg: Tensor | None = None, **_: Any
) -> dict[str, Any]:
    """Keep a running mean of the gradients' squares."""
    average = torch.zeros_like(p) if sqr_avg is None else sqr_avg
    gradient = _gradient(p)
    return {"sqr_avg": average.mul_(sqr_mom).addcmul_(gradient, gradient, value=1 - sqr_mom)}


def sgd_step(p: Tensor, lr: float, grad_avg: Tensor | None = None, **_: Any) -> None:
    """Step along the gradient, or its running sum."""
    p.add_(_gradient(p) if grad_avg is None else grad_avg, alpha=-lr)


def step_stat(p: Tensor, step: Any = 0, **_: Any) -> dict[str, Any]:
    """Count the steps."""
    return {"step": step + 1}


def adam_step(
    p: Tensor,
    lr: float,
    mom: float,
    sqr_mom: float,
    grad_avg: Tensor,
    sqr_avg: Tensor,
    eps: float,
    step: Any,
    **_: Any,
) -> None:
    """Step along the mean gradient over the root of the mean square.

    Both are corrected for their bias towards zero.
    """
    size = (sqr_avg / (1 - sqr_mom**step)).sqrt() + eps
    p.addcdiv_(grad_avg / (1 - mom**step), size, value=-lr)


def _gradient(p: Tensor) -> Tensor:
    assert p.grad is not None
    return p.grad


# --- optimizers -----------------------------------------------------------------------------------


def SGD(
    params: Any, lr: Any, mom: float = 0.0, wd: float = 0.0, decouple_wd: bool = True
) -> Optimizer:
    """Return stochastic gradient descent, with momentum if `mom` is not 0.

    Args:
        params: parameters, or lists of them, which are groups.
        lr: a number, or a slice for discriminative learning rates.
        mom: factor of the running sum of gradients.
        wd: weight decay.
        decouple_wd: shorten the weights; False: add the weights to the gradients (L2).
    """
    decay = weight_decay if decouple_wd else l2_reg
    return Optimizer(params, [decay, average_grad, sgd_step], lr=lr, mom=mom, wd=wd)


def Adam(
    params: Any,
    lr: Any,
    mom: float = 0.9,
    sqr_mom: float = 0.99,
    eps: float = 1e-5,
    wd: float = 0.01,
    decouple_wd: bool = True,
) -> Optimizer:
    """Return Adam with decoupled weight decay, fastai's default; arguments as those of `SGD`."""
    steppers: list[Stepper] = [
        weight_decay if decouple_wd else l2_reg,
        partial(average_grad, dampening=True),
        average_sqr_grad,
        step_stat,
        adam_step,
    ]
    return Optimizer(params, steppers, lr=lr, mom=mom, sqr_mom=sqr_mom, eps=eps, wd=wd)


# --- handing over to masters ----------------------------------------------------------------------


def hand_over(
    optimizer: Optimizer, old: Sequence[Sequence[Tensor]], new: Sequence[Sequence[Tensor]]
) -> None:
    """Replace the tensors that an optimizer steps, and move their state, in FP32.

    Args:
        optimizer: the optimizer, which steps the old tensors.
        old: the old tensors of each group.
        new: the new tensors of each group: one for each old one; one flat tensor for all of them;
            or, if the old one is flat, the tensors that it consists of.
    """
    optimizer.param_lists = new
    for before, after in zip(old, new, strict=True):
        states = [optimizer.state.pop(p, {}) for p in before]
        # other shapes: several tensors become a flat one, or a flat one several
        if [p.shape for p in before] != [p.shape for p in after]:
            from_flat = len(before) == 1 and before[0].dim() == 1
            states = _split(states[0], after) if from_flat else [_joined(states, before)]
        for p, state in zip(after, states, strict=True):
            optimizer.state[p] = {}
            for name, value in state.items():
                if isinstance(value, Tensor):
                    value = value.detach().clone().float()
                optimizer.state[p][name] = value


def _joined(states: Sequence[dict[str, Any]], weights: Sequence[Tensor]) -> dict[str, Any]:
    """Return the state of a flat tensor from those of its parts.

    Numbers that differ between the parts become a tensor with one for each element.
    """
    joined: dict[str, Any] = {}
    # all names, in the order in which they occur
    names = dict.fromkeys(name for state in states for name in state)
    for name in names:
        values = [state.get(name, _NUMBERS.get(name, 0.0)) for state in states]
        numbers = not any(isinstance(value, Tensor) for value in values)
        if numbers and all(value == values[0] for value in values):
            joined[name] = values[0]
            continue
        parts = [
            torch.as_tensor(value, dtype=torch.float32, device=p.device).expand(p.shape)
            for value, p in zip(values, weights, strict=True)
        ]
        joined[name] = torch.cat([part.reshape(-1) for part in parts])
    return joined


def _split(state: dict[str, Any], weights: Sequence[Tensor]) -> list[dict[str, Any]]:
    """Return the states of a flat tensor's parts: the inverse of `_joined`."""
    states: list[dict[str, Any]] = [{} for _ in weights]
    total = sum(p.numel() for p in weights)
    for name, value in state.items():
        whole = isinstance(value, Tensor) and value.shape == (total,)
        parts = value.split([p.numel() for p in weights]) if whole else [value] * len(weights)
        for p, part, own in zip(weights, parts, states, strict=True):
            if name not in _NUMBERS:
                own[name] = part.view(p.shape) if whole else part
                continue
            usual = _NUMBERS[name]
            number = part
            # `_joined` made a tensor of numbers that differ; a parameter without elements has none
            if whole:
                number = part[0].item() if p.numel() else usual
            # a missing entry means the usual value
            if number != usual:
                own[name] = type(usual)(number)
    return states
