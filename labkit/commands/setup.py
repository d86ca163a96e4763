"""`labkit setup`: set a checkout up."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from labkit.checkout import set_up
from labkit.records import checkout


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--test", action="store_true", help="also what the tests need")


def run(arguments: Namespace) -> int:
    return set_up(require_checkout(), test=arguments.test)


def require_checkout() -> Path:
    """Return the top of the checkout; where there is none, end with the reason."""
    folder = checkout()
    if folder is None:
        raise SystemExit("This is for a checkout of the lab, and labkit was installed without one. Run it in a clone.")
    return folder
