"""Generator of docs/errors.md, which explains error messages by the cards of `labkit.faults`.

python docs/errors.py            write docs/errors.md
python docs/errors.py --check    fail if docs/errors.md differs
"""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.faults import Fault, GpuCard, cards
from labkit.faults.fault import address
from labkit.faults.messages import MESSAGES, Message

PAGE = Path(__file__).with_name("errors.md")
HEAD = """<!-- Made by `make docs`; do not edit. -->

# Your error message

Mixed precision fails with a few recurring messages, and more often without any. Search this page
for your message, or type `labkit explain "the message"` in a terminal. Each message leads to a
known fault: a short training that fails like yours, and its repair. `labkit explain NAME` runs both
on a CPU.

## The messages
"""
OTHER_FRAMEWORKS = """
## Messages of other frameworks

No training of the lab raises these messages. Each item says what the message means, what to run
next, and which cards come nearest.
"""
SILENT = """
## Without a message

Each item gives the symptom and its cause. `labkit diagnose train.py` looks for these faults in your
own script.
"""


def page() -> str:
    """Return the Markdown of the whole page.

    It lists all messages, has a section for each card with a message, and ends with the messages of
    other frameworks and the faults that raise nothing.
    """
    with_message = [card for card in cards().values() if card.errors]
    without_message = [card for card in cards().values() if not card.errors]
    cards_of: dict[str, list[Fault | GpuCard]] = {}
    for card in sorted(with_message, key=lambda card: card.id):
        for message in card.errors:
            cards_of.setdefault(message, []).append(card)
    lines = [HEAD]
    lines += [index_line(message, cards_of[message]) for message in sorted(cards_of)]
    lines.append("")
    lines += [card_section(card) for card in with_message]
    lines.append(OTHER_FRAMEWORKS)
    lines += foreign_messages()
    lines.append(SILENT)
    lines += [silent_line(card) for card in without_message]
    return "\n".join(lines) + "\n"


def index_line(message: str, raised_by: list[Fault | GpuCard]) -> str:
    """Return a message as a link to its card, or with one link for each of several cards."""
    if len(raised_by) == 1:
        return f"- [{as_code(message)}](#{raised_by[0].id})"
    links = ", ".join(f"[{card.title}](#{card.id})" for card in raised_by)
    return f"- {as_code(message)}: {links}"


def card_section(card: Fault | GpuCard) -> str:
    """Return the section of a card: messages, symptom, cause, instruments, repair, threads."""
    threads = ", ".join(f"[{thread}]({address(thread)})" for thread in card.threads)
    lines = [f'<a id="{card.id}"></a>', f"### {card.title}\n"]
    lines += [f"    {message}" for message in card.errors]
    lines += [
        f"\n{card.symptom}\n",
        f"**Why.** {card.cause}\n",
        f"**Instruments.** {card.reading}\n",
        f"**Repair.** {card.repair}\n",
    ]
    if where_absent(card):
        lines.append(f"**Where.** {where_absent(card)}\n")
    shown = "runs it" if isinstance(card, Fault) else "shows it; it needs a GPU"
    lines.append(f"`labkit explain {card.id}` {shown}. Reported in {threads}.\n")
    return "\n".join(lines)


def foreign_messages() -> list[str]:
    """Return a list of the messages that no training of the lab raises.

    Several messages may have the same causes. The first of them lists the causes, and the others
    refer to it.
    """
    lines = []
    first_with: dict[tuple[str, ...], str] = {}
    for message in MESSAGES:
        lines.append(foreign_message(message))
        if message.causes and message.causes in first_with:
            lines.append(f"    - Causes: as of {first_with[message.causes]}")
            continue
        lines += [f"    - Cause: {cause}" for cause in message.causes]
        first_with[message.causes] = as_code(message.words)
    return lines


def foreign_message(message: Message) -> str:
    """Return one item of the list: the message, its meaning, the next step, cards, source."""
    nearest = ", ".join(f"`{name}`" for name in message.cards)
    source = f"[{message.source}]({address(message.source)})"
    if message.date:
        source += f", {message.date}"
    return (
        f"- {as_code(message.words)} {message.means} **Next.** {message.next} "
        f"Nearest: {nearest}. Read in {source}."
    )


def silent_line(card: Fault | GpuCard) -> str:
    """Return a fault without a message: its symptom, title, and the systems without it."""
    parts = [f"- {card.symptom} **{card.title}**", where_absent(card)]
    parts.append(f"`labkit explain {card.id}`")
    return " ".join(part for part in parts if part)


def where_absent(card: Fault | GpuCard) -> str:
    """Return on which systems a fault is not seen, or an empty string."""
    return card.where if isinstance(card, Fault) else ""


def as_code(message: str) -> str:
    """Return a message as inline code of Markdown, in double backticks if it holds a backtick."""
    return f"`` {message} ``" if "`" in message else f"`{message}`"


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(PAGE, page()))
