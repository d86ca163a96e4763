"""fastai's training loop, which is independent of precision and runs callbacks.

A script's first import, `from fastai.basics import *`, also imports torch, nn, F, partial and tensor. Its
optimizers are torch's, by fastai's names. For the rest of fastai (weight decay for each group, schedules, metrics,
freezing ...) use the real one with `labkit.frameworks.fastai_learner`.

Source: fastai.data.core, DataLoaders; fastai.optimizer (names, numbers); fastai.learner (loop, names, Recorder and
AvgSmoothLoss), 2.8.12.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn, tensor
from torch.utils._pytree import tree_map_only

from labkit.amp.masters.convert import NORM_LAYERS
from labkit.frameworks.fastai.callback.core import (
    Callback,
    CancelBackwardException,
    CancelBatchException,
    CancelEpochException,
    CancelFitException,
    CancelStepException,
    CancelTrainException,
    CancelValidException,
    TrainEvalCallback,
)
from labkit.frameworks.fastai.callback.fp16 import (
    MixedPrecision,
    ModelToHalf,
    NonNativeMixedPrecision,
)
from labkit.frameworks.watching import optimizer_source
from labkit.instrument import register_source

__all__ = [
    "SGD",
    "Adam",
    "Callback",
    "CancelBackwardException",
    "CancelBatchException",
    "CancelEpochException",
    "CancelFitException",
    "CancelStepException",
    "CancelTrainException",
    "CancelValidException",
    "DataLoaders",
    "F",
    "Learner",
    "Recorder",
    "Tensor",
    "TrainEvalCallback",
    "nn",
    "partial",
    "tensor",
    "torch",
]


def SGD(params: Any, lr: float, mom: float = 0.0) -> torch.optim.Optimizer:
    """Return stochastic gradient descent, with momentum if `mom` is not 0."""
    return torch.optim.SGD(params, lr=lr, momentum=mom)


def Adam(
    params: Any,
    lr: float,
    mom: float = 0.9,
    sqr_mom: float = 0.99,
    eps: float = 1e-5,
    wd: float = 0.01,
) -> torch.optim.Optimizer:
    """Return Adam with decoupled weight decay, fastai's default."""
    return torch.optim.AdamW(params, lr=lr, betas=(mom, sqr_mom), eps=eps, weight_decay=wd)


class DataLoaders:
    """A loader of training data, one of validation data, and the device that batches go to."""

    def __init__(self, *loaders: Any, device: torch.device | str | None = None) -> None:
        self.loaders, self.device = loaders, torch.device(device or "cpu")

    train = property(lambda self: self.loaders[0])
    valid = property(lambda self: (*self.loaders, ())[1])  # without one, nothing is validated


class Recorder(Callback):
    """Record losses: `values` has for each epoch the smoothed training loss and the mean validation loss.

    A batch that was cancelled counts, as in fastai.
    """

    order, beta = 50, 0.98

    def before_fit(self) -> None:
        self.values: list[list[float]] = []
        self.losses: list[float] = []
        self.smooth = 0.0
        self.before_epoch()  # which is not reached where an epoch is cancelled at its begin

    def before_epoch(self) -> None:
        self.total, self.seen = 0.0, 0

    def after_batch(self) -> None:
        loss = self.loss.mean().item()
        if self.training:
            self.smooth += (1 - self.beta) * (loss - self.smooth)
            self.losses.append(self.smooth / (1 - self.beta ** (len(self.losses) + 1)))
        else:
            self.total, self.seen = self.total + len(self.yb[0]) * loss, self.seen + len(self.yb[0])

    def after_epoch(self) -> None:
        self.values.append([*self.losses[-1:], self.total / self.seen if self.seen else math.nan])


class Learner:
    """Data, a model, a loss and an optimizer, trained by `fit`.

    Args:
        opt_func: (groups of parameters, lr=) -> optimizer.
        cbs: callbacks, or classes of them.
    """

    def __init__(
        self,
        dls: DataLoaders,
        model: nn.Module,
        loss_func: Callable[..., Tensor],
        opt_func: Callable[..., Any] = Adam,
        lr: float = 0.001,
        cbs: Any = None,
    ) -> None:
        self.dls, self.model, self.loss_func, self.opt_func, self.lr = (
            dls,
            model,
            loss_func,
            opt_func,
            lr,
        )
        self.opt: Any = None
        self.cbs: list[Callback] = []
        self.training, self.epoch, self.n_epoch, self.iter, self.n_iter = False, 0, 1, 0, 1
        self.loss: Any = torch.zeros(())
        self.xb: tuple[Any, ...] = ()
        self.yb: tuple[Any, ...] = ()
        self.add_cbs([TrainEvalCallback, Recorder, *_listed(cbs)])
        self("after_create")

    x = property(lambda self: self.xb[0] if len(self.xb) == 1 else self.xb)
    y = property(lambda self: self.yb[0] if len(self.yb) == 1 else self.yb)

    def add_cb(self, cb: Any) -> Learner:
        """Add a callback, or a new one of a class; it is found as `learn.name_of_its_class`.

        Raises:
            TypeError: it is no callback.
            ValueError: a learner has something of that name already.
        """
        callback = cb() if isinstance(cb, type) else cb
        if not isinstance(callback, Callback):
            raise TypeError(f"expected a Callback of fastai.basics or a subclass, got {cb!r}")
        name = callback.name
        if hasattr(Learner, name) or not isinstance(vars(self).get(name, callback), Callback):
            raise ValueError(
                f"{type(callback).__name__} would hide learn.{name}, something else: rename the class"
            )
        callback.learn = self
        setattr(self, name, callback)
        self.cbs.append(callback)
        return self

    def remove_cb(self, cb: Any) -> Learner:
        """Remove a callback, or all of a class."""
        for callback in [
            c for c in self.cbs if c is cb or (isinstance(cb, type) and isinstance(c, cb))
        ]:
            self.cbs.remove(callback)
            vars(self).pop(callback.name, None)
        return self

    def add_cbs(self, cbs: Any) -> Learner:
        return [self, *map(self.add_cb, _listed(cbs))][-1]

    def remove_cbs(self, cbs: Any) -> Learner:
        return [self, *map(self.remove_cb, _listed(cbs))][-1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"this Learner has no {name!r}: it is fastai's loop and its mixed precision alone. It has fit, add_cb, "
            "remove_cb, to_fp16 and the like; a schedule is a callback of yours."
        )

    def __call__(self, event: str) -> None:
        """Run an event: each callback's method of that name, in their order."""
        for callback in sorted(self.cbs, key=lambda cb: cb.order):
            callback(event)

    def create_opt(self) -> None:
        """Make the optimizer of the trainable weights; norms and biases, which do not decay, are a group of their own.

        Raises:
            TypeError: opt_func is a class of torch's.
        """
        if self.opt_func in vars(torch.optim).values():
            raise TypeError(
                f"opt_func={self.opt_func} is torch's: take SGD or Adam of fastai.basics"
            )
        norms = [m for m in self.model.modules() if isinstance(m, NORM_LAYERS)]
        kept = {p for norm in norms for p in norm.parameters(recurse=False)}
        kept |= {
            p for name, p in self.model.named_parameters() if name.rpartition(".")[2] == "bias"
        }
        learn = [p for p in self.model.parameters() if p.requires_grad]
        groups: list[dict[str, Any]] = [{"params": [p for p in learn if p not in kept]}]
        groups.append({"params": [p for p in learn if p in kept], "weight_decay": 0.0})
        self.opt = self.opt_func([group for group in groups if group["params"]], lr=self.lr)

    def fit(
        self, n_epoch: int, lr: float | None = None, cbs: Any = None, reset_opt: bool = False
    ) -> None:
        """Train for some epochs, with more callbacks if they are given, and validate after each."""
        before = list(self.cbs)
        try:
            self.add_cbs(cbs)
            if reset_opt or self.opt is None:
                self.create_opt()
            for group in self.opt.param_groups:
                group["lr"] = self.lr if lr is None else lr
            self.n_epoch = n_epoch
            self._with_events(self._do_fit, "fit", CancelFitException)
        except BaseException:
            for callback in sorted(self.cbs, key=lambda cb: cb.order, reverse=True):
                callback.abandon()
            raise
        finally:
            self.remove_cbs([cb for cb in self.cbs if cb not in before])

    def _with_events(self, part: Callable[[], None], name: str, cancel: type[Exception]) -> None:
        try:
            self(f"before_{name}")
            part()
        except cancel:
            self(f"after_cancel_{name}")
        self(f"after_{name}")

    def _do_fit(self) -> None:
        for epoch in range(self.n_epoch):
            self.epoch = epoch
            self._with_events(self._do_epoch, "epoch", CancelEpochException)

    def _do_epoch(self) -> None:
        self.dl = self.dls.train
        self._with_events(self._all_batches, "train", CancelTrainException)
        self.dl = self.dls.valid
        with torch.no_grad():
            self._with_events(self._all_batches, "validate", CancelValidException)

    def _all_batches(self) -> None:
        self.n_iter = len(self.dl)
        for number, batch in enumerate(self.dl):
            self.iter = number
            *inputs, target = tree_map_only(Tensor, lambda part: part.to(self.dls.device), batch)
            self.xb, self.yb = tuple(inputs), (target,)
            self._with_events(self._one_batch, "batch", CancelBatchException)

    def _one_batch(self) -> None:
        self.pred = self.model(*self.xb)
        self("after_pred")
        self.loss_grad = self.loss_func(self.pred, *self.yb)
        self.loss = self.loss_grad.detach().clone()
        self("after_loss")
        if not self.training:
            return
        self._with_events(lambda: self.loss_grad.backward(), "backward", CancelBackwardException)
        self._with_events(self.opt.step, "step", CancelStepException)
        self.opt.zero_grad()

    def to_fp16(self, **kwargs: Any) -> Learner:
        """Train by autocast and a GradScaler, whose arguments it takes."""
        return self.to_fp32().add_cb(MixedPrecision(**kwargs))

    def to_bf16(self) -> Learner:
        """Train by autocast in BF16, without a scale."""
        return self.to_fp32().add_cb(MixedPrecision("bf16"))

    def to_fp32(self) -> Learner:
        return self.remove_cb(MixedPrecision)

    def to_non_native_fp16(self, **kwargs: Any) -> Learner:
        """Train a half model with FP32 masters; see `NonNativeMixedPrecision`."""
        return self.to_non_native_fp32().add_cbs([ModelToHalf(), NonNativeMixedPrecision(**kwargs)])

    def to_non_native_fp32(self) -> Learner:
        return self.remove_cbs([ModelToHalf, NonNativeMixedPrecision])


def _listed(values: Any) -> list[Any]:
    return [] if values is None else list(values) if isinstance(values, Iterable) else [values]


register_source(partial(optimizer_source, stand_in=MixedPrecision))
