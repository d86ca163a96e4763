"""Exercises of lesson 05: autocast's lists, dtypes, linear layer, softmax and cache."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import torch
from torch import Tensor

from labkit.grading.draws import always, whole
from labkit.grading.exercise import Case, Check, Exercise, mistake, wrong
from labkit.grading.solutions import Solutions

solution = Solutions(__file__)

# --- autocast.lists ---


def _drawn(each: str, all_but_one_of: str = "") -> Callable[[Random], list[Case]]:
    """Return a drawer of operations in random order.

    Args:
        each: Operations that are always drawn, separated by spaces.
        all_but_one_of: Operations of which one, chosen at random, is left out.
    """

    def draw(random: Random) -> list[Case]:
        others = all_but_one_of.split()
        left_out = random.choice(others) if others else ""
        ops = [op for op in (*each.split(), *others) if op != left_out]
        return [(op,) for op in random.sample(ops, len(ops))]

    return draw


LISTS = Exercise(
    id="autocast.lists",
    notes="""Which list an operation is on is a fact, which one knows, derives or looks up; the
    lab's own table has it, so the points are for the lookup at least. The text asks to derive it
    first.

    Matrix products run in FP16, what sums many terms or leaves FP16's range runs in FP32, several
    operands are brought to one dtype, and the rest is left alone, batch norm included.

    The check of exponentials asks for all operations but one, which the draw chooses. So grading
    may ask for the one that the notebook left out, and a table of the notebook's answers may fail.
    Oracle in the tests: the policy in torch's shipped headers.""",
    checks=(
        Check(
            "matrix products and convolutions",
            1,
            _drawn("linear matmul bmm addmm conv1d conv2d conv3d einsum"),
        ),
        Check(
            "exponentials, reductions and losses",
            1,
            _drawn("exp softmax cross_entropy mse_loss", "log_softmax log pow sum prod nll_loss"),
        ),
        Check("several operands that must agree", 1, _drawn("addcmul addcdiv cross atan2")),
        Check("normalisation layers", 1, _drawn("layer_norm group_norm batch_norm")),
        Check("activations and shapes", 1, _drawn("relu dropout max_pool2d avg_pool2d reshape")),
    ),
    mistakes=(
        wrong(
            "all allowed",
            "this is plain FP16: every operation in the low-precision format.",
            lambda op: "allow",
        ),
        wrong(
            "all but products denied",
            "this is what denying everything but the products gives. It is safe, and "
            "moves twice the bytes: relu is as good in FP16.",
            replace=(('"keep"', '"deny"'), ('"promote"', '"deny"')),
        ),
        wrong(
            "keeps einsum",
            "this is what leaving einsum off the lists gives. It is a matrix product in other "
            "words, and gains as much.",
            replace=((', "einsum"', ""), ('"batch_norm"', '"batch_norm", "einsum"')),
        ),
        wrong(
            "denies einsum",
            "this is what denying einsum gives. It is a matrix product in other words, and "
            "gains as much.",
            replace=(', "einsum"', ""),
        ),
        wrong(
            "allows softmax",
            "this is what allowing softmax gives: exponentials, summed, in FP16.",
            replace=('"einsum"', '"einsum", "softmax"'),
        ),
        wrong(
            "keeps softmax",
            "this is what leaving softmax off the lists gives: after a linear layer its input is "
            "FP16, and so its sum.",
            replace=('"batch_norm"', '"batch_norm", "softmax"'),
        ),
        wrong(
            "keeps exp",
            "this is what leaving exp off the lists gives: beyond 11.09 it is inf in FP16.",
            replace=('"batch_norm"', '"batch_norm", "exp"'),
        ),
        wrong(
            "keeps the loss",
            "this is what leaving the loss off the lists gives: a mean over many elements, in "
            "FP16.",
            replace=('"batch_norm"', '"batch_norm", "cross_entropy"'),
        ),
        wrong(
            "keeps addcmul",
            "this is what leaving addcmul off the lists gives: its three operands may arrive in "
            "different dtypes.",
            replace=('"batch_norm"', '"batch_norm", "addcmul"'),
        ),
        wrong(
            "allows addcmul",
            "this is what casting its operands to FP16 gives: an FP32 operand loses digits for no "
            "gain. Promote.",
            replace=('"einsum"', '"einsum", "addcmul"'),
        ),
        wrong(
            "denies batch norm",
            "this is what denying batch_norm gives. It is on no list: its kernel reads FP16, "
            "computes in FP32 with FP32 weights, and writes FP16.",
            replace=(', "batch_norm"', ""),
        ),
        wrong(
            "keeps bmm",
            "this is what leaving bmm off the lists gives. It is a product of matrices, many at "
            "a time.",
            replace=(('"bmm", ', ""), ('"batch_norm"', '"batch_norm", "bmm"')),
        ),
        wrong(
            "denies pooling",
            "this is what denying avg_pool2d gives. Its sums are short: keep.",
            replace=(', "avg_pool2d"', ""),
        ),
        wrong(
            "keeps layer norm",
            "this is what treating layer_norm as batch_norm gives. layer_norm is on the FP32 list.",
            replace=('"batch_norm"', '"batch_norm", "layer_norm"'),
        ),
        wrong(
            "denies relu",
            "this is what denying relu gives. It is exact in any format: keep.",
            replace=('"relu", ', ""),
        ),
    ),
)

# --- autocast.dtypes ---

RULES = {"a": "allow", "d": "deny", "k": "keep", "p": "promote"}
WIDEST_FIRST = ("FP32", "FP16")


def _program(random: Random, rules: str) -> Case:
    """Return steps whose operands are inputs or earlier results, and the dtypes of the inputs.

    An operation that denies or keeps has one operand, any other has two.
    """
    given = {"x": random.choice(WIDEST_FIRST), "w": "FP32", "mask": "FP16"}
    names = list(given)
    steps = []
    for number, rule in enumerate(rules, 1):
        latest = names[-1] if number > 1 else "x"
        operands = [latest]
        if rule not in "kd":
            operands.append(random.choice([name for name in names if name != latest]))
        steps.append((f"h{number}", RULES[rule], tuple(operands)))
        names.append(f"h{number}")
    return steps, given


def _programs(*programs: str) -> Callable[[Random], list[Case]]:
    """Return a drawer of programs: "adkp" is an allow, a deny, a keep and a promote."""
    return lambda random: [_program(random, rules) for rules in programs]


def _again() -> list[Case]:
    """Programs that use older values, and that assign a name again."""
    older = [("h", "allow", ("x", "w")), ("z", "keep", ("x",)), ("y", "keep", ("h",))]
    twice = [
        ("h", "allow", ("x", "w")),
        ("h", "deny", ("h",)),
        ("y", "keep", ("h",)),
        ("h", "allow", ("h", "w")),
    ]
    # Results have the names of inputs.
    named_x = [
        ("x", "allow", ("x", "w")),
        ("y", "keep", ("x",)),
        ("w", "promote", ("y", "x")),
        ("z", "keep", ("w",)),
    ]
    cases: list[Case] = []
    for steps in (older, twice, named_x):
        cases.extend((steps, {"x": x, "w": "FP32"}) for x in WIDEST_FIRST)
    return [*cases, ([], {"x": "FP16"})]


# a residual connection: x, and what the block adds in FP16
RESIDUAL = [("h1", "allow", ("x", "w")), ("h2", "keep", ("h1",)), ("y", "promote", ("h2", "x"))]

DTYPES = Exercise(
    id="autocast.dtypes",
    notes="""Each operation's rule decides from the dtypes that *arrive*, and those are what earlier
    operations decided.

    Oracle in the tests: the same programs, run under autocast.""",
    checks=(
        Check("one operation after another", 1, _programs("ak", "ad", "da", "dk", "adk", "kak")),
        # two operands and three, with FP32 in every place and in none
        Check(
            "operations of several operands",
            1,
            always(
                *(
                    ([("y", "promote", operands)], {"a": "FP16", "b": "FP32"})
                    for operands in (*product("ab", repeat=2), *product("ab", repeat=3))
                )
            ),
        ),
        Check(
            "a residual connection",
            1,
            always(*((RESIDUAL, {"x": x, "w": "FP32"}) for x in WIDEST_FIRST)),
        ),
        Check("older values, and names that are assigned again", 1, always(*_again())),
        Check("longer programs", 3, _programs("akdkpak", "kdapkdak", "dkakpdkp", "pkpadkap")),
    ),
    mistakes=(
        wrong(
            "keep means FP16",
            "this is what casting on `keep` gives. It leaves what arrives: FP32 stays FP32.",
            replace=('rule == "allow"', 'rule in ("allow", "keep")'),
        ),
        wrong(
            "keep means FP32",
            "this is what casting on `keep` gives. It leaves what arrives: FP16 stays FP16.",
            replace=('rule == "deny"', 'rule in ("deny", "keep")'),
        ),
        wrong(
            "promote means FP32",
            "this is what promoting to FP32 whatever arrives gives. Two FP16 operands stay FP16.",
            replace=('rule == "deny"', 'rule in ("deny", "promote")'),
        ),
        wrong(
            "promotes to the first",
            "this is what taking the first operand's dtype gives. The widest wins, wherever "
            "it stands.",
            replace=('"FP32" if "FP32" in arriving else "FP16"', "arriving[0]"),
        ),
        wrong(
            "promotes to the last",
            "this is what taking the last operand's dtype gives. The widest wins, wherever "
            "it stands.",
            replace=('"FP32" if "FP32" in arriving else "FP16"', "arriving[-1]"),
        ),
        wrong(
            "promotes to the narrowest",
            "this is what taking the narrowest dtype gives: the FP32 operand would lose digits.",
            replace=(
                '"FP32" if "FP32" in arriving else "FP16"',
                '"FP16" if "FP16" in arriving else "FP32"',
            ),
        ),
        wrong(
            "allow needs FP16 operands",
            "this is what treating `allow` as `promote` gives. FP32 weights are cast "
            "down: that is the whole point.",
            replace=('= "FP16"', '= "FP32" if "FP32" in arriving else "FP16"'),
        ),
        wrong(
            "deny gives back FP16",
            "this is what casting the result of a denied operation back gives. It stays FP32.",
            replace=('= "FP32"\n', "= arriving[0]\n"),
        ),
        wrong(
            "forgets earlier results",
            "this is what taking every intermediate result for FP32 gives. Look up what "
            "earlier operations returned.",
            replace=("known[name]", 'given.get(name, "FP32")'),
        ),
    ),
)

# --- autocast.linear ---

Layer = tuple[Tensor, Tensor, Tensor, Tensor]


def _layer(random: Random, extra: int = 0, n: int = 3, k: int = 4, m: int = 2) -> Layer:
    """Return x, weight, bias and the gradient of y, in numbers of up to 5 significand bits.

    `extra` adds bits to x and weight that FP16 does not hold.
    """
    x, weight = (whole(random, (rows, k), 16, 32) / 16 for rows in (n, m))
    bias, grad_y = (whole(random, (rows, m), 16, 32) / 16 for rows in (1, n))
    if extra:
        x, weight = (t + whole(random, (t.shape[0], k), 1, 8) * 2.0**-15 for t in (x, weight))
    return x, weight, bias[0], grad_y.half()


def _rounded(random: Random) -> list[Case]:
    return [*(_layer(random, extra=1) for _ in range(2)), _rounded_bias(random), *_beyond(random)]


def _beyond(random: Random) -> list[Case]:
    """Results beyond FP16 in all three products, and operands that are inf in FP16, each in turn.

    The last gradient is inf as it arrives.
    """
    x, weight, bias, grad_y = _layer(random)
    large = 2.0**17
    x = x.abs()
    weight = weight.abs()
    grad_y = grad_y.abs()
    results: list[Case] = [
        (sign * x * 256, weight * 256, bias, sign * grad_y * 256) for sign in (1, -1)
    ]
    mixed = (x * 256, -weight * 256, bias, grad_y * 256)
    operands = [(x, weight * large, bias, grad_y), (x * large, weight / 16, bias, grad_y)]
    others = [(x, weight, bias * large, grad_y), (x, weight / 16, bias, grad_y / 0)]
    return [*results, mixed, *operands, *others]


def _rounded_bias(random: Random) -> Case:
    """A bias that FP16 must round, beside products so small that the rounding shows in y."""
    while True:
        x, weight, bias, grad_y = _layer(random, extra=1)
        weight = weight * 2.0**-11
        bias = bias + whole(random, tuple(bias.shape), 1, 32) * 2.0**-16
        unrounded = (x.half().float() @ weight.half().float().T + bias).half()
        if not torch.equal(unrounded, solution.my_linear(x, weight, bias, grad_y)[0]):
            return x, weight, bias, grad_y


def _swamped(random: Random) -> list[Case]:
    """Outputs near 2048 with a bias below 1, so the order and each rounding show."""
    cases: list[Case] = []
    for _ in range(2):
        x = torch.cat([torch.full((2, 2), 32.0), whole(random, (2, 8), 1, 8).abs() / 16], dim=1)
        weight = torch.cat([torch.full((3, 2), 32.0), whole(random, (3, 8), 1, 8).abs() / 4], dim=1)
        bias = whole(random, (1, 3), 3, 8).abs()[0] / 8
        cases.append((x, weight, bias, whole(random, (2, 3), 16, 32).half() / 16))
    return cases


def _underflowing(random: Random) -> list[Case]:
    """Gradients whose products fall below FP16's smallest number, and subnormal operands."""
    x, weight, bias, grad_y = _layer(random)
    products = [(1.0, 2.0**-10, 1.0, 2.0**-16), (2.0**-10, 1.0, 1.0, 2.0**-16)]
    operands = [(2.0**-17, 1.0, 2.0**-17, 1.0), (1.0, 2.0**-17, 2.0**-17, 1.0)]
    return [(x * a, weight * b, bias * c, grad_y * d) for a, b, c, d in (*products, *operands)]


@mistake
def accumulates_in_FP16(
    x: Tensor, weight: Tensor, bias: Tensor, grad_y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """This is what an FP16 accumulator gives: every addition rounds to 11 bits."""

    def matmul(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
        for column, row in zip(a.half().T, b.half(), strict=True):
            total = total + torch.outer(column, row)
        return total

    zero = torch.zeros(1).half()
    return (
        matmul(x, weight.T, bias.half()),
        matmul(grad_y, weight, zero).float(),
        matmul(grad_y.T, x, zero).float(),
    )


LINEAR = Exercise(
    id="autocast.linear",
    notes="""Operands are rounded to FP16, each of the three products is accumulated in FP32 and
    rounded once, and a gradient passes through a cast by being cast the other way, so an FP32
    weight gets an FP32 gradient that holds an FP16 value.

    Inputs are small whole numbers over powers of two, so every product and FP32 sum is exact in any
    order, and answers are compared bit for bit. Oracle in the tests: torch's autograd through
    explicit casts.""",
    checks=(
        Check(
            "numbers that FP16 holds",
            1,
            lambda random: [_layer(random), _layer(random, n=1, k=2, m=3)],
        ),
        Check("operands that FP16 must round", 2, _rounded),
        # a sum over 64 products of 10 bits: its FP32 value has more bits than FP16 holds
        Check(
            "long sums: accumulate in FP32, round once",
            2,
            lambda random: [_layer(random, k=64, n=2), _layer(random, n=64)],
        ),
        Check("the bias belongs into the FP32 sum", 2, _swamped),
        Check("gradients that underflow, underflow", 1, _underflowing),
    ),
    mistakes=(
        wrong(
            "stays in FP32",
            "this is the FP32 layer. autocast rounds the operands to FP16 first.",
            lambda x, weight, bias, grad_y: (
                x @ weight.T + bias,
                grad_y.float() @ weight,
                grad_y.float().T @ x,
            ),
        ),
        wrong(
            "rounds the results only",
            "this is what rounding the results alone gives. A Tensor Core takes FP16 operands.",
            replace=(
                ("x16 = x.half()", "x16 = x"),
                ("w16 = weight.half()", "w16 = weight"),
                ("b16 = bias.half()", "b16 = bias"),
            ),
        ),
        wrong(
            "answers in FP32",
            "this is y in FP32. It leaves the layer as FP16, half the bytes to move.",
            replace=("return y,", "return y.float(),"),
        ),
        wrong(
            "gradients stay FP16",
            "this is what forgetting the backward of the casts gives: x and weight are FP32, "
            "and so are their gradients.",
            replace=("grad_x, grad_weight", "grad_x.half(), grad_weight.half()"),
        ),
        wrong(
            "gradients are never rounded",
            "this is what FP32 gradients give. The backward products write FP16 too, "
            "then the cast widens them: here gradients underflow.",
            replace=(
                ("@ w16.float()).half().float()", "@ w16.float())"),
                ("@ x16.float()).half().float()", "@ x16.float())"),
            ),
        ),
        wrong(
            "gradients from unrounded operands",
            "this is what using the FP32 x and weight in the backward pass "
            "gives. Autograd saved their FP16 casts.",
            replace=(("@ w16.float())", "@ weight)"), ("@ x16.float())", "@ x)")),
        ),
        wrong(
            "rounds before the bias",
            "this is what rounding the product and then adding the bias gives: two "
            "roundings. The bias joins the FP32 sum.",
            replace=(".T + b16.float()).half()", ".T).half() + b16"),
        ),
        wrong(
            "forgets the bias",
            "this is the layer without its bias.",
            replace=(" + b16.float()", ""),
        ),
        accumulates_in_FP16,
    ),
    provides={"torch": torch},
)

# --- autocast.softmax ---


def _settled(logits: Tensor) -> bool:
    """Return whether an error of a few FP32 ulps leaves every FP16 probability as it is."""
    exact = torch.softmax(logits.double(), dim=1)
    lower = exact * (1 - 2.0**-20)
    upper = exact * (1 + 2.0**-20)
    return torch.equal(lower.half(), upper.half())


def _logits(random: Random, low: float, high: float, rows: int = 3, columns: int = 6) -> Tensor:
    while True:
        logits = torch.tensor(
            [[random.uniform(low, high) for _ in range(columns)] for _ in range(rows)]
        ).half()
        if _settled(logits):
            return logits


def _ordinary(random: Random) -> list[Case]:
    usual = [_logits(random, -2, 2) for _ in range(3)]
    return [
        (one,)
        for one in (*usual, _logits(random, -2, 2, columns=1), _logits(random, -16, 0, rows=6))
    ]


def _above_ninety(random: Random) -> list[Case]:
    ends = [
        [65504.0, 65504.0, -65504.0],
        [-65504.0, -65504.0, -65472.0],
        [65504.0, 65472.0, 20000.0],
    ]
    return [
        (_logits(random, 100, 103),),
        (_logits(random, 6000, 6001),),
        (torch.tensor(ends).half(),),
    ]


def _masked(random: Random) -> list[Case]:
    while True:
        logits = _logits(random, -2, 2)
        logits[:, 2] = logits[0, 0] = -torch.inf
        # In each row of `ends` all but one are masked; in `others`, that one alone is masked.
        ends = torch.full((6, 6), -torch.inf).half()
        ends.fill_diagonal_(random.uniform(-2, 2))
        lowest = torch.full((1, 6), -65504.0).half()
        lowest[0, random.randrange(6)] = -torch.inf
        if _settled(logits):
            others = torch.where(ends.isinf(), logits[:1].nan_to_num(neginf=0.5), -torch.inf)
            return [(one,) for one in (logits, ends, others, lowest)]


SOFTMAX = Exercise(
    id="autocast.softmax",
    notes="""torch's own softmax of FP32 logits is right, too. It gives the answer without its
    reason, so the text asks to write it; nothing enforces that.

    exp(x) is inf in FP16 from 11.1 on and in FP32 from 88.8 on, so subtract the largest logit of
    the *row* first; and sum in FP32. Oracle in the tests: torch's softmax in FP64, rounded.

    A correct answer may write its FP32 arithmetic in any order. No probability here lies so near
    the middle of two FP16 numbers that this could change it, so answers are compared bit for bit.
    """,
    checks=(
        Check("small logits", 1, _ordinary),
        # from 12 to 14: exp is above 65520, so inf in FP16, and fine in FP32
        Check(
            "logits above 11, where exp leaves FP16",
            1,
            lambda random: [(_logits(random, 12, 14),) for _ in range(2)],
        ),
        Check("logits above 89, where exp leaves FP32", 2, _above_ninety),
        Check(
            "one row far below another",
            1,
            lambda random: [
                (torch.cat([_logits(random, 0, 2, rows=1), _logits(random, -502, -500, rows=1)]),)
            ],
        ),
        Check("a masked logit of -inf", 1, _masked),
        # the exponentials are between 0.36 and 1, and their FP16 sum, term by term, would stop
        # growing at 2048 at the latest
        Check(
            "4,096 logits, summed in FP32",
            2,
            lambda random: [(_logits(random, -0.5, 0.5, rows=1, columns=8).repeat(1, 512),)],
        ),
    ),
    mistakes=(
        wrong(
            "naive in FP16",
            "this is exp(x) / sum(exp(x)) in FP16: inf / inf from x = 11.1 on.",
            replace=("wide - wide.max(dim=1, keepdim=True).values", "logits"),
        ),
        wrong(
            "naive in FP32",
            "this is exp(x) / sum(exp(x)) in FP32: that only moves the cliff from 11 to 88.7.",
            replace=(" - wide.max(dim=1, keepdim=True).values", ""),
        ),
        wrong(
            "one maximum for all",
            "this is what subtracting the largest logit of all rows gives: a row far below it "
            "becomes 0 / 0.",
            replace=("wide.max(dim=1, keepdim=True).values", "wide.max()"),
        ),
        wrong(
            "subtracts the mean",
            "this is what subtracting the mean gives. Only after subtracting the maximum is "
            "every exponent at most 0.",
            replace=("max(dim=1, keepdim=True).values", "mean(dim=1, keepdim=True)"),
        ),
        wrong(
            "clamps the logits",
            "this is what clamping the logits gives: everything above the clamp becomes equally "
            "likely.",
            replace=("logits.float()", "logits.clamp(max=11.0).float()"),
        ),
        wrong(
            "replaces inf by 65504",
            "this is what replacing inf by 65504 gives: no NaN, and wrong probabilities. "
            "That is worse.",
            replace=(
                "torch.exp(wide - wide.max(dim=1, keepdim=True).values)",
                "torch.nan_to_num(torch.exp(logits), posinf=65504.0)",
            ),
        ),
        wrong(
            "subtracts a logarithm",
            "this is what exp(x - logsumexp(x)) gives. For large logits FP32 has few digits "
            "left for the logarithm of the sum. Subtract the maximum, and divide by the sum.",
            replace=(
                (
                    "wide.max(dim=1, keepdim=True).values",
                    "torch.logsumexp(wide, dim=1, keepdim=True)",
                ),
                ("powers / powers.sum(dim=1, keepdim=True)", "powers"),
            ),
        ),
        wrong(
            "over the columns",
            "this is the softmax of the columns. Each row is one example: dim=1.",
            replace=(("max(dim=1", "max(dim=0"), ("sum(dim=1", "sum(dim=0")),
        ),
        wrong(
            "answers in FP32",
            "this is right, in FP32. The next layer is to get FP16: round at the end.",
            replace=("keepdim=True)).half()", "keepdim=True))"),
        ),
        wrong(
            "computes in FP16",
            "this is what computing in FP16 gives: exp, sum and quotient are each rounded. Cast "
            "first, round at the end.",
            replace=("logits.float()", "logits"),
        ),
        wrong(
            "rounds the sum to FP16",
            "this is what rounding the sum to FP16 gives: each probability is off by as "
            "much. Round at the end only.",
            replace=("keepdim=True)).half()", "keepdim=True).half()).half()"),
        ),
        wrong(
            "sums in FP16",
            "this is what an FP16 sum gives: it loses digits with each term, and stops growing "
            "long before the end.",
            replace=(
                ("logits.float()", "logits"),
                ("powers.sum(dim=1, keepdim=True)", "sum(powers.split(1, dim=1))"),
            ),
        ),
    ),
    provides={"torch": torch},
)

# --- autocast.cache ---


def _weights(random: Random) -> dict[str, Tensor]:
    """Return FP32 weights that FP16 must round, some of them among its subnormal numbers."""
    sizes = (1.0, 1.0, 2.0**-20, 2.0**-22, 2.0**-24)
    return {
        name: torch.tensor([random.randrange(1, 999) / 7 * s for s in sizes])
        for name in ("w1", "w2")
    }


def _events(random: Random, *lines: str) -> list[Case]:
    """Events in short: "1" uses w1, "e1" edits it, "c" closes the autocast region."""
    named = {
        "1": ("use", "w1"),
        "2": ("use", "w2"),
        "e1": ("edit", "w1"),
        "e2": ("edit", "w2"),
        "c": ("close", ""),
    }
    return [(_weights(random), [named[word] for word in line.split()]) for line in lines]


def _used_again(random: Random) -> list[Case]:
    """Two weights; none used; and nine, which are all kept."""
    names = [f"layer{i}.weight" for i in range(9)]
    nine = {name: _weights(random)["w1"] for name in names}
    return [
        *_events(random, "1 1 1", "1 2 1 2 2 1", ""),
        (nine, [("use", name) for name in names * 2]),
    ]


def _mixtures(random: Random) -> list[Case]:
    words = ("1", "2", "e1", "e2", "1", "2", "c")
    return _events(random, *(" ".join(random.choice(words) for _ in range(30)) for _ in range(3)))


CACHE = Exercise(
    id="autocast.cache",
    notes="""A weight that is used twice in a forward pass needs one cast, and an in-place edit in
    between makes it stale. torch counts a tensor's edits in `_version`; its own autocast does not
    look, and returns the old cast.

    Oracle in the tests: casting every time, which must give the same tensors.""",
    checks=(
        Check("a weight that is used again is not cast again", 1, _used_again),
        Check(
            "an edited weight is cast anew, the other one is not",
            2,
            lambda random: _events(random, "1 1 e1 1 1", "1 2 e1 1 2", "e1 1 2 e2 e2 1 2"),
        ),
        Check(
            "closing the region empties the cache",
            1,
            lambda random: _events(random, "1 1 c 1 1", "1 2 c e1 1 2 1"),
        ),
        Check("long mixtures", 2, _mixtures),
    ),
    mistakes=(
        wrong(
            "never looks again",
            "this is a cache that does not see edits, as torch's does not: after an edit the "
            "layer computes with the old weight.",
            replace=(" or cache[name][0] != weight._version", ""),
        ),
        wrong(
            "casts every time",
            "this is no cache: a cast for every use.",
            replace=("name not in cache or cache[name][0] != weight._version", "True"),
        ),
        wrong(
            "forgets everything at an edit",
            "this is what emptying the cache at every edit gives: weights that did "
            "not change are cast again.",
            replace=("mul_(0.5)", "mul_(0.5)\n            cache.clear()"),
        ),
        wrong(
            "one place for all",
            "this is what keeping one cast for all weights gives: the second weight is computed "
            "with the first.",
            replace=(
                (" or cache[name][0] != weight._version", ""),
                ("weight = weights[name]", 'weight, name = weights[name], "the weight"'),
            ),
        ),
        wrong(
            "keyed on the version alone",
            "this is what a key without the weight gives: two weights of the same "
            "version share a cast.",
            replace=(
                "weight = weights[name]",
                "weight = weights[name]\n            name = weight._version",
            ),
        ),
        wrong(
            "never closes",
            "this is what keeping casts beyond the region gives: they hold memory until the end of "
            "the run.",
            replace=("cache.clear()", "pass"),
        ),
    ),
    may_change=("weights",),
    provides={"torch": torch},
)

EXERCISES = (LISTS, DTYPES, LINEAR, SOFTMAX, CACHE)
