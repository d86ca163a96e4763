"""`labkit doctor`: say what is ready on this machine; the status is 1 where something must be mended first."""

from __future__ import annotations

import sys
from argparse import Namespace

from labkit.records.system import import_error


def run(_: Namespace) -> int:
    """Print a report; where not even torch can be imported, which the other checks need, say so and what to do."""
    if problem := import_error("torch"):
        print(f"✗ bad   torch cannot be imported: {problem}")
        print(f"        {sys.executable} is the Python that was tried; in the checkout, `make setup`, or")
        print("        `pip install --force-reinstall torch`: https://pytorch.org/get-started says which build.")
        print("        Everything else is looked at when torch can be imported: run `labkit doctor` again then.")
        return 1
    from labkit import machine

    report = machine.check_machine()
    print(report)
    return 0 if report.healthy else 1
