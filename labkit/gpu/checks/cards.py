"""Faults that only a GPU shows, on this one: the cards of `labkit.faults`, both forms of each.

labkit gpu --only cards
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from labkit.faults import GPU_CARDS
from labkit.faults.gpu import measured
from labkit.gpu.checks.measure import Answers, each, left_out_lines


def main(device: str = "cuda", *, width: int = 4096, seconds: float = float("inf")) -> Iterator[Answers]:
    """Find card -> what both forms measured, None where an error ended one, and whether the fault shows."""
    answers: Answers = {"cards": {}}

    def run(card: Any) -> None:
        torch.manual_seed(0)
        (broken, error), (cured, why) = (measured(card, device, form, width) for form in (False, True))
        shows = not why and (not error or any(known in error for known in card.errors)) and card.shows(broken, cured)
        found = {"unit": card.unit, "broken": broken, "cured": cured, "error": error or why, "shows": shows}
        answers["cards"][card.id] = found

    yield from each([(card.id, partial(run, card)) for card in GPU_CARDS.values()], answers, seconds)


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    lines = []
    for name, card in answers["cards"].items():
        if card["cured"] is None:
            lines.append(f"{name}: not measured, {card['error']}")
            continue
        broken = card["error"] if card["broken"] is None else f"{card['broken']:.3g}"
        verdict = "shows here" if card["shows"] else "does not show here"
        lines.append(f"{name}: {broken} as it fails, {card['cured']:.3g} repaired ({card['unit']}); it {verdict}")
    return "\n".join([*lines, *left_out_lines(answers)])
