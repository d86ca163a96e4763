"""Log of a watch: its records step by step, and the findings that follow from them.

Idea: a finding follows from counts that a watch makes anyway. Examples are an update that changes
nothing, an optimizer state that its decay does not change, and an epsilon that is zero in its
format.

Invariants: a log holds numbers, names and sentences, never the model or a tensor. A finding names a
layer or parameter, and the first step that shows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from labkit.findings import Finding, Status, counted
from labkit.formats import FP16, Format
from labkit.instrument.events import StatefulOptimizer
from labkit.instrument.fate import fate
from labkit.instrument.guard import Unseen, in_short, reporting
from labkit.instrument.histogram import ExponentHistogram, merge, shift
from labkit.instrument.records import (
    AgainstFP32,
    NonFinite,
    Skip,
    WatchedStep,
    log2_of_scale,
    window,
    with_gradient,
    without_noise,
)
from labkit.instrument.report import Report
from labkit.instrument.results import power
from labkit.instrument.sample import Sample, checksum, dense, dtype_name, floats, local_part
from labkit.instrument.stream import StepObserver
from labkit.instrument.symptoms import Kind, finding

RAISE_THE_SCALE = "Let the loss scale be larger: a larger init_scale, or a shorter growth_interval."
# share of lost or unchanged numbers above which it is a fault
MOST = 0.5
# faults of weights and states in 16 bits; FP32 keeps updates that are small beside a weight
IN_HALF_ONLY = frozenset(
    (
        Kind.UPDATES_SWALLOWED,
        Kind.NEVER_MOVED,
        Kind.OPTIMIZER_STATE_CANNOT_DECAY,
        Kind.WEIGHT_DECAY_LOST,
    )
)
# optimizer state that each step multiplies by a decay factor -> the option that has the factor, and
# its place if the option is a pair
DECAYING_STATES: dict[str, tuple[str, int]] = {
    "exp_avg": ("betas", 0),
    "exp_avg_sq": ("betas", 1),
    "square_avg": ("alpha", 0),
    "momentum_buffer": ("momentum", 0),
}
# a GradScaler's initial scale; a scale as large as this may still be falling
FIRST_SCALE = 2.0**16
# consecutive skips at the end; after fewer, the scaler may still be searching for its scale
MANY_SKIPS = 8
# optimizer states of which eps is added to the square root
ROOTS = ("exp_avg_sq", "square_avg", "max_exp_avg_sq")
# eps dominates if it is more than this many times the root ...
FAR_ABOVE = 10.0
# ... for this share of the roots
NEARLY_ALL = 0.9


class Log:
    """The records of one watched model.

    Attributes:
        step: number of the current step.
        dominated: one entry for each sampled step: what `dominating_epsilon` returned.
        narrow: parameters in 16 bits, or whose masters are in 16 bits.
    """

    def __init__(self, name: str, formats: tuple[Format, ...]) -> None:
        self.name = name
        self.formats = formats
        self.step = 0
        self.watched: list[WatchedStep] = []
        self.skips: list[Skip] = []
        self.non_finite: list[NonFinite] = []
        self.against_fp32: list[AgainstFP32] = []
        self.dominated: list[tuple[float, float] | None] = []
        self.narrow: set[str] = set()
        # (name of the kind, layer) -> the first finding
        self._findings: dict[tuple[str, str], Finding] = {}
        # what cannot be observed -> first step
        self._unseen: dict[str, int] = {}
        # parameter -> its first checksum, whether it moved
        self._checksums: dict[str, tuple[int, bool]] = {}
        # parameters with a gradient other than zero in some sampled step
        self._driven: set[str] = set()

    def report(self, steps: int, running: WatchedStep | None, watch: StepObserver) -> Report:
        """Return a report of the steps so far.

        Args:
            steps: number of steps, skipped ones included.
            running: the sampled step in progress, which the report includes.
            watch: the watch; the report lists its failures.
        """
        watched = list(self.watched)
        if running is not None:
            watched.append(running)
        report = Report(
            model=self.name,
            steps=steps,
            watched=tuple(watched),
            skips=tuple(self.skips),
            non_finite=tuple(self.non_finite),
            against_fp32=tuple(self.against_fp32),
            formats=tuple(format.name for format in self.formats),
        )
        findings = list(self._findings.values())
        with reporting(watch.failed, "faults"):
            never_moved = [
                name
                for name, (_, moved) in self._checksums.items()
                if name in self._driven and not moved
            ]
            findings += faults(report, never_moved)
            findings = [
                each
                for each in findings
                if each.name not in IN_HALF_ONLY or each.layer in self.narrow
            ]
            # one sampled step may be an exception, so it takes at least two
            dominated = [each for each in self.dominated if each is not None]
            if len(dominated) > 1 and len(dominated) == len(self.dominated):
                findings.append(_epsilon_dominates(report, *dominated[0]))
            if len(self.watched) > 1 and self._driven and set(never_moved) == self._driven:
                findings.append(_nothing_moved(report, len(never_moved)))
        findings.sort(key=lambda each: each.step or 0)
        unseen = [f"{what} (first in step {step})" for what, step in self._unseen.items()]
        unseen += watch.failures.values()
        return replace(report, findings=tuple(findings), unseen=tuple(unseen))

    def add_finding(self, new: Finding) -> None:
        """Add a finding, unless the log has one of the same kind and layer."""
        self._findings.setdefault((new.name, new.layer), new)

    def add_unseen(self, what: str) -> None:
        """Add what cannot be observed, with the first step."""
        self._unseen.setdefault(what, self.step)

    def record_checksums(self, weights: Mapping[str, Tensor]) -> None:
        """Record a checksum of each weight.

        A weight with the same checksum in all sampled steps never moved.
        """
        for name, weight in weights.items():
            total = checksum(weight)
            first, moved = self._checksums.get(name, (total, False))
            self._checksums[name] = (first, moved or total != first)

    def record_moves(self, sample: Sample, *, stochastic: bool = False) -> None:
        """Record which parameters a step should move, and which it moved.

        Under stochastic rounding a step may leave any parameter as it is.
        """
        for name in with_gradient(sample.counts):
            elements_with_gradient, _ = sample.moves.get(name, (0, 0))
            if elements_with_gradient and not stochastic:
                self._driven.add(name)
        for name in sample.moves:
            first, moved = self._checksums[name]
            moved_now = sample.counts["updates"][name].finite_non_zero > 0
            self._checksums[name] = (first, moved or moved_now)

    @contextmanager
    def replaying(self, what: str) -> Iterator[None]:
        """Record why a step cannot be replayed; the training continues."""
        try:
            yield
        except Unseen as reason:
            self.add_unseen(f"{what}: {reason}")
        except Exception as error:
            if "backward through the graph a second time" in str(error):
                self.add_unseen(
                    f"{what}: the model's input has a graph of its own, of another model"
                )
            else:
                self.add_unseen(f"{what}: the replay ended with {in_short(error)}")


# Faults of an optimizer's state


@torch.no_grad()
def state_faults(
    optimizer: StatefulOptimizer, weights: Mapping[str, Tensor], step: int, line: str
) -> Iterator[Finding]:
    """Yield faults of an optimizer's state after a step: decay without effect, an epsilon of zero.

    Args:
        optimizer: it has just stepped.
        weights: parameter name -> the tensor that the optimizer has stepped.
        step: number of the step.
        line: file and line of the user's code that called the step.
    """
    names = {id(weight): name for name, weight in weights.items()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight))
            if name is None:
                continue
            sentence = _lost_weight_decay(optimizer, group, weight)
            if sentence:
                yield finding(Kind.WEIGHT_DECAY_LOST, name, step, sentence, line)
            state = optimizer.state.get(weight, {})
            for key in DECAYING_STATES:
                # the integers of a quantized state are codes, which nothing multiplies
                if floats(state.get(key)):
                    sentence = _lost_state_decay(group, key, state[key])
                    if sentence:
                        yield finding(Kind.OPTIMIZER_STATE_CANNOT_DECAY, name, step, sentence, line)
            sentence = _zero_epsilon(group, weight, state)
            if sentence:
                yield finding(Kind.EPSILON_IS_ZERO, name, step, sentence, line)


def _lost_weight_decay(
    optimizer: StatefulOptimizer, group: Mapping[str, Any], weight: Tensor
) -> str:
    """Return a sentence if weight decay leaves most of a weight unchanged, else ""."""
    # FP32 keeps updates that are small beside a weight. Decay that is not decoupled is added to the
    # gradient, where it is not small.
    if weight.itemsize > 2 or not _is_decoupled(optimizer, group):
        return ""
    rate = float(group.get("lr") or 0) * float(group.get("weight_decay") or 0)
    if rate == 0:
        return ""
    share = _unchanged_share(weight, 1 - rate)
    if share <= MOST:
        return ""
    return (
        f"{rate:.2g} of a weight is less than half an ulp of {dtype_name(weight)} for "
        f"{share:.0%} of them"
    )


def _is_decoupled(optimizer: StatefulOptimizer, group: Mapping[str, Any]) -> bool:
    """Return whether weight decay multiplies the weight, as in AdamW.

    Otherwise, it is added to the gradient.
    """
    name = type(optimizer).__name__
    by_name = name.endswith("W") or name in ("Lion", "Muon")
    return bool(group.get("decoupled_weight_decay", by_name))


def _lost_state_decay(group: Mapping[str, Any], key: str, state: Tensor) -> str:
    """Return a sentence if its decay leaves most of a state unchanged, else ""."""
    option, place = DECAYING_STATES[key]
    value = group.get(option)
    if isinstance(value, Sequence):
        value = value[place]
    # an optimizer of another library may name the option differently
    if not isinstance(value, int | float | Tensor):
        return ""
    decay = float(value)
    if not 0 < decay < 1:
        return ""
    share = _unchanged_share(state, decay)
    if share <= MOST:
        return ""
    return f"{key} in {dtype_name(state)} times {decay:g} is the same number for {share:.0%} of it"


def _unchanged_share(tensor: Tensor, factor: float) -> float:
    """Return the share of the non-zero elements that a multiplication does not change."""
    # A normal number changes by more than an ulp, which is never rounded away. A subnormal one may
    # stay, but a state that begins at 0 is subnormal only until it has grown.
    if abs(1 - factor) > torch.finfo(tensor.dtype).eps:
        return 0.0
    tensor = local_part(tensor)
    non_zero = tensor != 0
    count = int(non_zero.sum())
    if count == 0:
        return 0.0
    unchanged = non_zero & (tensor * factor == tensor)
    return int(unchanged.sum()) / count


def _zero_epsilon(group: Mapping[str, Any], weight: Tensor, state: Mapping[str, Any]) -> str:
    """Return a sentence if eps is zero in the format of an optimizer's state, else ""."""
    eps = group.get("eps")
    if not isinstance(eps, float) or eps == 0:
        return ""
    # eps is added to a state as large as the weight; a scalar is a count of steps, and integers are
    # the codes of a quantized state
    added_to = weight
    for value in floats(list(state.values())):
        if value.dim():
            added_to = value
            break
    if torch.tensor(eps, dtype=added_to.dtype):
        return ""
    return f"{eps:g} is zero in {dtype_name(added_to)}, and does not prevent a division by zero"


@torch.no_grad()
def dominating_epsilon(optimizer: StatefulOptimizer) -> tuple[float, float] | None:
    """Return an optimizer's eps and the typical root, if eps is far above nearly all roots.

    The roots are those of a mean of squares. As Adam does, a mean is divided by 1 - beta^steps
    first, because it began at zero.
    """
    # for each state: the number of roots far below eps, the number of roots, the typical root
    counts: list[Tensor] = []
    # the eps of each state
    epsilons: list[float] = []
    for group in optimizer.param_groups:
        option = group.get("eps")
        # Adafactor has a pair, which is not compared
        eps = float(option) if isinstance(option, float | int) else 0.0
        if eps == 0:
            continue
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            keys = [key for key in ROOTS if isinstance(state.get(key), Tensor)]
            if not keys:
                continue
            # of a complex weight, the real and the imaginary parts have roots of their own
            mean = dense(state[keys[0]]).float()
            steps = float(state.get("step", 0) or 0)
            if "betas" in group and steps:
                mean = mean / (1 - float(group["betas"][1]) ** steps)
            root = torch.where(mean > 0, mean.sqrt(), torch.nan)
            small = (root * FAR_ABOVE < eps).sum()
            known = (~root.isnan()).sum()
            counts.append(torch.stack([small.float(), known.float(), root.nanmedian()]))
            epsilons.append(eps)
    if not counts:
        return None
    # all states in one transfer: the host waits for the device once
    rows = torch.stack([each.to(counts[0].device) for each in counts]).tolist()
    far_below = sum(small for small, _, _ in rows)
    total = sum(known for _, known, _ in rows)
    if not total or far_below < NEARLY_ALL * total:
        return None
    # groups may have different eps, so each root stays beside its own
    pairs = zip(rows, epsilons, strict=True)
    by_root = sorted((root, eps) for (_, known, root), eps in pairs if known)
    root, eps = by_root[len(by_root) // 2]
    return eps, root


def _epsilon_dominates(report: Report, eps: float, root: float) -> Finding:
    first = report.watched[0]
    sentence = (
        f"eps of {eps:g} is added to a root of {root:.2g}: the optimizer divides by eps, and its "
        f"steps are {eps / root:.0f} times too small"
    )
    return finding(Kind.EPSILON_DOMINATES, "", first.step, sentence, first.lines.get("step", ""))


def _nothing_moved(report: Report, count: int) -> Finding:
    first = report.watched[0]
    what = f"all {count} parameters have gradients, and are"
    if count == 1:
        what = "the one parameter has a gradient, and is"
    sentence = f"{what} the same in all sampled steps"
    return finding(Kind.NOTHING_MOVED, "", first.step, sentence, first.lines.get("step", ""))


# Faults that follow from the counts of a report


def faults(report: Report, never_moved: Iterable[str]) -> Iterator[Finding]:
    """Yield the findings that follow from the counts, each with the first step that shows it.

    Args:
        report: the records of a watch.
        never_moved: parameters with gradients that are the same in all sampled steps.
    """
    yield from _non_finite_values(report)
    yield from _swallowed_updates(report)
    first_step = 0
    line = ""
    if report.watched:
        first_step = report.watched[0].step
        line = report.watched[0].lines.get("step", "")
    for name in never_moved:
        sentence = "it has gradients, and is the same in all sampled steps"
        yield finding(Kind.NEVER_MOVED, name, first_step, sentence, line)
    skips = _skips_at_the_end(report)
    scales = [skip.scale for skip in skips]
    in_a_row = skips_in_a_row(scales, report.steps, never_taken=len(skips) == report.steps)
    if in_a_row is not None:
        yield in_a_row
    # a low scale and underflow are one fault, and the finding of underflow names the gradients
    underflows = list(_underflow(report))
    if underflows:
        yield from underflows
    else:
        yield from _scale_too_low(report)


def _non_finite_values(report: Report) -> Iterator[Finding]:
    """Yield the first inf or NaN of each kind and layer."""
    # steps were taken after the last skip, so the scaler has come down to a scale that works
    settled = bool(report.skips) and report.skips[-1].step < report.steps - 1
    known = set[tuple[Kind, str]]()
    for source in report.non_finite:
        if source.by_scale:
            kind = Kind.SCALE_TOO_HIGH
        elif source.value == "NaN":
            kind = Kind.FIRST_NAN
        else:
            kind = Kind.FIRST_INF
        if (kind, source.layer) in known:
            continue
        known.add((kind, source.layer))
        first = finding(kind, source.layer, source.step, str(source), source.line)
        if source.by_scale and settled:
            what = f"{source}; the scaler lowered its scale"
            first = replace(first, status=Status.OK, remedy="", what=what)
        yield first


def _swallowed_updates(report: Report) -> Iterator[Finding]:
    """Yield, for each parameter, the first step that left most of its driven weights unchanged."""
    known = set[str]()
    for watched in report.watched:
        driven = with_gradient(watched.histograms)
        line = watched.lines.get("step", "")
        for name, (elements, unchanged) in watched.moves.items():
            if name in known or name not in driven or elements == 0:
                continue
            share = unchanged / elements
            if share > MOST:
                known.add(name)
                sentence = (
                    f"{share:.0%} of its weights have a gradient and are the same number "
                    "after the step"
                )
                yield finding(Kind.UPDATES_SWALLOWED, name, watched.step, sentence, line)


def _skips_at_the_end(report: Report) -> list[Skip]:
    """Return the skips of the last steps of a run, the latest last, if these were all skipped."""
    skips = []
    for number, skip in enumerate(reversed(report.skips)):
        # in an unbroken row, the n-th skip from the end is the n-th step from the end
        if skip.step == report.steps - 1 - number:
            skips.append(skip)
    skips.reverse()
    return skips


def skips_in_a_row(scales: Sequence[float], step: int, *, never_taken: bool) -> Finding | None:
    """Return the finding for consecutive skipped steps at the end of a training.

    A few skips are usual: a dynamic scaler finds its scale by them.

    Args:
        scales: scales of the skipped steps.
        step: the current one.
        never_taken: no step was taken before them, so a scale that is still large may still be
            falling to one that works.
    """
    if len(scales) < MANY_SKIPS:
        return None
    what = f"the last {len(scales)} steps were skipped, "
    if len(set(scales)) == 1:
        return finding(
            Kind.SCALE_DOES_NOT_FALL, "", step, f"{what}all at a scale of {power(scales[0])}"
        )
    if never_taken and scales[-1] >= FIRST_SCALE:
        return None
    return finding(Kind.SCALE_FALLS, "", step, f"{what}down to a scale of {scales[-1]:g}")


def _scale_too_low(report: Report) -> Iterator[Finding]:
    """Yield the first step whose scale is too low for its FP16 gradients.

    It is below their window, or leaves most of them subnormal.
    """
    gradients = report.gradients()
    for watched in report.watched:
        if not watched.half or log2_of_scale(watched.scale) is None:
            continue
        driven = with_gradient(watched.histograms)
        half_parameters = [
            name
            for name in watched.moves
            if name in driven and name.rpartition(".")[0] in watched.half
        ]
        for kind, names in (
            ("activation gradients", watched.half),
            ("weight gradients", half_parameters),
        ):
            of_kind = {
                name: gradients[f"{kind} of {name}"]
                for name in names
                if f"{kind} of {name}" in gradients
            }
            if not of_kind:
                continue
            too_low = _too_low_for(report, watched, kind, of_kind)
            if too_low is not None:
                yield too_low
                return


def _too_low_for(
    report: Report, watched: WatchedStep, kind: str, gradients: Mapping[str, ExponentHistogram]
) -> Finding | None:
    """Return a finding if the scale of a step is too low for some FP16 gradients, else None.

    Args:
        report: the report of all steps.
        watched: the step.
        kind: the kind of the gradients.
        gradients: name -> histogram of the unscaled gradients.
    """
    log2_scale = math.floor(math.log2(watched.scale))
    low = max(window(histogram, FP16).low for histogram in gradients.values())
    fates = fate(shift(merge(gradients.values()), log2_scale), FP16)
    lost = fates.underflowed + fates.subnormal
    if lost <= MOST:
        if log2_scale < low:
            return _outside_its_window(watched, kind, gradients, log2_scale)
        return None

    if kind == "activation gradients":
        what = f"the {kind} of {counted(len(gradients), 'layer')}"
    else:
        what = counted(len(gradients), kind.removesuffix("s"))
    first = max(low, log2_scale + 1)
    last = max(first, min(each.high for each in report.safe_scales().values()))
    sentence = (
        f"{lost:.0%} of {what} are zero or subnormal in FP16 at a scale of 2^{log2_scale}; "
        f"scales from 2^{first} to 2^{last} keep them"
    )
    line = watched.lines.get("backward", "")
    too_low = finding(Kind.SCALE_TOO_LOW, "", watched.step, sentence, line)
    if watched.scale == 1:
        return too_low
    # The loss is scaled already. Subnormal numbers have fewer digits, but they are not lost.
    if fates.underflowed <= MOST and lost < NEARLY_ALL:
        return finding(Kind.SMALL_GRADIENTS, "", watched.step, sentence, line)
    return replace(too_low, remedy=RAISE_THE_SCALE)


def _outside_its_window(
    watched: WatchedStep, kind: str, gradients: Mapping[str, ExponentHistogram], log2_scale: int
) -> Finding:
    """Return a note on the layer that needs the largest scale.

    It loses more than one in a thousand of its gradients. The others lose less, and a training that
    reaches what FP32 reaches needs no repair.
    """
    lows = {name: window(histogram, FP16).low for name, histogram in gradients.items()}
    name = max(lows, key=lows.__getitem__)
    lost = fate(shift(without_noise(gradients[name]), log2_scale), FP16).underflowed
    sentence = (
        f"{lost:.2%} of its {kind} underflow in FP16 at a scale of 2^{log2_scale}, more than one "
        f"in a thousand; a scale of 2^{lows[name]} keeps them"
    )
    line = watched.lines.get("backward", "")
    return finding(Kind.SMALL_GRADIENTS, name, watched.step, sentence, line)


def _underflow(report: Report) -> Iterator[Finding]:
    """Yield the gradients that are not zero in FP32 and zero here, each with the first step."""
    lines = {watched.step: watched.lines.get("backward", "") for watched in report.watched}
    zero_at_outputs = False
    known = set[tuple[str, str]]()
    for compared in report.against_fp32:
        line = lines.get(compared.step, "")
        non_zero, elements = compared.arrived
        if non_zero == 0 and elements and not zero_at_outputs:
            zero_at_outputs = True
            sentence = "the gradient at the model's outputs is zero: it underflowed before them"
            yield finding(Kind.UNDERFLOW, "", compared.step, sentence, line)
        for kind, layers in compared.lost.items():
            for name, share in _mostly_lost(layers).items():
                if (kind, name) in known:
                    continue
                known.add((kind, name))
                where = "" if name else "in every layer at least "
                sentence = f"{where}{share:.0%} of its {kind} are not zero in FP32 and zero here"
                yield finding(Kind.UNDERFLOW, name, compared.step, sentence, line)


def _mostly_lost(layers: Mapping[str, tuple[int, int]]) -> dict[str, float]:
    """Return the layers that lost most of their gradients, with the shares.

    If all of several layers did, the only name is "", with the smallest share.
    """
    shares = {}
    for name, (lost, non_zero) in layers.items():
        if non_zero:
            shares[name] = lost / non_zero
    mostly_lost = {name: share for name, share in shares.items() if share > MOST}
    if len(mostly_lost) > 1 and len(mostly_lost) == len(shares):
        return {"": min(mostly_lost.values())}
    return mostly_lost
