"""Messages that belong to no card, and the search for them in a pasted text.

A message is found by a regular expression over `simplified` text, so that line breaks, quotes,
paths, numbers, ranks, timestamps and the frame of a rich traceback make no difference. Where a
message has several causes, they are all named, each with what tells it from the others.

Invariant: the first row that fits a part of a text explains that part, so a table has the exact
words of an operation before the pattern of its family.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# what a pasted text has between the words of a message -> its replacement
FROM_PASTED = {
    r"\x1b\[[\d;]*m": "",  # colours of a terminal
    r"\[(?:rank)?\d+\]:|(?m:^[ \t]*(?:[>|]|E(?=[ \t]))[ \t]*)|[│╭╰╮╯─❱]": " ",
    r"['\"`‘’“”\\]": "",
    r"(?i:\b(?:struct )?(?:c10|at|torch|torch\.cuda)(?:::|\.))": "",
    r"\s+": " ",
}


@dataclass(frozen=True)
class Message:
    """A message that is not a card's own.

    Attributes:
        words: as it was written in the source.
        pattern: finds it in simplified text.
        means: what it says about precision.
        next: what to run or to change.
        cards: the nearest cards, by id.
        source: where it was read: a thread, owner/repository#number; a distribution and its
            version, "torch 2.13.0"; or an address.
        date: of that post, as far as the thread shows it; "" for a distribution.
        causes: each of several causes, and after a dash what tells it from the others.
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
