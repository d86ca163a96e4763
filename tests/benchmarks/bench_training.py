"""What does a training step cost in mixed precision on a CPU, next to torch's own CPU half and to FP32?

Run by hand: .venv/bin/python tests/benchmarks/bench_training.py [--seconds 6] [--only WORD]

Forward, backward, unscale and Adam on five families of networks, each at the lab's own small size and at one where
matrix products dominate. FP32 is a plain torch loop, and the yardstick; O1, O2 and BF16 are our recipes; torch FP16 is
torch.autocast("cpu", torch.float16) with torch.amp.GradScaler. One thread, CPU seconds, medians of steps that take
turns, so that a busy machine counts little. Aims: at least 5 times faster than torch FP16 on CNN and transformer;
within 1.6 of FP32 where matrix products dominate.

What limits the rest: large networks pay for the casts of operands and results, about a tenth. Small ones pay the
microseconds of Python around each operation, which bench_autocast.py measures; what the scaler adds is in
bench_scaler.py. An LSTM is a loop over its steps here, with h and c stored in FP16 in between, where FP32 has one fused
kernel of oneDNN's (bench_recurrent.py has the layers alone); torch FP16 has no LSTM to train at all.
"""

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine, ScalerConfig
from labkit.train import networks

SCALER = ScalerConfig(init_scale=2.0**8)  # low enough for every step to be taken
ADAM = partial(torch.optim.Adam, lr=1e-4)
VOCABULARY = 64
FEWEST = 3  # steps of each, however slow


@dataclass(frozen=True)
class Case:
    """A network and a batch for it: inputs, targets; the loss is a cross entropy over the last or the second axis."""

    name: str
    size: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    classes: int
    text: bool = False

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return inputs (pixels or characters) and targets, drawn from a seed."""
        generator = torch.Generator().manual_seed(0)
        targets = torch.randint(self.classes, self.targets, generator=generator)
        if self.text:
            return torch.randint(self.classes, self.inputs, generator=generator), targets
        return torch.rand(self.inputs, generator=generator), targets

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross entropy; a text's logits have their classes on the last axis."""
        return (
            F.cross_entropy(logits.flatten(0, 1), targets.flatten()) if self.text else F.cross_entropy(logits, targets)
        )


def digits(name: str, size: str, model: Callable[[], nn.Module], rows: int) -> Case:
    return Case(name, size, model, (rows, 1, 8, 8), (rows,), 10)


def canvas(name: str, size: str, model: Callable[[], nn.Module], rows: int, pixels: int) -> Case:
    return Case(name, size, model, (rows, 1, pixels, pixels), (rows, pixels, pixels), 3)


def text(name: str, size: str, model: Callable[[], nn.Module], rows: int, length: int) -> Case:
    return Case(name, size, model, (rows, length), (rows, length), VOCABULARY, text=True)


CASES = (
    digits("MLP", "small", networks.mlp, 64),
    digits("CNN", "small", networks.batch_norm_cnn, 64),
    canvas("UNet", "small", networks.Unet, 12, 16),
    text("transformer", "small", partial(networks.Gpt, VOCABULARY, 32), 32, 32),
    text("LSTM", "small", partial(networks.CharLstm, VOCABULARY), 32, 32),
    digits("MLP", "large", partial(networks.mlp, hidden=1024), 256),
    digits("CNN", "large", partial(networks.batch_norm_cnn, channels=128), 64),
    canvas("UNet", "large", partial(networks.Unet, channels=64), 4, 32),
    text("transformer", "large", partial(networks.Gpt, VOCABULARY, 64, width=256, heads=8), 8, 64),
    text("LSTM", "large", partial(networks.CharLstm, VOCABULARY, width=384), 32, 32),
)


def plain(case: Case) -> Callable[[], object]:
    """A step in FP32, with nothing of ours in it."""
    model, (inputs, targets) = case.model(), case.batch()
    optimizer = ADAM(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        case.loss(model(inputs), targets).backward()
        optimizer.step()

    return step


def torchs(case: Case) -> Callable[[], object]:
    """A step in torch's own CPU FP16."""
    model, (inputs, targets) = case.model(), case.batch()
    optimizer, scaler = ADAM(model.parameters()), torch.amp.GradScaler("cpu", init_scale=SCALER.init_scale)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(inputs)
        scaler.scale(case.loss(logits.float(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def ours(recipe: str, case: Case) -> Callable[[], object]:
    """A step of one of our recipes."""
    row = RECIPES[recipe]
    row = replace(row, scaler=SCALER) if row.scaler.dynamic else row
    engine, (inputs, targets) = Engine(case.model(), ADAM, row), case.batch()

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = case.loss(engine(inputs), targets)
        engine.backward(loss)
        if not engine.step().stepped:
            raise RuntimeError("a step was skipped, and would be counted as a fast one")

    return step


CONTESTANTS: dict[str, Callable[[Case], Callable[[], object]]] = {
    "FP32": plain,
    "O1": partial(ours, "O1"),
    "O2": partial(ours, "O2"),
    "BF16": partial(ours, "BF16"),
    "torch FP16": torchs,
}


def medians(case: Case, seconds: float) -> dict[str, float | str]:
    """Median CPU seconds of each contestant's step, taking turns; or what it fails with.

    Whoever has had its share of the seconds is left out of further rounds: torch's FP16 may take 100 times as long.
    """
    steps, taken, failed = {name: make(case) for name, make in CONTESTANTS.items()}, {}, {}
    for name, step in list(steps.items()):
        try:
            step()  # the first one fills caches and makes the optimizer's state
            taken[name] = []
        except RuntimeError as error:
            failed[name] = str(error).splitlines()[0]
            del steps[name]
    share = seconds / len(steps)
    while any(sum(runs) < share for runs in taken.values()):
        for name, step in steps.items():
            if sum(taken[name]) >= share and len(taken[name]) >= FEWEST:
                continue
            start = time.process_time()
            step()
            taken[name].append(time.process_time() - start)
    return {name: failed[name] if name in failed else statistics.median(taken[name]) for name in CONTESTANTS}


def row(case: Case, took: dict[str, float | str]) -> str:
    fp32, half = took["FP32"], took["torch FP16"]
    cells = [f"{case.name:12} {case.size:6} {fp32 * 1e3:8.1f} ms"]
    cells += [f"{took[name] / fp32:7.2f}" for name in ("O1", "O2", "BF16")]
    if isinstance(half, str):
        return "".join(cells) + f"   fails: {half[:90]}"
    return "".join([*cells, f"{half / fp32:12.1f}", *(f"{half / took[name]:8.1f} x" for name in ("O1", "O2"))])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=6.0, help="CPU seconds for each network, about")
    arguments.add_argument("--only", default="", help="networks whose name or size has this word")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, one thread; one training step,")
    print("CPU seconds as multiples of FP32's; at the right, how many times faster than torch FP16 ours are")
    print(f"{'':19} {'FP32':>11}{'O1':>7}{'O2':>7}{'BF16':>7}{'torch FP16':>12}{'O1':>10}{'O2':>10}")
    for case in CASES:
        if chosen.only in f"{case.name} {case.size}":
            print(row(case, medians(case, chosen.seconds)), flush=True)


if __name__ == "__main__":
    main()
