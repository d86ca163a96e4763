"""Result of a comparison of two trainings, as a value, as text and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from labkit.findings import counted
from labkit.instrument.recording import Key, Recording
from labkit.testing.trainings.distance import Cell
from labkit.testing.trainings.losses import LossBand
from labkit.testing.trainings.matching import PHASES

SCHEMA = "labkit.diff/1"
# How many differing settings the text lists.
MOST_SETTINGS = 6
# How many tensors beyond rounding the JSON lists.
MOST_BEYOND = 100


class TrainingVerdictKind(StrEnum):
    """What two trainings are to each other."""

    SAME = "same to the bit"
    ROUNDING = "rounding"
    OTHER_START = "another batch, seed or initialisation"
    FAULT = "a fault"


@dataclass(frozen=True, eq=False)
class TrainingDiff:
    """The comparison of two trainings.

    Attributes:
        baseline: The recording of the healthy run.
        run: The recording of the other run.
        kind: The verdict.
        reason: A sentence with the reason of the verdict.
        step: The step that decides; None if all steps are the same.
        tensor: Kind and name of the tensor that decides; None for a batch or a loss.
        line: File and line of the operation, if they were recorded, else "".
        cells: All tensors of all common steps.
        settings: Setting -> its values in both runs, where they differ.
        notes: Sentences on what was matched by order, and what could not be compared or judged.
        band: The losses of the healthy runs, if there are further ones.
        in_band: Whether the losses are within the band; None without a band.
        judged: The number of tensors that a bound was put on.
    """

    baseline: Recording
    run: Recording
    kind: TrainingVerdictKind
    reason: str
    step: int | None = None
    tensor: Key | None = None
    line: str = ""
    cells: tuple[Cell, ...] = ()
    settings: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    band: LossBand | None = None
    in_band: bool | None = None
    judged: int = 0

    @property
    def same_training(self) -> bool:
        """Whether the run passes as the same training; from another start, by its losses alone."""
        if self.kind is TrainingVerdictKind.OTHER_START:
            return self.in_band is True
        return self.kind is not TrainingVerdictKind.FAULT

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        if self.kind is TrainingVerdictKind.FAULT:
            where = "the loss" if self.tensor is None else " of ".join(self.tensor)
            return f"a fault from step {self.step}, {where} on"
        return str(self.kind)

    @property
    def exit_status(self) -> int:
        """The status of a command: 1 for a fault, 3 if numerics cannot be compared, else 0."""
        if self.kind is TrainingVerdictKind.FAULT:
            return 1
        if self.kind is TrainingVerdictKind.OTHER_START and not self.in_band:
            return 3
        return 0

    def __str__(self) -> str:
        """Return the comparison in words."""
        return text_of(self)


def text_of(diff: TrainingDiff) -> str:
    """Return a comparison in words."""
    lines = [f"{diff.summary}: {diff.reason}"]
    if diff.step is not None and diff.kind is not TrainingVerdictKind.OTHER_START:
        where = f"first difference: step {diff.step}"
        if diff.kind is TrainingVerdictKind.FAULT:
            where = f"first beyond rounding: step {diff.step}"
        if diff.tensor is not None:
            where += f", {diff.tensor[0]} of {diff.tensor[1]}"
        if diff.line:
            where += f" ({diff.line})"
        lines.append(f"  {where}")
    lines += [f"  {line}" for line in _largest(diff)]
    lines.append(f"  {_losses(diff)}")
    shown = list(diff.settings.items())[:MOST_SETTINGS]
    lines += [f"  {name}: {one} and {other}" for name, (one, other) in shown]
    if len(diff.settings) > MOST_SETTINGS:
        lines.append(f"  and {len(diff.settings) - MOST_SETTINGS} more settings differ")
    lines += [f"  {note}" for note in notes_of(diff)]
    return "\n".join(lines)


def notes_of(diff: TrainingDiff) -> list[str]:
    """Return sentences about what was compared, and what could not be."""
    notes = list(diff.notes)
    notes.append(f"{diff.judged:,} of {len(diff.cells):,} tensors were judged by a bound")
    # A bound of the tensor's own length or more allows any tensor.
    bounded = [c.step for c in diff.cells if math.isfinite(c.allowed) and c.allowed < 1]
    last = max(bounded, default=None)
    if last is not None and last < diff.cells[-1].step:
        notes.append(f"behind step {last} the runs are too far apart for any bound; losses decide")
    return notes


def _largest(diff: TrainingDiff) -> list[str]:
    """Return a line for each kind of tensors: the largest distance, in units of rounding."""
    lines = []
    for kind in PHASES:
        judged = [c for c in diff.cells if c.key[0] == kind and _is_judged(c)]
        worst = max(judged, key=lambda cell: cell.units, default=None)
        if worst is not None and worst.units > 0:
            lines.append(
                f"{kind + ':':<22}{worst.units:8.2g} times what rounding explains, at most: step "
                f"{worst.step}, {worst.key[1]}"
            )
    return lines


def _is_judged(cell: Cell) -> bool:
    """Return whether a cell has a distance and a bound."""
    return math.isfinite(cell.allowed) and not math.isnan(cell.distance)


def _losses(diff: TrainingDiff) -> str:
    """Return the last losses of both runs as a line."""
    ends = [
        next((s.loss for s in reversed(run.sampled) if s.loss is not None), None)
        for run in (diff.baseline, diff.run)
    ]
    if None in ends:
        return "no loss was recorded"
    text = f"last sampled losses: {ends[0]:.6g} and {ends[1]:.6g}"
    if diff.in_band is not None:
        place = "within the band of the healthy runs" if diff.in_band else "outside of the band"
        text += f", {place}"
    return text


def runs_in_words(diff: TrainingDiff) -> str:
    """Return the models of both runs, their steps, and where they ran."""
    sentences = []
    for name, run in (("Baseline", diff.baseline), ("other run", diff.run)):
        device = run.settings.get("device", "?")
        version = run.settings.get("torch", "?")
        steps = f"{counted(run.steps, 'step')}, {len(run.sampled)} sampled"
        sentences.append(f"{name}: {run.model}, {steps}, {device}, torch {version}")
    return "; ".join(sentences)


def as_json(diff: TrainingDiff) -> dict[str, Any]:
    """Return a comparison as plain data; inf and NaN, which JSON does not have, are None."""
    beyond = [c for c in diff.cells if c.beyond]
    return {
        "schema": SCHEMA,
        "verdict": str(diff.kind),
        "same_training": diff.same_training,
        "exit_status": diff.exit_status,
        "reason": diff.reason,
        "step": diff.step,
        "kind": None if diff.tensor is None else diff.tensor[0],
        "tensor": None if diff.tensor is None else diff.tensor[1],
        "line": diff.line,
        "in_band": diff.in_band,
        "settings": {name: list(values) for name, values in diff.settings.items()},
        "notes": notes_of(diff),
        "steps": sorted({c.step for c in diff.cells}),
        "losses": {
            name: [[s.step, _plain(s.loss)] for s in run.sampled]
            for name, run in (("baseline", diff.baseline), ("run", diff.run))
        },
        "beyond": [
            {
                "step": c.step,
                "kind": c.key[0],
                "tensor": c.key[1],
                "distance": _plain(c.distance),
                "allowed": _plain(c.allowed),
                "units": _plain(c.units),
            }
            for c in beyond[:MOST_BEYOND]
        ],
    }


def _plain(number: float | None) -> float | None:
    return number if number is not None and math.isfinite(number) else None
