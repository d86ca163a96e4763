"""All faults by id, and the search for the one that an error message belongs to.

Idea: the words of an error are compared with those that a fault is known by. What differs from run
to run is taken out of both texts: numbers, quotes, and the names that torch's versions give to one
thing (`c10::Half`, `float16`). A fault is found where its words stand in the text, or the text in
its words.

Invariant: a text that no fault is known by finds none; nothing is guessed from single words.
"""

from __future__ import annotations

import re

from labkit.faults import attention, casts, clipping, gpu, jobs, losses, models, scaling, weights
from labkit.faults.fault import Fault
from labkit.faults.gpu import GpuCard
from labkit.faults.messages import simplified

THEMES = (attention, casts, clipping, jobs, losses, models, scaling, weights)
_KNOWN = [value for theme in THEMES for value in vars(theme).values() if isinstance(value, Fault)]
FAULTS: dict[str, Fault] = {fault.id: fault for fault in sorted(_KNOWN, key=lambda fault: fault.id)}
GPU_CARDS: dict[str, GpuCard] = {
    name: card for name, card in vars(gpu).items() if isinstance(card, GpuCard)
}

FEWEST_WORDS = 4  # of a text that is looked for inside a fault's own words


def cards() -> dict[str, Fault | GpuCard]:
    """Return every card by its id: the faults, then those that only a GPU shows."""
    return {**FAULTS, **GPU_CARDS}


def explain(text: str) -> list[Fault | GpuCard]:
    """Return the cards that an error message fits, the longest match first; [] where none does.

    >>> [fault.id for fault in explain("ValueError: Attempting to unscale FP16 gradients.")]
    ['half_weights_unscaled', 'saved_half']
    >>> explain("IndexError: list index out of range")
    []
    """
    asked = plain(text)
    found = {
        fault: max(map(len, fits)) for fault in cards().values() if (fits := _fits(fault, asked))
    }
    return sorted(found, key=lambda fault: (-found[fault], fault.id))


def _fits(fault: Fault | GpuCard, asked: str) -> list[str]:
    known = [plain(words) for words in fault.errors]
    return [
        words
        for words in known
        if words in asked or (asked in words and len(asked.split()) >= FEWEST_WORDS)
    ]


def plain(text: str) -> str:
    """Return a message without what differs from run to run.

    >>> now, before = "cannot be converted to at::Half", "cannot be converted to c10::Half"
    >>> plain(now) == plain(before)
    True
    """
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", re.sub(r"\bfloat16\b", "half", simplified(text)))
