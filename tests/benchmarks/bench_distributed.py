"""Cost of a step with 1, 2 and 4 processes, and the bytes that a rank sends in it.

    .venv/bin/python -m tests.benchmarks.bench_distributed

torchrun starts the processes, one thread each, with gloo. The time of a step is the median of the
slowest rank's, as a ratio to one process under DDP in FP32. Each rank has the same number of rows,
however many ranks there are. With fewer cores than processes, the ratio says nothing about a
cluster.

The bytes that a rank writes to its connections are counted. Beside them is what n ranks in a ring
would send: under DDP 2(n-1)/n of the gradients' bytes; under FSDP2 (n-1)/n of the gradients' bytes
to add them up, for which gloo sends twice as much, and (n-1)/n of the FP16 weights' bytes to gather
these before the forward pass.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from labkit.amp import RECIPES
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import largest, start_group
from labkit.formats import BF16, FP16, FP32
from labkit.machine.resources import bytes_written
from tests.benchmarks.measuring import options

WORLDS = (1, 2, 4)
ROUNDS, WIDTH, ROWS = 12, 512, 32
WAYS = [(sharded, reduce) for sharded in (False, True) for reduce in (FP32, FP16, BF16)]


def engine_of(sharded, reduce):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
    return DistributedEngine(
        net, lambda w: torch.optim.SGD(w, 0.01), RECIPES["O2"], sharded=sharded, reduce=reduce
    )


def step(engine, x):
    engine.zero_grad()
    with engine.forward():
        loss = engine(x).float().square().mean()
    engine.backward(loss)
    engine.step()


def measured():
    """Return way -> seconds of a step on the slowest rank, and the bytes that it sent then."""
    engines = {way: engine_of(*way) for way in WAYS}
    x = torch.randn(ROWS, WIDTH)
    seconds = {way: [] for way in WAYS}
    sent = {way: [] for way in WAYS}
    for number in range(ROUNDS + 2):
        for way, engine in engines.items():
            dist.barrier()
            before = bytes_written() or 0
            start = time.perf_counter()
            step(engine, x)
            took = time.perf_counter() - start
            wrote = (bytes_written() or 0) - before
            if number >= 2:
                seconds[way].append(largest([took])[0])
                sent[way].append(wrote)
    return {way: (statistics.median(seconds[way]), statistics.median(sent[way])) for way in WAYS}


def by_ring(world, sharded, reduce):
    """Return the bytes that a rank in a ring sends in a step."""
    weights = 2 * (WIDTH * WIDTH + WIDTH)
    share = (world - 1) / world
    bytes_each = (reduce.bits // 8 + 2) if sharded else 2 * (reduce.bits // 8)
    return share * weights * bytes_each


def be_a_rank(path):
    start_group()
    found = measured()
    if dist.get_rank() == 0:
        torch.save([found[way] for way in WAYS], path)
    dist.destroy_process_group()


def main():
    options(__doc__)
    print(f"{os.cpu_count()} cores; {WIDTH}-{WIDTH}-{WIDTH}, O2, gloo")
    print(f"{'processes':>9} {'':<6}{'reduced in':<11}{'time':>7}{'KiB sent':>10}{'ring':>8}")
    first = None
    for world in WORLDS:
        torchrun = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(world),
        ]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "found.pt"
            subprocess.run(
                [*torchrun, __file__, str(path)],
                check=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
            )
            found = torch.load(path)
        first = first or found[0][0]
        for (sharded, reduce), (seconds, sent) in zip(WAYS, found, strict=True):
            name = "FSDP2" if sharded else "DDP"
            ring = by_ring(world, sharded, reduce) / 1024
            print(
                f"{world:>9} "
                f"{name:<6}{reduce.name:<11}{seconds / first:>7.2f}{sent / 1024:>10.0f}{ring:>8.0f}"
            )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        be_a_rank(sys.argv[1])
    else:
        main()
