"""Does the engine do on a GPU what torch.amp does there, and at what price?

Three questions, asked in one process, so that device and versions are the same for both sides: are the outputs of our
autocast equal to torch's, bit for bit, for every operation of torch's own test lists; do whole training runs under our
drop-in have the losses, scales and trackers of torch's; how long does a step take, and how much memory?

    python tests/gpu/check_amp.py            on a GPU; needs torch, numpy and labkit, no pytest
    python tests/gpu/check_amp.py cpu        a rehearsal: our own autocast on both sides, small networks
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import types
import unittest
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parents[2]))  # a script finds labkit beside tests, installed or not

from labkit.amp import RECIPES, Engine
from labkit.frameworks import GradScaler, autocast

HOMES = {"torch": torch, "nn": torch._C._nn, "linalg": torch._C._linalg, "method": torch.Tensor}
EQUAL = "equal"
Pair = tuple[Callable[[], Any], Callable[..., Any]]  # what opens an autocast region, and what makes a scaler


def pair(device: str) -> Pair:
    """Return our own drop-in pair, in FP16."""
    return partial(autocast, device, torch.float16), GradScaler


@dataclass(frozen=True)
class Row:
    """One way to call one operation of torch's autocast test lists."""

    group: str
    name: str
    home: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.group} {self.home}.{self.name}"

    def __call__(self) -> Any:
        return getattr(HOMES[self.home], self.name)(*self.args, **self.kwargs)


@dataclass(frozen=True)
class Step:
    """What one training step left: the loss before it, and the scaler after it."""

    loss: float
    scale: float
    tracker: int


@dataclass(frozen=True)
class Price:
    """What a training step costs: milliseconds (median), as a multiple of torch.amp's, and MiB at the peak,
    None where nobody counts."""

    network: str
    way: str
    milliseconds: float
    ratio: float
    mebibytes: float | None


# --- the same outputs? ------------------------------------------------------------------------------------------------


def rows(device: str) -> list[Row]:
    """Return every call that torch's autocast test lists name."""
    if "expecttest" not in sys.modules:
        try:
            import expecttest  # noqa: F401
        except ImportError:  # the lists need no more of it than a base class for tests that nobody runs here
            sys.modules["expecttest"] = types.ModuleType("expecttest")
            sys.modules["expecttest"].TestCase = unittest.TestCase  # type: ignore[attr-defined]
    from torch.testing._internal.autocast_test_lists import AutocastTestLists

    torch.manual_seed(0)
    calls = []
    for group, listed in vars(AutocastTestLists(torch.device(device))).items():
        for name, args, *rest in (row for row in listed if isinstance(row[1], tuple)):  # einsum's is malformed upstream
            kwargs = next((part for part in rest if isinstance(part, dict)), {})
            calls += [Row(group, name, home, args, kwargs) for home, module in HOMES.items() if hasattr(module, name)]
    return calls


def compare_row(row: Row, theirs: Callable[[], Any], ours: Callable[[], Any]) -> str:
    """Return "equal", "unusable: ..." where torch itself refuses, or how the two differ."""
    expected, why_not = _call(row, theirs)
    given, why_we_do_not = _call(row, ours)
    if why_not:
        refused = why_we_do_not and type(why_not) is type(why_we_do_not)
        return f"unusable: {_line(why_not)}" if refused else f"torch refuses ({_line(why_not)}), we do not"
    if why_we_do_not:
        return f"we refuse: {_line(why_we_do_not)}"
    for mine, its in zip(tree_leaves(given), tree_leaves(expected), strict=True):
        if not isinstance(its, Tensor):
            if mine != its:
                return f"{mine} instead of {its}"
        elif (mine.dtype, mine.shape) != (its.dtype, its.shape):
            return f"{mine.dtype} instead of {its.dtype}"
        elif not torch.equal(mine.contiguous().view(-1).view(torch.uint8), its.contiguous().view(-1).view(torch.uint8)):
            return f"{int((mine != its).sum())} of {its.numel()} values differ"
    return EQUAL


def _call(row: Row, region: Callable[[], Any]) -> tuple[Any, Exception | None]:
    try:
        with region(), warnings.catch_warnings(action="ignore"):  # some rows are deprecated upstream
            return row(), None
    except Exception as refusal:
        return None, refusal


def _line(refusal: Exception) -> str:
    return (str(refusal).splitlines() or [type(refusal).__name__])[0][:80]


def check_autocast(device: str, theirs: Callable[[], Any], ours: Callable[[], Any]) -> dict[str, str]:
    """Return each call of the lists -> "equal" or how the two differ."""
    return {f"{number} {row}": compare_row(row, theirs, ours) for number, row in enumerate(rows(device))}


# --- the same training? -----------------------------------------------------------------------------------------------


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


def train(network: str, device: str, region: Callable[[], Any], scaler: Any, *, width: int, steps: int) -> list[Step]:
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
        seen.append(Step(loss.item(), scaler.get_scale(), scaler._get_growth_tracker()))
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


# --- at what price? ---------------------------------------------------------------------------------------------------


def _plain_step(
    region: Callable[[], Any], scaler: Any, model: nn.Module, x: Tensor, target: Tensor
) -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with region():
            loss = nn.functional.cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def _engine_step(recipe: str, device: str, model: nn.Module, x: Tensor, target: Tensor) -> Callable[[], Any]:
    engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x), target)
        engine.backward(loss)
        engine.step()

    return step


def ways(device: str, theirs: Pair) -> dict[str, Callable[..., Callable[[], Any]]]:
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
) -> Iterator[Price]:
    """Yield what a step costs, network by network and way by way; rounds of all ways take turns, and medians count."""
    for network in networks:
        new = partial(task, network, width, batch, device)
        memory = {way: _peak(device, make, new) for way, make in ways(device, theirs).items()}
        running = {way: make(*new()) for way, make in ways(device, theirs).items()}
        times: dict[str, list[float]] = {way: [] for way in running}
        for _ in range(rounds + 1):
            for way, step in running.items():
                times[way].append(_seconds(device, step, steps))
        middle = {way: statistics.median(measured[1:]) for way, measured in times.items()}  # the first round warms up
        for way, seconds in middle.items():
            yield Price(network, way, 1000 * seconds, seconds / middle["torch.amp"], memory[way])


def _seconds(device: str, step: Callable[[], Any], steps: int) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(steps):
        step()
    _wait(device)
    return (time.perf_counter() - start) / steps


def _peak(device: str, make: Callable[..., Callable[[], Any]], new: Callable[[], tuple[Any, ...]]) -> float | None:
    """Return the MiB that a second step holds at its peak, weights and optimizer included."""
    if device != "cuda":
        return None
    others = torch.cuda.memory_allocated()
    step = make(*new())
    step()
    torch.cuda.reset_peak_memory_stats()
    step()
    return (torch.cuda.max_memory_allocated() - others) / 2**20


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


# --- all of it --------------------------------------------------------------------------------------------------------


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
        "prices": [asdict(p) for p in prices(device, theirs, **knobs)],
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


if __name__ == "__main__":
    if sys.argv[1:] == ["cpu"]:
        torch.set_num_threads(1)
        found = main("cpu", width=64, batch=8, steps=2, rounds=1)
    else:
        found = main()
    print(told(found))
    print(json.dumps(found))
