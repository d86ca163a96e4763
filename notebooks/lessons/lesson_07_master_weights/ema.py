"""Can you keep a moving average of the weights while training in FP16?

The point: with a decay of 0.999 each step moves the average by a thousandth of the difference, far below an ulp of an
FP16 average: it must be FP32, follow the master weights, and stand still when a step was skipped.

Invariant: a correct answer may be written as d * a + (1 - d) * w or as a + (1 - d) * (w - a); both stay within the ulps
allowed. Oracle in the tests: torch.optim.swa_utils.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

SIZE = 3
History = list[tuple[Tensor, bool]]


def reference(history: History, decay: float) -> Tensor:
    """Return the FP32 average [n] after the last step; it starts as the first master weight.

    >>> reference([(torch.zeros(1), True), (torch.ones(1), True), (torch.ones(1), False)], 0.75)
    tensor([0.2500])
    """
    average = history[0][0].clone()
    for master, stepped in history[1:]:
        if stepped:
            average = decay * average + (1 - decay) * master
    return average


def _walk(random: Random, steps: int, size: float, skips: float = 0.0) -> History:
    """A weight that drifts one way, FP32 steps of about `size`; a skipped step leaves it where it is."""
    master = torch.tensor([random.uniform(1.0, 1.5) for _ in range(SIZE)])
    history: History = [(master, True)]
    for _ in range(steps):
        stepped = random.random() >= skips
        if stepped:
            master = master + torch.tensor([random.uniform(0.5, 1.0) * size for _ in range(SIZE)])
        history.append((master, stepped))
    return history


def _slow(random: Random) -> list[Case]:
    """A decay of 0.99 over 60 steps of about an ulp of FP16."""
    return [(_walk(random, 60, 2.0**-9), 0.99)]


def _fine(random: Random) -> list[Case]:
    """Steps far below an ulp of FP16: the model's weights stand still, the masters move."""
    return [(_walk(random, 60, 2.0**-15), 0.9)]


def _skipped(random: Random) -> list[Case]:
    """Some steps are skipped; in the second history no step led to the first weights, either."""
    histories = [_walk(random, 12, 0.125, skips=0.4) for _ in range(2)]
    histories[1][0] = histories[1][0][0], False
    return [(history, 0.5) for history in histories]


def _average_of_halves(history: History, decay: float) -> Tensor:
    return reference([(master.half(), stepped) for master, stepped in history], decay)


def _from_zero(history: History, decay: float) -> Tensor:
    return reference([(torch.zeros(SIZE), True), *history[1:]], decay)


@mistake
def the_average_in_FP16(history: History, decay: float) -> Tensor:
    """This is what an FP16 average gives: (1 - decay) times the difference is below half an ulp, and it stalls."""
    average = history[0][0].half()
    for master, stepped in history[1:]:
        if stepped:
            average = (decay * average.float() + (1 - decay) * master).half()
    return average.float()


@mistake
def keeps_the_average_in_FP16(history: History, decay: float) -> Tensor:
    """This is an FP16 average: (1 - decay) times the difference is below half an ulp, and it stalls. Keep it FP32."""
    return the_average_in_FP16.answer(history, decay).half()  # type: ignore[attr-defined, no-any-return]


@mistake
def corrects_for_a_start_from_zero(history: History, decay: float) -> Tensor:
    """This is Adam's correction for an average that starts from 0. This one starts from the first weight."""
    steps = sum(stepped for _, stepped in history[1:])
    return _from_zero(history, decay) / (1 - decay**steps) if steps else history[0][0]


# fmt: off
MISTAKES = (
    the_average_in_FP16,
    wrong("everything in FP16", "this is an FP16 average of the FP16 weights, which is what `.half()` at the start "
          "gives: it stalls. Keep it in FP32.", lambda history, decay: _average_of_halves(history, decay)),
    wrong("everything in FP16 cast at the end", "this is an FP16 average of the FP16 weights, cast to FP32 when it "
          "is too late. Keep it in FP32 all the time.",
          lambda history, decay: _average_of_halves(history, decay).float()),
    keeps_the_average_in_FP16,
    wrong("follows the model weights", "this is the average of the FP16 weights. What they were rounded by is in it.",
          lambda history, decay: reference([(master.half().float(), s) for master, s in history], decay)),
    wrong("counts skipped steps", "this is what averaging at skipped steps gives: the same weight is counted twice.",
          lambda history, decay: reference([(master, True) for master, _ in history], decay)),
    wrong("decay the other way round", "this is what exchanging decay and 1 - decay gives: the average is hardly "
          "more than the last weight.", lambda history, decay: reference(history, 1 - decay)),
    wrong("starts from zero", "this is what starting from 0 gives: it takes many steps to come near the weights.",
          lambda history, decay: _from_zero(history, decay)),
    corrects_for_a_start_from_zero,
    wrong("the plain mean", "this is the mean of all weights: early ones never fade.",
          lambda history, decay: torch.stack([master for master, stepped in history if stepped]).mean(dim=0)),
    wrong("the last weight", "this is the last master weight, without any averaging.",
          lambda history, decay: history[-1][0]),
)
# fmt: on

EXERCISE = Exercise(
    id="master.ema",
    title="An average that follows the master",
    entry="my_ema",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("a few large steps", 1, lambda random: [(_walk(random, 4, 0.25), d) for d in (0.5, 0.75, 0.0, 1.0)]),
        Check("a decay of 0.99", 2, _slow),
        Check("masters that move by less than FP16 sees", 1, _fine),
        Check("skipped steps do not count", 2, _skipped),
        Check(
            "before the first step",
            1,
            lambda random: [(_walk(random, 0, 0.0), 0.9), (_walk(random, 5, 0.25, skips=1.1), 0.5)],
        ),
    ),
    mistakes=MISTAKES,
    ulps=16,
    provides={"torch": torch},
)
