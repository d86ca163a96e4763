"""The lab's torch function modes: opened and closed as one, and open again when checkpointing runs a block again.

Activation checkpointing forgets a block's activations and calls the block again in backward, long after the `with` that
it first ran in has closed. torch restores its own autocast there and knows of no other. So checkpointing is handed the
block together with the modes that were open around it.

Invariant: a block runs under the same modes both times, so a checkpointed step is bit-equal to a plain one. Where none
of the lab's modes is open, torch's checkpoint does what it always did. Of several modes that are opened as one, none
stays open, whatever happens while they are opened, in the block or while they are closed.

Source: torch.utils.checkpoint (both variants), which has no hook for this: two of its functions are wrapped, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from functools import cache, wraps
from types import MethodWrapperType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from labkit.modes.arguments import require_one_device
from labkit.modes.composites import body_of

ATTRIBUTE = MethodWrapperType  # what a mode is given for x.shape: there is nothing to cast
WHY_NO_GRAPH = (
    "a mode of labkit (autocast, half_storage) looks at each operation in Python before it runs, so the graph ends at "
    "each operation and fullgraph=True cannot be had. Compile without it: the result is the same, and no faster. To "
    "gain from compiling on a GPU, compile a converted model (labkit.amp.to_model_format) or use torch.autocast."
)


class LabMode(TorchFunctionMode):
    """A mode that is open again when checkpointing runs a block again."""

    def __enter__(self) -> Any:
        _wrap_checkpoint()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def call_below(self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operation below this mode, which has looked at it.

        The next mode, if it is the lab's, is asked here as torch would ask it, in a third of the time.
        """
        depth = torch._C._len_torch_function_stack()
        lab = depth and isinstance(torch._C._get_function_stack_at(depth - 1), LabMode)
        below: Any = torch._C._pop_torch_function_stack() if lab else None
        try:
            return below.__torch_function__(func, types, args, kwargs) if lab else func(*args, **kwargs)
        except RuntimeError as error:
            require_one_device(getattr(func, "__name__", "an operation"), (*args, *kwargs.values()), error)
            raise
        finally:
            if lab:
                torch._C._push_on_torch_function_stack(below)

    def inside(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that is made of others (`is_composite`): stay on for them."""
        return self.call_inside(body_of(func), args, kwargs)

    def call_inside(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function in which this mode is on, although it is handling a call."""
        torch._C._push_on_torch_function_stack(self)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._pop_torch_function_stack()


def break_graph() -> None:
    """Tell torch.compile, if it is what calls, that its graph ends here; with `fullgraph` that is an error."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=WHY_NO_GRAPH)


def open_modes() -> tuple[LabMode, ...]:
    """Return the lab's modes that are open in this thread, the outermost first."""
    return tuple(mode for mode in _get_current_function_mode_stack() if isinstance(mode, LabMode))


def under(modes: tuple[LabMode, ...], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function with these modes open; nothing is to do where they are."""
    if open_modes() == modes:
        return function(*args, **kwargs)
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        return function(*args, **kwargs)


def as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs under the modes that are open now, whenever it is called.

    >>> with LabMode():
    ...     later = as_now(open_modes)
    >>> len(later()), len(open_modes())
    (1, 0)
    """
    modes = open_modes()
    return wraps(function)(lambda *args, **kwargs: under(modes, function, *args, **kwargs)) if modes else function


@cache
def _wrap_checkpoint() -> None:
    """Let torch.utils.checkpoint keep a block's modes: its reentrant variant, and the other."""
    reentrant = checkpoint.CheckpointFunction
    forward: Callable[..., Any] = reentrant.forward
    generator: Callable[..., Any] = checkpoint._checkpoint_without_reentrant_generator

    @wraps(forward)
    def forward_as_now(ctx: Any, function: Callable[..., Any], *rest: Any) -> Any:
        return forward(ctx, as_now(function), *rest)

    @wraps(generator)
    def generator_as_now(function: Callable[..., Any], *rest: Any, **kwargs: Any) -> Any:
        return generator(as_now(function), *rest, **kwargs)

    reentrant.forward = staticmethod(forward_as_now)  # type: ignore[method-assign]
    checkpoint._checkpoint_without_reentrant_generator = generator_as_now  # type: ignore[assignment]


class together:
    """Open the modes that a function yields for a `with` block, the outermost first.

    As contextlib's ExitStack in a generator would do it, in a third of the time: a small network's step notices. None
    of them may swallow an exception.

    >>> from labkit.modes import LabMode, open_modes
    >>> with together(lambda: [LabMode(), LabMode()]):
    ...     len(open_modes())
    2
    """

    def __init__(self, modes: Callable[[], Iterable[AbstractContextManager[Any]]]) -> None:
        self._modes, self._open = modes, list[AbstractContextManager[Any]]()

    def __enter__(self) -> None:
        try:
            for mode in self._modes():
                mode.__enter__()
                self._open.append(mode)
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def __exit__(self, *exception: Any) -> None:
        try:
            while self._open:
                self._open.pop().__exit__(*exception)
        finally:
            if self._open:
                self.__exit__(*exception)
