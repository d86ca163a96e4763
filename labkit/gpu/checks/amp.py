"""The engine beside torch.amp on a GPU: the same results, and their price.

Three questions, asked in one process, so that device and versions are the same for both sides: are the outputs of our
autocast equal to torch's (`outputs`); do whole training runs under our drop-in have the losses, scales and trackers of
torch's; how long does a step take, and how much memory? Off a GPU it is a rehearsal: our own autocast on both sides.
Four small networks are trained, each with the same weights, batch and targets at each call of `task`.

    labkit gpu --only amp
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine
from labkit.frameworks import GradScaler, autocast
from labkit.gpu.checks.measure import (
    Answers,
    Step,
    all_prepared,
    each,
    engine_step,
    left_out_lines,
    median_seconds,
    torch_step,
)
from labkit.gpu.checks.outputs import EQUAL, check_autocast


class Attending(nn.Module):
    """A transformer's encoder layer over the input's rows, and a projection of the last."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.layer(x)[:, -1])
        return out


class Remembering(nn.Module):
    """An LSTM over the input's rows, and a projection of its last state."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, width, batch_first=True), nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def mlp(width: int, out: int) -> nn.Module:
    """Return four layers and a norm."""
    deep = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*deep, nn.LayerNorm(width), nn.Linear(width, out))


def cnn(width: int, out: int) -> nn.Module:
    """Return two convolutions with batch norm, for 8 channels of 16 x 16."""
    channels = max(8, width // 8)
    first = (nn.Conv2d(8, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU())
    second = (nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU(), nn.MaxPool2d(2))
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * channels, out))


CLASSES = 16  # widths are multiples of 8 everywhere, as Tensor Cores like them
NETWORKS: dict[str, Callable[[int, int], nn.Module]] = {
    "MLP": mlp,
    "CNN": cnn,
    "transformer": Attending,
    "LSTM": Remembering,
}


def task(network: str, width: int, batch: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, a batch and its targets, always the same."""
    torch.manual_seed(0)
    shape = {"MLP": (width,), "CNN": (8, 16, 16)}.get(network, (32, width))
    model = NETWORKS[network](width, CLASSES).to(device)
    return model, torch.randn(batch, *shape, device=device), torch.randint(0, CLASSES, (batch,), device=device)


Pair = tuple[Callable[[], Any], Callable[..., Any]]  # what opens an autocast region, and what makes a scaler


def pair(device: str) -> Pair:
    """Return our own drop-in pair, in FP16."""
    return partial(autocast, device, torch.float16), GradScaler


def train(network: str, device: str, region: Callable[[], Any], scaler: Any, *, width: int, steps: int) -> list[str]:
    """Train with a region and a scaler, torch's or ours; return of each step the loss, and the scale after it."""
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
        seen.append(f"loss {loss.item()!r}, scale {scaler.get_scale()!r}, tracker {scaler._get_growth_tracker()}")
    return seen


def compare_network(network: str, device: str, theirs: Pair, ours: Pair, *, width: int, steps: int) -> str:
    """Return "equal", or the first step at which two trainings of a network differ.

    The scale begins so high that the first steps overflow, and grows every third step, so that all of it is met.
    """
    runs = []
    for region, scaler_class in (theirs, ours):
        scaler = scaler_class(device, init_scale=2.0**24, growth_interval=3)
        runs.append(train(network, device, region, scaler, width=width, steps=steps))
    different = (f"step {n}: {b} instead of {a}" for n, (a, b) in enumerate(zip(*runs, strict=True)) if a != b)
    return next(different, EQUAL)


def ways(device: str, theirs: Pair) -> dict[str, Callable[..., Step]]:
    """Return name -> what makes a training step of model, x and target."""

    def plain(region: Callable[[], Any], scaler: Any, model: nn.Module, x: Tensor, target: Tensor) -> Step:
        optimizer = torch.optim.AdamW(model.parameters())
        return torch_step(optimizer, region, scaler, lambda: nn.functional.cross_entropy(model(x), target))

    def of_engine(recipe: str, model: nn.Module, x: Tensor, target: Tensor) -> Step:
        engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
        return engine_step(engine, lambda: nn.functional.cross_entropy(engine(x), target))

    ours = pair(device)
    return {
        "torch.amp": lambda *task: plain(theirs[0], theirs[1](device), *task),
        "drop-in": lambda *task: plain(ours[0], ours[1](device), *task),
        "engine O1": partial(of_engine, "O1"),
        "engine O2": partial(of_engine, "O2"),
        "FP32": lambda *task: plain(nullcontext, theirs[1](device, enabled=False), *task),
    }


def price(
    network: str, device: str, theirs: Pair, left_out: Answers, *, width: int, batch: int, steps: int, rounds: int
) -> list[dict[str, Any]]:
    """Return what a step costs by each way: milliseconds, as a multiple of torch.amp's, MiB.

    A way that raises is named in `left_out`; without torch.amp the ratio is None.
    """
    new = partial(task, network, width, batch, device)
    making = {way: partial(lambda make: make(*new()), make) for way, make in ways(device, theirs).items()}
    made, memory = all_prepared(
        making, device, lambda way, why: left_out.__setitem__(f"prices of {network} by {way}", why)
    )
    seconds = median_seconds(made, device, steps, rounds)
    reference = seconds.get("torch.amp")
    return [
        {"network": network, "way": way, "milliseconds": 1000 * seconds[way],
         "ratio": seconds[way] / reference if reference else None, "mebibytes": memory[way]}
        for way in made
    ]  # fmt: skip


@contextmanager
def repeatable() -> Iterator[None]:
    """Ask torch for kernels that give the same bits twice; otherwise torch.amp would not even equal itself."""
    exact = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True)
    with exact, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        yield


def pairs(device: str) -> tuple[Pair, Pair]:
    """Return torch's region and scaler, and ours; off a GPU ours on both sides, a rehearsal."""
    ours = pair(device)
    if device != "cuda":
        return ours, ours
    return (partial(torch.autocast, device, torch.float16), torch.amp.GradScaler), ours


def main(
    device: str = "cuda",
    *,
    width: int = 1024,
    batch: int = 256,
    steps: int = 20,
    rounds: int = 7,
    networks: Collection[str] = NETWORKS,
    seconds: float = float("inf"),
) -> Iterator[Answers]:
    """Answer all three questions, item by item, in plain values ready for JSON. Off a GPU, see the module's head.

    Raises:
        RuntimeError: there is no GPU.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("this compares with torch.amp on a GPU, and torch sees none here. Rehearse with: cpu")
    theirs, ours = pairs(device)
    answers: Answers = {
        "device": torch.cuda.get_device_name() if device == "cuda" else "CPU (a rehearsal)",
        "torch": torch.__version__,
        "autocast": {},
        "training": {},
        "prices": [],
        "left_out": {},
    }

    def outputs() -> None:
        with repeatable():
            answers["autocast"] = check_autocast(device, theirs[0], ours[0])

    def training(network: str) -> None:
        with repeatable():
            found = compare_network(network, device, theirs, ours, width=min(width, 256), steps=30)
        answers["training"][network] = found

    def prices(network: str) -> None:
        sizes = {"width": width, "batch": batch, "steps": steps, "rounds": rounds}
        answers["prices"] += price(network, device, theirs, answers["left_out"], **sizes)

    trainings = [(f"training of {network}", partial(training, network)) for network in networks]
    priced = [(f"prices of {network}", partial(prices, network)) for network in networks]
    yield from each([("autocast", outputs), *trainings, *priced], answers, seconds)


def told(answers: Answers) -> str:
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
    for row in answers["prices"]:
        memory = "-" if row["mebibytes"] is None else f"{row['mebibytes']:.1f}"
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        lines.append(f"{row['network']:<12} {row['way']:<10} {row['milliseconds']:9.3f} {ratio:>8} {memory:>8}")
    return "\n".join([*lines, *left_out_lines(answers)])
