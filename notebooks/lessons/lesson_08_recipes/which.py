"""Can you tell a level from the dtypes that a training shows?

Idea: four probes decide it: a weight of a linear layer, a weight of a norm, what the optimizer steps, and what comes
out of a linear layer. Recognising O0 to O3 from outside is what one does with somebody else's script.

Oracle in the tests: networks cast by hand in plain torch, and torch.autocast.
"""

from __future__ import annotations

from itertools import product
from random import Random

import torch

from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong

FP32, FP16 = torch.float32, torch.float16
ROWS: dict[tuple[torch.dtype, ...], str] = {
    (FP32, FP32, FP32, FP32): "O0",
    (FP32, FP32, FP32, FP16): "O1",
    (FP16, FP32, FP32, FP16): "O2",
    (FP16, FP16, FP16, FP16): "O3",
}


def reference(weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype) -> str:
    """Return the level, or "none of them".

    >>> reference(torch.float16, torch.float16, torch.float32, torch.float16)
    'none of them'
    """
    return ROWS.get((weight, norm, stepped, output), "none of them")


def _levels(random: Random) -> list[Case]:
    rows: list[Case] = list(ROWS)
    random.shuffle(rows)
    return rows


def _others(random: Random) -> list[Case]:
    """All twelve: FP16 norms beside masters, no masters beside FP32 norms, and so on."""
    others: list[Case] = [row for row in product((FP32, FP16), repeat=4) if row not in ROWS]
    return random.sample(others, len(others))


def _other_formats(random: Random) -> list[Case]:
    """The levels in BF16; and each level but for one of its four dtypes, which is another."""
    half, others = torch.bfloat16, (torch.bfloat16, torch.float64, torch.float8_e4m3fn)
    levels: list[Case] = [(half, FP32, FP32, half), (FP32, FP32, FP32, half), (half,) * 4]
    places = [(row, place) for row in ROWS for place in random.sample(range(4), 2)]
    return levels + [(*row[:place], random.choice(others), *row[place + 1 :]) for row, place in places]


@mistake
def never_asks_the_norm(weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype) -> str:
    """This calls an FP16 norm beside masters O2; in O2 the norms stay in FP32."""
    return "O2" if weight == FP16 and stepped == FP32 else reference(weight, norm, stepped, output)


@mistake
def never_asks_the_optimizer(weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype) -> str:
    """This calls a run without masters O2. Masters are what the optimizer steps there."""
    return "O2" if weight == FP16 and norm == FP32 else reference(weight, norm, stepped, output)


@mistake
def swaps_O1_and_O2(weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype) -> str:
    """This is O1 and O2 the other way round: O1 casts by operation and keeps FP32 weights, O2 casts them."""
    found = reference(weight, norm, stepped, output)
    return {"O1": "O2", "O2": "O1"}.get(found, found)


@mistake
def takes_BF16_for_FP16(weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype) -> str:
    """This takes any 16 bits for FP16. BF16 needs no scaling, so it is no O-level."""
    given = (weight, norm, stepped, output)
    return reference(*(FP16 if d == torch.bfloat16 else d for d in given))


# fmt: off
MISTAKES = (
    wrong("asks the output alone", "this is what weight and output alone tell. What the optimizer steps, and the "
          "norms, tell O2 from O3.",
          lambda weight, norm, stepped, output: "O0" if output == FP32 else "O3" if weight == FP16 else "O1"),
    wrong("never asks the output", "this is what weights alone tell: O0 and O1 have the same ones. Ask what comes "
          "out of a layer.",
          lambda weight, norm, stepped, output: "O0" if weight == FP32 else "O2" if stepped == FP32 else "O3"),
    never_asks_the_norm,
    never_asks_the_optimizer,
    swaps_O1_and_O2,
    takes_BF16_for_FP16,
)
# fmt: on

EXERCISE = Exercise(
    id="recipes.which",
    title="Which of the four is it?",
    entry="my_level",
    difficulty=2,
    minutes=8,
    reference=reference,
    checks=(
        Check("O0, O1, O2 and O3", 2, _levels),
        Check("mixtures of FP16 that have no name", 1, _others),
        Check("BF16, and other formats", 1, _other_formats),
    ),
    mistakes=MISTAKES,
    provides={"torch": torch},
)
