"""The report of all ranks that train one model together, merged from one report for each.

Idea: a rank writes its report to the group's store when its watch ends, and does not wait.
`Ranks.merged` then reads the reports of all ranks. Counts of data that differs between ranks are
added: activations, and parts of sharded parameters. Data that all ranks share, such as DDP's
weights and averaged gradients, is counted once.

Invariant: a watch calls no collective operation, so it cannot disturb those of the training. A rank
that watches alone waits for no other rank while the training runs.

Source: torch.distributed.Store (set, get, add; wait ends with an error after its timeout).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from labkit.findings import Finding
from labkit.instrument.guard import Failed, guarded
from labkit.instrument.histogram import ExponentHistogram, merge
from labkit.instrument.records import NonFinite, Skip, WatchedStep, trimmed
from labkit.instrument.report import Report, from_plain, to_plain
from labkit.instrument.symptoms import Kind, finding

# how long a report waits for those of ranks that end later
WAIT_S = 60.0
# kinds of histograms of a rank's own batch
OWN_BATCH = ("activations", "activation gradients")


def group_of(watched: object, model: nn.Module) -> tuple[nn.Module, dist.ProcessGroup | None]:
    """Return the module inside DDP, and the group of processes that trains it, or None.

    Args:
        watched: the model, or an engine whose attribute `group` is its group.
        model: the module, or DDP around it; FSDP2's parameters know their group.
    """
    group: dist.ProcessGroup | None = None
    if dist.is_available():
        known = getattr(watched, "group", None)
        if isinstance(known, dist.ProcessGroup):
            group = known
    if isinstance(model, DistributedDataParallel):
        group = model.process_group
        model = model.module
    if group is None:
        for parameter in model.parameters():
            mesh: Any = getattr(parameter, "device_mesh", None)
            if mesh is not None:
                return model, _group_of_mesh(mesh)
    return model, group


def _group_of_mesh(mesh: Any) -> dist.ProcessGroup | None:
    """Return the group of all ranks of a mesh; None if no group is known to have just these."""
    if mesh.ndim == 1:
        group: dist.ProcessGroup = mesh.get_group()
        return group
    # the groups of a mesh with more dimensions have the ranks along one of them
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    return None


def single_rank_warning() -> str:
    """Return a sentence if the reports of other ranks are missing; otherwise ""."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ""
    mine = f"this is rank {dist.get_rank()} of {dist.get_world_size()}"
    return (
        f"other ranks: {mine}; watch(model, group=torch.distributed.group.WORLD) merges their "
        "reports"
    )


def after_backward(outputs: list[Tensor], then: Callable[[], None], failed: Failed) -> None:
    """Call a function at the end of a backward pass, after the callbacks of DDP and FSDP2.

    Args:
        outputs: the model's outputs, where the backward pass begins.
        then: the function.
        failed: receives an exception of the function.
    """
    queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
    safe = guarded(then, failed)

    # DDP and FSDP2 queue their callbacks during the backward pass, maybe after this hook. A
    # callback that is queued by a callback runs after all of those.
    def queue_last(_: Tensor) -> None:
        queue(lambda: queue(safe))

    for output in outputs:
        if output.requires_grad:
            output.register_hook(queue_last)


class Ranks:
    """The reports of a group's ranks on one model, in the store of the process group.

    Attributes:
        rank: number of this process in the group.
        world: number of processes in the group.
        sharded: names of the parameters of which each rank holds a part.
    """

    def __init__(
        self, name: str, parameters: Mapping[str, Tensor], group: dist.ProcessGroup
    ) -> None:
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        sharded = set()
        for parameter_name, parameter in parameters.items():
            placements = getattr(parameter, "placements", ())
            if any(placement.is_shard() for placement in placements):
                sharded.add(parameter_name)
        self.sharded = frozenset(sharded)
        self._store = dist.distributed_c10d._get_default_store()
        key = f"labkit.watch/{group.group_name}/{name}"
        # A model may be watched several times. Every rank counts its own watches, so the n-th watch
        # of one rank belongs to the n-th of the others.
        number = self._store.add(f"{key}/{self.rank}/opened", 1)
        self._keys = [f"{key}/{rank}/{number}" for rank in range(self.world)]
        self._published = False

    def publish(self, report: Report) -> None:
        """Write this rank's report to the store."""
        self._published = True
        # the process that holds the store may have ended
        with suppress(RuntimeError):
            self._store.set(self._keys[self.rank], json.dumps(to_plain(report)))

    def merged(self, own: Report) -> Report:
        """Return the merged report of all ranks, with a note on ranks whose report is missing.

        Until the watch has ended on this rank, return its own report with a note on the others.
        """
        if not self._published:
            return _with_unseen(
                own, f"other ranks than {self.rank} of {self.world}, until the watch ends"
            )
        # some reports may arrive too late, or the process that holds the store may have ended
        with suppress(RuntimeError):
            self._store.wait(self._keys, timedelta(seconds=WAIT_S))
        reports = []
        missing = []
        for rank in range(self.world):
            report = own if rank == self.rank else self._published_report(rank)
            if report is None:
                missing.append(str(rank))
            else:
                reports.append(report)
        merged = merge_reports(reports, self.sharded)
        if missing:
            late = f"rank {', '.join(missing)} of {self.world}: no report arrived in {WAIT_S:g} s"
            merged = _with_unseen(merged, late)
        return merged

    def _published_report(self, rank: int) -> Report | None:
        """Return the report that another rank has written, or None."""
        with suppress(RuntimeError):
            if self._store.check([self._keys[rank]]):
                return from_plain(json.loads(self._store.get(self._keys[rank])))
        return None


def _with_unseen(report: Report, unseen: str) -> Report:
    return replace(report, unseen=(*report.unseen, unseen))


def merge_reports(reports: Sequence[Report], sharded: frozenset[str] = frozenset()) -> Report:
    """Merge the reports of several ranks.

    Histograms and casts of data that differs between ranks are added. Bytes of memory are those of
    the rank that holds most. Each rank replays its own batch, and the report has the findings of
    all ranks.

    Args:
        reports: one of each rank, in the order of the ranks.
        sharded: names of parameters of which each rank holds a part. If several ranks hold the same
            part, as with hybrid sharding, it is counted once for each.
    """
    # step -> the records of the ranks that sampled it
    watched: dict[int, list[WatchedStep]] = {}
    skips: dict[int, list[Skip]] = {}
    non_finite: dict[int, NonFinite] = {}
    for report in reports:
        for of_rank in report.watched:
            watched.setdefault(of_rank.step, []).append(of_rank)
        for skip in report.skips:
            skips.setdefault(skip.step, []).append(skip)
        for source in report.non_finite:
            non_finite.setdefault(source.step, source)
    # backwards, so that of the same finding on several ranks that of the lowest rank remains
    findings: dict[tuple[str, str], Finding] = {}
    for report in reversed(reports):
        for each in report.findings:
            findings[each.name, each.layer] = each
    all_findings = sorted(findings.values(), key=lambda each: each.step or 0)
    parted = _disagreement(reports, watched)
    if parted is not None:
        all_findings.insert(0, parted)
    return replace(
        reports[0],
        steps=max(report.steps for report in reports),
        watched=tuple(_merged_step(watched[step], sharded) for step in sorted(watched)),
        skips=tuple(_merged_skip(skips[step]) for step in sorted(skips)),
        non_finite=tuple(non_finite[step] for step in sorted(non_finite)),
        against_fp32=tuple(each for report in reports for each in report.against_fp32),
        findings=tuple(all_findings),
        unseen=tuple(dict.fromkeys(what for report in reports for what in report.unseen)),
    )


def _merged_step(of_ranks: list[WatchedStep], sharded: frozenset[str]) -> WatchedStep:
    """Merge the records of one sampled step."""
    parts: dict[str, dict[str, list[ExponentHistogram]]] = {}
    for watched in of_ranks:
        for kind, of_kind in watched.histograms.items():
            for name, histogram in of_kind.items():
                parts.setdefault(kind, {}).setdefault(name, []).append(histogram)
    histograms: dict[str, dict[str, ExponentHistogram]] = {}
    for kind, parts_of_kind in parts.items():
        histograms[kind] = {}
        for name, of_name in parts_of_kind.items():
            if kind in OWN_BATCH or name in sharded:
                histograms[kind][name] = trimmed(merge(of_name))
            else:
                histograms[kind][name] = of_name[0]

    moves: dict[str, tuple[int, int]] = {}
    casts: dict[str, tuple[int, int]] = {}
    for watched in of_ranks:
        for name, counts in watched.moves.items():
            if name in sharded:
                moves[name] = _sum_of_pairs(moves.get(name, (0, 0)), counts)
            else:
                moves.setdefault(name, counts)
        for cast, counts in watched.casts.items():
            casts[cast] = _sum_of_pairs(casts.get(cast, (0, 0)), counts)

    memory = {}
    for kind in of_ranks[0].memory:
        memory[kind] = max(watched.memory.get(kind, 0) for watched in of_ranks)
    clipped = min(watched.clipped for watched in of_ranks)
    return replace(
        of_ranks[0], histograms=histograms, moves=moves, casts=casts, memory=memory, clipped=clipped
    )


def _sum_of_pairs(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _merged_skip(skips: list[Skip]) -> Skip:
    """Merge the records of one skipped step: all culprits, and the reason of the rank with most."""
    culprits = tuple(dict.fromkeys(name for skip in skips for name in skip.culprits))
    most = max(skips, key=lambda skip: len(skip.culprits))
    return replace(most, culprits=culprits)


def _disagreement(
    reports: Sequence[Report], watched: dict[int, list[WatchedStep]]
) -> Finding | None:
    """Return a finding for the first step that the ranks did not take alike, or None.

    Some ranks skipped it and others took it, or they took it at different scales.
    """
    disagreements = {}
    for step, of_ranks in watched.items():
        scales = sorted({each.scale for each in of_ranks})
        if len(scales) > 1:
            shown = " and ".join(f"{scale:g}" for scale in scales)
            disagreements[step] = f"at {shown} times the loss"
    # a rank that ended earlier has neither taken nor skipped later steps
    common_steps = min(report.steps for report in reports)
    skipped = Counter(
        skip.step for report in reports for skip in report.skips if skip.step < common_steps
    )
    for step, ranks in skipped.items():
        if ranks < len(reports):
            disagreements[step] = "skipped by some ranks, taken by others"
    if not disagreements:
        return None
    first = min(disagreements)
    sentence = f"{disagreements[first]}: agree on found_inf over the ranks, before the step"
    return finding(Kind.RANKS_PARTED, "", first, sentence)
