"""Exercises of lesson 08: levels, training loops, epsilon, and the comparison of recipes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from itertools import product
from random import Random

import torch

from labkit.formats import FP16, round_to
from labkit.grading.draws import always
from labkit.grading.exercise import Case, Check, Exercise, wrong
from labkit.grading.solutions import Solutions

from .orders import AnyOrder

solution = Solutions(__file__)

# --- recipes.levels ---

KNOBS = ("model_bits", "casts_by_operation", "norms_in_fp32", "master_weights", "dynamic_scaling")


def _level(level: str) -> Callable[[Random], list[Case]]:
    """Return a drawer of a level as it is, with one, two and three knobs changed, and as it is."""

    def draw(random: Random) -> list[Case]:
        chosen = [random.sample(KNOBS, count) for count in (1, 2, 3)]
        variants = [{knob: _another(random, knob) for knob in knobs} for knobs in chosen]
        return [(level, {}), *((level, changed) for changed in variants), (level, {})]

    return draw


def _another(random: Random, knob: str) -> object:
    """Return a random value of a knob, which may be the one it has."""
    if knob == "model_bits":
        return random.choice((16, 32))
    return random.random() < 0.5


LEVELS = Exercise(
    id="recipes.levels",
    notes="""apex named four mixtures in 2018, and each is five answers: what the model is in,
    whether operations are cast one by one, whether norms stay behind, whether FP32 masters are
    kept, how the loss is scaled. A level is where one begins: apex let any knob be set otherwise,
    `initialize(..., opt_level="O2", keep_batchnorm_fp32=False)`.
    Oracle in the tests: the properties that apex.amp.frontend set for each level, typed from its
    source.""",
    checks=(
        Check("O3, all of it", 1, _level("O3")),
        Check("O1, by operation", 1, _level("O1")),
        Check("O2, nearly all of it", 1, _level("O2")),
        Check("O0, none of it", 1, _level("O0")),
    ),
    mistakes=(
        wrong(
            "O1 casts the model",
            "this is O1 with a 16-bit model. Its weights stay in FP32; autocast casts a copy "
            "for each operation.",
            replace=('"O1": (32', '"O1": (16'),
        ),
        wrong(
            "O1 keeps masters",
            "this is O1 with masters beside weights that are FP32 already: they are their own "
            "masters.",
            replace=("(32, True, True, False, True)", "(32, True, True, True, True)"),
        ),
        wrong(
            "O2 without masters",
            "this is O2 without masters; it would swallow every update below half an ulp.",
            replace=("(16, False, True, True, True)", "(16, False, True, False, True)"),
        ),
        wrong(
            "O2 casts the norms",
            "this is O2 with norms in 16 bits. They are what the 'nearly' in 'nearly all' is "
            "about.",
            replace=("(16, False, True, True, True)", "(16, False, False, True, True)"),
        ),
        wrong(
            "O2 casts by operation",
            "this is O2 with casts by operation on top. Its model is cast once, and "
            "computes in what it is.",
            replace=("(16, False, True, True, True)", "(16, True, True, True, True)"),
        ),
        wrong(
            "O3 keeps the norms",
            "this is O3 with norms in FP32. In pure FP16 nothing stays behind.",
            replace=("(16, False, False, False, False)", "(16, False, True, False, False)"),
        ),
        wrong(
            "O3 scales",
            "this is O3 with dynamic scaling. It is the speed baseline: no safety at all.",
            replace=("(16, False, False, False, False)", "(16, False, False, False, True)"),
        ),
        wrong(
            "O0 scales",
            "this is O0 with scaling. FP32 has no need of it.",
            replace=("(32, False, True, False, False)", "(32, False, True, False, True)"),
        ),
        wrong(
            "leaves the level as it is",
            "this is the level as it is. A knob in `changed` is set as it says.",
            replace=(" | changed", ""),
        ),
    ),
)

# --- recipes.which ---

WIDE, HALF = torch.float32, torch.float16
# The dtypes of O0, O1, O2 and O3: a weight, a norm's weight, what the optimizer steps, an output.
ROWS: tuple[Case, ...] = (
    (WIDE,) * 4,
    (WIDE, WIDE, WIDE, HALF),
    (HALF, WIDE, WIDE, HALF),
    (HALF,) * 4,
)


def _others(random: Random) -> list[Case]:
    """The twelve mixtures of FP32 and FP16 without a name, in random order."""
    others: list[Case] = [row for row in product((WIDE, HALF), repeat=4) if row not in ROWS]
    return random.sample(others, len(others))


def _other_formats(random: Random) -> list[Case]:
    """The levels in BF16, and each other level twice with one of its dtypes replaced."""
    half = torch.bfloat16
    others = (torch.bfloat16, torch.float64, torch.float8_e4m3fn)
    cases: list[Case] = [(half, WIDE, WIDE, half), (WIDE, WIDE, WIDE, half), (half,) * 4]
    places = [(row, place) for row in ROWS for place in random.sample(range(4), 2)]
    for row, place in places:
        changed = list(row)
        changed[place] = random.choice(others)
        cases.append(tuple(changed))
    return cases


def _shuffled(random: Random) -> list[Case]:
    rows = list(ROWS)
    random.shuffle(rows)
    return rows


def _by_output_and_weight(
    weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype
) -> str:
    if output == WIDE:
        return "O0"
    return "O3" if weight == HALF else "O1"


def _by_weights_alone(
    weight: torch.dtype, norm: torch.dtype, stepped: torch.dtype, output: torch.dtype
) -> str:
    if weight == WIDE:
        return "O0"
    return "O2" if stepped == WIDE else "O3"


WHICH = Exercise(
    id="recipes.which",
    notes="""Four probes decide it: a weight of a linear layer, a weight of a norm, what the
    optimizer steps, and what comes out of a linear layer. You need this to recognise O0 to O3 in
    other people's scripts.
    Oracle in the tests: networks cast by hand in plain torch, and torch.autocast.""",
    checks=(
        Check("O0, O1, O2 and O3", 2, _shuffled),
        Check("mixtures of FP16 that have no name", 1, _others),
        Check("BF16, and other formats", 1, _other_formats),
    ),
    mistakes=(
        wrong(
            "asks the output alone",
            "this is what weight and output alone tell. What the optimizer steps, and the "
            "norms, tell O2 from O3.",
            _by_output_and_weight,
        ),
        wrong(
            "never asks the output",
            "this is what weights alone tell: O0 and O1 have the same ones. Ask what comes "
            "out of a layer.",
            _by_weights_alone,
        ),
        wrong(
            "never asks the norm",
            "this calls an FP16 norm beside masters O2; in O2 the norms stay in FP32.",
            replace=("return", 'return "O2" if weight == half and stepped == wide else'),
        ),
        wrong(
            "never asks the optimizer",
            "this calls a run without masters O2. Masters are what the optimizer steps there.",
            replace=("return", 'return "O2" if weight == half and norm == wide else'),
        ),
        wrong(
            "swaps O1 and O2",
            "this is O1 and O2 the other way round: O1 casts by operation and keeps FP32 weights, "
            "O2 casts them.",
            replace=(
                ('(half, wide, wide, half): "O2"', '(half, wide, wide, half): "O1"'),
                ('(wide, wide, wide, half): "O1"', '(wide, wide, wide, half): "O2"'),
            ),
        ),
        wrong(
            "takes BF16 for FP16",
            "this takes any 16 bits for FP16. BF16 needs no scaling, so it is no O-level.",
            lambda *dtypes: solution.my_level(
                *(HALF if dtype == torch.bfloat16 else dtype for dtype in dtypes)
            ),
        ),
    ),
    provides={"torch": torch},
)

# --- recipes.lines ---

ORDER = (
    "forward",
    "scale loss",
    "backward",
    "gradients to masters",
    "unscale",
    "look for inf",
    "step",
    "masters to model",
    "update scale",
)
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
"""Pairs of lines: the first must come before the second."""


def _lines(name: str, points: int, masters: bool, scaling: bool) -> Check:
    def draw(random: Random) -> list[Case]:
        return [(masters, scaling, batches) for batches in (1, *random.sample(range(2, 33), 2))]

    return Check(name, points, draw, outcome=AnyOrder(ORDER, NEEDS))


# Statements of the solution, which known mistakes leave out or exchange.
SCALE = '    if scaling:\n        batch_lines.append("scale loss")\n'
BACKWARD = '    batch_lines.append("backward")\n'
COPY = '    if masters:\n        lines.append("gradients to masters")\n'
LOOK = '    if scaling:\n        lines += ["unscale", "look for inf"]\n'
STEP = '    lines.append("step")\n'
COPY_BACK = '    if masters:\n        lines.append("masters to model")\n'

LINES = Exercise(
    id="recipes.lines",
    notes="""FP32 is three lines: forward, backward, step. Masters add two, scaling adds four, and
    those of a batch are repeated where gradients are added up over several. The answer is a list of
    names, so that it can be compared; the tests carry the list out in torch. Some lines may change
    places: a scale is above 1, so unscaling makes no inf, and it may be looked for before; the
    scale may move before the masters are copied back.""",
    checks=(
        _lines("FP32: nothing is added", 1, False, False),
        _lines("scaling alone, as O1 takes it", 1, False, True),
        _lines("both, as in O2", 2, True, True),
        _lines("masters alone, as BF16 takes them", 1, True, False),
    ),
    mistakes=(
        wrong(
            "unscales in FP16",
            "this unscales before the gradients are FP32: in FP16 they underflow again, and "
            "scaling was for nothing.",
            replace=(
                COPY + LOOK,
                LOOK.replace(', "look for inf"', "") + COPY + LOOK.replace('"unscale", ', ""),
            ),
        ),
        wrong(
            "unscales and looks in FP16",
            "this unscales before the gradients are copied to the masters: in FP16 "
            "they underflow again. Copy first, which makes them FP32; then unscale.",
            replace=(COPY + LOOK, LOOK + COPY),
        ),
        wrong(
            "looks and unscales in FP16",
            "this unscales before the gradients are copied to the masters: in FP16 "
            "they underflow again. Looking for inf there is sound; unscaling is not.",
            replace=(
                (COPY + LOOK, LOOK + COPY),
                ('"unscale", "look for inf"', '"look for inf", "unscale"'),
            ),
        ),
        wrong(
            "looks after the step",
            "this steps before anyone has looked: one overflow, and inf is in the weights.",
            replace=(
                (', "look for inf"', ""),
                (STEP, STEP + LOOK.replace('"unscale", ', "")),
            ),
        ),
        wrong(
            "updates the scale first",
            "this moves the scale before unscaling, so gradients are divided by another "
            "scale than they had.",
            replace=(
                ('"unscale"', '"update scale", "unscale"'),
                ('    if scaling:\n        lines.append("update scale")\n', ""),
            ),
        ),
        wrong(
            "copies back before the step",
            "this copies the masters back before they have stepped: the model "
            "computes with the weights of last time.",
            replace=(STEP + COPY_BACK, COPY_BACK + STEP),
        ),
        wrong(
            "never copies back",
            "this never copies back: the masters move and the model does not.",
            replace=(COPY_BACK, ""),
        ),
        wrong(
            "never unscales",
            "this never unscales: steps are as many times too long as the scale says.",
            replace=('"unscale", ', ""),
        ),
        wrong(
            "never hands gradients over",
            "this never hands the gradients to the masters, so the optimizer steps "
            "weights that have none.",
            replace=(COPY, ""),
        ),
        wrong(
            "scales after the backward pass",
            "this scales the loss after the backward pass, when it is too late for the gradients.",
            replace=(SCALE + BACKWARD, BACKWARD + SCALE),
        ),
        wrong(
            "steps after each batch",
            "this takes a step for each batch. The gradients of all of them are added up first.",
            lambda masters, scaling, batches: solution.my_lines(masters, scaling, 1) * batches,
        ),
        wrong(
            "unscales after each batch",
            "this unscales after each batch: what the first one added is divided again "
            "with every other.",
            replace=(
                ('"unscale", ', ""),
                (BACKWARD, BACKWARD + SCALE.replace("scale loss", "unscale")),
            ),
        ),
        wrong(
            "one batch alone",
            "this is the step of a single batch. The first lines are repeated for each.",
            replace=(" * batches", ""),
        ),
    ),
)

# --- recipes.epsilon ---


def _fp16(value: float) -> float:
    return float(round_to(value, FP16))


def _power(random: Random, low: int, high: int) -> float:
    """Return an FP16 number of either sign, with an exponent from low to below high."""
    return _fp16(
        random.choice((-1.0, 1.0)) * random.uniform(1.1, 1.9) * 2.0 ** random.randrange(low, high)
    )


def _held(random: Random) -> list[Case]:
    """Gradients whose squares FP16 holds, and one so large that v is inf and the step 0.

    None lies between 2^-8 and 2^-7, where the answer depends on one ulp.
    """
    return [
        (_power(random, *ends), epsilon)
        for ends, epsilon in (((-6, 0), 1e-8), ((-6, 0), 1e-4), ((14, 15), 1e-8))
    ]


def _at_the_end(random: Random) -> list[Case]:
    """An epsilon, and then v, from 2^-25 to 2^-24, FP16's smallest number."""
    small = _power(random, -20, -14)
    epsilons = (2.0**-25, 2.0**-25 * (1 + 2.0**-20), random.uniform(3.2e-8, 5.8e-8), 2.0**-24)
    # v is 2^-25 at 5.4592e-3
    parts = ((4.5e-3, 5.4e-3), (5.44e-3, 5.455e-3), (5.465e-3, 5.48e-3), (5.6e-3, 7.6e-3))
    gradients = [_fp16(random.uniform(*part)) for part in parts]
    # 0.001, or 0.001 g, in FP16 would make 2^-24 of v
    gradients += [0.00545501708984375, 0.005458831787109375]
    return [
        *((small, epsilon) for epsilon in epsilons),
        *((gradient, 1e-8) for gradient in gradients),
    ]


EPSILON = Exercise(
    id="recipes.epsilon",
    notes="""The step divides by sqrt(v) + epsilon. At the first step v is 0.001 g^2, which FP16
    loses for gradients below about 2^-8, and 1e-8 is zero in FP16. Then the division is g / 0 or 0
    / 0. Gradients are FP16 numbers; for none of them does it matter whether g^2 is rounded on the
    way to v.
    Oracle in the tests: torch.optim.Adam stepping an FP16 parameter.""",
    checks=(
        Check("gradients whose square FP16 holds", 1, _held),
        Check(
            "small gradients and the usual epsilon",
            2,
            lambda random: [
                (_power(random, *ends), 1e-8) for ends in ((-11, -9), (-11, -9), (-20, -14))
            ],
        ),
        Check("a gradient of zero", 1, always((0.0, 1e-8), (0.0, 1e-4))),
        Check(
            "small gradients and a larger epsilon",
            1,
            lambda random: [(_power(random, -20, -10), epsilon) for epsilon in (1e-4, 1e-7)],
        ),
        Check("where FP16 ends", 1, _at_the_end),
    ),
    mistakes=(
        wrong(
            "epsilon in FP32",
            "this keeps epsilon in FP32. In an FP16 step it is rounded to FP16 too, and 1e-8 "
            "becomes 0.",
            replace=("float(round_to(epsilon, FP16))", "epsilon"),
        ),
        wrong(
            "v in FP32",
            "this keeps v in FP32. In an FP16 step v is stored in FP16, where 0.001 g^2 is soon 0.",
            replace=("float(round_to(0.001 * gradient**2, FP16))", "0.001 * gradient**2"),
        ),
        wrong(
            "forgets the thousandth",
            "this asks whether g^2 survives. What is stored after the first step is 0.001 "
            "g^2, a thousand times less.",
            replace=("0.001 * ", ""),
        ),
        wrong(
            "subnormals are zero",
            "this takes every subnormal for zero. FP16 holds numbers down to 2^-24; 1e-7 is 2 "
            "of those.",
            replace=("float(round_to(epsilon, FP16))", "epsilon if epsilon >= 2.0**-14 else 0.0"),
        ),
        wrong(
            "always inf",
            "this is inf even where the gradient is 0, but 0 / 0 is NaN.",
            replace=('"nan" if gradient == 0 else "inf"', '"inf"'),
        ),
        wrong(
            "always NaN",
            "this is NaN everywhere, but a number other than 0, divided by 0, is inf. NaN comes "
            "one step later.",
            replace=('"nan" if gradient == 0 else "inf"', '"nan"'),
        ),
        wrong(
            "epsilon decides alone",
            "this asks epsilon alone. Where v survives, it needs no help.",
            replace=("v != 0 or ", ""),
        ),
    ),
    provides={"round_to": round_to, "FP16": FP16},
)

# --- recipes.verdict ---

# Student's t by number of pairs, for 90% and for 95%; NIST/SEMATECH e-Handbook 1.3.6.7.2.
T_90 = {3: 2.920, 4: 2.353, 5: 2.132}
T_95 = {3: 4.303, 4: 3.182, 5: 2.776}
MARGIN = 0.02


def _runs(random: Random, shift: float, scatter: float, noise: float, seeds: int) -> Case:
    """Return metrics of FP32 around 0.55, and of another recipe, `shift` above by about `noise`."""
    fp32 = [round(0.55 + scatter * (i / (seeds - 1) - 0.5), 3) for i in range(seeds)]
    random.shuffle(fp32)
    apart: list[float] = []
    for i in range(seeds):
        sign = -1 if i % 2 == 0 else 1
        apart.append(shift + noise * sign * random.uniform(0.97, 1.0))
    other = [round(a + d, 3) for a, d in zip(fp32, apart, strict=True)]
    return fp32, other, MARGIN, T_90[seeds], T_95[seeds]


def _alike(random: Random) -> list[Case]:
    """Small steady differences with an interval inside the margin; the last beyond FP32's range."""
    within = [
        _runs(random, shift, 0.05, 0.004, n) for shift in (-0.004, 0.0, 0.004) for n in (3, 5)
    ]
    return within + [
        _runs(random, shift, 0.004, 0.001, n) for shift in (-0.012, 0.012) for n in (3, 5)
    ]


def _noisy(random: Random) -> list[Case]:
    """Means beyond FP32's range or inside the margin, with intervals too wide to tell."""
    shifts = ((-0.06, 3), (0.06, 4), (-0.2, 3), (0.15, 4), (0.004, 4))
    return [_runs(random, shift, 0.02, 0.11, n) for shift, n in shifts]


def _beside(random: Random, seeds: int, noise: float, part: float, near: bool = False) -> Case:
    """Return runs whose mean difference is a part of a limit of the verdict.

    With a noise of 0.05 or more the interval decides, and the scatter of the other recipe's runs
    in place of the differences' would give another verdict.

    Args:
        random: Draws the runs.
        seeds: How many runs each recipe has.
        noise: The standard deviation of the differences.
        part: The mean difference as a part of the limit.
        near: Whether the limit is where "as good" ends; else it is where a difference begins.
    """
    t_90 = T_90[seeds]
    t_95 = T_95[seeds]
    while True:
        fp32 = [round(random.gauss(0.55, 0.02), 4) for _ in range(seeds)]
        apart = [random.gauss(0.0, noise) for _ in range(seeds)]
        error = statistics.stdev(apart) / math.sqrt(seeds)
        if near:
            limit = MARGIN - t_90 * error
        else:
            limit = max(max(fp32) - min(fp32), t_95 * error)
        mean = random.choice((-1, 1)) * part * limit
        other = [
            round(a + d + mean - statistics.fmean(apart), 4)
            for a, d in zip(fp32, apart, strict=True)
        ]
        differences = [b - a for a, b in zip(fp32, other, strict=True)]
        wider = statistics.stdev(other) / statistics.stdev(differences)
        by_scatter = solution.my_verdict(fp32, other, MARGIN, wider * t_90, wider * t_95)
        by_pairs = solution.my_verdict(fp32, other, MARGIN, t_90, t_95)
        if limit > 0.005 and (noise < 0.05 or by_scatter != by_pairs):
            return fp32, other, MARGIN, t_90, t_95


def _at_the_limits(random: Random) -> list[Case]:
    """Mean differences just inside and just beyond the interval, FP32's range, and the margin.

    In the last cases all differences are equal: the margin or FP32's range, or 2^-12 to either
    side. Their numbers are exact in whatever order an answer computes.
    """
    far = [
        _beside(random, n, noise, part)
        for n, noise in ((3, 0.05), (5, 0.05), (4, 0.003))
        for part in (0.96, 1.04)
    ]
    near = [_beside(random, n, 0.008, part, near=True) for n in (4, 5) for part in (0.9, 1.1)]
    fp32 = [random.randrange(28, 34) / 64 + d / 64 for d in (0, 1, 2)]
    margin = 1 / 64
    sign = random.choice((-1, 1))
    apart = [
        limit + side
        for limit in (margin, max(fp32) - min(fp32))
        for side in (-(2.0**-12), 0.0, 2.0**-12)
    ]
    return [
        *far,
        *near,
        *((fp32, [a + sign * d for a in fp32], margin, T_90[3], T_95[3]) for d in apart),
    ]


def _ended_in_nan(random: Random) -> list[Case]:
    """All runs ended in NaN; and one of five, which leaves the mean uncertain."""
    fp32 = [round(random.uniform(0.52, 0.58), 3) for _ in range(5)]
    one = [round(a + random.uniform(0.19, 0.21), 3) for a in fp32]
    one[random.randrange(5)] = math.nan
    return [(fp32, other, MARGIN, T_90[5], T_95[5]) for other in ([math.nan] * 5, one)]


VERDICT = Exercise(
    id="recipes.verdict",
    notes="""Runs of one seed share first weights and batches, so they are pairs, and their
    differences count. *As good* is shown if the 90% interval of their mean lies inside the margin;
    *worse* or *better* if the mean is beyond both the range of FP32's own seeds and the half width
    of its 95% interval. Else the runs cannot tell.
    Oracle in the tests: numpy, and Student's t from an independent table.""",
    checks=(
        Check(
            "differences that anybody sees",
            1,
            lambda random: [
                _runs(random, shift, 0.05, 0.01, n) for shift in (-0.3, 0.12) for n in (3, 5)
            ],
        ),
        Check("differences that do not matter", 1, _alike),
        Check(
            "differences smaller than what seeds do",
            1,  # steady, and larger than the margin
            lambda random: [
                _runs(random, shift, 0.08, 0.001, n) for shift in (-0.03, 0.03) for n in (3, 5)
            ],
        ),
        Check("differences that vary too much from seed to seed", 2, _noisy),
        Check("differences just inside and just beyond a limit", 2, _at_the_limits),
        Check("runs that ended in NaN", 1, _ended_in_nan),
    ),
    mistakes=(
        wrong(
            "any difference",
            "this calls every difference of means one. Two seeds of the same recipe differ too.",
            replace=("max(max(fp32) - min(fp32), t_95 * error)", "0"),
        ),
        wrong(
            "what is not shown is as good",
            'this says "as good" wherever no difference was shown. As good has to '
            "be shown too; else the runs cannot tell.",
            replace=('"cannot tell"', '"as good"'),
        ),
        wrong(
            "a small mean is as good",
            'this says "as good" if the mean is inside the margin. The whole 90% '
            "interval has to be.",
            replace=(" + t_90 * error", ""),
        ),
        wrong(
            "the interval alone",
            "this asks the interval alone. A difference can be certain and still smaller than "
            "what another seed does.",
            replace=("max(max(fp32) - min(fp32), t_95 * error)", "t_95 * error"),
        ),
        wrong(
            "the range alone",
            "this asks FP32's range alone. A few pairs that vary as much as this say nothing "
            "about their mean.",
            replace=("max(max(fp32) - min(fp32), t_95 * error)", "max(fp32) - min(fp32)"),
        ),
        wrong(
            "forgets the root",
            "this divides by n instead of its square root, so the intervals are too narrow.",
            replace=("math.sqrt(len(d))", "len(d)"),
        ),
        wrong(
            "never divides by the root",
            "this is the deviation of one pair, not of their mean: divide by the square root of n.",
            replace=(" / math.sqrt(len(d))", ""),
        ),
        wrong(
            "deviation of the population",
            "this divides by n inside the deviation (`pstdev`), so the intervals are "
            "too narrow. Divide by n - 1 here.",
            replace=("stdev", "pstdev"),
        ),
        wrong(
            "one seed",
            "this looks at one seed. One pair says nothing about a difference.",
            lambda fp32, other, *_: "worse" if other[0] < fp32[0] else "better",
        ),
        wrong(
            "the wrong way round",
            "this is FP32 minus the other: worse and better have changed places.",
            replace=("(0.0 if math.isnan(b) else b) - a", "a - (0.0 if math.isnan(b) else b)"),
        ),
        wrong(
            "leaves NaN in",
            "this lets NaN into the mean, where no comparison is true. A run that broke counts as "
            "metric 0.",
            lambda fp32, other, *limits: (
                "cannot tell"
                if any(map(math.isnan, other))
                else solution.my_verdict(fp32, other, *limits)
            ),
        ),
    ),
    provides={"math": math, "statistics": statistics},
)

# --- recipes.cheapest ---

Candidates = list[tuple[str, int, list[float]]]
NAMES = ("O1", "O2", "O3", "BF16", "BF16 no master", "FP16 no master")


def _fp32(random: Random) -> list[float]:
    """Return three metrics of FP32, the first and the last neither the lowest nor the highest."""
    middle = random.uniform(0.7, 0.9)
    return [round(middle + d, 3) for d in (0.0, 0.02, -0.02)]


def _candidates(random: Random, fp32: list[float], shifts: list[float]) -> Candidates:
    """Return a recipe for each shift from FP32's metrics; a later shift has fewer bytes."""
    names = random.sample(NAMES, len(shifts))
    sizes = sorted(random.sample(range(6, 20), len(shifts)), reverse=True)
    near = [[round(m + shift + random.uniform(-0.004, 0.004), 3) for m in fp32] for shift in shifts]
    made = [
        (name, 1000 * size, metrics) for name, size, metrics in zip(names, sizes, near, strict=True)
    ]
    random.shuffle(made)
    return made


def _plain(random: Random) -> list[Case]:
    """Random candidates, then an FP32 range of 0 and candidates that ran on more seeds."""
    fp32 = _fp32(random)
    same = [0.75] * 3
    name, other = random.sample(NAMES, 2)
    more = (same, [*same, 0.1, 0.1], [*same, 0.8, 0.9])
    ends = [(same, [(name, 7000, metrics), (other, 9000, same)]) for metrics in more]
    return [*((fp32, _candidates(random, fp32, [0.03, 0.008, -0.2])) for _ in range(2)), *ends]


def _behind(random: Random) -> list[Case]:
    """A cheap recipe slightly behind FP32, beside a cheaper one of which only one seed went well.

    In the last cases the cheap recipe's mean is exactly the lowest that passes, or 2^-10 below.
    """
    fp32 = _fp32(random)
    drawn = [
        (fp32, _cheapest_gets(_candidates(random, fp32, [0.01, -0.025, -0.3]), 0, max(fp32)))
        for _ in range(2)
    ]
    # 64ths are exact in any order. `middle` is the mean of the FP32 runs, not the median.
    middle = random.randrange(40, 56) / 64
    step = random.randrange(1, 4) / 64
    fp32 = [middle - step, middle + 2 * step, middle - step]
    lowest = middle - 3 * step
    small, large = random.sample(NAMES, 2)
    at = (small, 6000, [lowest] * 3)
    below = (small, 6000, [lowest - 2.0**-10] * 3)
    # The mean of this one passes, and its median would not.
    uneven = (small, 6000, [lowest + d / 64 for d in (-1, 2, -1)])
    return [
        *drawn,
        *((fp32, [(large, 9000, fp32), one]) for one in (at, below, uneven)),
        (fp32, [at]),
        (fp32, [below]),
    ]


def _cheapest_gets(candidates: Candidates, seed: int, metric: float) -> Candidates:
    """Replace the metric of one seed of the candidate with the fewest bytes."""
    cheapest = min(size for _, size, _ in candidates)
    changed: Candidates = []
    for name, size, metrics in candidates:
        own = metrics.copy()
        if size == cheapest:
            own[seed] = metric
        changed.append((name, size, own))
    return changed


def _none(random: Random) -> list[Case]:
    fp32 = _fp32(random)
    return [(fp32, _candidates(random, fp32, [-0.2, -0.4])), (fp32, [])]


def _broken(random: Random) -> list[Case]:
    """One seed of the cheapest ended in NaN, even where FP32 scatters so much that 0 would pass."""
    near = _fp32(random)
    far = [round(random.uniform(0.5, 0.6) + d, 3) for d in (0.0, 0.2, -0.2)]
    return [
        (fp32, _cheapest_gets(_candidates(random, fp32, [0.016, 0.008, 0.0]), 2, math.nan))
        for fp32 in (near, far)
    ]


CHEAPEST = Exercise(
    id="recipes.cheapest",
    notes="""Memory is counted, the metric is measured on the same seeds, and a recipe passes if its
    mean falls short of FP32's by no more than FP32's seeds scatter. Among those that pass, bytes
    decide.""",
    checks=(
        Check("a cheap one that fails, two that pass", 1, _plain),
        Check("one that is behind by less than seeds scatter", 2, _behind),
        Check("none that passes", 1, _none),
        Check("one whose last seed broke", 1, _broken),
    ),
    mistakes=(
        wrong(
            "the cheapest",
            "this is the cheapest of all, whether it learns or not.",
            replace=(
                "if not any(map(math.isnan, metrics)) and statistics.mean(metrics) >= floor",
                "",
            ),
        ),
        wrong(
            "the best",
            "this is the one with the best metric. Among those that pass, bytes decide.",
            replace=("(size, name)", "(-statistics.mean(metrics), name)"),
        ),
        wrong(
            "must reach the mean of FP32",
            "this asks for FP32's own mean. Another seed of FP32 would fail it half "
            "of the time: allow its spread.",
            replace=(" - (max(fp32) - min(fp32))", ""),
        ),
        wrong(
            "one good seed is enough",
            "this lets the best seed speak for all of them.",
            replace=(
                "not any(map(math.isnan, metrics)) and statistics.mean(metrics)",
                "max(m for m in metrics if not math.isnan(m))",
            ),
        ),
        wrong(
            "counts NaN as 0",
            "this counts a seed that broke as 0, which a wide spread forgives. A recipe with a "
            "broken run does not pass.",
            replace=(
                "not any(map(math.isnan, metrics)) and statistics.mean(metrics)",
                "statistics.mean(0.0 if math.isnan(m) else m for m in metrics)",
            ),
        ),
        wrong(
            "leaves NaN out",
            "this leaves out the seed that broke. A recipe that breaks one run in three does not "
            "pass.",
            replace=(
                "not any(map(math.isnan, metrics)) and statistics.mean(metrics)",
                "statistics.mean(m for m in metrics if not math.isnan(m))",
            ),
        ),
        wrong(
            "always chooses one",
            "this chooses one of the candidates even where none passes; then FP32 it is.",
            replace=(
                '"FP32"',
                "max(candidates, key=lambda candidate: statistics.mean(candidate[2]))[0]",
            ),
        ),
    ),
    provides={"math": math, "statistics": statistics},
)

EXERCISES = (LEVELS, WHICH, LINES, EPSILON, VERDICT, CHEAPEST)
