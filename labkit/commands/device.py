"""`labkit device`: say what this machine has for low precision."""

from __future__ import annotations

from argparse import Namespace

from labkit.bench import device_report


def run(_: Namespace) -> int:
    print(device_report())
    return 0
