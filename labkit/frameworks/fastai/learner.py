"""What is a training loop that asks nobody about precision, and lets callbacks have their say?

Source: fastai.learner (loop, names, Recorder), 2.8.12.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp.masters.convert import NORM_LAYERS
from labkit.frameworks.fastai.callback import core
from labkit.frameworks.fastai.callback.core import Callback, TrainEvalCallback
from labkit.frameworks.fastai.callback.fp16 import MixedPrecision, ModelToHalf, NonNativeMixedPrecision
from labkit.frameworks.fastai.data import DataLoaders, on_device
from labkit.frameworks.fastai.optimizer import Adam, Optimizer, trainable_params
from labkit.frameworks.fastai.recorder import Recorder
from labkit.frameworks.watching import optimizer_source
from labkit.instrument import register_source


class Learner:
    """Data, a model, a loss and an optimizer, trained by `fit`.

    Args:
        opt_func: (parameters or groups of them, lr=) -> optimizer.
        lr: a number, or a slice for discriminative learning rates.
        splitter: model -> groups of parameters, first the ones that `freeze` lets rest.
        cbs: callbacks, or classes of them.
        metrics: (prediction, *targets) -> number.
        wd_bn_bias: whether norms and biases decay; train_bn: whether norms learn while their group is frozen.
    """

    def __init__(
        self,
        dls: DataLoaders,
        model: nn.Module,
        loss_func: Callable[..., Tensor],
        opt_func: Callable[..., Any] = Adam,
        lr: Any = 0.001,
        splitter: Callable[[nn.Module], Any] = trainable_params,
        cbs: Any = None,
        metrics: Sequence[Callable[..., Any]] = (),
        wd: float | None = None,
        wd_bn_bias: bool = False,
        train_bn: bool = True,
    ) -> None:
        self.dls, self.model, self.loss_func, self.opt_func, self.lr = dls, model, loss_func, opt_func, lr
        self.splitter, self.metrics, self.wd = splitter, metrics, wd
        self.wd_bn_bias, self.train_bn = wd_bn_bias, train_bn
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
            raise TypeError(f"a callback is a Callback of fastai.basics, or its class; it was given {cb!r}")
        name = callback.name
        if hasattr(Learner, name) or not isinstance(vars(self).get(name, callback), Callback):
            raise ValueError(f"{type(callback).__name__} would hide learn.{name}, something else: rename the class")
        callback.learn = self
        setattr(self, name, callback)
        self.cbs.append(callback)
        return self

    def remove_cb(self, cb: Any) -> Learner:
        """Take a callback away, or all of a class."""
        for callback in [c for c in self.cbs if c is cb or (isinstance(cb, type) and isinstance(c, cb))]:
            self.cbs.remove(callback)
            vars(self).pop(callback.name, None)
        return self

    def add_cbs(self, cbs: Any) -> Learner:
        """Add several."""
        return [self, *map(self.add_cb, _listed(cbs))][-1]

    def remove_cbs(self, cbs: Any) -> Learner:
        """Take several away."""
        return [self, *map(self.remove_cb, _listed(cbs))][-1]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"this Learner has no {name!r}: it is fastai's loop and its mixed precision alone. It has fit, freeze, "
            "unfreeze, add_cb, remove_cb, to_fp16 and the like; a schedule is a callback of yours."
        )

    @contextmanager
    def added_cbs(self, cbs: Any) -> Iterator[None]:
        """Have more callbacks for a `with` block."""
        before = list(self.cbs)
        self.add_cbs(cbs)
        try:
            yield
        finally:
            self.remove_cbs([cb for cb in self.cbs if cb not in before])

    def __call__(self, event: str) -> None:
        """Run an event: each callback's method of that name, in their order."""
        for callback in sorted(self.cbs, key=lambda cb: cb.order):
            callback(event)

    def create_opt(self) -> None:
        """Make the optimizer, from the groups of the splitter.

        Raises:
            TypeError: it is one of torch's.
        """
        if self.opt_func in vars(torch.optim).values():
            raise TypeError(f"opt_func={self.opt_func} is torch's: take SGD or Adam of fastai.basics")
        self.opt = self.opt_func(self.splitter(self.model), lr=self.lr)
        for module in self.model.modules():
            norm = isinstance(module, NORM_LAYERS)
            for name, p in module.named_parameters(recurse=False):
                if not self.wd_bn_bias and (norm or name == "bias"):
                    self.opt.state[p]["do_wd"] = False
                if self.train_bn and norm:
                    self.opt.state[p]["force_train"] = True

    def freeze_to(self, n: int) -> None:
        """Let only the groups from the n-th on learn."""
        if self.opt is None:
            self.create_opt()
        self.opt.freeze_to(n)

    def freeze(self) -> None:
        """Let only the last group learn.

        Raises:
            ValueError: there is only one.
        """
        if self.opt is None:
            self.create_opt()
        if len(self.opt.param_lists) < 2:
            raise ValueError("freeze() lets the last group learn, and there is one: give Learner a splitter.")
        self.freeze_to(-1)

    def unfreeze(self) -> None:
        """Let all groups learn."""
        self.freeze_to(0)

    def fit(
        self, n_epoch: int, lr: Any = None, wd: float | None = None, cbs: Any = None, reset_opt: bool = False
    ) -> None:
        """Train for some epochs, with more callbacks if they are given, and validate after each."""
        with self.added_cbs(cbs):
            if reset_opt or self.opt is None:
                self.create_opt()
            decay = self.wd if wd is None else wd
            self.opt.set_hypers(lr=self.lr if lr is None else lr, **({} if decay is None else {"wd": decay}))
            self.n_epoch = n_epoch
            try:
                self._with_events(self._do_fit, "fit", core.CancelFitException)
            except BaseException:
                for callback in sorted(self.cbs, key=lambda cb: cb.order, reverse=True):
                    callback.abandon()
                raise

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
            self._with_events(self._do_epoch, "epoch", core.CancelEpochException)

    def _do_epoch(self) -> None:
        self.dl = self.dls.train
        self._with_events(self.all_batches, "train", core.CancelTrainException)
        self.dl = self.dls.valid
        with torch.no_grad():
            self._with_events(self.all_batches, "validate", core.CancelValidException)

    def all_batches(self) -> None:
        """Go through the loader of this part of the epoch."""
        self.n_iter = len(self.dl)
        for i, batch in enumerate(self.dl):
            self.one_batch(i, batch)

    def one_batch(self, i: int, batch: Any) -> None:
        """Take a batch apart, the last of it the target, and train or validate with it."""
        self.iter, parts = i, tuple(on_device(self.dls.device, batch))
        inputs = max(len(parts) - 1, 1)
        self.xb, self.yb = parts[:inputs], parts[inputs:]
        self._with_events(self._do_one_batch, "batch", core.CancelBatchException)

    def _do_one_batch(self) -> None:
        self.pred = self.model(*self.xb)
        self("after_pred")
        if self.yb:
            self.loss_grad = self.loss_func(self.pred, *self.yb)
            self.loss = self.loss_grad.detach().clone()
        self("after_loss")
        if not self.training or not self.yb:
            return
        self._with_events(self._backward, "backward", core.CancelBackwardException)
        self._with_events(self._step, "step", core.CancelStepException)
        self.opt.zero_grad()

    def _backward(self) -> None:
        self.loss_grad.backward()

    def _step(self) -> None:
        self.opt.step()

    def to_fp16(self, **kwargs: Any) -> Learner:
        """Train by autocast and a GradScaler, whose arguments it takes."""
        return self.to_fp32().add_cb(MixedPrecision(**kwargs))

    def to_bf16(self) -> Learner:
        """Train by autocast in BF16, without a scale."""
        return self.to_fp32().add_cb(MixedPrecision("bf16"))

    def to_fp32(self) -> Learner:
        """Train in FP32 again."""
        return self.remove_cb(MixedPrecision)

    def to_non_native_fp16(self, **kwargs: Any) -> Learner:
        """Train a half model with FP32 masters; see `NonNativeMixedPrecision`."""
        return self.to_non_native_fp32().add_cbs([ModelToHalf(), NonNativeMixedPrecision(**kwargs)])

    def to_non_native_fp32(self) -> Learner:
        """Train in FP32 again."""
        return self.remove_cbs([ModelToHalf, NonNativeMixedPrecision])


def _listed(values: Any) -> list[Any]:
    return [] if values is None else list(values) if isinstance(values, Iterable) else [values]


register_source(partial(optimizer_source, optimizer=Optimizer, stand_in=MixedPrecision))
