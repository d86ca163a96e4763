"""Ranks on a machine with a GPU: NCCL is taken only where it was chosen, and a step copies little."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist

from labkit.amp import RECIPES
from labkit.amp.distributed import group
from labkit.amp.distributed.group import RankLost, largest, start_group
from labkit.gpu.passport.probes import HostWaits
from labkit.train import TASKS, TrainingRun
from tests.gpu.simulated import Outcomes


def choices() -> dict[str, Any]:
    """Join groups of each kind, as rank 0 and as rank 1 of a machine with one GPU; what would be joined is noted."""
    joined: list[Any] = []

    def join(backend: str, **options: Any) -> None:
        joined.append([backend, os.environ.get("TORCH_NCCL_BLOCKING_WAIT")])

    found: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "init_process_group", join)
        patch.delenv("TORCH_NCCL_BLOCKING_WAIT", raising=False)
        for local_rank in (0, 1):
            for device in ("cpu", "cuda"):
                patch.setenv("RANK", str(local_rank))
                patch.setenv("LOCAL_RANK", str(local_rank))
                try:
                    found[f"{device} {local_rank}"] = [str(start_group(device)), *joined.pop()]
                except RuntimeError as error:
                    found[f"{device} {local_rank}"] = str(error)
    return found


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match='expected device "cpu" or "cuda", got \'cuda:1\''):
        start_group("cuda:1")


def test_a_rank_that_is_lost_while_the_answer_is_read_is_a_rank_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL's all_reduce only begins; the timeout comes where the numbers are read."""

    class Numbers:
        def tolist(self) -> list[float]:
            raise dist.DistBackendError("NCCL communicator was aborted on rank 0. Watchdog caught a timeout")

    monkeypatch.setattr(group.torch, "tensor", lambda *_, **__: Numbers())
    monkeypatch.setattr(dist, "all_reduce", lambda *_, **__: None)
    with pytest.raises(RankLost, match="while it agreed with the others on a number"):
        largest([0.0])


def copies_of_a_step() -> list[Any]:
    """Return the copies from the host of one training step, and whether its batch is the CPU's."""
    run, on_cpu = (
        TrainingRun(TASKS["digits"], RECIPES["FP32"], device=place, measure_every=0) for place in ("cuda", "cpu")
    )
    run.take_step()
    with HostWaits("cuda") as seen:
        run.take_step()
    same = [torch.equal(own.cpu(), other) for own, other in zip(run.batch(3), on_cpu.batch(3), strict=True)]
    return [sum(seen.copies.values()), same]


@pytest.fixture(scope="module")
def found(simulated_gpu: Any) -> Outcomes:
    return simulated_gpu("T4", [choices, copies_of_a_step])


def test_nccl_is_taken_only_where_it_was_chosen_and_there_is_a_gpu_for_the_rank(found: Outcomes) -> None:
    chosen = found[choices]
    assert chosen["cpu 0"] == ["cpu", "gloo", None]
    assert chosen["cuda 0"] == ["cuda:0", "nccl", "1"]
    assert chosen["cpu 1"][:2] == ["cpu", "gloo"]
    assert chosen["cuda 1"].startswith("expected a GPU for each rank, got 1 for local rank 1: start at most as many")
    assert 'torchrun --nproc-per-node 1), or take start_group("cpu")' in chosen["cuda 1"]


def test_a_step_copies_the_numbers_of_its_rows_alone(found: Outcomes) -> None:
    assert found[copies_of_a_step] == [1, [True, True]]
