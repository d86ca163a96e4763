"""The items of a passport, in their order: what is cheap and most needed first, timings and compilation last.

An item fills a dictionary while it runs, so what it had found before it failed is in its line too.
"""

from __future__ import annotations

import base64
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch
from torch import nn

from labkit.amp import RECIPES, Engine, Recipe
from labkit.bench import device_report
from labkit.bench.cases import GPU_SHORT, QUICK, Case, ceilings, formats_on
from labkit.bench.record import bench_versions
from labkit.bench.timing import run_case
from labkit.bench.triton_gemm import TILES, Tile, why_unavailable
from labkit.capture.kernel import INSTRUCTIONS, Instruction
from labkit.capture.tiles import ask
from labkit.gemm.mma import SPECS
from labkit.gpu.checks import amp, outputs, triton
from labkit.gpu.checks.measure import engine_step
from labkit.gpu.passport.probes import REFUSALS, HostWaits, Refusal, launches, synchronizations
from labkit.records import system
from labkit.train import TASKS, TrainingRun, steps_per_second
from labkit.train.tasks import Task

STEPS = 3
TIMING = "timing"  # the kind of item that begins after all others, in seconds of its own
QUICK_TASKS = ("digits", "gpt")
PACED_TASKS = ("digits_cnn", "segmentation_small", "gpt")
PACED_RECIPES = ("FP32", "FP16 dynamic", "O1", "BF16")
PACE_SECONDS = 6.0  # after which a pace has no further turn; what it has by then counts
Found = dict[str, Any]


@dataclass(frozen=True)
class Item:
    """One line of a passport.

    name    unique
    kind    what `labkit.gpu.passport.read` expects of it
    run     (device, found): fill `found` with plain values, or raise
    """

    name: str
    kind: str
    run: Callable[[str, Found], None]


def catalogue(device: str, *, quick: bool = False) -> list[Item]:
    """Return all items for a device, "cuda" or "cpu" (a rehearsal); quick: the recipes on two tasks alone."""
    dear = ("unet", "segmentation")  # those with the smallest steps first: the time may end before the last one
    tasks = QUICK_TASKS if quick else (*(name for name in TASKS if name not in dear), *dear)
    return [
        Item("card", "facts", _card),
        Item("versions", "facts", _versions),
        Item("flags", "facts", _flags),
        *(Item(f"refusal {row.name}", "refusal", partial(_refusal, row)) for row in REFUSALS),
        *(
            Item(f"train {name} {recipe}", "training", partial(_train, TASKS[name], RECIPES[recipe]))
            for name in tasks
            for recipe in RECIPES
        ),
        *_step_items(device),
        *_autocast_items(device),
        *_capture_items(device),
        *_timing_items(device, quick),
    ]


def _step_items(device: str) -> Iterator[Item]:
    for name in RECIPES:
        for clip in (False, True):
            what = f"{name}{', clipped' * clip}"
            yield Item(f"waits {what}", "waits", partial(_waits, RECIPES[name], clip))
    if device == "cuda" and torch.profiler.ProfilerActivity.CUDA in torch.profiler.supported_activities():
        yield from (Item(f"launches {name}", "launches", partial(_launches, RECIPES[name])) for name in RECIPES)


def _autocast_items(device: str) -> Iterator[Item]:
    with suppress(Exception):  # then the lists are not in this torch, and the item says so
        groups = dict.fromkeys(row.group for row in outputs.rows(device))
        yield from (Item(f"autocast {group}", "autocast", partial(_autocast, group)) for group in groups)
        yield from (Item(f"autocast {name}", "autocast", partial(_recurrent, name)) for name in outputs.LAYERS)
        yield from (Item(f"torch.amp {name}", "autocast", partial(_drop_in, name)) for name in amp.NETWORKS)
        return
    yield Item("autocast lists", "autocast", lambda device, found: found.update(rows=len(outputs.rows(device))))


def _capture_items(device: str) -> Iterator[Item]:
    rows = [row for row in INSTRUCTIONS if row.runs_on(device_report(device).capability)]
    rows.sort(key=lambda row: row.grouped)
    yield from (Item(f"capture {row.name}", "capture", partial(_capture, row)) for row in rows)


def _timing_items(device: str, quick: bool) -> Iterator[Item]:
    extent = GPU_SHORT if device == "cuda" and not quick else QUICK
    for case in ceilings(formats_on(device_report(device)), extent):
        yield Item(f"time {case.label}", TIMING, partial(_case, case))
    for name in QUICK_TASKS[:1] if quick else PACED_TASKS:
        yield Item(f"pace {name}", TIMING, partial(_pace, TASKS[name]))
    if not why_unavailable(device):
        for tile in TILES:
            yield Item(f"kernel {tile.name} FP16", TIMING, partial(_kernel, tile, torch.float16))
        if triton.has_bf16(device):
            yield Item(f"kernel {TILES[0].name} BF16", TIMING, partial(_kernel, TILES[0], torch.bfloat16))
    if device == "cuda":
        yield Item("compile O1", TIMING, partial(_compiled, RECIPES["O1"]))


def _card(device: str, found: Found) -> None:
    report = device_report(device)
    found |= {"name": report.name, "device": report.kind, "capability": report.capability, "cores": report.cores}
    found |= {"memory": report.memory, "driver": report.driver, "facts": report.facts}
    found |= {"cpu": system.cpu_name(), "cpu_cores": system.usable_cores()}
    if device == "cuda":
        found |= {"cards": torch.cuda.device_count(), "free_and_total_bytes": list(torch.cuda.mem_get_info())}


def _versions(device: str, found: Found) -> None:
    found |= {"numpy": np.__version__, **bench_versions(device_report(device))}
    found["cudnn"] = torch.backends.cudnn.version() if torch.backends.cudnn.is_available() else None
    with suppress(PackageNotFoundError):
        found["triton"] = None
        found["triton"] = version("triton")
    found["built_for"] = torch.cuda.get_arch_list() if device == "cuda" else []


def _flags(device: str, found: Found) -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    found |= {
        "tf32_matmul": matmul.allow_tf32,
        "tf32_cudnn": cudnn.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "fp16_reduced_precision_reduction": matmul.allow_fp16_reduced_precision_reduction,
        "bf16_reduced_precision_reduction": matmul.allow_bf16_reduced_precision_reduction,
        "cudnn_enabled": cudnn.enabled,
        "cudnn_deterministic": cudnn.deterministic,
        "cudnn_benchmark": cudnn.benchmark,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
        "why_no_triton": why_unavailable(device),
    }


def _refusal(row: Refusal, device: str, found: Found) -> None:
    found["refusal"] = row.name
    try:
        row.call(device)
    except (RuntimeError, TypeError) as refused:
        found |= {"refused": True, "message": str(refused).splitlines()[0][:300]}
    else:
        found["refused"] = False


def _train(task: Task, recipe: Recipe, device: str, found: Found) -> None:
    """Train three steps on the CPU, on the device, and on the device again; losses are hexadecimal floats."""
    found |= {"task": task.name, "recipe": recipe.name}
    cpu = _losses(task, recipe, "cpu")
    found["cpu"] = [loss.hex() for loss in cpu]
    own = _losses(task, recipe, device)
    found["losses"] = [loss.hex() for loss in own]
    found["ulps"] = [ulps_apart(*pair) for pair in zip(own, cpu, strict=True)]
    found["again"] = [loss.hex() for loss in _losses(task, recipe, device)]


def _losses(task: Task, recipe: Recipe, device: str) -> list[float]:
    run = TrainingRun(task, recipe, device=device, measure_every=0)
    return [run.step().loss for _ in range(STEPS)]


def ulps_apart(a: float, b: float) -> int | None:
    """Return how many FP32 numbers two FP32 numbers are apart; None where one alone, or each otherwise, is not finite.

    >>> ulps_apart(1.0, 1.0 + 2.0**-23), ulps_apart(-0.0, 0.0), ulps_apart(1.0, float("nan"))
    (1, 0, None)
    """
    if not np.isfinite([a, b]).all():
        return 0 if a == b or (a != a and b != b) else None
    first, second = (int(np.abs(np.float32(x)).view(np.int32)) * (-1 if x < 0 else 1) for x in (a, b))
    return abs(first - second)


def _step_of(recipe: Recipe, clip: bool, device: str) -> Callable[[], object]:
    """Return a training step of a small CNN, warm; its batch lies on the device."""
    model, x, target = amp.task("CNN", 64, 8, device)
    engine = Engine(model, torch.optim.AdamW, recipe, device=device)
    step = engine_step(engine, lambda: nn.functional.cross_entropy(engine(x).float(), target), clip=clip)
    for _ in range(4):  # a graph is traced, an optimizer makes its state
        step()
    return step


def _waits(recipe: Recipe, clip: bool, device: str, found: Found) -> None:
    found |= {"recipe": recipe.name, "clip": clip}
    step = _step_of(recipe, clip, device)
    with HostWaits(device) as seen:
        step()
    found |= {"waits": dict(seen.waits), "copies": dict(seen.copies), "operations": seen.operations.total()}
    if device == "cuda":
        found["synchronizations"] = synchronizations(step)


def _launches(recipe: Recipe, device: str, found: Found) -> None:
    found["recipe"] = recipe.name
    found["calls"] = launches(_step_of(recipe, False, device))


def _autocast(group: str, device: str, found: Found) -> None:
    theirs, ours = amp.pairs(device)
    with amp.repeatable():
        rows = [row for row in outputs.rows(device) if row.group == group]
        how = {f"{n} {row}": outputs.compare_row(row, theirs[0], ours[0]) for n, row in enumerate(rows)}
    found |= _unlike(how)


def _recurrent(layer: str, device: str, found: Found) -> None:
    found |= _unlike(outputs.compared(layer, device, width=64))


def _drop_in(network: str, device: str, found: Found) -> None:
    theirs, ours = amp.pairs(device)
    with amp.repeatable():
        found |= _unlike({network: amp.compare_network(network, device, theirs, ours, width=64, steps=12)})


def _unlike(how: dict[str, str]) -> Found:
    return {"calls": len(how), "unlike": {row: said for row, said in how.items() if said != outputs.EQUAL}}


def _capture(row: Instruction, device: str, found: Found) -> None:
    answers = ask(row, tiles=2)
    found |= {"spec": answers.spec, "npz": base64.b64encode(answers.to_bytes()).decode()}
    if answers.spec:
        spec = SPECS[answers.spec].for_operands(row.operands)
        found["mismatches"] = {family: n for family, n in answers.mismatches(spec).items() if n}


def _case(case: Case, device: str, found: Found) -> None:
    timed = run_case(case, device, rounds=3)
    found |= {"seconds_a_call": timed.seconds, "tflops": timed.tflops, "gbps": timed.gbps, "error_ulps": timed.error}


def _pace(task: Task, device: str, found: Found) -> None:
    end = time.monotonic() + PACE_SECONDS
    recipes = [RECIPES[name] for name in PACED_RECIPES]
    for recipe in recipes:  # by itself, so that one recipe that fails leaves the others
        try:
            rates = steps_per_second(task, [recipe], device=device, steps=2, stop=lambda: time.monotonic() > end)
        except RuntimeError as refused:
            found.setdefault("failed", {})[recipe.name] = str(refused).splitlines()[0][:200]
        else:
            found.setdefault("steps_per_second", {}).update(rates)


def _kernel(tile: Tile, dtype: torch.dtype, device: str, found: Found) -> None:
    found["wrong"] = triton.wrong(tile, dtype, 129, 257, 65, device)


def _compiled(recipe: Recipe, device: str, found: Found) -> None:
    model, x, target = amp.task("MLP", 64, 8, device)
    engine = Engine(torch.compile(model), torch.optim.AdamW, recipe, device=device)  # type: ignore[arg-type]
    began = time.monotonic()
    for name in ("first_step_seconds", "second_step_seconds"):
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x).float(), target)
        engine.backward(loss)
        engine.step()
        found["loss"] = float(loss.item()).hex()
        found[name] = time.monotonic() - began
        began = time.monotonic()
