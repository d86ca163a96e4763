"""What does a network call, once autocast has decided everything, and can it be called again without asking?

Idea: the network runs once as it always does, under autocast and `half_storage`, and the outermost mode writes down
what arrives at torch: the operations, and each cast with the operation that it is for. Nothing is decided twice, so a
trace says what eager autocast does because it is what eager autocast did.

Invariant: a traced run returns what an untraced one returns. What cannot be written down ends the trace with a reason
and the line that it stands in, and the run goes on.

What it does not do: see Python that no tensor goes through. A print, or a global variable, is as it was in the trace.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten

from labkit.amp.casting.autocast import autocast
from labkit.amp.casting.lists import Entry, Rule
from labkit.amp.graph.recorder import Recorder, Step
from labkit.formats import Format
from labkit.gemm import half_storage
from labkit.modes import ATTRIBUTE


@dataclass(frozen=True)
class Given:
    """A tensor that was there before the trace: which, and whether it is a weight or asks for a gradient otherwise."""

    number: int
    dtype: torch.dtype
    weight: bool
    gradient: bool


@dataclass(frozen=True)
class Trace:
    """A run that was written down. Two of one network under the same circumstances are equal.

    steps   what was called, in order
    given   the tensors that were there before: the inputs first, then weights, buffers and constants
    leaves  what was returned, with a `Ref` for each tensor, flat; spec says how it was nested
    grad    whether gradients were asked for
    """

    steps: list[Step]
    given: list[Given]
    leaves: list[Any]
    spec: Any
    grad: bool


def trace(
    model: Callable[..., Any], format: Format, inputs: list[Tensor], args: Any, kwargs: Any, modes: Sequence[Any] = ()
) -> tuple[Any, Any]:
    """Call a model under autocast; return its result, and a (`Trace`, tensors that were given) or why there is none.

    `modes` are open around it as well; they change no operation.
    """
    recorder = Recorder(inputs)
    device = inputs[0].device if inputs else torch.device("cpu")
    drawn = _drawn()
    compiled = "torch._dynamo" in sys.modules  # then a part of the network may be: it is traced as it was written
    plain = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
    with ExitStack() as stack:
        opened = (noting_functions(recorder), plain, recorder, half_storage(device), TracedAutocast(format, recorder))
        for region in (*opened, *modes):
            stack.enter_context(region)
        out = model(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            leaves, spec = tree_flatten(out)
            written = recorder.written(leaves)
    if drawn != _drawn():
        recorder.refuse("forward draws from Python's or numpy's random numbers, or sets torch's seed")
    if recorder.problem:
        return out, recorder.problem
    tensors = [recorder.tensors[number] for number in recorder.given]
    given = [
        Given(number, t.dtype, t.requires_grad and t.is_leaf and t.dtype is torch.float32, t.requires_grad)
        for number, t in zip(recorder.given, tensors, strict=True)
    ]
    return out, (Trace(recorder.steps, given, written, spec, torch.is_grad_enabled()), tensors)


class TracedAutocast(autocast):
    """Autocast that tells a recorder which operation is coming, and each cast that it makes for it."""

    sees_all = True

    def __init__(self, format: Format, recorder: Recorder) -> None:
        super().__init__(format, cache=False)
        self.recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        if type(func) is ATTRIBUTE:  # which autocast itself lets pass before it asks the lists
            self.entry_for(func, func.__name__)
        return super().__torch_function__(func, types, args, kwargs)

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        self.recorder.current = (self.recorder.current[0] + 1, name, entry)
        return entry

    def _cast(self, name: str, entry: Entry, *rest: Any) -> tuple[Any, Any]:
        if self.recorder.current[1:] != (name, entry):  # a function of the user's own, which is registered
            self.recorder.current = (self.recorder.current[0] + 1, name, entry)
        return super()._cast(name, entry, *rest)

    def _decide(self, rule: Rule, args: Any, kwargs: Any) -> Any:
        to, change = super()._decide(rule, args, kwargs)
        return to, change and (lambda tensor: self.recorder.cast(tensor, change(tensor)))


@cache
def applied_eagerly(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return what calls a custom autograd Function as eager autocast does: under the modes that are open."""

    def apply_(*args: Any) -> Any:
        with torch._C._EnableTorchFunction():
            return function.apply(*args)

    apply_.__name__ = f"{function.__name__}_"  # it may write in place, for all that is known
    apply_.is_custom = True  # type: ignore[attr-defined]
    return apply_


@contextmanager
def noting_functions(recorder: Recorder) -> Iterator[None]:
    """Let custom autograd Functions, which no mode sees, be written down whole: their backward is their own."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original.__get__(None, cls)
        stack = _get_current_function_mode_stack()
        if recorder not in stack or recorder.ended:
            return plain(*args, **kwargs)
        written, recorder.paused = recorder.written(args), True
        try:
            out = plain(*args, **kwargs)
        finally:
            recorder.paused = False
        if not recorder.problem:
            recorder.append(applied_eagerly(cls), written, kwargs, out)
        return out

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


def _drawn() -> Any:
    """Return where the random numbers stand that torch's functions do not draw, and which seed torch was given."""
    return random.getstate(), repr(np.random.get_state()), torch.initial_seed()  # noqa: NPY002 (the user's, if any)


def made_anew(before: list[tuple[dict[str, Any], str]], now: list[tuple[dict[str, Any], str]]) -> str:
    """Say that tensors which two traces were given are not the same ones; "" where they are."""
    same = [id(d[k]) for d, k in before] == [id(d[k]) for d, k in now]
    return "" if same else "a tensor comes from elsewhere, another one each time"


def difference(last: Trace | None, now: Trace) -> str:
    """Say where two traces differ; "" where they do not, or there is one only."""
    if last is None or last == now:
        return ""
    pairs = zip(last.steps, now.steps, strict=False)
    where = next((f"{b.where}, in {b.op}" for a, b in pairs if a != b), "at its end")
    return f"{where}. What Python decides anew each time is not decided once"
