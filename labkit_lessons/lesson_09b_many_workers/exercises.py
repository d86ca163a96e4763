"""Exercises on many workers: one decision, one mean and one layout for all ranks."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)


# --- workers.agree ---


def _ranks(random: Random, world: int) -> tuple[list[Tensor], list[Tensor], float, float]:
    """Return the ranks' parts of a weight, their scaled gradients, the scale and the learning rate.

    Parts have rows of two numbers n / 2^10. The last part may be shorter.
    """
    shapes = [(3, 2)] * (world - 1) + [(random.randint(1, 3), 2)]
    parts = [whole(random, shape, -1024, 1024) / 2**10 for shape in shapes]
    scale = 2.0 ** random.randint(12, 15)
    gradients = [(whole(random, shape, 1, 1000) / 2**20 * scale).half() for shape in shapes]
    return parts, gradients, scale, random.choice((0.5, 0.25, 1.0))


def _clean(random: Random) -> list[Case]:
    """Gradients of ordinary size, and of FP16's largest number, whose sum would be inf."""
    parts, gradients, scale, lr = _ranks(random, 2)
    largest = [torch.full_like(gradient, 65504) for gradient in gradients]
    return [
        *(_ranks(random, world) for world in (1, 2, 4, 5)),
        (parts, largest, scale, lr),
        _with_an_empty_part(random),
    ]


def _with_an_empty_part(random: Random) -> tuple[list[Tensor], list[Tensor], float, float]:
    """Return a case whose last ranks hold no rows."""
    parts, gradients, scale, lr = _ranks(random, 2)
    empty = torch.zeros(0, 2)
    return [*parts, empty, empty.clone()], [*gradients, empty.half(), empty.half()], scale, lr


def _spoiled(random: Random, bad: float) -> list[Case]:
    """One bad element on the first rank, the last, or one between, once at a scale of 1."""
    cases: list[Case] = []
    between = random.randint(1, 2)
    # the number of ranks, the rank of the bad element, its row and its column
    for world, rank, row, column in (
        (4, 0, -1, 1),
        (4, 3, 0, 0),
        (4, between, -1, 1),
        (1, 0, -1, 1),
    ):
        parts, gradients, scale, lr = _ranks(random, world)
        gradients[rank][row, column] = bad
        cases.append((parts, gradients, scale, lr))
    parts, gradients, _, lr = _ranks(random, 6)
    gradients[5][-1, 1] = bad
    cases.append((parts, gradients, 1.0, lr))
    return cases


def _several(random: Random) -> list[Case]:
    """Inf of both signs, whose sum is NaN, and inf on several ranks: the scale is halved once."""
    parts, gradients, scale, lr = _ranks(random, 4)
    gradients[1][0] = torch.tensor([torch.inf, -torch.inf])
    every = [torch.full_like(g, torch.inf) for g in gradients]
    shared = _with_an_empty_part(random)
    shared[1][0][1, 1] = shared[1][1][0, 0] = torch.inf
    return [(parts, gradients, scale, lr), (parts, every, scale, lr), shared]


def _tiny(random: Random) -> list[Case]:
    """Scaled gradients of FP16's smallest numbers: divided in FP16, nothing would be left."""
    sizes = (2, 2)
    gradients = [(whole(random, (n,), 1, 30) * 2.0**-24).half() for n in sizes]
    return [([torch.zeros(n) for n in sizes], gradients, 2.0**14, 0.5)]


FOUND = "any(not torch.isfinite(gradient).all() for gradient in gradients)"
SKIP = "return list(parts), scale / 2"
ALONE = """updated = []
        for part, gradient in zip(parts, gradients, strict=True):
            fine = bool(torch.isfinite(gradient).all())
            updated.append(part - lr * (gradient.float() / scale) if fine else part)
        return updated, scale / 2"""
"""In place of SKIP: each rank decides alone whether it steps."""
AGREE = Exercise(
    id="workers.agree",
    notes="""\
The point: each rank sees only its own part of the gradients. If one of them holds inf, all skip,
and the one scale that all share is halved once.

Invariant: gradients, scales and learning rates are such that every step is exact in FP32.
Oracle in the tests: one process that holds all parts in one tensor, and torch's GradScaler.""",
    checks=(
        Check("clean gradients, on 1 to 5 ranks", 1, _clean),
        Check(
            "inf on one rank",
            2,
            lambda random: _spoiled(random, torch.inf) + _spoiled(random, -torch.inf)[-2:],
        ),
        Check("NaN on one rank", 1, lambda random: _spoiled(random, torch.nan)),
        Check("inf on several ranks", 1, _several),
        Check("gradients that FP16 can only hold scaled", 1, _tiny),
    ),
    mistakes=(
        wrong(
            "each decides alone",
            "this lets the ranks without inf step. All of them step or none does.",
            replace=(SKIP, ALONE),
        ),
        wrong(
            "asks the first rank",
            "this looks at the first rank's gradients only.",
            replace=(FOUND, "not torch.isfinite(gradients[0]).all()"),
        ),
        wrong(
            "skips only if all overflow",
            "this skips only when every rank holds inf or NaN. One is enough.",
            replace=("any(not", "all(not"),
        ),
        wrong(
            "halves once for each rank",
            "this halves the scale once for each rank that holds inf. There is one "
            "scale and one decision.",
            replace=(
                "scale / 2",
                "scale / 2 ** sum(not gradient.isfinite().all() for gradient in gradients)",
            ),
        ),
        wrong(
            "keeps the scale",
            "this skips, and leaves the scale as it is: the next step would overflow again.",
            replace=("scale / 2", "scale"),
        ),
        wrong(
            "knows inf but not nan",
            "this looks for inf and lets NaN pass.",
            replace=(FOUND, "any(gradient.isinf().any() for gradient in gradients)"),
        ),
        wrong(
            "asks the largest",
            "this looks at each rank's largest element, where -inf is not seen. Take "
            "magnitudes, or `torch.isfinite`.",
            replace=(FOUND, "any(not gradient.max().isfinite() for gradient in gradients)"),
        ),
        wrong(
            "asks the sum",
            "this looks at a sum in FP16, which overflows where all gradients are finite. Look at "
            "each element.",
            replace=(
                FOUND,
                "not sum(gradient.sum(dtype=torch.float16) for gradient in gradients).isfinite()",
            ),
        ),
        wrong(
            "divides in fp16",
            "this divides by the scale in FP16, where small gradients underflow. Cast to FP32 "
            "first.",
            replace=("gradient.float() / scale", "(gradient / scale).float()"),
        ),
        wrong(
            "forgets to unscale",
            "this steps with gradients that are still multiplied by the scale.",
            replace=("gradient.float() / scale", "gradient.float()"),
        ),
    ),
)


# --- workers.predivide ---


def _draw(
    random: Random, world: int, low: float, high: float, sign: int = 0, elements: int = 4
) -> list[Tensor]:
    """Return FP16 gradients for each rank.

    Args:
        random: Draws the gradients.
        world: How many ranks there are.
        low: The smallest magnitude.
        high: The largest magnitude.
        sign: The sign of all elements, -1 or 1; with 0 signs are random.
        elements: How many elements each rank has.
    """
    signs = [[sign or random.choice((-1, 1)) for _ in range(elements)] for _ in range(world)]
    return [torch.tensor([s * random.uniform(low, high) for s in row]).half() for row in signs]


def _ordinary(random: Random) -> list[Case]:
    worlds = ((1, 1), (2, 2), (4, 2), (8, 4), (6, 2), (6, 3), (9, 3))
    return [(_draw(random, world, 0.5, 4.0, elements=world), before) for world, before in worlds]


def _large(random: Random) -> list[Case]:
    """Sums beyond 65504, and means within: divided before by 2 or by all."""
    return [
        (_draw(random, 4, 20_000, 30_000, sign), before) for sign in (-1, 1) for before in (2, 4)
    ]


def _small(random: Random) -> list[Case]:
    """Gradients from 2^-24 to 2^-22: divided by 8 before, all are lost; by 2, only the smallest."""
    return [(_draw(random, 8, 2.0**-24, 2.0**-22, 1), before) for before in (1, 2, 8)]


def _overflowing(random: Random) -> list[Case]:
    """Sums that are inf without a division before, and ranks with inf or NaN, which stay."""
    spoiled = _draw(random, 4, 1, 2)
    spoiled[2][1] = torch.inf
    spoiled[1][2] = torch.nan
    # inf - inf is NaN.
    spoiled[0][3] = torch.inf
    spoiled[3][3] = -torch.inf
    ranks = [_draw(random, 6, 1, 2) for _ in range(3)]
    # Inf on every other rank, -inf on all of them, and both signs in turn: inf, -inf, NaN.
    for gradients in ranks:
        for rank, gradient in enumerate(gradients):
            gradient[0] = torch.inf if rank % 2 else 1.0
            gradient[1] = -torch.inf
            gradient[2] = (-1) ** rank * torch.inf
    # The sum leaves FP16's range, and would come back.
    back = [torch.tensor([x]).half() for x in (60_000.0, 50_000.0, -60_000.0, -50_000.0)]
    ends = [(gradients, before) for gradients, before in zip(ranks, (1, 2, 6), strict=True)]
    return [
        (_draw(random, 4, 30_000, 60_000, 1), 1),
        (spoiled, 4),
        (spoiled, 1),
        *ends,
        (back, 1),
        (back[::-1], 1),
    ]


def _one_bad_rank(random: Random) -> list[Case]:
    """One rank with inf or NaN, in one element or in all, beside ranks of ordinary numbers."""
    cases: list[Case] = []
    for bad, before in ((torch.inf, 2), (torch.nan, 4), (-torch.inf, 1)):
        one = _draw(random, 4, 1, 2)
        whole_rank = _draw(random, 4, 1, 2)
        one[random.randrange(4)][random.randrange(4)] = bad
        whole_rank[random.randrange(4)][:] = bad
        cases += [(one, before), (whole_rank, before)]
    return cases


PREDIVIDE = Exercise(
    id="workers.predivide",
    notes="""\
The point: the sum may overflow although every gradient and their mean fit, and a quotient may
underflow although the mean does not. So a part of the division comes before the sum, and the rest
after it.

Invariant: every operation is rounded to FP16, in the order of the ranks.
Oracle in the tests: numpy's FP16.""",
    checks=(
        Check("ordinary gradients", 1, _ordinary),
        Check("sums beyond FP16", 2, _large),
        Check("gradients near FP16's smallest", 1, _small),
        Check(
            "inf where nothing helps",
            1,
            lambda random: _overflowing(random) + _one_bad_rank(random),
        ),
    ),
    mistakes=(
        wrong(
            "divides only after",
            "this adds up first and divides by the number of ranks after: the sum overflows.",
            lambda gradients, before: solution.my_mean_in_fp16(gradients, 1),
        ),
        wrong(
            "divides only before",
            "this divides by all ranks before the sum, whatever `before` says: small "
            "gradients underflow.",
            lambda gradients, before: solution.my_mean_in_fp16(gradients, len(gradients)),
        ),
        wrong(
            "forgets the rest",
            "this leaves out the division after the sum: the two together are the number of ranks.",
            replace=(" / (len(gradients) / before)", ""),
        ),
        wrong(
            "divides by all again",
            "this divides by the number of ranks after the sum, although it divided before.",
            replace=("(len(gradients) / before)", "(len(gradients) / before) / before"),
        ),
        wrong(
            "adds up in fp32",
            "this adds up in FP32 and rounds once: more exact, and twice the bytes on the wire. "
            "The task says FP16.",
            lambda gradients, before: (sum(g.float() for g in gradients) / len(gradients)).half(),
        ),
        wrong(
            "adds up quotients in fp32",
            "this divides in FP16 and adds up in FP32; each sum is rounded to FP16 too.",
            replace=(
                ("total = gradients[0] / before", "total = (gradients[0] / before).float()"),
                (
                    "return total / (len(gradients) / before)",
                    "return (total / (len(gradients) / before)).half()",
                ),
            ),
        ),
        wrong(
            "returns the sum",
            "this multiplies again by what it divided by: it returns the sum. Return the mean.",
            replace=("(len(gradients) / before)", "(len(gradients) / before) * len(gradients)"),
        ),
    ),
)


# --- workers.parts ---


def _even(random: Random) -> list[tuple[int, int]]:
    return [(random.randint(1, 9) * world, world) for world in (1, 2, 4, 8)]


def _uneven(random: Random) -> list[tuple[int, int]]:
    """Rows with a shorter last part; rounding down gives other parts.

    A fair share of single rows is the same in all cases but the last. There, the last part lacks
    three rows, and a fair share lets three ranks have one row less.
    """
    return [
        (11, 4),
        (7, 4),
        (14, 3),
        (random.randint(2, 9) * 8 - 1, 8),
        (random.randint(500, 999) * 8 - 3, 8),
    ]


def _empty(random: Random) -> list[Case]:
    """Rows that leave ranks empty, even where there are more rows than ranks."""
    return [
        (1, 4),
        (3, 8),
        (5, 4),
        (9, 8),
        (random.choice((17, 18)), 8),
        (20, 16),
        (3, 64),
        (129, 128),
    ]


def _block_sizes(random: Random) -> tuple[int, ...]:
    return (1, *random.sample((2, 3, 4, 5, 8, 16), 2))


def _in_blocks(draw: Callable[[Random], list[Case]]) -> Callable[[Random], list[Case]]:
    """Return a drawer of the same rows one by one, and in blocks of two sizes."""

    def drawn(random: Random) -> list[Case]:
        cases = draw(random)
        return [(*case, block) for block in _block_sizes(random) for case in cases]

    return drawn


def _of_blocks(
    draw: Callable[[Random], list[tuple[int, int]]], missing: int
) -> Callable[[Random], list[Case]]:
    """Return a drawer of as many blocks as `draw` has rows, of three sizes.

    Args:
        draw: Draws (rows, ranks).
        missing: Rows that the last block lacks, if it has several.
    """

    def drawn(random: Random) -> list[Case]:
        pairs = draw(random)
        cases: list[Case] = []
        for block in _block_sizes(random):
            lacks = missing if block > 1 else 0
            cases += [(rows * block - lacks, world, block) for rows, world in pairs]
        return cases

    return drawn


PART = "(min(rank * each, rows), min(rank * each + each, rows))"
PARTS = Exercise(
    id="workers.parts",
    notes="""\
The point: the parts are as long as the first one, until the rows are used up; blocks of rows are
what torch.chunk does not know. So the last ranks may hold less, or nothing, and who looks for inf
there finds none.

Oracle in the tests: torch.chunk, and the DTensor of FSDP2.
Source: torch.distributed.tensor.Shard (as torch.chunk).""",
    checks=(
        Check("rows that can be shared evenly", 1, _of_blocks(_even, missing=0)),
        Check("a last part that is shorter", 2, _of_blocks(_uneven, missing=1)),
        Check("ranks that hold nothing", 2, _in_blocks(_empty)),
    ),
    mistakes=(
        wrong(
            "rounds down",
            "this rounds the quotient down and gives the last rank the rest, so the last one holds "
            "the most.",
            replace=(
                ("-(-rows // (world * block)) * block", "rows // (world * block) * block"),
                (PART, "(rank * each, rows if rank == world - 1 else rank * each + each)"),
            ),
        ),
        wrong(
            "loses the rest",
            "this rounds the quotient down, and the rows that are left belong to no rank.",
            replace=(
                ("-(-rows // (world * block)) * block", "rows // (world * block) * block"),
                (PART, "(rank * each, rank * each + each)"),
            ),
        ),
        wrong(
            "shares fairly",
            "this gives the first ranks one row more, as numpy.array_split does. torch fills up "
            "rank by rank.",
            lambda rows, world, block: [
                (
                    r * (rows // world) + min(r, rows % world),
                    (r + 1) * (rows // world) + min(r + 1, rows % world),
                )
                for r in range(world)
            ],
        ),
        wrong(
            "goes beyond the end",
            "this lets the last ranks begin or end beyond the last row.",
            replace=(PART, "(rank * each, rank * each + each)"),
        ),
        wrong(
            "begins beyond the end",
            "this ends every part in time, but a rank that holds nothing begins beyond "
            "the last row.",
            replace=("min(rank * each, rows)", "rank * each"),
        ),
        wrong(
            "leaves out who holds nothing",
            "this leaves out the ranks that hold nothing. They are there, and wait "
            "in every all-reduce.",
            lambda rows, world, block: [
                (first, last)
                for first, last in solution.my_rows(rows, world, block)
                if first < last
            ],
        ),
        wrong(
            "knows no blocks",
            "this is torch's rule, row by row. A part is a multiple of the block.",
            lambda rows, world, block: solution.my_rows(rows, world, 1),
        ),
        wrong(
            "rounds down to blocks",
            "this rounds the rows of a rank down to whole blocks. Round up.",
            replace=(
                "-(-rows // (world * block)) * block",
                "max(1, -(-rows // world) // block) * block",
            ),
        ),
        wrong(
            "names the last row",
            "this names the last row of each part; return the row after it.",
            replace=("min(rank * each + each, rows)", "min(rank * each + each, rows) - 1"),
        ),
    ),
    former=(1,),
)

EXERCISES = (AGREE, PREDIVIDE, PARTS)
