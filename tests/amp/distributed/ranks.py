"""Cases of the tests of many processes.

A test starts a case by its name, and each rank saves its result in a folder. `launch` sets
torchrun's environment variables itself, because a process of torchrun costs as much time as a rank.
"""

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from labkit.amp import RECIPES, Engine, Recipe, ScalerState
from labkit.amp.distributed.checkpoint import latest, load, save
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import RankLost, start_group, while_all_have
from labkit.formats import FP16, FP32
from labkit.frameworks import GradScaler, ShardedGradScaler
from labkit.instrument import Report, ranks, watch
from tests.slowness import slowness

# A rank that runs longer hangs, and is killed; multiplied by `slowness()`.
SECONDS = 60
# In a third step, the exact network would have more significant bits than FP16.
STEPS = 2
CASES: dict[str, Callable[[], Any]] = {}


def launch(name: str, world: int, folder: Path, **environment: str) -> list[Any]:
    """Run a case in `world` processes and return the result of each rank."""
    exit_codes = wait(start(name, world, folder, **environment))
    assert exit_codes == [0] * world, exit_codes
    return results(world, folder)


def start(name: str, world: int, folder: Path, **environment: str) -> list[BaseProcess]:
    """Start a process for each rank of a case."""
    # Windows has no fork server.
    has_forkserver = "forkserver" in multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if has_forkserver else "spawn")
    context.set_forkserver_preload([__name__])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(world),
        }
    processes = [
        context.Process(
            target=run,
            args=(name, folder, {**address, "RANK": str(r), "LOCAL_RANK": str(r), **environment}),
        )
        for r in range(world)
    ]
    for process in processes:
        process.start()
    return processes


def wait(processes: list[BaseProcess]) -> list[int | None]:
    """Wait for all ranks and return how they ended; one that hangs is killed."""
    limit = SECONDS * slowness()
    for process in processes:
        process.join(limit)
        process.kill()
        process.join()
    return [process.exitcode for process in processes]


def run(name: str, folder: Path, environment: dict[str, str]) -> None:
    """Run a case as one of its ranks, and save its result, or the message of a lost rank."""
    os.environ.update(environment)
    os.environ |= {"FOLDER": str(folder), "BEGAN": str(time.monotonic())}
    (folder / f"began-{environment['RANK']}").touch()
    try:
        timeout = float(environment.get("TIMEOUT_S", SECONDS))
        start_group(environment.get("DEVICE", "cpu"), timeout_s=timeout)
        result = CASES[name]()
    except RankLost as lost:
        result = f"RankLost: {lost}"
    torch.save(result, folder / f"{environment['RANK']}.pt")
    # the group of a lost rank cannot be destroyed
    if not isinstance(result, str):
        dist.destroy_process_group()


def results(world: int, folder: Path) -> list[Any]:
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world)]


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Register a function as a case under its name."""
    CASES[function.__name__] = function
    return function


# --- a network that the cases share: its arithmetic is exact, so the order of a sum does not matter


def halves(*shape: int, seed: int) -> Tensor:
    """Return -1, -1/2, 0, 1/2 and 1 at random, in that shape: their sums are exact in any order."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)) / 2.0


def exact_network() -> nn.Module:
    """Return two layers, 4 -> 5 -> 3, whose weights are halves; parts of 5 rows differ in size."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for seed, p in enumerate(net.parameters()):
            p.copy_(halves(*p.shape, seed=seed))
    return net


def exact_batches(steps: int = STEPS) -> list[tuple[Tensor, Tensor]]:
    return [(halves(8, 4, seed=10 + i), halves(8, 3, seed=20 + i)) for i in range(steps)]


def exact_steps(recipe: str) -> int:
    """Return how many steps of the exact network stay exact: BF16 has three digits fewer."""
    return 1 if recipe == "BF16" else STEPS


def sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.5, momentum=0.5)


def adam(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=0.01)


def own_rows(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    rank = dist.get_rank()
    world = dist.get_world_size()
    return batch[0].chunk(world)[rank], batch[1].chunk(world)[rank]


def loss_of(engine: Engine, x: Tensor, y: Tensor) -> Tensor:
    """Return a loss whose gradient is exact: a mean over the rows, a power of two."""
    with engine.forward():
        return (
            ((engine(x.to(engine.device)) - y.to(engine.device)) * y.to(engine.device))
            .sum(1)
            .mean()
        )


def train(
    engine: Engine, batches: list[tuple[Tensor, Tensor]], *, parts: int = 1, clip: float = 0.0
) -> list[Any]:
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
        reports.append(
            (report.stepped, report.scale, report.culprits, engine.scaler.growth_tracker)
        )
    return reports


def whole_masters(engine: DistributedEngine) -> dict[str, Tensor]:
    masters = {name: master.clone() for name, master in engine.weights.named_masters().items()}
    if not engine.sharded:
        return masters
    return {
        name: whole(masters[name], sharded) for name, (sharded, _) in engine.parts.pairs.items()
    }


def whole(part: Tensor, like: DTensor) -> Tensor:
    shape: dict[str, Any] = {"shape": like.shape, "stride": like.stride()}
    return (
        DTensor.from_local(part, like.device_mesh, like.placements, run_check=False, **shape)
        .full_tensor()
        .clone()
    )


def distributed(recipe: Recipe, sharded: bool, **options: Any) -> DistributedEngine:
    """Return an engine of the exact network.

    On each rank but the first it begins with other weights.
    """
    net = exact_network()
    if dist.get_rank():
        torch.nn.init.zeros_(net[0].weight)
    return DistributedEngine(net, sgd, recipe, sharded=sharded, **options)


@case
def worked_example() -> Any:
    """Train the exact network in each way, then let one element of one rank overflow; and watch."""
    found: dict[Any, Any] = {"watched": watched(), "unused": unused()}
    for sharded in (False, True):
        engine = distributed(RECIPES["FP16 static"], sharded)
        reports = train(engine, [own_rows(b) for b in exact_batches()])
        found["exact", sharded] = (reports, whole_masters(engine))
        found["overflow", sharded] = overflow_on_the_last_rank(sharded)
    return found | scaled_products()


def scaled_products() -> dict[str, Any]:
    """Train with low-bit products.

    Returns:
        The histories of delayed scales on this rank, the masters of a sharded training in MXFP8,
        and the message by which sharding refuses NVFP4.
    """
    engine = distributed(RECIPES["FP8 delayed"], False)
    train(engine, [own_rows(b) for b in exact_batches()])
    sharded = distributed(RECIPES["MXFP8"], True)
    train(sharded, [own_rows(b) for b in exact_batches(1)])
    try:
        distributed(RECIPES["NVFP4"], True)
        refused = ""
    except ValueError as error:
        refused = str(error)
    return {
        "delayed": engine.products.memory.history,
        "MXFP8 sharded": whole_masters(sharded),
        "refused": refused,
    }


class Forking(nn.Module):
    """Three layers: rank 0 uses two of them, the other ranks one, and no rank the third."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 3, bias=False) for _ in range(3))
        for layer in (self.first, self.second, self.third):
            nn.init.ones_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        return y + self.second(x) if dist.get_rank() == 0 else y


def unused() -> Any:
    engine = DistributedEngine(Forking(), sgd, RECIPES["FP16 static"], find_unused_parameters=True)
    steps = []
    for _ in range(2):
        engine.zero_grad()
        with engine.forward():
            loss = engine(torch.ones(2, 4)).sum(1).mean()
        engine.backward(loss)
        steps.append(
            ({name: g.clone() for name, g in engine.gradients().items()}, engine.step().stepped)
        )
    return steps


def overflow_on_the_last_rank(sharded: bool, **options: Any) -> Any:
    """Return the reports and masters of three steps.

    In the second one, a gradient of the last rank's batch is beyond FP16.
    """
    engine = distributed(RECIPES["FP16 dynamic"], sharded, **options)
    engine.scaler = ScalerState(1024.0, growth_tracker=3)
    batches = [own_rows(b) for b in exact_batches(3)]
    if dist.get_rank() == dist.get_world_size() - 1:
        batches[1][1][0, 2] = 2.0**9
    return train(engine, batches), whole_masters(engine)


@case
def on_its_device() -> Any:
    """Train on this rank's own device: sharded and not, reduced in FP32 and in FP16.

    Returns:
        Way of training -> a sentence: whether the weights equal those of one process, and whether
        all ranks skip a step that overflows on one rank.
    """
    kind = os.environ["DEVICE"]
    device = torch.device(kind, dist.get_rank()) if kind == "cuda" else torch.device(kind)
    one = Engine(exact_network(), sgd, RECIPES["FP16 static"], device=device)
    train(one, exact_batches(1))
    found = {}
    for sharded in (False, True):
        for reduce in (FP32, FP16):
            engine = distributed(RECIPES["FP16 static"], sharded, reduce=reduce, device=device)
            train(engine, [own_rows(b) for b in exact_batches(1)])
            masters = whole_masters(engine)
            expected = one.weights.named_masters()
            differing = [
                name for name, master in expected.items() if not torch.equal(master, masters[name])
            ]
            stepped = [
                report[0]
                for report in overflow_on_the_last_rank(sharded, reduce=reduce, device=device)[0]
            ]
            skipped = (
                "all skipped as one" if stepped == [True, False, True] else f"stepped: {stepped}"
            )
            way = f"{'FSDP2' if sharded else 'DDP'}, {reduce.name}, {dist.get_backend()}"
            weights = f"differs in {', '.join(differing)}" if differing else "equal"
            found[way] = f"{weights}; {skipped}"
    return found


@case
def all_ways() -> Any:
    """Train the exact network: sharded or not, with flat masters or not, in one part or two.

    Then train it with gradients that are reduced in FP16, and with clipping.
    """
    ways: dict[Any, Any] = {}
    recipes = ("FP32", "O1", "FP16 static", "FP16 no master", "FP16 Kahan", "BF16")
    for recipe, sharded, flat, parts in product(recipes, (False, True), (False, True), (1, 2)):
        engine = distributed(RECIPES[recipe], sharded, flat=flat)
        if engine.recipe.scaler.dynamic:
            engine.scaler = ScalerState(1024.0)
        reports = train(
            engine, [own_rows(b) for b in exact_batches(exact_steps(recipe))], parts=parts
        )
        ways[recipe, sharded, flat, parts] = (reports, whole_masters(engine))
    for sharded in (False, True):
        engine = distributed(RECIPES["FP16 static"], sharded, reduce=FP16)
        reports = train(engine, [own_rows(b) for b in exact_batches()])
        ways["reduced in FP16", sharded] = (reports, whole_masters(engine))
        engine = distributed(RECIPES["FP32"], sharded)
        reports = train(engine, [own_rows(b) for b in exact_batches(1)], clip=0.25)
        ways["clipped", sharded] = (reports, whole_masters(engine))
    return ways


def optimizer_of(engine: DistributedEngine) -> dict[str, Tensor]:
    state = engine.weights.state_dict()
    masters = list(engine.weights.named_masters())
    found: dict[str, Tensor] = {}
    for i, fields in state["optimizer"]["state"].items():
        for field, value in fields.items():
            like = (
                engine.parts.pairs[masters[i]][0]
                if engine.parts is not None and field != "step"
                else None
            )
            found[f"{masters[i]}.{field}"] = value.clone() if like is None else whole(value, like)
    return found


@case
def write() -> Any:
    found: dict[Any, Any] = {}
    for sharded in (False, True):
        engine = DistributedEngine(exact_network(), adam, RECIPES["FP16 dynamic"], sharded=sharded)
        engine.scaler = ScalerState(1024.0)
        train(engine, [own_rows(b) for b in exact_batches()])
        save(
            Path(os.environ["FOLDER"]) / f"sharded-{sharded}", engine, epoch=3, rank=dist.get_rank()
        )
        found[sharded] = (whole_masters(engine), optimizer_of(engine), engine.scaler)
    return found


@case
def read() -> Any:
    found: dict[Any, Any] = {}
    for written, sharded, flat in product((False, True), repeat=3):
        engine = DistributedEngine(
            exact_network(), adam, RECIPES["FP16 dynamic"], sharded=sharded, flat=flat
        )
        path = latest(Path(os.environ["WRITTEN"]) / f"sharded-{written}")
        assert path is not None
        extra = load(path, engine)
        state = (whole_masters(engine), optimizer_of(engine), engine.scaler)
        found[written, sharded, flat] = (
            extra,
            *state,
            train(engine, [own_rows(b) for b in exact_batches()]),
        )
    return found


RUN_STEPS = 40


@case
def long_run() -> Any:
    """Train with dropout and a checkpoint after each step, from the last checkpoint there is."""
    torch.manual_seed(dist.get_rank())
    net = nn.Sequential(nn.Linear(4, 5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 3))
    engine = DistributedEngine(
        net, adam, RECIPES["FP16 dynamic"], sharded=os.environ["SHARDED"] == "True"
    )
    folder = Path(os.environ["FOLDER"]) / "checkpoints"
    losses: list[float] = []
    path = latest(folder)
    if path is not None:
        losses = load(path, engine)["losses"]
    batches = exact_batches(RUN_STEPS)
    times = [float(os.environ["BEGAN"])]
    for x, y in map(own_rows, batches[engine.steps :]):
        engine.zero_grad()
        loss = loss_of(engine, x, y)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        save(folder, engine, losses=losses)
        times.append(time.monotonic())
    return losses, whole_masters(engine), engine.scaler, times


OF_PARAMETERS = ("weights", "weight gradients", "updates")


def watched() -> Any:
    """Watch two steps of the exact network, trained by engines and by loops of plain torch."""
    found: dict[Any, Any] = {}
    batches = [own_rows(b) for b in exact_batches()]
    for sharded in (False, True):
        engine = distributed(RECIPES["FP16 static"], sharded)
        with watch(engine, every=1) as w:
            train(engine, batches)
            alone = w.report()
        found["engine", sharded] = (alone, w.report())
        model = wrapped_by_torch(sharded)
        with watch(model, every=1) as w:
            train_by_hand(model, batches)
            alone = w.report()
        found["by hand", sharded] = (alone, w.report())
    return found, watched_apart()


def wrapped_by_torch(sharded: bool) -> nn.Module:
    if not sharded:
        return nn.parallel.DistributedDataParallel(exact_network())
    return fully_shard(exact_network(), mesh=DeviceMesh("cpu", list(range(dist.get_world_size()))))


def train_by_hand(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> None:
    optimizer = sgd(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        ((model(x) - y) * y).sum(1).mean().backward()
        optimizer.step()


def watched_by_one(by: str) -> Report:
    engine = Engine(exact_network(), sgd, RECIPES["FP16 static"])
    model = exact_network()
    with watch(engine if by == "engine" else model, every=1) as w:
        if by == "engine":
            train(engine, exact_batches())
        else:
            train_by_hand(model, exact_batches())
    return w.report()


def watched_apart() -> Any:
    """Watch ranks that do not agree on found_inf, of which the second one overflows.

    Returns:
        The report of all ranks; a report for which rank 0 waits in vain, since only rank 0 watches;
        a report without a group.
    """
    rank = dist.get_rank()
    weight = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with watch(weight, every=1, group=dist.group.WORLD) as w:
        for step in range(3):
            optimizer.zero_grad()
            overflows = rank == 1 and step == 1
            x = torch.full((1, 1), torch.inf if overflows else 1.0)
            loss = weight(x).sum()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    report = w.report()
    only = None
    if rank == 0:
        # rank 0 waits in vain here, since no other rank watches
        ranks.WAIT_S = 0.2
        with watch(weight, group=dist.group.WORLD) as w:
            pass
        only = w.report()
    with watch(weight) as w:
        pass
    # rank 0's process keeps the store, so it must end last
    dist.barrier()
    return report, only, w.report()


@case
def batch_counts() -> Any:
    engine = distributed(RECIPES["FP32"], sharded=False)
    own = exact_batches(dist.get_rank() + 2)
    together = os.environ["TOGETHER"] == "True"
    return len(train(engine, list(while_all_have(own)) if together else own))


@case
def reductions() -> Any:
    """Reduce gradients in each way.

    One gradient fits FP16 as a mean over the ranks, but not as a sum. The mean of another one has
    more significant bits than FP16.
    """
    found: dict[Any, Any] = {}
    ways: tuple[dict[str, Any], ...] = ({}, {"reduce": FP16}, {"reduce": FP16, "predivide": False})
    for sharded, options in product((False, True), ways):
        half, single = (
            DistributedEngine(
                nn.Linear(1, 1, bias=False), sgd, RECIPES[recipe], sharded=sharded, **options
            )
            for recipe in ("FP16 static", "FP32")
        )
        with half.forward():
            # times the scale of 2^10, the gradient is 20480, and a sum of four is beyond FP16
            loss = 20.0 * half(torch.ones(1, 1)).sum()
        half.backward(loss)
        # FP16 holds each of these gradients, and not the last bit of their mean, 1 + 1.5 / 1024
        x = torch.full((1, 1), 1 + dist.get_rank() / 1024)
        single.backward(single(x).sum())
        found[sharded, len(options)] = (
            half.gradients(),
            half.step(),
            single.gradients()["weight"].sum().item(),
        )
    return found


@case
def scalers() -> Any:
    """Train under torch's ShardedGradScaler, ours, and a scaler that is not shared.

    Each rank steps its own weights.
    """
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler as TorchScaler

    kinds: dict[str, Any] = {"torch": TorchScaler, "ours": ShardedGradScaler, "alone": GradScaler}
    return {
        name: own_weights(kind("cpu", init_scale=1024.0, growth_interval=2))
        for name, kind in kinds.items()
    }


def own_weights(scaler: Any) -> Any:
    """Let each rank hold one weight; the second rank's gradient overflows in the third step."""
    weight = nn.Parameter(torch.ones(2))
    history = []
    optimizer = torch.optim.SGD([weight], lr=0.5, momentum=0.9)
    rank = dist.get_rank()
    for step in range(6):
        optimizer.zero_grad()
        overflows = rank == 1 and step == 2
        slope = torch.inf if overflows else 0.25 * (rank + 1)
        loss = (weight * slope).sum()
        scaler.scale(loss).backward()
        if step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        history.append(
            (scaler.get_scale(), scaler.state_dict()["_growth_tracker"], weight.detach().clone())
        )
    return history
