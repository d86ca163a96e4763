"""Which operation does what a format cannot bear? A dispatch mode looks at each, below autocast.

Idea: an operation is remarkable by what goes in and what comes out alone: inf from numbers that are finite, a constant
that its format does not have, whole numbers that a conversion makes equal.

Invariant: it looks, and returns what the operation returned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from labkit.clinic.constants import misfit
from labkit.instrument.guard import reporting
from labkit.instrument.sample import finite, floats, in_backward

HALF = (torch.float16, torch.bfloat16)
KINDS = {  # operation -> what it is called when inf or NaN begins there
    "log of 0": {"log", "log2", "log10", "log1p", "log_"},
    "exp overflows": {"exp", "exp2", "expm1", "exp_"},
    "division by 0": {"div", "div_", "reciprocal", "rsqrt", "true_divide"},
    "sum overflows": {"sum", "mean", "cumsum", "add_", "_foreach_add_", "norm", "linalg_vector_norm"},
    "softmax of a masked row": {"_softmax", "_safe_softmax", "_log_softmax"},
}
WITH_CONSTANT = {"add", "sub", "rsub", "add_", "sub_", "clamp", "clamp_min", "clamp_max", "masked_fill", "where"}
CASTS = {"_to_copy", "copy_"}
VIEWS = {"view", "_unsafe_view", "t", "transpose", "permute", "expand", "squeeze", "unsqueeze", "detach", "alias",
         "slice", "select", "split", "unbind", "as_strided", "clone", *CASTS}  # fmt: skip
SQUARES = {"pow", "norm", "linalg_vector_norm", "square"}
NORMS = {"norm", "linalg_vector_norm", "_foreach_norm"}
ALMOST_LOWEST = -60_000  # what masks in FP16 are made of: that two add up to -inf does no harm


class Hearer(Protocol):
    """Whoever is told of operations."""

    step: int
    stepping: bool
    regions: list[bool]
    scaled_gradients: list[Tensor]

    def failed(self, where: str, error: Exception) -> None:
        """Report what failed in looking."""

    def note(self, kind: str, seen: str) -> None:
        """Write down what was seen."""

    def still_scaled(self) -> list[Tensor]:
        """Return the gradients that a scaler has not unscaled yet."""

    def held(self) -> Iterator[Tensor]:
        """Yield the parameters of all optimizers that are known."""


class Operations(TorchDispatchMode):
    """Looks at each operation while it is on, and tells a listener."""

    def __init__(self, listener: Hearer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.listener = listener
        self._told = (-1, "")  # the step and the pass whose first inf or NaN was told

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation as it is, and look at it."""
        kwargs, inputs, before = kwargs or {}, list[Tensor](), 0
        with reporting(self.listener.failed, "looking at what an operation takes"):
            inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
            before = _worst(inputs) if func._schema.is_mutable else 0
        out = func(*args, **kwargs)
        with reporting(self.listener.failed, "looking at what an operation returns"):
            self.look(func, args, inputs, before, out)
        return out

    def look(self, func: Any, args: Any, inputs: list[Tensor], before: int, out: Any) -> None:
        """Look at an operation that has run."""
        name, changing = func._schema.name.partition("::")[2], func._schema.is_mutable
        outputs = floats([out, *(inputs if changing else ())])
        if inputs and outputs and "empty" not in name and name != "detach":
            worst = _worst(outputs)
            if worst > (before if changing or not worst else _worst(inputs)):
                self.first_bad(name, args, inputs, outputs)
            self.conversion(name, inputs[-1], outputs[0])
            self.use(name, args, inputs, outputs)

    def first_bad(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Report the first operation of a pass that produced inf or NaN.

        Operations on an optimizer's gradients after backward are left out. Clipping turns inf into NaN, which is
        harmless where the scaler skips the step; a step taken with such gradients is a finding of its own.
        """
        bad = next(t for t in outputs if not finite(t))
        passing = "backward" if in_backward() else "optimizer" if self.listener.stepping else "forward"
        infinite = any(isinstance(a, float) and math.isinf(a) for a in args)
        if passing == "forward" and any(t is p.grad for p in self.listener.held() for t in inputs):
            return
        if infinite or self._told == (self.listener.step, passing) or _is_mask(name, inputs, bad):
            return
        self._told = (self.listener.step, passing)
        value = "NaN" if bool(bad.isnan().any()) else "inf"
        kind = next((kind for kind, names in KINDS.items() if name in names), "overflow")
        if passing != "forward" or (bad.dtype not in HALF and kind != "softmax of a masked row"):
            kind = f"inf or NaN in {'the ' + passing + ' pass' if passing != 'forward' else 'FP32'}"
        sizes = [float(t[t.isfinite()].abs().max()) for t in floats(inputs) if bool(t.isfinite().any())]
        count = max((t.numel() for t in inputs), default=0)
        largest = f"the largest finite number of its {count:,} inputs is {max(sizes, default=0):.3g}"
        self.listener.note(kind, f"first {value} in {_short(bad)}: {name.strip('_')} in the {passing} pass; {largest}")

    def conversion(self, name: str, before: Tensor, after: Tensor) -> None:
        """Tell of whole numbers that fall together when they are converted."""
        if name not in CASTS or after.dtype not in HALF or before.dtype in (*HALF, torch.bool) or before.numel() < 2:
            return
        if before.is_complex() or before.shape != after.shape or bool((before.double() == after.double()).all()):
            return
        largest = float(before.abs().max())
        if bool((before == before.round()).all() if before.is_floating_point() else True) and largest < 2**24:
            kinds = before.unique().numel(), after.unique().numel()
            if kinds[1] < kinds[0]:
                whole = "whole numbers" if not before.is_floating_point() else "whole numbers in FP32"
                seen = f"{kinds[0]:,} whole numbers up to {largest:,.0f} became {kinds[1]:,} in {_short(after)}"
                self.listener.note(f"{whole} fall together", seen)

    def use(self, name: str, args: Any, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        """Tell of constants, of half where autocast is off, and of gradients that are used while scaled."""
        told, backward = self.listener, in_backward()
        if name in WITH_CONSTANT and outputs[0].dtype is torch.float16 and not (backward or told.stepping):
            for number in (a for a in args if isinstance(a, float | int) and not isinstance(a, bool)):
                if misfit(number):
                    told.note("constant", f"{number:g} is {'0' if abs(number) < 1 else 'inf'} in float16 ({name})")
        half = [_short(t) for t in inputs if t.dtype in HALF]
        if half and True in told.regions and not told.regions[-1] and not backward and name not in VIEWS:
            told.note("half where autocast is off", f"{name} was given {half[0]} in a region without autocast")
        if told.scaled_gradients and any(t is g for t in inputs for g in told.scaled_gradients):
            if name in VIEWS:
                told.scaled_gradients += outputs
            elif name in SQUARES or (name == "mul" and len(inputs) == 2 and inputs[0] is inputs[1]):
                told.note("penalty from scaled", f"{name} of gradients that are loss scale times too large")
        if name in NORMS and any(t is g for t in inputs for g in told.still_scaled()):
            told.note("gradients read while scaled", f"{name} of gradients that the scaler had not unscaled yet")


def _worst(tensors: list[Tensor]) -> int:
    """Return 2 where there is NaN, else 1 where there is inf, else 0."""
    bad = [t for t in floats(tensors) if not finite(t)]
    return 2 if any(bool(t.isnan().any()) for t in bad) else 1 if bad else 0


def _is_mask(name: str, inputs: list[Tensor], bad: Tensor) -> bool:
    """Say whether -inf came of a mask that was the lowest number already."""
    low = any(bool((t <= ALMOST_LOWEST).any()) for t in floats(inputs))
    return name in ("add", "sub", "add_", "_to_copy") and low and not bool(bad.isnan().any() | (bad == math.inf).any())


def _short(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
