"""Events of a training loop, callbacks that handle them, and exceptions that cancel its parts.

Idea: the loop triggers an event by name, which runs the method of that name of each callback, in
the order of `order`. A callback cancels a part of the loop by raising that part's exception.

Invariant: after_x is run whenever before_x was, a cancelled x included, unless an error ends the
training; then `abandon` is called.

Source: fastai.callback.core (events, exceptions, order); fastai.learner, `_with_events`.
"""

from __future__ import annotations

import re
import warnings
from difflib import get_close_matches
from types import MethodType
from typing import Any

# events inside of a batch, which `run_train` and `run_valid` switch off
INNER = frozenset(
    [
        "before_batch",
        "after_pred",
        "after_loss",
        "before_backward",
        "after_cancel_backward",
        "after_backward",
        "before_step",
        "after_cancel_step",
        "after_step",
        "after_cancel_batch",
        "after_batch",
    ]
)
EVENTS = INNER | frozenset(
    [
        "after_create",
        "before_fit",
        "before_epoch",
        "before_train",
        "after_cancel_train",
        "after_train",
        "before_validate",
        "after_cancel_validate",
        "after_validate",
        "after_cancel_epoch",
        "after_epoch",
        "after_cancel_fit",
        "after_fit",
    ]
)


class CancelBackwardException(Exception):
    """Skip the backward pass.

    Each of these exceptions continues at the `after_` event of the part it names.
    """


class CancelStepException(Exception):
    """Skip stepping the optimizer."""


class CancelBatchException(Exception):
    """Skip the rest of this batch."""


class CancelTrainException(Exception):
    """Skip the rest of the training part of the epoch."""


class CancelValidException(Exception):
    """Skip the rest of the validation part of the epoch."""


class CancelEpochException(Exception):
    """Skip the rest of this epoch."""


class CancelFitException(Exception):
    """End the training."""


class Callback:
    """Handlers of a training loop's events; attributes that it lacks are looked up in its `learn`.

    Args:
        functions: methods of this object, by the names of their events.

    Attributes:
        order: the position among callbacks; those with smaller numbers run first.
        run_train: whether the events of a batch are run in training.
        run_valid: whether the events of a batch are run in validation.
        learn: the learner; None before the callback is added to one.

    Raises:
        ValueError: functions has a name that is not an event.

    Warns:
        UserWarning: a class has a method that is named almost like an event.
    """

    order: int = 0
    run_train = True
    run_valid = True
    learn: Any = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Warn of a method whose name resembles that of an event: the loop would never call it."""
        super().__init_subclass__(**kwargs)
        for name in vars(cls):
            if name.startswith(("begin_", "before_", "after_")) and name not in EVENTS:
                # early versions of fastai had begin_fit for before_fit
                current = name.replace("begin", "before")
                # a cutoff of 0 always gives a match
                (near,) = get_close_matches(current, sorted(EVENTS), n=1, cutoff=0.0)
                warnings.warn(
                    f"{cls.__name__}.{name}: there is no such event, did you mean {near}?",
                    stacklevel=2,
                )

    def __init__(self, **functions: Any) -> None:
        unknown = sorted(set(functions) - EVENTS)
        if unknown:
            raise ValueError(
                f"Passed unknown events: {unknown}. There are: {', '.join(sorted(EVENTS))}."
            )
        for name, function in functions.items():
            setattr(self, name, MethodType(function, self))

    @property
    def name(self) -> str:
        """The name of the learner's attribute: MixedPrecision is `learn.mixed_precision`."""
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        return name.removesuffix("_callback") or name

    def __getattr__(self, name: str) -> Any:
        if name in EVENTS or name.startswith("__") or self.learn is None:
            without = "" if self.learn is not None else ", and no learner to look it up in"
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{without}")
        return getattr(self.learn, name)

    def __call__(self, event: str) -> None:
        """Run the method of an event's name, if it exists and runs in this part of an epoch."""
        if event in INNER:
            runs = self.run_train if self.learn.training else self.run_valid
            if not runs:
                return
        handler = getattr(self, event, None)
        if handler is not None:
            handler()

    def abandon(self) -> None:
        """Undo changes to the model when the training ends with an error.

        fastai has no such event.
        """


class TrainEvalCallback(Callback):
    """Put the model on its device, into training and evaluation mode, and count iterations."""

    order = -10
    run_valid = False

    def before_fit(self) -> None:
        self.learn.train_iter = 0
        self.learn.pct_train = 0.0
        self.model.to(self.dls.device)

    def before_train(self) -> None:
        self.model.train()
        self.learn.training = True

    def before_validate(self) -> None:
        self.model.eval()
        self.learn.training = False

    def after_batch(self) -> None:
        self.learn.train_iter += 1
        self.learn.pct_train = self.learn.train_iter / (self.n_iter * self.n_epoch)
