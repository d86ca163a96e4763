"""Base class of the lab's torch function modes, with support for activation checkpointing.

Activation checkpointing drops a block's activations and calls the block again in backward, after
the `with` statement of the first call has ended. torch restores only its own autocast. So
checkpointing receives the block wrapped with the modes that were active around it.

Invariant: a block runs under the same modes both times, so a checkpointed step is bit-equal to a
plain one. While none of the lab's modes is active, torch's checkpoint is unchanged.
`nested_contexts` closes every mode it has opened, even if opening another one, the block or closing
raises.

Source: torch.utils.checkpoint (both variants), which has no hook for this: two of its functions are
replaced while a mode is open in any thread. Compiled code opens and closes its regions itself,
without calling `LabMode`, so once such code is compiled the functions stay replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache, wraps
from importlib import import_module
from types import MethodWrapperType
from typing import Any, ClassVar

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint

from labkit.modes.arguments import require_one_device
from labkit.modes.composites import body_of, constant_in_graphs
from labkit.modes.replacing import Replacement, Replacements

# the type of `func` when a mode handles x.shape: nothing to cast
ATTRIBUTE = MethodWrapperType
# part of the path of the code that runs the graphs of torch.compile's backends
AOT_RUNTIME = "_aot_autograd"
# the most frames between that code and the graph's
MOST_FRAMES = 12
# functions that may be between a graph's code and a mode: those of another mode or an OpOverload
_BETWEEN = ("__torch_function__", "__call__")
WHY_NO_GRAPH = (
    "a mode of labkit (autocast, half_storage) runs this operation in Python: for an emulated "
    "format or accumulator, a listener, a recurrent layer, a custom Function, a checkpoint, a mask "
    "that it reads, or an error. So the graph breaks here, and fullgraph=True is not possible. "
    "Compile without it: the result is the same. To have whole graphs, take a format that torch "
    "stores, or compile a converted model (labkit.amp.to_model_format)."
)


class LabMode(TorchFunctionMode):
    """A mode that activation checkpointing restores when it recomputes a block."""

    # functions of torch that have no hook for a mode
    replaced_while_open: ClassVar[Replacements] = Replacements()

    def __init_subclass__(cls, **options: Any) -> None:
        """Keep torch.compile from compiling what a mode does in Python after a graph has ended."""
        super().__init_subclass__(**options)
        if "__torch_function__" in vars(cls):
            run_uncompiled(cls.__torch_function__, all_inside=True)

    def __enter__(self) -> Any:
        LabMode.replaced_while_open.open()
        try:
            return super().__enter__()  # type: ignore[no-untyped-call]
        except BaseException:
            LabMode.replaced_while_open.close()
            raise

    def __exit__(self, *exception: Any) -> None:
        try:
            super().__exit__(*exception)  # type: ignore[no-untyped-call]
        finally:
            LabMode.replaced_while_open.close()

    def call_below(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Pass an operation that this mode has handled to the mode below.

        If the next mode is the lab's, it is called directly, in a third of the time that torch's
        dispatch takes.
        """
        depth = torch._C._len_torch_function_stack()
        try:
            if not (depth and isinstance(torch._C._get_function_stack_at(depth - 1), LabMode)):
                return func(*args, **kwargs)
            below: Any = torch._C._pop_torch_function_stack()
            try:
                return below.__torch_function__(func, types, args, kwargs)
            finally:
                torch._C._push_on_torch_function_stack(below)
        except RuntimeError as error:
            require_one_device(
                getattr(func, "__name__", "an operation"), (*args, *kwargs.values()), error
            )
            raise

    def inside(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a composite function (`is_composite`) with this mode active for its operations."""
        return self.call_inside(body_of(func), args, kwargs)

    def call_inside(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a function with this mode active, although the mode is handling a call."""
        torch._C._push_on_torch_function_stack(self)
        try:
            return function(*args, **kwargs)
        finally:
            torch._C._pop_torch_function_stack()


def break_graph() -> None:
    """Break the graph under torch.compile; with `fullgraph` that is an error."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg=WHY_NO_GRAPH)


def runs_graph() -> bool:
    """Return whether the caller is code that a compiler generated from a graph, casts included.

    torch suspends its own autocast while such code runs, but not other modes. A graph of torch.fx
    that was not compiled does not count.
    """
    frame = sys._getframe(1).f_back
    while frame is not None and frame.f_code.co_name in _BETWEEN:
        frame = frame.f_back
    # in a thread of torch that runs a backward pass, no Python code calls the mode
    if frame is None:
        return False
    code = frame.f_code
    # the code that inductor generates
    if code.co_name == "call":
        return "extern_kernels" in frame.f_globals
    if code.co_name != "forward" or not code.co_filename.startswith("<eval_with_key>"):
        return False
    above = frame.f_back
    for _ in range(MOST_FRAMES):
        if above is None:
            return False
        if AOT_RUNTIME in above.f_code.co_filename:
            return True
        above = above.f_back
    return False


def call_unseen(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call an operation of a compiled graph, which no mode handles again."""
    with torch._C.DisableTorchFunction():
        return func(*args, **kwargs)


def require_traceable(func: Callable[..., Any]) -> None:
    """Break the graph if torch.compile traces without the modes that will be active at run time.

    These are a custom Function, whose backward pass has the modes of its forward pass, and an
    operation that takes functions, such as a checkpoint, which a mode intercepts as one operation.
    """
    if _traces_without_modes(func):
        break_graph()


@constant_in_graphs
def _traces_without_modes(func: Callable[..., Any]) -> bool:
    _replace_for_compiled_code()
    if isinstance(func, torch._ops.HigherOrderOperator):
        return True
    translators: Any = import_module("torch._dynamo.symbolic_convert").InstructionTranslator
    tracers = translators.current_tx().output.tracers
    return any("autograd" in str(tracer.source_target).lower() for tracer in tracers)


@cache
def _replace_for_compiled_code() -> None:
    """Replace torch's functions permanently, since compiled code does not call `__enter__`."""
    LabMode.replaced_while_open.open()


def run_uncompiled(function: Any, *, all_inside: bool = False) -> None:
    """Exclude a function from torch.compile, optionally with all functions that it calls.

    Where a compiled function calls it, it is still traced as a part of that function. Equivalent to
    torch._dynamo.eval_frame.skip_code and torch.compiler.disable, whose import takes seconds.
    """
    frames: Any = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    strategy = frames._FrameExecStrategy(skip, skip if all_inside else default)
    frames.set_code_exec_strategy(function.__code__, strategy)


def open_modes() -> tuple[LabMode, ...]:
    """Return the lab's modes that are active in this thread, outermost first."""
    return tuple(mode for mode in _get_current_function_mode_stack() if isinstance(mode, LabMode))


def under(
    modes: tuple[LabMode, ...], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    """Call a function with these modes active; enter them only if they are not active already."""
    if open_modes() == modes:
        return function(*args, **kwargs)
    with nested_contexts(lambda: modes):
        return function(*args, **kwargs)


def as_now(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that runs under the modes that are active now, whenever it is called.

    >>> with LabMode():
    ...     later = as_now(open_modes)
    >>> len(later()), len(open_modes())
    (1, 0)
    """
    modes = open_modes()
    if not modes:
        return function

    @wraps(function)
    def under_modes(*args: Any, **kwargs: Any) -> Any:
        return under(modes, function, *args, **kwargs)

    return under_modes


@cache
def _with_modes_of_now(forward: Callable[..., Any]) -> Any:
    """Return the forward of checkpoint's reentrant variant, with the current modes for a block."""

    @wraps(forward)
    def forward_as_now(ctx: Any, function: Callable[..., Any], *rest: Any) -> Any:
        return forward(ctx, as_now(function), *rest)

    return staticmethod(forward_as_now)


@cache
def _generator_with_modes_of_now(generator: Callable[..., Any]) -> Any:
    """Return the generator of the other variant, with the current modes for the block."""

    @wraps(generator)
    def generator_as_now(function: Callable[..., Any], *rest: Any, **kwargs: Any) -> Any:
        return generator(as_now(function), *rest, **kwargs)

    return generator_as_now


LabMode.replaced_while_open.add(
    Replacement(checkpoint.CheckpointFunction, "forward", _with_modes_of_now)
)
LabMode.replaced_while_open.add(
    Replacement(checkpoint, "_checkpoint_without_reentrant_generator", _generator_with_modes_of_now)
)


class nested_contexts:
    """Enter the context managers that a function returns, outermost first, for a `with` block.

    Equivalent to an ExitStack in a generator, in a third of the time, which is measurable in a
    small network's step. None of the managers may suppress an exception.

    >>> from labkit.modes import LabMode, open_modes
    >>> with nested_contexts(lambda: [LabMode(), LabMode()]):
    ...     len(open_modes())
    2
    """

    def __init__(self, modes: Callable[[], Iterable[AbstractContextManager[Any]]]) -> None:
        self._modes = modes
        self._open = list[AbstractContextManager[Any]]()

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
            # if an exit has raised, close the others as well
            if self._open:
                self.__exit__(*exception)
