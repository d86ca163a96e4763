"""The report of all ranks that train one model together: a report for each, added up to one.

Idea: a rank leaves its report in the group's store when its watch ends, and waits for nobody. Whoever asks for the
report then reads those of all. What each rank has of its own is added up: activations, and parts of sharded
parameters. What all of them hold, as DDP's weights and averaged gradients, is counted once.

Invariant: a watch calls no collective operation, so it disturbs none, and a rank that watches alone waits for nobody.

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

from labkit.instrument.guard import Failed, guarded
from labkit.instrument.histogram import merge
from labkit.instrument.records import Finding, Skip, WatchedStep, trimmed
from labkit.instrument.report import Report, from_plain, to_plain

WAIT_S = 60.0  # for the reports of ranks whose watch ends later
OWN_BATCH = ("activations", "activation gradients")


def group_of(given: Any, model: nn.Module) -> tuple[nn.Module, Any]:
    """Return the module inside DDP, and the group that trains it together, by DDP, FSDP2 or an engine; or None."""
    known = getattr(given, "group", None)
    group = known if dist.is_available() and isinstance(known, dist.ProcessGroup) else None
    if isinstance(model, DistributedDataParallel):
        group, model = model.process_group, model.module
    sharded: Any = next((p for p in model.parameters() if hasattr(p, "device_mesh")), None)
    return model, sharded.device_mesh.get_group() if group is None and sharded is not None else group


def alone_among() -> str:
    """Return what a watch of one rank does not see where nothing says that its model is trained by all; or ""."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return ""
    mine = f"this is rank {dist.get_rank()} of {dist.get_world_size()}"
    return f"what other ranks saw: {mine}, and watch(model, group=torch.distributed.group.WORLD) adds them up"


def after_backward(outputs: list[Tensor], then: Callable[[], None], failed: Failed) -> None:
    """Have a function called at the end of a backward pass through these, after what DDP and FSDP2 do there."""
    queue: Callable[..., None] = torch.autograd.Variable._execution_engine.queue_callback
    safe = guarded(then, failed)
    for output in outputs:
        if output.requires_grad:
            output.register_hook(lambda _: queue(lambda: queue(safe)))  # the second is behind all that wait by then


class Ranks:
    """The reports of a group's ranks on one model, in the store by which they found each other."""

    def __init__(self, name: str, parameters: dict[str, Any], group: dist.ProcessGroup) -> None:
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)
        self.sharded = frozenset(
            n for n, p in parameters.items() if any(place.is_shard() for place in getattr(p, "placements", ()))
        )
        self._store = dist.distributed_c10d._get_default_store()
        key = f"labkit.watch/{group.group_name}/{name}"
        number = self._store.add(f"{key}/{self.rank}/opened", 1)  # a model may be watched several times
        self._keys = [f"{key}/{rank}/{number}" for rank in range(self.world)]
        self._told = False

    def tell(self, report: Report) -> None:
        """Leave this rank's report for the others."""
        self._told = True
        with suppress(RuntimeError):  # the process that keeps the store may have ended
            self._store.set(self._keys[self.rank], json.dumps(to_plain(report)))

    def together(self, own: Report) -> Report:
        """Return the report of all ranks; of those that left theirs in time, and then it says whose is missing."""
        if not self._told:
            return _noting(own, f"what other ranks saw than rank {self.rank} of {self.world}: until the watch ends")
        with suppress(RuntimeError):  # some come too late, or the store has ended
            self._store.wait(self._keys, timedelta(seconds=WAIT_S))
        reports = {rank: report for rank in range(self.world) if (report := self._left_by(rank, own)) is not None}
        missing = [str(rank) for rank in range(self.world) if rank not in reports]
        whole = added_up(list(reports.values()), self.sharded)
        late = f"what rank {', '.join(missing)} of {self.world} saw: no report came in {WAIT_S:g} s"
        return _noting(whole, late) if missing else whole

    def _left_by(self, rank: int, own: Report) -> Report | None:
        if rank == self.rank:
            return own
        with suppress(RuntimeError):
            if self._store.check([self._keys[rank]]):
                return from_plain(json.loads(self._store.get(self._keys[rank])))
        return None


def _noting(report: Report, unseen: str) -> Report:
    return replace(report, unseen=(*report.unseen, unseen))


def added_up(reports: Sequence[Report], sharded: frozenset[str] = frozenset()) -> Report:
    """Return one report of several ranks', the first one's being that of the lowest rank.

    Histograms and casts are added up, where each rank has its own; bytes of memory are those of the rank that holds
    most. Each rank replays its own batch, and what they found is put together.

    Args:
        sharded: the parameters of which each rank holds a part.
    """
    numbers = sorted({w.step for report in reports for w in report.watched})
    watched = [[w for report in reports for w in report.watched if w.step == number] for number in numbers]
    odd = _disagreement(reports, watched)
    found = {(f.what, f.layer): f for report in reversed(reports) for f in report.findings}
    first_bad = {bad.step: bad for bad in reversed([bad for report in reports for bad in report.non_finite])}
    return replace(
        reports[0],
        steps=max(report.steps for report in reports),
        watched=tuple(_step(of_ranks, sharded) for of_ranks in watched),
        skips=tuple(_skip(reports, step) for step in sorted({s.step for report in reports for s in report.skips})),
        non_finite=tuple(first_bad[step] for step in sorted(first_bad)),
        against_fp32=tuple(a for report in reports for a in report.against_fp32),
        findings=(*odd, *sorted(found.values(), key=lambda finding: finding.step)),
        unseen=tuple(dict.fromkeys(what for report in reports for what in report.unseen)),
    )


def _step(of_ranks: list[WatchedStep], sharded: frozenset[str]) -> WatchedStep:
    """Add up one sampled step."""
    histograms: dict[str, dict[str, Any]] = {}
    for kind in dict.fromkeys(kind for w in of_ranks for kind in w.histograms):
        names = dict.fromkeys(name for w in of_ranks for name in w.histograms.get(kind, {}))
        histograms[kind] = {}
        for name in names:
            each = [w.histograms[kind][name] for w in of_ranks if name in w.histograms.get(kind, {})]
            own = kind in OWN_BATCH or name in sharded
            histograms[kind][name] = trimmed(merge(each)) if own else each[0]
    moves: dict[str, tuple[int, int]] = {}
    casts: dict[str, tuple[int, int]] = {}
    for w in of_ranks:
        for name, (meant, still) in w.moves.items():
            before = moves.get(name, (0, 0))
            moves[name] = (before[0] + meant, before[1] + still) if name in sharded else moves.get(name, (meant, still))
        for cast, (times, size) in w.casts.items():
            casts[cast] = (casts.get(cast, (0, 0))[0] + times, casts.get(cast, (0, 0))[1] + size)
    memory = {kind: max(w.memory.get(kind, 0) for w in of_ranks) for kind in of_ranks[0].memory}
    clipped = min(w.clipped for w in of_ranks)
    return replace(of_ranks[0], histograms=histograms, moves=moves, casts=casts, memory=memory, clipped=clipped)


def _skip(reports: Sequence[Report], step: int) -> Skip:
    skips = [skip for report in reports for skip in report.skips if skip.step == step]
    culprits = tuple(dict.fromkeys(name for skip in skips for name in skip.culprits))
    return replace(max(skips, key=lambda skip: len(skip.culprits)), culprits=culprits)


def _disagreement(reports: Sequence[Report], watched: Sequence[list[WatchedStep]]) -> list[Finding]:
    """Return the first step that some ranks took and others skipped, or took at another scale."""
    everywhere, odd = min(report.steps for report in reports), {}
    skipped = Counter(skip.step for report in reports for skip in report.skips if skip.step < everywhere)
    for of_ranks in watched:
        if len(scales := {w.scale for w in of_ranks}) > 1:
            odd[of_ranks[0].step] = f"at {' and '.join(f'{scale:g}' for scale in sorted(scales))} times the loss"
    odd |= {step: "skipped by some ranks, taken by others" for step, n in skipped.items() if n < len(reports)}
    if not odd:
        return []
    first = min(odd)
    return [Finding("ranks parted", "", first, f"{odd[first]}: agree on found_inf over the ranks, before the step")]
