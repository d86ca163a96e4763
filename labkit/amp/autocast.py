"""Which dtype does each operation of a forward pass run in, when nobody wrote a cast?

Idea: a mode that sees every call before torch does, looks the operation up in the lists, casts its tensors and calls it
again. It sits above autograd, so casts are differentiated like any operation and names are those the learner typed.

Invariant: values change only by rounding; integers, booleans and FP64 are never touched.

Source: torch.amp.autocast (behaviour). What it does not do yet: cache the casts of weights.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

from labkit.amp.lists import Entry, Rule, rule_for
from labkit.formats import FP16, Format
from labkit.gemm import body_of, is_composite
from labkit.interop import dtype_of

_nesting = threading.local()  # .stack: this thread's open autocast regions; only the innermost decides

CASTABLE = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class CastEvent:
    """One decision of autocast.

    op        name of the operation
    rule      which list it stands on
    why       the reason for that
    given     dtypes of its floating-point tensors, in order
    to        the dtype they were cast to, or None where they were left alone
    elements  number of elements that changed dtype
    cached    how many of its casts came from the weight cache
    """

    op: str
    rule: Rule
    why: str
    given: tuple[torch.dtype, ...]
    to: torch.dtype | None
    elements: int
    cached: int = 0


class autocast(TorchFunctionMode):
    """Run the operations inside a `with` block in the dtypes that the lists name, on any device.

    Args:
        format: the low-precision format, FP16 or BF16.
        enabled: False suspends an outer autocast inside the block; the innermost region decides.
        listen: called with a `CastEvent` for each decision.
        cache: keep the casts of weights until the outermost region closes.
        gradients: the format that gradients are rounded to where `format` is emulated; None for `format` itself.
        accumulator: what matrix products add up in; None for FP32.

    Raises:
        RuntimeError: a banned operation is called; the message names the safe form.

    >>> with autocast():
    ...     y = torch.ones(2, 3) @ torch.ones(3, 2)
    ...     y.dtype, torch.nn.functional.mse_loss(y, y).dtype
    (torch.float16, torch.float32)
    """

    def __init__(
        self,
        format: Format = FP16,
        *,
        enabled: bool = True,
        listen: Callable[[CastEvent], None] | None = None,
        cache: bool = True,
        gradients: Format | None = None,
        accumulator: Any = None,
    ) -> None:
        super().__init__()
        self.low = dtype_of(format)
        if self.low not in (torch.float16, torch.bfloat16):
            raise ValueError(f"autocast casts to FP16 or BF16; it was given {format.name}")
        self.enabled = enabled
        self.listen = listen
        self.uses_cache = cache
        self.gradients = gradients
        self.accumulator = accumulator

    def entry_for(self, func: Callable[..., Any], name: str) -> Entry:
        """Return the rule of an operation and its reason. A subclass may answer otherwise."""
        return rule_for(name)

    def __enter__(self) -> autocast:
        _nesting.stack = [*getattr(_nesting, "stack", []), self]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        _nesting.stack = _nesting.stack[:-1]

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        entry = self.entry_for(func, name)
        innermost = _nesting.stack[-1] is self
        if not (self.enabled and innermost):
            return func(*args, **kwargs)
        if entry.rule is Rule.KEEP:
            return self._keep(func, args, kwargs)
        if entry.rule is Rule.BANNED:
            raise RuntimeError(
                f"{name} is not safe under autocast: {entry.why}. "
                "Use torch.nn.functional.binary_cross_entropy_with_logits, or call it in autocast(enabled=False)."
            )
        floats = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.dtype in CASTABLE]
        to = self._target(entry, floats, kwargs)
        self._tell(name, entry, floats, to)
        if to is not None:
            args, kwargs = tree_map_only(Tensor, lambda t: t.to(to) if t.dtype in CASTABLE else t, (args, kwargs))
        return func(*args, **kwargs)

    def _keep(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call an operation that is on no list as it is; if it is made of others, stay on for them."""
        if not is_composite(func):
            return func(*args, **kwargs)
        with self:
            return body_of(func)(*args, **kwargs)

    def _target(self, entry: Entry, floats: list[Tensor], kwargs: dict[str, Any]) -> torch.dtype | None:
        if not floats:
            return None
        if entry.rule is Rule.ALLOW:
            return self.low
        if entry.rule is Rule.PROMOTE:
            return floats[0].dtype if len({t.dtype for t in floats}) == 1 else torch.float32  # FP16 and BF16 need FP32
        if entry.rule is Rule.SET_DTYPE and kwargs.get("dtype") is not None:
            return None
        return torch.float32

    def _tell(self, name: str, entry: Entry, floats: list[Tensor], to: torch.dtype | None) -> None:
        if self.listen is not None:
            given = tuple(t.dtype for t in floats)
            elements = 0 if to is None else sum(t.numel() for t in floats if t.dtype != to)
            self.listen(CastEvent(name, entry.rule, entry.why, given, to, elements))
