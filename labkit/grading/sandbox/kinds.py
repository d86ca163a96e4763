"""Kinds of values: tests for arrays and tensors that import neither numpy nor torch, and names.

No value can be a tensor in a process that has not imported torch. So these tests ask the modules
that are there, and where torch and numpy are not installed, they say no.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import numpy as np
    import torch

# The kinds of numpy's dtypes whose arrays an answer may hold: Booleans, integers and floats.
ARRAY_KINDS = "biuf"


def is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether this is a tensor of torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    """Return whether this is an array of numpy."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def is_numpy_scalar(value: object) -> TypeGuard[np.generic]:
    """Return whether this is a scalar of a class of numpy's own."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.generic):
        return False
    return type(value).__module__ == "numpy"


def is_boolean_tensor(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether this is what `torch.isfinite(...).all()` returns: one boolean, as a tensor."""
    return is_tensor(value) and str(value.dtype) == "torch.bool" and value.dim() == 0


def with_article(name: str) -> str:
    """Return the name of a class with its article, for a sentence.

    >>> with_article("int"), with_article("AmpState"), with_article("ndarray"), with_article("list")
    ('an int', 'an AmpState', 'an ndarray', 'a list')
    """
    # The "n" of numpy's class is spoken as a letter.
    article = "an" if name[0].lower() in "aeiou" or name == "ndarray" else "a"
    return f"{article} {name}"
