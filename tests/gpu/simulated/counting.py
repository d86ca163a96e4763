"""Counts of the operations, host waits and copies of a piece of code on the simulated card."""

from collections.abc import Iterator
from contextlib import contextmanager

from labkit.gpu.passport.probes import HostWaits, line_of_the_lab


@contextmanager
def counted() -> Iterator[HostWaits]:
    """Count what the block does; the counts may be read while it runs and afterwards."""
    from tests.gpu.simulated.runtime import waiting

    counts = HostWaits("cuda")

    def listener(name: str) -> None:
        counts.waits[f"{name} at {line_of_the_lab()}"] += 1

    waiting.append(listener)
    try:
        with counts:
            yield counts
    finally:
        waiting.remove(listener)
