"""Verdict on two recorded trainings, and the first step and tensor that decides it.

The steps are examined in order, and the tensors of a step in the order in which it makes them. What
decides comes first: another batch or other first weights, before anyone looks at numerics; then the
first tensor that rounding does not explain. Where weights are as far apart as a step has moved
them, no bound says anything, and the losses decide.

Invariant: a verdict names what it rests on, and how many tensors were judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np

from labkit.formats import BF16, FP32, TF32
from labkit.instrument.recording import Key, RecordedStep, Recording, layer_of
from labkit.instrument.sketch import Sketch
from labkit.testing.bound import unit_roundoff
from labkit.testing.trainings.distance import (
    FORMATS_OF,
    Cell,
    History,
    cells_of_step,
    coarser,
    distance,
    format_of_settings,
    least_gradient,
    same_bits,
    weights_distance,
)
from labkit.testing.trainings.losses import loss_band, losses_part
from labkit.testing.trainings.matching import Matching, common_steps, matched
from labkit.testing.trainings.result import TrainingDiff, TrainingVerdictKind

AnyRecording: TypeAlias = "Recording | Path | str"

# The allowance, in units of the largest distance of healthy runs.
SPREAD = 3.0
# The share of a step's move of the weights that rounding reaches in one step.
OF_MOVE = 1e-3
# A parameter whose gradient is below this share of the largest moves by rounding errors.
NOISE = 2.0**-16
# The growth of that share from one sampled step to the next.
GROWTH = 50.0
# The relative size of an error that rounding to a coarse format may have.
COARSE = 2.0**-6
# A difference is systematic if its correlation with its tensor, or with a constant, is larger.
SYSTEMATIC = 0.5
# The smallest number of elements that show whether a difference is random.
FEWEST = 24


class TrainingsDiffer(AssertionError):
    """A run is not the training that it is compared with; its text is the comparison."""


def as_recording(recording: AnyRecording) -> Recording:
    """Return a recording, read from a file if it is a path."""
    return recording if isinstance(recording, Recording) else Recording.load(recording)


def assert_same_training(
    run: AnyRecording, baseline: AnyRecording, *, spread: Iterable[AnyRecording] = ()
) -> TrainingDiff:
    """Assert that a run is its baseline, up to rounding; return the comparison.

    With `spread`, further healthy runs, a run from another seed passes if its losses are within the
    band of the healthy ones.

    Raises:
        TrainingsDiffer: it has a fault, or another start and no band that holds its losses.
        NotARecording: a file is no recording.
    """
    found = compare_trainings(baseline, run, spread=spread)
    if not found.same_training:
        raise TrainingsDiffer(str(found))
    return found


def compare_trainings(
    baseline: AnyRecording, run: AnyRecording, *, spread: Iterable[AnyRecording] = ()
) -> TrainingDiff:
    """Compare two recorded trainings.

    Args:
        baseline: a healthy run, or its file.
        run: the other one.
        spread: further healthy runs. What they differ by from the baseline is no fault; their
            losses are a band.

    Raises:
        NotARecording: a file is no recording.
        ValueError: no step was sampled in both.
    """
    return _Comparison(
        as_recording(baseline), as_recording(run), [as_recording(each) for each in spread]
    ).result()


class _Comparison:
    """The comparison while it is made."""

    def __init__(self, baseline: Recording, run: Recording, spread: Sequence[Recording]) -> None:
        self.baseline = baseline
        self.run = run
        self.steps = list(common_steps(baseline, run))
        if not self.steps:
            raise ValueError(
                f"expected steps that both runs have sampled, got steps {_numbers(baseline)} and "
                f"{_numbers(run)}. Record both with the same --every."
            )
        self.matching: Matching = matched(baseline, run)
        self.settings = {
            name: (baseline.settings.get(name, "-"), run.settings.get(name, "-"))
            for name in sorted(baseline.settings.keys() | run.settings.keys())
            if baseline.settings.get(name) != run.settings.get(name)
        }
        self.format = coarser(
            format_of_settings(baseline.settings), format_of_settings(run.settings)
        )
        self.band = loss_band([baseline, *spread]) if spread else None
        self.healthy = _healthy_distances(baseline, spread)
        self.cells: list[Cell] = []
        self.notes = self.matching.notes
        # Why a coarser format than FP32 explains the differences from here on.
        self.coarse = ""

    def result(self) -> TrainingDiff:
        """Return the comparison: the first step that decides, or what all steps show."""
        history = History()
        decided: TrainingDiff | None = None
        before: tuple[RecordedStep, RecordedStep] | None = None
        for now in self.steps:
            found = self._cells(before, now, history)
            if decided is None and self._is_coarse(now, found):
                # once more, with what the coarser format explains
                found = self._cells(before, now, history)
            if decided is None:
                decided = self._start(before, *now, found) or self._first_beyond(*now, found)
            self.cells += found
            before = now
        if decided is None:
            decided = self._of_losses() or self._explained()
        return self._complete(decided)

    def _cells(
        self,
        before: tuple[RecordedStep, RecordedStep] | None,
        now: tuple[RecordedStep, RecordedStep],
        history: History,
    ) -> list[Cell]:
        found = cells_of_step(*now, self.matching.pairs, self.format, history)
        return self._judge_weights(before, now, self._with_spread(found))

    def _verdict(self, kind: TrainingVerdictKind, reason: str) -> TrainingDiff:
        return TrainingDiff(self.baseline, self.run, kind, reason)

    def _complete(self, found: TrainingDiff) -> TrainingDiff:
        comparable = [c for c in self.cells if not math.isnan(c.distance)]
        judged = sum(math.isfinite(c.allowed) and c.allowed < 1 for c in comparable)
        odd = [c for c in self.cells if math.isnan(c.distance)]
        notes = list(self.notes)
        if odd:
            kind, name = odd[0].key
            notes.append(
                f"not compared, since shapes differ: {kind} of {name}, first in step {odd[0].step}"
            )
        if self.baseline.every != self.run.every or len(self.steps) < len(self.baseline.sampled):
            notes.append(f"{len(self.steps)} steps were sampled in both runs")
        in_band = None if self.band is None else self.band.contains(self.run)
        return replace(
            found,
            cells=tuple(self.cells),
            settings=self.settings,
            notes=tuple(notes),
            band=self.band,
            in_band=in_band,
            judged=judged,
        )

    def _with_spread(self, cells: list[Cell]) -> list[Cell]:
        """Allow what healthy runs differ by."""
        return [
            Cell(c.step, c.key, c.distance, max(c.allowed, self.healthy.get((c.step, c.key), 0.0)))
            for c in cells
        ]

    # Another start

    def _start(
        self,
        before: tuple[RecordedStep, RecordedStep] | None,
        ours: RecordedStep,
        theirs: RecordedStep,
        cells: list[Cell],
    ) -> TrainingDiff | None:
        """Return the verdict where a step begins with another batch or other first weights."""
        what = []
        if before is None and (apart := self._initialisation(ours, theirs)):
            what.append(apart)
        if apart := self._batch(ours, theirs):
            what.append(apart)
        if not what:
            return self._random_numbers(ours, theirs, cells)
        if "seed" in self.settings:
            one, other = self.settings["seed"]
            what.append(f"the seeds are {one} and {other}")
        found = self._verdict(TrainingVerdictKind.OTHER_START, "; ".join(what))
        return _at(found, ours.step)

    def _initialisation(self, ours: RecordedStep, theirs: RecordedStep) -> str:
        pairs = self._sketches(ours, theirs, "weights")
        apart = weights_distance(pairs, pairs)
        coarsest = FP32
        for here, there in pairs.values():
            for each in (here, there):
                coarsest = coarser(coarsest, FORMATS_OF.get(each.dtype, FP32))
        if apart <= 4 * unit_roundoff(coarsest):
            return ""
        worst = max(pairs, key=lambda key: distance(*pairs[key]))
        return (
            f"another initialisation: in step {ours.step} the weights differ by {apart:.2g} of "
            f"their length, most in {worst[1]}"
        )

    def _batch(self, ours: RecordedStep, theirs: RecordedStep) -> str:
        if not ours.batch or not theirs.batch or ours.batch == theirs.batch:
            return ""
        inputs = self._sketches(ours, theirs, "inputs")
        if inputs and all(_same_up_to_format(*pair) for pair in inputs.values()):
            return ""
        totals = [sum(digest for _, digest in step.batch) & 0xFFFFFFFF for step in (ours, theirs)]
        if totals[0] == totals[1]:
            return (
                f"another order in the batch: in step {ours.step} the same numbers come in "
                "another order"
            )
        elsewhere = [s.step for s in self.run.sampled if s.batch == ours.batch]
        if elsewhere:
            return (
                f"another order of batches: the baseline's batch of step {ours.step} is that of "
                f"step {elsewhere[0]} in the other run"
            )
        if len(ours.batch) != len(theirs.batch):
            return (
                f"other batches: in step {ours.step} the model was called {len(ours.batch)} "
                f"times, and {len(theirs.batch)} times in the other run"
            )
        return f"another batch in step {ours.step}"

    def _random_numbers(
        self, ours: RecordedStep, theirs: RecordedStep, cells: list[Cell]
    ) -> TrainingDiff | None:
        """Return the verdict where dropout drew other numbers."""
        if ours.random == theirs.random or not (ours.random and theirs.random):
            return None
        beyond = next((c for c in cells if c.beyond), None)
        if beyond is None or beyond.key[0] != "activations":
            return None
        here = ours.sketches[beyond.key]
        there = theirs.sketches[self.matching.pairs[beyond.key]]
        drops = "Dropout" in self.baseline.layers.get(layer_of(beyond.key[1]), "")
        zeros = len(here.elements) == len(there.elements) and bool(
            np.any((here.elements == 0) != (there.elements == 0))
        )
        if not (drops or zeros):
            return None
        reason = (
            f"another seed: in step {ours.step} weights and batch are the same, and the random "
            f"numbers are not; {beyond.key[1]} keeps other elements"
        )
        return _at(self._verdict(TrainingVerdictKind.OTHER_START, reason), ours.step, beyond.key)

    @staticmethod
    def _sketch(step: RecordedStep, key: Key) -> Sketch:
        """Return a tensor of a step; a gradient that nothing changed is that of backward."""
        if key in step.sketches:
            return step.sketches[key]
        return step.sketches["weight gradients", key[1]]

    def _sketches(
        self,
        ours: RecordedStep,
        theirs: RecordedStep,
        kind: str,
        without: frozenset[str] = frozenset(),
    ) -> dict[Key, tuple[Sketch, Sketch]]:
        return {
            key: (ours.sketches[key], theirs.sketches[partner])
            for key, partner in self.matching.pairs.items()
            if key[0] == kind
            and key[1] not in without
            and key in ours.sketches
            and partner in theirs.sketches
        }

    def _noise(self, ours: RecordedStep, theirs: RecordedStep) -> frozenset[str]:
        """Return the parameters whose gradients are rounding errors, as before a batch norm."""
        gradients = self._sketches(ours, theirs, "weight gradients")
        least = least_gradient(here for here, _ in gradients.values())
        return frozenset(name for (_, name), (here, _) in gradients.items() if here.largest < least)

    # The first tensor that rounding does not explain

    def _judge_weights(
        self,
        before: tuple[RecordedStep, RecordedStep] | None,
        now: tuple[RecordedStep, RecordedStep],
        cells: list[Cell],
    ) -> list[Cell]:
        """Put a bound on the weights of a step, from the last one and what steps move them by."""
        if before is None:
            return cells
        share = self._share_of_move(*before)
        noise = self._noise(*before)
        weights = self._sketches(*now, "weights", without=noise)
        steps = now[0].step - before[0].step
        moves = self._sketches(*before, "updates", without=noise)
        drift = 2.0 if share is None else GROWTH * share + OF_MOVE * min(steps, 50)
        moved = _length(moves) * steps
        apart = _length_of_difference(weights)
        judged = moved > 0 and drift < 1 and share is not None
        far = apart > drift * moved + 8 * unit_roundoff(FP32) * _length(weights)
        if not (judged and far):
            return cells
        # the tensor with the largest difference stands for all
        worst = max(weights, key=lambda key: _difference(*weights[key]))
        allowed = drift * moved / max(_length({worst: weights[worst]}), 1e-300)
        return [
            Cell(c.step, c.key, c.distance, min(allowed, c.distance / 1.001))
            if c.key == worst
            else c
            for c in cells
        ]

    def _share_of_move(self, ours: RecordedStep, theirs: RecordedStep) -> float | None:
        """Return how far the weights will be apart after a step, in units of its length."""
        noise = self._noise(ours, theirs)
        moves = self._sketches(ours, theirs, "updates", without=noise)
        length = _length(moves)
        if not length:
            return None
        weights = self._sketches(ours, theirs, "weights", without=noise)
        apart = _length_of_difference(weights)
        return (apart + _length_of_difference(moves)) / length

    def _first_beyond(
        self, ours: RecordedStep, theirs: RecordedStep, cells: list[Cell]
    ) -> TrainingDiff | None:
        """Return the verdict on the first tensor beyond rounding, if there is one."""
        loss = self._loss_alone(ours, theirs, cells)
        beyond = next((c for c in cells if c.beyond), None)
        backward = ("activation gradients", "weight gradients", "step gradients", "updates")
        if loss and (beyond is None or beyond.key[0] in backward):
            found = self._verdict(TrainingVerdictKind.FAULT, loss)
            line = self.run.lines.get("backward", "")
            return _at(found, ours.step, None, line)
        if beyond is None:
            return None
        here = self._sketch(ours, beyond.key)
        there = self._sketch(theirs, self.matching.pairs[beyond.key])
        kind, name = beyond.key
        line = self._line(beyond.key)
        reason = self._describe(beyond, here, there, cells)
        return _at(self._verdict(TrainingVerdictKind.FAULT, reason), ours.step, (kind, name), line)

    def _loss_alone(self, ours: RecordedStep, theirs: RecordedStep, cells: list[Cell]) -> str:
        """Return a sentence if backward passes are missing, or only the loss is another one."""
        if ours.backward != theirs.backward:
            return (
                f"the step has {theirs.backward} backward passes instead of {ours.backward}: "
                "look at the accumulation of gradients"
            )
        outputs = [c for c in cells if c.key[0] == "activations"]
        if not outputs or any(c.distance for c in outputs):
            return ""
        if ours.loss is None or theirs.loss is None:
            return ""
        size = max(abs(ours.loss), abs(theirs.loss), 1e-2)
        if not abs(ours.loss - theirs.loss) > 1e-4 * size:
            return ""
        return (
            f"all layers return the same, and the loss is {theirs.loss:.6g} instead of "
            f"{ours.loss:.6g}: other targets, or another loss"
        )

    def _is_coarse(self, now: tuple[RecordedStep, RecordedStep], cells: list[Cell]) -> bool:
        """Return whether the first tensor beyond FP32 is what a coarser format makes of it.

        Then that format explains the differences from here on. Its errors are random: a difference
        that goes with the tensor itself, or has one sign, is none.
        """
        cell = next((c for c in cells if c.beyond), None)
        if cell is None or cell.key[0] not in ("activations", "activation gradients"):
            return False
        if not self._multiplies(layer_of(cell.key[1]), now[0]):
            return False
        here = now[0].sketches[cell.key]
        there = now[1].sketches[self.matching.pairs[cell.key]]
        if self.coarse or cell.distance > COARSE or len(here.elements) != len(there.elements):
            return False
        ours = here.elements.astype(np.float64)
        theirs = there.elements.astype(np.float64)
        apart = theirs - ours
        if np.count_nonzero(apart) < FEWEST:
            return False
        size = float(np.linalg.norm(apart))
        with_tensor = abs(float(apart @ ours)) / (size * float(np.linalg.norm(ours)))
        with_constant = abs(float(apart.sum())) / (size * math.sqrt(len(apart)))
        if max(with_tensor, with_constant) > SYSTEMATIC:
            return False
        self.format = TF32 if cell.distance < 2 * unit_roundoff(TF32) else BF16
        self.coarse = (
            f"format: from step {cell.step} on {cell.key[1]} differs at random by "
            f"{cell.distance:.2g}, as if operands were rounded to {self.format.name} or a format "
            "like it"
        )
        return True

    def _multiplies(self, layer: str, step: RecordedStep) -> bool:
        """Return whether a layer multiplies matrices: others have no operands to round."""
        if "Embedding" in self.baseline.layers.get(layer, ""):
            return False
        return any(
            kind == "weights" and name.rpartition(".")[0] == layer and len(sketch.shape) > 1
            for (kind, name), sketch in step.sketches.items()
        )

    def _line(self, key: Key) -> str:
        """Return the line of the operation that made a tensor, in the other run."""
        kind, name = self.matching.pairs[key]
        if kind in ("updates", "weights"):
            return self.run.lines.get("step", "")
        layer = layer_of(name) if "activation" in kind else name.rpartition(".")[0]
        of_layer = self.run.lines.get(layer, "")
        if kind == "activations":
            return of_layer
        return of_layer or self.run.lines.get("backward", "")

    def _describe(self, cell: Cell, here: Sketch, there: Sketch, cells: list[Cell]) -> str:
        kind, name = cell.key
        if here.finite != there.finite:
            which = "the other run" if here.finite else "the baseline"
            return f"{kind} of {name} hold inf or NaN in {which} only"
        apart = f"{kind} of {name} differ by {cell.distance:.2g} of their length, "
        apart += f"and rounding explains {cell.allowed:.2g}"
        return f"{apart}; {self._clue(cell, here, there, cells)}"

    def _clue(self, cell: Cell, here: Sketch, there: Sketch, cells: list[Cell]) -> str:
        kind = cell.key[0]
        if kind == "weights":
            return "the weights change between two sampled steps in another way"
        if kind == "updates":
            of_optimizer = [n for n in self.settings if n.split()[0] in _optimizers(self.run)]
            named = ", ".join(f"{n}: {' and '.join(self.settings[n])}" for n in of_optimizer)
            return (
                f"its gradient agrees, the optimizer's step does not ({named or 'same settings'})"
            )
        if not any(c.key[0] == "activations" for c in cells):
            return "no layer was observed in both runs: it may be the forward or the backward pass"
        if kind in ("weight gradients", "step gradients"):
            return (
                "the gradients of the layers agree: look at what sums and changes gradients after "
                "backward (all-reduce, accumulation, hooks, unscaling)"
            )
        factor = _factor(here, there)
        if factor:
            return f"its numbers are those of the baseline times {factor:.4g}"
        if kind == "activations":
            return "what the layer is computed from agrees"
        return "the forward pass agrees, and so do the gradients before it"

    # No tensor is beyond it

    def _of_losses(self) -> TrainingDiff | None:
        """Return the verdict if losses part far more than those of one training."""
        if self.band is not None:
            outside = self.band.first_outside(self.run)
            if outside is not None:
                reason = "the losses leave the band of the healthy runs"
                return _at(self._verdict(TrainingVerdictKind.FAULT, reason), outside)
        parted = losses_part(self.steps)
        if parted is None:
            return None
        step, reason = parted
        return _at(self._verdict(TrainingVerdictKind.FAULT, reason), step)

    def _explained(self) -> TrainingDiff:
        """Return the verdict where every tensor is the same or explained."""
        first = next((c for c in self.cells if c.distance > 0), None)
        losses_differ = any(ours.loss != theirs.loss for ours, theirs in self.steps)
        if first is None and not losses_differ:
            return self._verdict(
                TrainingVerdictKind.SAME,
                f"{len(self.cells)} tensors in {len(self.steps)} sampled steps have the same bits",
            )
        reason = self._reason_of_rounding()
        if first is None:
            return self._verdict(TrainingVerdictKind.ROUNDING, reason)
        return _at(
            self._verdict(TrainingVerdictKind.ROUNDING, reason),
            first.step,
            first.key,
            self._line(first.key),
        )

    def _reason_of_rounding(self) -> str:
        """Return why two healthy runs round differently."""
        if self.coarse:
            return self.coarse
        for ours, theirs in self.steps:
            for key, partner in self.matching.pairs.items():
                here = ours.sketches.get(key)
                there = theirs.sketches.get(partner)
                if here is not None and there is not None and here.dtype != there.dtype:
                    return (
                        f"format: {key[0]} of {key[1]} are {there.dtype} instead of {here.dtype}, "
                        f"from step {ours.step} on"
                    )
        formats = [name for name in self.settings if name.startswith("FP32 ")]
        if formats:
            one, other = self.settings[formats[0]]
            return f"format: {formats[0]} is {other} instead of {one}"
        for name in ("device", "torch", "threads", "ranks"):
            if name in self.settings:
                one, other = self.settings[name]
                return f"the order of sums, which may change with {name}: {other} instead of {one}"
        return "the order of sums: formats and settings are the same"


def _at(found: TrainingDiff, step: int, tensor: Key | None = None, line: str = "") -> TrainingDiff:
    return replace(found, step=step, tensor=tensor, line=line)


def _numbers(recording: Recording) -> str:
    numbers = [str(step.step) for step in recording.sampled[:4]]
    return ", ".join(numbers) + (" ..." if len(recording.sampled) > 4 else "")


def _optimizers(run: Recording) -> set[str]:
    return {name.split()[0] for name in run.settings if name.endswith(" lr")}


def _same_up_to_format(here: Sketch, there: Sketch) -> bool:
    if here.dtype == there.dtype:
        return same_bits(here, there)
    coarse = coarser(FORMATS_OF.get(here.dtype, FP32), FORMATS_OF.get(there.dtype, FP32))
    return distance(here, there) <= 2 * unit_roundoff(coarse)


def _difference(here: Sketch, there: Sketch) -> float:
    each = distance(here, there)
    return each * max(here.norm, there.norm) if math.isfinite(each) else 0.0


def _length(pairs: Mapping[Key, tuple[Sketch, Sketch]]) -> float:
    return math.hypot(*(here.norm for here, _ in pairs.values() if here.finite))


def _length_of_difference(pairs: Mapping[Key, tuple[Sketch, Sketch]]) -> float:
    return math.hypot(*(_difference(*pair) for pair in pairs.values()))


def _factor(here: Sketch, there: Sketch) -> float:
    """Return c if the other tensor is c times the baseline's, to a hundredth of c - 1; else 0."""
    if len(here.elements) != len(there.elements) or not here.norm:
        return 0.0
    ours = here.elements.astype(np.float64)
    theirs = there.elements.astype(np.float64)
    square = float(ours @ ours)
    if not square:
        return 0.0
    factor = float(ours @ theirs) / square
    rest = float(np.linalg.norm(theirs - factor * ours))
    return factor if rest < 0.01 * float(np.linalg.norm(theirs - ours)) else 0.0


def _healthy_distances(
    baseline: Recording, spread: Iterable[Recording]
) -> dict[tuple[int, Key], float]:
    """Return for each step and tensor what healthy runs differ by, times 3.

    Runs from another start have other tensors altogether: they only count for the band of losses.
    """
    found: dict[tuple[int, Key], float] = {}
    for other in spread:
        if compare_trainings(baseline, other).kind is TrainingVerdictKind.OTHER_START:
            continue
        pairs = matched(baseline, other).pairs
        for ours, theirs in common_steps(baseline, other):
            same_scale = ours.scale == theirs.scale
            for key, partner in pairs.items():
                if key in ours.sketches and partner in theirs.sketches:
                    apart = distance(
                        ours.sketches[key],
                        theirs.sketches[partner],
                        same_scale=same_scale or "gradient" not in key[0],
                    )
                    if math.isfinite(apart):
                        at = ours.step, key
                        found[at] = max(found.get(at, 0.0), SPREAD * apart)
    return found
