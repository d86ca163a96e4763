"""The patients: a file each, with `training(cured)` and what is known about the fault."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from labkit.clinic.patient import Patient


@cache
def patients() -> dict[str, Patient]:
    """Return every patient by its id, which is the name of its file.

    >>> patients()["log_of_epsilon"].title
    'A logarithm is made safe by an epsilon that FP16 does not have.'
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: import_module(f"{__name__}.{name}").PATIENT for name in names}
