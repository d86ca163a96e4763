"""Process groups whose ranks decide together, and errors that name a lost rank.

Idea: torchrun starts the processes and sets the rank of each; torch's process group connects them.
A decision is one small all-reduce: all ranks use the largest of their values.

Invariant: every wait ends. If another rank has ended or hangs, a call raises a `RankLost` that says
what this rank was doing: at once if the connection breaks, otherwise after the group's timeout.

Source: torch.distributed.run (RANK, WORLD_SIZE, LOCAL_RANK); torch.distributed.init_process_group
(timeout); torch.distributed, "Environment variables" (TORCH_NCCL_BLOCKING_WAIT).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

T = TypeVar("T")
BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
# Words in the messages of errors that another rank's end causes. "connection" alone is not one of
# them: a network has skip connections.
_CONNECTION_ERRORS = (
    "connection closed",
    "connection lost",
    "connection refused",
    "connection was",
    "reset by peer",
    "timed out",
    "timeout",
    "broken pipe",
    "remote process",
    "gloo",
)
# characters of the original message that a RankLost quotes
_LONGEST_QUOTE = 200


class RankLost(RuntimeError):
    """Another process of the group has ended or hangs, so this one cannot continue."""


def start_group(device: str = "cpu", *, timeout_s: float = 60.0) -> torch.device:
    """Join the group that torchrun has started; return this process's device.

    The NCCL code follows its documentation and is untested: no machine with two GPUs was available.

    Args:
        device: "cpu": the ranks communicate by gloo, on any machine. "cuda": by NCCL, each rank on
            its own GPU.
        timeout_s: how long a rank waits for the others, in seconds.

    Raises:
        ValueError: the device is neither "cpu" nor "cuda".
        RuntimeError: this process was not started by torchrun, or fewer GPUs than ranks are
            available; the message says what to do.
        RankLost: another process of the group did not join in time, or ended.
    """
    if device not in BACKENDS:
        raise ValueError(
            f'expected device "cpu" or "cuda", got {device!r}; torchrun decides which GPU a rank '
            "has"
        )
    if "RANK" not in os.environ:
        raise RuntimeError(
            "expected a process started by torchrun, got one without a rank. Start it with "
            "torchrun --standalone --nproc-per-node 4 script.py"
        )
    own = torch.device(device)
    if device == "cuda":
        rank = int(os.environ.get("LOCAL_RANK", "0"))
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if rank >= gpus:
            raise RuntimeError(
                f"expected a GPU for each rank, got {gpus} for local rank {rank}: start at most as "
                f"many processes as there are GPUs (torchrun --nproc-per-node {max(gpus, 1)}), "
                'or use start_group("cpu")'
            )
        own = torch.device("cuda", rank)
        torch.cuda.set_device(own)
        # With blocking waits a timeout raises an error here. Otherwise NCCL's watchdog aborts the
        # process.
        os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
    with raising_rank_lost("while it joined the group"):
        dist.init_process_group(BACKENDS[device], timeout=timedelta(seconds=timeout_s))
    return own


def largest(
    values: Sequence[float],
    device: torch.device | str = "cpu",
    group: dist.ProcessGroup | None = None,
) -> list[float]:
    """Return the elementwise maximum of the ranks' values, the same on all of them.

    Args:
        values: as many numbers on every rank.
        device: the one that `start_group` returned: NCCL only exchanges tensors on a GPU.
        group: the ranks that take part; None: all of them.

    Raises:
        RankLost: another rank ended or hangs.
    """
    numbers = torch.tensor(values, dtype=torch.float64, device=device)
    with raising_rank_lost("while it agreed with the others on a number", group):
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=group)
        # NCCL raises here: all_reduce only starts
        return [float(number) for number in numbers.tolist()]


def while_all_have(
    batches: Iterable[T], device: torch.device | str = "cpu", group: dist.ProcessGroup | None = None
) -> Iterator[T]:
    """Yield this rank's batches until any rank has none left.

    Otherwise the others would wait in their next backward pass for a rank without a batch.

    Args:
        batches: this rank's batches; None is not a batch.
        device: as for `largest`.
        group: as for `largest`.

    Raises:
        RankLost: another rank ended or hangs.
    """
    own = iter(batches)
    while True:
        batch = next(own, None)
        if largest([float(batch is None)], device, group)[0]:
            return
        assert batch is not None
        yield batch


@contextmanager
def raising_rank_lost(doing: str, group: dist.ProcessGroup | None = None) -> Iterator[None]:
    """Convert the errors of a broken connection or a timeout into a `RankLost`.

    Args:
        doing: what this rank does in the block, for the message.
        group: the process group; None is the default one.
    """
    try:
        yield
    except RankLost:
        raise
    # gloo raises plain RuntimeErrors, and NCCL's errors are subclasses
    except RuntimeError as error:
        message = str(error)
        broken = any(words in message.lower() for words in _CONNECTION_ERRORS)
        if not broken and not isinstance(error, dist.DistError):
            raise
        # without a group, torchrun's environment has the numbers
        rank: int | str = os.environ.get("RANK", "?")
        world: int | str = os.environ.get("WORLD_SIZE", "?")
        if dist.is_initialized():
            rank = dist.get_rank(group)
            world = dist.get_world_size(group)
        first_line = message.partition("\n")[0]
        raise RankLost(
            f"rank {rank} of {world} cannot continue: {doing}, another rank ended or was silent "
            "for longer than the group's timeout. See its output for the cause. Start all of them "
            f"again: they resume from the last checkpoint. ({first_line[:_LONGEST_QUOTE]})"
        ) from error
