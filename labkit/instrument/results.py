"""Results of a watched training: its records, what follows from them, and both as text.

Idea: counts per binade show the effect of another format or scale, and which scales are safe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from labkit.findings import CheckReport, Finding, Status
from labkit.formats import FP16, Format
from labkit.instrument.fate import Fate, fate
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import (
    KINDS,
    AgainstFP32,
    NonFinite,
    Skip,
    WatchedStep,
    Window,
    trimmed,
    window,
)

MOST_NAMES = 4  # in a line of text
LOST_TO_MENTION = 0.01  # share of a layer's gradients


@dataclass(frozen=True, kw_only=True)
class TrainingResults(CheckReport):
    """The records of a watch or a diagnosis, and its findings.

    Attributes:
        steps: number of steps, skipped ones included.
        watched: the sampled ones.
        unseen: what could not be observed, and why.
        partial: why a main check could not look; "" if all did.
        half: if False, no operation of a diagnosis ran in 16 bits.
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

    @property
    def exit_status(self) -> int:
        """The exit status of a command.

        It is 1 for a fault, 3 if there is none but a main check could not look, else 0.
        """
        if not self.healthy:
            return 1
        return 3 if self.partial else 0

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        bad, warned = (list(grouped(self, status)) for status in (Status.BAD, Status.WARN))
        also = f", and {_number(len(warned), 'warning')}" if warned else ""
        if bad:
            return f"{_number(len(bad), 'fault')} to repair{also}."
        if self.partial:
            return f"Nothing wrong in what could be observed{also}. Not observed: {self.partial}."
        return f"No fault was found{also}." if warned else _all_clear(self)

    def histograms(self, kind: str, step: int | None = None) -> dict[str, ExponentHistogram]:
        """Return name -> histogram of one watched step, or of all together.

        Raises:
            ValueError: the kind is unknown, or the step was not watched.
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected {', '.join(KINDS)}; got {kind!r}")
        chosen = [w for w in self.watched if step in (None, w.step)]
        if step is not None and not chosen:
            seen = ", ".join(str(w.step) for w in self.watched) or "none"
            raise ValueError(
                f"step {step} was not watched; watched: {seen}. watch(model, every=1) watches each "
                "step."
            )
        names = dict.fromkeys(name for w in chosen for name in w.histograms.get(kind, {}))
        each = [w.histograms.get(kind, {}) for w in chosen]
        return {name: trimmed(merge(h[name] for h in each if name in h)) for name in names}

    def fates(
        self, kind: str, format: Format = FP16, log2_scale: int = 0, step: int | None = None
    ) -> dict[str, Fate]:
        """Return name -> effect of a format on one kind of numbers, multiplied by 2^log2_scale."""
        return {
            name: fate(shift(h, log2_scale), format)
            for name, h in self.histograms(kind, step).items()
        }

    def gradients(self, step: int | None = None) -> dict[str, ExponentHistogram]:
        """Return all unscaled gradients by name, and the FP32 gradients of replayed steps."""
        parts: dict[str, list[ExponentHistogram]] = {}
        sampled_steps: tuple[WatchedStep | AgainstFP32, ...] = (*self.watched, *self.against_fp32)
        for sampled in sampled_steps:
            if step in (None, sampled.step):
                for kind in ("activation gradients", "weight gradients"):
                    for name, histogram in sampled.histograms.get(kind, {}).items():
                        parts.setdefault(f"{kind} of {name}", []).append(histogram)
        merged = {name: merge(histograms) for name, histograms in parts.items()}
        return {name: histogram for name, histogram in merged.items() if histogram.finite_non_zero}

    def safe_scales(self, format: Format = FP16, tolerance: float = 1e-3) -> dict[str, Window]:
        """Return the window of safe scales of each layer's or parameter's gradients."""
        return {name: window(h, format, tolerance) for name, h in self.gradients().items()}

    def one_scale(self, format: Format = FP16) -> tuple[int, float, float]:
        """Return the largest scale (log2) that is safe for all layers, and its losses.

        The losses with a scale for each layer are returned as well.

        Raises:
            ValueError: no gradient was observed.
        """
        gradients = self.gradients()
        if not gradients:
            raise ValueError("no non-zero gradient was observed, so nothing limits the scale")
        windows = {name: window(h, format) for name, h in gradients.items()}
        one = min(w.high for w in windows.values())
        total = sum(h.finite_non_zero for h in gradients.values())
        together = sum(
            fate(shift(h, one), format).underflowed * h.finite_non_zero for h in gradients.values()
        )
        apart = sum(
            fate(shift(h, windows[name].high), format).underflowed * h.finite_non_zero
            for name, h in gradients.items()
        )
        return one, together / total, apart / total


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def run_in_words(report: TrainingResults) -> str:
    """Return the model, and how many of its steps ran, were sampled and were skipped."""
    name = f"{report.model}: " if report.model else ""
    return f"{name}{report.steps} steps, {len(report.watched)} sampled, {len(report.skips)} skipped"


def grouped(report: TrainingResults, status: Status) -> Iterator[list[Finding]]:
    """Yield the findings of a status, those of one kind and line together.

    A finding without layer and step is by itself.
    """
    groups: dict[tuple[str, str, str], list[Finding]] = {}
    for each in report.of(status):
        repeats = bool(each.layer) or each.step is not None
        groups.setdefault((each.name, each.line, "" if repeats else each.what), []).append(each)
    yield from groups.values()


def step_of(group: list[Finding]) -> str:
    """Return the step of a group of findings, or how many there are."""
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
    named = f"in {', '.join(layers[:MOST_NAMES])}" if layers else ""
    if len(layers) > MOST_NAMES:
        named += f" and {len(layers) - MOST_NAMES} more"
    place = ", ".join(part for part in (group[0].line, step_of(group), named) if part)
    return f"{place}: {group[0].what}" if place else group[0].what


def _all_clear(report: TrainingResults) -> str:
    """Return the headline of a report without findings.

    For a run in a wider format it says what FP16 would lose.
    """
    if not report.steps:
        return "No optimizer of this model stepped, so there is nothing to report."
    gradients = report.gradients()
    if not report.half:
        return (
            "Nothing wrong was found, and no operation ran in 16 bits: this was a training in FP32."
        )
    if any(w.half for w in report.watched) or not gradients or report.watched[-1].scale <= 0:
        return "Nothing wrong was found."
    used = round(math.log2(report.watched[-1].scale))
    lost = {name: fate(shift(h, used), FP16).underflowed for name, h in gradients.items()}
    name, share = max(lost.items(), key=lambda item: item[1])
    if share < LOST_TO_MENTION:
        return "Nothing wrong was found."
    where = name.replace("activation gradients of", "activation gradients of layer")
    low = max(w.low for w in report.safe_scales().values())
    high = report.one_scale()[0]
    advice = (
        f"use a scale from 2^{low} to 2^{high}"
        if low <= high
        else "no single scale keeps all gradients"
    )
    return (
        f"Nothing wrong was found in this format. In FP16, {share:.0%} of the {where} would be "
        f"lost; {advice}."
    )


def numbers(report: TrainingResults) -> Iterator[str]:
    """Yield the safe scales, the memory and the casts, a sentence each."""
    gradients = report.gradients()
    if gradients:
        low = max(window.low for window in report.safe_scales().values())
        one, together, apart = report.one_scale()
        safe = (
            f"from 2^{low} to 2^{one}"
            if low <= one
            else f"none: one layer needs 2^{low}, another bears 2^{one}"
        )
        yield f"scales at which FP16 keeps all gradients but one in a thousand: {safe}"
        yield (
            f"at 2^{one} FP16 loses {together:.2%} of them; with the largest safe scale for each "
            f"layer {apart:.2%}"
        )
    if report.watched:
        memory = {name: size for name, size in report.watched[-1].memory.items() if size}
        yield "memory: " + ", ".join(
            f"{name} {size / 2**20:.3g} MiB" for name, size in memory.items()
        )
    if report.watched:
        for cast, (times, size) in report.watched[-1].casts.items():
            yield f"casts in a step: {times} from {cast}, {size / 2**20:.3g} MiB written"


def power(scale: float) -> str:
    """Return 2^16 for 65536, and other numbers in short form."""
    significand, exponent = math.frexp(scale)
    return f"2^{exponent - 1}" if significand == 0.5 else f"{scale:g}"
