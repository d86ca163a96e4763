"""fastai's training loop, which is independent of precision and runs callbacks.

Its optimizers are groups with hyperparameters (`fastai.optimizer`). For the rest of fastai
(schedules, metrics, transforms ...) use the real one with `labkit.frameworks.fastai_learner`.

Source: fastai.data.core, DataLoaders; fastai.learner (loop, names, Recorder and AvgSmoothLoss),
    2.8.12.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from labkit.amp.masters.convert import NORM_LAYERS
from labkit.formats.arguments import require_kind
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
from labkit.frameworks.fastai.optimizer import Adam

__all__ = ["DataLoaders", "Learner", "Recorder", "trainable_params"]

OTHER_MODEL = (
    "expected an optimizer of this model's parameters, got one of others: the model was set after "
    "the optimizer was made. Call create_opt(), or fit(..., reset_opt=True)."
)


class DataLoaders:
    """A loader of training data, one of validation data, and the device that batches go to."""

    def __init__(self, *loaders: Any, device: torch.device | str | None = None) -> None:
        self.loaders = loaders
        self.device = torch.device(device or "cpu")

    def __getitem__(self, index: int) -> Any:
        return self.loaders[index]

    def one_batch(self) -> Any:
        """Return the first training batch, on the device."""
        return _on(self.device, next(iter(self.loaders[0])))

    @property
    def train(self) -> Any:
        """The batches for training."""
        return self.loaders[0]

    @property
    def valid(self) -> Any:
        """The batches for validation; empty without a second loader."""
        return self.loaders[1] if len(self.loaders) > 1 else ()


class Recorder(Callback):
    """Record losses, also those of cancelled batches, as fastai does.

    Attributes:
        values: for each epoch, the smoothed training loss and the mean validation loss.
        losses: the smoothed training loss after each batch.
    """

    order = 50
    # factor of the exponential moving average
    beta = 0.98

    def before_fit(self) -> None:
        self.values: list[list[float]] = []
        self.losses: list[float] = []
        self.smooth = 0.0
        # the loop does not reach before_epoch if the first epoch is cancelled
        self.before_epoch()

    def before_epoch(self) -> None:
        self.total = 0.0
        self.seen = 0

    def after_batch(self) -> None:
        loss = self.loss.mean().item()
        if self.training:
            self.smooth += (1 - self.beta) * (loss - self.smooth)
            self.losses.append(self.smooth / (1 - self.beta ** (len(self.losses) + 1)))
        else:
            self.total += len(self.yb[0]) * loss
            self.seen += len(self.yb[0])

    def after_epoch(self) -> None:
        validation = self.total / self.seen if self.seen else math.nan
        # without a training batch there is no smoothed loss yet
        self.values.append([*self.losses[-1:], validation])


def trainable_params(model: nn.Module) -> list[nn.Parameter]:
    """Return a model's trainable parameters as one group, a Learner's default splitter."""
    return [p for p in model.parameters() if p.requires_grad]


class Learner:
    """Data, a model, a loss and an optimizer, trained by `fit`.

    All of them are plain attributes, which may be set afterwards; `create_opt` makes the optimizer
    of `model` by `opt_func` and `splitter`, and `fit` calls it if there is none.

    Args:
        dls: the data.
        model: the model.
        loss_func: (outputs, targets) -> the loss.
        opt_func: (parameters or groups of them, lr=) -> optimizer of `fastai.optimizer`.
        lr: a number, or a slice for discriminative learning rates.
        splitter: model -> parameters, or a list of groups of them, of which `freeze` trains the
            last.
        cbs: callbacks, or classes of them.
        wd: weight decay of `fit`; None: the optimizer's own.
        wd_bn_bias: decay norms and biases, too.
        train_bn: train norms in frozen groups.
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
        *,
        wd: float | None = None,
        wd_bn_bias: bool = False,
        train_bn: bool = True,
    ) -> None:
        if not callable(splitter) or isinstance(splitter, Callback | type):
            raise TypeError(
                f"expected splitter as a function of the model, got {splitter!r}; pass callbacks "
                "as cbs="
            )
        self.dls = dls
        self.model = model
        self.loss_func = loss_func
        self.opt_func = opt_func
        self.lr = lr
        self.splitter = splitter
        self.wd = wd
        self.wd_bn_bias = wd_bn_bias
        self.train_bn = train_bn
        self.opt: Any = None
        self.cbs: list[Callback] = []
        self.training = False
        # Whether fit() is running.
        self._is_fitting = False
        self.epoch = 0
        self.n_epoch = 1
        self.iter = 0
        self.n_iter = 1
        self.loss: Any = torch.zeros(())
        self.xb: tuple[Any, ...] = ()
        self.yb: tuple[Any, ...] = ()
        self.add_cbs([TrainEvalCallback, Recorder, *_listed(cbs)])
        self("after_create")

    @property
    def x(self) -> Any:
        """The input of the batch, or a tuple of several."""
        return self.xb[0] if len(self.xb) == 1 else self.xb

    @property
    def y(self) -> Any:
        """The target of the batch, or a tuple of several."""
        return self.yb[0] if len(self.yb) == 1 else self.yb

    def add_cb(self, cb: Any) -> Learner:
        """Add a callback, or a new one of a class; it is found as `learn.name_of_its_class`.

        Raises:
            TypeError: it is not a callback.
            ValueError: a learner has something of that name already.
        """
        callback = cb() if isinstance(cb, type) else cb
        if not isinstance(callback, Callback):
            raise TypeError(f"expected a Callback of fastai.basics or a subclass, got {cb!r}")
        name = callback.name
        if hasattr(Learner, name) or not isinstance(vars(self).get(name, callback), Callback):
            raise ValueError(
                f"{type(callback).__name__} would hide learn.{name}, something else: rename the "
                "class"
            )
        callback.learn = self
        setattr(self, name, callback)
        self.cbs.append(callback)
        return self

    def remove_cb(self, cb: Any) -> Learner:
        """Remove a callback, or all of a class."""
        for callback in list(self.cbs):
            of_class = isinstance(cb, type) and isinstance(callback, cb)
            if callback is cb or of_class:
                self.cbs.remove(callback)
                vars(self).pop(callback.name, None)
        return self

    def add_cbs(self, cbs: Any) -> Learner:
        for callback in _listed(cbs):
            self.add_cb(callback)
        return self

    def remove_cbs(self, cbs: Any) -> Learner:
        for callback in _listed(cbs):
            self.remove_cb(callback)
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError(
            f"this Learner has no {name!r}: only fastai's loop and its mixed precision are here, "
            "such as fit, freeze, unfreeze, add_cb, remove_cb and to_fp16. Write a callback for a "
            "schedule."
        )

    def __call__(self, event: str) -> None:
        """Run an event: each callback's method of that name, in their order."""
        for callback in sorted(self.cbs, key=lambda cb: cb.order):
            callback(event)

    def create_opt(self) -> None:
        """Make the optimizer of the splitter's groups; norms and biases do not decay.

        Raises:
            TypeError: opt_func makes an optimizer of torch's.
        """
        if isinstance(self.opt_func, partial) and "lr" in self.opt_func.keywords:
            self.lr = self.opt_func.keywords["lr"]
        if getattr(self.opt_func, "func", self.opt_func) in vars(torch.optim).values():
            raise TypeError(
                f"opt_func={self.opt_func} is torch's: use SGD or Adam of fastai.basics"
            )
        self.opt = self.opt_func(self.splitter(self.model), lr=self.lr)
        self._require_groups()
        stepped = {p for group in self.opt.param_lists for p in group}
        for module in self.model.modules():
            norm = isinstance(module, NORM_LAYERS)
            for name, p in module.named_parameters(recurse=False):
                if p not in stepped:
                    continue
                if not self.wd_bn_bias and (norm or name == "bias"):
                    self.opt.state[p]["do_wd"] = False
                if self.train_bn and norm:
                    self.opt.state[p]["force_train"] = True

    def _require_groups(self) -> None:
        if not hasattr(self.opt, "param_lists"):
            raise TypeError(
                "expected an optimizer with param_lists and hypers, got "
                f"{type(self.opt).__name__}: use SGD or Adam of fastai.basics"
            )

    def _require_own_parameters(self) -> None:
        """Raise an error or warn if the optimizer does not step the model."""
        stepped = {p for group in self.opt.param_lists for p in group}
        named = dict(self.model.named_parameters())
        if named and not stepped & set(named.values()):
            raise ValueError(OTHER_MODEL)
        left = [name for name, p in named.items() if p.requires_grad and p not in stepped]
        if left:
            warnings.warn(
                f"{len(left)} trainable parameters are in no group of the optimizer, the first is "
                f"{left[0]!r}: they are not trained. Let the splitter return them, or freeze them: "
                "requires_grad_(False).",
                stacklevel=3,
            )

    def freeze_to(self, n: int) -> None:
        """Train only the groups from the n-th on, and norms if `train_bn`.

        The optimizer's state, such as momentum, is cleared.

        Raises:
            RuntimeError: it is called during a `fit` whose optimizer steps masters.
            ValueError: the optimizer steps another model's parameters.
        """
        if self.opt is None:
            self.create_opt()
        stepped = {p for group in self.opt.param_lists for p in group}
        own = set(self.model.parameters())
        if own and not stepped & own:
            if not self._is_fitting:
                raise ValueError(OTHER_MODEL)
            raise RuntimeError(
                "expected freeze and unfreeze between two calls of fit(), got one during fit(), "
                "which made masters of the parameters that were trainable when it began"
            )
        self.opt.freeze_to(n)
        self.opt.clear_state()

    def freeze(self) -> None:
        """Train only the last group of the splitter, and norms if `train_bn`.

        Warns:
            UserWarning: there is only one, and nothing is frozen.
        """
        if self.opt is None:
            self.create_opt()
        if len(self.opt.param_lists) < 2:
            warnings.warn(
                "freeze() trains the last group only, and there is one: nothing is frozen. Give "
                "the learner a splitter that returns several groups.",
                stacklevel=2,
            )
        self.freeze_to(-1)

    def unfreeze(self) -> None:
        """Train all groups."""
        self.freeze_to(0)

    def fit(
        self,
        n_epoch: int,
        lr: Any = None,
        wd: float | None = None,
        cbs: Any = None,
        reset_opt: bool = False,
    ) -> None:
        """Train for some epochs, with more callbacks if they are given, and validate after each.

        Args:
            n_epoch: number of passes over the training data.
            lr: a number, or a slice for discriminative learning rates; None: the learner's.
            wd: weight decay; None: the learner's, or the optimizer's.
            cbs: callbacks, or classes of them, of this call.
            reset_opt: make a new optimizer.

        Raises:
            TypeError: n_epoch is not a whole number, wd is not a number, or the optimizer is one of
                torch's.
            ValueError: the optimizer steps another model's parameters.

        Warns:
            UserWarning: trainable parameters are in no group of the optimizer.
        """
        require_kind(n_epoch, int, "n_epoch", "Pass a rate as lr=")
        decay = self.wd if wd is None else wd
        require_kind(decay, (float, type(None)), "wd", "To add callbacks, pass callbacks as cbs=")
        before = list(self.cbs)
        try:
            self.add_cbs(cbs)
            if reset_opt or self.opt is None:
                self.create_opt()
            self._require_groups()
            self._require_own_parameters()
            self.opt.set_hypers(lr=self.lr if lr is None else lr)
            if decay is not None:
                self.opt.set_hypers(wd=decay)
            self.n_epoch = n_epoch
            self._is_fitting = True
            self._with_events(self._do_fit, "fit", CancelFitException)
        except BaseException:
            for callback in sorted(self.cbs, key=lambda cb: cb.order, reverse=True):
                callback.abandon()
            raise
        finally:
            self._is_fitting = False
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
            *inputs, target = _on(self.dls.device, batch)
            self.xb = tuple(inputs)
            self.yb = (target,)
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
        """Train with autocast and a GradScaler, and return the learner.

        Args:
            kwargs: arguments of `GradScaler`. Early versions of fastai had the arguments of
                `NonNativeMixedPrecision` here (max_loss_scale ...), which select that callback.
        """
        non_native = set(inspect.signature(NonNativeMixedPrecision).parameters)
        if kwargs and set(kwargs) <= non_native:
            return self.to_fp32().to_non_native_fp16(**kwargs)
        return self.to_fp32().add_cb(MixedPrecision(**kwargs))

    def to_bf16(self) -> Learner:
        """Train with autocast in BF16, without a loss scale, and return the learner."""
        return self.to_fp32().add_cb(MixedPrecision("bf16"))

    def to_fp32(self) -> Learner:
        """Remove all callbacks of mixed precision, and return the learner."""
        return self.remove_cbs([MixedPrecision, ModelToHalf, NonNativeMixedPrecision])

    def to_non_native_fp16(self, **kwargs: Any) -> Learner:
        """Train a half model with FP32 masters, and return the learner.

        Args:
            kwargs: arguments of `NonNativeMixedPrecision`.
        """
        return self.to_non_native_fp32().add_cbs([ModelToHalf(), NonNativeMixedPrecision(**kwargs)])

    def to_non_native_fp32(self) -> Learner:
        """Remove what `to_non_native_fp16` added; return the learner."""
        return self.remove_cbs([ModelToHalf, NonNativeMixedPrecision])


def _listed(values: Any) -> list[Any]:
    if values is None:
        return []
    return list(values) if isinstance(values, Iterable) else [values]


def _on(device: torch.device, batch: Any) -> Any:
    return tree_map_only(Tensor, lambda part: part.to(device), batch)
