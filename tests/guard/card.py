"""Costs of a step on the simulated card, by recipe and under a watch: operations, host waits,
copies.

As a program, run in a process with the card, it prints them as JSON.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tests.guard.plain import lines_of, without_places
from tests.guard.processes import Item
from tests.guard.trees import guarded_tree

CARD = "T4"
WATCHED_STEPS = 8
ENDS = "costs as JSON: "


def items() -> Iterator[Item]:
    """Yield the items of the costs, which are counted in a process of their own."""
    yield Item("card/costs", costs)


def costs() -> str:
    """Return the costs of all recipes and of a watched step, one in a line.

    Raises:
        RuntimeError: the process with the card failed.
    """
    from tests.gpu.simulated import environment

    done = subprocess.run(
        [sys.executable, "-m", "tests.guard.card"],
        env=environment(CARD),
        cwd=guarded_tree(),
        capture_output=True,
        text=True,
    )
    _, found, counted = done.stdout.rpartition(ENDS)
    if not found:
        raise RuntimeError(f"no costs from a process with the card\n{done.stdout}{done.stderr}")
    text = "".join(f"{line}\n" for line in lines_of(json.loads(counted)))
    return without_places(text, {"TREE": guarded_tree()})


def all_costs() -> dict[str, Any]:
    """Return the costs as the tests of budgets count them, and those of watched steps."""
    from tests.gpu import test_budget

    found = test_budget.all_costs()
    for network in found.values():
        for forms in network.values():
            for cost in forms:
                cost["waits"] = by_operation(Counter(cost["waits"]))
    return {"steps": found, "watched": watched_costs()}


def by_operation(waits: Mapping[str, int]) -> dict[str, int]:
    """Return how often each operation waited, whichever line of the lab called it."""
    found: Counter[str] = Counter()
    for where, times in waits.items():
        found[where.partition(" at ")[0]] += times
    return dict(sorted(found.items()))


def watched_costs() -> dict[str, Any]:
    """Return the costs of each of the first steps under a watch: in FP32, under torch.amp, and of
    an engine.
    """
    from labkit.instrument import watch
    from tests.gpu.simulated.counting import counted

    found: dict[str, Any] = {}
    for way in ("FP32", "torch.amp", "O2"):
        watched, step = training(way)
        found[way] = []
        with watch(watched, every=4, against_fp32_every=4):
            for _ in range(WATCHED_STEPS):
                with counted() as counts:
                    step()
                costs = {
                    "operations": counts.operations.total(),
                    "waits": by_operation(counts.waits),
                }
                found[way].append({**costs, "copies": sum(counts.copies.values())})
    return found


def training(way: str) -> tuple[Any, Callable[[], None]]:
    """Return what is watched, and a step of its training on the card."""
    import torch
    from torch import nn

    from labkit.amp import RECIPES, Engine
    from tests.gpu.test_budget import convolutions

    torch.manual_seed(0)
    model, inputs, targets = convolutions()
    model, inputs, targets = model.cuda(), inputs.cuda(), targets.cuda()
    make = partial(torch.optim.AdamW, lr=1e-3)
    if way in RECIPES and way != "FP32":
        engine = Engine(model, make, RECIPES[way])

        def engine_step() -> None:
            engine.zero_grad()
            with engine.forward():
                loss = nn.functional.cross_entropy(engine(inputs), targets)
            engine.backward(loss)
            engine.step()

        return engine, engine_step

    amp = way == "torch.amp"
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=amp)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = nn.functional.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


if __name__ == "__main__":
    print(ENDS + json.dumps(all_costs()), flush=True)
    # torch's threads of a device may still be waiting, and end a process that tidies up with an
    # abort
    os._exit(0)
