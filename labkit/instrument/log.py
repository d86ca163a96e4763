"""Log of a watch: its records step by step, and the findings that follow from them.

Idea: a finding follows from counts that exist anyway: an update that changed nothing, an optimizer
state that its decay does not change, an epsilon that is zero in its format.

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

from labkit.findings import Finding, Status
from labkit.formats import FP16, Format
from labkit.instrument.fate import fate
from labkit.instrument.guard import Unseen, in_short, reporting
from labkit.instrument.histogram import merge, shift
from labkit.instrument.records import (
    AgainstFP32,
    NonFinite,
    Skip,
    WatchedStep,
    window,
    with_gradient,
    without_noise,
)
from labkit.instrument.report import Report
from labkit.instrument.results import power
from labkit.instrument.sample import Sample, checksum, dtype_name, local_part
from labkit.instrument.stream import StepObserver
from labkit.instrument.symptoms import Kind, finding

RAISE_THE_SCALE = "Let the loss scale be larger: a larger init_scale, or a shorter growth_interval."
MOST = 0.5  # share above which a loss is a fault
# FP32 keeps what is small beside a weight
IN_HALF_ONLY = frozenset(
    (
        Kind.UPDATES_SWALLOWED,
        Kind.NEVER_MOVED,
        Kind.OPTIMIZER_STATE_CANNOT_DECAY,
        Kind.WEIGHT_DECAY_LOST,
    )
)
DECAYS = {  # optimizer state -> its decay factor, from its parameter group
    "exp_avg": lambda group: group["betas"][0],
    "exp_avg_sq": lambda group: group["betas"][1],
    "square_avg": lambda group: group["alpha"],
    "momentum_buffer": lambda group: group["momentum"],
}
# a GradScaler's initial scale; a larger scale may still be falling
FIRST_SCALE = 2.0**16
# consecutive skips at the end; with fewer, the scaler may still be searching for its scale
MANY_SKIPS = 8


class Log:
    """The records of one watched model; `step` is the current step."""

    def __init__(self, name: str, formats: tuple[Format, ...]) -> None:
        self.name = name
        self.formats = formats
        self.step = 0
        self.watched: list[WatchedStep] = []
        self.skips: list[Skip] = []
        self.non_finite: list[NonFinite] = []
        self.against_fp32: list[AgainstFP32] = []
        self._found: dict[tuple[str, str], Finding] = {}
        self._unseen: dict[str, int] = {}  # what -> first step
        # parameter -> its first checksum, whether it moved
        self._checksums: dict[str, tuple[int, bool]] = {}
        self._meant: set[str] = set()  # parameters with a gradient other than zero
        # of each sampled step: eps and the root that it is added to, where eps is far above it
        self.dominated: list[tuple[float, float] | None] = []
        # parameters in 16 bits, or whose masters keep only 16
        self.narrow: set[str] = set()

    def report(self, steps: int, running: WatchedStep | None, watch: StepObserver) -> Report:
        """Return a report of the steps so far.

        It includes the sampled step in progress, and the failures of the watch.
        """
        report = Report(
            model=self.name,
            steps=steps,
            watched=(*self.watched, *([] if running is None else [running])),
            skips=tuple(self.skips),
            non_finite=tuple(self.non_finite),
            against_fp32=tuple(self.against_fp32),
            formats=tuple(format.name for format in self.formats),
        )
        found = list(self._found.values())
        with reporting(watch.failed, "faults"):
            still = [
                n for n, (_, moved) in self._checksums.items() if n in self._meant and not moved
            ]
            found += faults(report, still)
            found = [f for f in found if f.name not in IN_HALF_ONLY or f.layer in self.narrow]
            if len(self.dominated) > 1 and None not in self.dominated:
                found.append(_epsilon_dominates(report, self.dominated[0]))
            if len(self.watched) > 1 and self._meant and set(still) == self._meant:
                found.append(_nothing_moved(report, len(still)))
        unseen = (
            *(f"{what} (first in step {step})" for what, step in self._unseen.items()),
            *watch.failures.values(),
        )
        found.sort(key=lambda each: each.step or 0)
        return replace(report, findings=tuple(found), unseen=unseen)

    def add_finding(self, found: Finding) -> None:
        """Add a finding, unless it is known."""
        self._found.setdefault((found.name, found.layer), found)

    def add_unseen(self, what: str) -> None:
        """Add what cannot be observed, with the first step."""
        self._unseen.setdefault(what, self.step)

    def record_checksums(self, weights: dict[str, Tensor]) -> None:
        """Record a checksum of each weight.

        A weight with the same checksum in all sampled steps never moved.
        """
        for name, weight in weights.items():
            total = checksum(weight)
            first, moved = self._checksums.get(name, (total, False))
            self._checksums[name] = (first, moved or total != first)

    def record_moves(self, sample: Sample) -> None:
        """Record which parameters a step should move, and which it moved."""
        self._meant |= {
            name for name in with_gradient(sample.counts) if sample.moves.get(name, (0, 0))[0]
        }
        for name in sample.moves:
            first, moved = self._checksums[name]
            self._checksums[name] = (
                first,
                moved or sample.counts["updates"][name].finite_non_zero > 0,
            )

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
                return
            self.add_unseen(f"{what}: the replay ended with {in_short(error)}")


@torch.no_grad()
def state_faults(
    optimizer: Any, weights: Mapping[str, Tensor], step: int, line: str
) -> Iterator[Finding]:
    """Yield faults of an optimizer's state after a step: ineffective decay, an epsilon of zero."""
    names = {id(weight): name for name, weight in weights.items()}
    for group in optimizer.param_groups:
        for weight in group["params"]:
            name = names.get(id(weight))
            if name is None:
                continue
            yield from _decay_of_weight(optimizer, group, weight, name, step, line)
            state = optimizer.state.get(weight, {})
            for key in DECAYS.keys() & state.keys():
                if isinstance(state[key], Tensor):
                    yield from _decay_of_state(
                        DECAYS[key](group), key, state[key], name, step, line
                    )
            kept = next((s for s in state.values() if isinstance(s, Tensor) and s.dim()), weight)
            eps = group.get("eps")
            if isinstance(eps, float) and eps and not torch.tensor(eps, dtype=kept.dtype):
                says = (
                    f"{eps:g} is zero in {dtype_name(kept)}, and does not prevent a division by "
                    "zero"
                )
                yield finding(Kind.EPSILON_IS_ZERO, name, step, says, line)


def _is_decoupled(optimizer: Any, group: Any) -> bool:
    """Return whether weight decay multiplies the weight, as in AdamW.

    Else it is added to the gradient.
    """
    name = type(optimizer).__name__
    by_name = name.endswith("W") or name in ("Lion", "Muon")
    return bool(group.get("decoupled_weight_decay", by_name))


def _decay_of_weight(
    optimizer: Any, group: Any, weight: Tensor, name: str, step: int, line: str
) -> Iterator[Finding]:
    # FP32 keeps what is small beside a weight; an L2 term is added to the gradient, which is not
    if weight.itemsize > 2 or not _is_decoupled(optimizer, group):
        return
    rate = float(group.get("lr") or 0) * float(group.get("weight_decay") or 0)
    if rate and (share := _unmoved(weight, 1 - rate)) > MOST:
        says = (
            f"{rate:.2g} of a weight is less than half an ulp of {dtype_name(weight)} for "
            f"{share:.0%} of them"
        )
        yield finding(Kind.WEIGHT_DECAY_LOST, name, step, says, line)


def _decay_of_state(
    decay: Any, key: str, state: Tensor, name: str, step: int, line: str
) -> Iterator[Finding]:
    if 0 < float(decay) < 1 and (share := _unmoved(state, float(decay))) > MOST:
        says = (
            f"{key} in {dtype_name(state)} times {float(decay):g} is the same number for "
            f"{share:.0%} of it"
        )
        yield finding(Kind.OPTIMIZER_STATE_CANNOT_DECAY, name, step, says, line)


def _unmoved(tensor: Tensor, factor: float) -> float:
    """Return the share of the non-zero elements that a multiplication does not change."""
    if abs(1 - factor) > torch.finfo(tensor.dtype).eps:  # more than an ulp
        return 0.0
    tensor = local_part(tensor)
    non_zero = tensor != 0
    count = int(non_zero.sum())
    return int((non_zero & (tensor * factor == tensor)).sum()) / count if count else 0.0


def faults(report: Report, never_moved: Iterable[str]) -> Iterator[Finding]:
    """Yield the findings that follow from the counts, each with the first step that shows it."""
    found: dict[tuple[Kind, str], Finding] = {}
    # steps were taken after the last skip
    settled = bool(report.skips) and report.skips[-1].step < report.steps - 1
    for bad in report.non_finite:
        if bad.by_scale:
            what = Kind.SCALE_TOO_HIGH
        else:
            what = Kind.FIRST_NAN if bad.value == "NaN" else Kind.FIRST_INF
        each = finding(what, bad.layer, bad.step, str(bad), bad.line)
        if bad.by_scale and settled:
            each = replace(
                each, status=Status.OK, remedy="", what=f"{bad}; the scaler lowered its scale"
            )
        found.setdefault((what, bad.layer), each)
    for watched in report.watched:
        driven = with_gradient(watched.histograms)
        for name, (meant, still) in watched.moves.items():
            if meant and still / meant > MOST and name in driven:
                says = (
                    f"{still / meant:.0%} of its weights have a gradient and are the same number "
                    "after the step"
                )
                swallowed = finding(
                    Kind.UPDATES_SWALLOWED, name, watched.step, says, watched.lines.get("step", "")
                )
                found.setdefault((Kind.UPDATES_SWALLOWED, name), swallowed)
    yield from found.values()
    first_step = report.watched[0].step if report.watched else 0
    lines = report.watched[0].lines if report.watched else {}
    for name in never_moved:
        says = "it has gradients, and is the same in all sampled steps"
        yield finding(Kind.NEVER_MOVED, name, first_step, says, lines.get("step", ""))
    skipped = [
        skip for n, skip in enumerate(reversed(report.skips)) if skip.step == report.steps - 1 - n
    ][::-1]
    scales = [skip.scale for skip in skipped]
    if (
        in_a_row := skips_in_a_row(scales, report.steps, never_taken=len(skipped) == report.steps)
    ) is not None:
        yield in_a_row
    lost = list(_underflow(report))
    # both are one fault, and the underflow names the gradients
    yield from lost or _scale_too_low(report)


# states whose root eps is added to
ROOTS = ("exp_avg_sq", "square_avg", "max_exp_avg_sq")
FAR_ABOVE = 10.0  # times the root
NEARLY_ALL = 0.9


@torch.no_grad()
def dominating_epsilon(optimizer: Any) -> tuple[float, float] | None:
    """Return an optimizer's eps and the typical root, if eps is far above nearly all roots.

    A mean of squares that has just begun is divided by 1 - beta^steps, as Adam does.
    """
    # for each state: the number of roots far below eps, the number of roots, the typical root
    counts: list[Tensor] = []
    eps = 0.0
    for group in optimizer.param_groups:
        given = group.get("eps")
        # Adafactor has two
        eps = float(given) if isinstance(given, float | int) else 0.0
        for weight in group["params"]:
            state = optimizer.state.get(weight, {})
            key = next((key for key in ROOTS if isinstance(state.get(key), Tensor)), None)
            if key is None or not eps:
                continue
            mean = local_part(state[key]).float()
            done = float(state.get("step", 0) or 0)
            if "betas" in group and done:
                mean = mean / (1 - float(group["betas"][1]) ** done)
            root = torch.where(mean > 0, mean.sqrt(), torch.nan)
            small = (root * FAR_ABOVE < eps).sum()
            known = (~root.isnan()).sum()
            counts.append(torch.stack([small.float(), known.float(), root.nanmedian()]))
    if not counts:
        return None
    # one wait for the device
    read = torch.stack([each.to(counts[0].device) for each in counts]).tolist()
    below, every = sum(row[0] for row in read), sum(row[1] for row in read)
    if not every or below < NEARLY_ALL * every:
        return None
    roots = sorted(row[2] for row in read if row[1])
    return eps, roots[len(roots) // 2]


def _epsilon_dominates(report: Report, seen: tuple[float, float] | None) -> Finding:
    assert seen is not None
    eps, root = seen
    first = report.watched[0]
    says = (
        f"eps of {eps:g} is added to a root of {root:.2g}: the optimizer divides by eps, and its "
        f"steps are {eps / root:.0f} times too small"
    )
    return finding(Kind.EPSILON_DOMINATES, "", first.step, says, first.lines.get("step", ""))


def _nothing_moved(report: Report, count: int) -> Finding:
    first = report.watched[0]
    says = f"all {count} parameters have gradients, and are the same in all sampled steps"
    return finding(Kind.NOTHING_MOVED, "", first.step, says, first.lines.get("step", ""))


def skips_in_a_row(scales: Sequence[float], step: int, *, never_taken: bool) -> Finding | None:
    """Return the finding for consecutive skipped steps at the end of a training.

    A few are usual: a dynamic scaler finds its scale by them.

    Args:
        scales: scales of the skipped steps.
        step: the current one.
        never_taken: no step was taken before them, so a scale that is still large may be on its
            way.
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
    for watched in (w for w in report.watched if w.half and w.scale > 0):
        driven = with_gradient(watched.histograms)
        used = math.floor(math.log2(watched.scale))
        for kind, names in (
            ("activation gradients", watched.half),
            (
                "weight gradients",
                [n for n in watched.moves if n in driven and n.rpartition(".")[0] in watched.half],
            ),
        ):
            mine = [h for name in names if (h := gradients.get(f"{kind} of {name}")) is not None]
            if not mine:
                continue
            low = max(window(h, FP16).low for h in mine)
            high = min(w.high for w in report.safe_scales().values())
            fates = fate(shift(merge(mine), used), FP16)
            lost = fates.underflowed + fates.subnormal
            if lost > MOST:
                what = (
                    f"the {kind} of {len(mine)} layers"
                    if names is watched.half
                    else f"{len(mine)} {kind}"
                )
                first = max(low, used + 1)
                says = (
                    f"{lost:.0%} of {what} are zero or subnormal in FP16 at a scale of 2^{used}; "
                    f"scales from 2^{first} to 2^{max(high, first)} keep them"
                )
                line = watched.lines.get("backward", "")
                found = finding(Kind.SCALE_TOO_LOW, "", watched.step, says, line)
                if fates.underflowed <= MOST and lost < NEARLY_ALL and watched.scale != 1:
                    # subnormal numbers have fewer digits, and are not lost; the loss is scaled
                    # already
                    found = finding(Kind.SMALL_GRADIENTS, "", watched.step, says, line)
                elif watched.scale != 1:
                    found = replace(found, remedy=RAISE_THE_SCALE)
                yield found
                return
            if used < low:
                yield _outside_its_window(report, kind, names, watched, used)
                return


def _outside_its_window(
    report: Report, kind: str, names: Iterable[str], watched: WatchedStep, used: int
) -> Finding:
    """Return a note on the layer that loses more than one in a thousand of its gradients.

    The others lose less, and no repair is needed where a training reaches what FP32 reaches.
    """
    gradients = report.gradients()
    mine = {
        name: gradients[f"{kind} of {name}"] for name in names if f"{kind} of {name}" in gradients
    }
    name = max(mine, key=lambda name: window(mine[name], FP16).low)
    lost = fate(shift(without_noise(mine[name]), used), FP16).underflowed
    says = (
        f"{lost:.2%} of its {kind} underflow in FP16 at a scale of 2^{used}, more than one in a "
        f"thousand; a scale of 2^{window(mine[name], FP16).low} keeps them"
    )
    line = watched.lines.get("backward", "")
    return finding(Kind.SMALL_GRADIENTS, name, watched.step, says, line)


def _underflow(report: Report) -> Iterator[Finding]:
    seen = set[str]()
    lines = {w.step: w.lines.get("backward", "") for w in report.watched}
    for beside in report.against_fp32:
        line = lines.get(beside.step, "")
        if not beside.arrived[0] and beside.arrived[1] and "" not in seen:
            seen.add("")
            says = "the gradient at the model's outputs is zero: it underflowed before them"
            yield finding(Kind.UNDERFLOW, "", beside.step, says, line)
        for kind, layers in beside.lost.items():
            bad = {
                n: lost / alive
                for n, (lost, alive) in layers.items()
                if alive and lost / alive > MOST
            }
            if len(bad) > 1 and len(bad) == sum(alive > 0 for _, alive in layers.values()):
                bad = {"": min(bad.values())}
            for name, share in bad.items():
                if (key := f"{kind} {name}") not in seen:
                    seen.add(key)
                    where = "" if name else "in every layer at least "
                    says = f"{where}{share:.0%} of its {kind} are not zero in FP32 and zero here"
                    yield finding(Kind.UNDERFLOW, name, beside.step, says, line)
