"""Reports of `watch` and `diagnose` on each fault, broken and fixed, and the bits of the training
under them.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from labkit.clinic import diagnose
from labkit.faults import FAULTS, Training
from labkit.instrument import watch
from tests.guard.plain import digest, exact, without_places
from tests.guard.processes import Item
from tests.guard.reports import plain_report
from tests.guard.trees import guarded_tree

# The batch from which on a fault is seen, and how many steps are looked at, where the first six do
# not show it.
SEEN_FROM = {
    "clip_with_inf": (49, 15),
    "nan_only_in_eval": (29, 15),
    "row_all_masked": (36, 15),
    "softmax_by_hand": (45, 15),
    "validation_sum": (390, 60),
    "positions_in_half": (0, 16),
}
STEPS = 6
# every how many steps a watch samples, and every how many it replays in FP32
WATCHES = {"watch": (1, 1), "watch_seldom": (4, 4)}


def items() -> Iterator[Item]:
    """Yield items for each form of each fault: a diagnosis, and watches that sample each step or
    few.
    """
    for name in FAULTS:
        for form in ("broken", "fixed"):
            fixed = form == "fixed"
            yield Item(f"faults/{name}.{form}.diagnose", partial(diagnosed, name, fixed))
            for way, every in WATCHES.items():
                yield Item(f"faults/{name}.{form}.{way}", partial(watched, name, fixed, every))


def started(name: str, fixed: bool) -> tuple[Training, list[Any]]:
    """Return a training that has done the steps before its fault is seen, and the batches to look
    at.
    """
    torch.manual_seed(0)
    training = FAULTS[name].function(fixed)
    batches = list(training.batches)
    start, steps = SEEN_FROM.get(name, (0, STEPS))
    for batch in batches[:start]:
        training.step(batch)
    return training, batches[start : start + steps]


def diagnosed(name: str, fixed: bool) -> str:
    """Return the report of a diagnosis, and the weights after it."""
    training, batches = started(name, fixed)
    report = diagnose(
        training.step,
        training.model,
        training.optimizer,
        training.scaler,
        batches,
        max(1, len(batches)),
    )
    return plain_report(report) + weights_of(training)


def watched(name: str, fixed: bool, every: tuple[int, int]) -> str:
    """Return the report of a watch, the losses, and the weights after it."""
    training, batches = started(name, fixed)
    lines = []
    watching: Any = nullcontext()
    if training.model is not None:
        watching = watch(
            training.model, every[0], scaler=training.scaler, against_fp32_every=every[1]
        )
    with watching:
        for batch in batches:
            try:
                lines.append(f"loss {exact(training.step(batch))}")
            except Exception as error:
                lines.append(f"raised {type(error).__name__}: {error}")
                break
    text = "" if training.model is None else plain_report(watching.report())
    lines = [without_places(line, {"TREE": guarded_tree()}) for line in lines]
    return text + "\n".join(lines) + "\n" + weights_of(training)


def weights_of(training: Training) -> str:
    """Return a line for each tensor of the model."""
    state = {} if training.model is None else training.model.state_dict()
    return "".join(f"model {name}: {digest(tensor)}\n" for name, tensor in state.items())
