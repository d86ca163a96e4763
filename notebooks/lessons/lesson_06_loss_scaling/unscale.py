"""Can you take the scale out of the gradients again, and say whether they may be used?

The point: cast to FP32 before dividing, look at every element of every tensor, and look for inf *and* NaN. A sum is
no substitute: it overflows although all its terms are finite.

Invariant: scales are powers of two and gradients are FP16 numbers, so every quotient is exact and answers are compared
bit for bit. Oracle in the tests: torch.amp.GradScaler.unscale_.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.amp import unscale
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

SHAPES = ((3,), (2, 3))
Answer = tuple[list[Tensor], bool]


def reference(scaled_grads: list[Tensor], scale: float) -> Answer:
    """Return the FP32 gradients of the loss, and whether any element of any of them is inf or NaN.

    >>> reference([torch.tensor([1024.0]).half()], 1024.0)
    ([tensor([1.])], False)
    """
    gradients = [gradient.float() / scale for gradient in scaled_grads]
    return gradients, not all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def _gradients(random: Random, low: int = 1, high: int = 2048) -> list[Tensor]:
    return [whole(random, shape, low, high).half() for shape in SHAPES]


def _ordinary(random: Random) -> list[Case]:
    """Quotients that FP16 holds too; a single number; an empty tensor and a number without dimensions; no tensor."""
    cases: list[Case] = [(_gradients(random), 2.0 ** random.randrange(3, 11)) for _ in range(3)]
    single = whole(random, (1,), 1, 2048).half()
    return [*cases, ([single], 2.0**5), ([single[:0], single.reshape(())], 2.0**-3), ([], 2.0**5)]


def _tiny(random: Random) -> list[Case]:
    """Quotients below 2^-26, which FP16 has no numbers for."""
    return [([g * 2.0**-8 for g in _gradients(random, 1, 256)], 2.0**k) for k in (26, 28, 30)]


def _spoiled(random: Random, element: float) -> list[Case]:
    """One bad element, once in each tensor."""
    cases: list[Case] = []
    for place in range(len(SHAPES)):
        gradients = _gradients(random)
        flat = gradients[place].view(-1)
        flat[random.randrange(len(flat))] = element
        cases.append((gradients, 2.0**10))
    return cases


def _infinite(random: Random) -> list[Case]:
    return _spoiled(random, random.choice((-1, 1)) * torch.inf)


def _heavy(random: Random) -> list[Case]:
    """Finite elements of one sign, three of which add up to more than 65504."""
    return [([whole(random, shape, 900, 1024).half().abs() * 32 for shape in SHAPES], 2.0**k) for k in (8, 12)]


def _opposite(random: Random) -> list[Case]:
    """An inf in one place and -inf in another."""
    cases = _spoiled(random, torch.inf)
    for gradients, _ in cases:
        for gradient in gradients:  # type: ignore[attr-defined]
            gradient.view(-1)[0] = -torch.inf
    return cases


def _answer(scaled_grads: list[Tensor], scale: float, found_inf: bool) -> Answer:
    return reference(scaled_grads, scale)[0], found_inf


def _any(scaled_grads: list[Tensor], bad: Callable[[Tensor], Tensor]) -> bool:
    return any(bool(bad(gradient).any()) for gradient in scaled_grads)


@mistake
def tests_the_sum_in_FP16(scaled_grads: list[Tensor], scale: float) -> Answer:
    """This is what testing the FP16 sum gives: it overflows at 65520 although every term is finite, and a clean step is
    thrown away. Sum in FP32, or ask torch.isfinite for every element."""
    total = sum(g.float().sum() for g in scaled_grads)
    halves = _any([g.sum() for g in scaled_grads], lambda t: ~torch.isfinite(t))
    return _answer(scaled_grads, scale, halves or not bool(torch.isfinite(torch.as_tensor(total))))


@mistake
def repairs_the_gradients(scaled_grads: list[Tensor], scale: float) -> Answer:
    """This is what replacing inf and NaN by 0 gives: nobody learns that the scale is too high. Report it."""
    return [torch.nan_to_num(g.float() / scale, 0.0, 0.0, 0.0) for g in scaled_grads], False


# fmt: off
MISTAKES = (
    wrong("divides in FP16", "this is what dividing before casting gives: FP16 rounds the small quotients to 0. Cast "
          "first.",
          lambda scaled_grads, scale: ([(g / scale).float() for g in scaled_grads], reference(scaled_grads, scale)[1])),
    wrong("stays in FP16", "this is what never casting gives: the master weights need FP32 gradients.",
          lambda scaled_grads, scale: ([g / scale for g in scaled_grads], reference(scaled_grads, scale)[1])),
    wrong("multiplies", "this is what scaling a second time gives: divide.",
          lambda scaled_grads, scale: ([g.float() * scale for g in scaled_grads], reference(scaled_grads, scale)[1])),
    wrong("keeps the scale", "this is the scaled gradient, cast: divide by the scale.",
          lambda scaled_grads, scale: ([g.float() for g in scaled_grads], reference(scaled_grads, scale)[1])),
    tests_the_sum_in_FP16,
    wrong("looks for inf alone", "this is what looking for inf alone gives, or comparing magnitudes with 65504: "
          "every comparison with NaN is False, and inf - inf or 0 x inf inside the backward pass makes NaN.",
          lambda scaled_grads, scale: _answer(scaled_grads, scale, _any(scaled_grads, torch.isinf))),
    wrong("looks for NaN alone", "this is what looking for NaN alone gives: a gradient beyond 65504 arrives as inf.",
          lambda scaled_grads, scale: _answer(scaled_grads, scale, _any(scaled_grads, torch.isnan))),
    wrong("looks at the first tensor", "this is what looking at the first tensor alone gives. One bad tensor spoils "
          "the step.",
          lambda scaled_grads, scale: _answer(scaled_grads, scale, reference(scaled_grads[:1], scale)[1])),
    wrong("looks at the last tensor", "this is what overwriting found_inf in the loop gives: only the last tensor "
          "counts. Use `or`.",
          lambda scaled_grads, scale: _answer(scaled_grads, scale, reference(scaled_grads[-1:], scale)[1])),
    wrong("says the opposite", "this is whether all are finite. found_inf is True where some element is not.",
          lambda scaled_grads, scale: _answer(scaled_grads, scale, not reference(scaled_grads, scale)[1])),
    repairs_the_gradients,
)
# fmt: on

EXERCISE = Exercise(
    id="scaling.unscale",
    title="Unscale, and find inf",
    entry="my_unscale",
    difficulty=1,
    minutes=8,
    reference=reference,
    checks=(
        Check("the gradients of the loss, in FP32", 1, _ordinary),
        Check("gradients too small for FP16 arrive", 1, _tiny),
        Check("inf is found, in whichever tensor", 1, _infinite),
        Check("NaN is found, in whichever tensor", 1, lambda random: _spoiled(random, torch.nan)),
        Check("large but finite gradients are no reason to skip", 1, _heavy),
        Check("inf and -inf do not cancel", 1, _opposite),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
    withheld=(unscale,),
)
