"""`labkit explain`: find the fault that an error message belongs to, or show one fault whole."""

from __future__ import annotations

import sys
import textwrap
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labkit.faults import Fault, GpuCard
    from labkit.faults.messages import Message


WIDTH = 100
FORMS = {"As it fails": False, "Repaired": True}


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("text", nargs="*", help="an error message, or the name of a patient; without it: all of them")


def run(arguments: Namespace) -> int:
    from labkit.faults import cards, explain
    from labkit.faults.messages import messages_in

    text = " ".join(arguments.text)
    known = cards()
    if not text:
        print("\n".join(f"{name:<28}{card.title}" for name, card in known.items()))
        return 0
    found = [known[text]] if text in known else explain(text)
    others = [] if text in known else messages_in(text)
    for message in () if found else others:
        print(_meaning(message, known), end="\n\n")
    for card in found:
        print(_described(card, whole=text in known), end="\n\n")
    if not found and not others:
        print(
            "No patient of this lab is known by that message. `labkit explain` without a text lists all of them; where "
            "a training fails without a message, `labkit watch train.py` says what it sees.",
            file=sys.stderr,
        )
    return 0 if found or others else 1


def _meaning(message: Message, known: dict[str, Fault | GpuCard]) -> str:
    nearest = "; ".join(f"{name} ({known[name].title.rstrip('.')})" for name in message.cards)
    parts = {"Why": message.means, "Run next": message.next, "Nearest": nearest}
    lines = [message.words, *(_wrapped(name, text) for name, text in parts.items())]
    lines.append(_wrapped("Reported", f"{message.source} {message.date}".strip()))
    lines.append(f"  `labkit explain {message.cards[0]}` shows the nearest fault as code that fails, and repaired.")
    return "\n".join(lines)


def _described(card: Fault | GpuCard, whole: bool) -> str:
    from labkit.faults import Fault, GpuCard, code_of, snippet

    parts = {"Seen": card.symptom, "Why": card.cause, "Instruments": card.reading, "Repair": card.repair}
    lines = [card.title, *(_wrapped(name, text) for name, text in parts.items())]
    if isinstance(card, Fault) and card.where:
        lines.append(_wrapped("Where", card.where))
    lines.append(_wrapped("Reported", ", ".join(card.threads)))
    if isinstance(card, GpuCard):
        lines += [_wrapped("Published", text) for text in card.published()]
    if whole and isinstance(card, GpuCard):
        lines += [f"\n{name}:\n\n{code_of(card.function, fixed)}" for name, fixed in FORMS.items()]
        lines.append("\nOnly a GPU shows it: `labkit gpu --only cards` runs it on one.")
    elif isinstance(card, Fault) and whole:
        for name, fixed in FORMS.items():
            lines.append(f"\n{name}:\n\n{snippet(card, fixed)}\n\nRun here and now: {_came_of(card, fixed)}")
    else:
        lines.append(f"  `labkit explain {card.id}` shows it as code that fails, and repaired.")
    return "\n".join(lines)


def _came_of(fault: Fault, fixed: bool) -> str:
    from labkit import faults

    outcome = faults.run(fault, fixed)
    return outcome.error or f"a score of {outcome.score:.3g}, and it is well from {fault.limit:g} on"


def _wrapped(name: str, text: str) -> str:
    return textwrap.fill(text, WIDTH, initial_indent=f"  {name + ':':<13}", subsequent_indent=" " * 15)
