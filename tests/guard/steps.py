"""Steps of trainings whose time `speed.py` measures.

They are of each recipe, with clipping, by autocast and GradScaler, and under `watch` or `diagnose`.
As a program, this module first prints the names of its cases as JSON. It then reads requests, a
line [case, number of steps] each, and answers each with the CPU seconds of the steps.
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
# Its network is so small that the time of labkit's Python code counts.
TASK = "digits"
SEED = 0
# More steps than are ever measured.
NEVER = 10**9
# Name -> a watch samples every that many steps, and replays every that many in FP32 (0: none).
WATCHES = {"not sampled": (NEVER, 0), "sampled": (1, 0), "replayed in FP32": (1, 1)}
WARM_UP_STEPS = 5


def cases() -> dict[str, Callable[[int], float]]:
    """Return name -> a function that runs a number of steps and returns their CPU seconds."""
    by_name: dict[str, Callable[[int], float]] = {}
    for recipe in RECIPES:
        by_name[f"step: {recipe}"] = partial(seconds_of, recipe_step, recipe)
    for recipe in ("O1", "O2"):
        by_name[f"step with clip: {recipe}"] = partial(seconds_of, clipped_step, recipe)
    by_name["step: labkit's autocast and GradScaler"] = partial(seconds_of, scaler_step, True)
    for name, every in WATCHES.items():
        by_name[f"watched: {name}"] = partial(watched_seconds, scaler_step, False, every)
    by_name["watched: O2, sampled"] = partial(watched_seconds, clipped_step, "O2", (1, 0))
    by_name["diagnosed"] = diagnosed_seconds
    return by_name


def seconds_of(make: Callable[..., tuple[Any, Step]], argument: Any, steps: int) -> float:
    """Run steps of a training, and return their CPU seconds.

    Args:
        make: Makes the training when it is first timed: what trains, and its step.
        argument: The argument of `make`.
        steps: How many steps to run.
    """
    _, step = warmed_up(make, argument)
    return timed(step, steps)


@cache
def warmed_up(make: Callable[..., tuple[Any, Step]], argument: Any) -> tuple[Any, Step]:
    """Return what trains and its step, after some steps to warm up; it is made only once."""
    torch.manual_seed(SEED)
    trained, step = make(argument)
    for _ in range(WARM_UP_STEPS):
        step()
    return trained, step


def timed(step: Step, steps: int) -> float:
    """Run a number of steps, and return their CPU seconds, which other processes hardly change."""
    start = time.process_time()
    for _ in range(steps):
        step()
    return time.process_time() - start


def watched_seconds(
    make: Callable[..., tuple[Any, Step]], argument: Any, every: tuple[int, int], steps: int
) -> float:
    """Run steps under a watch, and return their CPU seconds.

    The first two steps are not timed: a watch always samples one of them.
    """
    trained, step = warmed_up(make, argument)
    sample_every, replay_every = every
    with watch(trained, every=sample_every, against_fp32_every=replay_every):
        step()
        step()
        return timed(step, steps)


def diagnosed_seconds(steps: int) -> float:
    """Diagnose a number of steps, and return the CPU seconds of the diagnosis."""
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
    """Return a network, and a step of it by autocast and a GradScaler.

    Args:
        labs: Whether both are labkit's; otherwise they are torch's.
    """
    model, inputs, targets = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    region: Any = autocast if labs else torch.autocast
    scaler_class: Any = GradScaler if labs else torch.amp.GradScaler
    scaler = scaler_class("cpu", init_scale=2.0**8)

    def step() -> None:
        optimizer.zero_grad()
        with region("cpu", torch.float16):
            outputs = model(inputs)
        scaler.scale(cross_entropy(outputs.float(), targets)).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


def main() -> None:
    """Print the names of the cases, and answer requests until the input ends."""
    # It ends the process if labkit is not the one of the tree.
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
