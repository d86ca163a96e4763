"""Costs of a step on the simulated card: operations, waits of the host, copies; of each recipe and of a watched step.

As a program, run in a process with the card, it prints them as JSON.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
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
    """Return the costs of each of the first steps under a watch: in FP32, under torch.amp, and of an engine."""
    import torch
    from torch import nn

    from labkit.amp import RECIPES, Engine
    from labkit.instrument import watch
    from tests.gpu.simulated.counting import counted
    from tests.gpu.test_budget import convolutions

    found: dict[str, Any] = {}
    for way in ("FP32", "torch.amp", "O2"):
        torch.manual_seed(0)
        model, inputs, targets = (part.cuda() for part in convolutions())
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=way == "torch.amp")
        make = lambda weights: torch.optim.AdamW(weights, lr=1e-3)  # noqa: E731
        engine = Engine(model, make, RECIPES["O2"]) if way == "O2" else None
        optimizer = make(model.parameters()) if engine is None else None

        def step(model: Any = model, engine: Any = engine, optimizer: Any = optimizer) -> None:
            if engine is not None:
                engine.zero_grad()
                with engine.forward():
                    loss = nn.functional.cross_entropy(engine(inputs), targets)
                engine.backward(loss)
                engine.step()
                return
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16, enabled=way == "torch.amp"):
                loss = nn.functional.cross_entropy(model(inputs), targets)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

        found[way] = []
        with watch(engine or model, every=4, against_fp32_every=4):
            for _ in range(WATCHED_STEPS):
                with counted() as counts:
                    step()
                waits, copies = by_operation(counts.waits), sum(counts.copies.values())
                found[way].append(
                    {"operations": counts.operations.total(), "waits": waits, "copies": copies}
                )
    return found


if __name__ == "__main__":
    print(ENDS + json.dumps(all_costs()), flush=True)
    # torch's threads of a device may still be waiting, and end a process that tidies up with an abort
    os._exit(0)
