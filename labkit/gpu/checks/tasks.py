"""Training steps a second of the lab's own tasks on this GPU, in FP32 and in half precision.

The tasks that a learner watches live, and those of a GPU's size. And does a run give the same losses twice, as on a
CPU? A GPU may add up in another order each time; where it does, that is told.

    labkit gpu --only tasks
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

from labkit.amp import RECIPES
from labkit.gpu.checks.measure import TIME_UP, Answers, each, left_out_lines, reason
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
) -> Iterator[Answers]:
    """Find task -> recipe -> steps a second, or why one was not timed; and how many losses of two runs differ.

    The seconds are shared evenly among the tasks that are left; the last turn may go beyond them.
    """
    end = time.monotonic() + seconds
    answers: Answers = {"where": place(device).name, "rates": {}, "left_out": {}, "twice": None}

    def pace(name: str, tasks_left: int) -> None:
        until = time.monotonic() + (end - time.monotonic()) / tasks_left
        found = steps_per_second(
            BOTH[name],
            [RECIPES[recipe] for recipe in RECIPES_ASKED],
            device=device,
            steps=steps,
            rounds=rounds,
            stop=lambda: time.monotonic() > until,
            failed=lambda recipe, error: answers["left_out"].__setitem__(f"{name} under {recipe}", reason(error)),
        )
        if found:
            answers["rates"][name] = found
        else:
            answers["left_out"].setdefault(name, TIME_UP)

    def twice() -> None:
        task = BOTH[names[0]]
        runs = [train(task, RECIPES["O1"], device=device, steps=steps, measure_every=0) for _ in range(2)]
        differ = sum(a != b for a, b in zip(runs[0].steps, runs[1].steps, strict=True))
        answers["twice"] = {"task": names[0], "steps_that_differ": differ}

    paces = [(name, partial(pace, name, len(names) - i)) for i, name in enumerate(names)]
    yield from each([*paces, ("training twice", twice)], answers, seconds)


def told(answers: Answers) -> str:
    """Return what `main` found, for people."""
    lines = [f"{task}: {pace_sentence(rates, answers['where'])}" for task, rates in answers["rates"].items()]
    lines += left_out_lines(answers)
    if answers["twice"]:
        task, differ = answers["twice"]["task"], answers["twice"]["steps_that_differ"]
        again = "the same losses" if not differ else f"{differ} losses that differ in some bit"
        lines.append(f"{task} under O1, trained twice: {again}")
    return "\n".join(lines)
