"""A factor for time limits: how slow this machine is now, so that a busy machine fails no test.

Idea: a fixed piece of work is timed on the wall, so that slow processors and busy ones count alike.
"""

import time
from collections.abc import Callable
from functools import lru_cache

ROUNDS = 2_000_000
# The time of the measured work on an idle machine of 2024.
SECONDS = 0.2


def slowness(clock: Callable[[], float] = time.perf_counter) -> float:
    """Return how many times longer than on an idle machine work takes here and now; at least 1.

    It is measured once a minute at the most.

    >>> answers = iter([0.0, 3 * SECONDS])
    >>> round(slowness(lambda: next(answers)))
    3
    >>> slowness(lambda: 0.0)
    1.0
    """
    return _measured(clock, int(time.monotonic() // 60))


@lru_cache(maxsize=1)
def _measured(clock: Callable[[], float], minute: int) -> float:
    # The minute is a part of the key of the cache.
    start = clock()
    total = 0
    for i in range(ROUNDS):
        total += i * i
    return max(1.0, (clock() - start) / SECONDS)
