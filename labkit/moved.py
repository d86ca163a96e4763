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
    """Return the object behind a name that moved, with a DeprecationWarning.

    A module's `__getattr__` calls this, so that the warning is given for the line that asks for the
    name.

    Args:
        module: former module.
        name: former name in it.
        places: former name -> new place, "labkit.faults.Fault".
        adapters: former name -> what is returned where the object in the new place takes other
            arguments.

    Raises:
        AttributeError: no such name moved.
        ModuleNotFoundError: the new place is a lesson that this lab does not have.
    """
    if name not in places:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    place = places[name]
    warnings.warn(f"{module}.{name} is now {place}", DeprecationWarning, stacklevel=3)
    if name in adapters:
        return adapters[name]
    new_module, _, new_name = place.rpartition(".")
    return getattr(import_module(new_module), new_name)
