"""Can you put the parts of a mixed-precision training step in order?

Idea: the learner gets a small network whose training step is taken apart into seven calls, each of which does what its
name says to whatever stands there, right or wrong. A wrong order is not refused: its consequences are computed, and
they are those of the real thing.

Invariant: every call is deterministic, so two answers with the same calls agree bit for bit, and each known mistake
has its own consequence in some case.
"""

from __future__ import annotations

from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.grading.given.loop import SHAPE, Loop


def reference(loop: Loop) -> Loop:
    """Return the loop after one whole step.

    >>> before = Loop([torch.ones(4)], torch.zeros(4), torch.zeros(4).half(), torch.zeros(4).half(), 8.0, 10.0)
    >>> reference(before).model_weight
    tensor([-0.2500, -0.2500, -0.2500, -0.2500], dtype=torch.float16)
    """
    return _run(loop, "unscale clip step copy_back update")


def _run(loop: Loop, last: str, *, first: str = "zero_grad", each: str = "") -> Loop:
    """Call some parts first, some after the backward pass of each batch, and the others last."""
    _call(loop, first)
    for batch in loop.batches:
        loop.backward(batch)
        _call(loop, each)
    return _call(loop, last)


def _call(loop: Loop, parts: str) -> Loop:
    for part in parts.split():
        getattr(loop, part)()
    return loop


def _batch(random: Random, high: int = 64) -> Tensor:
    return whole(random, SHAPE, 16, high) / 16


def _loop(random: Random, batches: int = 1, max_norm: float = 1000.0, tracker: int = 0, scale: float = 0.0) -> Loop:
    """A step in the middle of training: the last step's gradient is still there."""
    master = _batch(random)
    return Loop(
        batches=[_batch(random) for _ in range(batches)],
        master_weight=master + 2.0**-13,  # FP16 does not hold it
        model_weight=(master + 2.0**-13).half(),
        gradient=_batch(random).half(),
        scale=scale or 2.0 ** random.randrange(5, 10),
        max_norm=max_norm,
        growth_tracker=tracker,
    )


def _several(random: Random) -> list[Case]:
    """Batches of four different sizes of gradient, to be added up before anything else."""
    return [(_loop(random, batches=n),) for n in (2, 4)]


def _overflowing(random: Random) -> list[Case]:
    """Elements from 1 up, times 2^17: inf in FP16."""
    return [(_loop(random, scale=2.0**17, batches=n),) for n in (1, 2)]


def _growing(random: Random) -> list[Case]:
    """The third clean step: the scale doubles, and must not do so before it has been divided by."""
    return [(_loop(random, tracker=2, batches=n, max_norm=m),) for n, m in ((1, 1000.0), (2, 0.5))]


@mistake
def uses_the_first_batch_only(loop: Loop) -> Loop:
    """This is what using one batch gives: run backward for each of loop.batches."""
    loop.zero_grad()
    loop.backward(loop.batches[0])
    return _call(loop, "unscale clip step copy_back update")


# fmt: off
MISTAKES = (
    wrong("clips before unscaling", "this is what clipping before unscaling gives: max_norm was compared with a "
          "gradient `scale` times too long.", lambda loop: _run(loop, "clip unscale step copy_back update")),
    wrong("never unscales", "this is what stepping with the scaled gradient gives; and nobody looked for inf.",
          lambda loop: _run(loop, "clip step copy_back update")),
    wrong("steps before unscaling", "this is what stepping before unscaling gives: the step is `scale` times too "
          "long, and nobody had looked for inf.", lambda loop: _run(loop, "step unscale clip copy_back update")),
    wrong("updates the scale first", "this is what moving the scale before unscaling gives: the gradient is divided "
          "by another scale than it was multiplied by, or an old found_inf moves it.",
          lambda loop: _run(loop, "update unscale clip step copy_back")),
    wrong("updates before the step", "this is what update() before step() gives: what unscale() found is forgotten, "
          "and inf reaches the weights.", lambda loop: _run(loop, "unscale clip update step copy_back")),
    wrong("never updates the scale", "this is what forgetting update() gives: a scale that is too high skips every "
          "step from now on.", lambda loop: _run(loop, "unscale clip step copy_back")),
    wrong("zeroes after the backward pass", "this is what zero_grad() after backward() gives: the gradient is gone "
          "before it was used.", lambda loop: _run(loop, "zero_grad unscale clip step copy_back update", first="")),
    wrong("never zeroes", "this is what forgetting zero_grad() gives: the last step's gradient is still in the sum.",
          lambda loop: _run(loop, "unscale clip step copy_back update", first="")),
    wrong("unscales after every batch", "this is what unscaling after every batch gives: what was accumulated is "
          "divided again each time. Unscale once, after the last batch.",
          lambda loop: _run(loop, "clip step copy_back update", each="unscale")),
    wrong("steps after every batch", "this is what a step after every batch gives. Accumulation means one step for "
          "all of them.", lambda loop: _run(loop, "", each="unscale clip step copy_back update")),
    wrong("updates after every batch", "this is what update() after every batch gives: batches of one step are added "
          "under different scales.", lambda loop: _run(loop, "unscale clip step copy_back", each="update")),
    uses_the_first_batch_only,
    wrong("never copies back", "this is what forgetting copy_back() gives, or calling it before step(): the master "
          "moves, and the model computes with old weights.", lambda loop: _run(loop, "unscale clip step update")),
    wrong("never clips", "this is what forgetting clip() gives.",
          lambda loop: _run(loop, "unscale step copy_back update")),
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.order",
    title="Order the loop",
    entry="my_training_step",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("one batch", 2, lambda random: [(_loop(random),) for _ in range(3)]),
        Check("several batches, accumulated", 1, _several),
        Check("a gradient longer than max_norm", 1, lambda random: [(_loop(random, max_norm=n),) for n in (0.5, 0.25)]),
        Check("a step that overflows", 2, _overflowing),
        Check("a step after which the scale grows", 2, _growing),
    ),
    mistakes=MISTAKES,
    may_change=("loop",),
    provides={"torch": torch},
)
