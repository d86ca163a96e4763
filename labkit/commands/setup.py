"""`labkit setup`: set a checkout up, or bring into an environment what the lab needs and it lacks."""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

from labkit.checkout import set_up
from labkit.records import checkout

PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--test", action="store_true", help="also what the tests need")
    parser.add_argument("--here", action="store_true", help="no checkout: install into this Python what the lab needs "
                        "and it lacks, and keep what is there, whatever its version")  # fmt: skip


def run(arguments: Namespace) -> int:
    if arguments.here:
        from labkit.machine.check import installed_version, requirements  # a checkout may have no torch yet

        return complete(requirements() or {}, installed_version)
    return set_up(require_checkout(), test=arguments.test)


def complete(
    needed: dict[str, str],
    installed: Callable[[str], str | None],
    call: Callable[[Sequence[str]], int] = subprocess.call,
) -> int:
    """Install what is missing, replace nothing, and say which versions were kept; return the exit status.

    needed     package -> lowest version that would do
    installed  tells a package's version, or None where it is not there

    torch is never downloaded: a host brings the one that fits its GPU.
    """
    from labkit.machine.check import DISTRIBUTION, packages

    kept = [f"{name} {version}" for name in (DISTRIBUTION, *needed) if (version := installed(name))]
    missing = [f"{name}>={lowest}" for name, lowest in needed.items() if installed(name) is None]
    if any(each.startswith("torch>") for each in missing):
        print("There is no torch in this environment: choose one that has it, or `pip install torch` first.")
        return 2
    if missing and (status := call([*PIP, *missing])):
        return status
    added = f" Added: {', '.join(each.split('>')[0] for each in missing)}." if missing else ""
    print(f"The lab is ready. Kept as they were: {', '.join(kept)}.{added}")
    for finding in packages(needed, installed):
        if "too old" in finding.what:
            print(f"{finding.name} {finding.what}; the lab may work all the same. Else: {finding.remedy}")
    return 0


def require_checkout() -> Path:
    """Return the top of the checkout; where there is none, end with the reason."""
    folder = checkout()
    if folder is None:
        raise SystemExit("This is for a checkout of the lab, and labkit was installed without one. Run it in a clone.")
    return folder
