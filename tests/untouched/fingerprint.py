"""A fingerprint of the state of a process that the lab must leave unchanged.

It has the callables of torch, IPython and other packages, torch's flags, warnings, signals and
random states. `fingerprint()` keeps the objects themselves: the id of an object that is deleted
could be that of its replacement.
"""

from __future__ import annotations

import copyreg
import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from torch.optim import optimizer

WATCHED = ("torch", "IPython", "matplotlib", "numpy", "traitlets", "ipywidgets", "pickle")
# What Python itself writes when a class or a module is used.
OF_PYTHON = {"__dict__", "__weakref__", "__annotations__", "__warningregistry__", "__cached__"}
DESCRIPTORS = (staticmethod, classmethod, property)
GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks")
FLAGS: dict[str, Any] = {
    "default dtype": torch.get_default_dtype,
    "gradients": torch.is_grad_enabled,
    "autocast on a CPU": lambda: torch.is_autocast_enabled("cpu"),
    "autocast on a GPU": lambda: torch.is_autocast_enabled("cuda"),
    "dtype of autocast": lambda: torch.get_autocast_dtype("cpu"),
    "cache of autocast": torch.is_autocast_cache_enabled,
    "deterministic": torch.are_deterministic_algorithms_enabled,
    "precision of products": torch.get_float32_matmul_precision,
    "TF32": lambda: torch.backends.cuda.matmul.allow_tf32,
    "TF32 of cuDNN": lambda: torch.backends.cudnn.allow_tf32,
    "reduced precision": lambda: torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
    "cuDNN benchmarks": lambda: torch.backends.cudnn.benchmark,
    "denormals": lambda: float(torch.tensor(1e-40) * 1),
    "function modes": torch._C._len_torch_function_stack,
    "dispatch modes": torch._C._len_torch_dispatch_stack,
    "anomaly mode": torch.is_anomaly_enabled,
    "hooks of saved tensors": lambda: torch._C._autograd._top_saved_tensors_default_hooks(False),
    "threads": torch.get_num_threads,
}


def _members(owner: ModuleType | type, place: str) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(owner).items()):
        # An object may warn when it is asked by isinstance(); its type does not.
        kind = type(value)
        if name in OF_PYTHON or issubclass(kind, ModuleType):
            continue
        is_called = any("__call__" in vars(base) for base in kind.__mro__)
        if is_called or issubclass(kind, DESCRIPTORS):
            yield f"{place}.{name}", value


def callables() -> dict[str, Any]:
    """Return place -> callable, for the loaded modules of WATCHED packages and their classes."""
    by_place: dict[str, Any] = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] not in WATCHED or not isinstance(module, ModuleType):
            continue
        for place, value in _members(module, module_name):
            by_place[place] = value
            if issubclass(type(value), type) and value.__module__.partition(".")[0] in WATCHED:
                by_place.update(_members(value, place))
    return by_place


def _values() -> dict[str, Any]:
    hooks = torch.nn.modules.module
    python = {f"signal {each.name}": signal.getsignal(each) for each in signal.Signals}
    of_torch = {name: tuple(getattr(hooks, name)) for name in GLOBAL_HOOKS}
    of_torch |= {name: read() for name, read in FLAGS.items()}
    return {
        **python,
        **of_torch,
        "hooks before an optimizer": tuple(optimizer._global_optimizer_pre_hooks),
        "hooks after an optimizer": tuple(optimizer._global_optimizer_post_hooks),
        "warnings.filters": tuple(warnings.filters),
        "warnings.showwarning": warnings.showwarning,
        "sys.meta_path": tuple(sys.meta_path),
        "sys.path": tuple(sys.path),
        "sys.path_hooks": tuple(sys.path_hooks),
        "sys.excepthook": sys.excepthook,
        "sys.unraisablehook": sys.unraisablehook,
        "sys.displayhook": sys.displayhook,
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "recursion limit": sys.getrecursionlimit(),
        "excepthook of threads": threading.excepthook,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "loggers": (logging.root.level, tuple(logging.root.handlers)),
        "pickling": dict(copyreg.dispatch_table),
        "rcParams": dict(mpl.rcParams),
        "colour maps": tuple(mpl.colormaps),
        "random": random.getstate(),
        # The global state, which other programs draw from.
        "numpy.random": repr(np.random.get_state()),  # noqa: NPY002
        "numpy errors": np.geterr(),
        "torch.random": torch.get_rng_state().tolist(),
    }


def fingerprint() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return every callable by its place, and the values of flags and states."""
    return callables(), _values()


def changes(before: tuple[dict[str, Any], dict[str, Any]]) -> list[str]:
    """Return the places that changed since a fingerprint.

    New callables count, too, in modules that had been loaded then. Modules that were loaded since
    then do not count.
    """
    functions, values = before
    now_functions, now_values = fingerprint()
    loaded = {place.rpartition(".")[0] for place in functions}
    changed = [
        place
        for place, value in now_functions.items()
        if functions.get(place) is not value and place.rpartition(".")[0] in loaded
    ]
    changed += [place for place in functions if place not in now_functions]
    changed += [name for name, value in values.items() if now_values[name] != value]
    return changed
