"""The checks of a GPU: tests of the checkout (tests/gpu/checks), served by a process as items of a passport are."""

from __future__ import annotations

from importlib.util import find_spec

from labkit.gpu.worker import CHECKOUT

PARTS = ("mma", "amp", "kernel", "many")  # of `labkit gpu`, those that have checks
ONLY_CHECKS = ("mma", "many")


def missing() -> str:
    """Return why the checks cannot be run here; "" where they can."""
    if not (CHECKOUT / "tests" / "gpu" / "checks").is_dir():
        return "The checks need a checkout of the lab: what is recorded, measured and written into a passport is done."
    return "" if find_spec("pytest") else "The checks need pytest (pip install pytest): all else is done."
