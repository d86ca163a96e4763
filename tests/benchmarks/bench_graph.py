"""What does a decision cost? A step of training with casts that are decided at each call, once, or by hand.

Run by hand: .venv/bin/python tests/benchmarks/bench_graph.py [--seconds 6] [--only WORD] [--compiled]

All in one run and in turns, one thread, CPU seconds, medians, as multiples of plain torch in FP32; beside each casts
of a step, forward and backward, as torch's dispatcher counts (what inductor fused, it does not see). "by hand" has the
casts of O1 in each layer's forward, products in FP32 and rounded once, as `half_storage` does, and a
static scale; it is what a graph can at best be. torch.amp is torch.autocast("cpu", torch.float16) with its scaler: its
half kernels are what takes its time, not its decisions, and it has no FP16 LSTM. Compiled rows say what of a compiled
graph is the compiler's own: for a small network, calling plain torch compiled takes longer than calling it.
"""

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import RECIPES, Engine, ScalerConfig
from labkit.gemm.recurrent import recurrent
from labkit.train import networks

SCALE = 2.0**8
SCALER = ScalerConfig(init_scale=SCALE)
SGD, ADAM = partial(torch.optim.SGD, lr=1e-4), partial(torch.optim.Adam, lr=1e-4)
VOCABULARY = 64
Step = Callable[[], object]


def digits(rows: int) -> tuple[Tensor, Tensor]:
    return torch.rand(rows, 1, 8, 8), torch.randint(10, (rows,))


def text() -> tuple[Tensor, Tensor]:
    return torch.randint(VOCABULARY, (32, 32)), torch.randint(VOCABULARY, (32, 32))


CASES: dict[str, tuple[Callable[[], nn.Module], Any, tuple[Tensor, Tensor]]] = {
    "MLP, SGD": (partial(networks.mlp, depth=2), SGD, digits(64)),
    "MLP, Adam": (partial(networks.mlp, depth=2), ADAM, digits(64)),
    "CNN": (networks.batch_norm_cnn, ADAM, digits(64)),
    "LSTM": (partial(networks.CharLstm, VOCABULARY), ADAM, text()),
    "GPT": (partial(networks.Gpt, VOCABULARY, 32), ADAM, text()),
    "UNet": (networks.Unet, ADAM, (torch.rand(12, 1, 16, 16), torch.randint(3, (12, 16, 16)))),
}


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return (
        F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        if logits.dim() == 3
        else F.cross_entropy(logits, targets)
    )


# --- casts by hand ---------------------------------------------------------------------------------------------------


def wide(tensor: Tensor | None) -> Tensor | None:
    """An operand of a product: rounded to FP16, and in FP32 again, which is exact."""
    return None if tensor is None else (tensor if tensor.dtype is torch.float16 else tensor.half()).float()


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(wide(x), wide(layer.weight), wide(layer.bias)).half()


def conv(layer: Any, x: Tensor) -> Tensor:
    up = isinstance(layer, nn.ConvTranspose2d)
    function = partial(F.conv_transpose2d, stride=layer.stride) if up else partial(F.conv2d, padding=layer.padding)
    return function(wide(x), wide(layer.weight), wide(layer.bias)).half()


def batch_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    layer.num_batches_tracked.add_(1)
    return F.batch_norm(x.float(), layer.running_mean, layer.running_var, layer.weight, layer.bias, True).half()


def lstm(layer: nn.LSTM, x: Tensor) -> Any:
    h = torch.zeros(1, len(x), layer.hidden_size, dtype=torch.float16)
    weights = [weight.half() for weight in layer._flat_weights]
    output, *state = recurrent("lstm", x.half(), (h, h), weights, True, 1, 0.0, True, False, True)
    return output, state


def attention(layer: Any, x: Tensor) -> Tensor:
    n, t, width = x.shape
    q, k, v = layer.qkv(x).view(n, t, 3, layer.heads, width // layer.heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), is_causal=True).half()
    return layer.out(mixed.transpose(1, 2).reshape(n, t, width))


def norm(layer: Any, x: Tensor) -> Tensor:
    return type(layer).forward(layer, x.float())


BY_HAND = {
    nn.Linear: linear, nn.Conv2d: conv, nn.ConvTranspose2d: conv, nn.BatchNorm2d: batch_norm, nn.LSTM: lstm,
    networks._Attention: attention, nn.LayerNorm: norm, nn.GroupNorm: norm,
}  # fmt: skip


def with_casts(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if type(module) in BY_HAND:
            module.forward = MethodType(BY_HAND[type(module)], module)
    return model


# --- the ways --------------------------------------------------------------------------------------------------------


def loop(
    make: Any, optimizer: Any, batch: tuple[Tensor, Tensor], *, scale: float = 1.0, compiled: bool = False
) -> Step:
    """Plain torch, in FP32 or with casts by hand."""
    model = torch.compile(make(), fullgraph=True) if compiled else make()
    steps, (inputs, targets) = optimizer(model.parameters()), batch

    def step() -> None:
        steps.zero_grad()
        (loss_of(model(inputs).float(), targets) * scale).backward()
        for parameter in model.parameters() if scale != 1 else ():
            parameter.grad.div_(scale)
        steps.step()

    return step


def torchs(make: Any, optimizer: Any, batch: tuple[Tensor, Tensor], *, compiled: bool = False) -> Step:
    model = torch.compile(make()) if compiled else make()
    steps, (inputs, targets) = optimizer(model.parameters()), batch
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)

    def step() -> None:
        steps.zero_grad()
        with torch.autocast("cpu", torch.float16):
            logits = model(inputs)
        scaler.scale(loss_of(logits.float(), targets)).backward()
        scaler.step(steps)
        scaler.update()

    return step


def ours(recipe: str, make: Any, optimizer: Any, batch: tuple[Tensor, Tensor], *, compiled: bool = False) -> Step:
    row, (inputs, targets) = RECIPES[recipe], batch
    model = torch.compile(make(), fullgraph=True) if compiled else make()
    engine = Engine(model, optimizer, replace(row, scaler=SCALER) if row.scaler.dynamic else row)

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = loss_of(engine(inputs), targets)
        engine.backward(loss)
        if not engine.step().stepped:
            raise RuntimeError("a step was skipped, and would be counted as a fast one")

    return step


WAYS: dict[str, Callable[..., Step]] = {
    "plain": loop,
    "by hand": lambda make, *rest, **options: loop(lambda: with_casts(make()), *rest, scale=SCALE, **options),
    "Engine FP32": partial(ours, "FP32"),
    "O1": partial(ours, "O1"),
    "O1 graph": partial(ours, "O1 graph"),
    "O1 graph compiled": partial(ours, "O1 graph", compiled=True),
    "O2": partial(ours, "O2"),
    "torch.amp": torchs,
}
WAYS |= {f"{name} compiled": partial(WAYS[name], compiled=True) for name in ("plain", "by hand", "torch.amp")}


class Casts(TorchDispatchMode):
    """Counts what changes a dtype."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._to_copy.default
        return func(*args, **(kwargs or {}))


def measure(case: str, seconds: float, ways: list[str]) -> dict[str, tuple[float, int] | str]:
    """Way -> CPU seconds of a step and casts in it, or what it fails with."""
    make, optimizer, batch = CASES[case]
    steps = {name: WAYS[name](make, optimizer, batch) for name in ways}
    found: dict[str, tuple[float, int] | str] = {}
    if case == "LSTM":  # inductor would unroll each step in time, and take a quarter of an hour
        found |= {name: "not tried" for name in ways if "compiled" in name}
        steps = {name: step for name, step in steps.items() if name not in found}
    casts, taken = {}, {name: [] for name in steps}
    for name, step in list(steps.items()):
        try:
            for _ in range(3):  # the third is the first that runs as a graph
                step()
            with Casts() as counted:
                step() if "compiled" not in name else None
            casts[name] = counted.count
        except RuntimeError as error:
            found[name] = str(error).splitlines()[0][:60]
            del steps[name]
    while sum(map(sum, taken.values())) < seconds:
        for name, step in steps.items():
            start = time.process_time()
            step()
            taken[name].append(time.process_time() - start)
    return found | {name: (statistics.median(taken[name]), casts[name]) for name in steps}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--seconds", type=float, default=6.0, help="CPU seconds for each network, about")
    arguments.add_argument("--only", default="", help="networks whose name has this word")
    arguments.add_argument("--compiled", action="store_true", help="with torch.compile, which takes minutes to begin")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    ways = [name for name in WAYS if chosen.compiled or "compiled" not in name]
    print(f"torch {torch.__version__}, one thread; a step as a multiple of plain torch's, and its casts")
    print(f"{'':11}{'plain':>10}" + "".join(f"{name:>19}" for name in ways[1:]))
    for case in (case for case in CASES if chosen.only in case):
        found = measure(case, chosen.seconds, ways)
        base = found["plain"][0]
        cells = [f"{case:11}{base * 1e3:7.2f} ms"]
        for name in ways[1:]:
            told = found[name]
            if isinstance(told, str):
                cells.append(f"{'not tried' if told == 'not tried' else 'fails':>19}")
            else:
                cells.append(f"{told[0] / base:14.2f}" + ("    -" if "compiled" in name else f"{told[1]:5d}"))
        print("".join(cells), flush=True)


if __name__ == "__main__":
    main()
