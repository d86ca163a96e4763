"""Generator of docs/errors.md: what each error message means, from `labkit.faults` and its cards.

python docs/errors.py            write docs/errors.md
python docs/errors.py --check    fail if it is not up to date
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

Mixed precision fails with a few messages again and again, and more often without any. Look for yours on this page; in a
terminal, `labkit explain "the message"` does so. Each is a known fault: a short training that fails like yours, and its
repair, which `labkit explain NAME` runs on a CPU.

## The messages
"""
OF_OTHERS = """
## Messages of other frameworks

No training of the lab raises these. Each with what it means, what to run next, and the cards that come nearest.
"""
SILENT = """
## Without a message

What is seen, and what it turned out to be; `labkit diagnose train.py` looks for these in a script of your own.
"""


def page() -> str:
    """Return the whole page: a list of all messages, a section for each card that has one, and a list of the others."""
    speaking = [card for card in cards().values() if card.errors]
    raised_by: dict[str, list[Fault | GpuCard]] = {}
    for card in sorted(speaking, key=lambda card: card.id):
        for words in card.errors:
            raised_by.setdefault(words, []).append(card)
    index = [_entry(words, raised_by[words]) for words in sorted(raised_by)]
    others = [card for card in cards().values() if not card.errors]
    silent = [
        f"- {card.symptom} **{card.title}**{_where(card)} `labkit explain {card.id}`"
        for card in others
    ]
    named: dict[tuple[str, ...], str] = {}
    table = []
    for message in MESSAGES:
        table.append(_message(message))
        if message.causes and message.causes in named:
            table.append(f"    - Causes: as of {named[message.causes]}")
        else:
            table += [f"    - Cause: {cause}" for cause in message.causes]
            named[message.causes] = _code(message.words)
    return "\n".join(
        [HEAD, *index, "", *map(_section, speaking), OF_OTHERS, *table, SILENT, *silent, ""]
    )


def _message(message: Message) -> str:
    """Return a message that is no card's own as an item of a list."""
    nearest = ", ".join(f"`{name}`" for name in message.cards)
    read = f"[{message.source}]({address(message.source)})" + f", {message.date}" * bool(
        message.date
    )
    return f"- {_code(message.words)} {message.means} **Next.** {message.next} Nearest: {nearest}. Read in {read}."


def _entry(words: str, raised_by: list[Fault | GpuCard]) -> str:
    """Return a line of the list of messages: a link; where several cards raise it, one by the title of each."""
    if len(raised_by) == 1:
        return f"- [{_code(words)}](#{raised_by[0].id})"
    links = ", ".join(f"[{card.title}](#{card.id})" for card in raised_by)
    return f"- {_code(words)}: {links}"


def _code(words: str) -> str:
    """Return words as Markdown's code, which may hold a ` where two are around it."""
    return f"`` {words} ``" if "`" in words else f"`{words}`"


def _where(card: Fault | GpuCard) -> str:
    """Return where the fault is not seen, after a space."""
    return f" {card.where}" if isinstance(card, Fault) and card.where else ""


def _section(card: Fault | GpuCard) -> str:
    threads = ", ".join(f"[{thread}]({address(thread)})" for thread in card.threads)
    shown = "runs it" if isinstance(card, Fault) else "shows it; it needs a GPU"
    return "\n".join(
        [
            f'<a id="{card.id}"></a>',
            f"### {card.title}\n",
            *(f"    {words}" for words in card.errors),
            f"\n{card.symptom}\n",
            f"**Why.** {card.cause}\n",
            f"**Instruments.** {card.reading}\n",
            f"**Repair.** {card.repair}\n",
            *([f"**Where.**{_where(card)}\n"] if _where(card) else []),
            f"`labkit explain {card.id}` {shown}. Reported in {threads}.\n",
        ]
    )


if __name__ == "__main__":
    from generated import write_or_check

    sys.exit(write_or_check(PAGE, page()))
