"""What does the button say? Before, while `labkit gpu --quick` runs, and after.

Invariant: how far it is follows from the command's own lines; nothing is guessed from a clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from labkit.train import Place, place

BEGINNING = re.compile(r"^--- (?P<number>\d+) of (?P<of>\d+), (?P<name>\w+): (?P<about>.*), (?P<seconds>\d+) s$")
OUTCOME = re.compile(r"^(?P<name>\w+) +(?P<how>(failed with status|stopped after|not begun).*)$")


@dataclass(frozen=True)
class Beginning:
    """A part of the command that begins: which of how many, what it does, and its seconds at most."""

    number: int
    of: int
    name: str
    about: str
    seconds: int

    def __str__(self) -> str:
        return f"Part {self.number} of {self.of}, {self.seconds} s at most: {self.about}."


def beginning(line: str) -> Beginning | None:
    """Return what a line of `labkit gpu` begins; None where it begins nothing.

    >>> str(beginning("--- 2 of 5, size: time products of every size and format, 35 s"))
    'Part 2 of 5, 35 s at most: time products of every size and format.'
    """
    found = BEGINNING.match(line)
    if found is None:
        return None
    return Beginning(int(found["number"]), int(found["of"]), found["name"], found["about"], int(found["seconds"]))


def failed_parts(lines: list[str]) -> list[str]:
    """Return what the last lines of `labkit gpu` say of parts that were not done.

    >>> failed_parts(["ceilings   done", "size       failed with status 1; its last lines say why"])
    ['size failed with status 1; its last lines say why']
    """
    return [f"{found['name']} {found['how']}" for line in lines if (found := OUTCOME.match(line))]


def ready(where: Place) -> str:
    """Say what the button will do."""
    return (
        f"Ready to measure {where.name}: five parts, 3 minutes at most. The kernel stays free meanwhile, but what you "
        "train on the same GPU disturbs the measurement."
    )


def no_gpu() -> str:
    """Say why the button cannot be pressed, and what would do."""
    try:
        place("gpu")
    except ValueError as missing:
        return (
            f"There is nothing to measure: {missing} The figures show a GPU when the lab runs on a machine with one "
            "(a borrowed workstation, a T4 of a free notebook service) and this button is pressed there, or "
            "`labkit gpu --quick` is run in its terminal."
        )
    return ""


def ended(where: Place, status: int, lines: list[str], *, stopped: bool) -> str:
    """Say how it ended."""
    if stopped:
        return f"Stopped. What was measured of {where.name} until then is kept and drawn."
    if status == 0:
        return f"Done: {where.name} is measured. Run the cells below (again) to see it in their figures."
    missing = "; ".join(failed_parts(lines)) or f"it ended with status {status}"
    return f"Not all of it was done: {missing}. What it printed says why; the rest is kept and drawn."
