"""The report of all ranks that train one model together, merged from one report for each.

Idea: a rank writes its report to the group's store when its watch ends, and does not wait.
`Ranks.merged` then reads the reports of all. Data of one rank only is added: activations, and parts
of sharded parameters. Data that all ranks share, such as DDP's weights and averaged gradients, is
counted once.

Invariant: a watch calls no collective operation, so it disturbs none; a rank that watches alone
does not wait.

Source: torch.distributed.Store (set, get, add; wait ends with an error after its timeout).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
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
from labkit.instrument.histogram import merge
from labkit.instrument.records import Skip, WatchedStep, trimmed
from labkit.instrument.report import Report, from_plain, to_plain
from labkit.instrument.symptoms import Kind, finding

WAIT_S = 60.0  # for the reports of ranks that end later
OWN_BATCH = ("activations", "activation gradients")


def group_of(watched: Any, model: nn.Module) -> tuple[nn.Module, Any]:
    """Return the module inside DDP and the group that trains it, or None.

    The group is that of DDP, FSDP2 or an engine.
    """
    known = getattr(watched, "group", None)
    group = known if dist.is_available() and isinstance(known, dist.ProcessGroup) else None
    if isinstance(model, DistributedDataParallel):
        group, model = model.process_group, model.module
    sharded: Any = next((p for p in model.parameters() if hasattr(p, "device_mesh")), None)
    return (
        model,
        sharded.device_mesh.get_group() if group is None and sharded is not None else group,
    )


def single_rank_warning() -> str:
    """Return what the watch of one rank misses if it does not know the other ranks, or ""."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ""
    mine = f"this is rank {dist.get_rank()} of {dist.get_world_size()}"
    return (
        f"other ranks: {mine}; watch(model, group=torch.distributed.group.WORLD) merges their "
        "reports"
    )


def after_backward(outputs: list[Tensor], then: Callable[[], None], failed: Failed) -> None:
    """Call a function at the end of a backward pass, after the callbacks of DDP and FSDP2."""
    queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
    safe = guarded(then, failed)
    for output in outputs:
        if output.requires_grad:
            # the second runs after all that wait
            output.register_hook(lambda _: queue(lambda: queue(safe)))


class Ranks:
    """The reports of a group's ranks on one model, in the store of the process group."""

    def __init__(self, name: str, parameters: dict[str, Any], group: dist.ProcessGroup) -> None:
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.sharded = frozenset(
            n
            for n, p in parameters.items()
            if any(place.is_shard() for place in getattr(p, "placements", ()))
        )
        self._store = dist.distributed_c10d._get_default_store()
        key = f"labkit.watch/{group.group_name}/{name}"
        # a model may be watched several times
        number = self._store.add(f"{key}/{self.rank}/opened", 1)
        self._keys = [f"{key}/{rank}/{number}" for rank in range(self.world)]
        self._published = False

    def publish(self, report: Report) -> None:
        """Write this rank's report to the store."""
        self._published = True
        with suppress(RuntimeError):  # the process that holds the store may have ended
            self._store.set(self._keys[self.rank], json.dumps(to_plain(report)))

    def merged(self, own: Report) -> Report:
        """Return the merged report of all ranks, with a note on those that did not answer."""
        if not self._published:
            return _with_unseen(
                own, f"other ranks than {self.rank} of {self.world}, until the watch ends"
            )
        with suppress(RuntimeError):  # some arrive too late, or the store has ended
            self._store.wait(self._keys, timedelta(seconds=WAIT_S))
        reports = {
            rank: report
            for rank in range(self.world)
            if (report := self._report_of(rank, own)) is not None
        }
        missing = [str(rank) for rank in range(self.world) if rank not in reports]
        whole = merge_reports(list(reports.values()), self.sharded)
        late = f"rank {', '.join(missing)} of {self.world}: no report arrived in {WAIT_S:g} s"
        return _with_unseen(whole, late) if missing else whole

    def _report_of(self, rank: int, own: Report) -> Report | None:
        if rank == self.rank:
            return own
        with suppress(RuntimeError):
            if self._store.check([self._keys[rank]]):
                return from_plain(json.loads(self._store.get(self._keys[rank])))
        return None


def _with_unseen(report: Report, unseen: str) -> Report:
    return replace(report, unseen=(*report.unseen, unseen))


def merge_reports(reports: Sequence[Report], sharded: frozenset[str] = frozenset()) -> Report:
    """Merge the reports of several ranks, the lowest rank first.

    Histograms and casts that each rank has of its own are added. Bytes of memory are those of the
    rank that holds most. Each rank replays its own batch, and the report has the findings of all.

    Args:
        reports: one of each rank, in the order of the ranks.
        sharded: names of parameters of which each rank holds a part.
    """
    numbers = sorted({w.step for report in reports for w in report.watched})
    watched = [
        [w for report in reports for w in report.watched if w.step == number] for number in numbers
    ]
    odd = _disagreement(reports, watched)
    found = {(f.name, f.layer): f for report in reversed(reports) for f in report.findings}
    report_non_finite = {
        bad.step: bad for bad in reversed([bad for report in reports for bad in report.non_finite])
    }
    return replace(
        reports[0],
        steps=max(report.steps for report in reports),
        watched=tuple(_step(of_ranks, sharded) for of_ranks in watched),
        skips=tuple(
            _skip(reports, step)
            for step in sorted({s.step for report in reports for s in report.skips})
        ),
        non_finite=tuple(report_non_finite[step] for step in sorted(report_non_finite)),
        against_fp32=tuple(a for report in reports for a in report.against_fp32),
        findings=(*odd, *sorted(found.values(), key=lambda each: each.step or 0)),
        unseen=tuple(dict.fromkeys(what for report in reports for what in report.unseen)),
    )


def _step(of_ranks: list[WatchedStep], sharded: frozenset[str]) -> WatchedStep:
    """Merge one sampled step."""
    histograms: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for w in of_ranks for kind in w.histograms):
        names = dict.fromkeys(name for w in of_ranks for name in w.histograms.get(kind, {}))
        histograms[kind] = {}
        for name in names:
            each = [
                w.histograms[kind][name] for w in of_ranks if name in w.histograms.get(kind, {})
            ]
            own = kind in OWN_BATCH or name in sharded
            histograms[kind][name] = trimmed(merge(each)) if own else each[0]
    moves: dict[str, tuple[int, int]] = {}
    casts: dict[str, tuple[int, int]] = {}
    for w in of_ranks:
        for name, (meant, still) in w.moves.items():
            before = moves.get(name, (0, 0))
            moves[name] = (
                (before[0] + meant, before[1] + still)
                if name in sharded
                else moves.get(name, (meant, still))
            )
        for cast, (times, size) in w.casts.items():
            casts[cast] = (casts.get(cast, (0, 0))[0] + times, casts.get(cast, (0, 0))[1] + size)
    memory = {kind: max(w.memory.get(kind, 0) for w in of_ranks) for kind in of_ranks[0].memory}
    clipped = min(w.clipped for w in of_ranks)
    return replace(
        of_ranks[0], histograms=histograms, moves=moves, casts=casts, memory=memory, clipped=clipped
    )


def _skip(reports: Sequence[Report], step: int) -> Skip:
    skips = [skip for report in reports for skip in report.skips if skip.step == step]
    culprits = tuple(dict.fromkeys(name for skip in skips for name in skip.culprits))
    return replace(max(skips, key=lambda skip: len(skip.culprits)), culprits=culprits)


def _disagreement(reports: Sequence[Report], watched: Sequence[list[WatchedStep]]) -> list[Finding]:
    """Return the first step that some ranks took and others skipped, or took at another scale."""
    everywhere = min(report.steps for report in reports)
    odd = {}
    skipped = Counter(
        skip.step for report in reports for skip in report.skips if skip.step < everywhere
    )
    for of_ranks in watched:
        if len(scales := {w.scale for w in of_ranks}) > 1:
            odd[of_ranks[0].step] = (
                f"at {' and '.join(f'{scale:g}' for scale in sorted(scales))} times the loss"
            )
    odd |= {
        step: "skipped by some ranks, taken by others"
        for step, n in skipped.items()
        if n < len(reports)
    }
    if not odd:
        return []
    first = min(odd)
    return [
        finding(
            Kind.RANKS_PARTED,
            "",
            first,
            f"{odd[first]}: agree on found_inf over the ranks, before the step",
        )
    ]
