"""Checkpoints: one file from which an interrupted run resumes, bit for bit.

Idea: one bundle holds the engine's state, the random generators and the caller's extra values.
torch.save writes a zip file, in which each tensor has a checksum. torch.load ignores it, so `read`
verifies it first. The file is written atomically (`labkit.records.write_atomic`).

Invariant: at any moment, even if the process is killed, the path holds the old bundle or the new
one, never a part. A bundle in which a value has changed is not loaded. `torch.load(path,
weights_only=True)["model"]` is a plain FP32 state dict.

Source: torch.load (weights_only: the types allowed in an untrusted file); APPNOTE.TXT 4.4.7 (the
CRC-32 of a zip file).
"""

from __future__ import annotations

import io
import random
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._pytree import tree_map_only

from labkit.amp.engine import Engine
from labkit.formats.arguments import require_kind
from labkit.records import write_atomic

SCHEMA = "labkit.checkpoint/2"


def save(path: str | Path, engine: Engine, **extra: Any) -> Path:
    """Write the engine, the random generators and `extra` into one file.

    Args:
        path: the file to write.
        engine: the engine, between two steps.
        **extra: further values for the file, such as a scheduler's state dict or the epoch.

    Returns:
        The path of the file.

    Raises:
        RuntimeError: there are gradients that no step has used.
        TypeError: `extra` or a state holds a value that torch.save does not write, or that
            torch.load(weights_only=True) does not read. The file has not changed then.

    >>> import tempfile
    >>> from functools import partial
    >>> from labkit.amp import RECIPES
    >>> engine = Engine(torch.nn.Linear(2, 1), partial(torch.optim.Adam, lr=0.1), RECIPES["O2"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = save(f"{folder}/run.pt", engine, epoch=3)
    ...     load(path, engine)
    {'epoch': 3}
    """
    require_kind(engine, Engine, "engine", "Make one: Engine(model, make_optimizer, recipe)")
    bundle = {"schema": SCHEMA, **engine.state_dict(), "rng": generators(), "extra": extra}
    require_readable(bundle)
    return write_atomic(Path(path), lambda file: _save_with_checksums(bundle, file))


def _save_with_checksums(bundle: Mapping[str, Any], file: IO[bytes]) -> None:
    """Save a bundle with the checksums that `read` verifies, even if torch is set to omit them."""
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        torch.save(bundle, file)
    finally:
        torch.serialization.set_crc32_options(before)


def load(path: str | Path, engine: Engine) -> dict[str, Any]:
    """Load a bundle into an engine built like the saved one, and restore the random generators.

    Returns:
        The `extra` of `save`.

    Raises:
        ValueError: the file is not a bundle, or the engine was built differently; the message says
            what to do. Neither the engine nor a generator has changed then.
        FileNotFoundError: the file does not exist.
    """
    require_kind(engine, Engine, "engine", "Make one: Engine(model, make_optimizer, recipe)")
    bundle = read(path)
    before = generators()
    try:
        extra: dict[str, Any] = bundle["extra"]
        set_generators(bundle["rng"])
        engine.load_state_dict(bundle)
    except Exception as error:
        set_generators(before)
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"{path} is damaged: {type(error).__name__}: {error}") from error
    return extra


def read(path: str | Path) -> dict[str, Any]:
    """Return the bundle of a file, on the CPU; its "model" is a plain FP32 state dict.

    Raises:
        ValueError: the file is not a bundle, or is damaged; the message says what it is instead.
        FileNotFoundError: the file does not exist.
        PermissionError: the file may not be read.
    """
    if Path(path).is_dir():
        raise ValueError(
            f"expected a checkpoint file, got the folder {path}; pass {Path(path) / 'run.pt'}"
        )
    if not Path(path).exists():
        raise FileNotFoundError(f"checkpoint {path} does not exist")
    bundle: Any = None
    try:
        with zipfile.ZipFile(path) as file:
            damaged = file.testzip()
            # torch writes no folders, and reads nothing where a damaged entry is marked as one
            folders = [entry.filename for entry in file.infolist() if entry.external_attr & 0x10]
            if folders and not damaged:
                damaged = folders[0]
        if not damaged:
            bundle = torch.load(path, map_location="cpu", weights_only=True)
    except PermissionError:
        raise
    # errors on foreign files have no common type
    except Exception as error:
        name = type(error).__name__
        raise ValueError(
            f"{path} is not a checkpoint, or was cut short: torch cannot read it ({name})"
        ) from error
    if damaged:
        raise ValueError(
            f"{path} is damaged: its {damaged!r} is not what was saved. Load an older checkpoint, "
            "or copy the file again."
        )
    if not isinstance(bundle, dict) or bundle.get("schema") != SCHEMA:
        raise ValueError(
            f"{path}: expected a bundle of schema {SCHEMA!r}, got {_describe_content(bundle)}"
        )
    return bundle


def _describe_content(content: object) -> str:
    """Return a description of what a file holds instead of a bundle."""
    if not isinstance(content, dict):
        return f"an object of type {type(content).__name__}"
    if content and all(isinstance(value, Tensor) for value in content.values()):
        return (
            "a plain state dict; load it with engine.load_model(torch.load(path, "
            "weights_only=True))"
        )
    return f"a bundle of schema {content.get('schema')!r}"


def require_readable(bundle: Mapping[str, Any]) -> None:
    """Raise a TypeError if `read` could not load the bundle, found by a trial without data."""
    trial = io.BytesIO()
    try:
        torch.save(tree_map_only(Tensor, _without_data, dict(bundle)), trial)
        trial.seek(0)
        torch.load(trial, weights_only=True)
    # pickle's errors on values that it cannot write have no common type
    except Exception as error:
        # one line of torch's message names the type
        names = [line for line in str(error).splitlines() if "GLOBAL" in line]
        raise TypeError(
            "expected numbers, text, tensors, and lists and dicts of them, which torch.load reads "
            f"with weights_only; got {names[0] if names else error}"
        ) from error


def _without_data(tensor: Tensor) -> Tensor:
    """Return an empty tensor in place of a plain one.

    A tensor of a subclass or with attributes is kept: torch.load may refuse its class, or those of
    its attributes.
    """
    is_plain = type(tensor) in (Tensor, Parameter) and not vars(tensor)
    if not is_plain or tensor.layout is not torch.strided:
        return tensor
    return torch.empty(0, dtype=tensor.dtype)


def generators() -> dict[str, Any]:
    """Return the states of the global random generators of torch, CUDA, numpy and Python."""
    # user code may draw from numpy's global generator
    of_numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    on_gpus: list[Tensor] = []
    if torch.cuda.is_available():
        on_gpus = torch.cuda.get_rng_state_all()
    return {
        "torch": torch.get_rng_state(),
        "cuda": on_gpus,
        # torch.load(weights_only=True) reads no arrays
        "numpy": tree_map_only(np.ndarray, np.ndarray.tolist, of_numpy),
        "python": random.getstate(),
    }


def set_generators(states: Mapping[str, Any]) -> None:
    """Restore the states that `generators` returned; CUDA's only if as many GPUs are available.

    Raises:
        ValueError: numpy's global generator is now of another kind than the saved one.
    """
    torch.set_rng_state(states["torch"].cpu())
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all([state.cpu() for state in states["cuda"]])
    _set_numpy_generator(states["numpy"])
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))


def _set_numpy_generator(state: Any) -> None:
    """Restore the state of numpy's global generator."""
    # checkpoints of version 0.2 hold a list: name, keys, and the rest of numpy's legacy tuple
    if isinstance(state, list):
        name, keys, *rest = state
        np.random.set_state((name, np.array(keys, dtype=np.uint32), *rest))  # noqa: NPY002
        return
    saved = state["bit_generator"]
    # numpy's own functions for this, get_bit_generator, came with version 1.24
    current = np.random.get_state(legacy=False)["bit_generator"]  # noqa: NPY002
    if current != saved:
        raise ValueError(
            f"expected numpy's global generator to be {saved}, as it was when the checkpoint was "
            f"saved, got {current}. First call "
            f"np.random.set_bit_generator(np.random.{saved}())"
        )
    np.random.set_state(state)  # noqa: NPY002
