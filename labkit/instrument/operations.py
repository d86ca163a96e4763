"""Observer of the operations that run below autocast, and of the modules that run them."""

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
    """Return whether a backward pass is running.

    Checkpointing repeats forward passes in it, which an observer must not count again.
    """
    return torch._C._current_graph_task_id() != -1


class Modules:
    """Stack of the modules whose forward passes are running, by their names in a model."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.running: list[str] = []

    def add_names(self, model: nn.Module, unnamed: str | None = None, prefix: str = "") -> None:
        """Add the names of a model's modules.

        Args:
            model: the model.
            unnamed: name of the model itself; None: that of its class.
            prefix: comes before the names of submodules, for a model inside another one.
        """
        for name, module in model.named_modules():
            self.names[id(module)] = prefix + name
        self.names[id(model)] = type(model).__name__ if unnamed is None else unnamed

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


# (operation, args, kwargs) -> a function of the result, or None
BeforeOperation = Callable[[Any, Any, Any], Callable[[Any], None] | None]


class Operations(TorchDispatchMode):
    """A mode that reports each operation below autocast, in the dtype that it is computed in.

    Args:
        look: called before each operation; the function that it returns is called with the result.
        failed: receives an exception of these functions; None: it is raised.
    """

    def __init__(self, look: BeforeOperation, failed: Failed | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._look = look
        self._failed = failed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation unchanged, between the calls of the observer."""
        if kwargs is None:
            kwargs = {}
        look_at_result = None
        try:
            look_at_result = self._look(func, args, kwargs)
        except Exception as error:
            self._report("observing the inputs of an operation", error)
        result = func(*args, **kwargs)
        if look_at_result is None:
            return result
        try:
            look_at_result(result)
        except Exception as error:
            self._report("observing the result of an operation", error)
        return result

    def _report(self, where: str, error: Exception) -> None:
        if self._failed is None:
            raise error
        self._failed(where, error)


def outside_modes() -> AbstractContextManager[Any]:
    """Return a context without dispatch modes, which hides an observer's own operations."""
    if torch._C._len_torch_dispatch_stack():
        return _disable_current_modes()
    return nullcontext()


def op_of_node(name: str) -> str:
    """Return the name of the operation of a graph node.

    The name of a torch.autograd.Function, which has no number at its end, is kept as written.

    >>> op_of_node("LogSoftmaxBackward0"), op_of_node("MyFunctionBackward")
    ('log_softmax', 'MyFunction')
    """
    operation = re.sub(r"Backward\d*$", "", name)
    if name.endswith("Backward"):
        return operation
    # from camel case to snake case
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", operation).lower()
