"""`labkit device`: say what this machine has for low precision."""

from __future__ import annotations

from argparse import Namespace


def run(_: Namespace) -> int:
    from labkit.bench import device_report

    print(device_report())
    return 0
