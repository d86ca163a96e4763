"""A simulated CUDA card for the tests: T4, V100, A100 or H100, in a process of its own.

    # any command; each Python process below it has the card
    python -m tests.gpu.simulated T4 -- labkit lab

What it shows: everything that follows from devices and dtypes (what CUDA refuses and the CPU takes,
copies, host waits, random states, memory statistics, out of memory). What it does not show: the
numerics of cuBLAS and cuDNN, speed, asynchrony, NCCL, Triton and what torch.compile makes with it.

The card is torch's own CUDA key with the CPU's kernels below (`cpp/`), compiled once for a version
of torch (`build.py`) and loaded before torch (`startup/`); `refusals.py` lists what CUDA refuses,
and `counting.py` counts.
"""

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.gpu.simulated.build import library, reason_against
from tests.gpu.simulated.cards import CARDS

ROOT = Path(__file__).parents[3]
STARTUP = Path(__file__).with_name("startup")
REQUIRE = "LABKIT_REQUIRE_SIMULATED_GPU"


def environment(card: str, base: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment in which Python processes have the card; compile it if necessary."""
    if card not in CARDS:
        raise ValueError(f"expected one of the cards {', '.join(CARDS)}, got {card!r}")
    reason = reason_against()
    if reason is not None:
        raise RuntimeError(reason)
    paths = [str(STARTUP), str(ROOT), *filter(None, [base.get("PYTHONPATH")])]
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(paths),
        "LABKIT_SIMULATED_GPU": card,
        "LABKIT_SIMULATED_GPU_LIBRARY": str(library()),
    }


# A function of a module's top level, or a tuple of such a function and arguments that JSON holds.
Call = Callable[..., Any] | tuple[Any, ...]


class Outcomes:
    """The results by function of functions that ran in one process.

    Access to the result of a function that raised raises an AssertionError with its traceback.
    """

    def __init__(self, card: str, found: Mapping[str, tuple[Any, str]]) -> None:
        self.card = card
        self.found = found

    def __getitem__(self, function: Callable[..., Any]) -> Any:
        result, failure = self.found[function.__name__]
        if failure:
            raise AssertionError(
                f"{function.__name__} failed in a process with a simulated {self.card}\n{failure}"
            )
        return result


def run(
    card: str, code: Callable[..., Any] | list[Call], *arguments: Any, timeout: float = 200
) -> Any:
    """Run code in a process with the card and return its answer.

    Args:
        card: The name of the card.
        code: A function of a module's top level, or a list of them. A list shares the process,
            since importing torch takes seconds.
        *arguments: The arguments of a single function, which must be JSON.
        timeout: The seconds after which the process is killed.

    Returns:
        The result of a single function, or the `Outcomes` of a list.

    Raises:
        AssertionError: the process or the single function failed; the message has the traceback.
        ValueError: two functions have one name.
        subprocess.TimeoutExpired: the process was killed.
    """
    if callable(code):
        return run(card, [(code, *arguments)], timeout=timeout)[code]
    calls = [call if isinstance(call, tuple) else (call,) for call in code]
    names = [function.__name__ for function, *_ in calls]
    if len(set(names)) < len(names):
        raise ValueError(f"expected functions of different names, got {names}")
    words = json.dumps(
        [[_module_of(function), function.__name__, rest] for function, *rest in calls]
    )
    done = subprocess.run(
        [sys.executable, "-c", _CALLS, words],
        env=environment(card),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode != 0:
        raise AssertionError(
            f"a process with a simulated {card} ended with {done.returncode}\n"
            f"{done.stdout}{done.stderr}"
        )
    return Outcomes(card, json.loads(done.stdout.rstrip("\n").rpartition("\n")[2]))


def _module_of(function: Callable[..., Any]) -> str:
    return ".".join(Path(inspect.getfile(function)).relative_to(ROOT).with_suffix("").parts)


_CALLS = """
import json, os, sys, traceback
from importlib import import_module
import torch
found = {}
for module, name, arguments in json.loads(sys.argv[1]):
    try:
        found[name] = getattr(import_module(module), name)(*arguments), ""
    except BaseException:
        found[name] = None, traceback.format_exc()
print("\\n" + json.dumps(found), flush=True)
# torch's threads of a device may still wait, and would abort a process that exits normally.
os._exit(0)
"""
