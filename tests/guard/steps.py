"""Steps to measure: of each recipe, with clipping, through torch's calls, and under a watch or
diagnosis.

As a program it answers the requests of `speed.py`: a line with a case and a number of steps,
answered by their seconds.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from labkit.amp import RECIPES, Engine
from labkit.clinic import diagnose
from labkit.frameworks import GradScaler, autocast
from labkit.instrument import watch
from labkit.train import TrainingRun
from tests.guard.trees import guarded_tree

Step = Callable[[], object]
TASK = "digits"  # a network so small that what Python does in a step counts
SEED = 0
NEVER = 10**9
# name -> every how many steps a watch samples, and every how many it replays in FP32
WATCHES = {"not sampled": (NEVER, 0), "sampled": (1, 0), "replayed in FP32": (1, 1)}


def cases() -> dict[str, Callable[[int], float]]:
    """Return name -> a function that runs a number of steps and returns their CPU seconds."""
    found: dict[str, Callable[[int], float]] = {}
    for recipe in RECIPES:
        found[f"step: {recipe}"] = partial(seconds_of, recipe_step, recipe)
    for recipe in ("O1", "O2"):
        found[f"step with clip: {recipe}"] = partial(seconds_of, clipped_step, recipe)
    found["step: labkit's autocast and GradScaler"] = partial(seconds_of, scaler_step, True)
    for name, every in WATCHES.items():
        found[f"watched: {name}"] = partial(watched_seconds, scaler_step, False, every)
    found["watched: O2, sampled"] = partial(watched_seconds, clipped_step, "O2", (1, 0))
    found["diagnosed"] = diagnosed_seconds
    return found


def seconds_of(make: Callable[..., tuple[Any, Step]], argument: Any, steps: int) -> float:
    """Run steps of a training that is made once, and return their CPU seconds."""
    _, step = warmed_up(make, argument)
    return timed(step, steps)


@cache
def warmed_up(make: Callable[..., tuple[Any, Step]], argument: Any) -> tuple[Any, Step]:
    """Return what trains and its step, after steps that warm up."""
    torch.manual_seed(SEED)
    trained, step = make(argument)
    for _ in range(5):
        step()
    return trained, step


def timed(step: Step, steps: int) -> float:
    """Return the CPU seconds of a number of steps: other processes count little in them."""
    start = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - start


def watched_seconds(
    make: Callable[..., tuple[Any, Step]], argument: Any, every: tuple[int, int], steps: int
) -> float:
    """Return the CPU seconds of steps under a watch; its first two, of which one is sampled always,
    are not timed.
    """
    trained, step = warmed_up(make, argument)
    with watch(trained, every=every[0], against_fp32_every=every[1]):
        step()
        step()
        return timed(step, steps)


def diagnosed_seconds(steps: int) -> float:
    """Return the CPU seconds of a diagnosis of a number of steps."""
    model, step = warmed_up(scaler_step, False)
    start = time.process_time()
    diagnose(lambda _: step(), model, None, batches=range(steps), steps=steps)
    return time.process_time() - start


def recipe_step(recipe: str) -> tuple[Any, Step]:
    """Return a run of the task under a recipe, and its step."""
    run = TrainingRun(TASK, recipe, SEED, measure_every=0)
    return run, run.take_step


def network() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a small network, inputs and targets."""
    model = nn.Sequential(
        nn.Linear(64, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
    )
    model.append(nn.Linear(128, 10))
    return model, torch.randn(64, 64), torch.randint(10, (64,))


def clipped_step(recipe: str) -> tuple[Any, Step]:
    """Return an engine, and a step of it that clips."""
    model, inputs, targets = network()
    engine = Engine(model, partial(torch.optim.SGD, lr=1e-3), recipe)

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = cross_entropy(engine(inputs), targets)
        engine.backward(loss)
        engine.clip(1.0)
        engine.step()

    return engine, step


def scaler_step(labs: bool) -> tuple[Any, Step]:
    """Return a network, and a step of it by autocast and a GradScaler, labkit's or torch's."""
    model, inputs, targets = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    region: Any = autocast if labs else torch.autocast
    scaler: Any = (GradScaler if labs else torch.amp.GradScaler)("cpu", init_scale=2.0**8)

    def step() -> None:
        optimizer.zero_grad()
        with region("cpu", torch.float16):
            outputs = model(inputs)
        scaler.scale(cross_entropy(outputs.float(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


def main() -> None:
    guarded_tree()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    known = cases()
    print(json.dumps(list(known)), flush=True)
    for line in sys.stdin:
        name, steps = json.loads(line)
        print(json.dumps(known[name](steps)), flush=True)


if __name__ == "__main__":
    main()
