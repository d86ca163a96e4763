"""Commands and their arguments as rows of a table, and the types of arguments.

A row names the function that runs the command. Its module is imported when the command runs, so
help texts need no torch, and a missing package stops only the commands that need it.
"""

from __future__ import annotations

import difflib
import importlib
import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class Argument:
    """An argument of a command, as `ArgumentParser.add_argument` takes it.

    The name of a positional argument is shown in capitals.

    Args:
        *names: The name of a positional argument, or the options.
        group: The heading above the argument in the help text, if it has one of its own.
        exclusive: Whether the argument excludes all others with this mark; it has no group then.
        **options: The options of `ArgumentParser.add_argument`.
    """

    def __init__(
        self, *names: str, group: str = "", exclusive: bool = False, **options: Any
    ) -> None:
        self.names = names
        self.group = group
        self.exclusive = exclusive
        self.options = options
        if not names[0].startswith("-"):
            self.options = {"metavar": names[0].upper(), **options}


@dataclass(frozen=True)
class Command:
    """A command.

    Attributes:
        summary: A description of the command, as an imperative.
        run: The function that runs it, as "module:function" in labkit. It takes the parsed
            arguments and returns the exit status.
        examples: Calls with which the help text begins.
        arguments: The arguments of the command.
    """

    summary: str
    run: str
    examples: tuple[str, ...]
    arguments: tuple[Argument, ...] = ()


def imported(place: str) -> Any:
    """Import and return an object of labkit.

    Args:
        place: The module and the name of the object, as "module:name".
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(f"labkit.{module}"), name)


def one_of(kind: str, table: str, *more: str) -> Callable[[str], str]:
    """Return the type of an argument that names a row of a table.

    Args:
        kind: What the row is, for the message.
        table: The place of the table, as "module:name". It is imported when an argument is checked.
        *more: Further names that are accepted.
    """

    def check(name: str) -> str:
        names = (*more, *sorted(imported(table)))
        if name not in names:
            message = f"invalid {kind}: {name!r} (choose from {', '.join(names)})"
            near = difflib.get_close_matches(name, names, n=1)
            if near:
                message += f". Did you mean {near[0]!r}?"
            raise ArgumentTypeError(message)
        return name

    return check


def date_argument(text: str) -> float:
    """Parse a date, or a date and time, as seconds since 1970."""
    try:
        return float(imported("grading.plan:due_time")(text))
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(
            f"expected a date or a date and time, 2026-11-30T18:00, got {text!r}"
        ) from error


def duration(text: str) -> float:
    """Parse a number of seconds above 0."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ArgumentTypeError(f"expected a number of seconds above 0, got {text!r}")
    return seconds


def port_up_to(last: int) -> Callable[[str], int]:
    """Return the type of an argument that is a port, from 1 to `last`."""

    def check(text: str) -> int:
        is_number = text.isascii() and text.isdecimal()
        if not is_number or not 1 <= int(text) <= last:
            raise ArgumentTypeError(f"expected a port from 1 to {last}, got {text!r}")
        return int(text)

    return check


def new_file(text: str) -> Path:
    """Parse the name of a file to write, and refuse a folder before the command's work begins."""
    path = Path(text)
    if path.is_dir():
        raise ArgumentTypeError(f"expected a file to write, got the folder {text}")
    _refuse_file_as_folder(path.parent)
    return path


def new_folder(text: str) -> Path:
    """Parse the name of a folder to write into, and refuse a file before the work begins."""
    path = Path(text)
    _refuse_file_as_folder(path)
    return path


def _refuse_file_as_folder(folder: Path) -> None:
    """Refuse a folder if it, or a folder that it would be in, is a file."""
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise ArgumentTypeError(f"expected a folder, got the file {place}")
