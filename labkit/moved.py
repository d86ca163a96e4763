"""Names that moved: importable from their former places until version 0.4, with a warning."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

NONE: Mapping[str, Any] = MappingProxyType({})


def moved(
    module: str, name: str, places: Mapping[str, str], adapters: Mapping[str, Any] = NONE
) -> Any:
    """Return the object of a name that moved, with a DeprecationWarning.

    The function `__getattr__` of the former module calls it.

    Args:
        module: former module.
        name: former name in the module.
        places: former name -> new place, for instance "labkit.faults.Fault".
        adapters: former name -> the object to return in place of the new one, whose arguments
            differ.

    Raises:
        AttributeError: no such name moved.
        ModuleNotFoundError: the new place is a lesson that is not installed.
    """
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place = places[name]
    # 3: the line that uses the former name, beyond this function and `__getattr__`
    warnings.warn(f"{module}.{name} is now {place}", DeprecationWarning, stacklevel=3)
    if name in adapters:
        return adapters[name]
    new_module, _, new_name = place.rpartition(".")
    return getattr(import_module(new_module), new_name)
