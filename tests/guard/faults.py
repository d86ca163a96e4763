"""Reports of `watch` and `diagnose` on the training of each fault, broken and fixed.

The losses and the final weights are recorded to the last bit, too: no instrument may change them.
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

STEPS = 6
# Fault that the first six steps do not show -> the first batch that is looked at, and how many
# steps from there.
SHOWN_LATER = {
    "clip_with_inf": (49, 15),
    "nan_only_in_eval": (29, 15),
    "row_all_masked": (36, 15),
    "softmax_by_hand": (45, 15),
    "validation_sum": (390, 60),
    "positions_in_half": (0, 16),
}
# Name -> the watch samples every that many steps, and replays every that many in FP32.
WATCHES = {"watch": (1, 1), "watch_seldom": (4, 4)}


def items() -> Iterator[Item]:
    """Yield the items of both forms of each fault: one diagnosis, and one for each of WATCHES."""
    for name in FAULTS:
        for form in ("broken", "fixed"):
            fixed = form == "fixed"
            yield Item(f"faults/{name}.{form}.diagnose", partial(diagnose_fault, name, fixed))
            for way, every in WATCHES.items():
                yield Item(f"faults/{name}.{form}.{way}", partial(watch_fault, name, fixed, every))


def begin_training(name: str, fixed: bool) -> tuple[Training, list[Any]]:
    """Return a training just before the steps that show its fault, and the batches of these."""
    torch.manual_seed(0)
    training = FAULTS[name].function(fixed)
    batches = list(training.batches)
    start, steps = SHOWN_LATER.get(name, (0, STEPS))
    for batch in batches[:start]:
        training.step(batch)
    return training, batches[start : start + steps]


def diagnose_fault(name: str, fixed: bool) -> str:
    """Return the report of a diagnosis, and the weights after it."""
    training, batches = begin_training(name, fixed)
    report = diagnose(
        training.step,
        training.model,
        training.optimizer,
        training.scaler,
        batches,
        max(1, len(batches)),
    )
    return plain_report(report) + weights_of(training)


def watch_fault(name: str, fixed: bool, every: tuple[int, int]) -> str:
    """Return the report of a watch, the losses, and the weights after it.

    Args:
        name: The fault.
        fixed: Whether the training is the repaired one.
        every: The watch samples every that many steps, and replays every that many in FP32.
    """
    training, batches = begin_training(name, fixed)
    lines = []
    watching: Any = nullcontext()
    if training.model is not None:
        sample_every, replay_every = every
        watching = watch(
            training.model, sample_every, scaler=training.scaler, against_fp32_every=replay_every
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
