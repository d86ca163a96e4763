"""Commands on the machine and the checkout: check, device, version, setup, test."""

from __future__ import annotations

import shlex
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path

import labkit
from labkit.checkout import check_all, set_up
from labkit.commands import CommandError
from labkit.machine.check import import_error
from labkit.records import checkout

PIP = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")


def check(_: Namespace) -> int:
    """Run `labkit check`: print what is ready and what is not.

    The other checks need torch. If it cannot be imported, print how to install it.

    Returns:
        The exit status: 1 if something is missing.
    """
    if error := import_error("torch"):
        print(f"✗ bad   torch cannot be imported: {error}")
        print(f"        Python: {sys.executable}. In the checkout, run `make setup`, or")
        print(
            "        `pip install --force-reinstall torch`; https://pytorch.org/get-started shows "
            "which build."
        )
        print("        Then run `labkit check` again: the other checks need torch.")
        return 1
    from labkit import machine

    report = machine.check_machine()
    print(report)
    return 0 if report.healthy else 1


def device(_: Namespace) -> int:
    """Run `labkit device`: print which low precision this machine has, and what follows from it."""
    from labkit.bench import device_report

    print(device_report())
    return 0


def version(_: Namespace) -> int:
    print(f"labkit {labkit.__version__} on Python {sys.version.split()[0]}")
    return 0


def test(arguments: Namespace) -> int:
    """Run `labkit test`: set up the checkout where needed, and run its checks.

    Returns:
        The exit status of the set-up if it fails, else the worst of the checks.
    """
    folder = require_checkout()
    try:
        for_pytest = shlex.split(arguments.pytest)
    except ValueError as error:
        raise CommandError(
            f"--pytest: expected arguments as in a shell, got {arguments.pytest!r}: {error}"
        ) from error
    status = set_up(folder, test=True)
    if status:
        return status
    return check_all(folder, arguments.all, for_pytest)


def setup(arguments: Namespace) -> int:
    """Run `labkit setup`: set up the checkout, or with --here complete this environment.

    Returns:
        The exit status.
    """
    if arguments.here:
        # a checkout may have no torch yet
        from labkit.machine.check import installed_version, requirements

        return complete(requirements() or {}, installed_version)
    return set_up(require_checkout(), test=arguments.test)


def complete(
    needed: dict[str, str],
    installed: Callable[[str], str | None],
    call: Callable[[Sequence[str]], int] = subprocess.call,
) -> int:
    """Install missing packages, replace none, and print which versions stayed.

    torch is never downloaded: a host brings the build that fits its GPU.

    Args:
        needed: package -> lowest version that is supported.
        installed: package -> its version, or None if it is missing.
        call: runs a command and returns its exit status.

    Returns:
        The exit status.
    """
    from labkit.machine.check import DISTRIBUTION, packages

    versions = {name: installed(name) for name in (DISTRIBUTION, *needed)}
    present = [f"{name} {version}" for name, version in versions.items() if version is not None]
    missing = [name for name in needed if versions[name] is None]
    if "torch" in missing:
        print(
            "This environment has no torch: choose one that has it, or run `pip install torch` "
            "first."
        )
        return 2
    added = ""
    if missing:
        status = call([*PIP, *(f"{name}>={needed[name]}" for name in missing)])
        if status:
            return status
        added = f" Added: {', '.join(missing)}."
    print(f"The lab is ready. Kept as they were: {', '.join(present)}.{added}")
    for finding in packages(needed, installed):
        if "too old" in finding.what:
            print(
                f"{finding.name} {finding.what}; the lab may work all the same. Otherwise: "
                f"{finding.remedy}"
            )
    return 0


def require_checkout() -> Path:
    """Return the top of the checkout.

    Raises:
        CommandError: labkit was installed without one.
    """
    folder = checkout()
    if folder is None:
        raise CommandError(
            "expected a checkout of the lab, but labkit was installed without one; run it in a "
            "clone"
        )
    return folder
