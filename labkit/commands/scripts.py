"""Commands on training scripts and their errors: watch, diagnose, explain."""

from __future__ import annotations

import difflib
import itertools
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
SEVEREST = (0, 3, 1)  # exit statuses of reports, the severest last
FORMS = {"As it fails": False, "Repaired": True}
EXCERPT = (
    "The code is the body of a function of labkit.faults. Its helpers, such as `network()` and "
    "`batches()`, are in that package."
)


def watch(arguments: Namespace) -> int:
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
    # the report of torchrun's first rank covers all ranks
    is_first_rank = os.environ.get("RANK", "0") == "0"
    shown = reports if is_first_rank else []
    own_status = max((report.exit_status for report in shown), key=SEVEREST.index, default=0)
    if arguments.strict and status == 0:
        status = own_status
    if arguments.json:
        print(json.dumps(as_json("watch", shown, status)), file=terminal)
        return status
    for report in shown:
        print(report, file=terminal)
        try:
            message = f"written to {report.save(free_folder(arguments.folder)) / 'report.html'}"
        except Exception as error:
            # the script has ended, and its exit status is kept
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
    """Keep standard output for the report, also where a script replaces `sys.stdout`.

    With JSON what the script prints goes to standard error: its file descriptor is redirected too,
    for child processes and `sys.__stdout__`.
    """
    streams = sys.stdout, sys.stderr
    sys.stdout.flush()
    copied = os.dup(1) if as_json else None
    try:
        if copied is not None:
            os.dup2(2, 1)
            sys.stdout = sys.stderr
        yield
    finally:
        sys.stdout, sys.stderr = streams
        if copied is not None:
            sys.stdout.flush()
            os.dup2(copied, 1)
            os.close(copied)


def free_folder(folder: Path) -> Path:
    """Return the folder, or the first of NAME-2, NAME-3 and so on that is empty or missing."""
    numbered = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(
        each
        for each in itertools.chain([folder], numbered)
        if not each.exists() or (each.is_dir() and not any(each.iterdir()))
    )


def diagnose(arguments: Namespace) -> int:
    from labkit.clinic.diagnose import NothingObserved, diagnose_script
    from labkit.instrument.report import as_json

    # argparse passes all that follows the script to the script
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
        written = f"written to {report.save(free_folder(arguments.folder)) / 'report.html'}"
        print(written, file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(json.dumps(as_json("diagnose", [report], report.exit_status)))
    else:
        print(report)
    return report.exit_status


def _warn_of_own_options(
    arguments: Sequence[str], options: Sequence[str], script: Path, command: str
) -> None:
    """Name the options of labkit after the script's name, which are passed to the script."""
    for word in arguments:
        if word.split("=")[0] in options:
            print(
                f"labkit {command}: {word} is after {script}, so it is passed to the script. "
                f"If it is meant for labkit: labkit {command} {word.split('=')[0]} ... {script}",
                file=sys.stderr,
            )


def explain(arguments: Namespace) -> int:
    from labkit.faults import cards
    from labkit.faults import explain as find
    from labkit.faults.messages import messages_in

    text = " ".join(arguments.text)
    known = cards()
    if not text:
        print("\n".join(f"{name:<28}{card.title}" for name, card in known.items()))
        return 0
    found = [known[text]] if text in known else find(text)
    others = [] if text in known else messages_in(text)
    if found:
        # a card has the repair as code; a message says which of several causes it is
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
    if whole and isinstance(card, GpuCard):
        lines += [f"\n{name}:\n\n{code_of(card.function, fixed)}" for name, fixed in FORMS.items()]
        lines.append("\nOnly a GPU shows it: `labkit gpu --only cards` runs it on one.")
    elif isinstance(card, Fault) and whole:
        for name, fixed in FORMS.items():
            outcome = run(card, fixed)
            result = (
                outcome.error or f"score {outcome.score:.3g}; {card.limit:g} or more is healthy"
            )
            lines.append(
                f"\n{name}:\n\n{snippet(card, fixed)}\n\nResult of a run on this machine: {result}"
            )
    else:
        lines.append(f"  `labkit explain {card.id}` shows it as code that fails, and repaired.")
    return "\n".join(lines)


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(
        text, WIDTH, initial_indent=f"  {name + ':':<13}", subsequent_indent=" " * 15
    )
