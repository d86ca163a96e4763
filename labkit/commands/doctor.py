"""`labkit doctor`: say what is ready on this machine; the status is 1 where something must be mended first."""

from __future__ import annotations

from argparse import Namespace

from labkit import clinic


def run(_: Namespace) -> int:
    report = clinic.check_machine()
    print(report)
    return 0 if report.healthy else 1
