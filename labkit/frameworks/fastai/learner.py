"""fastai's training loop, which knows nothing of precision and lets callbacks act, and its optimizer.

The optimizer has groups of parameters with hyperparameters each, and steps by small functions in a row.

Source: fastai.data.core, DataLoaders; fastai.optimizer (names, formulas); fastai.learner (loop, names, Recorder and
AvgSmoothLoss), 2.8.12.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp.masters.convert import NORM_LAYERS
from labkit.frameworks.fastai.callback import core
from labkit.frameworks.fastai.callback.core import Callback, TrainEvalCallback
from labkit.frameworks.fastai.callback.fp16 import MixedPrecision, ModelToHalf, NonNativeMixedPrecision
from labkit.frameworks.watching import optimizer_source
from labkit.instrument import register_source

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


class DataLoaders:
    """A loader of training data, one of validation data, and the device that batches go to."""

    def __init__(self, *loaders: Any, device: torch.device | str | None = None) -> None:
        self.loaders, self.device = loaders, torch.device(device or "cpu")

    def __getitem__(self, i: int) -> Any:
        return self.loaders[i]

    def one_batch(self) -> Any:
        """Return the first training batch, on the device."""
        return on_device(self.device, next(iter(self.loaders[0])))

    train = property(lambda self: self.loaders[0])
    valid = property(lambda self: (*self.loaders, ())[1])  # without one, nothing is validated


def on_device(device: torch.device, batch: Any) -> Any:
    """Return a batch with its tensors on a device."""
    return tree_map_only(Tensor, lambda tensor: tensor.to(device), batch)


class Recorder(Callback):
    """Record losses: `values` has for each epoch the smoothed training loss, the mean validation loss, the metrics.

    A batch that was cancelled counts, as in fastai.
    """

    order, beta = 50, 0.98

    def before_fit(self) -> None:
        self.values: list[list[float]] = []
        self.losses: list[float] = []
        self.smooth = self.count = 0.0
        self.before_epoch()  # which is not reached where an epoch is cancelled at its begin

    def before_epoch(self) -> None:
        self.sums, self.seen = [0.0] * (1 + len(self.metrics)), 0

    def after_batch(self) -> None:
        if not self.yb:
            return
        if self.training:
            self.count += 1
            self.smooth += (1 - self.beta) * (self.loss.mean().item() - self.smooth)
            self.losses.append(self.smooth / (1 - self.beta**self.count))
        else:
            size, each = len(self.yb[0]), (self.loss.mean(), *(metric(self.pred, *self.yb) for metric in self.metrics))
            self.sums = [total + size * float(value) for total, value in zip(self.sums, each, strict=True)]
            self.seen += size

    def after_epoch(self) -> None:
        self.values.append([*self.losses[-1:], *(total / self.seen if self.seen else math.nan for total in self.sums)])


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
        return [self, *map(self.add_cb, _listed(cbs))][-1]

    def remove_cbs(self, cbs: Any) -> Learner:
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
        return self.remove_cb(MixedPrecision)

    def to_non_native_fp16(self, **kwargs: Any) -> Learner:
        """Train a half model with FP32 masters; see `NonNativeMixedPrecision`."""
        return self.to_non_native_fp32().add_cbs([ModelToHalf(), NonNativeMixedPrecision(**kwargs)])

    def to_non_native_fp32(self) -> Learner:
        return self.remove_cbs([ModelToHalf, NonNativeMixedPrecision])


def _listed(values: Any) -> list[Any]:
    return [] if values is None else list(values) if isinstance(values, Iterable) else [values]


register_source(partial(optimizer_source, optimizer=Optimizer, stand_in=MixedPrecision))
