"""How many training steps a second do the lab's own tasks make on this GPU, in FP32 and in half precision?

The tasks that a learner watches live, and those of a GPU's size. And does a run give the same losses twice, as on a
CPU? A GPU may add up in another order each time; where it does, that is told.

    labkit gpu --only tasks
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from labkit.amp import RECIPES
from labkit.train import GPU_TASKS, TASKS, pace_sentence, place, steps_per_second, train

NAMES = ("segmentation_small", "digits_cnn", "gpt", "segmentation_gpu", "gpt_gpu", "unet_gpu", "char_lstm_gpu")
BOTH = TASKS | GPU_TASKS
RECIPES_ASKED = ("FP32", "FP16 dynamic", "O1", "BF16")


def main(
    device: str = "cuda",
    *,
    names: tuple[str, ...] = NAMES,
    steps: int = 5,
    rounds: int = 3,
    seconds: float = float("inf"),
) -> dict[str, Any]:
    """Return task -> recipe -> steps a second, or why a task was not timed; and how many losses of two runs differ.

    The seconds are shared evenly among the tasks that are left; the last turn may go beyond them.
    """
    rates: dict[str, dict[str, float]] = {}
    left_out: dict[str, str] = {}
    end = time.monotonic() + seconds
    for i, name in enumerate(names):
        until = time.monotonic() + (end - time.monotonic()) / (len(names) - i)
        recipes = [RECIPES[recipe] for recipe in RECIPES_ASKED]
        pace = partial(steps_per_second, BOTH[name], recipes, device=device, steps=steps, rounds=rounds)
        try:
            found = pace(stop=partial(_over, until))
        except RuntimeError as refused:  # a small GPU has not the memory for all four of them
            left_out[name] = str(refused).splitlines()[0][:120]
            continue
        if "FP32" in found:
            rates[name] = found
        else:
            left_out[name] = "the time was up"
    again = partial(train, BOTH[names[0]], RECIPES["O1"], device=device, steps=steps, measure_every=0)
    runs = [again() for _ in range(2)]
    differ = sum(a != b for a, b in zip(runs[0].steps, runs[1].steps, strict=True))
    twice = {"task": names[0], "steps_that_differ": differ}
    return {"where": place(device).name, "rates": rates, "left_out": left_out, "twice": twice}


def _over(until: float) -> bool:
    return time.monotonic() > until


def told(answers: dict[str, Any]) -> str:
    """Return what `main` found, for people."""
    lines = [f"{task}: {pace_sentence(rates, answers['where'])}" for task, rates in answers["rates"].items()]
    lines += [f"{task} was not timed: {why}" for task, why in answers["left_out"].items()]
    task, differ = answers["twice"]["task"], answers["twice"]["steps_that_differ"]
    again = "the same losses" if not differ else f"{differ} losses that differ in some bit"
    return "\n".join([*lines, f"{task} under O1, trained twice: {again}"])
