"""Results of a watched training: its records, what follows from them, and both as text.

Idea: counts per binade show the effect of another format or scale, and which scales are safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from labkit.findings import CheckReport, Finding, Status, counted
from labkit.formats import FP16, FormatLike
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import (
    KINDS,
    AgainstFP32,
    NonFinite,
    Skip,
    Software,
    WatchedStep,
    Window,
    log2_of_scale,
    trimmed,
    window,
)

# names of layers in a line of text
MOST_NAMES = 4
# share of a layer's gradients that a headline mentions if it would be lost
LOST_TO_MENTION = 0.01


@dataclass(frozen=True, kw_only=True)
class TrainingResults(CheckReport):
    """The records of a watch or a diagnosis, and its findings.

    Attributes:
        findings: the findings.
        model: class of the model; "" if unknown.
        steps: number of steps, skipped ones included.
        watched: the sampled steps.
        skips: the skipped steps.
        non_finite: sources of inf and NaN.
        against_fp32: comparisons of steps with FP32.
        unseen: what could not be observed, and why.
        formats: names of the formats whose losses the report shows.
        partial: why a main check could not run; "" if all checks ran.
        half: False if no operation of a diagnosis ran in 16 bits.
        software: versions and system of the process that watched; None if the report was saved by
            a version of the lab that did not note them.
    """

    findings: tuple[Finding, ...] = ()
    model: str
    steps: int
    watched: tuple[WatchedStep, ...] = ()
    skips: tuple[Skip, ...] = ()
    non_finite: tuple[NonFinite, ...] = ()
    against_fp32: tuple[AgainstFP32, ...] = ()
    unseen: tuple[str, ...] = ()
    formats: tuple[str, ...] = ("FP16", "BF16")
    partial: str = ""
    half: bool = True
    software: Software | None = field(default_factory=Software.here)

    @property
    def exit_status(self) -> int:
        """The exit status of a command.

        It is 1 for a fault, 3 for no fault if a main check could not run, else 0.
        """
        if not self.healthy:
            return 1
        return 3 if self.partial else 0

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        faults = len(list(grouped(self, Status.BAD)))
        warnings = len(list(grouped(self, Status.WARN)))
        also = f", and {counted(warnings, 'warning')}" if warnings else ""
        if faults:
            return f"{counted(faults, 'fault')} to repair{also}."
        if self.partial:
            return f"Nothing wrong in what could be observed{also}. Not observed: {self.partial}."
        if warnings:
            return f"No fault was found{also}."
        return _all_clear(self)

    def histograms(self, kind: str, step: int | None = None) -> dict[str, ExponentHistogram]:
        """Return name -> histogram of one watched step, or of all of them together.

        Args:
            kind: one of "weights", "activations", "activation gradients", "weight gradients" and
                "updates".
            step: number of a watched step; None: all steps.

        Raises:
            ValueError: the kind is unknown, or the step was not watched.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected {', '.join(KINDS)}; got {kind!r}")
        steps = [each for each in self.watched if step in (None, each.step)]
        if step is not None and not steps:
            known = ", ".join(str(each.step) for each in self.watched) or "none"
            raise ValueError(
                f"step {step} was not watched; watched: {known}. watch(model, every=1) watches "
                "each step."
            )
        parts: dict[str, list[ExponentHistogram]] = {}
        for watched in steps:
            for name, histogram in watched.histograms.get(kind, {}).items():
                parts.setdefault(name, []).append(histogram)
        return {name: trimmed(merge(of_name)) for name, of_name in parts.items()}

    def fates(
        self, kind: str, format: FormatLike = FP16, log2_scale: int = 0, step: int | None = None
    ) -> dict[str, Fate]:
        """Return name -> effect of rounding one kind of numbers to a format.

        Args:
            kind: kind of the numbers, as for `histograms`.
            format: the format.
            log2_scale: the numbers are multiplied by 2^log2_scale before they are rounded.
            step: number of a watched step; None: all steps.
        """
        return {
            name: fate(shift(histogram, log2_scale), format)
            for name, histogram in self.histograms(kind, step).items()
        }

    def gradients(self, step: int | None = None) -> dict[str, ExponentHistogram]:
        """Return name -> histogram of all unscaled gradients.

        The FP32 gradients of replayed steps are included. A name is, for instance, "weight
        gradients of fc.bias".
        """
        parts: dict[str, list[ExponentHistogram]] = {}
        sampled_steps: tuple[WatchedStep | AgainstFP32, ...] = (*self.watched, *self.against_fp32)
        for sampled in sampled_steps:
            if step in (None, sampled.step):
                for kind in ("activation gradients", "weight gradients"):
                    for name, histogram in sampled.histograms.get(kind, {}).items():
                        parts.setdefault(f"{kind} of {name}", []).append(histogram)
        merged = {name: merge(histograms) for name, histograms in parts.items()}
        return {name: histogram for name, histogram in merged.items() if histogram.finite_non_zero}

    def safe_scales(self, format: FormatLike = FP16, tolerance: float = 1e-3) -> dict[str, Window]:
        """Return the window of safe scales of each layer's or parameter's gradients.

        Args:
            format: the format that the scaled gradients are rounded to.
            tolerance: share of the gradients that may underflow at the smallest safe scale.

        Raises:
            ValueError: `tolerance` is not from 0 to below 1.
        """
        return {name: window(h, format, tolerance) for name, h in self.gradients().items()}

    def one_scale(self, format: FormatLike = FP16) -> tuple[int, float, float]:
        """Return the largest scale that overflows no gradient, and the shares that underflow.

        Returns:
            The log2 of that scale, the share of all gradients that underflow at this scale, and the
            share that would underflow if each layer had the largest safe scale of its own.

        Raises:
            ValueError: no gradient was observed.
        """
        gradients = self.gradients()
        if not gradients:
            raise ValueError("no non-zero gradient was observed, so nothing limits the scale")
        largest = {name: window(h, format).high for name, h in gradients.items()}
        log2_scale = min(largest.values())
        total = 0
        lost_together = 0.0
        lost_apart = 0.0
        for name, histogram in gradients.items():
            count = histogram.finite_non_zero
            total += count
            lost_together += fate(shift(histogram, log2_scale), format).underflowed * count
            lost_apart += fate(shift(histogram, largest[name]), format).underflowed * count
        return log2_scale, lost_together / total, lost_apart / total


def run_in_words(report: TrainingResults) -> str:
    """Return the model, and how many of its steps ran, were sampled and were skipped."""
    name = f"{report.model}: " if report.model else ""
    steps = counted(report.steps, "step")
    sampled = len(_finished(report))
    words = f"{name}{steps}, {sampled} sampled, {len(report.skips)} skipped"
    if sampled < len(report.watched):
        words += f", {len(report.watched) - sampled} not finished"
    return words


def _finished(report: TrainingResults) -> list[WatchedStep]:
    """Return the sampled steps without one that had begun when the watch ended."""
    return [watched for watched in report.watched if watched.step < report.steps]


def grouped(report: TrainingResults, status: Status) -> Iterator[list[Finding]]:
    """Yield the findings of a status, those of one kind and line together.

    A finding without layer and step is by itself.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in report.of(status):
        # without layer and step, only the sentence tells two findings apart
        has_place = bool(each.layer) or each.step is not None
        sentence = "" if has_place else each.what
        groups.setdefault((each.name, each.line, sentence), []).append(each)
    yield from groups.values()


def step_of(group: list[Finding]) -> str:
    """Return the first step of a group of findings, and how many other steps there are."""
    steps = sorted({each.step for each in group if each.step is not None})
    # a diagnosis counts its steps in the sentence
    if not steps or "step " in group[0].what:
        return ""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"step {steps[0]} and {len(steps) - 1} more"


def in_words(group: list[Finding]) -> str:
    """Return the place of findings of one kind, and the sentence of the first."""
    layers = list(dict.fromkeys(each.layer for each in group if each.layer))
    in_layers = ""
    if layers:
        in_layers = f"in {', '.join(layers[:MOST_NAMES])}"
    if len(layers) > MOST_NAMES:
        in_layers += f" and {len(layers) - MOST_NAMES} more"
    first = group[0]
    place = ", ".join(part for part in (first.line, step_of(group), in_layers) if part)
    return f"{place}: {first.what}" if place else first.what


def _all_clear(report: TrainingResults) -> str:
    """Return the headline of a report without findings.

    For a run without FP16 gradients, it includes what FP16 would lose.
    """
    if not report.steps:
        return "No optimizer of this model stepped, so there is nothing to report."
    gradients = report.gradients()
    if not report.half:
        return (
            "Nothing wrong was found, and no operation ran in 16 bits: this was a training in FP32."
        )
    in_fp16 = any(watched.half for watched in report.watched)
    exponent: float | None = None
    if report.watched:
        exponent = log2_of_scale(report.watched[-1].scale)
    if in_fp16 or not gradients or exponent is None:
        return "Nothing wrong was found."
    log2_scale = round(exponent)
    lost = {name: fate(shift(h, log2_scale), FP16).underflowed for name, h in gradients.items()}
    name, share = max(lost.items(), key=lambda item: item[1])
    if share < LOST_TO_MENTION:
        return "Nothing wrong was found."
    where = name.replace("activation gradients of", "activation gradients of layer")
    low = max(w.low for w in report.safe_scales().values())
    high = report.one_scale()[0]
    if low <= high:
        advice = f"use a scale from 2^{low} to 2^{high}"
    else:
        advice = "no single scale keeps all gradients"
    return (
        f"Nothing wrong was found in this format. In FP16, {share:.0%} of the {where} would be "
        f"lost; {advice}."
    )


def numbers(report: TrainingResults) -> Iterator[str]:
    """Yield the safe scales, the memory and the casts, a sentence each."""
    gradients = report.gradients()
    if gradients:
        low = max(window.low for window in report.safe_scales().values())
        high, together, apart = report.one_scale()
        if low <= high:
            safe = f"from 2^{low} to 2^{high}"
        else:
            safe = f"none: one layer needs 2^{low}, another overflows above 2^{high}"
        yield f"scales at which FP16 keeps all gradients but one in a thousand: {safe}"
        yield (
            f"at 2^{high} FP16 loses {together:.2%} of them; with the largest safe scale for each "
            f"layer {apart:.2%}"
        )
    if report.watched:
        # a step that has only begun has measured no weights
        last = (_finished(report) or report.watched)[-1]
        memory = [f"{name} {_mib(size)}" for name, size in last.memory.items() if size]
        # of a step that was not taken, nothing may be known
        if memory:
            yield f"memory: {', '.join(memory)}"
        for cast, (times, size) in last.casts.items():
            yield f"casts in a step: {times} from {cast}, {_mib(size)} written"


def _mib(size: int) -> str:
    return f"{size / 2**20:.3g} MiB"


def power(scale: float) -> str:
    """Return a scale as text, a power of two as such.

    >>> power(65536), power(3)
    ('2^16', '3')
    """
    significand, exponent = math.frexp(scale)
    # frexp returns a significand from 0.5 to 1
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"
