"""Is a run on record one of this very task and this very recipe? Twelve letters tell, made of all their values."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields
from functools import partial
from types import MethodType
from typing import Any

import numpy as np
import torch

from labkit.amp import ProductFormat, Recipe
from labkit.train.tasks import Task

_ADDED = ", margin=0"  # a field of a recipe's products that what is on record does not have
_WRITTEN = {"gradient_format": "gradients"}  # a field was renamed: what is on record keeps its fingerprint


def fingerprint(task: Task, recipe: Recipe) -> str:
    """Return twelve letters that change when a value of the task or the recipe does, or the function behind one.

    The same in every process. The code inside a function is not looked at: who rewrites a network gives its task
    another name.

    Raises:
        ValueError: a value cannot be told from another by its text: a lambda, a function or class made inside another
            function, an object that prints as nothing but its address; the message says which.

    >>> from dataclasses import replace
    >>> from labkit.amp import RECIPES
    >>> from labkit.train import TASKS
    >>> fingerprint(TASKS["digits"], RECIPES["O1"]) == fingerprint(replace(TASKS["digits"], steps=3), RECIPES["O1"])
    False
    """
    said = ("about", "margin")  # of a run, not part of it
    values = [(f, getattr(thing, f.name)) for thing in (task, recipe) for f in fields(thing) if f.name not in said]
    # Defaults are left out, so a record stays valid when recipes learn to say something new.
    parts = [f"{_WRITTEN.get(f.name, f.name)}={_spell(value, f.name)}" for f, value in values if value != f.default]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]


def _spell(value: Any, where: str) -> str:
    """Write a value of the field `where` as its repr, but whole and without addresses: functions by their names."""
    if isinstance(value, partial):
        return f"{_spell(value.func, where)}{[_spell(given, where) for given in value.args]}" + _spell(
            sorted(value.keywords.items()), where
        )
    if isinstance(value, list | tuple | dict):
        return _spell_all(value, where)
    if isinstance(value, torch.Tensor | np.ndarray):  # a repr leaves out digits, and the middle of a long one
        return f"{value.dtype}{value.tolist()}"
    if isinstance(value, torch.nn.Module):
        return f"{_name(type(value), where)}{value!r}{_spell(_attributes(value), where)}"
    if hasattr(value, "__qualname__"):
        return _name(value, where)
    if re.search(r" at 0x[0-9a-fA-F]+", text := repr(value)):
        raise ValueError(_nameless(where, text) + "Make its class a frozen dataclass, or give it a __repr__.")
    return text.replace(_ADDED, "") if isinstance(value, ProductFormat) else text


def _spell_all(values: list[Any] | tuple[Any, ...] | dict[Any, Any], where: str) -> str:
    """Write a container as its repr does."""
    if isinstance(values, dict):
        return "{" + ", ".join(f"{_spell(key, where)}: {_spell(value, where)}" for key, value in values.items()) + "}"
    written = ", ".join(_spell(value, where) for value in values)
    return f"[{written}]" if isinstance(values, list) else f"({written}{',' * (len(values) == 1)})"


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    """Return what a module's repr keeps quiet about: the gamma of a loss of one's own, weights, buffers."""
    own = {
        f"{path}.{name}": value
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if not name.startswith("_") and name != "training"
    }
    return own | dict(module.named_parameters()) | dict(module.named_buffers())


def _name(function: Any, where: str) -> str:
    """Return the name of a function or class, with the module of one that is neither the lab's nor torch's."""
    name, owner = str(function.__qualname__), getattr(function, "__self__", None)
    if "<lambda>" in name or "<locals>" in name:
        raise ValueError(_nameless(where, name) + "Write it as a function (def) at the top of a module or a notebook.")
    if isinstance(function, MethodType) and not isinstance(owner, type):
        return f"{_spell(owner, where)}.{function.__name__}"
    module = str(getattr(function, "__module__", None) or "torch")
    return name if module.split(".")[0] in ("labkit", "torch") else f"{module}.{name}"


def _nameless(where: str, text: str) -> str:
    return (
        f"{where} holds {text}, which does not say what it does: another one would look the same, and its run on "
        "record would be taken for this one's. "
    )
