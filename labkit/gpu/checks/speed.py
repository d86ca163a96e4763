"""Speed and memory of training and inference in half precision.

Networks of the sizes for which the question is asked, and one that is too small for it. All ways take turns, round by
round, and the median counts; the ratio to FP32 is what is claimed ("2x", "50% on a UNet"), so it stands beside.

    labkit gpu --only speed
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine
from labkit.gemm import fp32_precision
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

TORCH_AMP = "torch.autocast, which is no recipe"
WAYS = {"FP32": ("FP32", ""), "TF32": ("FP32", "TF32"), "O1": ("O1", ""), "O1 graph": ("O1 graph", ""),
        "O1 graph compiled": ("O1 graph", "compiled"), "torch.amp": (TORCH_AMP, ""),
        "torch.amp compiled": (TORCH_AMP, "compiled"), "O2": ("O2", ""), "BF16": ("BF16", "")}  # fmt: skip
Task = tuple[nn.Module, Tensor]


class UNet(nn.Module):
    """Down twice, up twice, with bridges: the shape of most segmentation networks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second, self.third = _block(3, width), _block(width, 2 * width), _block(2 * width, 4 * width)
        self.up_second = nn.ConvTranspose2d(4 * width, 2 * width, 2, 2)
        self.up_first = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.after_second, self.after_first = _block(4 * width, 2 * width), _block(2 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        first = self.first(images)
        second = self.second(nn.functional.max_pool2d(first, 2))
        third = self.third(nn.functional.max_pool2d(second, 2))
        up = self.after_second(torch.cat([self.up_second(third), second], 1))
        out: Tensor = self.last(self.after_first(torch.cat([self.up_first(up), first], 1)))
        return out


def _block(inputs: int, outputs: int) -> nn.Sequential:
    convolutions = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)]
    return nn.Sequential(*(layer for conv in convolutions for layer in (conv, nn.BatchNorm2d(outputs), nn.ReLU())))


def _mlp(width: int) -> nn.Sequential:
    return nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())))


def tasks(width: int, batch: int, device: str) -> dict[str, Callable[[], Task]]:
    """Return name -> what makes a network and its inputs: a large MLP, a small one, a UNet."""

    def task(network: Callable[[], nn.Module], *shape: int) -> Task:
        torch.manual_seed(0)
        return network().to(device), torch.randn(*shape, device=device)

    side = max(16, width // 32)
    return {
        f"MLP, 4 layers of {width}, batch {16 * batch}": partial(task, partial(_mlp, width), 16 * batch, width),
        f"MLP, 4 layers of {width // 16}, batch {batch // 4}": (
            partial(task, partial(_mlp, width // 16), batch // 4, width // 16)
        ),
        f"UNet, {width // 64} channels, {batch // 8} images of {side}x{side}": (
            partial(task, partial(UNet, width // 64), batch // 8, 3, side, side)
        ),
    }


def training_step(way: str, new: Callable[[], Task], device: str) -> Step:
    """Return one training step: forward, backward, AdamW."""
    recipe, extra = WAYS[way]
    model, x = _network(way, new, device)
    if recipe is TORCH_AMP:
        region, scaler = partial(torch.autocast, device, torch.float16), torch.amp.GradScaler(device)
        optimizer = torch.optim.AdamW(model.parameters())
        step = torch_step(optimizer, region, scaler, lambda: model(x).float().square().mean())
    else:
        engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
        step = engine_step(engine, lambda: engine(x).float().square().mean())

    def in_precision() -> None:
        with fp32_precision("tf32" if extra == "TF32" else "ieee"):
            step()

    return in_precision


def _network(way: str, new: Callable[[], Task], device: str) -> Task:
    """Return a network and its inputs; compiled, if the way says so, but in a rehearsal, which has not the minutes."""
    model, x = new()
    if WAYS[way][1] == "compiled" and device == "cuda":
        model = torch.compile(model)  # type: ignore[assignment]
    return model, x


def inference(way: str, new: Callable[[], Task], device: str) -> Step:
    """Return one pass forward in evaluation mode, in which no master weights and no scaler are needed."""
    recipe, extra = WAYS[way]
    model, x = _network(way, new, device)
    engine = None if recipe is TORCH_AMP else Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
    call = engine or model.eval()
    model.eval()

    def step() -> None:
        region = torch.autocast(device, torch.float16) if engine is None else engine.forward()
        with fp32_precision("tf32" if extra == "TF32" else "ieee"), torch.no_grad(), region:
            call(x)

    return step


def main(
    device: str = "cuda",
    *,
    width: int = 4096,
    batch: int = 256,
    steps: int = 5,
    rounds: int = 7,
    seconds: float = float("inf"),
) -> Iterator[Answers]:
    """Find what each way takes for each task: milliseconds, times as fast as FP32, and MiB.

    What has to be compiled comes after everything else: a compilation may take longer than all the rest.
    """
    answers: Answers = {"rows": [], "left_out": {}}
    compiled = [way for way, (_, extra) in WAYS.items() if extra == "compiled"]
    plain = [way for way in WAYS if way not in compiled]

    def run(name: str, kind: str, ways: Collection[str]) -> None:
        new, make = tasks(width, batch, device)[name], KINDS[kind]
        steps_of, memory = all_prepared(
            {way: partial(make, way, new, device) for way in ("FP32", *(way for way in ways if way != "FP32"))},
            device,
            lambda way, why: answers["left_out"].__setitem__(f"{name}, {kind}, {way}", why),
        )
        took = median_seconds(steps_of, device, steps, rounds)
        answers["rows"] += [
            {"task": name, "kind": kind, "way": way, "milliseconds": 1000 * took[way],
             "times_as_fast": took["FP32"] / took[way] if "FP32" in took else None, "mebibytes": memory[way]}
            for way in ways if way in took
        ]  # fmt: skip

    items = [
        (f"{name}, {kind}, {', '.join(ways)}", partial(run, name, kind, ways))
        for ways in (plain, *([way] for way in compiled))
        for name in tasks(width, batch, device)
        for kind in KINDS
    ]
    yield from each(items, answers, seconds)


KINDS: dict[str, Callable[..., Step]] = {"training": training_step, "inference": inference}


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    lines = []
    for row in answers["rows"]:
        memory = "" if row["mebibytes"] is None else f"{row['mebibytes']:9.0f} MiB"
        faster = "" if row["times_as_fast"] is None else f" {row['times_as_fast']:5.2f} x as fast as FP32"
        lines.append(
            f"{row['task']:<45} {row['kind']:<9} {row['way']:<18} {row['milliseconds']:9.3f} ms{faster}{memory}"
        )
    return "\n".join([*lines, *left_out_lines(answers)])
