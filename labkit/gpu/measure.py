"""Measurements of a GPU beyond timed products: steps, inference, throughput, GPU-only faults.

Each measurement is an item. Its line maps each way of training (a recipe, or a library's autocast)
to numbers: `seconds_a_call` and `mebibytes` of a step, `steps_per_second` of a task. "failed" maps
the ways that raised to their reasons. All ways take turns, and the median counts. The summary also
gives ratios to the first way that ran, to be compared with claims such as "2x" or "50% on a UNet".
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
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
# Steps of each training in `twice`.
STEPS = 3
# Classes of characters and of pixels.
CLASSES = 16
# The length of a sequence.
LENGTH = 32


# Name -> function from a width to one of the networks of the lab's own tasks. Widths are multiples
# of 8, which Tensor Cores need for full speed.
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "MLP": networks.mlp,
    "CNN": lambda width: networks.batch_norm_cnn(width // 8),
    "transformer": lambda width: networks.Gpt(CLASSES, LENGTH, width),
    "LSTM": lambda width: networks.CharLstm(CLASSES, width),
    "UNet": lambda width: networks.Unet(CLASSES, max(8, width // 64)),
}


def example(network: str, width: int, batch: int, device: str) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a network, a batch and its targets, the same for the same arguments and device."""
    torch.manual_seed(0)
    model = NETWORKS[network](width).to(device)
    if network in ("transformer", "LSTM"):
        x, target = torch.randint(0, CLASSES, (2, batch, LENGTH), device=device)
        return model, x, target
    side = 8
    target_shape: tuple[int, ...] = (batch,)
    if network == "UNet":
        # a class for each pixel
        side = max(16, width // 32)
        target_shape = (batch, side, side)
    target = torch.randint(0, 10, target_shape, device=device)
    return model, torch.randn(batch, 1, side, side, device=device), target


def cross_entropy(out: Tensor, target: Tensor) -> Tensor:
    """Return the loss of logits [n, classes, ...], or of a sequence's [n, t, classes]."""
    if out.dim() == 3:
        # torch expects the classes in the second dimension
        out = out.transpose(1, 2)
    return nn.functional.cross_entropy(out, target)


Step = Callable[[], object]
# Ways of training that are not recipes: torch's autocast and scaler, and the lab's in their place.
TORCH_AMP = "torch.amp"
DROP_IN = "drop-in"
AMP_WAYS = (TORCH_AMP, DROP_IN, "O1", "O2", "FP32")
SPEED_WAYS = ("FP32", "TF32", "O1", "O1 graph", TORCH_AMP, "O2", "BF16")
COMPILED = ("O1 graph compiled", "torch.amp compiled")
# way -> its autocast region and its gradient scaler
REGIONS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    TORCH_AMP: (torch.autocast, torch.amp.GradScaler),
    DROP_IN: (autocast, GradScaler),
}


def training(recipe: str, model: nn.Module, x: Tensor, target: Tensor) -> Step:
    """Return a training step: forward, cross-entropy, backward, AdamW.

    Args:
        recipe: name of a recipe, or TORCH_AMP or DROP_IN.
        model: the network, on the device of `x`.
        x: a batch of inputs.
        target: the targets of the batch.
    """
    device = x.device.type
    if recipe not in REGIONS:
        engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
        return engine_step(engine, lambda: cross_entropy(engine(x), target))
    region, make_scaler = REGIONS[recipe]
    scaler = make_scaler(device)
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
    """Return a training step of an engine.

    Args:
        engine: the engine with its model and optimizer.
        loss: called in the engine's forward region.
        clip: whether gradients are clipped to a norm of 1.
    """

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
    """Return a forward pass in evaluation mode, without a scaler.

    The arguments are those of `training`; `target` is not used. A recipe's engine holds its master
    weights, which inference does not need: they count in the memory of this step.
    """
    device = x.device.type
    forward: Callable[[Tensor], object] = model
    make_region: Callable[[], AbstractContextManager[object]]
    if recipe in REGIONS:
        make_region = partial(REGIONS[recipe][0], device, torch.float16)
    else:
        engine = Engine(model, torch.optim.AdamW, RECIPES[recipe], device=device)
        forward = engine
        make_region = engine.forward
    model.eval()

    def step() -> None:
        with torch.no_grad(), make_region():
            forward(x)

    return step


KINDS: dict[str, Callable[..., Step]] = {"training": training, "inference": inference}


def prepared(make: Callable[[], Step], device: str) -> tuple[Step, float | None]:
    """Return a step that has run four times, and the peak MiB of the fourth; None on a CPU.

    The MiB are those of this step alone, its network and optimizer included.
    """
    # frees what earlier steps left in reference cycles, before memory is measured
    gc.collect()
    others = torch.cuda.memory_allocated() if device == "cuda" else 0
    step = make()
    # the first steps create the optimizer's state and trace a graph
    for _ in range(3):
        step()
    if device != "cuda":
        step()
        return step, None
    torch.cuda.reset_peak_memory_stats()
    step()
    return step, (torch.cuda.max_memory_allocated() - others) / 2**20


def cost(
    network: str,
    kind: str,
    ways: Collection[str],
    size: Mapping[str, int],
    *,
    steps: int = 5,
    rounds: int = 7,
) -> Item:
    """Return the item of a step's cost in each way, in seconds and MiB.

    The summary gives speeds as multiples of the first way's.

    Args:
        network: a key of NETWORKS.
        kind: a key of KINDS.
        ways: recipes, TORCH_AMP, DROP_IN, and those of COMPILED.
        size: "width" of the network and "batch".
        steps: number of steps in one timing.
        rounds: number of timings of each way.
    """

    def make(way: str, device: str) -> Step:
        model, *batch = example(network, size["width"], size["batch"], device)
        # compilation takes minutes, too long for a rehearsal on a CPU
        if way in COMPILED and device == "cuda":
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
        # the first round warms up
        seconds = time_interleaved(turns, rounds + 1)
        found["seconds_a_call"] = {
            way: statistics.median(each[1:]) for way, each in seconds.items()
        }
        found["summary"] = "\n".join(_cost_lines(found))

    name = f"{kind} of {network} of width {size['width']}, batch {size['batch']}"
    for way in ways:
        if way in COMPILED:
            name += f", {way}"
    return Item(name, Kind.TIMING, run)


def _cost_lines(found: Line) -> list[str]:
    seconds = found["seconds_a_call"]
    # the empty line puts the table below the item's name
    lines = [""]
    for way, each in seconds.items():
        # the first way that ran is the reference
        first = next(iter(seconds))
        line = (
            f"  {way:<18} {1000 * each:9.3f} ms {seconds[first] / each:6.2f} x as fast as {first}"
        )
        if found["mebibytes"][way] is not None:
            line += f"{found['mebibytes'][way]:9.1f} MiB"
        lines.append(line)
    lines.extend(f"  {way}: LEFT OUT, {why}" for way, why in found["failed"].items())
    return lines


def speed(size: Mapping[str, int], **turns: int) -> list[Item]:
    """Return the items of three networks in all ways, training and inference.

    The networks are a large MLP, one too small to gain from half precision, and a UNet.

    Args:
        size: "width" and "batch" from which the networks' sizes are derived.
        **turns: `steps` and `rounds` of `cost`.
    """
    width = size["width"]
    batch = size["batch"]
    sizes = (
        ("MLP", {"width": width, "batch": 16 * batch}),
        ("MLP", {"width": width // 16, "batch": batch // 4}),
        ("UNet", {"width": width, "batch": batch // 8}),
    )
    # Compiled ways come last: one compilation may take longer than all other items.
    groups: list[tuple[str, ...]] = [SPEED_WAYS]
    groups.extend(("FP32", way) for way in COMPILED)
    return [
        cost(network, kind, ways, network_size, **turns)
        for ways in groups
        for network, network_size in sizes
        for kind in KINDS
    ]


def pace(task: Task, seconds: Callable[[], float], *, steps: int = 5, rounds: int = 3) -> Item:
    """Return the item of a task's training steps a second under PACED_RECIPES.

    Args:
        task: what is trained.
        seconds: returns the time after which no timing begins; called when the item begins.
        steps: number of steps in one timing.
        rounds: number of timings of each recipe.
    """

    def run(device: str, found: Line) -> None:
        end = monotonic() + seconds()
        failed = dict[str, str]()

        def note_failure(recipe: str, error: Exception) -> None:
            failed[recipe] = reason(error)

        found["steps_per_second"] = steps_per_second(
            task,
            [RECIPES[name] for name in PACED_RECIPES],
            device=device,
            steps=steps,
            rounds=rounds,
            stop=lambda: monotonic() > end,
            failed=note_failure,
        )
        if failed:
            found["failed"] = failed
        lines = [""]
        if found["steps_per_second"]:
            lines = [throughput_sentence(found["steps_per_second"], place(device).name)]
        lines.extend(f"{recipe}: LEFT OUT, {why}" for recipe, why in failed.items())
        found["summary"] = "\n  ".join(lines)

    return Item(f"pace {task.name}", Kind.TIMING, run)


def cards(known: Sequence[GpuCard], width: int) -> list[Item]:
    """Return the items of faults that only a GPU shows.

    Each measures the broken and the repaired form, and says whether the fault shows.
    """
    return [Item(f"card {card.id}", Kind.TIMING, partial(_card, card, width)) for card in known]


def _card(card: GpuCard, width: int, device: str, found: Line) -> None:
    torch.manual_seed(0)
    broken, broken_error = measured(card, device, False, width)
    cured, cured_error = measured(card, device, True, width)
    # an error of the broken form shows the fault only if it is one of its known errors
    error_fits = not broken_error or any(known in broken_error for known in card.errors)
    shows = not cured_error and error_fits and card.shows(broken, cured)
    found |= {
        "unit": card.unit,
        "broken": broken,
        "cured": cured,
        "error": broken_error or cured_error,
        "cured_error": cured_error,
        "shows": shows,
    }
    if cured is None:
        found["summary"] = f"not measured, the repaired form failed: {cured_error}"
        return
    as_it_fails = broken_error if broken is None else f"{broken:.3g}"
    verdict = "shows here" if shows else "does not show here"
    found["summary"] = (
        f"{as_it_fails} as it fails, {cured:.3g} repaired ({card.unit}); it {verdict}"
    )


def twice(task: Task, recipe: Recipe) -> Item:
    """Return the item of STEPS training steps on the CPU, on the device, and on the device again.

    Its line holds the losses in hexadecimal, which keeps every bit.
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
        result = f"{differ} losses that differ in some bit" if differ else "the same losses"
        found["summary"] = f"trained twice: {result}"

    return Item(f"train {task.name} {recipe.name}", Kind.TRAINING, run)


def ulps_apart(a: float, b: float) -> int | None:
    """Return how many FP32 numbers two FP32 numbers are apart.

    It is None if they are not finite, unless both are NaN or the same infinity.

    >>> ulps_apart(1.0, 1.0 + 2.0**-23), ulps_apart(-0.0, 0.0), ulps_apart(1.0, float("nan"))
    (1, 0, None)
    """
    if not np.isfinite([a, b]).all():
        both_nan = np.isnan(a) and np.isnan(b)
        return 0 if a == b or both_nan else None
    # codes of one sign count up with the values; those of negative numbers count down from 0
    first = int(np.abs(np.float32(a)).view(np.int32))
    second = int(np.abs(np.float32(b)).view(np.int32))
    if (a < 0) != (b < 0):
        return first + second
    return abs(first - second)
