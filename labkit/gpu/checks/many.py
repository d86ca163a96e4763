"""Training on all GPUs of this machine, with NCCL, beside one: a process for each, started by torchrun.

The network's weights and inputs are halves, so its sums are exact in any order: masters must be those of one process
that has the whole batch, bit for bit. Then one rank's gradient overflows, and all have to skip.

Written by NCCL's documentation; it has never run: there was no GPU. With gloo its processes were seen to agree.

labkit gpu --only many
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, ScalerState
from labkit.amp.distributed.engine import DistributedEngine
from labkit.amp.distributed.group import start_group
from labkit.formats import FP16, FP32

ROWS, LIMIT_S = 16, 60.0
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")


def main(device: str = "cuda", *, seconds: float = LIMIT_S) -> Iterator[dict[str, Any]]:
    """Find how many GPUs trained together, and way -> "equal", or how it differs from one process."""
    if device != "cuda":
        yield {"unavailable": "NCCL needs a GPU, and this is a rehearsal", "ranks": 0, "many": {}}
    else:
        yield trained(torch.cuda.device_count(), seconds, "cuda")


def trained(world: int, seconds: float = LIMIT_S, device: str = "cpu") -> dict[str, Any]:
    """Train with so many processes: each on a GPU of its own with NCCL, or all on the CPU with gloo."""
    command = [*TORCHRUN, str(world), "-m", __name__, device]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=True).stdout
        answers: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError) as error:
        lines = [line for line in str(getattr(error, "stderr", "") or "").splitlines() if "Error" in line]
        return {"unavailable": (lines or [str(error)])[-1], "ranks": world, "many": {}}
    return answers


def told(answers: dict[str, Any]) -> str:
    """Return a line for each way."""
    if answers["unavailable"]:
        return f"not run: {answers['unavailable']}"
    with_ = f"{answers['ranks']} processes, {answers['backend']}"
    return "\n".join(f"{way}, {with_}: {said}" for way, said in answers["many"].items())


def be_a_rank(kind: str) -> None:
    """Train in each way, and print what came of it as JSON; rank 0 speaks."""
    device = start_group(kind, timeout_s=LIMIT_S)
    one = _trained(Engine(exact_network(), _sgd, RECIPES["FP16 static"], device=device), 0, 1)
    found = {}
    for sharded in (False, True):
        for reduce in (FP32, FP16):
            found[f"{'FSDP2' if sharded else 'DDP'}, {reduce.name}"] = _compared(device, one, sharded, reduce)
    if dist.get_rank() == 0:
        backend = dist.get_backend()
        answers = {"unavailable": "", "ranks": dist.get_world_size(), "backend": backend, "many": found}
        sys.stdout.write(json.dumps(answers) + "\n")
    dist.destroy_process_group()


def _compared(device: torch.device, one: dict[str, Tensor], sharded: bool, reduce: Any) -> str:
    rank, world = dist.get_rank(), dist.get_world_size()
    options: dict[str, Any] = {"sharded": sharded, "reduce": reduce, "device": device}
    engine = DistributedEngine(exact_network(), _sgd, RECIPES["FP16 static"], **options)
    mine = _trained(engine, rank, world)
    apart = [name for name, master in mine.items() if not torch.equal(master, _part(one[name], engine, name))]
    engine.scaler = ScalerState(1024.0)
    inputs, targets = _batch(rank, world)
    if rank == world - 1:
        targets[0, 0] = 2.0**12
    engine.zero_grad()
    engine.backward(_loss(engine, inputs.to(device), targets.to(device)))
    stepped: list[Any] = [None] * world
    dist.all_gather_object(stepped, (apart, engine.step().stepped))
    bad = sorted({name for names, _ in stepped for name in names})
    skipped = "all skipped as one" if not any(step for _, step in stepped) else f"stepped: {[s for _, s in stepped]}"
    return f"{'differs in ' + ', '.join(bad) if bad else 'equal'}; {skipped}"


def _part(whole: Tensor, engine: DistributedEngine, name: str) -> Tensor:
    """Return this rank's part of a whole master; the whole one where each rank holds all."""
    if engine.parts is None:
        return whole
    parts = whole.chunk(engine.world)  # as torch.chunk does it, a rank may hold none
    rank = dist.get_rank()
    return parts[rank] if rank < len(parts) else whole[:0]


def _trained(engine: Engine, rank: int, world: int) -> dict[str, Tensor]:
    """Take one step, after which all digits are there still, and return the masters."""
    inputs, targets = _batch(rank, world)
    engine.zero_grad()
    engine.backward(_loss(engine, inputs.to(engine.device), targets.to(engine.device)))
    engine.step()
    return {name: master.detach().clone() for name, master in engine.weights.named_masters().items()}


def _loss(engine: Engine, inputs: Tensor, targets: Tensor) -> Tensor:
    with engine.forward():
        loss: Tensor = ((engine(inputs) - targets) * targets).sum(1).mean()
    return loss


def halves(*shape: int, seed: int) -> Tensor:
    """Return -1, -1/2, 0, 1/2 and 1 at random, in that shape: their sums are exact in any order."""
    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)) / 2.0


def _batch(rank: int, world: int) -> tuple[Tensor, Tensor]:
    inputs, targets = halves(ROWS, 4, seed=10), halves(ROWS, 3, seed=20)
    return inputs.chunk(world)[rank].clone(), targets.chunk(world)[rank].clone()


def exact_network() -> nn.Module:
    """Return two layers with halves for weights: 4 -> 5 -> 3; 5 is odd, so parts differ in size."""
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    with torch.no_grad():
        for seed, p in enumerate(net.parameters()):
            p.copy_(halves(*p.shape, seed=seed))
    return net


def _sgd(weights: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=0.5, momentum=0.5)


if __name__ == "__main__":
    be_a_rank(sys.argv[1])
