"""Losses, scales and weights of trainings, bit by bit: each recipe on each task."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun
from tests.guard.plain import digest, exact
from tests.guard.processes import Item

STEPS = 20
SEED = 3


def items() -> Iterator[Item]:
    """Yield an item for each recipe on each task."""
    for task in TASKS:
        for recipe in RECIPES:
            yield Item(f"recipes/{task}/{recipe}", partial(trained, task, recipe))


def trained(task: str, recipe: str) -> str:
    """Return the records of a training's steps, and the tensors and the metric at its end."""
    run = TrainingRun(task, recipe, SEED)
    lines = []
    for _ in range(STEPS):
        record = run.step()
        values = [f"{name} {exact(value)}" for name, value in vars(record).items()]
        lines.append(", ".join(values))
    lines.append(f"scaler {run.scaler}")
    lines += tensors_of(run.model, run.engine.optimizer)
    lines += [
        f"master {name}: {digest(master)}" for name, master in run.weights.named_masters().items()
    ]
    lines.append(f"metric {exact(run.evaluate())}")
    return "\n".join(lines) + "\n"


def tensors_of(model: nn.Module, optimizer: Any) -> Iterator[str]:
    """Yield a line for each tensor of a model and of its optimizer's state."""
    for name, tensor in model.state_dict().items():
        yield f"model {name}: {digest(tensor)}"
    for number, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            shown = digest(value) if isinstance(value, Tensor) else exact(value)
            yield f"optimizer {number} {name}: {shown}"
