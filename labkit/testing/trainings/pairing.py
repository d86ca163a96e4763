"""Two recordings, their pairs of tensors, and the settings in which they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from labkit.instrument.recording import Key, RecordedStep, Recording, layer_of
from labkit.instrument.sketch import Sketch
from labkit.testing.trainings.matching import Matching, matched

# A step of the baseline, and the same step of the other run.
StepPair: TypeAlias = tuple[RecordedStep, RecordedStep]
# Tensor of the baseline -> its sketches in both runs.
SketchPairs: TypeAlias = dict[Key, tuple[Sketch, Sketch]]


@dataclass(frozen=True, eq=False)
class RunPair:
    """Two recordings side by side.

    Attributes:
        baseline: The recording of the healthy run.
        run: The recording of the other run.
        matching: The pairs of their tensors.
        settings: Setting -> its values in both runs, where they differ.
    """

    baseline: Recording
    run: Recording
    matching: Matching
    settings: Mapping[str, tuple[str, str]]

    def sketches(
        self, now: StepPair, kind: str, without: frozenset[str] = frozenset()
    ) -> SketchPairs:
        """Return the tensors of a kind that both runs have in a step.

        Args:
            now: The step.
            kind: The kind of the tensors, such as "weights".
            without: The names of tensors that are left out.
        """
        ours, theirs = now
        pairs: SketchPairs = {}
        for key, partner in self.matching.pairs.items():
            if key[0] != kind or key[1] in without:
                continue
            if key in ours.sketches and partner in theirs.sketches:
                pairs[key] = (ours.sketches[key], theirs.sketches[partner])
        return pairs

    def sketch_pair(self, now: StepPair, key: Key) -> tuple[Sketch, Sketch]:
        """Return a tensor of a step in both runs."""
        ours, theirs = now
        return _sketch(ours, key), _sketch(theirs, self.matching.pairs[key])

    def line(self, key: Key) -> str:
        """Return the line of the other run that computes a tensor; "" if it was not recorded."""
        kind, name = self.matching.pairs[key]
        lines = self.run.lines
        if kind in ("updates", "weights"):
            return lines.get("step", "")
        layer = layer_of(name) if "activation" in kind else name.rpartition(".")[0]
        line = lines.get(layer, "")
        if kind == "activations":
            return line
        return line or lines.get("backward", "")


def pair_of(baseline: Recording, run: Recording) -> RunPair:
    """Return two recordings with their pairs of tensors and their differing settings."""
    settings = {
        name: (baseline.settings.get(name, "-"), run.settings.get(name, "-"))
        for name in sorted(baseline.settings.keys() | run.settings.keys())
        if baseline.settings.get(name) != run.settings.get(name)
    }
    return RunPair(baseline, run, matched(baseline, run), settings)


def _sketch(step: RecordedStep, key: Key) -> Sketch:
    """Return a tensor of a step; a gradient that was not changed after backward is that of it."""
    if key in step.sketches:
        return step.sketches[key]
    return step.sketches["weight gradients", key[1]]
