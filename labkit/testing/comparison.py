"""Verdict on a result: equal, rounding, or a fault.

Idea: what a kernel stores is the rounded sum, so a result between the rounded exact - e and the
rounded exact + e is possible, and any other is not. Of what is possible, most is never reached: the
operation is replayed in several orders on at most 4,096 elements, one half drawn at random, the
other half those nearest to the bound. The *need* of an element is the least error before the final
rounding that explains it; a share is a need divided by the bound.

- equal: every element is the exact result, rounded once;
- rounding of another order: within the bound, and as large as orders that were tried reach;
- larger than any order reaches: within the bound, but one share is 4 times the largest of all
  replays, or the shares of the random half have twice the root mean square of every replay;
- a known fault fits better: within the bound, but the operation with a known fault is far nearer
  than rounding lets it be (`suspects`, "rival");
- cannot be rounding: an element is outside of its interval, or NaN or infinite where the operation
  is not;
- cannot be judged: the bound of every element is infinite.

The sign of zero is counted, and not judged: most contracts of kernels leave it open.

Invariant: "cannot be rounding" is a proof for the arithmetic that was named; "larger than any order
reaches" is strong evidence, and depends on the orders of `orders`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.formats import FP32, FormatLike, Overflow, Rounding, as_format, as_member, round_to
from labkit.formats.arguments import require_kind
from labkit.testing.bound import AnyArithmetic, arithmetic
from labkit.testing.judge import judge
from labkit.testing.kernel_result import KernelResult
from labkit.testing.operation import Array, Operation, values_of
from labkit.testing.products import matmul
from labkit.testing.verdict import Unexplained, Verdict


def compare(
    got: Array,
    operation: Operation,
    *,
    out: FormatLike | None = None,
    accumulator: AnyArithmetic = FP32,
    rounding: Rounding | str = Rounding.NEAREST_EVEN,
    overflow: Overflow | str = Overflow.TO_INFINITY,
) -> Verdict:
    """Return the verdict on the result of a kernel.

    The sign of zero is not judged: `Verdict.zeros` counts zeros of the other sign.

    Args:
        got: the result, on any device.
        operation: `matmul(a, b)`, `softmax(x)` and so on: what the kernel was to compute, from the
            same operands.
        out: format in which the kernel stores; by default that of `got`.
        accumulator: a format or its name, a GPU's name ("H100": its Tensor Cores), or an
            `Arithmetic`.
        rounding: direction of the final rounding.
        overflow: what the final rounding makes of values beyond the format.

    Raises:
        TypeError: `got` holds no floats.
        ValueError: its shape is not that of the operation; its values are not values of `out`.

    >>> from labkit.formats import FP16
    >>> from labkit.testing import matmul
    >>> a = np.float16([[1.0, 2.0**-11, 2.0**-11]])
    >>> print(compare(np.float16([[1.0]]), matmul(a, np.ones((3, 1), np.float16)), out=FP16).kind)
    cannot be rounding
    """
    require_kind(operation, Operation, "operation", "For example: labkit.testing.matmul(a, b)")
    if out is not None:
        out = as_format(out, "out")
    rounding = as_member(Rounding, rounding, "rounding")
    overflow = as_member(Overflow, overflow, "overflow")
    values, stored = values_of(got, "got")
    out = out or stored
    if values.shape != operation.value.shape:
        raise ValueError(
            f"expected a result of shape {list(operation.value.shape)}, got {list(values.shape)}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        if out != stored and not ((round_to(values, out) == values) | np.isnan(values)).all():
            raise ValueError(
                f"expected values of {out.name}, got others in a result stored as {stored.name}"
            )
    result = KernelResult(
        got=values.reshape(-1),
        exact=operation.value.reshape(-1),
        operation=operation,
        arithmetic=arithmetic(accumulator, operation.formats, operation.rounded),
        out=out,
        rounding=rounding,
        overflow=overflow,
    )
    return judge(result)


def assert_explained(
    got: Array,
    a: Array | Operation,
    b: Array | None = None,
    *,
    out: FormatLike | None = None,
    accumulator: AnyArithmetic = FP32,
    **settings: Any,
) -> Verdict:
    """Assert that rounding explains a result, and return the verdict.

    Args:
        got: the result, on any device.
        a: the left operand of a matrix product, or an operation.
        b: the right operand; None with an operation.
        out: as in `compare`.
        accumulator: as in `compare`.
        **settings: further arguments of `compare`, and of `matmul`: bias, scale, operands.

    Raises:
        Unexplained: rounding does not explain it.

    >>> import torch
    >>> from labkit.formats import FP16
    >>> a, b = torch.randn(8, 64).half(), torch.randn(64, 8).half()
    >>> assert assert_explained((a.float() @ b.float()).half(), a, b, out=FP16, accumulator="FP32")
    """
    of_product = {
        name: settings.pop(name) for name in ("bias", "scale", "operands") if name in settings
    }
    if isinstance(a, Operation):
        if b is not None or of_product:
            raise TypeError(
                "expected an operation alone, or two operands; bias, scale and operands belong to "
                "`matmul`"
            )
        operation = a
    elif b is None:
        raise TypeError(
            "expected two operands of a matrix product, or an operation such as softmax(x)"
        )
    else:
        operation = matmul(a, b, **of_product)
    verdict = compare(got, operation, out=out, accumulator=accumulator, **settings)
    if not verdict:
        raise Unexplained(verdict)
    return verdict
