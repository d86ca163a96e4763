"""Texts without values that differ from run to run: paths, addresses, times and sizes."""

import hashlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# Pattern and its replacement, in the order in which they are applied.
RULES = (
    # The temporary folder of `trees.environment`: tempfile adds eight letters to its prefix.
    (r"/[\w/]*/guard-\w{8}/tests/guard", "GUARD"),
    (r"0x[0-9a-fA-F]{6,}", "ADDRESS"),
    (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d|Z)?", "TIME"),
    (r"\b\d+(\.\d+)? (KiB|MiB|GiB|kB|MB|GB)\b", "SIZE"),
    # Activations are counted by address, which a freed tensor may share with the next one.
    (r"(memory\.activations) = \d+", r"\1 = SIZE"),
    (r"\bpid \d+", "pid NUMBER"),
    (r"\(labkit [\w.+]+, torch", "(labkit VERSION, torch"),
    (r"(software\.labkit) = '[\w.+]+'", r"\1 = VERSION"),
    # A line number of labkit's own code changes with each edit. Those of faults are kept: a report
    # must name the right line of them.
    (r"(labkit/(?!faults/)[\w/]+\.py)(:|\", line )\d+", r"\1\2LINE"),
)


def without_places(text: str, places: dict[str, Path]) -> str:
    """Return a text with placeholders for folders and for values that differ between runs.

    Args:
        text: The text.
        places: Placeholder -> the folder that it replaces.

    >>> text = "in /tmp/x1/train.py: <object at 0x7f00aa11bb22>, 12.5 MiB"
    >>> without_places(text, {"HERE": Path("/tmp/x1")})
    'in HERE/train.py: <object at ADDRESS>, SIZE'
    """
    places = {**places, "VENV": Path(sys.prefix)}
    # Longest first: one folder may lie in another.
    for name, place in sorted(places.items(), key=lambda item: -len(str(item[1]))):
        for spelling in {str(place), str(place.resolve())}:
            text = text.replace(spelling, name)
    for pattern, placeholder in RULES:
        text = re.sub(pattern, placeholder, text)
    return text


def lines_of(value: Any, path: str = "") -> Iterator[str]:
    """Yield the values of JSON as lines "path = value", so that each difference is a line.

    >>> list(lines_of({"a": [1, 2], "b": [{"c": "x"}]}))
    ['a = [1, 2]', "b[0].c = 'x'"]
    """
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from lines_of(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        for number, item in enumerate(value):
            yield from lines_of(item, f"{path}[{number}]")
    else:
        yield f"{path} = {value!r}"


def digest(tensor: Tensor) -> str:
    """Return dtype, shape and a digest of all bits of a tensor."""
    dense = tensor.detach()
    if dense.is_sparse:
        dense = dense.to_dense()
    dense = dense.cpu().contiguous()
    flat = dense.reshape(-1)
    # NumPy has no bfloat16, so that the bytes are hashed; an empty tensor has no bytes to view.
    numbers = flat.view(torch.uint8) if flat.numel() else flat
    bits_digest = hashlib.sha256(numbers.numpy().tobytes()).hexdigest()[:16]
    return f"{dense.dtype} {tuple(dense.shape)} {bits_digest}"


def exact(number: Any) -> str:
    """Return a number to its last bit; a float is written in hexadecimal.

    >>> exact(0.5), exact(None), exact(True)
    ('0x1.0000000000000p-1', 'None', 'True')
    """
    if isinstance(number, Tensor):
        number = number.item()
    return number.hex() if isinstance(number, float) else str(number)
