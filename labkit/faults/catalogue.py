"""All faults by id, and the search for the fault of an error message.

Idea: each card has the messages of its errors. Both texts are normalized first: numbers, quotes and
the different names that versions of torch give to a dtype (`c10::Half`, `float16`) are replaced. A
card fits if one of its messages is a part of the text, or the text is a part of one of them.

Invariant: nothing is guessed from single words: a text that is a part of a card's message has at
least `FEWEST_WORDS` words.
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

# of a text that is searched for inside a card's messages
FEWEST_WORDS = 4


def cards() -> dict[str, Fault | GpuCard]:
    """Return every card by its id: first the faults, then the cards of GPUs."""
    return {**FAULTS, **GPU_CARDS}


def explain(text: str) -> list[Fault | GpuCard]:
    """Return the cards that fit an error message, the longest known message first.

    >>> [fault.id for fault in explain("ValueError: Attempting to unscale FP16 gradients.")]
    ['half_weights_unscaled', 'saved_half']
    >>> explain("IndexError: list index out of range")
    []
    """
    message = plain(text)
    is_long = len(message.split()) >= FEWEST_WORDS
    # card -> the length of its longest known message that fits
    lengths: dict[Fault | GpuCard, int] = {}
    for card in cards().values():
        for error in map(plain, card.errors):
            if error in message or (is_long and message in error):
                lengths[card] = max(len(error), lengths.get(card, 0))
    return sorted(lengths, key=lambda card: (-lengths[card], card.id))


def plain(text: str) -> str:
    """Return a message without numbers, quotes and other parts that differ from run to run.

    >>> now, before = "cannot be converted to at::Half", "cannot be converted to c10::Half"
    >>> plain(now) == plain(before)
    True
    """
    one_name = re.sub(r"\bfloat16\b", "half", simplified(text))
    return re.sub(r"[-+]?\d[\d.,e+-]*", "#", one_name)
