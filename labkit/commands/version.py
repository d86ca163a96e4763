"""`labkit version`: print the version."""

from __future__ import annotations

import sys
from argparse import Namespace

import labkit


def run(_: Namespace) -> int:
    print(f"labkit {labkit.__version__} on Python {sys.version.split()[0]}")
    return 0
