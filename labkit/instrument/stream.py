"""The stream of events of a training: forward passes, operations, scales, and optimizer steps, taken or skipped.

Idea: torch's hooks, the sources of labkit.instrument.sources and a dispatch mode report what happens, each event once
and in its order. A `Listener` is what they report to; it also knows where one step ends and the next begins. A watch of
one model and the diagnosis of a script are listeners, which override what they look at.

Invariant: a new step begins with a forward pass behind an optimizer that has stepped in this one or was skipped, and
where such an optimizer steps again; what runs inside an optimizer's step or in a backward pass begins none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.instrument.guard import Failed

Gradients = dict[str, Tensor | None]  # parameter -> its unscaled gradient, None where none arrived


def in_backward() -> bool:
    """Say whether a backward pass is running: what is called then was called before."""
    return torch._C._current_graph_task_id() != -1


def no_scale() -> float:
    """Return what a loss is multiplied by that nobody scales."""
    return 1.0


class Listener:
    """What a training is reported to; a class of its own overrides the events that it looks at.

    step      the number of the step that is running, from 0
    stepped   ids of the optimizers that have stepped in this step, or were skipped
    stepping  an optimizer steps now
    """

    def __init__(self) -> None:
        self.step = 0
        self.stepped: set[int] = set()
        self.stepping = False
        self._scale: Callable[[], float] = no_scale

    def failed(self, where: str, error: Exception) -> None:
        """Report what failed in the listener or in a source: the run that it looks at goes on."""
        raise error

    # Steps

    def next_step(self) -> None:
        """Begin the next step."""

    def forward_begins(self) -> None:
        """Begin the next step with a forward pass, where an optimizer has stepped in this one."""
        if self.stepped and not self.stepping and torch.is_grad_enabled() and not in_backward():
            self.next_step()

    def step_begins(self, optimizer: Any) -> None:
        """Begin the next step with an optimizer that has stepped in this one."""
        if id(optimizer) in self.stepped:
            self.next_step()

    # Events, from torch's hooks and from sources

    def trains(self, model: nn.Module) -> bool:
        """Say whether an engine of this model is to be reported."""
        return True

    def holds(self, optimizer: Any) -> bool:
        """Say whether an optimizer is to be reported: whether it has parameters of the model."""
        return True

    def scaled_by(self, scale: Callable[[], float]) -> None:
        """Note what the loss of the next backward pass is multiplied by; it is called only where it is needed."""
        self._scale = scale

    def before_unscale(self, optimizer: Any) -> None:
        """Look at gradients that are scaled still, just before they are unscaled."""

    def before_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Note that an optimizer is about to step: from torch's own hooks, or where it is none of torch's."""

    def after_optimizer(self, optimizer: Any, *_: Any) -> None:
        """Note that it has stepped."""

    def before_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights that a step is about to move, and at its unscaled gradients."""

    def after_step(self, optimizer: Any, weights: dict[str, Tensor], gradients: Gradients) -> None:
        """Look at the weights after it."""

    def skipped(self, optimizer: Any, gradients: Gradients, why: str = "") -> None:
        """Note that a step was not taken."""

    @contextmanager
    def step_by_scaler(self, optimizer: Any) -> Iterator[None]:
        """Be open while a scaler decides on a step of torch's own optimizer."""
        yield

    def step_by_engine(self, optimizer: Any) -> AbstractContextManager[None]:
        """Be open while an engine decides on a step, and reports it."""
        return self.step_by_scaler(optimizer)


class Modules:
    """The modules whose forward passes are running, the innermost last, by their names in a model."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.running: list[str] = []

    def learn(self, model: nn.Module, unnamed: str | None = None) -> None:
        """Learn the names in a model; its own is `unnamed`, or that of its class."""
        own = type(model).__name__ if unnamed is None else unnamed
        self.names |= {id(module): name or own for name, module in model.named_modules()}

    @property
    def innermost(self) -> str:
        """The name of the module that runs; "" outside of any."""
        return self.running[-1] if self.running else ""

    def enter(self, module: nn.Module) -> None:
        """Note that a module begins."""
        self.running.append(self.names.get(id(module), type(module).__name__))

    def leave(self) -> str:
        """Note that the innermost one has ended; return its name."""
        return self.running.pop() if self.running else ""


Look = Callable[[Any, Any, Any], Callable[[Any], None] | None]


class Operations(TorchDispatchMode):
    """Reports each operation below autocast, in the dtype that it is computed in.

    look    (operation, args, kwargs), before it runs -> what to do with its result, or None
    failed  reports what fails in looking; None: it is raised
    """

    def __init__(self, look: Look, failed: Failed | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look, self._failed = look, failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as it is, and look at it before and behind."""
        kwargs = kwargs or {}
        then = self._safely("looking at what an operation takes", self._look, func, args, kwargs)
        result = func(*args, **kwargs)
        if then is not None:
            self._safely("looking at what an operation returns", then, result)
        return result

    def _safely(self, where: str, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except Exception as error:
            if self._failed is None:
                raise
            self._failed(where, error)
            return None
