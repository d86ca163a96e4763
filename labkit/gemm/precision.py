"""torch's settings for the precision of FP32 products, set for a block and restored after it.

The `fp32_precision` settings are global to the process, and trainings run in threads. Blocks with
the same precision overlap freely; a block with another one waits until those end, in order of
arrival. Nested blocks may differ: the outer one is suspended meanwhile.

Invariant: when the last of overlapping blocks ends, every setting is restored to its value before
the first one, except for those that the user changed meanwhile.

Source: PyTorch, "CUDA semantics", "TensorFloat-32 (TF32) on Ampere (and later) devices";
    aten/src/ATen/Context.cpp (an operation without a precision inherits that of its backend, which
    inherits the generic one; reading a legacy flag raises where the two APIs disagree).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal, get_args

import torch

from labkit.formats.arguments import require_kind
from labkit.interop import as_device

Precision = Literal["ieee", "tf32"]
# cuBLAS and cuDNN on GPUs, and oneDNN on CPUs
BACKENDS = ("cuda", "mkldnn")
OPERATIONS = ("matmul", "conv", "rnn")
_GENERIC = ("generic", "all")
# torch's older API keeps values of its own
_LEGACY_MATMUL = ("legacy", "matmul")
_LEGACY_CUDNN = ("legacy", "cudnn")
_Switches = dict[tuple[str, str], str]

_condition = threading.Condition()
_waiting: deque[object] = deque()
# one entry for each block that is open and not suspended; all are equal
_open: list[Precision] = []
# the switches before the first open block, and as the open blocks set them
_found: _Switches = {}
_set: _Switches = {}
# `.precision`: precision of the innermost block of this thread
_thread = threading.local()


@contextmanager
def fp32_precision(precision: Precision) -> Iterator[None]:
    """Multiply FP32 operands as they are ("ieee"), or rounded to TF32 if supported ("tf32").

    Applies to matrix products, convolutions and recurrent layers on CUDA devices. Those of oneDNN,
    on a CPU, are kept at "ieee" in both cases; elsewhere they may use BF16
    (`torch.set_float32_matmul_precision("medium")`).

    Raises:
        ValueError: the precision is neither "ieee" nor "tf32".

    >>> with fp32_precision("tf32"):
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    ('tf32', 'ieee')
    """
    require_kind(precision, str, "precision", '"ieee" or "tf32"')
    if precision not in get_args(Precision):
        raise ValueError(f'precision: expected "ieee" or "tf32", got {precision!r}')
    outer: Precision | None = getattr(_thread, "precision", None)
    if outer == precision:
        yield
        return
    if outer is not None:
        _release()
    try:
        _acquire(precision)
        try:
            _thread.precision = precision
            yield
        finally:
            _thread.precision = outer
            _release()
    finally:
        if outer is not None:
            _acquire(outer)


def is_ieee_on_cpu() -> bool:
    """Return whether the CPU multiplies FP32 operands unrounded and no open block changes that."""
    with _condition:
        return (
            not _open
            and not _waiting
            and all(_get(("mkldnn", op)) in ("none", "ieee") for op in OPERATIONS)
        )


def has_tf32(device: torch.device | str) -> bool:
    """Return whether a device has Tensor Cores for TF32.

    NVIDIA's have, from Ampere (compute capability 8.0) on.
    """
    device = as_device(device)
    return (
        device.type == "cuda"
        and not torch.version.hip
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def _acquire(precision: Precision) -> None:
    ticket = object()
    with _condition:
        _waiting.append(ticket)
        try:
            _condition.wait_for(
                lambda: _waiting[0] is ticket and (not _open or _open[0] == precision)
            )
            if not _open:
                _found.update(_read())
                # the legacy switches agree with the new ones, so that reading them does not raise
                _set[_LEGACY_MATMUL] = "high" if precision == "tf32" else "highest"
                _set[_LEGACY_CUDNN] = str(precision == "tf32")
                for operation in OPERATIONS:
                    _set["cuda", operation] = precision
                for operation in OPERATIONS:
                    _set["mkldnn", operation] = "ieee"
                _write(_set)
            _open.append(precision)
        finally:
            _waiting.remove(ticket)
            _condition.notify_all()


def _release() -> None:
    with _condition:
        _open.pop()
        if not _open:
            restored = {}
            for key, value in _read().items():
                # a switch that the user changed meanwhile keeps its new value
                restored[key] = _found[key] if value == _set[key] else value
            _write(restored)
        _condition.notify_all()


def _get(key: tuple[str, str]) -> str:
    return str(torch._C._get_fp32_precision_getter(*key))


def _put(key: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*key, value)


def _read() -> _Switches:
    """Return every switch as set: "none" if an operation inherits its backend's precision."""
    own = {_GENERIC: _get(_GENERIC)}
    for backend in BACKENDS:
        own[backend, "all"] = _own((backend, "all"), _GENERIC, own)
        for operation in OPERATIONS:
            own[backend, operation] = _own((backend, operation), (backend, "all"), own)
    found = {key: value for key, value in own.items() if key[1] != "all"}
    products = [(backend, "matmul") for backend in BACKENDS]
    rest = [("cuda", "conv"), ("cuda", "rnn")]
    matmul = _legacy(torch.get_float32_matmul_precision, products, "ieee", found)
    return {
        _LEGACY_MATMUL: matmul,
        _LEGACY_CUDNN: _legacy(torch._C._get_cudnn_allow_tf32, rest, "tf32", found),
    } | found


def _own(key: tuple[str, str], parent: tuple[str, str], own: _Switches) -> str:
    """Return the value that was set for a switch itself, "none" if it inherits its parent's.

    torch's getter does not tell the two apart, so the parent is changed for a moment.
    """
    value = _get(key)
    if value == "none" or value != _get(parent):
        return value
    other = "tf32" if value == "ieee" else "ieee"
    _put(parent, other)
    inherited = _get(key) == other
    _put(parent, own[parent])
    return "none" if inherited else value


def _legacy(
    read: Callable[[], object], keys: Sequence[tuple[str, str]], agreeing: str, found: _Switches
) -> str:
    """Return a legacy flag, also if reading it raises because the new switches disagree with it.

    It is then read again while the switches `keys` have the value `agreeing`. If that raises, too,
    the flag is off.
    """
    try:
        return str(read())
    except RuntimeError:
        for key in keys:
            _put(key, agreeing)
        try:
            return str(read())
        except RuntimeError:
            return "False"
        finally:
            for key in keys:
                _put(key, found[key])


def _write(switches: _Switches) -> None:
    """Set every switch, those of the legacy API first, since they also set some of the others."""
    torch.set_float32_matmul_precision(switches[_LEGACY_MATMUL])
    torch._C._set_cudnn_allow_tf32(switches[_LEGACY_CUDNN] == "True")
    for key, value in switches.items():
        if key[0] != "legacy":
            _put(key, value)
