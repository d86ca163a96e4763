"""How does fastai's optimizer step? Groups of parameters with hyperparameters each, and small functions in a row.

Source: fastai.optimizer (names, formulas).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

Stepper = Callable[..., Any]  # (parameter, **state and hyperparameters) -> what changes in the state, or None


def trainable_params(model: nn.Module) -> list[nn.Parameter]:
    """Return all parameters that learn, as one group: the splitter that takes nothing apart."""
    return [p for p in model.parameters() if p.requires_grad]


class Optimizer:
    """Groups of parameters (`param_lists`), a dict of hyperparameters for each (`hypers`), and what steps them.

    Raises:
        ValueError: hyperparameters are given for another number of groups.
    """

    def __init__(self, params: Iterable[Any], cbs: Sequence[Stepper], **defaults: Any) -> None:
        given = list(params)
        grouped = given and not isinstance(given[0], Tensor)
        self.param_lists: list[list[nn.Parameter]] = [list(group) for group in given] if grouped else [given]
        self.cbs, self.hypers = cbs, [dict[str, Any]() for _ in self.param_lists]
        self.state: dict[Tensor, dict[str, Any]] = defaultdict(dict)
        self.frozen_idx = 0
        self.set_hypers(**defaults)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups as torch's optimizers have them."""
        return [{"params": list(group), **hyper} for group, hyper in zip(self.param_lists, self.hypers, strict=True)]

    def set_hypers(self, **hypers: Any) -> None:
        """Set hyperparameters; see `set_hyper`."""
        for name, value in hypers.items():
            self.set_hyper(name, value)

    def set_hyper(self, name: str, value: Any) -> None:
        """Set one of them: a number for all groups, one for each, or slice(first, last), or slice(last), in between."""
        many = len(self.param_lists)
        if isinstance(value, slice) and value.start:
            value = [value.start * (value.stop / value.start) ** (i / max(many - 1, 1)) for i in range(many)]
        elif isinstance(value, slice):
            value = [value.stop / 10] * (many - 1) + [value.stop]
        values = list(value) if isinstance(value, list | tuple) else [value] * many
        if len(values) != many:
            raise ValueError(f"Trying to set {len(values)} values for {name} but there are {many} parameter groups.")
        for hyper, each in zip(self.hypers, values, strict=True):
            hyper[name] = each

    def freeze_to(self, n: int) -> None:
        """Let only the groups from the n-th on learn, and what has `force_train` in its state, as batch norm has."""
        many = len(self.param_lists)
        self.frozen_idx = n if n >= 0 else many + n
        if self.frozen_idx >= many:
            warnings.warn(f"Freezing {self.frozen_idx} groups; model has {many}; whole model is frozen.", stacklevel=2)
        for i, group in enumerate(self.param_lists):
            for p in group:
                p.requires_grad_(i >= self.frozen_idx or self.state[p].get("force_train", False))

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Step every parameter that has a gradient.

        Raises:
            NotImplementedError: a closure is given.
        """
        if closure is not None:
            raise NotImplementedError("fastai optimizers do not support closure: compute the loss before step().")
        for group, hyper in zip(self.param_lists, self.hypers, strict=True):
            for p in group:
                for stepper in self.cbs if p.grad is not None else ():
                    self.state[p].update(stepper(p, **{**self.state[p], **hyper}) or {})

    def zero_grad(self) -> None:
        """Forget all gradients."""
        for group in self.param_lists:
            for p in group:
                p.grad = None


def weight_decay(p: Tensor, lr: float, wd: float, do_wd: bool = True, **_: Any) -> None:
    """Shorten a parameter by lr * wd of itself."""
    if do_wd and wd != 0:
        p.mul_(1 - lr * wd)


def average_grad(p: Tensor, mom: float, dampening: bool = False, grad_avg: Tensor | None = None, **_: Any) -> Any:
    """Keep a running sum or, dampened, mean of gradients."""
    average = torch.zeros_like(p) if grad_avg is None else grad_avg
    return {"grad_avg": average.mul_(mom).add_(p.grad, alpha=1 - mom if dampening else 1.0)}  # type: ignore[arg-type]


def average_sqr_grad(p: Tensor, sqr_mom: float, sqr_avg: Tensor | None = None, **_: Any) -> Any:
    """Keep a running mean of their squares."""
    average = torch.zeros_like(p) if sqr_avg is None else sqr_avg
    return {"sqr_avg": average.mul_(sqr_mom).addcmul_(p.grad, p.grad, value=1 - sqr_mom)}  # type: ignore[arg-type]


def sgd_step(p: Tensor, lr: float, grad_avg: Tensor | None = None, **_: Any) -> None:
    """Step along the gradient, or its running sum."""
    p.add_(p.grad if grad_avg is None else grad_avg, alpha=-lr)  # type: ignore[arg-type]


def adam_step(p: Tensor, lr: float, mom: float, sqr_mom: float, grad_avg: Tensor, sqr_avg: Tensor, eps: float,
              step: int = 0, **_: Any) -> Any:  # fmt: skip
    """Step along the mean gradient over the root of the mean square, both without their bias towards zero."""
    step += 1
    size = (sqr_avg / (1 - sqr_mom**step)).sqrt() + eps
    p.addcdiv_(grad_avg, size, value=-lr / (1 - mom**step))
    return {"step": step}


def SGD(params: Iterable[Any], lr: Any, mom: float = 0.0, wd: float = 0.0) -> Optimizer:
    """Return stochastic gradient descent, with momentum if `mom` is not 0."""
    return Optimizer(params, [weight_decay, *([average_grad] if mom else []), sgd_step], lr=lr, mom=mom, wd=wd)


def Adam(
    params: Iterable[Any], lr: Any, mom: float = 0.9, sqr_mom: float = 0.99, eps: float = 1e-5, wd: float = 0.01
) -> Optimizer:
    """Return Adam with decoupled weight decay, fastai's default."""
    cbs: list[Stepper] = [weight_decay, partial(average_grad, dampening=True), average_sqr_grad, adam_step]
    return Optimizer(params, cbs, lr=lr, mom=mom, sqr_mom=sqr_mom, eps=eps, wd=wd)
