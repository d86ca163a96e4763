"""Items that describe a GPU: facts, refusals, trainings, host waits, launches and timings.

A training runs on the GPU and on the CPU, so that their losses can be compared.

An item fills a dictionary while it runs, so the line of an item that failed holds its results up to
the failure.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch
from torch import nn

from labkit.amp import RECIPES, Engine, Recipe
from labkit.bench import device_report
from labkit.bench.cases import GPU_SHORT, QUICK, Case, ceilings, formats_on
from labkit.bench.record import bench_versions
from labkit.bench.timing import run_case
from labkit.bench.triton_gemm import why_unavailable
from labkit.gpu.job import Job
from labkit.gpu.measure import engine_step, example, pace, twice
from labkit.gpu.passport.probes import REFUSALS, HostWaits, Refusal, launches, synchronizations
from labkit.gpu.worker import Item, Kind, Line
from labkit.machine.resources import cpu_name, usable_cores
from labkit.train import TASKS

QUICK_TASKS = ("digits", "gpt")
PACED_TASKS = ("digits_cnn", "segmentation_small", "gpt")
# Seconds after which a pace begins no further round; the rounds until then count.
PACE_SECONDS = 6.0
# Tasks with the largest steps.
SLOW_TASKS = ("unet", "segmentation")


def facts() -> list[Item]:
    """Return the items with which every file begins: the card and the versions."""
    return [Item("card", Kind.FACTS, _card), Item("versions", Kind.FACTS, _versions)]


def passport_items(job: Job) -> list[Item]:
    """Return the items of a passport in order: cheap and necessary ones first, timings last."""
    items = [Item("flags", Kind.FACTS, _flags)]
    items.extend(
        Item(f"refusal {row.name}", Kind.REFUSAL, partial(_refusal, row)) for row in REFUSALS
    )
    tasks = list(QUICK_TASKS)
    if not job.quick:
        # small steps first: the time may end before the last task
        tasks = [name for name in TASKS if name not in SLOW_TASKS]
        tasks.extend(SLOW_TASKS)
    for name in tasks:
        items.extend(twice(TASKS[name], recipe) for recipe in RECIPES.values())
    items.extend(_step_items(job.device))
    items.extend(_timing_items(job.device, job.quick))
    return items


def _step_items(device: str) -> Iterator[Item]:
    for name in RECIPES:
        for clip in (False, True):
            what = f"{name}, clipped" if clip else name
            yield Item(f"waits {what}", Kind.WAITS, partial(_waits, RECIPES[name], clip))
    profiled = torch.profiler.supported_activities()
    if device == "cuda" and torch.profiler.ProfilerActivity.CUDA in profiled:
        for name in RECIPES:
            yield Item(f"launches {name}", Kind.LAUNCHES, partial(_launches, RECIPES[name]))


def _timing_items(device: str, quick: bool) -> Iterator[Item]:
    extent = GPU_SHORT if device == "cuda" and not quick else QUICK
    for case in ceilings(formats_on(device_report(device)), extent):
        yield Item(f"time {case.label}", Kind.TIMING, partial(_case, case))
    for name in QUICK_TASKS[:1] if quick else PACED_TASKS:
        yield pace(TASKS[name], lambda: PACE_SECONDS, steps=2)
    if device == "cuda":
        yield Item("compile O1", Kind.TIMING, partial(_compiled, RECIPES["O1"]))


def _card(device: str, found: Line) -> None:
    report = device_report(device)
    found |= {
        "name": report.name,
        "device": report.kind,
        "capability": report.capability,
        "cores": report.cores,
        "memory": report.memory,
        "driver": report.driver,
        "facts": report.facts,
        "cpu": cpu_name(),
        "cpu_cores": usable_cores(),
    }
    if device == "cuda":
        found["cards"] = torch.cuda.device_count()
        found["free_and_total_bytes"] = list(torch.cuda.mem_get_info())


def _versions(device: str, found: Line) -> None:
    found |= {"numpy": np.__version__, **bench_versions(device_report(device))}
    cudnn = torch.backends.cudnn
    found["cudnn"] = cudnn.version() if cudnn.is_available() else None
    try:
        found["triton"] = version("triton")
    except PackageNotFoundError:
        found["triton"] = None
    found["built_for"] = torch.cuda.get_arch_list() if device == "cuda" else []


def _flags(device: str, found: Line) -> None:
    matmul = torch.backends.cuda.matmul
    cudnn = torch.backends.cudnn
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


def _refusal(row: Refusal, device: str, found: Line) -> None:
    found["refusal"] = row.name
    try:
        row.call(device)
    except (RuntimeError, TypeError) as refused:
        found |= {"refused": True, "message": str(refused).partition("\n")[0][:300]}
    else:
        found["refused"] = False


def _warm_step(recipe: Recipe, clip: bool, device: str) -> Callable[[], object]:
    """Return a training step of a small CNN that has run four times; its batch is on the device."""
    model, x, target = example("CNN", width=64, batch=8, device=device)
    engine = Engine(model, torch.optim.AdamW, recipe, device=device)

    def loss() -> torch.Tensor:
        return nn.functional.cross_entropy(engine(x).float(), target)

    step = engine_step(engine, loss, clip=clip)
    # the first steps trace a graph and create the optimizer's state
    for _ in range(4):
        step()
    return step


def _waits(recipe: Recipe, clip: bool, device: str, found: Line) -> None:
    found |= {"recipe": recipe.name, "clip": clip}
    step = _warm_step(recipe, clip, device)
    with HostWaits(device) as seen:
        step()
    found |= {
        "waits": dict(seen.waits),
        "copies": dict(seen.copies),
        "operations": seen.operations.total(),
    }
    if device == "cuda":
        found["synchronizations"] = synchronizations(step)


def _launches(recipe: Recipe, device: str, found: Line) -> None:
    found["recipe"] = recipe.name
    found["calls"] = launches(_warm_step(recipe, clip=False, device=device))


def _case(case: Case, device: str, found: Line) -> None:
    timed = run_case(case, device, rounds=3)
    found |= {
        "seconds_a_call": timed.seconds,
        "tflops": timed.tflops,
        "gbps": timed.gbps,
        "error_ulps": timed.error,
    }


def _compiled(recipe: Recipe, device: str, found: Line) -> None:
    model, x, target = example("MLP", width=64, batch=8, device=device)
    compiled = torch.compile(model)
    engine = Engine(compiled, torch.optim.AdamW, recipe, device=device)  # type: ignore[arg-type]
    for name in ("first_step_seconds", "second_step_seconds"):
        began = time.monotonic()
        engine.zero_grad()
        with engine.forward():
            loss = nn.functional.cross_entropy(engine(x).float(), target)
        engine.backward(loss)
        engine.step()
        # `item` waits for the device, so the step has ended when the clock is read
        found["loss"] = float(loss.item()).hex()
        found[name] = time.monotonic() - began
