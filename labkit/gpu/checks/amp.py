"""Does the engine do on a GPU what torch.amp does there, and at what price?

Three questions, asked in one process, so that device and versions are the same for both sides: are the outputs of our
autocast equal to torch's (`outputs`); do whole training runs under our drop-in have the losses, scales and trackers of
torch's; how long does a step take, and how much memory? Off a GPU it is a rehearsal: our own autocast on both sides.

    labkit gpu --only amp
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine
from labkit.frameworks import GradScaler, autocast
from labkit.gpu.checks.networks import NETWORKS, task
from labkit.gpu.checks.outputs import EQUAL, check_autocast
from labkit.gpu.checks.price import Step, median_seconds, peak

Pair = tuple[Callable[[], Any], Callable[..., Any]]  # what opens an autocast region, and what makes a scaler


def pair(device: str) -> Pair:
    """Return our own drop-in pair, in FP16."""
    return partial(autocast, device, torch.float16), GradScaler


@dataclass(frozen=True)
class Left:
    """What one training step left: the loss before it, and the scaler after it."""

    loss: float
    scale: float
    tracker: int


def train(network: str, device: str, region: Callable[[], Any], scaler: Any, *, width: int, steps: int) -> list[Left]:
    """Train with a region and a scaler, torch's or ours, and return what each step left."""
    model, x, target = task(network, width, 32, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        seen.append(Left(loss.item(), scaler.get_scale(), scaler._get_growth_tracker()))
    return seen


def check_training(
    device: str, theirs: Pair, ours: Pair, *, width: int, steps: int, networks: Collection[str] = NETWORKS
) -> dict[str, str]:
    """Return network -> "equal", or the first step that differs.

    The scale begins so high that the first steps overflow, and grows every third step, so that all of it is met.
    """
    outcome = {}
    for network in networks:
        runs = []
        for region, scaler_class in (theirs, ours):
            scaler = scaler_class(device, init_scale=2.0**24, growth_interval=3)
            runs.append(train(network, device, region, scaler, width=width, steps=steps))
        different = (f"step {n}: {b} instead of {a}" for n, (a, b) in enumerate(zip(*runs, strict=True)) if a != b)
        outcome[network] = next(different, EQUAL)
    return outcome


def _plain_step(region: Callable[[], Any], scaler: Any, model: nn.Module, x: Tensor, target: Tensor) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _engine_step(recipe: str, device: str, model: nn.Module, x: Tensor, target: Tensor) -> Step:
    engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x), target)
        engine.backward(loss)
        engine.step()

    return step


def ways(device: str, theirs: Pair) -> dict[str, Callable[..., Step]]:
    """Return name -> what makes a training step of model, x and target."""
    ours = pair(device)
    return {
        "torch.amp": lambda *task: _plain_step(theirs[0], theirs[1](device), *task),
        "drop-in": lambda *task: _plain_step(ours[0], ours[1](device), *task),
        "engine O1": lambda *task: _engine_step("O1", device, *task),
        "engine O2": lambda *task: _engine_step("O2", device, *task),
        "FP32": lambda *task: _plain_step(nullcontext, theirs[1](device, enabled=False), *task),
    }


def prices(
    device: str, theirs: Pair, *, width: int, batch: int, steps: int, rounds: int, networks: Collection[str] = NETWORKS
) -> Iterator[dict[str, Any]]:
    """Yield what a step costs, network by network and way by way: milliseconds, as a multiple of torch.amp's, MiB."""
    for network in networks:
        new = partial(task, network, width, batch, device)
        making = {way: partial(_made, make, new) for way, make in ways(device, theirs).items()}
        memory = {way: peak(make, device) for way, make in making.items()}
        seconds = median_seconds({way: make() for way, make in making.items()}, device, steps, rounds)
        yield from (
            {"network": network, "way": way, "milliseconds": 1000 * seconds[way],
             "ratio": seconds[way] / seconds["torch.amp"], "mebibytes": memory[way]}
            for way in making
        )  # fmt: skip


def _made(make: Callable[..., Step], new: Callable[[], tuple[Any, ...]]) -> Step:
    return make(*new())


@contextmanager
def repeatable() -> Iterator[None]:
    """Ask torch for kernels that give the same bits twice; otherwise torch.amp would not even equal itself."""
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with exact, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def main(
    device: str = "cuda",
    *,
    width: int = 1024,
    batch: int = 256,
    steps: int = 20,
    rounds: int = 7,
    networks: Collection[str] = NETWORKS,
) -> dict[str, Any]:
    """Ask all three questions; return the answers in plain values, ready for JSON. Off a GPU, see the module's head."""
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("this compares with torch.amp on a GPU, and torch sees none here. Rehearse with: cpu")
    ours = theirs = pair(device)
    if device == "cuda":
        theirs = partial(torch.autocast, device, torch.float16), torch.amp.GradScaler
    knobs: dict[str, Any] = {"width": width, "batch": batch, "steps": steps, "rounds": rounds, "networks": networks}
    with repeatable():
        outputs = check_autocast(device, theirs[0], ours[0])
        training = check_training(device, theirs, ours, width=min(width, 256), steps=30, networks=networks)
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU (a rehearsal)",
        "torch": torch.__version__,
        "autocast": outputs,
        "training": training,
        "prices": list(prices(device, theirs, **knobs)),
    }


def told(answers: dict[str, Any]) -> str:
    """Return what `main` found, for people."""
    outputs = answers["autocast"]
    unlike = {call: how for call, how in outputs.items() if how != EQUAL and not how.startswith("unusable")}
    same = sum(how == EQUAL for how in outputs.values())
    lines = [
        f"{answers['device']}, torch {answers['torch']}",
        f"autocast: {same} calls equal to torch's bit for bit, {len(unlike)} not, "
        f"{len(outputs) - same - len(unlike)} that torch itself refuses",
        *(f"  {call}: {how}" for call, how in unlike.items()),
        *(f"training {network}: {how}" for network, how in answers["training"].items()),
        f"{'network':<12} {'way':<10} {'ms/step':>9} {'x torch':>8} {'MiB':>8}",
    ]
    for price in answers["prices"]:
        memory = "-" if price["mebibytes"] is None else f"{price['mebibytes']:.1f}"
        numbers = f"{price['milliseconds']:9.3f} {price['ratio']:8.2f} {memory:>8}"
        lines.append(f"{price['network']:<12} {price['way']:<10} {numbers}")
    return "\n".join(lines)
