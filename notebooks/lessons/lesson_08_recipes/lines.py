"""Can you write the extra lines of a recipe, in the right order?

Idea: FP32 is three lines: forward, backward, step. Masters add two, scaling adds four, and those of a batch are
repeated where gradients are added up over several. The answer is a list of names, so that it can be compared; the tests
carry the list out in torch. Some lines may change places: a scale is above 1, so unscaling makes no inf, and it may be
looked for before; the scale may move before the masters are copied back.
"""

from __future__ import annotations

from random import Random

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.grading.outcome import AnyOrder

NEEDS = (
    ("forward", "scale loss"),
    ("forward", "backward"),
    ("scale loss", "backward"),
    ("backward", "gradients to masters"),
    ("backward", "look for inf"),
    ("backward", "unscale"),
    ("gradients to masters", "unscale"),
    ("gradients to masters", "step"),
    ("unscale", "step"),
    ("look for inf", "step"),
    ("backward", "step"),
    ("step", "masters to model"),
    ("step", "update scale"),
)
"""What must come before what."""


def reference(masters: bool, scaling: bool, batches: int) -> list[str]:
    """Return the lines of a step whose gradient is added up over some batches.

    >>> reference(False, False, 2)
    ['forward', 'backward', 'forward', 'backward', 'step']
    """
    return _each(scaling) * batches + _once(masters, scaling)


def _each(scaling: bool) -> list[str]:
    """Return the lines of a batch."""
    return ["forward", *["scale loss"] * scaling, "backward"]


def _once(masters: bool, scaling: bool) -> list[str]:
    """Return the lines after all batches."""
    return [
        *["gradients to masters"] * masters,
        *["unscale", "look for inf"] * scaling,
        "step",
        *["masters to model"] * masters,
        *["update scale"] * scaling,
    ]


def _check(name: str, points: int, masters: bool, scaling: bool) -> Check:
    def draw(random: Random) -> list[Case]:
        return [(masters, scaling, batches) for batches in (1, *random.sample(range(2, 33), 2))]

    return Check(name, points, draw, outcome=AnyOrder(reference, NEEDS))


def _moved(lines: list[str], line: str, before: str) -> list[str]:
    """Return the lines with one of them in another place: in front of another line, where both are there."""
    if line in lines and before in lines:
        lines.remove(line)
        lines.insert(lines.index(before), line)
    return lines


@mistake
def unscales_in_FP16(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This unscales before the gradients are FP32: in FP16 they underflow again, and scaling was for nothing."""
    return _moved(reference(masters, scaling, batches), "unscale", before="gradients to masters")


@mistake
def unscales_and_looks_in_FP16(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This unscales before the gradients are copied to the masters: in FP16 they underflow again. Copy first, which
    makes them FP32; then unscale."""
    return _moved(unscales_in_FP16.answer(masters, scaling, batches), "look for inf", before="gradients to masters")  # type: ignore[arg-type]


@mistake
def looks_and_unscales_in_FP16(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This unscales before the gradients are copied to the masters: in FP16 they underflow again. Looking for inf there
    is sound; unscaling is not."""
    return _moved(unscales_and_looks_in_FP16.answer(masters, scaling, batches), "look for inf", before="unscale")  # type: ignore[arg-type]


@mistake
def looks_after_the_step(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This steps before anyone has looked: one overflow, and inf is in the weights."""
    return _moved(reference(masters, scaling, batches), "step", before="look for inf")


@mistake
def updates_the_scale_first(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This moves the scale before unscaling, so gradients are divided by another scale than they had."""
    return _moved(reference(masters, scaling, batches), "update scale", before="unscale")


@mistake
def copies_back_before_the_step(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This copies the masters back before they have stepped: the model computes with the weights of last time."""
    return _moved(reference(masters, scaling, batches), "masters to model", before="step")


@mistake
def never_copies_back(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This never copies back: the masters move and the model stands still."""
    return [line for line in reference(masters, scaling, batches) if line != "masters to model"]


@mistake
def never_unscales(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This never unscales: steps are as many times too long as the scale says."""
    return [line for line in reference(masters, scaling, batches) if line != "unscale"]


@mistake
def never_hands_gradients_over(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This never hands the gradients to the masters, so the optimizer steps weights that have none."""
    return [line for line in reference(masters, scaling, batches) if line != "gradients to masters"]


@mistake
def scales_after_the_backward_pass(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This scales the loss after the backward pass, when it is too late for the gradients."""
    return _moved(_each(scaling), "backward", before="scale loss") * batches + _once(masters, scaling)


@mistake
def unscales_after_each_batch(masters: bool, scaling: bool, batches: int) -> list[str]:
    """This unscales after each batch: what the first one added is divided again with every other."""
    unscaled = [*_each(scaling), *["unscale"] * scaling] * batches
    return unscaled + [line for line in _once(masters, scaling) if line != "unscale"]


# fmt: off
MISTAKES = (
    unscales_in_FP16,
    unscales_and_looks_in_FP16,
    looks_and_unscales_in_FP16,
    looks_after_the_step,
    updates_the_scale_first,
    copies_back_before_the_step,
    never_copies_back,
    never_unscales,
    never_hands_gradients_over,
    scales_after_the_backward_pass,
    wrong("steps after each batch", "this takes a step for each batch. The gradients of all of them are added up "
          "first.", lambda masters, scaling, batches: reference(masters, scaling, 1) * batches),
    unscales_after_each_batch,
    wrong("one batch alone", "this is the step of a single batch. The first lines are repeated for each.",
          lambda masters, scaling, batches: reference(masters, scaling, 1)),
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.lines",
    title="The lines that a recipe adds",
    entry="my_lines",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        _check("FP32: nothing is added", 1, False, False),
        _check("scaling alone, as O1 takes it", 1, False, True),
        _check("both, as in O2", 2, True, True),
        _check("masters alone, as BF16 takes them", 1, True, False),
    ),
    mistakes=MISTAKES,
)
