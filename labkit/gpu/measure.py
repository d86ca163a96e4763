"""Measurements of a GPU beyond timed products: steps, inference, throughput, GPU-only faults.

Each is an item whose line holds numbers by way, and in "failed" the ways that raised, each with its
reason: `seconds_a_call` and `mebibytes` of a step, `steps_per_second` of a task. All ways take
turns, and the median counts. The line also holds the ratios to the first way, which is what claims
such as "2x" or "50% on a UNet" are about.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labkit.amp import RECIPES, Engine, Recipe
from labkit.bench.interleaved_timing import host_seconds, time_interleaved
from labkit.faults.gpu import GpuCard, measured
from labkit.frameworks import GradScaler, autocast
from labkit.gemm import fp32_precision
from labkit.gpu.worker import Item, Kind, Line, reason, synchronize
from labkit.train import TrainingRun, networks, place, steps_per_second, throughput_sentence
from labkit.train.tasks import Task

PACED_RECIPES = ("FP32", "FP16 dynamic", "O1", "BF16")
STEPS = 3
CLASSES, LENGTH = 16, 32


# Name -> the network of a width: those of the lab's own tasks. Widths are multiples of 8, as Tensor
# Cores like them.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "MLP": networks.mlp,
    "CNN": lambda width: networks.batch_norm_cnn(width // 8),
    "transformer": lambda width: networks.Gpt(CLASSES, LENGTH, width),
    "LSTM": lambda width: networks.CharLstm(CLASSES, width),
    "UNet": lambda width: networks.Unet(CLASSES, max(8, width // 64)),
}


def example(network: str, width: int, batch: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, a batch and its targets, always the same."""
    torch.manual_seed(0)
    model = NETWORKS[network](width).to(device)
    if network in ("transformer", "LSTM"):
        x, target = torch.randint(0, CLASSES, (2, batch, LENGTH), device=device)
        return model, x, target
    pixels = network == "UNet"
    side = max(16, width // 32) if pixels else 8
    target = torch.randint(0, 10, (batch, side, side) if pixels else (batch,), device=device)
    return model, torch.randn(batch, 1, side, side, device=device), target


def cross_entropy(out: Tensor, target: Tensor) -> Tensor:
    """Return the loss of logits [n, classes, ...], or of a sequence's [n, t, classes]."""
    return nn.functional.cross_entropy(out.transpose(1, 2) if out.dim() == 3 else out, target)


Step = Callable[[], object]
TORCH_AMP, DROP_IN = "torch.amp", "drop-in"  # beside the recipes
AMP_WAYS = (TORCH_AMP, DROP_IN, "O1", "O2", "FP32")
SPEED_WAYS = ("FP32", "TF32", "O1", "O1 graph", TORCH_AMP, "O2", "BF16")
COMPILED = ("O1 graph compiled", "torch.amp compiled")
REGIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    TORCH_AMP: (torch.autocast, torch.amp.GradScaler),
    DROP_IN: (autocast, GradScaler),
}


def training(recipe: str, model: nn.Module, x: Tensor, target: Tensor) -> Step:
    """Return a training step: forward, cross-entropy, backward, AdamW."""
    device = x.device.type
    if recipe not in REGIONS:
        engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
        return engine_step(engine, lambda: cross_entropy(engine(x), target))
    region = REGIONS[recipe][0]
    scaler = REGIONS[recipe][1](device)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with region(device, torch.float16):
            loss = cross_entropy(model(x), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


def engine_step(engine: Engine, loss: Callable[[], Tensor], *, clip: bool = False) -> Step:
    """Return a training step of an engine, by a loss that is computed in its region."""

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            computed = loss()
        engine.backward(computed)
        if clip:
            engine.clip(1.0)
        engine.step()

    return step


def inference(recipe: str, model: nn.Module, x: Tensor, target: Tensor) -> Step:
    """Return a forward pass in evaluation mode, which needs no master weights and no scaler."""
    device = x.device.type
    engine = (
        None
        if recipe in REGIONS
        else Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
    )
    call = engine or model
    model.eval()

    def step() -> None:
        region = REGIONS[recipe][0](device, torch.float16) if engine is None else engine.forward()
        with torch.no_grad(), region:
            call(x)

    return step


KINDS: dict[str, Callable[..., Step]] = {"training": training, "inference": inference}


def prepared(make: Callable[[], Step], device: str) -> tuple[Step, float | None]:
    """Return a step that has run four times, and the peak MiB of the fourth; None on a CPU.

    The MiB are those of this step alone, optimizer included.
    """
    # what earlier steps left in cycles is freed now, not while this one is measured
    gc.collect()
    others = torch.cuda.memory_allocated() if device == "cuda" else 0
    step = make()
    for _ in range(3):  # an optimizer's state is made, and a graph is traced
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    step()
    return step, (torch.cuda.max_memory_allocated() - others) / 2**20 if device == "cuda" else None


def cost(
    network: str,
    kind: str,
    ways: Collection[str],
    size: Mapping[str, int],
    *,
    steps: int = 5,
    rounds: int = 7,
) -> Item:
    """Return the item of a step's cost under each method, in seconds and MiB.

    Both are also multiples of the first method's.
    """

    def make(way: str, device: str) -> Step:
        model, *batch = example(network, size["width"], size["batch"], device)
        if way in COMPILED and device == "cuda":  # a rehearsal has not the minutes
            model = torch.compile(model)  # type: ignore[assignment]
        step = KINDS[kind](way.removesuffix(" compiled"), model, *batch)

        def in_precision() -> None:
            with fp32_precision("tf32" if way == "TF32" else "ieee"):
                step()

        return in_precision

    def run(device: str, found: Line) -> None:
        made: dict[str, Step] = {}
        found |= {"network": network, **size, "seconds_a_call": {}, "mebibytes": {}, "failed": {}}
        for way in ways:
            try:
                made[way], found["mebibytes"][way] = prepared(partial(make, way, device), device)
            except Exception as error:
                found["failed"][way] = reason(error)
        turns = {
            way: partial(host_seconds, step, steps, partial(synchronize, device))
            for way, step in made.items()
        }
        seconds = time_interleaved(turns, rounds + 1)  # the first round warms up
        found["seconds_a_call"] = {
            way: statistics.median(each[1:]) for way, each in seconds.items()
        }
        found["summary"] = "\n".join(_cost_lines(found))

    what = f"{network} of width {size['width']}, batch {size['batch']}"
    compiled = "".join(f", {way}" for way in ways if way in COMPILED)
    return Item(f"{kind} of {what}{compiled}", Kind.TIMING, run)


def _cost_lines(found: Line) -> list[str]:
    seconds = found["seconds_a_call"]
    lines = [""]
    first = next(iter(seconds), "")
    for way, each in seconds.items():
        memory = "" if found["mebibytes"][way] is None else f"{found['mebibytes'][way]:9.1f} MiB"
        lines.append(
            f"  {way:<18} {1000 * each:9.3f} ms {seconds[first] / each:6.2f} x as fast as "
            f"{first}{memory}"
        )
    return [*lines, *(f"  {way}: LEFT OUT, {why}" for way, why in found["failed"].items())]


def speed(size: Mapping[str, int], **turns: int) -> list[Item]:
    """Return the items of three networks under all methods.

    They are a large MLP, one too small for half precision, and a UNet.

    What has to be compiled comes after everything else: a compilation may take longer than all the
    rest.
    """
    width, batch = size["width"], size["batch"]
    sizes = (
        ("MLP", width, 16 * batch),
        ("MLP", width // 16, batch // 4),
        ("UNet", width, batch // 8),
    )
    return [
        cost(network, kind, ways, {"width": width, "batch": batch}, **turns)
        for ways in (SPEED_WAYS, *(("FP32", way) for way in COMPILED))
        for network, width, batch in sizes
        for kind in KINDS
    ]


def pace(task: Task, seconds: Callable[[], float], *, steps: int = 5, rounds: int = 3) -> Item:
    """Return the item of a task's training steps a second under PACED_RECIPES.

    No round begins after the seconds.
    """

    def run(device: str, found: Line) -> None:
        end = monotonic() + seconds()
        failed = dict[str, str]()
        found["steps_per_second"] = steps_per_second(
            task,
            [RECIPES[name] for name in PACED_RECIPES],
            device=device,
            steps=steps,
            rounds=rounds,
            stop=lambda: monotonic() > end,
            failed=lambda recipe, error: failed.__setitem__(recipe, reason(error)),
        )
        if failed:
            found["failed"] = failed
        rates = (
            throughput_sentence(found["steps_per_second"], place(device).name)
            if found["steps_per_second"]
            else ""
        )
        found["summary"] = "\n  ".join(
            [rates, *(f"{recipe}: LEFT OUT, {why}" for recipe, why in failed.items())]
        )

    return Item(f"pace {task.name}", Kind.TIMING, run)


def cards(known: Sequence[GpuCard], width: int) -> list[Item]:
    """Return the items of faults that only a GPU shows.

    Each has the measurements of both forms, and whether they differ.
    """
    return [Item(f"card {card.id}", Kind.TIMING, partial(_card, card, width)) for card in known]


def _card(card: GpuCard, width: int, device: str, found: Line) -> None:
    torch.manual_seed(0)
    (broken, error), (cured, why) = (measured(card, device, form, width) for form in (False, True))
    shows = (
        not why
        and (not error or any(known in error for known in card.errors))
        and card.shows(broken, cured)
    )
    found |= {
        "unit": card.unit,
        "broken": broken,
        "cured": cured,
        "error": error or why,
        "shows": shows,
    }
    found["summary"] = f"not measured, {error or why}"
    if cured is not None:
        as_it_fails = error if broken is None else f"{broken:.3g}"
        verdict = "shows here" if shows else "does not show here"
        found["summary"] = (
            f"{as_it_fails} as it fails, {cured:.3g} repaired ({card.unit}); it {verdict}"
        )


def twice(task: Task, recipe: Recipe) -> Item:
    """Return the item of three steps on the CPU, on the device, and on the device again.

    Losses are hexadecimal.
    """

    def losses(device: str) -> list[float]:
        run = TrainingRun(task, recipe, device=device, measure_every=0)
        return [run.step().loss for _ in range(STEPS)]

    def run(device: str, found: Line) -> None:
        found |= {"task": task.name, "recipe": recipe.name}
        cpu = losses("cpu")
        found["cpu"] = [loss.hex() for loss in cpu]
        own = losses(device)
        found["losses"] = [loss.hex() for loss in own]
        found["ulps"] = [ulps_apart(*pair) for pair in zip(own, cpu, strict=True)]
        found["again"] = [loss.hex() for loss in losses(device)]
        differ = sum(a != b for a, b in zip(found["losses"], found["again"], strict=True))
        again = "the same losses" if not differ else f"{differ} losses that differ in some bit"
        found["summary"] = f"trained twice: {again}"

    return Item(f"train {task.name} {recipe.name}", Kind.TRAINING, run)


def ulps_apart(a: float, b: float) -> int | None:
    """Return how many FP32 numbers two FP32 numbers are apart.

    It is None if they are not finite, unless both are NaN or the same infinity.

    >>> ulps_apart(1.0, 1.0 + 2.0**-23), ulps_apart(-0.0, 0.0), ulps_apart(1.0, float("nan"))
    (1, 0, None)
    """
    if not np.isfinite([a, b]).all():
        return 0 if a == b or (a != a and b != b) else None
    # codes of one sign count up with the values; those of negative numbers count down from 0
    first = int(np.abs(np.float32(a)).view(np.int32))
    second = int(np.abs(np.float32(b)).view(np.int32))
    return first + second if (a < 0) != (b < 0) else abs(first - second)
