"""Is a file's content what was written? A number that any flipped bit changes.

Idea: a tensor's dtype, shape and bytes, and each plain value with its type, in order, go through one hash.

Invariant: equal contents have equal digests on any machine of the same byte order, however the file was packed.

Source: FIPS 180-4 (SHA-256).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_DEEP = (Tensor, Mapping, list, tuple)


def digest(content: Any) -> str:
    """Return the SHA-256 of nested dicts, lists, tuples, tensors and plain values, in hexadecimal.

    >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2)})
    True
    >>> digest({"a": torch.ones(2)}) == digest({"a": torch.ones(2).half()})
    False
    """
    hashed = hashlib.sha256()
    _put(content, hashed.update)
    return hashed.hexdigest()


def _put(value: Any, put: Callable[[Any], object]) -> None:
    """Feed one value; its type and length stand before it, so that no two contents read alike."""
    if isinstance(value, Tensor):
        _put_tensor(value.detach(), put)
    elif isinstance(value, Mapping):
        put(f"{type(value).__name__}:{len(value)};".encode())
        for key, item in value.items():
            _put(key, put)
            _put(item, put)
    elif isinstance(value, list | tuple) and any(isinstance(item, _DEEP) for item in value):
        put(f"{type(value).__name__}:{len(value)};".encode())
        for item in value:
            _put(item, put)
    else:
        text = repr(value).encode(errors="surrogatepass")
        put(f"{type(value).__name__}:{len(text)};".encode() + text)


def _put_tensor(tensor: Tensor, put: Callable[[Any], object]) -> None:
    put(f"{tensor.dtype}:{tensor.layout}:{tuple(tensor.shape)};".encode())
    if tensor.layout is not torch.strided:
        parts = (tensor.coalesce().indices(), tensor.coalesce().values()) if tensor.is_sparse else (tensor.to_dense(),)
        for part in parts:
            _put_tensor(part, put)
    elif tensor.numel():
        dense = tensor.cpu().resolve_conj().resolve_neg().contiguous()
        put(dense.reshape(-1).view(torch.uint8).numpy())
