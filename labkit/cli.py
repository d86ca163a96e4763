"""The command line of the lab: `labkit COMMAND ...`.

Printing is left to this module, the functions of labkit.commands and labkit.checkout; other modules
return values. The exit status is 0 for success, 1 for a problem that was found, 2 for a wrong call
or a missing file, 3 if a main check could not be made, and 130 after an interrupt. `labkit watch`
exits as its script does.
"""

from __future__ import annotations

import argparse
import codecs
import difflib
import io
import os
import sys
from argparse import REMAINDER, ArgumentParser
from collections.abc import Iterator, Sequence
from typing import Any

import labkit
from labkit.commands import CommandError
from labkit.commands.arguments import Command, imported
from labkit.commands.table import COMMANDS, EXAMPLES
from labkit.course import CourseError

__all__ = ["COMMANDS", "main", "parser_of"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    >>> main(["version"]) == 0
    labkit ...
    True
    """
    parser = _Parser(
        prog="labkit",
        usage="labkit [--version] COMMAND ...",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_list_of_commands(),
    )
    parser.opening = _opening("A teaching lab for mixed-precision (FP16) training", EXAMPLES)
    parser.add_argument("--version", action="version", version=f"labkit {labkit.__version__}")
    parser.add_argument("command", metavar="COMMAND", nargs="?", help="one of the commands below")
    parser.add_argument("rest", nargs=REMAINDER, help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if parsed.command is None:
        parser.print_help()
        return 2
    name = parsed.command
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        parser.error(f"unknown command {name!r}.{guess} `labkit --help` lists the commands.")
    return _run(name, parsed.rest)


def parser_of(name: str) -> ArgumentParser:
    """Return the parser of a command's arguments."""
    row = COMMANDS[name]
    parser = _Parser(prog=f"labkit {name}", usage=f"labkit {name} {' '.join(_usage(row))}".strip())
    parser.opening = _opening(row.summary, row.examples)
    exclusive = parser.add_mutually_exclusive_group()
    groups: dict[str, Any] = {"": parser}
    for each in row.arguments:
        if each.group not in groups:
            groups[each.group] = parser.add_argument_group(each.group)
        group = exclusive if each.exclusive else groups[each.group]
        action = group.add_argument(*each.names, **each.options)
        # Python 3.11 would report these as missing although they may be empty.
        if action.nargs in ("*", REMAINDER):
            action.required = False
    return parser


class _Parser(ArgumentParser):
    """A parser whose help text opens with a summary and examples, before the usage."""

    opening = ""

    def format_help(self) -> str:
        return f"{self.opening}\n\n{super().format_help()}"


def _opening(summary: str, examples: Sequence[str]) -> str:
    return "\n".join([f"{summary}.", "", "Examples:", *(f"  {example}" for example in examples)])


def _usage(row: Command) -> Iterator[str]:
    """Yield the parts of a usage line: "[options]", then the positional arguments."""
    shapes = {None: "{}", "?": "[{}]", "*": "[{} ...]", "+": "{} ...", REMAINDER: "..."}
    if any(each.names[0].startswith("-") for each in row.arguments):
        yield "[options]"
    for each in row.arguments:
        if not each.names[0].startswith("-"):
            yield shapes[each.options.get("nargs")].format(each.options["metavar"])


def _list_of_commands() -> str:
    width = max(map(len, COMMANDS)) + 2
    rows = [f"  {name:<{width}}{row.summary}" for name, row in COMMANDS.items()]
    return "\n".join(
        ["commands:", *rows, "", "`labkit COMMAND --help` shows examples and options of a command."]
    )


def _print_signs_everywhere() -> None:
    """Replace characters that the encoding of a stream does not have, instead of failing."""
    plain = {
        "✓": "+",
        "✗": "x",
        "→": "->",
        "·": "-",
        "–": "-",
        "—": "-",
        "≤": "<=",
        "×": "x",
    }

    def replaced(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        text = error.object[error.start : error.end]
        return "".join(plain.get(sign, "?") for sign in text), error.end

    codecs.register_error("labkit.plain", replaced)
    for stream in (sys.stdout, sys.stderr):
        # A program that replaced a stream by another object keeps it as it is.
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="labkit.plain")


def _run(name: str, arguments: Sequence[str]) -> int:
    """Run a command with arguments, and return the exit status."""
    only_text = [each.names for each in COMMANDS[name].arguments] == [("text",)]
    if only_text and arguments[:1] not in (["-h"], ["--help"]):
        # A message may begin with a dash, as "--tf32 requires Ampere", and is not an option.
        arguments = ["--", *arguments]
    try:
        parsed = parser_of(name).parse_args(arguments)
        _print_signs_everywhere()
        status = int(imported(COMMANDS[name].run)(parsed))
        sys.stdout.flush()
        return status
    # A command that saves results during its run reports an interrupt itself.
    except KeyboardInterrupt:
        print(f"\nlabkit {name}: interrupted", file=sys.stderr)
        return 130
    # The reader of a pipe, such as `| head`, has closed it.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (CommandError, CourseError, OSError) as error:
        print(f"labkit {name}: {error}", file=sys.stderr)
        return error.status if isinstance(error, CommandError) else 2
    except ModuleNotFoundError as missing:
        # A missing module of labkit is a defect, whose traceback is shown.
        if missing.name is None or missing.name.split(".")[0] == "labkit":
            raise
        print(
            f"labkit {name} needs the package {missing.name}, which is not installed in "
            f"{sys.executable}. In the lab's checkout, run `make setup`, or `pip install -e .` in "
            "an environment that has torch already.",
            file=sys.stderr,
        )
        return 2
