"""Traces: the operations of a network with the casts of autocast.

Idea: the network runs once under autocast and `half_storage`, and the outermost mode records the calls that reach
torch, with a number for each tensor. It records operations, and each cast with its operation. A trace is a record of
eager autocast, so it equals eager autocast.

Invariant: a traced run returns the same as an untraced one. An operation that a graph cannot hold, or that may differ
the next time, ends the trace with a reason and a line number, and the run continues.

Limits: Python code without tensors is not traced. A print, or a global variable, stays as in the trace.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._pytree import tree_flatten, tree_leaves

from labkit.amp.casting.autocast import autocast
from labkit.amp.casting.lists import Entry, Rule
from labkit.formats import Format
from labkit.gemm import half_storage
from labkit.modes import ATTRIBUTE, mapped

_LABKIT = Path(__file__).parents[2]
_PACKAGES = ("amp", "frameworks", "gemm", "modes")
_NOT_THE_USERS = (str(Path(torch.__file__).parent), *(str(_LABKIT / package) for package in _PACKAGES))
_PLAIN = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
# Their results depend only on the shapes, dtypes and devices of the inputs.
_FACTS = frozenset(
    "__get__ __len__ __hash__ __format__ __repr__ size dim ndimension numel nelement stride storage_offset "
    "element_size is_contiguous is_floating_point is_complex is_signed is_same_size is_tensor get_device "
    "result_type can_cast promote_types broadcast_shapes has_names is_inference is_storage is_pinned".split()
)
# The shape of what they return depends on numbers, and Python may go on from it.
_DATA_SHAPED = frozenset(
    "nonzero argwhere masked_select unique unique_consecutive bincount histc repeat_interleave "
    "_pack_padded_sequence _pad_packed_sequence".split()
)


@dataclass(frozen=True)
class Ref:
    """A tensor of a trace: which one, in the order of appearance."""

    number: int


@dataclass(frozen=True)
class Step:
    """One call that reached torch.

    target      the function, or the name of a tensor's method
    args        its arguments, with a `Ref` for each tensor
    out         what it returned, likewise
    call        which operation of the user's this is, or belongs to, counted from 1; op, entry: its name and rule
    cast        this is a cast that autocast made for `op`
    grad        whether gradients were recorded
    dtype, shape of the first tensor that was returned
    where       file and line of the user's that called it
    """

    target: Callable[..., Any] | str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Any
    call: int
    op: str
    entry: Entry
    cast: bool
    grad: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    where: str = field(compare=False)


_NOTHING = Entry(Rule.KEEP, "outside of autocast")


class CallRecorder(TorchFunctionMode):
    """The outermost mode of a traced run: writes down what reaches torch.

    steps    the calls, in order
    tensors  each tensor that has a `Ref`, by its number
    sources  the numbers of the tensors that were not made in the trace: inputs, weights, buffers, constants
    problem  why there is no trace; "" as long as there is one
    """

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.tensors: list[Tensor] = []
        self.sources: list[int] = []
        self.problem, self.paused = "", False
        self.inference = torch.is_inference_mode_enabled()
        self.current: tuple[int, str, Entry] = (0, "", _NOTHING)
        self._refs: dict[int, Ref] = {}
        for tensor in inputs:
            self._ref_of_source(tensor)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.ended:
            return func(*args, **kwargs)
        name, target, arguments = getattr(func, "__name__", ""), func, args
        if name == "__get__":  # in a graph, an attribute is read by getattr, and a method called by its name
            target, arguments = getattr, (args[0], func.__self__.__name__)
        else:
            target = next((m for m in (name, f"__{name}__") if getattr(Tensor, m, None) is func), func)
        arguments, keywords = self.to_refs((arguments, kwargs))  # now: the operation may write in place
        out = func(*args, **kwargs)
        if name == "__iter__":
            name, target, out = "unbind", "unbind", list(out)
        if not self.ended:
            self._write(name, target, arguments, keywords, out)
        return out if name != "unbind" or func is Tensor.unbind else iter(out)

    @property
    def ended(self) -> bool:
        """Whether what comes is not written down: there is a problem, or it belongs to a call that is."""
        return self.paused or bool(self.problem)

    def cast(self, tensor: Tensor, result: Tensor) -> Tensor:
        """Record a cast of autocast for the current operation; return it."""
        if result is not tensor and not self.ended:
            name = {torch.float16: "half", torch.bfloat16: "bfloat16", torch.float32: "float"}[result.dtype]
            self.append(name, (self.to_refs(tensor),), {}, result, cast=True)
        return result

    def refuse(self, why: str) -> None:
        """End the trace with a reason."""
        self.problem = self.problem or f"{where()}: {why}"

    def to_refs(self, values: Any) -> Any:
        """Return values with a `Ref` for each tensor; end the trace at a value that a graph cannot hold."""
        for leaf in tree_leaves(values):
            parts = (leaf.start, leaf.stop, leaf.step) if isinstance(leaf, slice) else ()
            numbers = isinstance(leaf, slice) and all(part is None or isinstance(part, int) for part in parts)
            if not (numbers or leaf is None or leaf is Ellipsis or isinstance(leaf, (Tensor, Ref, *_PLAIN))):
                self.refuse(f"a {type(leaf).__name__} is no value that a graph can hold")
        return mapped(values, self._ref)

    def _write(self, name: str, target: Any, args: Any, kwargs: Any, out: Any) -> None:
        if torch._C._are_functorch_transforms_active():
            self.refuse(f"{name} is called inside a transform of torch.func, where tensors stand for others")
        elif torch.is_inference_mode_enabled() != self.inference:
            self.refuse("inference mode is switched in the middle")
        elif name in _DATA_SHAPED or (name == "__getitem__" and _is_masked(args, self.tensors)):
            self.refuse(f"the shape of what {name} returns depends on the numbers in a tensor")
        elif name == "__setitem__" or any(isinstance(leaf, Tensor) for leaf in tree_leaves(out)):
            self.append(target, args, kwargs, out)
        elif name not in _FACTS and any(isinstance(leaf, Ref) for leaf in tree_leaves((args, kwargs))):
            self.refuse(f"{name} tells Python what is in a tensor, and with other numbers it may go on differently")

    def append(self, target: Any, args: Any, kwargs: Any, out: Any, cast: bool = False) -> None:
        first = next((leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)), None)
        with torch._C.DisableTorchFunction():
            dtype, shape = (torch.bool, ()) if first is None else (first.dtype, tuple(first.shape))
            refs = mapped(out, self._ref_of_made)
        grad = torch.is_grad_enabled()
        self.steps.append(Step(target, args, kwargs, refs, *self.current, cast, grad, dtype, shape, where()))

    def _ref(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self._refs:
            with torch._C.DisableTorchFunction():
                if tensor.grad_fn is not None:
                    self.refuse("a tensor was made where torch shows no call: in torch.jit, or an extension")
        return self._ref_of_source(tensor)

    def _ref_of_source(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self._refs:
            self.sources.append(len(self.tensors))
        return self._ref_of_made(tensor)

    def _ref_of_made(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self._refs:
            self._refs[id(tensor)] = Ref(len(self.tensors))
            self.tensors.append(tensor)  # alive until the end, so that no other has its id
        return self._refs[id(tensor)]


def _is_masked(args: Any, tensors: list[Tensor]) -> bool:
    """Whether an index holds a boolean mask."""
    refs = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, Ref)]
    with torch._C.DisableTorchFunction():
        return any(tensors[ref.number].dtype in (torch.bool, torch.uint8) for ref in refs)


def where() -> str:
    """Return file and line of the innermost frame that is neither torch's nor the lab's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@dataclass(frozen=True)
class Source:
    """A tensor that existed before the trace, and whether it is a weight or needs a gradient otherwise."""

    number: int
    dtype: torch.dtype
    weight: bool
    gradient: bool


@dataclass(frozen=True)
class CallTrace:
    """A run that was written down. Two of one network under the same circumstances are equal.

    steps    the calls, in order
    sources  tensors that existed before: the inputs first, then weights, buffers and constants
    leaves   what was returned, with a `Ref` for each tensor, flat; spec says how it was nested
    grad     whether gradients were recorded
    """

    steps: list[Step]
    sources: list[Source]
    leaves: list[Any]
    spec: Any
    grad: bool


def trace(
    model: Callable[..., Any], format: Format, inputs: list[Tensor], args: Any, kwargs: Any, modes: Sequence[Any] = ()
) -> tuple[Any, Any]:
    """Call a model under autocast; return its result, and a (`CallTrace`, source tensors) or why there is none.

    `modes` are open around it as well; they change no operation.
    """
    recorder = CallRecorder(inputs)
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
            written = recorder.to_refs(leaves)
    if drawn != _drawn():
        recorder.refuse("forward draws from Python's or numpy's random numbers, or sets torch's seed")
    if recorder.problem:
        return out, recorder.problem
    tensors = [recorder.tensors[number] for number in recorder.sources]
    sources = [
        Source(number, t.dtype, t.requires_grad and t.is_leaf and t.dtype is torch.float32, t.requires_grad)
        for number, t in zip(recorder.sources, tensors, strict=True)
    ]
    return out, (CallTrace(recorder.steps, sources, written, spec, torch.is_grad_enabled()), tensors)


class TracedAutocast(autocast):
    """Autocast that tells a recorder which operation is coming, and each cast that it makes for it."""

    sees_all = True

    def __init__(self, format: Format, recorder: CallRecorder) -> None:
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
def noting_functions(recorder: CallRecorder) -> Iterator[None]:
    """Let custom autograd Functions, which no mode sees, be written down whole: their backward is their own."""
    original = torch.autograd.Function.__dict__["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        plain = original.__get__(None, cls)
        stack = _get_current_function_mode_stack()
        if recorder not in stack or recorder.ended:
            return plain(*args, **kwargs)
        written, recorder.paused = recorder.to_refs(args), True
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
    """Return the state of the random numbers that torch's functions do not draw, and torch's seed."""
    return random.getstate(), repr(np.random.get_state()), torch.initial_seed()  # noqa: NPY002 (the user's, if any)


def made_anew(before: list[tuple[dict[str, Any], str]], now: list[tuple[dict[str, Any], str]]) -> str:
    """Return a message if the sources of two traces are different tensors, otherwise ""."""
    same = [id(d[k]) for d, k in before] == [id(d[k]) for d, k in now]
    return "" if same else "a tensor comes from elsewhere, another one each time"


def difference(last: CallTrace | None, now: CallTrace) -> str:
    """Say where two traces differ; "" where they do not, or there is one only."""
    if last is None or last == now:
        return ""
    pairs = zip(last.steps, now.steps, strict=False)
    where = next((f"{b.where}, in {b.op}" for a, b in pairs if a != b), "at its end")
    return f"{where}. What Python decides anew each time is not decided once"
