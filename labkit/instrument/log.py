"""Log of a watch: what it notes step by step, and what of that is wrong.

Idea: a fault is read off counts that exist anyway: an update that changed nothing, an optimizer state that multiplied
by its decay is the same number, an epsilon that is zero in the format it is added in. What needs a step to be run again
is run here, and whatever becomes of that, the training goes on.

Invariants: a log holds numbers, names and sentences; neither the model nor a tensor of it. A fault names a layer or
parameter, and the first step it was seen at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from labkit.formats import FP16, Format
from labkit.instrument.fate import fate
from labkit.instrument.guard import Unseen, described, reporting
from labkit.instrument.histogram import merge, shift
from labkit.instrument.records import AgainstFP32, Finding, NonFinite, Skip, WatchedStep, window, with_gradient
from labkit.instrument.replay import Call, against_fp32, culprit
from labkit.instrument.report import Report
from labkit.instrument.sample import Sample, checksum, dtype_name, finite, own_part
from labkit.instrument.stream import Gradients

Scale = Callable[[], float]
MOST = 0.5  # a share from which on a loss is a fault
DECAYS = {  # optimizer state -> how its group says what it is multiplied by in each step
    "exp_avg": lambda group: group["betas"][0],
    "exp_avg_sq": lambda group: group["betas"][1],
    "square_avg": lambda group: group["alpha"],
    "momentum_buffer": lambda group: group["momentum"],
}
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
            still = [n for n, (_, moved) in self._checksums.items() if n in self._meant and not moved]
            found += faults(report, still)
        unseen = tuple(f"{what} (first in step {step})" for what, step in self._unseen.items())
        return replace(report, findings=tuple(sorted(found, key=lambda finding: finding.step)), unseen=unseen)

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


@torch.no_grad()
def state_faults(optimizer: Any, weights: Mapping[str, Tensor], step: int) -> Iterator[Finding]:
    """Yield what is wrong with an optimizer's state after a step: with what decays, and with what is added."""
    names = {id(weight): name for name, weight in weights.items()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight))
            if name is None:
                continue
            yield from _decay_of_weight(group, weight, name, step)
            state = optimizer.state.get(weight, {})
            for key in DECAYS.keys() & state.keys():
                if isinstance(state[key], Tensor):
                    yield from _decay_of_state(DECAYS[key](group), key, state[key], name, step)
            kept = next((s for s in state.values() if isinstance(s, Tensor) and s.dim()), weight)
            if group.get("eps") and not torch.tensor(group["eps"], dtype=kept.dtype):
                says = f"{group['eps']:g} is zero in {dtype_name(kept)}, and no longer keeps from a division by zero"
                yield Finding("epsilon is zero", name, step, says)


def _decay_of_weight(group: Any, weight: Tensor, name: str, step: int) -> Iterator[Finding]:
    decoupled = group.get("decoupled_weight_decay", "betas" not in group and "momentum" in group)
    rate = float(group.get("lr") or 0) * float(group.get("weight_decay") or 0)
    if decoupled and rate and (share := _unmoved(weight, 1 - rate)) > MOST:
        says = f"{rate:.2g} of a weight is less than half an ulp of {dtype_name(weight)} for {share:.0%} of them"
        yield Finding("weight decay lost", name, step, says)


def _decay_of_state(decay: Any, key: str, state: Tensor, name: str, step: int) -> Iterator[Finding]:
    if 0 < float(decay) < 1 and (share := _unmoved(state, float(decay))) > MOST:
        says = f"{key} in {dtype_name(state)} times {float(decay):g} is the same number for {share:.0%} of it"
        yield Finding("optimizer state cannot decay", name, step, says)


def _unmoved(tensor: Tensor, factor: float) -> float:
    """Return the share of the elements other than zero that are the same number after a multiplication."""
    if abs(1 - factor) > torch.finfo(tensor.dtype).eps:  # more than an ulp
        return 0.0
    tensor = own_part(tensor)
    there = tensor != 0
    alive = int(there.sum())
    return int((there & (tensor * factor == tensor)).sum()) / alive if alive else 0.0


def faults(report: Report, never_moved: Iterable[str]) -> Iterator[Finding]:
    """Yield what is wrong by what was counted, each with the step at which it was first seen."""
    first_step = min((w.step for w in report.watched), default=0)
    found: dict[tuple[str, str], Finding] = {}
    for bad in report.non_finite:
        what = "scale too high" if bad.by_scale else f"first {bad.value}"
        found.setdefault((what, bad.layer), Finding(what, bad.layer, bad.step, str(bad)))
    for watched in report.watched:
        driven = with_gradient(watched.histograms)
        for name, (meant, still) in watched.moves.items():
            if meant and still / meant > MOST and name in driven:
                says = f"{still / meant:.0%} of its weights have a gradient and are the same number after the step"
                found.setdefault(("updates swallowed", name), Finding("updates swallowed", name, watched.step, says))
    yield from found.values()
    for name in never_moved:
        says = "it has gradients, and is the same in all sampled steps"
        yield Finding("never moved", name, first_step, says)
    lost = list(_underflow(report))
    yield from lost or _scale_too_low(report)  # one fault: what is zero is told by name


def _scale_too_low(report: Report) -> Iterator[Finding]:
    """Yield the first step whose scale is below the window of its FP16 gradients, or leaves most of them subnormal."""
    for watched in report.watched:
        gradients = report.gradients()
        mine = [h for n in watched.half if (h := gradients.get(f"activation gradients of {n}")) is not None]
        if not mine or watched.scale <= 0:
            continue
        low, used = max(window(h, FP16).low for h in mine), math.floor(math.log2(watched.scale))
        fates = fate(shift(merge(mine), used), FP16)
        lost = fates.underflowed + fates.subnormal
        if used < low or lost > MOST:
            says = (
                f"{lost:.0%} of the gradients of {len(mine)} layers are zero or subnormal in FP16 at a scale of "
                f"2^{used}, and only scales from 2^{max(low, used + 1)} on keep them"
            )
            yield Finding("scale too low", "", watched.step, says)
            return


def _underflow(report: Report) -> Iterator[Finding]:
    seen: set[str] = set()
    for beside in report.against_fp32:
        if not beside.arrived[0] and beside.arrived[1] and "" not in seen:
            seen.add("")
            yield Finding("underflow", "", beside.step, "all that arrives at the model's outputs is zero: lost before")
        for kind, layers in beside.lost.items():
            bad = {n: lost / alive for n, (lost, alive) in layers.items() if alive and lost / alive > MOST}
            if len(bad) > 1 and len(bad) == sum(alive > 0 for _, alive in layers.values()):
                bad = {"": min(bad.values())}
            for name, share in bad.items():
                if (key := f"{kind} {name}") not in seen:
                    seen.add(key)
                    where = "" if name else "in every layer at least "
                    says = f"{where}{share:.0%} of its {kind} are not zero in FP32 and zero here"
                    yield Finding("underflow", name, beside.step, says)
