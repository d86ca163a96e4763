"""Precision of FP32 products: torch's `fp32_precision` switches, set for a block and restored after it.

The switches are global to the process, and trainings run in threads. Blocks that need the same precision overlap
freely; a block that needs another one waits until those are done, first come, first served. Nested blocks may differ:
the outer one is suspended meanwhile.

Invariant: when the last of overlapping blocks ends, every switch is as the first one found it, except for those that
the user changed meanwhile, which keep the user's value.

Source: PyTorch, "CUDA semantics", section "TensorFloat-32 (TF32) on Ampere (and later) devices", and "Numerical
accuracy"; aten/src/ATen/Context.cpp (an operation without a precision of its own takes that of its backend, and that
one the generic; reading a legacy flag raises where the two APIs disagree).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch

Precision = Literal["ieee", "tf32"]
BACKENDS = ("cuda", "mkldnn")  # cuBLAS and cuDNN; oneDNN, which a CPU computes with
OPERATIONS = ("matmul", "conv", "rnn")
_GENERIC = ("generic", "all")
_LEGACY_MATMUL, _LEGACY_CUDNN = ("legacy", "matmul"), ("legacy", "cudnn")  # torch's older API keeps values of its own
_Switches = dict[tuple[str, str], str]

_condition = threading.Condition()
_waiting: deque[object] = deque()
_open: list[Precision] = []  # one entry for each block that is open and not suspended; all are equal
_found: _Switches = {}
_set: _Switches = {}
_thread = threading.local()  # .precision: what the innermost block of this thread asks for


@contextmanager
def fp32_precision(precision: Precision) -> Iterator[None]:
    """Multiply FP32 operands as they are ("ieee") or, where the hardware can, rounded to TF32 ("tf32").

    Applies to matrix products, convolutions and recurrent layers on CUDA devices. Those of oneDNN, on a CPU, are kept
    at "ieee" in both cases; elsewhere they may use BF16 (`torch.set_float32_matmul_precision("medium")`).

    >>> with fp32_precision("tf32"):
    ...     torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision
    ('tf32', 'ieee')
    """
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


def has_tf32(device: torch.device | str) -> bool:
    """Return whether a device has Tensor Cores for TF32: NVIDIA's have from Ampere (compute capability 8.0) on."""
    device = torch.device(device)
    return device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 0)


def _acquire(precision: Precision) -> None:
    ticket = object()
    with _condition:
        _waiting.append(ticket)
        try:
            _condition.wait_for(lambda: _waiting[0] is ticket and (not _open or _open[0] == precision))
            if not _open:
                _found.update(_read())
                _set.update(_switches(precision))
                _write(_set)
            _open.append(precision)
        finally:
            _waiting.remove(ticket)
            _condition.notify_all()


def _release() -> None:
    with _condition:
        _open.pop()
        if not _open:
            now = _read()
            _write({key: _found[key] if now[key] == _set[key] else now[key] for key in _found})
        _condition.notify_all()


def _switches(precision: Precision) -> _Switches:
    """Return all switches for a precision; those of the legacy API agree, so that reading them does not raise."""
    legacy = {_LEGACY_MATMUL: "high" if precision == "tf32" else "highest", _LEGACY_CUDNN: str(precision == "tf32")}
    by_backend = {"cuda": precision, "mkldnn": "ieee"}
    return legacy | {(backend, op): by_backend[backend] for backend in BACKENDS for op in OPERATIONS}


def _get(key: tuple[str, str]) -> str:
    return str(torch._C._get_fp32_precision_getter(*key))


def _put(key: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*key, value)


def _read() -> _Switches:
    """Return every switch as it was set: "none" for an operation that takes its backend's precision."""
    own = {_GENERIC: _get(_GENERIC)}
    for backend in BACKENDS:
        own[backend, "all"] = _own((backend, "all"), _GENERIC, own)
        for operation in OPERATIONS:
            own[backend, operation] = _own((backend, operation), (backend, "all"), own)
    found = {key: value for key, value in own.items() if key[1] != "all"}
    legacy = _legacy_matmul(found), _legacy_cudnn(found)
    return dict(zip((_LEGACY_MATMUL, _LEGACY_CUDNN), legacy, strict=True)) | found


def _own(key: tuple[str, str], parent: tuple[str, str], own: _Switches) -> str:
    """Return a switch's own value. torch tells only the inherited one: set the parent otherwise for a moment to see."""
    value = _get(key)
    if value == "none" or value != _get(parent):
        return value
    other = "tf32" if value == "ieee" else "ieee"
    _put(parent, other)
    inherited = _get(key) == other
    _put(parent, own[parent])
    return "none" if inherited else value


def _legacy_matmul(found: _Switches) -> str:
    """Return `torch.get_float32_matmul_precision()`, also where it raises because the new API says otherwise."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        keys = [(backend, "matmul") for backend in BACKENDS]
        for key in keys:
            _put(key, "ieee")  # agrees with each legacy value
        legacy = torch.get_float32_matmul_precision()
        for key in keys:
            _put(key, found[key])
        return legacy


def _legacy_cudnn(found: _Switches) -> str:
    """Return `torch.backends.cudnn.allow_tf32`, also where it raises: then it is what the new API does not say."""
    try:
        return str(torch._C._get_cudnn_allow_tf32())
    except RuntimeError:
        keys = [("cuda", "conv"), ("cuda", "rnn")]
        for key in keys:
            _put(key, "tf32")
        try:
            allowed = torch._C._get_cudnn_allow_tf32()
        except RuntimeError:
            allowed = False
        for key in keys:
            _put(key, found[key])
        return str(allowed)


def _write(switches: _Switches) -> None:
    """Set every switch, those of the legacy API first: they set some of the others."""
    torch.set_float32_matmul_precision(switches[_LEGACY_MATMUL])
    torch._C._set_cudnn_allow_tf32(switches[_LEGACY_CUDNN] == "True")
    for key, value in switches.items():
        if key[0] != "legacy":
            _put(key, value)
