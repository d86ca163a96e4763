"""Can you say what autocast does with an operation, from what the operation computes?

The point: matrix products run in FP16, what sums many terms or leaves FP16's range runs in FP32, several operands are
brought to one dtype, and the rest is left alone, batch norm included. Oracle in the tests: the policy in torch's
shipped headers.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.amp import rule_for
from labkit.grading.exercise import Case, Check, Exercise, wrong

NAMES = {
    "allow": "linear matmul bmm addmm conv1d conv2d conv3d einsum",
    "deny": "softmax log_softmax exp log pow sum prod layer_norm group_norm cross_entropy mse_loss nll_loss",
    "promote": "addcmul addcdiv cross atan2",
    "keep": "relu dropout max_pool2d avg_pool2d reshape batch_norm",
}
LISTS = {op: rule for rule, ops in NAMES.items() for op in ops.split()}


def reference(op: str) -> str:
    """Return the list of an operation: "allow", "deny", "promote" or "keep".

    >>> reference("conv2d"), reference("batch_norm")
    ('allow', 'keep')
    """
    return LISTS[op]


def _drawn(always: str, sometimes: str) -> Callable[[Random], list[Case]]:
    """Return the draw that asks for some operations, and for two of others, in any order."""

    def draw(random: Random) -> list[Case]:
        ops = [*always.split(), *random.sample(sometimes.split(), 2)]
        return [(op,) for op in random.sample(ops, len(ops))]

    return draw


# fmt: off
MISTAKES = (
    wrong("all allowed", "this is plain FP16: every operation in the low-precision format.", lambda op: "allow"),
    wrong("all but products denied", "this is what denying everything but the products gives. It is safe, and moves "
          "twice the bytes: relu is as good in FP16.", lambda op: "allow" if LISTS[op] == "allow" else "deny"),
    wrong("keeps einsum", "this is what leaving einsum off the lists gives. It is a matrix product in other words, "
          "and gains as much.", lambda op: "keep" if op == "einsum" else LISTS[op]),
    wrong("denies einsum", "this is what denying einsum gives. It is a matrix product in other words, and gains as "
          "much.", lambda op: "deny" if op == "einsum" else LISTS[op]),
    wrong("allows softmax", "this is what allowing softmax gives: exponentials, summed, in FP16.",
          lambda op: "allow" if op == "softmax" else LISTS[op]),
    wrong("keeps softmax", "this is what leaving softmax off the lists gives: after a linear layer its input is "
          "FP16, and so its sum.", lambda op: "keep" if op == "softmax" else LISTS[op]),
    wrong("keeps exp", "this is what leaving exp off the lists gives: beyond 11.09 it is inf in FP16.",
          lambda op: "keep" if op == "exp" else LISTS[op]),
    wrong("keeps the loss", "this is what leaving the loss off the lists gives: a mean over many elements, in FP16.",
          lambda op: "keep" if op == "cross_entropy" else LISTS[op]),
    wrong("keeps addcmul", "this is what leaving addcmul off the lists gives: its three operands may arrive in "
          "different dtypes.", lambda op: "keep" if op == "addcmul" else LISTS[op]),
    wrong("allows addcmul", "this is what casting its operands to FP16 gives: an FP32 operand loses digits for no "
          "gain. Promote.", lambda op: "allow" if op == "addcmul" else LISTS[op]),
    wrong("denies batch norm", "this is what denying batch_norm gives. It is on no list: its kernel reads FP16, "
          "computes in FP32 with FP32 weights, and writes FP16.",
          lambda op: "deny" if op == "batch_norm" else LISTS[op]),
    wrong("keeps layer norm", "this is what treating layer_norm as batch_norm gives. layer_norm stands on the FP32 "
          "list.", lambda op: "keep" if op == "layer_norm" else LISTS[op]),
    wrong("denies relu", "this is what denying relu gives. It is exact in any format: keep.",
          lambda op: "deny" if op == "relu" else LISTS[op]),
)
# fmt: on

EXERCISE = Exercise(
    id="autocast.lists",
    title="Thirty operations, four lists",
    entry="my_list",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("matrix products and convolutions", 1, _drawn("linear conv2d einsum", "matmul bmm addmm conv1d conv3d")),
        Check(
            "exponentials, reductions and losses",
            1,
            _drawn("exp softmax cross_entropy mse_loss", "log_softmax log pow sum prod nll_loss"),
        ),
        Check("several operands that must agree", 1, _drawn("addcmul", "addcdiv cross atan2")),
        Check("normalisation layers", 1, _drawn("layer_norm batch_norm", "group_norm batch_norm")),
        Check("activations and shapes", 1, _drawn("relu", "dropout max_pool2d avg_pool2d reshape")),
    ),
    mistakes=MISTAKES,
    withheld=(rule_for,),
)
