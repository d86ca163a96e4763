"""What each process does in the tests of many: a case by its name, whose result is left in a folder.

torchrun starts this file, `torchrun --nproc-per-node 2 ranks.py CASE FOLDER`; `launch` starts torchrun.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from labkit.amp import RECIPES, Engine, Recipe, ScalerState
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import start_group
from labkit.formats import FP16
from tests.slowness import slowness

SECONDS = 60  # against a hang; multiplied by how slow the machine is
STEPS = 2  # a third would have more digits than FP16
CASES: dict[str, Callable[[], Any]] = {}


def launch(case: str, world: int, folder: Path, **more: str) -> list[Any]:
    """Run a case in `world` processes; return what each rank left."""
    done = start(case, world, folder, **more)
    output, _ = done.communicate(timeout=SECONDS * slowness())
    assert done.returncode == 0, output
    return results(world, folder)


def start(case: str, world: int, folder: Path, **more: str) -> subprocess.Popen[str]:
    """Start torchrun on a case."""
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world))
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", **more}
    command = [*torchrun, __file__, case, str(folder)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def results(world: int, folder: Path) -> list[Any]:
    """Return what the ranks left in a folder."""
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Make a function a case, which all ranks run."""
    CASES[function.__name__] = function
    return function


# --- what the cases share: a network whose arithmetic is exact, so that the order of a sum does not matter ----------


def halves(*shape: int, seed: int) -> Tensor:
    """Return -1, -1/2, 0, 1/2 and 1 at random."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)) / 2.0


def exact_network() -> nn.Module:
    """Return two layers with halves for weights: 4 -> 5 -> 3; 5 is odd, so parts differ in size."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for seed, p in enumerate(net.parameters()):
            p.copy_(halves(*p.shape, seed=seed))
    return net


def exact_batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    """Return batches of 8 rows."""
    return [(halves(8, 4, seed=10 + i), halves(8, 3, seed=20 + i)) for i in range(steps)]


def exact_steps(recipe: str) -> int:
    """Return how many steps of the exact network stay exact: BF16 has three digits fewer."""
    return 1 if recipe == "BF16" else STEPS


def sgd(weights: Any) -> torch.optim.Optimizer:
    """Return an optimizer that multiplies by powers of two only."""
    return torch.optim.SGD(weights, lr=0.5, momentum=0.5)


def own_rows(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return this rank's part of a batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return batch[0].chunk(world)[rank], batch[1].chunk(world)[rank]


def loss_of(engine: Engine, x: Tensor, y: Tensor) -> Tensor:
    """Return a loss whose gradient is exact: a mean over the rows, a power of two."""
    with engine.forward():
        return ((engine(x) - y) * y).sum(1).mean()


def train(engine: Engine, batches: list[tuple[Tensor, Tensor]], *, parts: int = 1, clip: float = 0.0) -> list[Any]:
    """Train, each batch in `parts`; return the reports as tuples."""
    reports = []
    for x, y in batches:
        engine.zero_grad()
        for i, (xs, ys) in enumerate(zip(x.chunk(parts), y.chunk(parts), strict=True)):
            unsynced = isinstance(engine, DistributedEngine) and i + 1 < parts
            with engine.no_sync() if unsynced else nullcontext():
                engine.backward(loss_of(engine, xs, ys) / parts)
        if clip:
            engine.clip(clip)
        report = engine.step()
        reports.append((report.stepped, report.scale, report.culprits, engine.scaler.growth_tracker))
    return reports


def whole_masters(engine: DistributedEngine) -> dict[str, Tensor]:
    """Return all masters, put together from the ranks' parts."""
    masters = engine.weights.named_masters()
    if not engine.sharded:
        return masters
    return {name: whole(masters[name], sharded) for name, (sharded, _) in engine.weights.parts.pairs.items()}


def whole(part: Tensor, like: DTensor) -> Tensor:
    """Put the parts of one parameter together."""
    shape: dict[str, Any] = {"shape": like.shape, "stride": like.stride()}
    return DTensor.from_local(part, like.device_mesh, like.placements, run_check=False, **shape).full_tensor()


def distributed(recipe: Recipe, sharded: bool, **options: Any) -> DistributedEngine:
    """Return an engine of the exact network; on each rank but the first it begins with other weights."""
    net = exact_network()
    if dist.get_rank():
        torch.nn.init.zeros_(net[0].weight)
    return DistributedEngine(net, sgd, recipe, sharded=sharded, **options)


# --- the cases ---


@case
def worked_example() -> Any:
    """Train the exact network in each way, then let one element of one rank overflow."""
    found: dict[Any, Any] = {}
    for sharded in (False, True):
        engine = distributed(RECIPES["FP16 static"], sharded)
        reports = train(engine, [own_rows(b) for b in exact_batches()])
        found["exact", sharded] = (reports, whole_masters(engine))
        found["overflow", sharded] = overflow_on_the_last_rank(sharded)
    return found


def overflow_on_the_last_rank(sharded: bool) -> Any:
    """Return reports of three steps; in the second, one gradient of the last rank's batch is beyond FP16."""
    engine = distributed(RECIPES["FP16 dynamic"], sharded)
    engine.scaler = ScalerState(1024.0, growth_tracker=3)
    batches = [own_rows(b) for b in exact_batches(3)]
    if dist.get_rank() == dist.get_world_size() - 1:
        batches[1][1][0, 2] = 2.0**9
    return train(engine, batches), whole_masters(engine)


@case
def all_ways() -> Any:
    """Train the exact network with parts and whole, flat and not, accumulated, clipped, and reduced in FP16."""
    ways: dict[Any, Any] = {}
    for recipe in ("FP32", "O1", "FP16 static", "FP16 no master", "FP16 Kahan", "BF16"):
        for sharded in (False, True):
            for flat in (False, True):
                for parts in (1, 2):
                    engine = distributed(RECIPES[recipe], sharded, flat=flat)
                    if engine.recipe.scaler.dynamic:
                        engine.scaler = ScalerState(1024.0)
                    batches = exact_batches(exact_steps(recipe))
                    reports = train(engine, [own_rows(b) for b in batches], parts=parts)
                    ways[recipe, sharded, flat, parts] = (reports, whole_masters(engine))
    for sharded in (False, True):
        engine = distributed(RECIPES["FP16 static"], sharded, reduce=FP16)
        reports = train(engine, [own_rows(b) for b in exact_batches()])
        ways["reduced in FP16", sharded] = (reports, whole_masters(engine))
        engine = distributed(RECIPES["FP32"], sharded)
        reports = train(engine, [own_rows(b) for b in exact_batches(1)], clip=0.25)
        ways["clipped", sharded] = (reports, whole_masters(engine))
    return ways


if __name__ == "__main__":
    start_group(timeout_s=float(os.environ.get("LABKIT_TEST_TIMEOUT", "60")))
    result = CASES[sys.argv[1]]()
    torch.save(result, Path(sys.argv[2]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
