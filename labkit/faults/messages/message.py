"""Messages without a card of their own, and the search for them in a pasted text.

A regular expression finds a message in `simplified` text, so that line breaks, quotes, ranks and
the frame of a rich traceback make no difference. If a message has several causes, its row names all
of them, each with the sign that distinguishes it.

Invariant: the first row that fits a part of a text explains that part, so a table has the exact
words of an operation before the pattern of its family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# patterns of what a terminal or a log adds to a message -> their replacement, in this order
FROM_PASTED = {
    # Colours of a terminal.
    r"\x1b\[[\d;]*m": "",
    # ranks; marks of pytest and of debuggers at the start of a line; frames of rich tracebacks
    r"\[(?:rank)?\d+\]:|(?m:^[ \t]*(?:[>|]|E(?=[ \t]))[ \t]*)|[│╭╰╮╯─❱]": " ",
    r"['\"`‘’“”\\]": "",
    r"(?i:\b(?:struct )?(?:c10|at|torch|torch\.cuda)(?:::|\.))": "",
    r"\s+": " ",
}


@dataclass(frozen=True)
class Message:
    """A message, what it means, and what to do.

    Attributes:
        words: the message as in its source.
        pattern: a regular expression that finds it in simplified text.
        means: what it says about precision.
        next: what to run or to change.
        cards: ids of the cards that are closest to it.
        source: a thread, owner/repository#number; a distribution and its version, "torch 2.13.0";
            or a URL.
        date: the date of the post in the thread; "" if unknown, and for a distribution.
        causes: several causes; each has its sign after a dash.
    """

    words: str
    pattern: str
    means: str
    next: str
    cards: tuple[str, ...]
    source: str
    date: str = ""
    causes: tuple[str, ...] = ()


def any_of(*patterns: str) -> str:
    """Return the pattern that finds what one of several finds.

    >>> any_of("half", "bf16")
    'half|bf16'
    """
    return "|".join(patterns)


def simplified(text: str) -> str:
    r"""Return a pasted text in small letters, without quotes, frames, ranks and line breaks.

    >>> simplified("[rank0]: expected scalar\n[rank0]:  type `c10::Half`")
    'expected scalar type half'
    """
    for pattern, instead in FROM_PASTED.items():
        text = re.sub(pattern, instead, text)
    return text.lower().strip()


def found_in(text: str, table: Iterable[Message]) -> list[Message]:
    """Return the messages of a table that a text holds, in the order of the table.

    A row whose every match overlaps one of an earlier row says less of the same words, and is
    left out.
    """
    searched = simplified(text)
    found: list[Message] = []
    taken: list[tuple[int, int]] = []
    for message in table:
        spans = [match.span() for match in re.finditer(message.pattern, searched)]
        own = [
            (start, end)
            for start, end in spans
            if all(end <= first or start >= last for first, last in taken)
        ]
        if own:
            found.append(message)
            taken += own
    return found
