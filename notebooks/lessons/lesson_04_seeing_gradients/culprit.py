"""Where did the first inf or NaN come from?

The point: what comes later is a consequence. The first tensor that is not finite is the place to repair, and how large
the one before it was says whether it was an overflow on its way.

Oracle in the tests: numpy, backwards from the last tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Tensors = list[tuple[str, Tensor]]
Found = tuple[str, float] | None
NAMES = ("conv1", "norm1", "conv2", "norm2", "head", "loss")


def reference(tensors: Tensors) -> Found:
    """Return the first name with an inf or a NaN, and the largest magnitude of the tensor before it; None if all are
    finite.

    >>> reference([("conv", torch.tensor([-300.0, 2.0]).half()), ("loss", torch.tensor([torch.inf]).half())])
    ('loss', 300.0)
    """
    before = 0.0
    for name, tensor in tensors:
        if not torch.isfinite(tensor).all():
            return name, before
        before = float(tensor.abs().max())
    return None


def _healthy(random: Random) -> Tensors:
    """Finite tensors, the largest magnitude of each negative, and a larger one early on."""
    found = [(name, whole(random, (2, 3), 1, 512)) for name in NAMES]
    for i, (_, tensor) in enumerate(found):
        tensor[1, random.randrange(3)] = -(2048.0 - 128 * i) if i else -4096.0
    return [(name, tensor.half()) for name, tensor in found]


def _spoiled(random: Random, at: int, *elements: float) -> Tensors:
    """Elements put into the tensor at this place; all later ones are NaN, as they would be."""
    found = _healthy(random)
    flat = found[at][1].view(-1)
    flat[random.sample(range(len(flat)), len(elements))] = torch.tensor(elements).half()
    return [*found[: at + 1], *((name, torch.full_like(tensor, math.nan)) for name, tensor in found[at + 1 :])]


def _infinite(random: Random) -> list[Case]:
    return [(_spoiled(random, at, sign * math.inf),) for at, sign in ((1, 1), (3, -1), (5, 1))]


def _not_a_number(random: Random) -> list[Case]:
    drawn: list[Case] = [(_spoiled(random, at, math.nan),) for at in (2, 4)]
    return [*drawn, (_spoiled(random, 3, math.nan, math.inf),)]


def _cancelling(random: Random) -> list[Case]:
    """Have inf and -inf side by side; and large finite ones, whose FP16 sum is inf."""
    heavy = [(name, torch.full_like(tensor, 16384.0)) for name, tensor in _healthy(random)]
    return [(_spoiled(random, 2, math.inf, -math.inf),), (heavy,)]


def _ends(random: Random) -> list[Case]:
    """The first tensor itself; none at all; one alone; FP16's largest number, a layer that runs twice, a loss."""
    loss = ("loss", torch.tensor(math.nan).half())
    largest = [("shared", tensor.fill_(65504)) for _, tensor in _healthy(random)[:1]]
    twice = [*largest, *_healthy(random)[1:3], ("shared", torch.tensor([-3.0]).half()), loss]
    again = _spoiled(random, 4, math.inf)
    again[1] = again[4][0], again[1][1]  # the name of the tensor that is spoiled, earlier, and all is well
    later = [*_spoiled(random, 2, -math.inf)[:4], _healthy(random)[2]]  # and later, and all is well
    doubled = [("conv1", _healthy(random)[3][1]), *_spoiled(random, 0, math.nan)]
    named = [(again,), (later,), (doubled,)]
    return [(_spoiled(random, 0, math.inf),), (_healthy(random),), (_healthy(random)[:1],), ([],), (twice,), *named]


def _first(tensors: Tensors, bad: Callable[[Tensor], bool]) -> int | None:
    return next((i for i, (_, tensor) in enumerate(tensors) if bad(tensor)), None)


def _said(tensors: Tensors, at: int | None) -> Found:
    if at is None:
        return None
    return tensors[at][0], float(tensors[at - 1][1].abs().max()) if at else 0.0


def _bad(tensor: Tensor) -> bool:
    return not bool(torch.isfinite(tensor).all())


@mistake
def names_the_last(tensors: Tensors) -> Found:
    """This is the last tensor that is not finite. The first one is the cause."""
    places = [i for i, (_, tensor) in enumerate(tensors) if _bad(tensor)]
    return _said(tensors, places[-1] if places else None)


@mistake
def names_the_one_before(tensors: Tensors) -> Found:
    """This names the last tensor that was finite. Name the one after it."""
    found = reference(tensors)
    at = _first(tensors, _bad)
    return found and (tensors[max((at or 0) - 1, 0)][0], found[1])


@mistake
def takes_the_largest_of_all(tensors: Tensors) -> Found:
    """This is the largest magnitude of all tensors before. Only the one just before says how near the overflow was."""
    at = _first(tensors, _bad)
    return None if at is None else (tensors[at][0], max((float(t.abs().max()) for _, t in tensors[:at]), default=0.0))


@mistake
def forgets_the_sign(tensors: Tensors) -> Found:
    """This is the largest number. -2048 is larger in magnitude than 511: take abs first."""
    at = _first(tensors, _bad)
    return None if at is None else (tensors[at][0], float(tensors[at - 1][1].max()) if at else 0.0)


@mistake
def looks_into_the_bad_tensor(tensors: Tensors) -> Found:
    """This is the largest finite magnitude of the tensor that is spoiled. Look at the one before it."""
    at = _first(tensors, _bad)
    return (
        None if at is None else (tensors[at][0], float(torch.nan_to_num(tensors[at][1].float(), 0, 0, 0).abs().max()))
    )


# fmt: off
MISTAKES = (
    wrong("looks for inf alone", "this looks for inf alone. 0 / 0 and inf - inf give NaN, with no inf in the tensor.",
          lambda tensors: _said(tensors, _first(tensors, lambda t: bool(torch.isinf(t).any())))),
    wrong("looks for NaN alone", "this looks for NaN alone, and so finds the consequence: an overflow is inf first.",
          lambda tensors: _said(tensors, _first(tensors, lambda t: bool(torch.isnan(t).any())))),
    names_the_last,
    names_the_one_before,
    takes_the_largest_of_all,
    forgets_the_sign,
    looks_into_the_bad_tensor,
    wrong("tests the sum", "this tests the FP16 sum: finite numbers that add up beyond 65504 raise a false alarm.",
          lambda tensors: _said(tensors, _first(tensors, lambda t: not bool(torch.isfinite(t.float().sum().half()))))),
)
# fmt: on

EXERCISE = Exercise(
    id="gradients.culprit",
    title="Who was first?",
    entry="my_culprit",
    difficulty=2,
    minutes=10,
    reference=reference,
    checks=(
        Check("the first inf", 2, _infinite),
        Check("the first NaN", 1, _not_a_number),
        Check("inf and -inf do not cancel, and large numbers are no alarm", 1, _cancelling),
        Check("the first tensor, or none", 1, _ends),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
