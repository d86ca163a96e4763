"""Cost of a training step in mixed precision on a CPU, as a multiple of plain torch's in FP32.

    .venv/bin/python -m tests.benchmarks.bench_training [--seconds 6] [--only WORD] [--ways WAY ...]

A way is one of these, and each may be followed by " compiled" (it then takes minutes to begin):

- the name of a recipe;
- "by hand": O1's casts in the forward pass of each layer, products in FP32 that are rounded once,
  and a static scale, as fast as a graph can be at best;
- "torch.amp": torch.autocast("cpu", torch.float16) with its scaler. Its half kernels take most of
  its time, and it has no FP16 LSTM;
- "drop-in": the lab's torch.amp.

The number in brackets is that of the casts in a step, as torch's dispatcher counts them. Large
networks pay for casts of operands and results, small ones for the Python around each operation
(bench_autocast.py).

Aims: 5 times as fast as torch.amp on CNN and transformer; at most 1.6 times FP32's time where
matrix products dominate; at most 6 times for recipes of 8 or 4 bits ("FP8 current", "FP8 delayed",
MXFP8, NVFP4, "unit scaled", "BF16 Kahan").
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from labkit.amp import RECIPES, Engine, ScalerConfig
from labkit.frameworks import GradScaler, autocast
from labkit.gemm.recurrent import recurrent
from labkit.train import networks
from tests.benchmarks.measuring import Call, medians, options

# So low that no step is skipped.
SCALE = 2.0**8
ADAM = partial(torch.optim.Adam, lr=1e-4)
SGD = partial(torch.optim.SGD, lr=1e-4)
VOCABULARY = 64
WAYS = ["by hand", "FP32", "O1", "O1 graph", "O2", "BF16", "torch.amp"]


@dataclass(frozen=True)
class Case:
    """A network, its optimizer, and the shapes of a batch.

    The inputs of a batch are pixels or characters.
    """

    name: str
    model: Callable[[], nn.Module]
    inputs: tuple[int, ...]
    targets: tuple[int, ...]
    optimizer: Callable[..., torch.optim.Optimizer] = ADAM

    def batch(self) -> tuple[Tensor, Tensor]:
        text = len(self.inputs) == 2
        inputs = torch.randint(VOCABULARY, self.inputs) if text else torch.rand(self.inputs)
        return inputs, torch.randint(3, self.targets)


CASES = (
    Case("MLP, SGD", partial(networks.mlp, depth=2), (64, 1, 8, 8), (64,), SGD),
    Case("MLP", partial(networks.mlp, depth=2), (64, 1, 8, 8), (64,)),
    Case("CNN", networks.batch_norm_cnn, (64, 1, 8, 8), (64,)),
    Case("UNet", networks.Unet, (12, 1, 16, 16), (12, 16, 16)),
    Case("GPT", partial(networks.Gpt, VOCABULARY, 32), (32, 32), (32, 32)),
    Case("LSTM", partial(networks.CharLstm, VOCABULARY), (32, 32), (32, 32)),
    Case("MLP, large", partial(networks.mlp, hidden=1024), (256, 1, 8, 8), (256,)),
    Case("CNN, large", partial(networks.batch_norm_cnn, channels=128), (64, 1, 8, 8), (64,)),
    Case("GPT, large", partial(networks.Gpt, VOCABULARY, 64, width=256, heads=8), (8, 64), (8, 64)),
)


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy in FP32.

    The logits of a text [batch, length, classes] have their classes on the last axis.
    """
    if logits.dim() == 3:
        logits = logits.flatten(0, 1)
        targets = targets.flatten()
    return F.cross_entropy(logits.float(), targets)


# --- casts by hand --------------------------------------------------------------------------------


def wide(tensor: Tensor | None) -> Tensor | None:
    """An operand of a product: rounded to FP16, and in FP32 again, which is exact."""
    return None if tensor is None else tensor.half().float()


def linear(layer: nn.Linear, x: Tensor) -> Tensor:
    return F.linear(wide(x), wide(layer.weight), wide(layer.bias)).half()


def conv(layer: Any, x: Tensor) -> Tensor:
    up = isinstance(layer, nn.ConvTranspose2d)
    function = (
        partial(F.conv_transpose2d, stride=layer.stride)
        if up
        else partial(F.conv2d, padding=layer.padding)
    )
    return function(wide(x), wide(layer.weight), wide(layer.bias)).half()


def batch_norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    layer.num_batches_tracked.add_(1)
    return F.batch_norm(
        x.float(), layer.running_mean, layer.running_var, layer.weight, layer.bias, True
    ).half()


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
    nn.Linear: linear,
    nn.Conv2d: conv,
    nn.ConvTranspose2d: conv,
    nn.BatchNorm2d: batch_norm,
    nn.LSTM: lstm,
    networks._Attention: attention,
    nn.LayerNorm: norm,
    nn.GroupNorm: norm,
}


# --- steps ----------------------------------------------------------------------------------------


def step_of(way: str, case: Case) -> Call:
    """Return a training step: of plain torch, with casts by hand, of torch.amp, or of a recipe."""
    name = way.removesuffix(" compiled")
    model = case.model()
    inputs, targets = case.batch()
    for module in model.modules() if name == "by hand" else ():
        if type(module) in BY_HAND:
            module.forward = MethodType(BY_HAND[type(module)], module)
    if way != name:
        model = torch.compile(model)
    if name in RECIPES:
        return engine_step(RECIPES[name], case, model, inputs, targets)
    return loop(name, case, model, inputs, targets)


def engine_step(recipe: Any, case: Case, model: nn.Module, inputs: Tensor, targets: Tensor) -> Call:
    scaled = (
        replace(recipe, scaler=ScalerConfig(init_scale=SCALE)) if recipe.scaler.dynamic else recipe
    )
    engine = Engine(model, case.optimizer, scaled)

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = loss_of(engine(inputs), targets)
        engine.backward(loss)
        if not engine.step().stepped:
            raise RuntimeError("a step was skipped, and would be counted as a fast one")

    return step


def loop(name: str, case: Case, model: nn.Module, inputs: Tensor, targets: Tensor) -> Call:
    optimizer = case.optimizer(model.parameters())
    scale = SCALE if name == "by hand" else 1
    region, scaling = (
        (autocast, GradScaler) if name == "drop-in" else (torch.autocast, torch.amp.GradScaler)
    )
    amp = name in ("torch.amp", "drop-in")
    scaler = scaling("cpu", init_scale=SCALE, enabled=amp)

    def step() -> None:
        optimizer.zero_grad()
        with region("cpu", torch.float16, enabled=amp):
            logits = model(inputs)
        scaler.scale(loss_of(logits, targets) * scale).backward()
        for parameter in model.parameters() if scale != 1 else ():
            parameter.grad.div_(scale)
        scaler.step(optimizer)
        scaler.update()

    return step


class Casts(TorchDispatchMode):
    """Counts what changes a dtype."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default:
            self.count += 1
        return func(*args, **(kwargs or {}))


def casts_of(way: str, step: Call) -> int | str:
    """Return how many casts a step has, or how it fails.

    They are counted in the third step, which is the first that runs as a graph.
    """
    try:
        for _ in range(3):
            step()
        if "compiled" in way:
            return "-"
        with Casts() as counted:
            step()
    except RuntimeError as error:
        return f"fails: {str(error).splitlines()[0][:40]}"
    return counted.count


def main() -> None:
    chosen = options(__doc__, seconds=6.0, only="", ways=WAYS)
    warnings.simplefilter("ignore")
    for case in (case for case in CASES if chosen.only in case.name):
        steps = {way: step_of(way, case) for way in ["plain", *chosen.ways]}
        casts = {way: casts_of(way, step) for way, step in steps.items()}
        works = {way: step for way, step in steps.items() if "fails" not in str(casts[way])}
        took = medians(works, chosen.seconds, fewest=3)
        cells = [
            f"{way} {took[way] / took['plain']:.2f} ({casts[way]})"
            for way in works
            if way != "plain"
        ]
        cells += [f"{way} {casts[way]}" for way in steps if way not in works]
        print(
            f"{case.name:12} plain {took['plain'] * 1e3:.2f} ms; times that (casts): "
            f"{', '.join(cells)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
