"""Commands on training scripts and their errors: watch, diagnose, explain."""

from __future__ import annotations

import difflib
import json
import os
import sys
import textwrap
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from labkit.commands import CommandError

if TYPE_CHECKING:
    from labkit.faults import Fault, GpuCard
    from labkit.faults.messages import Message

WIDTH = 100
# The exit statuses of reports, the most severe last.
BY_SEVERITY = (0, 3, 1)
FORMS = {"As it fails": False, "Repaired": True}
EXCERPT = (
    "The code is the body of a function of labkit.faults. Its helpers, such as `network()` and "
    "`batches()`, are in that package."
)


def watch(arguments: Namespace) -> int:
    """Run `labkit watch`: run a script, and print a report for each of its models.

    Returns:
        The exit status of the script; with --strict, that of the reports if the script succeeds.
    """
    from labkit.instrument import watched
    from labkit.instrument.report import as_json

    if arguments.every < 1:
        raise CommandError(f"--every: expected 1 or more, got {arguments.every}")
    if arguments.script.is_dir():
        raise CommandError(f"expected a script, got the folder {arguments.script}")
    if not arguments.script.is_file():
        raise CommandError(f"there is no script at {arguments.script}")
    own = ("--every", "--folder", "--record", "--strict", "--json")
    _warn_of_own_options(arguments.arguments, own, arguments.script, "watch")
    terminal = sys.stdout
    with _script_output(arguments.json):
        status, reports = watched(
            arguments.script, arguments.arguments, arguments.every, arguments.record
        )
    # The report of torchrun's first rank covers all ranks.
    is_first_rank = os.environ.get("RANK", "0") == "0"
    shown = reports if is_first_rank else []
    own_status = max((report.exit_status for report in shown), key=BY_SEVERITY.index, default=0)
    if arguments.strict and status == 0:
        status = own_status
    if arguments.json:
        print(json.dumps(as_json("watch", shown, status)), file=terminal)
        return status
    for report in shown:
        print(report, file=terminal)
        try:
            saved = report.save(free_folder(arguments.folder))
            message = f"written to {saved / 'report.html'}"
        # The script has ended, and its exit status is kept.
        except Exception as error:
            message = f"the report could not be written: {type(error).__name__}: {error}"
        print(message, file=terminal)
    if arguments.record is not None and is_first_rank:
        _print_recordings(arguments.record)
    if not reports:
        print(
            f"no torch optimizer stepped in {arguments.script}: there was no model to watch",
            file=sys.stderr,
        )
    return status


def _print_recordings(path: Path) -> None:
    """Print the place of a recording to standard error: standard output is the report's."""
    if path.is_file():
        print(f"recorded to {path}; compare: labkit diff {path} OTHER", file=sys.stderr)
    else:
        print(f"labkit watch: nothing was recorded to {path}", file=sys.stderr)


@contextmanager
def _script_output(as_json: bool) -> Iterator[None]:
    """Keep standard output for the report, even if the script replaces `sys.stdout`.

    With JSON, the output of the script goes to standard error. The file descriptor is redirected,
    too, which child processes and `sys.__stdout__` use.
    """
    stdout = sys.stdout
    stderr = sys.stderr
    sys.stdout.flush()
    copied = os.dup(1) if as_json else None
    try:
        if copied is not None:
            os.dup2(2, 1)
            sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout = stdout
        sys.stderr = stderr
        if copied is not None:
            sys.stdout.flush()
            os.dup2(copied, 1)
            os.close(copied)


def free_folder(folder: Path) -> Path:
    """Return the folder, or the first of NAME-2, NAME-3 and so on that is empty or missing."""

    def is_free(path: Path) -> bool:
        return not path.exists() or (path.is_dir() and not any(path.iterdir()))

    free = folder
    number = 1
    while not is_free(free):
        number += 1
        free = folder.with_name(f"{folder.name}-{number}")
    return free


def diagnose(arguments: Namespace) -> int:
    """Run `labkit diagnose`: run a script for some steps, and print its faults.

    Returns:
        The exit status of the report.
    """
    from labkit.clinic.diagnose import NothingObserved, diagnose_script
    from labkit.instrument.report import as_json

    # argparse passes everything after the script's name to the script.
    if arguments.arguments[:1] == ["--steps"]:
        own = ArgumentParser(prog="labkit diagnose", add_help=False)
        own.add_argument("--steps", type=int)
        arguments.steps = own.parse_args(arguments.arguments[:2]).steps
        arguments.arguments = arguments.arguments[2:]
    words = ("--steps", "--folder", "--json")
    _warn_of_own_options(arguments.arguments, words, arguments.script, "diagnose")
    try:
        with _script_output(arguments.json):
            report = diagnose_script(arguments.script, arguments.arguments, arguments.steps)
    except NothingObserved as error:
        raise CommandError(str(error), status=3) from error
    except ValueError as error:
        raise CommandError(str(error)) from error
    if arguments.folder is not None:
        saved = report.save(free_folder(arguments.folder))
        stream = sys.stderr if arguments.json else sys.stdout
        print(f"written to {saved / 'report.html'}", file=stream)
    if arguments.json:
        print(json.dumps(as_json("diagnose", [report], report.exit_status)))
    else:
        print(report)
    return report.exit_status


def _warn_of_own_options(
    arguments: Sequence[str], options: Sequence[str], script: Path, command: str
) -> None:
    """Warn of options of labkit after the script's name, which are passed to the script."""
    for word in arguments:
        option = word.split("=")[0]
        if option in options:
            print(
                f"labkit {command}: {word} is after {script}, so it is passed to the script. "
                f"If it is meant for labkit: labkit {command} {option} ... {script}",
                file=sys.stderr,
            )


def explain(arguments: Namespace) -> int:
    """Run `labkit explain`: print the known faults of a message, or list all faults.

    Returns:
        The exit status: 1 if no known fault has the message.
    """
    from labkit.faults import cards
    from labkit.faults import explain as find
    from labkit.faults.messages import messages_in

    text = " ".join(arguments.text)
    known = cards()
    if not text:
        print("\n".join(f"{name:<28}{card.title}" for name, card in known.items()))
        return 0
    if text in known:
        found = [known[text]]
        others = []
    else:
        found = find(text)
        others = messages_in(text)
    if found:
        # A card has the repair as code. A message is of use beside it if it lists several causes.
        others = [message for message in others if message.causes]
    for message in others:
        print(_message_text(message, known), end="\n\n")
    for card in found:
        print(_fault_text(card, whole=text in known), end="\n\n")
    if not found and not others:
        near = difflib.get_close_matches(text, known, n=1)
        suggestion = f" Did you mean `labkit explain {near[0]}`?" if near else ""
        print(
            f"No known fault has this message.{suggestion} `labkit explain` lists all faults; "
            "where a training fails without a message, run `labkit diagnose train.py`.",
            file=sys.stderr,
        )
    return 0 if found or others else 1


def _message_text(message: Message, known: dict[str, Fault | GpuCard]) -> str:
    nearest = "; ".join(f"{name} ({known[name].title.rstrip('.')})" for name in message.cards)
    lines = [message.words, _wrapped("Why", message.means)]
    for number, cause in enumerate(message.causes, 1):
        lines.append(_wrapped(f"Cause {number}", cause))
    lines += [_wrapped("Run next", message.next), _wrapped("Nearest", nearest)]
    lines.append(_wrapped("Reported", f"{message.source} {message.date}".strip()))
    lines.append(
        f"  `labkit explain {message.cards[0]}` shows the nearest fault as code that fails, and "
        "repaired."
    )
    return "\n".join(lines)


def _fault_text(card: Fault | GpuCard, whole: bool) -> str:
    from labkit.faults import Fault, GpuCard, code_of, run, snippet

    parts = {
        "Symptom": card.symptom,
        "Cause": card.cause,
        "Instruments": card.reading,
        "Repair": card.repair,
    }
    lines = [card.title, *(_wrapped(name, text) for name, text in parts.items())]
    if isinstance(card, Fault) and card.where:
        lines.append(_wrapped("Where", card.where))
    lines.append(_wrapped("Reported", ", ".join(card.threads)))
    if isinstance(card, GpuCard):
        lines += [_wrapped("Published", text) for text in card.published()]
    if whole:
        lines.append(f"\n{textwrap.fill(EXCERPT, WIDTH)}")
    if not whole:
        lines.append(f"  `labkit explain {card.id}` shows it as code that fails, and repaired.")
    elif isinstance(card, GpuCard):
        for name, fixed in FORMS.items():
            lines.append(f"\n{name}:\n\n{code_of(card.function, fixed)}")
        lines.append("\nOnly a GPU shows it: `labkit gpu --only cards` runs it on one.")
    else:
        for name, fixed in FORMS.items():
            outcome = run(card, fixed)
            score = f"score {outcome.score:.3g}; {card.limit:g} or more is healthy"
            result = outcome.error or score
            lines.append(f"\n{name}:\n\n{snippet(card, fixed)}")
            lines.append(f"\nResult of a run on this machine: {result}")
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> str:
    """Return a text with its name before it, wrapped in a column of its own."""
    heading = f"  {name + ':':<13}"
    return textwrap.fill(text, WIDTH, initial_indent=heading, subsequent_indent=" " * len(heading))
