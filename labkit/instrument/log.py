"""What has a watch seen so far? What it notes step by step, and the report that this makes.

Idea: a watch hears, and its log writes down. What can be asked only by running a step again is asked here, and whatever
becomes of that, the training goes on.

Invariant: a log holds numbers, names and sentences; neither the model nor a tensor of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from labkit.formats import Format
from labkit.instrument.against_fp32 import against_fp32
from labkit.instrument.culprit import culprit
from labkit.instrument.faults import faults
from labkit.instrument.guard import described, reporting
from labkit.instrument.records import AgainstFP32, Finding, NonFinite, Skip, WatchedStep, with_gradient
from labkit.instrument.replay import Call, Unseen
from labkit.instrument.report import Report
from labkit.instrument.sample import Sample, checksum, finite
from labkit.instrument.sources import Gradients

Scale = Callable[[], float]
MOST_REPLAYED = 20  # steps with inf or NaN: a scaler that begins too high skips many, all for the same reason


class Log:
    """What was seen of one model; `step` is the one that is running."""

    def __init__(self, name: str, formats: tuple[Format, ...]) -> None:
        self.name, self.formats = name, formats
        self.step = 0
        self.watched: list[WatchedStep] = []
        self.skips: list[Skip] = []
        self._non_finite: list[NonFinite] = []
        self._fp32: list[AgainstFP32] = []
        self._found: dict[tuple[str, str], Finding] = {}
        self._unseen: dict[str, int] = {}  # what -> since which step
        self.failures: dict[tuple[str, str], str] = {}  # of the watch itself: where, type of error -> what failed first
        self._checksums: dict[str, tuple[int, bool]] = {}  # parameter -> of its first value, whether it moved since
        self._meant: set[str] = set()  # parameters that got a gradient other than zero

    def report(self, steps: int, running: WatchedStep | None) -> Report:
        """Return a report of so many steps, and of one that is running and sampled."""
        report = Report(
            model=self.name,
            steps=steps,
            watched=(*self.watched, *([] if running is None else [running])),
            skips=tuple(self.skips),
            non_finite=tuple(self._non_finite),
            against_fp32=tuple(self._fp32),
            formats=tuple(format.name for format in self.formats),
        )
        found = list(self._found.values())
        with reporting(self.failed, "faults"):
            found += faults(report, self._still())
        unseen = tuple(f"{what} (first in step {step})" for what, step in self._unseen.items())
        return replace(report, findings=tuple(sorted(found, key=lambda finding: finding.step)), unseen=unseen)

    def _still(self) -> list[str]:
        return [n for n, (_, moved) in self._checksums.items() if n in self._meant and not moved]

    def find(self, finding: Finding) -> None:
        """Note what is wrong, the first time it is."""
        self._found.setdefault((finding.what, finding.layer), finding)

    def cannot_see(self, what: str) -> None:
        """Note what is not seen, and since when."""
        self._unseen.setdefault(what, self.step)

    def failed(self, where: str, error: Exception) -> None:
        """Note what failed in the watch itself, once for each place; or what it says that it cannot see."""
        if isinstance(error, Unseen):
            self.cannot_see(str(error))
        elif (where, type(error).__name__) not in self.failures:
            self.failures[where, type(error).__name__] = what = described(where, error)
            self.cannot_see(what)

    def note_sums(self, weights: dict[str, Tensor]) -> None:
        """Note a sum over each weight's bits: one that is the same in all sampled steps never moved."""
        for name, weight in weights.items():
            total = checksum(weight)
            first, moved = self._checksums.get(name, (total, False))
            self._checksums[name] = (first, moved or total != first)

    def note_moves(self, sample: Sample) -> None:
        """Note which parameters a step was meant to move, and which it moved."""
        self._meant |= {name for name in with_gradient(sample.counts) if sample.moves.get(name, (0, 0))[0]}
        for name in sample.moves:
            first, moved = self._checksums[name]
            self._checksums[name] = (first, moved or sample.counts["updates"][name].finite_non_zero > 0)

    def compare_with_fp32(
        self,
        model: nn.Module,
        calls: list[Call],
        scale: Scale,
        observed: dict[tuple[str, int], Tensor],
        gradients: Gradients,
        loss: Callable[[Any], Tensor] | None,
    ) -> None:
        """Run a step again in FP32, and note what both gave."""
        with self._running_again("what FP32 would do"):
            self._fp32.append(against_fp32(model, calls, scale(), self.step, observed, gradients, loss))

    def name_culprit(self, model: nn.Module, calls: list[Call], scale: Scale, gradients: Gradients) -> None:
        """Run a step again as it was, and note where its inf or NaN came from."""
        if len(self._non_finite) >= MOST_REPLAYED:
            return
        with self._running_again("where inf or NaN came from"):
            found = culprit(model, calls, scale(), self.step)
            if found is None:
                bad = next((n for n, g in gradients.items() if g is not None and not finite(g)), "")
                self.cannot_see(f"where inf or NaN came from in {bad}: it did not come again")
            else:
                self._non_finite.append(found)

    @contextmanager
    def _running_again(self, what: str) -> Iterator[None]:
        """Say why a step cannot be run again, whatever the reason: the training goes on."""
        try:
            yield
        except Unseen as reason:
            self.cannot_see(f"{what}: {reason}")
        except Exception as error:
            self.cannot_see(f"{what}: running it again ended with {type(error).__name__}: {error}")
