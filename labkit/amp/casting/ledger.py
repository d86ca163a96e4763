"""What does autocast do to a network, operation by operation, and what does each decision cost?

Idea: run the forward pass twice, once under autocast and once in FP32 with the same weights and inputs, and write one
row for each operation that computes something: dtypes in, the rule and its reason, dtype out, and how far its result
is from FP32's. An operation can be moved to another list for this run alone, to see what its rule was good for.

Invariant: nothing is changed. The model keeps its weights, its running statistics and its gradients; with no overrides
the numbers are those of `autocast` itself.

What it does not do: look inside an operation. A softmax that takes FP16 and computes in FP32 inside, as GPU kernels do,
is one row, and its error is that of its FP16 input and output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labkit.amp.casting.lists import Rule, rule_for
from labkit.amp.casting.recording import Call, Recording, list_calls
from labkit.formats import FP16, Format

MOVABLE = (Rule.ALLOW, Rule.DENY, Rule.PROMOTE, Rule.KEEP)  # the lists an operation can be put on


@dataclass(frozen=True)
class LedgerRow:
    """One operation of a forward pass.

    key          its name and which call of that name it is: "softmax 1"
    op           name of the operation
    where        path of the module it was called in, "" outside of one
    rule, why    the list it stood on in this run, and the reason
    home         the list it stands on by itself
    given        dtypes of its floating-point tensors, in order
    to           the dtype they were cast to (for an emulated format, the format), or None where they were left alone
    result       dtype of what it returned, or None if it was not reached
    shape        shape of what it returned
    error        relative RMS error against FP32: |result - exact| / |exact|; inf if something overflowed
    largest      largest |value| of its FP32 result
    overflowed   elements that are inf or NaN here and finite in FP32
    lost         elements that are 0 here and not in FP32: underflow, or the other side of a ReLU
    problem      what torch said if it refused; the rows after it are not reached
    """

    key: str
    op: str
    where: str
    rule: Rule
    why: str
    home: Rule
    given: tuple[torch.dtype, ...]
    to: torch.dtype | Format | None
    result: torch.dtype | None
    shape: tuple[int, ...]
    error: float
    largest: float
    overflowed: int = 0
    lost: int = 0
    problem: str = ""

    @property
    def ulps(self) -> float:
        """The error in ulps of FP16, for values near 1; rounding once costs about a third of one."""
        return self.error / FP16.epsilon

    @property
    def moved(self) -> bool:
        """Whether it stood on another list than its own."""
        return self.rule is not self.home


def ledger(
    model: Callable[..., Any], *inputs: Any, format: Format = FP16, overrides: Mapping[str, Rule] | None = None
) -> tuple[LedgerRow, ...]:
    """Return one row for each operation of `model(*inputs)` under autocast, with its error against FP32.

    Args:
        model: a module or any function of tensors, with FP32 weights.
        format: what autocast casts to.
        overrides: operations on other lists, by name ("softmax": every call) or key ("softmax 2": that call).

    Raises:
        ValueError: an override names an operation that is not called, or a list there is none to move to; or the model
            calls other operations under autocast than in FP32.
        Exception: whatever the model itself raises in FP32.

    >>> for row in ledger(lambda x: (x @ x).exp(), torch.full((2, 2), 2.5)):
    ...     print(row.op, row.rule.value, row.result, f"{row.error:.1e}")
    matmul allow torch.float16 0.0e+00
    exp deny torch.float32 0.0e+00
    >>> (_, row) = ledger(lambda x: (x @ x).exp(), torch.full((2, 2), 2.5), overrides={"exp": Rule.ALLOW})
    >>> row.result, row.overflowed, round(row.largest)
    (torch.float16, 4, 268337)
    """
    moved = dict(overrides or {})
    wrong = {name: rule for name, rule in moved.items() if rule not in MOVABLE}
    if wrong:
        raise ValueError(f"an operation can be moved to {', '.join(r.value for r in MOVABLE)}; it was given {wrong}")
    exact, _ = list_calls(model, inputs, Recording(FP16, moved, casts=False))
    known = {call.key for call in exact} | {call.op for call in exact}
    if set(moved) - known:
        unknown = ", ".join(sorted(set(moved) - known))
        raise ValueError(f"this forward pass calls no {unknown}; it calls {', '.join(sorted(known))}")
    cast, failure = list_calls(model, inputs, Recording(format, moved, casts=True))
    done = [call.key for call in cast]
    if done != [call.key for call in exact[: len(done)]] or (failure is None and len(done) < len(exact)):
        raise ValueError("this model calls other operations under autocast than in FP32; a ledger needs the same ones")
    rows = [_row(one, other) for one, other in zip(cast, exact, strict=False)]
    problems = [str(failure)] + [""] * len(exact)
    missing = [_missing(other, problem) for other, problem in zip(exact[len(done) :], problems, strict=False)]
    return (*rows, *missing)


def _row(call: Call, exact: Call) -> LedgerRow:
    error, overflowed, lost = difference(call.output, exact.output)
    return LedgerRow(
        key=call.key,
        op=call.op,
        where=call.where,
        rule=call.entry.rule,
        why=call.entry.why,
        home=rule_for(call.op).rule,
        given=call.given,
        to=call.to,
        result=call.output.dtype,
        shape=tuple(call.output.shape),
        error=error,
        largest=_largest(exact.output),
        overflowed=overflowed,
        lost=lost,
    )


def _missing(exact: Call, problem: str) -> LedgerRow:
    """Return the row of an operation that torch refused, or that comes after one."""
    row = _row(exact, exact)
    return replace(row, given=(), to=None, result=None, error=float("nan"), problem=problem)


def difference(result: Tensor, exact: Tensor) -> tuple[float, int, int]:
    """Return (relative RMS error, elements that overflowed, elements that became 0) of a result against FP32's.

    Where FP32 itself is inf or NaN (a mask of -inf), the element does not count.

    >>> difference(torch.tensor([1.0, 0.0]).half(), torch.tensor([1.0, 2.0**-30]))
    (9.313225746154785e-10, 0, 1)
    """
    a, b = exact.double(), result.double()
    finite = a.isfinite()
    a, b = a[finite], b[finite]
    overflowed = int((~b.isfinite()).sum())
    lost = int(((b == 0) & (a != 0)).sum())
    if overflowed:
        return float("inf"), overflowed, lost
    off, size = float((b - a).norm()), float(a.norm())
    return (off / size if size else (0.0 if off == 0 else float("inf"))), overflowed, lost


def _largest(tensor: Tensor) -> float:
    finite = tensor[tensor.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0
