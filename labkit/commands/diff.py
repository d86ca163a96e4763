"""The command `labkit diff`, which compares two recorded trainings."""

from __future__ import annotations

import json
from argparse import Namespace

from labkit.commands import CommandError


def run(arguments: Namespace) -> int:
    """Run `labkit diff`: print the comparison of two recorded trainings.

    Returns:
        The exit status: 1 for a fault, 3 if the runs start differently, else 0.
    """
    from labkit.records import write_atomic
    from labkit.testing.trainings import compare_trainings
    from labkit.testing.trainings.page import page
    from labkit.testing.trainings.result import as_json

    try:
        found = compare_trainings(arguments.baseline, arguments.run, spread=arguments.spread)
        if arguments.page is not None:
            write_atomic(arguments.page, page(found).encode())
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        raise CommandError(reason) from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    if arguments.json:
        print(json.dumps(as_json(found)))
    else:
        print(found)
        if arguments.page is not None:
            print(f"written to {arguments.page}")
    return found.exit_status
