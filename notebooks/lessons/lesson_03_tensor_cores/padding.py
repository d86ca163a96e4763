"""Can you give a layer sizes that Tensor Cores like, and its result back?

The point: zeros behind every dimension change no sum, so the padded layer holds the old one in its corner. Oracle in
the tests: torch.nn.functional.linear and pad.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[Tensor, Tensor, Tensor]
MULTIPLE = 8


def reference(x: Tensor, weight: Tensor) -> Answer:
    """Return (x padded, weight padded, y [n, outputs]), all FP16; every size of the padded ones is a multiple of 8.

    >>> x, weight, y = reference(torch.ones(3, 10).half(), torch.ones(5, 10).half())
    >>> x.shape, weight.shape, y.shape
    (torch.Size([8, 16]), torch.Size([8, 16]), torch.Size([3, 5]))
    """
    return _padded(x, weight)


def _up(size: int) -> int:
    return -(-size // MULTIPLE) * MULTIPLE


def _grown(matrix: Tensor, up: Callable[[int], int], fill: float = 0.0, front: bool = False) -> Tensor:
    rows, columns = (up(size) for size in matrix.shape)
    grown = torch.full((rows, columns), fill, dtype=matrix.dtype)
    if front:
        grown[rows - matrix.shape[0] :, columns - matrix.shape[1] :] = matrix
    else:
        grown[: matrix.shape[0], : matrix.shape[1]] = matrix[:rows, :columns]
    return grown


def _product(x: Tensor, weight: Tensor) -> Tensor:
    return (x.float() @ weight.float().T).half()


def _padded(x: Tensor, weight: Tensor, up: Callable[[int], int] = _up, fill: float = 0.0) -> Answer:
    wide, tall = _grown(x, up, fill), _grown(weight, up, fill)
    return wide, tall, _product(wide, tall)[: len(x), : len(weight)]


def _matrix(random: Random, rows: int, columns: int) -> Tensor:
    """Whole numbers over 8, none of them zero: FP32 adds up their products exactly, FP16 does not."""
    return (whole(random, (rows, columns), 1, 128) / 8).half()


def _case(random: Random, n: int, inputs: int, outputs: int) -> Case:
    return _matrix(random, n, inputs), _matrix(random, outputs, inputs)


def _odd(random: Random) -> list[Case]:
    return [_case(random, *(8 * random.randrange(3) + random.randrange(1, 7) for _ in range(3))) for _ in range(2)]


def _classes(random: Random) -> list[Case]:
    """The usual case: a batch and features that fit, and ten classes, or 33 of them."""
    return [_case(random, 16, 24, 10), _case(random, 8, 40, 33)]


def _ones(random: Random) -> list[Case]:
    large = torch.full((3, 10), 128.0).half(), torch.full((5, 10), -128.0).half()  # y is beyond FP16
    return [_case(random, 1, 1, 1), _case(random, 7, 9, 17), _case(random, 2, 70, 3), large]


@mistake
def leaves_the_result_padded(x: Tensor, weight: Tensor) -> Answer:
    """This is y with the padding still on it. Cut it back: whoever comes next knows the layer's own sizes."""
    wide, tall = _grown(x, _up), _grown(weight, _up)
    return wide, tall, _product(wide, tall)


@mistake
def pads_in_front(x: Tensor, weight: Tensor) -> Answer:
    """This is zeros in front. The old numbers belong into the first rows and columns."""
    wide, tall = _grown(x, _up, front=True), _grown(weight, _up, front=True)
    return wide, tall, _product(wide, tall)[: len(x), : len(weight)]


@mistake
def pads_the_inputs_only(x: Tensor, weight: Tensor) -> Answer:
    """This is padding of the inputs alone. All three sizes of the product count: rows, inputs and outputs."""
    wide, tall = (_grown(t, _up)[: len(t)] for t in (x, weight))
    return wide, tall, _product(wide, tall)


@mistake
def cuts_down(x: Tensor, weight: Tensor) -> Answer:
    """This is what rounding the sizes down gives: inputs and classes are cut off."""

    def down(size: int) -> int:
        return max(MULTIPLE, size // MULTIPLE * MULTIPLE)

    x, weight = (_grown(t[: down(len(t)), : down(t.shape[1])], down) for t in (x, weight))
    return x, weight, _product(x, weight)


@mistake
def pads_in_FP32(x: Tensor, weight: Tensor) -> Answer:
    """This is FP32 padding. torch.zeros makes FP32 unless told the dtype."""
    wide, tall, y = _padded(x, weight)
    return wide.float(), tall.float(), y


# fmt: off
MISTAKES = (
    leaves_the_result_padded,
    wrong("pads with ones", "this is what padding with something other than 0 gives: padded inputs join every sum.",
          lambda x, weight: _padded(x, weight, fill=1.0)),
    pads_in_front,
    pads_the_inputs_only,
    wrong("always adds some", "this is 8 more even where the size is a multiple of 8 already.",
          lambda x, weight: _padded(x, weight, lambda size: (size // MULTIPLE + 1) * MULTIPLE)),
    wrong("to a power of two", "this is the next power of two: 1025 would become 2048. The next multiple of 8 is "
          "enough.", lambda x, weight: _padded(x, weight, lambda size: max(MULTIPLE, 1 << (size - 1).bit_length()))),
    cuts_down,
    pads_in_FP32,
)
# fmt: on

EXERCISE = Exercise(
    id="tensor.padding",
    title="Multiples of 8",
    entry="my_padded_linear",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("sizes that fit nowhere", 1, _odd),
        Check("only the number of classes does not fit", 1, _classes),
        Check("sizes that fit already", 1, lambda random: [_case(random, 8, 16, 24), _case(random, 16, 8, 8)]),
        Check("one row, one input, one output; and 7, 9, 17", 2, _ones),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
