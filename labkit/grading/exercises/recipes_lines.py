"""Can you write the extra lines of a recipe, in the right order?

Idea: FP32 is three lines: forward, backward, step. Masters add two, scaling adds four, and each has one place. The
answer is a list of names, so that it can be compared; the tests carry the list out in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, Mistake


def reference(masters: bool, scaling: bool) -> list[str]:
    """Return the lines of a step.

    >>> reference(False, False)
    ['forward', 'backward', 'step']
    """
    return [
        "forward",
        *["scale loss"] * scaling,
        "backward",
        *["gradients to masters"] * masters,
        *["unscale", "look for inf"] * scaling,
        "step",
        *["masters to model"] * masters,
        *["update scale"] * scaling,
    ]


def _moved(line: str, before: str) -> Callable[[bool, bool], list[str]]:
    """An answer with one line in another place: in front of another line, where both are there."""

    def answer(masters: bool, scaling: bool) -> list[str]:
        lines = reference(masters, scaling)
        if line in lines and before in lines:
            lines.remove(line)
            lines.insert(lines.index(before), line)
        return lines

    return answer


def _without(line: str) -> Callable[[bool, bool], list[str]]:
    return lambda masters, scaling: [name for name in reference(masters, scaling) if name != line]


def _of(*cases: Case) -> Callable[[Random], list[Case]]:
    return lambda _: list(cases)


EXERCISE = Exercise(
    id="recipes.lines",
    lesson="08_recipes",
    title="The lines that a recipe adds",
    entry="my_lines",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("FP32: nothing is added", 1, _of((False, False))),
        Check("scaling alone, as O1 takes it", 1, _of((False, True))),
        Check("both, as in O2", 2, _of((True, True))),
        Check("masters alone, as BF16 takes them", 1, _of((True, False)), hidden=True),
    ),
    mistakes=(
        Mistake(
            "unscales in FP16",
            _moved("unscale", "gradients to masters"),
            "this unscales before the gradients are FP32: in FP16 they underflow again, and scaling was for nothing.",
        ),
        Mistake(
            "looks before unscaling",
            _moved("look for inf", "unscale"),
            "this looks for inf before unscaling, so an overflow that a division leaves behind is not seen.",
        ),
        Mistake(
            "looks after the step",
            _moved("step", "look for inf"),
            "this steps before anyone has looked: one overflow, and inf is in the weights.",
        ),
        Mistake(
            "updates the scale first",
            _moved("update scale", "unscale"),
            "this moves the scale before unscaling, so gradients are divided by another scale than they had.",
        ),
        Mistake(
            "copies back before the step",
            _moved("masters to model", "step"),
            "this copies the masters back before they have stepped: the model computes with the weights of last time.",
        ),
        Mistake(
            "never copies back",
            _without("masters to model"),
            "this never copies back: the masters move and the model stands still.",
        ),
        Mistake(
            "never unscales",
            _without("unscale"),
            "this never unscales: steps are as many times too long as the scale says.",
        ),
        Mistake(
            "never hands gradients over",
            _without("gradients to masters"),
            "this never hands the gradients to the masters, so the optimizer steps weights that have none.",
        ),
        Mistake(
            "scales after the backward pass",
            _moved("backward", "scale loss"),
            "this scales the loss after the backward pass, when it is too late for the gradients.",
        ),
    ),
)
