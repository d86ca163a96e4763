"""Can you say how many bytes a tensor takes?

The point: elements times bits, whatever the numbers are; which is also all that a number format saves by itself.
Oracle in the tests: torch's own tensors.
"""

from __future__ import annotations

import math
from random import Random

from labkit.grading.exercise import Case, Check, Exercise, wrong


def reference(shape: tuple[int, ...], bits: int) -> int:
    """Return the bytes of a packed tensor, the last one filled up.

    >>> reference((3, 5), 16), reference((), 32), reference((3,), 4)
    (30, 4, 2)
    """
    return math.ceil(math.prod(shape) * bits / 8)


def _shape(random: Random, dimensions: int) -> tuple[int, ...]:
    return tuple(random.randrange(3, 40) for _ in range(dimensions))


def _usual(random: Random) -> list[Case]:
    """Of one to four dimensions; last, one of more bytes than 32 bits count."""
    drawn = [(_shape(random, dimensions), bits) for dimensions, bits in ((1, 16), (2, 16), (2, 32), (3, 32), (4, 16))]
    return [*drawn, ((65537, random.randrange(40_001, 60_001, 2)), 16)]


def _edges(random: Random) -> list[Case]:
    """A single number has the shape (); a tensor may be empty."""
    return [((), 16), ((), 32), ((*_shape(random, 1), 0), 16), ((0, *_shape(random, 1)), 32), ((1, 1, 1), 16), ((), 4)]


def _narrow(random: Random) -> list[Case]:
    """Bits that a dtype has, and that none has, packed: an odd number of 4-bit elements ends in half a byte."""
    odd = random.randrange(3, 20) * 2 + 1
    others = [(_shape(random, 2), bits) for bits in (1, 12, 64, random.choice((2, 3, 5, 7, 9, 19)))]
    return [(_shape(random, 2), 8), ((odd,), 4), ((odd, 3), 6), *others]


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


# fmt: off
MISTAKES = (
    wrong("adds the dimensions", "this is what adding the dimensions gives. A 3 x 5 tensor has 15 elements.",
          lambda shape, bits: math.ceil(sum(shape) * bits / 8)),
    wrong("counts bits", "this is the number of bits. A byte has eight.", lambda shape, bits: _elements(shape) * bits),
    wrong("counts elements", "this is the number of elements.", lambda shape, bits: _elements(shape)),
    wrong("counts the first dimension", "this is what len(tensor) counts: the first dimension only.",
          lambda shape, bits: math.ceil((shape[0] if shape else 1) * bits / 8)),
    wrong("a single number is nothing", "this is what starting the product at 0, or special-casing (), gives. A "
          "shape without dimensions is one number.",
          lambda shape, bits: math.ceil(_elements(shape) * bits / 8) if shape else 0),
    wrong("always FP16", "this is two bytes an element, whatever the format. Use `bits`.",
          lambda shape, bits: _elements(shape) * 2),
    wrong("a byte an element at least", "this is what whole bytes for each element give. Packed, two 4-bit elements "
          "share one.", lambda shape, bits: _elements(shape) * math.ceil(bits / 8)),
    wrong("drops the last byte", "this is what rounding down gives. Half a byte at the end still takes one.",
          lambda shape, bits: _elements(shape) * bits // 8),
)
# fmt: on

EXERCISE = Exercise(
    id="numbers.bytes",
    title="Bytes of a tensor",
    entry="my_bytes",
    difficulty=1,
    minutes=3,
    reference=reference,
    checks=(
        Check("tensors in 16 and in 32 bits", 1, _usual),
        Check("a single number, and an empty tensor", 1, _edges),
        Check("formats of 8, 6 and 4 bits, and of any", 1, _narrow),
    ),
    mistakes=MISTAKES,
)
