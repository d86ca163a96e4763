"""Which patient or card has this error? Its words are compared with those that patients are known by.

Idea: what differs from run to run is taken out of both texts: numbers, quotes, and the names that torch's versions give
to one thing (`c10::Half`, `at::Half`). A patient is found where its words stand in the text, or the text in its words.

Invariant: a text that no patient is known by finds none; nothing is guessed from single words.
"""

from __future__ import annotations

import re

from labkit.clinic.gpu_cards import gpu_cards
from labkit.clinic.messages import simplified
from labkit.clinic.on_gpu import GpuCard
from labkit.clinic.patient import Patient
from labkit.clinic.patients import patients

FEWEST_WORDS = 4  # of a text that is looked for inside a patient's own words
SAME = {r"\b(?:c10|at|torch)::": "", r"\b(?:float16|half)\b": "half", r"['\"`]": "", r"[-+]?\d[\d.,e+-]*": "#"}


def cards() -> dict[str, Patient | GpuCard]:
    """Return every card by its id: the patients, then those that only a GPU shows."""
    return {**patients(), **gpu_cards()}


def explain(text: str) -> list[Patient | GpuCard]:
    """Return the cards that an error message fits, the longest match first; [] where none does.

    >>> [patient.id for patient in explain("ValueError: Attempting to unscale FP16 gradients.")]
    ['half_weights_unscaled', 'saved_half']
    >>> explain("IndexError: list index out of range")
    []
    """
    asked = plain(simplified(text))
    found = {patient: max(map(len, fits)) for patient in cards().values() if (fits := _fits(patient, asked))}
    return sorted(found, key=lambda patient: (-found[patient], patient.id))


def _fits(patient: Patient | GpuCard, asked: str) -> list[str]:
    known = [plain(simplified(words)) for words in patient.errors]
    return [words for words in known if words in asked or (asked in words and len(asked.split()) >= FEWEST_WORDS)]


def plain(text: str) -> str:
    """Return a message without what differs from run to run.

    >>> plain("value cannot be converted to type at::Half") == plain("value cannot be converted to type c10::Half")
    True
    """
    text = text.lower()
    for pattern, word in SAME.items():
        text = re.sub(pattern, word, text)
    return " ".join(text.split())
