"""Can you say, before anything is timed, what limits a linear layer?

The point: FLOPs grow with the product of three sizes, bytes with the products of two, so a large layer waits for the
multipliers and a small batch for the memory. Oracle in the tests: torch's FLOP counter, and its tensors' bytes.
"""

from __future__ import annotations

from random import Random

from labkit.bench import intensity
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

Answer = tuple[int, int, str]


def reference(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """Return (FLOPs, bytes, "bandwidth" or "compute") of Y[batch, outputs] = X[batch, inputs] @ W[outputs, inputs]^T.

    >>> reference(64, 1024, 1024, 2, 100.0)
    (134217728, 2359296, 'bandwidth')
    """
    flops = 2 * batch * inputs * outputs
    return _bound(flops, bytes_each * (batch * inputs + inputs * outputs + batch * outputs), ridge)


def _bound(flops: int, moved: int, ridge: float) -> Answer:
    return flops, moved, "bandwidth" if flops / moved < ridge else "compute"


def _size(random: Random, low: int, high: int) -> int:
    return 8 * random.randrange(low // 8, high // 8)


def _layers(random: Random) -> list[Case]:
    """Large batches: far above the ridge."""
    return [(_size(random, 2048, 4096), _size(random, 2048, 4096), _size(random, 512, 1024), 2, 50.0) for _ in range(3)]


def _small_batches(random: Random) -> list[Case]:
    drawn = [(batch, _size(random, 1024, 4096), _size(random, 512, 1000), 2, 100.0) for batch in (1, 16, 64)]
    return [*drawn, (1, 1, 1, 4, 100.0), (1, 1, 1, 2, 0.25), (16, 1024, 1024, 1, 30.0)]


def _in_fp32(random: Random) -> list[Case]:
    """Twice the bytes: these layers are above the ridge in FP16 and below it in FP32."""
    return [(batch, 4096, _size(random, 2048, 4000), 4, 0.75 * batch) for batch in (128, 256)]


def _beside_the_ridge(random: Random) -> list[Case]:
    """The same layer on some devices: with a ridge just above, just at, and just below its intensity.

    The intensity is a whole number of 64ths, so a float holds it, and no way to compare it rounds.
    """
    while True:
        batch, inputs, outputs = (_size(random, 64, 512) for _ in range(3))
        flops, moved, _ = reference(batch, inputs, outputs, 2, 1.0)
        if 64 * flops % moved == 0 and flops % moved:  # no whole number: to round it is to change it
            parts = (1.01, 1 + 2.0**-30, 1.0, 1 - 2.0**-30, 0.99)
            return [(batch, inputs, outputs, 2, flops / moved * part) for part in parts]


def _without(part: str, batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    flops, moved, _ = reference(batch, inputs, outputs, bytes_each, ridge)
    sizes = {"weight": inputs * outputs, "result": batch * outputs}
    return _bound(flops, moved - bytes_each * sizes[part], ridge)


@mistake
def one_FLOP_for_each_product(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """This is one FLOP for each product. A product is multiplied and added: two."""
    flops, moved, _ = reference(batch, inputs, outputs, bytes_each, ridge)
    return _bound(flops // 2, moved, ridge)


@mistake
def forgets_the_weight(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """This is without the weight, which is read too; with a small batch it is nearly all there is to move."""
    return _without("weight", batch, inputs, outputs, bytes_each, ridge)


@mistake
def forgets_the_result(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """This is without Y, which is written."""
    return _without("result", batch, inputs, outputs, bytes_each, ridge)


@mistake
def the_bounds_the_wrong_way_round(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """This is the wrong way round: few FLOPs for each byte means that the memory is the limit."""
    flops, moved, bound = reference(batch, inputs, outputs, bytes_each, ridge)
    return flops, moved, "compute" if bound == "bandwidth" else "bandwidth"


@mistake
def compares_FLOPs_with_the_ridge(batch: int, inputs: int, outputs: int, bytes_each: int, ridge: float) -> Answer:
    """This is what comparing FLOPs with the ridge gives. The ridge is FLOPs for each byte: divide first."""
    flops, moved, _ = reference(batch, inputs, outputs, bytes_each, ridge)
    return flops, moved, "bandwidth" if flops < ridge else "compute"


# fmt: off
MISTAKES = (
    one_FLOP_for_each_product,
    forgets_the_weight,
    forgets_the_result,
    wrong("two bytes always", "this is two bytes for every element. FP32 has four: `bytes_each` says how many.",
          lambda batch, inputs, outputs, bytes_each, ridge: reference(batch, inputs, outputs, 2, ridge)),
    wrong("elements for bytes", "this is the number of elements. Each has `bytes_each` bytes.",
          lambda batch, inputs, outputs, bytes_each, ridge: reference(batch, inputs, outputs, 1, ridge)),
    the_bounds_the_wrong_way_round,
    compares_FLOPs_with_the_ridge,
)
# fmt: on

EXERCISE = Exercise(
    id="tensor.intensity",
    title="What limits a layer",
    entry="my_layer",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("large layers", 1, _layers),
        Check("small batches", 1, _small_batches),
        Check("the same in FP32", 1, _in_fp32),
        Check("close to the ridge", 2, _beside_the_ridge),
    ),
    mistakes=MISTAKES,
    withheld=(intensity,),
)
