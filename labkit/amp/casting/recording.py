"""Which operations does a forward pass call, in which dtypes, and what does each return?

Idea: a region of autocast that writes down every operation it sees, and its result. It may put operations on other
lists, and it may leave all casts out: the same operations then run in FP32, to compare with.

Invariant: writing changes nothing. The model keeps its weights, running statistics and random numbers.
"""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp.casting.autocast import CastEvent, autocast
from labkit.amp.casting.lists import Entry, Rule
from labkit.formats import Format
from labkit.gemm import half_storage
from labkit.modes import is_composite

# They move values or ask for facts, and compute nothing.
SILENT = frozenset("__get__ __set__ contiguous reshape flatten clone detach requires_grad_ data_ptr".split())


@dataclass(frozen=True)
class Call:
    """What one run wrote down about one operation."""

    key: str
    op: str
    where: str
    entry: Entry
    given: tuple[torch.dtype, ...]
    to: torch.dtype | Format | None
    output: Tensor


@dataclass
class Notes:
    """What a run has written down so far, and which modules it is in."""

    calls: list[Call] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    path: list[str] = field(default_factory=list)
    event: CastEvent | None = None  # autocast's last decision


class Recording(autocast):
    """Autocast that writes down each operation; with `casts=False` it writes, and casts nothing."""

    sees_all = True

    def __init__(self, format: Format, overrides: Mapping[str, Rule], *, casts: bool) -> None:
        self.notes = notes = Notes()
        super().__init__(format, listen=lambda event: setattr(notes, "event", event), cache=False)
        self.overrides, self.casts = overrides, casts

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        entry = super().entry_for(func, name)
        rule = self._moved_to(name)
        return entry if rule in (None, entry.rule) else Entry(rule, "you moved it here")

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in SILENT:
            return func(*args, **kwargs)
        entry = self.entry_for(func, name)
        kept = entry.rule is Rule.KEEP
        if kept and is_composite(func) and self._moved_to(name) is None:
            return super().__torch_function__(func, types, args, kwargs)  # it is made of others: they are written down
        given = _floats((args, kwargs))
        self.notes.event = None
        if kept or not self.casts:
            out = func(*args, **kwargs)
        else:
            out = super().__torch_function__(func, types, args, kwargs)
        self._write(name, entry, given, out)
        return out

    def _moved_to(self, name: str) -> Rule | None:
        return self.overrides.get(self._key(name), self.overrides.get(_bare(name)))

    def _key(self, name: str) -> str:
        return f"{_bare(name)} {self.notes.counts[_bare(name)] + 1}"

    def _write(self, name: str, entry: Entry, given: list[Tensor], out: Any) -> None:
        """Write an operation down if it computed something that is a floating-point tensor."""
        result = next(iter(_floats(out)), None)
        in_place = name.endswith("_") and not name.endswith("__")
        if result is None or not given:
            return
        if not in_place and any(_same_memory(result, tensor) for tensor in given):
            return
        to = self.notes.event.to if self.notes.event is not None else None
        dtypes = tuple(tensor.dtype for tensor in given)
        where = self.notes.path[-1] if self.notes.path else ""
        key = self._key(name)
        self.notes.calls.append(Call(key, _bare(name), where, entry, dtypes, to, result.detach().clone()))
        self.notes.counts[_bare(name)] += 1


def list_calls(
    model: Callable[..., Any], inputs: tuple[Any, ...], region: Recording
) -> tuple[list[Call], RuntimeError | None]:
    """Run a copy of the model in a region; under autocast, torch's refusal of an operation is a result."""
    inputs = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), inputs)  # they may come from other layers
    model = copy.deepcopy(model)
    device = next((t.device for t in tree_leaves(inputs) if isinstance(t, Tensor)), torch.device("cpu"))
    failure = None
    with (
        torch.random.fork_rng(devices=range(torch.cuda.device_count())),
        torch.no_grad(),
        _paths(model, region.notes),
        _statistics_kept(model),
        half_storage(device),
        region,
    ):
        torch.manual_seed(0)  # the same dropout in both runs
        try:
            model(*inputs)
        except RuntimeError as error:
            if not region.casts:
                raise
            failure = error
    return region.notes.calls, failure


@contextmanager
def _paths(model: Callable[..., Any], notes: Notes) -> Iterator[None]:
    """Follow which module of the model is running."""
    with ExitStack() as hooks:
        for name, module in model.named_modules() if isinstance(model, nn.Module) else ():
            hooks.callback(module.register_forward_pre_hook(lambda *_, name=name: notes.path.append(name)).remove)
            hooks.callback(module.register_forward_hook(lambda *_: _leave(notes), always_call=True).remove)
        yield


@contextmanager
def _statistics_kept(model: Callable[..., Any]) -> Iterator[None]:
    """Put back the buffers of networks that a function calls: a copy of the function has no copy of them."""
    named = inspect.getclosurevars(model) if inspect.isfunction(model) else None
    values = (*named.nonlocals.values(), *named.globals.values()) if named else ()
    before = [(b, b.clone()) for network in values if isinstance(network, nn.Module) for b in network.buffers()]
    try:
        yield
    finally:
        for buffer, value in before:
            buffer.copy_(value)


def _leave(notes: Notes) -> None:
    notes.path.pop()


def _floats(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _same_memory(one: Tensor, other: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _bare(name: str) -> str:
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name
