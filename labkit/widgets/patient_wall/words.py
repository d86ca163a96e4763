"""What stands on a card, in front and behind, and which cards does a text find?

Idea: a card's front holds what a person sees who has the fault; what it is stands behind. Texts are found in two ways:
as an error message, by `labkit.clinic.explain`, and else by their words.

Invariant: what is said of a run follows from its `Outcome` alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from typing import Any

from labkit.clinic import GpuCard, Outcome, Patient, code_of, explain
from labkit.clinic.explain import plain
from labkit.clinic.patient import address

ALL = "all"


def front(patient: Patient | GpuCard) -> dict[str, Any]:
    """Return what is seen before a card is turned: the symptom and, where there is one, the error's own words."""
    seen = {"id": patient.id, "symptom": patient.symptom, "errors": list(patient.errors), "kind": patient.kind.value}
    return {**seen, "runs": isinstance(patient, Patient)}


def behind(patient: Patient | GpuCard) -> dict[str, Any]:
    """Return what a turned card shows: the fault, what is known about it, and both forms as code."""
    told = {"Why": patient.cause, "Instruments": patient.reading, "Repair": patient.repair}
    if isinstance(patient, Patient) and patient.where:
        told["Where"] = patient.where
    if isinstance(patient, GpuCard):
        shown = "\n".join(patient.published()) or "In the threads; no row of data/published.csv shows it."
        told |= {"Published": shown, "Here": "Not run here. `labkit gpu --only cards` runs it on a machine with a GPU."}
    function = patient.training if isinstance(patient, Patient) else patient.measure
    return {
        "title": patient.title,
        "told": [[name, text] for name, text in told.items()],
        "threads": [{"name": thread, "address": address(thread)} for thread in patient.threads],
        "code": compared(code_of(function, cured=False), code_of(function, cured=True)),
    }


def compared(broken: str, cured: str) -> list[list[list[Any]]]:
    """Return the lines of two texts, each with whether the other text lacks it.

    >>> compared("a\\nb", "a\\nc")
    [[['a', False], ['b', True]], [['a', False], ['c', True]]]
    """
    texts = [broken.splitlines(), cured.splitlines()]
    same = difflib.SequenceMatcher(a=texts[0], b=texts[1], autojunk=False).get_matching_blocks()
    kept = [{start[side] + i for *start, size in same for i in range(size)} for side in (0, 1)]
    return [[[line, i not in kept[side]] for i, line in enumerate(texts[side])] for side in (0, 1)]


def outcome_view(patient: Patient, outcome: Outcome, warned: str = "") -> dict[str, Any]:
    """Return what a card shows of a run: its losses, None where one is inf or NaN, and what came of it in words."""
    losses = [loss if math.isfinite(loss) else None for loss in outcome.losses]
    return {"losses": losses, "failed": patient.failed(outcome), "sentence": _came_of(patient, outcome, warned)}


def _came_of(patient: Patient, outcome: Outcome, warned: str) -> str:
    steps = f"{len(outcome.losses)} step{'s' * (len(outcome.losses) != 1)}"
    if outcome.error:
        return f"Ended after {steps} by {outcome.error}"
    score = "NaN" if math.isnan(outcome.score) else f"{outcome.score:.3g}"
    numbers = f"its score is {score}, and it is well from {patient.limit:g} on"
    return f"{_losses(outcome.losses, steps)}; {numbers}.{f' It warned: {warned}' if warned else ''}"


def _losses(losses: tuple[float, ...], steps: str) -> str:
    known = [loss for loss in losses if math.isfinite(loss)]
    if not known:
        return f"{steps} without a finite loss" if losses else "No step"
    gone = f", inf or NaN in {len(losses) - len(known)}" if len(known) < len(losses) else ""
    return f"{steps}, loss {known[0]:.4g} at first and {known[-1]:.4g} at last{gone}"


def find(cards: Mapping[str, Patient | GpuCard], query: str, kind: str) -> tuple[list[str], str]:
    """Return the cards that a text and a kind of symptom find, by id, and a sentence that says how they were found.

    A text is looked up as an error message first; where nobody is known by it, a card needs all of its words.
    """
    shown = [card for card in cards.values() if kind in (ALL, card.kind.value)]
    if not query.strip():
        return [card.id for card in shown], f"{_cards(len(shown))}. Paste the error message that you have, or a word."
    if known := [card.id for card in explain(query) if card.id in cards]:
        return known, f"{_cards(len(known))} known by this message, among all kinds of symptoms."
    words = plain(query).split()
    found = [card.id for card in shown if all(word in _text(card) for word in words)]
    if found:
        return found, f"{_cards(len(found))} with {'these words' if len(words) > 1 else 'this word'}."
    return [], "No card is known by this message, and none has all of these words."


def _cards(number: int) -> str:
    return f"{number} card{'s' * (number != 1)}"


def _text(card: Patient | GpuCard) -> str:
    return plain(" ".join((card.id, card.title, card.symptom, card.cause, card.repair, *card.errors)))
