"""Ledger of autocast: its effect on each operation of a network, and the cost of each decision.

Idea: run the forward pass twice, under autocast and in FP32, with the same weights and inputs.
Write one row for each operation that computes something: dtypes in, the rule and its reason, dtype
out, and the error against FP32. Both runs use a region of autocast that records every operation. It
may move operations to other lists for this run, to show the effect of a rule, and it may omit all
casts.

Invariant: nothing is changed. The model keeps its weights, its running statistics, its gradients
and random numbers; without overrides the numbers are those of `autocast` itself.

Limits: an operation is one row. The error of a softmax that takes FP16 and computes in FP32 inside,
as GPU kernels do, is that of its FP16 input and output.
"""

from __future__ import annotations

import copy
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp.casting.autocast import CastEvent, autocast
from labkit.amp.casting.lists import Entry, Rule, rule_for
from labkit.formats import FP16, Format, FormatLike, as_format
from labkit.formats.arguments import describe_value, require_kind
from labkit.gemm import half_storage
from labkit.instrument.events import ModuleBegins
from labkit.instrument.stream import STREAM, Listener
from labkit.modes import is_composite

# Operations that move values or return facts, and compute nothing.
SILENT = frozenset(
    [
        "__get__",
        "__set__",
        "contiguous",
        "reshape",
        "flatten",
        "clone",
        "detach",
        "requires_grad_",
        "data_ptr",
    ]
)
# the lists an operation can be put on
MOVABLE = (Rule.ALLOW, Rule.DENY, Rule.PROMOTE, Rule.KEEP)


@dataclass(frozen=True)
class LedgerRow:
    """One operation of a forward pass.

    Attributes:
        key: its name and the number of the call: "softmax 1".
        op: name of the operation.
        where: path of the module it was called in, "" outside of one.
        rule: its list in this run.
        why: the reason.
        home: its list by default.
        input_dtypes: dtypes of its floating-point tensors, in order.
        to: the dtype, or the emulated format, in which the operation got them, also if they had it
            before; None if autocast does not decide.
        result: dtype of what it returned, or None if it was not reached.
        shape: shape of what it returned.
        error: relative RMS error against FP32: |result - exact| / |exact|; inf if something
            overflowed.
        largest: largest |value| of its FP32 result.
        overflowed: elements that are inf or NaN in this run and finite in FP32.
        lost: elements that are 0 in this run and not in FP32: underflow, or the other side of a
            ReLU.
        problem: torch's error message if the call failed; the rows after it are not reached.
    """

    key: str
    op: str
    where: str
    rule: Rule
    why: str
    home: Rule
    input_dtypes: tuple[torch.dtype, ...]
    to: torch.dtype | Format | None
    result: torch.dtype | None
    shape: tuple[int, ...]
    error: float = math.nan
    largest: float = math.nan
    overflowed: int = 0
    lost: int = 0
    problem: str = ""

    @property
    def ulps(self) -> float:
        """The error in ulps of FP16, for values near 1.

        Rounding once costs about a third of one.
        """
        return self.error / FP16.epsilon

    @property
    def moved(self) -> bool:
        """Whether it was on another list than its default."""
        return self.rule is not self.home


class Recording(autocast):
    """Autocast that records each operation; with `casts=False` it only records.

    Attributes:
        overrides: operations on other lists, by name or key.
        casts: whether operations are cast.
        rows: the operations so far, without their errors against FP32.
        outputs: the results of these operations.
        path: the modules of the network that are running, outermost first.
        counts: how often each operation was called so far.
        problem: the error that ended the run, or "".
        event: autocast's last decision.
    """

    sees_all = True

    def __init__(self, format: Format, overrides: Mapping[str, Rule], *, casts: bool) -> None:
        super().__init__(format, listen=self._receive, cache=False)
        self.overrides = overrides
        self.casts = casts
        self.rows = list[LedgerRow]()
        self.outputs = list[Tensor]()
        self.path = list[str]()
        self.counts = Counter[str]()
        self.problem = ""
        self.event: CastEvent | None = None

    def _receive(self, event: CastEvent) -> None:
        self.event = event

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        rule = self._moved_to(name)
        if rule is None or rule is entry.rule:
            return entry
        return Entry(rule, "you moved it here")

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Any = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in SILENT:
            return func(*args, **kwargs)
        entry = self.entry_for(func, name)
        is_cast = entry.rule is not Rule.KEEP
        if not is_cast and is_composite(func) and self._moved_to(name) is None:
            # record the operations inside instead
            return super().__torch_function__(func, types, args, kwargs)
        inputs = _floats((args, kwargs))
        self.event = None
        if is_cast and self.casts:
            out = super().__torch_function__(func, types, args, kwargs)
        else:
            out = func(*args, **kwargs)
        in_place = name.endswith("_") and not name.endswith("__")
        writes = in_place or kwargs.get("out") is not None
        self._record(name, entry, inputs, out, writes=writes)
        return out

    def enter_module(self, name: str, *_: object) -> None:
        """Record that a module's forward pass begins; a forward pre-hook."""
        self.path.append(name)

    def leave_module(self, *_: object) -> None:
        """Record that the innermost module's forward pass has ended; a forward hook."""
        self.path.pop()

    def _moved_to(self, name: str) -> Rule | None:
        """Return the list that an override puts the next call of an operation on, or None."""
        return self.overrides.get(self._key(name), self.overrides.get(_bare(name)))

    def _key(self, name: str) -> str:
        """Return the key of the next call of an operation, such as "softmax 2"."""
        return f"{_bare(name)} {self.counts[_bare(name)] + 1}"

    def _record(
        self, name: str, entry: Entry, inputs: list[Tensor], out: Any, *, writes: bool
    ) -> None:
        """Record an operation if it computed a floating-point tensor.

        Args:
            name: name of the operation.
            entry: its rule and the reason.
            inputs: its floating-point tensors.
            out: what it returned.
            writes: whether it wrote into one of its arguments.
        """
        results = _floats(out)
        if not results or not inputs:
            return
        result = results[0]
        # a view of an input, such as a slice, computes nothing
        memory = result.untyped_storage().data_ptr()
        if not writes and any(tensor.untyped_storage().data_ptr() == memory for tensor in inputs):
            return
        op = _bare(name)
        where = self.path[-1] if self.path else ""
        self.rows.append(
            LedgerRow(
                key=self._key(name),
                op=op,
                where=where,
                rule=entry.rule,
                why=entry.why,
                home=rule_for(op).rule,
                input_dtypes=tuple(tensor.dtype for tensor in inputs),
                to=self.event.to if self.event is not None else None,
                result=result.dtype,
                shape=tuple(result.shape),
            )
        )
        self.outputs.append(result.detach().clone())
        self.counts[op] += 1


def recorded(model: Callable[..., Any], inputs: tuple[Any, ...], region: Recording) -> Recording:
    """Run a copy of the model in a region, and return the region.

    Args:
        model: a module or any function of tensors.
        inputs: the arguments of the model.
        region: the region. If it casts, an error of an operation ends the run and becomes its
            `problem`.
    """
    # the inputs may be results of other layers, with a history
    inputs = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), inputs)
    model = copy.deepcopy(model)
    device = torch.device("cpu")
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor)]
    if tensors:
        device = tensors[0].device
    with ExitStack() as stack:
        stack.enter_context(_buffers_restored())
        if isinstance(model, nn.Module):
            for name, module in model.named_modules():
                enter = partial(region.enter_module, name)
                stack.callback(module.register_forward_pre_hook(enter).remove)
                leave = module.register_forward_hook(region.leave_module, always_call=True)
                stack.callback(leave.remove)
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        for mode in (torch.no_grad(), half_storage(device), region):
            stack.enter_context(mode)
        # both runs drop the same elements
        torch.manual_seed(0)
        try:
            model(*inputs)
        except RuntimeError as error:
            if not region.casts:
                raise
            region.problem = str(error)
    return region


@contextmanager
def _buffers_restored() -> Iterator[None]:
    """Restore the buffers of every module that this thread calls in the block.

    A copy of a function shares the networks that it calls, and their running statistics.
    """
    thread = threading.get_ident()
    # id of a buffer -> its module and name, the buffer, and its values before the call
    kept: dict[int, tuple[nn.Module, str, Tensor, Tensor]] = {}

    def keep(event: ModuleBegins) -> None:
        if threading.get_ident() != thread:
            return
        module = event.module
        # the copies are not operations of the model
        with torch._C.DisableTorchFunction():
            for name, buffer in module.named_buffers(recurse=False):
                if id(buffer) not in kept:
                    kept[id(buffer)] = (module, name, buffer, buffer.clone())

    try:
        with STREAM.subscribed(Listener().on(ModuleBegins, keep)):
            yield
    finally:
        # the first last, since a module may have replaced a buffer by another one
        for module, name, buffer, values in reversed(kept.values()):
            buffer.copy_(values)
            module._buffers[name] = buffer


def _floats(tree: Any) -> list[Tensor]:
    return [
        leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()
    ]


def _bare(name: str) -> str:
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def ledger(
    model: Callable[..., Any],
    *inputs: Any,
    format: FormatLike = FP16,
    overrides: Mapping[str, Rule] | None = None,
) -> tuple[LedgerRow, ...]:
    """Return one row for each operation of `model(*inputs)`, with its error against FP32.

    Args:
        model: a module or any function of tensors, with FP32 weights.
        *inputs: arguments of the model, tensors in FP32.
        format: the format that autocast casts to.
        overrides: operations on other lists, by name ("softmax": every call) or key ("softmax 2":
            that call).

    Raises:
        TypeError: model is not callable, or overrides is not a mapping.
        ValueError: an override names an operation that is not called, or a rule that is not in
            `MOVABLE`; or the model calls other operations under autocast than in FP32.
        Exception: whatever the model itself raises in FP32.

    >>> for row in ledger(lambda x: (x @ x).exp(), torch.full((2, 2), 2.5)):
    ...     print(row.op, row.rule.value, row.result, f"{row.error:.1e}")
    matmul allow torch.float16 0.0e+00
    exp deny torch.float32 0.0e+00
    >>> inputs = torch.full((2, 2), 2.5)
    >>> (_, row) = ledger(lambda x: (x @ x).exp(), inputs, overrides={"exp": Rule.ALLOW})
    >>> row.result, row.overflowed, round(row.largest)
    (torch.float16, 4, 268337)
    """
    if not callable(model):
        raise TypeError(f"model: expected a module or a function, got {describe_value(model)}")
    format = as_format(format)
    require_kind(overrides, (Mapping, NoneType), "overrides", "Pass operation -> rule.")
    moved = dict(overrides or {})
    wrong = {name: rule for name, rule in moved.items() if rule not in MOVABLE}
    if wrong:
        raise ValueError(
            f"overrides: expected one of {', '.join(str(r) for r in MOVABLE)}, got {wrong}"
        )
    exact = recorded(model, inputs, Recording(FP16, moved, casts=False))
    known = {name for row in exact.rows for name in (row.key, row.op)}
    if set(moved) - known:
        unknown = ", ".join(sorted(set(moved) - known))
        raise ValueError(
            f"this forward pass calls no {unknown}; it calls {', '.join(sorted(known))}"
        )
    cast = recorded(model, inputs, Recording(format, moved, casts=True))
    keys = [row.key for row in exact.rows]
    keys_under_autocast = [row.key for row in cast.rows]
    # a run that an error ended has the first operations only
    same = keys_under_autocast == keys[: len(keys_under_autocast)]
    whole = bool(cast.problem) or len(keys_under_autocast) == len(keys)
    if not same or not whole:
        raise ValueError(
            "this model calls other operations under autocast than in FP32; a ledger needs the "
            "same ones"
        )
    return _compared(cast, exact)


def _compared(cast: Recording, exact: Recording) -> tuple[LedgerRow, ...]:
    """Return the rows of a run under autocast, with their errors against the run in FP32.

    Args:
        cast: the run under autocast, which an error may have ended.
        exact: the run in FP32, with the same operations.
    """
    rows: list[LedgerRow] = []
    for number, output in enumerate(exact.outputs):
        finite = output[output.isfinite()]
        largest = float(finite.abs().max()) if finite.numel() else 0.0
        if number < len(cast.rows):
            error, overflowed, lost = difference(cast.outputs[number], output)
            rows.append(
                replace(
                    cast.rows[number],
                    error=error,
                    largest=largest,
                    overflowed=overflowed,
                    lost=lost,
                )
            )
        else:
            # the operation that failed, or one after it
            problem = cast.problem if number == len(cast.rows) else ""
            unreached = replace(exact.rows[number], input_dtypes=(), to=None, result=None)
            rows.append(replace(unreached, largest=largest, problem=problem))
    return tuple(rows)


def difference(result: Tensor, exact: Tensor) -> tuple[float, int, int]:
    """Return the error of a result against FP32's.

    Elements that are inf or NaN in FP32, such as a mask's, do not count.

    Returns:
        The relative RMS error, the number of elements that overflowed, and the number of elements
        that became 0.

    >>> difference(torch.tensor([1.0, 0.0]).half(), torch.tensor([1.0, 2.0**-30]))
    (9.313225746154785e-10, 0, 1)
    """
    a = exact.double()
    b = result.double()
    finite = a.isfinite()
    a = a[finite]
    b = b[finite]
    overflowed = int((~b.isfinite()).sum())
    lost = int(((b == 0) & (a != 0)).sum())
    if overflowed:
        return float("inf"), overflowed, lost
    distance = float((b - a).norm())
    size = float(a.norm())
    if size:
        error = distance / size
    elif distance == 0:
        error = 0.0
    else:
        error = float("inf")
    return error, overflowed, lost
