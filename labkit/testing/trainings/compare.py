"""Verdict on two recorded trainings, and the first step and tensor that decides it.

The steps are examined in order, and the tensors of a step in the order in which it makes them:

1. If a step starts differently, by another batch or other first weights, its numbers are not
   compared (`labkit.testing.trainings.starts`).
2. The first tensor whose distance is beyond rounding is a fault
   (`labkit.testing.trainings.distance` and `labkit.testing.trainings.weights`). If its errors are
   those of a coarser format, that format counts from this step on
   (`labkit.testing.trainings.coarse`).
3. If the weights are as far apart as a step has moved them, no bound applies any more, and the
   losses decide (`labkit.testing.trainings.losses`).

A verdict has a reason (`labkit.testing.trainings.reasons`), and the number of tensors that were
judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from labkit.findings import counted
from labkit.formats.arguments import require_kind
from labkit.instrument.recording import Key, Recording
from labkit.testing.trainings.coarse import coarse_format
from labkit.testing.trainings.distance import (
    Cell,
    History,
    cells_of_step,
    coarser,
    distance,
    format_of_settings,
)
from labkit.testing.trainings.losses import loss_band, losses_part
from labkit.testing.trainings.matching import common_steps, matched
from labkit.testing.trainings.pairing import StepPair, pair_of
from labkit.testing.trainings.reasons import beyond_rounding, other_loss, other_rounding
from labkit.testing.trainings.result import TrainingDiff, TrainingVerdictKind
from labkit.testing.trainings.starts import other_random_numbers, other_start
from labkit.testing.trainings.weights import judge_weights

AnyRecording: TypeAlias = "Recording | Path | str"

# A distance is allowed up to this many times the largest distance of healthy runs.
SPREAD = 3.0
# Kinds of tensors that depend on the loss.
AFTER_LOSS = ("activation gradients", "weight gradients", "step gradients", "updates")
# How many steps the message about missing common steps lists.
MOST_STEPS = 4


class TrainingsDiffer(AssertionError):
    """A run is not the training that it is compared with; the message is the comparison."""


def as_recording(recording: AnyRecording) -> Recording:
    """Return a recording, which is loaded if it is a path."""
    require_kind(recording, (Recording, Path, str), "recording", "Pass a recording, or its file")
    return recording if isinstance(recording, Recording) else Recording.load(recording)


def assert_same_training(
    run: AnyRecording, baseline: AnyRecording, *, spread: Iterable[AnyRecording] = ()
) -> TrainingDiff:
    """Assert that a run is its baseline, up to rounding; return the comparison.

    With `spread`, a run from another seed passes if its losses are within the band of the healthy
    runs.

    Args:
        run: The run to test, or its file.
        baseline: A healthy run, or its file.
        spread: Further healthy runs, or their files.

    Raises:
        TrainingsDiffer: If the run has a fault, or starts differently and no band holds its losses.
        NotARecording, OSError, ValueError: As in `compare_trainings`.
    """
    comparison = compare_trainings(baseline, run, spread=spread)
    if not comparison.same_training:
        raise TrainingsDiffer(str(comparison))
    return comparison


def compare_trainings(
    baseline: AnyRecording, run: AnyRecording, *, spread: Iterable[AnyRecording] = ()
) -> TrainingDiff:
    """Compare two recorded trainings.

    Args:
        baseline: A healthy run, or its file.
        run: The other run, or its file.
        spread: Further healthy runs, or their files. What differs between them and the baseline is
            not a fault, and their losses are a band.

    Raises:
        NotARecording: If a file is not a recording.
        OSError: If a file cannot be read.
        ValueError: If no step was sampled in both runs, or no tensor was recorded in both.
    """
    if isinstance(spread, Recording | Path | str):
        raise TypeError(
            "spread: expected a list of recordings or files, got one. Pass spread=[recording]"
        )
    healthy = [as_recording(each) for each in spread]
    return _Comparison(as_recording(baseline), as_recording(run), healthy).result()


class _Comparison:
    """The comparison of two runs while it is made.

    Args:
        baseline: The healthy run.
        run: The other run.
        spread: Further healthy runs.

    Raises:
        ValueError: If no step was sampled in both runs.
    """

    def __init__(self, baseline: Recording, run: Recording, spread: Sequence[Recording]) -> None:
        self.runs = pair_of(baseline, run)
        self.steps = list(common_steps(baseline, run))
        if not self.steps:
            raise ValueError(
                f"expected steps that both runs have sampled, got steps {_first_steps(baseline)} "
                f"and {_first_steps(run)}. Record both with the same --every."
            )
        self.format = coarser(
            format_of_settings(baseline.settings), format_of_settings(run.settings)
        )
        self.band = loss_band([baseline, *spread]) if spread else None
        self.healthy = _healthy_distances(baseline, spread)
        self.history = History()
        self.cells: list[Cell] = []
        # Why a coarser format than FP32 explains the differences from one step on.
        self.coarse = ""

    def result(self) -> TrainingDiff:
        """Return the comparison, decided by the first step that decides or by all steps."""
        verdict: TrainingDiff | None = None
        before: StepPair | None = None
        for now in self.steps:
            cells = self._cells(before, now)
            if verdict is None:
                if self._explain_by_coarser_format(now, cells):
                    cells = self._cells(before, now)
                verdict = self._start(before, now, cells) or self._first_beyond(now, cells)
            self.cells += cells
            before = now
        if verdict is None:
            verdict = self._of_losses() or self._explained()
        return self._complete(verdict)

    def _cells(self, before: StepPair | None, now: StepPair) -> list[Cell]:
        """Return the tensors of a step, with what rounding and healthy runs explain."""
        cells = []
        for cell in cells_of_step(*now, self.runs.matching.pairs, self.format, self.history):
            of_healthy = self.healthy.get((cell.step, cell.key), 0.0)
            cells.append(replace(cell, allowed=max(cell.allowed, of_healthy)))
        return judge_weights(self.runs, before, now, cells)

    def _explain_by_coarser_format(self, now: StepPair, cells: Sequence[Cell]) -> bool:
        """Choose a coarser format if it explains the first tensor beyond rounding.

        Returns:
            Whether the format was changed, which happens once.
        """
        cell = _first_beyond_rounding(cells)
        if cell is None or self.coarse:
            return False
        format = coarse_format(self.runs, now, cell)
        if format is None:
            return False
        self.format = format
        self.coarse = (
            f"format: from step {cell.step} on {cell.key[1]} differs at random by "
            f"{cell.distance:.2g}, as if operands were rounded to {format.name} or a format like "
            "it"
        )
        return True

    def _start(
        self, before: StepPair | None, now: StepPair, cells: Sequence[Cell]
    ) -> TrainingDiff | None:
        """Return the verdict if a step starts differently, or draws other random numbers."""
        reason = other_start(self.runs, now, is_first=before is None)
        if reason:
            return self._verdict(TrainingVerdictKind.OTHER_START, reason, step=now[0].step)
        random = other_random_numbers(self.runs, now, cells)
        if random is None:
            return None
        key, reason = random
        return self._verdict(TrainingVerdictKind.OTHER_START, reason, step=now[0].step, tensor=key)

    def _first_beyond(self, now: StepPair, cells: Sequence[Cell]) -> TrainingDiff | None:
        """Return the verdict on the first tensor of a step beyond rounding, if there is one."""
        step = now[0].step
        cell = _first_beyond_rounding(cells)
        loss = other_loss(now, cells)
        # Another loss explains every tensor after it.
        if loss and (cell is None or cell.key[0] in AFTER_LOSS):
            line = self.runs.run.lines.get("backward", "")
            return self._verdict(TrainingVerdictKind.FAULT, loss, step=step, line=line)
        if cell is None:
            return None
        reason = beyond_rounding(self.runs, now, cell, cells)
        line = self.runs.line(cell.key)
        return self._verdict(
            TrainingVerdictKind.FAULT, reason, step=step, tensor=cell.key, line=line
        )

    def _of_losses(self) -> TrainingDiff | None:
        """Return the verdict if the losses part, although no tensor shows a fault."""
        if self.band is not None:
            outside = self.band.first_outside(self.runs.run)
            if outside is not None:
                reason = "the losses leave the band of the healthy runs"
                return self._verdict(TrainingVerdictKind.FAULT, reason, step=outside)
        parted = losses_part(self.steps)
        if parted is None:
            return None
        step, reason = parted
        return self._verdict(TrainingVerdictKind.FAULT, reason, step=step)

    def _explained(self) -> TrainingDiff:
        """Return the verdict if all tensors are the same or explained."""
        first = next((cell for cell in self.cells if cell.distance > 0), None)
        losses_differ = any(_losses_differ(ours.loss, theirs.loss) for ours, theirs in self.steps)
        if not self.cells:
            raise ValueError(
                "expected tensors that both runs have recorded, got none with the same name: the "
                f"models are {self.runs.baseline.model} and {self.runs.run.model}. Record two runs "
                "of one model."
            )
        if first is None and not losses_differ:
            have = "has" if len(self.cells) == 1 else "have"
            return self._verdict(
                TrainingVerdictKind.SAME,
                f"{counted(len(self.cells), 'tensor')} in "
                f"{counted(len(self.steps), 'sampled step')} {have} the same bits",
            )
        reason = self.coarse or other_rounding(self.runs, self.steps)
        if first is None:
            return self._verdict(TrainingVerdictKind.ROUNDING, reason)
        return self._verdict(
            TrainingVerdictKind.ROUNDING,
            reason,
            step=first.step,
            tensor=first.key,
            line=self.runs.line(first.key),
        )

    def _verdict(
        self,
        kind: TrainingVerdictKind,
        reason: str,
        *,
        step: int | None = None,
        tensor: Key | None = None,
        line: str = "",
    ) -> TrainingDiff:
        return TrainingDiff(self.runs.baseline, self.runs.run, kind, reason, step, tensor, line)

    def _complete(self, verdict: TrainingDiff) -> TrainingDiff:
        """Return a verdict with all tensors, settings, notes and the band of losses."""
        notes = list(self.runs.matching.notes)
        shapes_differ = [cell for cell in self.cells if math.isnan(cell.distance)]
        if shapes_differ:
            kind, name = shapes_differ[0].key
            notes.append(
                f"not compared, since shapes differ: {kind} of {name}, first in step "
                f"{shapes_differ[0].step}"
            )
        baseline = self.runs.baseline
        if baseline.every != self.runs.run.every or len(self.steps) < len(baseline.sampled):
            sampled = counted(len(self.steps), "step")
            notes.append(f"sampled in both runs: {sampled}")
        judged = 0
        for cell in self.cells:
            # A bound of the tensor's own length or more allows any tensor.
            if not math.isnan(cell.distance) and cell.allowed < 1:
                judged += 1
        return replace(
            verdict,
            cells=tuple(self.cells),
            settings=self.runs.settings,
            notes=tuple(notes),
            band=self.band,
            in_band=None if self.band is None else self.band.contains(self.runs.run),
            judged=judged,
        )


def _first_beyond_rounding(cells: Iterable[Cell]) -> Cell | None:
    return next((cell for cell in cells if cell.beyond), None)


def _losses_differ(one: float | None, other: float | None) -> bool:
    """Return whether two losses are different numbers; both may be NaN."""
    if one is None or other is None or (math.isnan(one) and math.isnan(other)):
        return False
    return one != other


def _first_steps(recording: Recording) -> str:
    """Return the numbers of the first sampled steps, for a message."""
    if not recording.sampled:
        return "none"
    numbers = [str(step.step) for step in recording.sampled[:MOST_STEPS]]
    if len(recording.sampled) > MOST_STEPS:
        return f"{', '.join(numbers)} ..."
    return ", ".join(numbers)


def _healthy_distances(
    baseline: Recording, spread: Iterable[Recording]
) -> dict[tuple[int, Key], float]:
    """Return (step, tensor) -> SPREAD times the largest distance of healthy runs.

    Runs that start differently have other numbers everywhere, so only their losses are used.
    """
    allowed: dict[tuple[int, Key], float] = {}
    for other in spread:
        if compare_trainings(baseline, other).kind is TrainingVerdictKind.OTHER_START:
            continue
        pairs = matched(baseline, other).pairs
        for ours, theirs in common_steps(baseline, other):
            same_scale = ours.scale == theirs.scale
            for key, partner in pairs.items():
                if key not in ours.sketches or partner not in theirs.sketches:
                    continue
                is_scaled = "gradient" in key[0]
                apart = distance(
                    ours.sketches[key],
                    theirs.sketches[partner],
                    same_scale=same_scale or not is_scaled,
                )
                if math.isfinite(apart):
                    place = (ours.step, key)
                    allowed[place] = max(allowed.get(place, 0.0), SPREAD * apart)
    return allowed
