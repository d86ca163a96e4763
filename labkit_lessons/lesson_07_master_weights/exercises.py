"""Exercises of lesson 07: master weights, their memory, groups, averages and accumulators."""

from __future__ import annotations

import math
from random import Random

import torch
from torch import Tensor

from labkit.formats import BF16, FP32
from labkit.grading.draws import whole
from labkit.grading.exercise import Case, Check, Exercise, wrong

# --- master.step ---

Training = tuple[Tensor, list[Tensor], float, float]


def _training(random: Random, steps: int, lr: float = 0.125) -> Training:
    """Return a master weight, the scaled gradients of some steps, the scale and the learning rate.

    The master is between 0.5 and 1.5, and the gradients are n / 2^9 below 1 before scaling.
    """
    master = (1024 + whole(random, (4,), 1, 512)) / 2**10
    scale = 2.0**6
    gradients = [(whole(random, (4,), 64, 512) / 2**9 * scale).half() for _ in range(steps)]
    return master, gradients, scale, lr


def _between(random: Random) -> list[Case]:
    """A master that FP16 does not hold, with gradients, with none, and with gradients of 0."""
    first, grads, scale, lr = _training(random, 2)
    second, *_ = _training(random, 0)
    zeros = [torch.zeros(4).half()] * 2
    return [
        (first + 2.0**-14, grads, scale, lr),
        (second + 2.0**-14, [], scale, lr),
        (second + 2.0**-14, zeros, scale, lr),
    ]


def _spoiled(random: Random) -> list[Case]:
    """A middle step with inf, -inf or NaN; then the first, the last and all steps with inf."""
    cases = [_training(random, 4) for _ in range(3)]
    for (_, grads, *_), element in zip(cases, (torch.inf, -torch.inf, torch.nan), strict=True):
        grads[random.randrange(1, 3)][random.randrange(4)] = element
    ends = [_training(random, 3) for _ in range(3)]
    for (_, grads, *_), places in zip(ends, ((0,), (2,), (0, 1, 2)), strict=True):
        for place in places:
            grads[place][random.randrange(4)] = torch.inf
    return [*cases, *ends]


STEP = Exercise(
    id="master.step",
    notes="""The optimizer steps FP32 weights with FP32 gradients, and the model gets their
    rounding; the master itself is never rounded. A step with inf or NaN changes nothing.

    Weights, gradients and learning rates are whole numbers over powers of two that fit FP32's 24
    bits in every sum, so answers are compared bit for bit. Oracle in the tests: torch.optim.SGD on
    FP32 weights.""",
    checks=(
        # of at least a few ulps of FP16
        Check(
            "steps that FP16 could take too",
            1,
            lambda random: [_training(random, steps) for steps in (1, 3)],
        ),
        # an FP16 weight, whose ulp is 2^-11 or more, would never move
        Check(
            "forty steps below a quarter of an ulp",
            2,
            lambda random: [_training(random, 40, lr=2.0**-13)],
        ),
        Check("a master that FP16 does not hold", 1, _between),
        # below half of its smallest subnormal, once they are unscaled
        Check(
            "gradients too small for FP16",
            1,
            lambda random: [
                (
                    torch.zeros(4),
                    [whole(random, (4,), 1, 512).half() / 16 for _ in range(3)],
                    2.0**30,
                    1.0,
                )
            ],
        ),
        Check("a step with inf or NaN is left out, the next one is not", 2, _spoiled),
    ),
    mistakes=(
        wrong(
            "no master at all",
            "this is training in FP16: each step below half an ulp is rounded away, and forty of "
            "them are nothing.",
            replace=("master - lr * grad", "(master.half().float() - lr * grad).half().float()"),
        ),
        wrong(
            "starts from the model weight",
            "this is what starting each step from the model weight gives: what the "
            "copy rounded off is gone. The master is never rounded.",
            replace=("master - lr", "master.half().float() - lr"),
        ),
        wrong(
            "rounds the master at the end",
            "this is what rounding the master gives. Only the model's copy is rounded.",
            replace=("return master.half(), master", "return master.half(), master.half().float()"),
        ),
        wrong(
            "unscales in FP16",
            "this is what dividing in FP16 gives: small gradients underflow. Cast first.",
            replace=("scaled.float() / scale", "(scaled / scale).float()"),
        ),
        wrong(
            "forgets to unscale", "this is a step `scale` times too long.", replace=(" / scale", "")
        ),
        wrong(
            "climbs",
            "this is what adding the gradient gives: the loss goes up.",
            replace=("master - lr", "master + lr"),
        ),
        wrong(
            "never skips",
            "this is what stepping with inf or NaN gives: no weight survives it.",
            replace=("if torch.isfinite(grad).all():\n            ", ""),
        ),
        wrong(
            "stops at the first inf",
            "this is what ending at the first step with inf or NaN gives. Skip it, and go on.",
            replace=(
                "if torch.isfinite(grad).all():\n            ",
                "if not torch.isfinite(grad).all():\n            break\n        ",
            ),
        ),
        wrong(
            "replaces inf by 0",
            "this is what stepping with the other elements gives: a wrong direction. Skip the "
            "whole step.",
            replace=("scaled.float()", "torch.nan_to_num(scaled.float(), 0.0, 0.0, 0.0)"),
        ),
        wrong(
            "forgets to copy back",
            "this is what returning the first model weight gives: the master moved and the "
            "model did not.",
            replace=(
                ("for scaled", "model = master.half()\n    for scaled"),
                ("return master.half()", "return model"),
            ),
        ),
        wrong(
            "model in FP32",
            "this is what returning the master twice gives. The model computes with its FP16 "
            "rounding.",
            replace=("master.half()", "master"),
        ),
    ),
    provides={"torch": torch},
)

# --- master.memory ---


def _bills(random: Random, *models: tuple[int, bool]) -> list[Case]:
    """Return bills of models under SGD, under SGD with momentum, and under Adam.

    Args:
        random: Draws the number of parameters.
        models: Pairs of the bits of a model's weights, and whether it has masters.
    """
    return [
        (random.randrange(1_000, 1_000_000_000), bits, master, moments)
        for bits, master in models
        for moments in (0, 1, 2)
    ]


MEMORY = Exercise(
    id="master.memory",
    notes="""Mixed precision with master weights keeps *as many* bytes per parameter as FP32
    training does; what it saves are activations. Oracle in the tests: the tensors of
    torch.optim.Adam and SGD, counted.

    Source: arXiv:1910.02054 (ZeRO), section 3.1, counts the same 16 bytes for mixed precision with
    Adam.""",
    checks=(
        Check(
            "FP32 training: SGD, with momentum, Adam",
            1,
            lambda random: [*_bills(random, (32, False)), (1, 32, False, 2)],
        ),
        # and FP32 masters beside an FP32 model, which somebody may keep: the bill has them twice
        Check(
            "a model with master weights", 2, lambda random: _bills(random, (16, True), (32, True))
        ),
        Check(
            "pure FP16: the optimizer's state is FP16 too",
            1,
            lambda random: _bills(random, (16, False)),
        ),
    ),
    mistakes=(
        wrong(
            "forgets the gradients",
            "this is the bill without gradients. There is one for every weight, in the "
            "model's format.",
            replace=("2 * model", "model"),
        ),
        wrong(
            "forgets the master",
            "this is the bill without master weights: four more bytes for every parameter.",
            replace=(" + (4 if master else 0)", ""),
        ),
        wrong(
            "state in the format of the model",
            "this is what FP16 moments give. The optimizer that steps FP32 "
            "masters keeps FP32 moments.",
            replace=("moments * stepped", "moments * model"),
        ),
        wrong(
            "state always in FP32",
            "this is what FP32 moments always give. Without a master the optimizer steps "
            "FP16 weights, and its moments are FP16 too.",
            replace=("moments * stepped", "moments * 4"),
        ),
        wrong(
            "the master replaces the weights",
            "this is what counting master *or* model weights gives. Both are kept.",
            replace=("2 * model + (4 if master else 0)", "model + (4 if master else model)"),
        ),
        wrong(
            "FP16 halves it",
            "this is what halving everything gives: it is true of pure FP16 alone.",
            replace=(
                "2 * model + (4 if master else 0) + moments * stepped",
                "2 * model + moments * model",
            ),
        ),
        wrong(
            "one moment too many",
            "this is one moment too many: SGD keeps none, momentum one, Adam two.",
            replace=("moments * stepped", "(moments + 1) * stepped"),
        ),
        wrong(
            "counts bits",
            "this is the number of bits.",
            replace=("return parameters", "return 8 * parameters"),
        ),
    ),
)

# --- master.groups ---

Parameters = list[tuple[str, tuple[int, ...], bool]]


def _model(random: Random, kinds: str, frozen: float = 0.0) -> Parameters:
    """Return the names, shapes and trainability of a model's parameters.

    Args:
        random: Draws the sizes, and which layers are frozen.
        kinds: A letter for each layer: "l" linear, "c" convolution, "b" batch norm, "n" layer norm,
            "e" embedding, "s" a scalar.
        frozen: The probability that a layer is frozen.
    """
    parameters: Parameters = []
    for number, kind in enumerate(kinds):
        n = random.randrange(2, 64)
        m = random.randrange(2, 64)
        trainable = random.random() >= frozen
        rows = {
            "l": (("fc", "weight", (n, m)), ("fc", "bias", (n,))),
            "c": (("conv", "weight", (n, m, 3, 3)), ("conv", "bias", (n,))),
            "b": (("bn", "weight", (n,)), ("bn", "bias", (n,))),
            "n": (("ln_", "weight", (n,)), ("ln_", "bias", (n,))),
            "e": (("wte", "weight", (n, m)),),
            "s": (("logit_scale", "", ()),),
        }[kind]
        parameters += [(f"{a}{number}.{b}".rstrip("."), shape, trainable) for a, b, shape in rows]
    return parameters


def _alone(random: Random) -> list[Case]:
    """Empty groups; sizes of 1 and of 0, which are dimensions too; and misleading names."""
    n = random.randrange(2, 64)
    models: list[list[tuple[str, tuple[int, ...]]]] = [
        [("fc.weight", (n, n))],
        [("ln.bias", (n,))],
        [("scale", ())],
        [],
        [
            ("row", (1, n)),
            ("column", (n, 1)),
            ("one", (1, 1)),
            ("single", (1,)),
            ("none", (n, 0)),
            ("empty", (0,)),
        ],
        [("bias_table.weight", (n, n)), ("norm.bias", (n, 1, 1)), ("fc.weight", (n,))],
    ]
    trained: list[Case] = [([(name, shape, True) for name, shape in model],) for model in models]
    return [*trained, ([("fc.weight", (n, n), False), ("fc.bias", (n,), False)],)]


GROUPS = Exercise(
    id="master.groups",
    notes="""Weight decay is for matrices and filters; biases and the weights of normalisation
    layers have one dimension and get none, frozen parameters are in no group, and the dimensions
    tell them apart where names do not (`ln_1.weight`). Oracle in the tests: the layers of real
    torch models.""",
    checks=(
        Check(
            "weights decay, biases do not",
            1,
            lambda random: [(_model(random, kinds),) for kinds in ("ll", "ccl")],
        ),
        Check(
            "the weights of normalisation layers do not decay",
            1,
            lambda random: [(_model(random, kinds),) for kinds in ("cbcbl", "enlnl")],
        ),
        Check(
            "frozen parameters are in no group",
            1,
            lambda random: [
                (
                    [
                        (name, shape, at > 3)
                        for at, (name, shape, _) in enumerate(_model(random, "cblnl"))
                    ],
                )
            ],
        ),
        # an embedding is a matrix; a learned temperature is one number
        Check(
            "embeddings, a single number, frozen layers",
            1,
            lambda random: [(_model(random, "es"),), (_model(random, "esnlbc", frozen=0.3),)],
        ),
        Check("an empty group, sizes of 1, names that mislead", 1, _alone),
    ),
    mistakes=(
        wrong(
            "everything decays",
            "this is one group for all: biases and norms decay as well.",
            replace=("len(shape) > 1", "True"),
        ),
        wrong(
            "biases by name",
            "this is what looking for `bias` gives: the weight of a normalisation layer is called "
            "weight.",
            replace=("len(shape) > 1", '"bias" not in name'),
        ),
        wrong(
            "norms by name",
            "this is what looking for `bn` and `norm` gives. `ln_1.weight` is a norm too; its "
            "shape tells.",
            replace=("len(shape) > 1", 'not any(word in name for word in ("bias", "norm", "bn"))'),
        ),
        wrong(
            "by the word weight",
            "this is what leaving embeddings out of weight decay gives. The rule goes by "
            "dimensions.",
            replace=("len(shape) > 1", 'len(shape) > 1 and not name.startswith("wte")'),
        ),
        wrong("the other way round", "this is the two groups exchanged.", replace=("> 1", "<= 1")),
        wrong(
            "keeps the frozen",
            "this is what giving frozen parameters to the optimizer gives: weight decay moves "
            "them without a gradient.",
            replace=("if trainable", "if True"),
        ),
        wrong(
            "four dimensions do not decay",
            "this is what asking for two dimensions gives: a convolution's filters have four.",
            replace=("> 1", "== 2"),
        ),
        wrong(
            "loses the single number",
            "this is what asking for one dimension gives: a parameter without dimensions "
            "is in neither group.",
            replace=("if trainable", "if trainable and len(shape) >= 1"),
        ),
    ),
)

# --- master.flat ---


def _flat(random: Random, *shapes: tuple[int, ...]) -> tuple[Tensor, list[Tensor], float, float]:
    """Return flat masters, a scaled gradient of each shape, the scale and the learning rate."""
    elements = sum(math.prod(shape) for shape in shapes)
    flat = whole(random, (elements,), 1024, 2048) / 2**10 + 2.0**-14
    scale = 2.0 ** random.randrange(4, 8)
    gradients = [(whole(random, shape, 16, 64) / 2**6 * scale).half() for shape in shapes]
    return flat, gradients, scale, 0.125


def _shapes(random: Random) -> list[Case]:
    """A filter and a single number; one tensor alone; empty ones; and a transposed view.

    The view's elements, row by row, are not in the order of memory.
    """
    models = (((2, 1, 3, 3), (2,), ()), ((4, 4),), ((3,), (0,), (2, 0), (2,)))
    drawn: list[Case] = [_flat(random, *shapes) for shapes in models]
    flat, grads, scale, lr = _flat(random, (5, 3))
    return [*drawn, (flat, [grad.T for grad in grads], scale, lr)]


FLAT = Exercise(
    id="master.flat",
    notes="""One tensor means one kernel for unscaling, one for the step, instead of one for each
    layer; the price is bookkeeping. Order and shapes must survive.

    All numbers are whole over powers of two, so answers are compared bit for bit. Oracle in the
    tests: torch.nn.utils.parameters_to_vector and vector_to_parameters.""",
    checks=(
        Check(
            "vectors",
            1,
            lambda random: [_flat(random, (3,), (4,)), _flat(random, (2,), (5,), (3,))],
        ),
        Check(
            "matrices and biases",
            2,
            lambda random: [_flat(random, (2, 3), (2,)), _flat(random, (3, 2), (3,), (4, 3), (4,))],
        ),
        # below half of its smallest subnormal, once they are unscaled, into masters of that size
        Check(
            "gradients too small for FP16",
            1,
            lambda random: [
                (
                    torch.zeros(7),
                    [whole(random, shape, 1, 512).half() / 16 for shape in ((2, 2), (3,))],
                    2.0**30,
                    1.0,
                )
            ],
        ),
        Check("filters, a single number, one tensor alone", 1, _shapes),
    ),
    mistakes=(
        wrong(
            "gradients in reverse",
            "this is what laying the gradients out in another order than the weights gives.",
            replace=(
                "reshape(-1) for g in scaled_grads",
                "reshape(-1) for g in reversed(scaled_grads)",
            ),
        ),
        wrong(
            "columns first",
            "this is what laying a gradient flat column by column gives; the weights are row by "
            "row.",
            replace=("g.float()", "(g.mT if g.dim() > 1 else g).float()"),
        ),
        wrong(
            "every weight from the start",
            "this is what cutting each weight from the beginning of the flat tensor "
            "gives: keep an offset, or use split.",
            replace=("[part.reshape", "[flat[: g.numel()].reshape"),
        ),
        wrong(
            "forgets the shapes",
            "this is flat weights: give each its shape back.",
            replace=(".reshape(g.shape)", ""),
        ),
        wrong(
            "model in FP32",
            "this is model weights in FP32. The model computes in FP16: round.",
            replace=(".half()", ""),
        ),
        wrong(
            "old weights",
            "this is what cutting the weights before the step gives.",
            replace=(
                ("    flat = flat - lr * grad\n", ""),
                ("return flat", "return flat - lr * grad"),
            ),
        ),
        wrong(
            "rounds the master",
            "this is what rounding the master gives. It keeps what FP16 cannot: that is what it "
            "is for.",
            replace=("return flat", "return flat.half().float()"),
        ),
        wrong(
            "unscales in FP16",
            "this is what dividing in FP16 gives: small gradients underflow. Cast first.",
            replace=((" / scale", ""), ("g.float()", "(g / scale).float()")),
        ),
        wrong(
            "forgets to unscale", "this is a step `scale` times too long.", replace=(" / scale", "")
        ),
    ),
    provides={"torch": torch},
)

# --- master.ema ---

History = list[tuple[Tensor, bool]]


def _walk(random: Random, steps: int, size: float, skips: float = 0.0) -> History:
    """Return the history of a weight that grows by about `size` in each step not skipped."""
    master = torch.tensor([random.uniform(1.0, 1.5) for _ in range(3)])
    history: History = [(master, True)]
    for _ in range(steps):
        stepped = random.random() >= skips
        if stepped:
            master = master + torch.tensor([random.uniform(0.5, 1.0) * size for _ in range(3)])
        history.append((master, stepped))
    return history


def _skipped(random: Random) -> list[Case]:
    """Histories with skipped steps; in the second one the first entry counts as skipped too."""
    first, second = (_walk(random, 12, 0.125, skips=0.4) for _ in range(2))
    start, _ = second[0]
    return [(first, 0.5), ([(start, False), *second[1:]], 0.5)]


# the parts of an average in FP16
START = ("history[0][0]", "history[0][0].half()")
WEIGHT = ("* master", "* master.half()")
ROUNDED = (
    "decay * average + (1 - decay) * master",
    "(decay * average.float() + (1 - decay) * master).half()",
)
CAST = ("return average", "return average.float()")

EMA = Exercise(
    id="master.ema",
    notes="""With a decay of 0.999 each step moves the average by a thousandth of the difference,
    far below an ulp of an FP16 average: it must be FP32, follow the master weights, and stand still
    when a step was skipped.

    A correct answer may be written as d * a + (1 - d) * w or as a + (1 - d) * (w - a); both stay
    within the ulps allowed. Oracle in the tests: torch.optim.swa_utils.""",
    checks=(
        Check(
            "a few large steps",
            1,
            lambda random: [(_walk(random, 4, 0.25), d) for d in (0.5, 0.75, 0.0, 1.0)],
        ),
        # 60 steps of about an ulp of FP16
        Check("a decay of 0.99", 2, lambda random: [(_walk(random, 60, 2.0**-9), 0.99)]),
        # Each step is far below an ulp of FP16. The masters move in every step, and the model's
        # weights in one or two.
        Check(
            "masters that move by less than FP16 sees",
            1,
            lambda random: [(_walk(random, 60, 2.0**-15), 0.9)],
        ),
        Check("skipped steps do not count", 2, _skipped),
        Check(
            "before the first step",
            1,
            lambda random: [(_walk(random, 0, 0.0), 0.9), (_walk(random, 5, 0.25, skips=1.1), 0.5)],
        ),
    ),
    mistakes=(
        wrong(
            "the average in FP16",
            "this is what an FP16 average gives: (1 - decay) times the difference is below "
            "half an ulp, and it stalls.",
            replace=(START, ROUNDED, CAST),
        ),
        wrong(
            "everything in FP16",
            "this is an FP16 average of the FP16 weights, which is what `.half()` at the start "
            "gives: it stalls. Keep it in FP32.",
            replace=(START, WEIGHT),
        ),
        wrong(
            "everything in FP16 cast at the end",
            "this is an FP16 average of the FP16 weights, cast to FP32 when it "
            "is too late. Keep it in FP32 all the time.",
            replace=(START, WEIGHT, CAST),
        ),
        wrong(
            "keeps the average in FP16",
            "this is an FP16 average: (1 - decay) times the difference is below half an "
            "ulp, and it stalls. Keep it FP32.",
            replace=(START, ROUNDED),
        ),
        wrong(
            "follows the model weights",
            "this is the average of the FP16 weights. What they were rounded by is in it.",
            replace=(
                ("history[0][0]", "history[0][0].half().float()"),
                ("* master", "* master.half().float()"),
            ),
        ),
        wrong(
            "counts skipped steps",
            "this is what averaging at skipped steps gives: the same weight is counted twice.",
            replace=("if stepped", "if True"),
        ),
        wrong(
            "decay the other way round",
            "this is what exchanging decay and 1 - decay gives: the average is hardly "
            "more than the last weight.",
            replace=(
                "decay * average + (1 - decay) * master",
                "(1 - decay) * average + decay * master",
            ),
        ),
        wrong(
            "starts from zero",
            "this is what starting from 0 gives: it takes many steps to come near the weights.",
            replace=("history[0][0]", "torch.zeros_like(history[0][0])"),
        ),
        wrong(
            "corrects for a start from zero",
            "this is Adam's correction for an average that starts from 0. This one "
            "starts from the first weight.",
            replace=(
                ("average = history[0][0]", "average, steps = torch.zeros_like(history[0][0]), 0"),
                ("if stepped:", "if stepped:\n            steps += 1"),
                (
                    "return average",
                    "return average / (1 - decay**steps) if steps else history[0][0]",
                ),
            ),
        ),
        wrong(
            "the plain mean",
            "this is the mean of all weights: early ones never fade.",
            lambda history, decay: torch.stack(
                [master for master, stepped in history if stepped]
            ).mean(dim=0),
        ),
        wrong(
            "the last weight",
            "this is the last master weight, without any averaging.",
            replace=("return average", "return history[-1][0]"),
        ),
    ),
    ulps=16,
    provides={"torch": torch},
)


# --- master.accumulator ---

FP16_BITS, BF16_BITS, FP32_BITS = 11, 8, 24
BF16_LARGEST, FP32_LARGEST = BF16.max, FP32.max


def _size(random: Random) -> float:
    """Return a size at which neither range matters."""
    return random.uniform(1, 2) * 2.0 ** random.randrange(-12, -2)


def _few_and_many(random: Random) -> list[Case]:
    """Counts far from every limit, at each limit, and one above it."""
    far = [
        random.randrange(2, 200),
        random.randrange(300, 2000),
        random.randrange(3000, 10**6),
        random.randrange(2, 9) * 10**7,
    ]
    at = [2**bits + more for bits in (BF16_BITS, FP16_BITS, FP32_BITS) for more in (0, 1)]
    return [(count, _size(random)) for count in [*far, *at, 1]]


def _small(random: Random) -> list[Case]:
    """Sizes below FP16's smallest normal number and at it, and below that of FP32."""
    few = random.randrange(2, 256)
    many = random.randrange(257, 2000)
    sizes = [2.0**-14, 2.0**-14 * (1 - 2.0**-20), random.uniform(1, 9) * 2.0**-30]
    return [
        *((count, size) for count in (few, many) for size in sizes),
        (few, 2.0**-126),
        (few, 2.0**-127),
    ]


def _large(random: Random) -> list[Case]:
    """Sums at FP16's largest number, and beyond it; numbers that fit while their sum does not."""
    few = 2 ** random.randrange(2, 8)
    many = 2 ** random.randrange(9, 11)
    cases = [(count, 65504.0 / count * part) for count in (few, many) for part in (1, 1 + 2.0**-20)]
    return [
        *cases,
        (few, random.uniform(0.5, 0.9) * 65504),
        (many, random.uniform(0.5, 0.9) * 65504),
        (1, 65505.0),
    ]


def _huge(random: Random) -> list[Case]:
    """Sums beyond FP32's largest number, and on both sides of BF16's and FP32's."""
    few = 2 ** random.randrange(1, 8)
    many = 2 ** random.randrange(9, 12)
    ends = [
        (count, largest / count * part)
        for largest in (BF16_LARGEST, FP32_LARGEST)
        for count in (1, few, many)
        for part in (1, 1 - 2.0**-25, 1 + 2.0**-25)
    ]
    # FP32 holds a sum from 2^127 to 1.9 * 2^127, and none of 2^128.
    last = [(few, 2.0**127 / few * random.uniform(1, 1.9)), (few, 2.0**128 / few)]
    beyond = [(4, 2.0**126), (random.randrange(3, 200), 2.0**127), (300, 2.0**126), (1, 2.0**127)]
    return [*beyond, *ends, *last]


ACCUMULATOR = Exercise(
    id="master.accumulator",
    notes="A number is swallowed if it is below half an ulp of the sum, so the significant "
    "bits limit the count.",
    checks=(
        Check("few numbers and many", 2, _few_and_many),
        Check("numbers that are small", 1, _small),
        Check("sums that are large for FP16", 1, _large),
        Check("sums that are too large for all", 1, _huge),
    ),
    mistakes=(
        wrong(
            "measures the size, not the sum",
            "this is what comparing `size` with the largest number gives. The "
            "sum is count times as large.",
            replace=("count * size <= largest", "size <= largest"),
        ),
        wrong(
            "forgets the largest number",
            "this is what the bits and the smallest number give. The sum may overflow.",
            replace=(" and count * size <= largest", ""),
        ),
        wrong(
            "forgets the smallest number",
            "this is what the bits and the largest number give. Below its smallest "
            "normal number a format has fewer bits.",
            replace=(" and size >= smallest", ""),
        ),
        wrong(
            "forgets the bits",
            "this is what the two ends of the range give. After 2^bits numbers the next one is "
            "swallowed.",
            replace=("count <= 2**bits and ", ""),
        ),
        wrong(
            "counts the stored bits",
            "this is what the stored bits give, one fewer than the significant ones.",
            replace=("2**bits", "2 ** (bits - 1)"),
        ),
        wrong(
            "counts a bit too many",
            "this is what 2^(bits + 1) gives. Half an ulp of the sum is the sum divided by "
            "2^bits, so the numbers are swallowed earlier.",
            replace=("2**bits", "2 ** (bits + 1)"),
        ),
        wrong(
            "refuses the limit",
            "this is what count < 2^bits gives. Exactly 2^bits numbers are right.",
            replace=("count <= 2**bits", "count < 2**bits"),
        ),
        wrong(
            "takes the widest",
            "this is the last right format. Return the first.",
            replace=("FORMATS.items()", "reversed(FORMATS.items())"),
        ),
        wrong(
            "FP32 where nothing is right",
            "this is FP32 where no format is right. Return None.",
            replace=("return None", 'return "FP32"'),
        ),
    ),
)

EXERCISES = (STEP, MEMORY, GROUPS, FLAT, EMA, ACCUMULATOR)
