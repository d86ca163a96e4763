"""Operations below autocast, as a dispatch mode sees them, with the modules that run them."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from labkit.instrument.guard import Failed


def in_backward() -> bool:
    """Return whether a backward pass is running; checkpointing repeats forward passes in it."""
    return torch._C._current_graph_task_id() != -1


class Modules:
    """Stack of the modules whose forward passes are running, by their names in a model."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.running: list[str] = []

    def add_names(self, model: nn.Module, unnamed: str | None = None, prefix: str = "") -> None:
        """Add the names of a model's modules.

        The model itself is called `unnamed`, or by its class. `prefix` comes before the names of a
        model that is a part of another one.
        """
        own = type(model).__name__ if unnamed is None else unnamed
        self.names |= {
            id(module): prefix + name if name else own for name, module in model.named_modules()
        }

    @property
    def innermost(self) -> str:
        """The name of the module that runs; "" outside all modules."""
        return self.running[-1] if self.running else ""

    def enter(self, module: nn.Module) -> None:
        """Push a module."""
        self.running.append(self.names.get(id(module), type(module).__name__))

    def leave(self) -> str:
        """Pop the innermost module, and return its name."""
        return self.running.pop() if self.running else ""


Look = Callable[[Any, Any, Any], Callable[[Any], None] | None]


class Operations(TorchDispatchMode):
    """A mode that reports each operation below autocast, in the dtype that it is computed in.

    Args:
        look: (operation, args, kwargs), called before it runs -> a function of its result, or None.
        failed: receives an exception of these functions; None: it is raised.
    """

    def __init__(self, look: Look, failed: Failed | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look
        self._failed = failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, between the calls of the observer."""
        kwargs, then = kwargs or {}, None
        try:
            then = self._look(func, args, kwargs)
        except Exception as error:
            self._report("observing the inputs of an operation", error)
        result = func(*args, **kwargs)
        try:
            if then is not None:
                then(result)
        except Exception as error:
            self._report("observing the result of an operation", error)
        return result

    def _report(self, where: str, error: Exception) -> None:
        if self._failed is None:
            raise error
        self._failed(where, error)


def outside_modes() -> AbstractContextManager[Any]:
    """Return a context without dispatch modes, which hides an observer's own operations."""
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def op_of_node(name: str) -> str:
    """Return an operation's name from that of its node: "LogSoftmaxBackward0" is "log_softmax"."""
    bare = re.sub(r"Backward\d*$", "", name)
    return bare if name.endswith("Backward") else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", bare).lower()
