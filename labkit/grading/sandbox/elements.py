"""Arrays and tensors in grading: what needs numpy or torch itself.

Answers of most exercises are plain numbers, and they are judged where neither numpy nor torch is
installed. So `wire`, `answer` and `difference` import this module only where they meet an array or
a tensor, which `is_array` and `is_tensor` of `labkit.grading.sandbox.kinds` say.
"""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import torch

from labkit.grading.sandbox.kinds import ARRAY_KINDS

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.float16,
        torch.bfloat16,
        torch.float32,
        torch.float64,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
    )
}
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def dump_tensor(tensor: torch.Tensor) -> list[Any]:
    """Return a tensor as JSON, without its gradient history, device and strides."""
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.layout is not torch.strided or tensor.is_meta:
        return ["opaque", f"a tensor of type {name}, {tensor.layout}, on {tensor.device}"]
    plain = tensor.detach().cpu().resolve_neg()
    # The stride of a dimension of length 1 may be any number, which `view` below would refuse.
    flat = plain.clone(memory_format=torch.contiguous_format).reshape(-1)
    return ["tensor", name, list(tensor.shape), _text(flat.view(torch.uint8).numpy().tobytes())]


def dump_array(array: np.ndarray[Any, Any]) -> list[Any]:
    """Return an array as JSON."""
    if array.dtype.kind not in ARRAY_KINDS:
        return ["opaque", f"an array of type {array.dtype}"]
    return ["array", array.dtype.str, list(array.shape), _text(array.tobytes())]


def load_tensor(dtype: str, shape: list[int], text: str) -> torch.Tensor:
    """Return the tensor that `dump_tensor` wrote, without its tag.

    Raises:
        LookupError, RuntimeError, ValueError: It was not written by `dump_tensor`.
    """
    content = bytearray(base64.b64decode(text, validate=True))
    if not content:
        return torch.zeros(0, dtype=DTYPES[dtype]).reshape(shape)
    return torch.frombuffer(content, dtype=torch.uint8).view(DTYPES[dtype]).reshape(shape)


def load_array(dtype: str, shape: list[int], text: str) -> np.ndarray[Any, Any]:
    """Return the array that `dump_array` wrote, without its tag.

    Raises:
        TypeError, ValueError: It was not written by `dump_array`.
    """
    content = bytearray(base64.b64decode(text, validate=True))
    if np.dtype(dtype).kind not in ARRAY_KINDS:
        raise ValueError(f"an array of {dtype} has no form as an answer")
    array: np.ndarray[Any, Any] = np.frombuffer(content, dtype=np.dtype(dtype)).reshape(shape)
    return array


def snapshot_of_tensor(tensor: torch.Tensor) -> object:
    """Return what can be changed in place in a tensor."""
    plain = tensor.detach()
    return plain.dtype, plain.shape, plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def as_tensor(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return an array as a tensor of the same dtype and shape."""
    return torch.from_numpy(array)


def first_wrong(expected: torch.Tensor, got: torch.Tensor, ulps: int) -> int | None:
    """Return the place of the first element that differs, counted in one row; None without any.

    Args:
        expected: The right elements.
        got: Elements of the same dtype and shape.
        ulps: How many floats of the dtype two equal elements may lie apart.
    """
    wrong = (~_within_ulps(expected, got, ulps)).reshape(-1).nonzero()
    return int(wrong[0]) if len(wrong) else None


def _within_ulps(expected: torch.Tensor, got: torch.Tensor, ulps: int) -> torch.Tensor:
    """Return, per element, whether both are equal, both NaN, or finite and at most `ulps` apart."""
    if not expected.dtype.is_floating_point:
        return expected == got
    wide_expected = expected.double()
    wide_got = got.double()
    equal = (wide_expected == wide_got) | (wide_expected.isnan() & wide_got.isnan())
    finite = wide_expected.isfinite() & wide_got.isfinite()
    return equal | (finite & ((_ordinal(expected) - _ordinal(got)).abs() <= ulps))


def _ordinal(tensor: torch.Tensor) -> torch.Tensor:
    """Return the ordinal of each float in its format: neighbours differ by 1, both zeros are 0."""
    integer = _INTEGERS[tensor.element_size()]
    code = tensor.contiguous().view(integer).long()
    magnitude = code & torch.iinfo(integer).max
    return torch.where(code < 0, -magnitude, magnitude)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
