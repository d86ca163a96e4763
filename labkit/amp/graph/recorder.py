"""What reaches torch in a run, and can it be written into a graph?

Idea: the outermost mode sees each operation, and each cast that autocast makes for it, and writes it down with a number
for each tensor. What a graph cannot hold, or may do otherwise the next time, is refused with a reason and its line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from labkit.amp.casting.lists import Entry, Rule
from labkit.modes import mapped

_LABKIT = Path(__file__).parents[2]
_ROOMS = ("amp", "frameworks", "gemm", "modes")
_NOT_THE_USERS = (str(Path(torch.__file__).parent), *(str(_LABKIT / room) for room in _ROOMS))
_PLAIN = (int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
# They tell facts that hold as long as the shapes, dtypes and devices of the inputs do.
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
    grad        whether gradients were asked for
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


class Recorder(TorchFunctionMode):
    """The outermost mode of a traced run: writes down what reaches torch.

    steps    what was called, in order
    tensors  each tensor that has a `Ref`, by its number
    given    the numbers of the tensors that were not made in the trace: inputs, weights, buffers, constants
    problem  why there is no trace; "" as long as there is one
    """

    def __init__(self, inputs: Iterable[Tensor]) -> None:
        super().__init__()
        self.steps: list[Step] = []
        self.tensors: list[Tensor] = []
        self.given: list[int] = []
        self.problem, self.paused = "", False
        self.inference = torch.is_inference_mode_enabled()
        self.current: tuple[int, str, Entry] = (0, "", _NOTHING)
        self._refs: dict[int, Ref] = {}
        for tensor in inputs:
            self._ref_of_given(tensor)

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self.ended:
            return func(*args, **kwargs)
        name, (target, arguments) = getattr(func, "__name__", ""), _target(func, args)
        arguments, keywords = self.written((arguments, kwargs))  # now: the operation may write in place
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
        """Write down a cast that autocast made for the current operation; return it."""
        if result is not tensor and not self.ended:
            name = {torch.float16: "half", torch.bfloat16: "bfloat16", torch.float32: "float"}[result.dtype]
            self.append(name, (self.written(tensor),), {}, result, cast=True)
        return result

    def refuse(self, why: str) -> None:
        """End the trace with a reason."""
        self.problem = self.problem or f"{where()}: {why}"

    def written(self, values: Any) -> Any:
        """Return values with a `Ref` for each tensor; refuse what cannot be written into a graph."""
        wrong = [leaf for leaf in tree_leaves(values) if not isinstance(leaf, Tensor | Ref) and not _is_plain(leaf)]
        if wrong:
            self.refuse(f"a {type(wrong[0]).__name__} is no value that a graph can hold")
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
        ref = self._refs.get(id(tensor))
        if ref is None:
            with torch._C.DisableTorchFunction():
                if tensor.grad_fn is not None:
                    self.refuse("a tensor was made where torch shows no call: in torch.jit, or an extension")
            ref = self._ref_of_given(tensor)
        return ref

    def _ref_of_given(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self._refs:
            self.given.append(len(self.tensors))
        return self._ref_of_made(tensor)

    def _ref_of_made(self, tensor: Tensor) -> Ref:
        if id(tensor) not in self._refs:
            self._refs[id(tensor)] = Ref(len(self.tensors))
            self.tensors.append(tensor)  # alive until the end, so that no other has its id
        return self._refs[id(tensor)]


def _target(func: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return how a function is called in a graph: a method by its name, an attribute by getattr."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr, (args[0], func.__self__.__name__)
    method = next((known for known in (name, f"__{name}__") if getattr(Tensor, known, None) is func), None)
    return (func, args) if method is None else (method, args)


def _is_masked(args: Any, tensors: list[Tensor]) -> bool:
    """Whether an index holds a boolean mask."""
    refs = [leaf for leaf in tree_leaves(args[1:]) if isinstance(leaf, Ref)]
    with torch._C.DisableTorchFunction():
        return any(tensors[ref.number].dtype in (torch.bool, torch.uint8) for ref in refs)


def _is_plain(value: Any) -> bool:
    """Whether a value that is no tensor stays what it is in a graph: a number, a name, a dtype, a slice of numbers."""
    if isinstance(value, slice):
        return all(part is None or isinstance(part, int) for part in (value.start, value.stop, value.step))
    return value is None or value is Ellipsis or isinstance(value, _PLAIN)


def where() -> str:
    """Return file and line of the innermost frame that is neither torch's nor the lab's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_NOT_THE_USERS):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
