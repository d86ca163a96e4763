"""Operations, host waits and copies of a step on the simulated card.

They are counted for each recipe, and for a step under `watch`. As a program, started in a process
that has the simulated card, this module prints the counts as JSON.
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
# The program prints this before its JSON, which is the last thing that it prints.
MARK = "costs as JSON: "


def items() -> Iterator[Item]:
    """Yield the items of the costs, which are counted in a process of their own."""
    yield Item("card/costs", costs)


def costs() -> str:
    """Return the costs of all recipes and of a watched step, one in a line.

    Raises:
        RuntimeError: the process with the card failed.
    """
    from tests.gpu.simulated import environment

    # The environment with the card puts the checkout that is measured first in the path, so
    # `-m tests.guard.card` would run that checkout's guard. A path runs this file.
    done = subprocess.run(
        [sys.executable, __file__],
        env=environment(CARD),
        cwd=guarded_tree(),
        capture_output=True,
        text=True,
    )
    _, mark, costs_as_json = done.stdout.rpartition(MARK)
    if not mark:
        raise RuntimeError(f"no costs from a process with the card\n{done.stdout}{done.stderr}")
    text = "".join(f"{line}\n" for line in lines_of(json.loads(costs_as_json)))
    return without_places(text, {"TREE": guarded_tree()})


def all_costs() -> dict[str, Any]:
    """Return the costs as the tests of budgets count them, and those of watched steps."""
    from tests.gpu import test_budget

    costs_of_steps = test_budget.all_costs()
    for network in costs_of_steps.values():
        for forms in network.values():
            for cost in forms:
                cost["waits"] = by_operation(Counter(cost["waits"]))
    return {"steps": costs_of_steps, "watched": watched_costs()}


def by_operation(waits: Mapping[str, int]) -> dict[str, int]:
    """Return how often each operation waited, summed over the lines of labkit that called it.

    Args:
        waits: "OPERATION at LINE" -> number of waits.
    """
    total: Counter[str] = Counter()
    for operation_at_line, times in waits.items():
        operation = operation_at_line.partition(" at ")[0]
        total[operation] += times
    return dict(sorted(total.items()))


def watched_costs() -> dict[str, Any]:
    """Return the costs of the first steps under a watch: in FP32, under torch.amp, and under O2."""
    from labkit.instrument import watch
    from tests.gpu.simulated.counting import counted

    trainings = {
        "FP32": plain_training(amp=False),
        "torch.amp": plain_training(amp=True),
        "O2": engine_training("O2"),
    }
    costs_by_training: dict[str, Any] = {}
    for name, (watched, step) in trainings.items():
        costs_of_steps = []
        with watch(watched, every=4, against_fp32_every=4):
            for _ in range(WATCHED_STEPS):
                with counted() as counts:
                    step()
                cost = {
                    "operations": counts.operations.total(),
                    "waits": by_operation(counts.waits),
                    "copies": sum(counts.copies.values()),
                }
                costs_of_steps.append(cost)
        costs_by_training[name] = costs_of_steps
    return costs_by_training


def network_on_card() -> tuple[Any, Any, Any]:
    """Return a convolutional network, its inputs and its targets, all on the card."""
    import torch

    from tests.gpu.test_budget import convolutions

    torch.manual_seed(0)
    model, inputs, targets = convolutions()
    return model.cuda(), inputs.cuda(), targets.cuda()


def engine_training(recipe: str) -> tuple[Any, Callable[[], None]]:
    """Return an engine under a recipe, and a step of its training."""
    import torch
    from torch.nn.functional import cross_entropy

    from labkit.amp import RECIPES, Engine

    model, inputs, targets = network_on_card()
    engine = Engine(model, partial(torch.optim.AdamW, lr=1e-3), RECIPES[recipe])

    def step() -> None:
        engine.zero_grad()
        with engine.forward():
            loss = cross_entropy(engine(inputs), targets)
        engine.backward(loss)
        engine.step()

    return engine, step


def plain_training(amp: bool) -> tuple[Any, Callable[[], None]]:
    """Return a model, and a step of its training in plain torch.

    Args:
        amp: whether the step uses torch's autocast and GradScaler; without, it is in FP32.
    """
    import torch
    from torch.nn.functional import cross_entropy

    model, inputs, targets = network_on_card()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**8, enabled=amp)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=amp):
            loss = cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return model, step


if __name__ == "__main__":
    print(MARK + json.dumps(all_costs()), flush=True)
    # A normal exit may abort: torch's threads for the simulated device may still be waiting while
    # the interpreter shuts down.
    os._exit(0)
