"""Commands for tests of kernels: tolerance, vectors."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from labkit.commands import CommandError


def tolerance(arguments: Namespace) -> int:
    """Run `labkit tolerance`: print the tolerance of an operation, and the line for a test.

    Returns:
        The exit status.
    """
    from labkit.testing.tolerance import tolerance as describe

    try:
        print(describe(" ".join(arguments.text)))
    except ValueError as error:
        raise CommandError(str(error)) from error
    return 0


def vectors(arguments: Namespace) -> int:
    """Run `labkit vectors`: list the vectors, write some to a file, or check a file of answers.

    Returns:
        The exit status: 1 if answers break a rule.
    """
    if arguments.check and (arguments.format or arguments.out):
        raise CommandError("--check reads a file of answers: it takes neither a format nor --out")
    if arguments.out and arguments.format is None:
        raise CommandError("--out is a file for vectors: name their format")
    from labkit.testing.vectors import NAMES, check, conventions, listed_name, read, save

    try:
        if arguments.check:
            answers = read(arguments.check)
            broken = check(answers)
            print("\n".join(broken) or "no rule is broken")
            for convention in conventions(answers):
                print(convention)
            return 1 if broken else 0
        if arguments.format is None:
            print("\n".join(NAMES))
        else:
            name = listed_name(arguments.format)
            path = arguments.out or Path(f"{name.replace(', ', '-')}.npz")
            print(f"{path}: {save(name, path)} rows")
    except ValueError as error:
        raise CommandError(str(error)) from error
    return 0
