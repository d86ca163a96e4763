"""Shared parts of the benchmarks: interleaved calls in one process, and their times as ratios.

If the calls take turns, a ratio of two medians is reproducible on a busy machine; seconds are not.
The clock is that of the process's CPU time, so that other processes count little.
"""

import argparse
import platform
import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

Call = Callable[[], Any]


def options(description: str, **defaults: Any) -> argparse.Namespace:
    """Read the command line, set one thread and a seed, and print the machine.

    Args:
        description: The help text, of which the first line is shown.
        **defaults: An option and its default value, whose type is that of the option. A list takes
            any number of words; False makes a flag.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    for name, default in defaults.items():
        if isinstance(default, bool):
            parser.add_argument(f"--{name}", action="store_true")
        elif isinstance(default, list):
            parser.add_argument(
                f"--{name}", nargs="+", default=default, metavar=name.upper().rstrip("S")
            )
        else:
            parser.add_argument(f"--{name}", type=type(default), default=default)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread")
    return chosen


def medians(calls: dict[str, Call], seconds: float = 2.0, fewest: int = 5) -> dict[str, float]:
    """Return the median seconds of each call.

    The calls take turns, in another order in each round, since the second finds a warm cache. A
    call that has had its share of the seconds waits for the others; the first call of each fills
    caches and does not count.
    """
    taken: dict[str, list[float]] = {name: [] for name in calls}
    left = dict.fromkeys(calls, seconds / len(calls))
    for call in calls.values():
        call()
    while waiting := [name for name in calls if left[name] > 0 or len(taken[name]) < fewest]:
        for name in random.sample(waiting, len(waiting)):
            start = time.process_time()
            calls[name]()
            taken[name].append(time.process_time() - start)
            left[name] -= taken[name][-1]
    return {name: statistics.median(runs) for name, runs in taken.items()}


def print_ratios(title: str, seconds: dict[str, float], times: int = 1) -> None:
    """Print the time of the first call in microseconds, and the others as multiples of it.

    Args:
        title: The text before the ratios.
        seconds: Name of a call -> its seconds.
        times: How many operations a call has; the printed time is that of one.
    """
    first, *others = seconds
    base = seconds[first]
    ratios = "   ".join(f"{name} {seconds[name] / base:.2f}" for name in others)
    print(f"{title:30} {first} {base / times * 1e6:.1f} us, times that:   {ratios}", flush=True)
