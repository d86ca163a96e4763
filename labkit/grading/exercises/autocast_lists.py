"""Can you say what autocast does with an operation, from what the operation computes?

The point: matrix products run in FP16, what sums many terms or leaves FP16's range runs in FP32, several operands are
brought to one dtype, and the rest is left alone, batch norm included. Oracle in the tests: the policy in torch's
shipped headers.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from labkit.amp import rule_for
from labkit.grading.exercise import Case, Check, Exercise, Mistake

LISTS = {
    "linear": "allow",
    "conv2d": "allow",
    "einsum": "allow",
    "softmax": "deny",
    "exp": "deny",
    "layer_norm": "deny",
    "cross_entropy": "deny",
    "addcmul": "promote",
    "relu": "keep",
    "batch_norm": "keep",
}


def reference(op: str) -> str:
    """Return the list of an operation: "allow", "deny", "promote" or "keep".

    >>> reference("conv2d"), reference("batch_norm")
    ('allow', 'keep')
    """
    return LISTS[op]


def _of(*ops: str) -> Callable[[Random], list[Case]]:
    return lambda random: [(op,) for op in random.sample(ops, len(ops))]


def _but(**changed: str) -> Callable[[str], str]:
    return lambda op: {**LISTS, **changed}[op]


EXERCISE = Exercise(
    id="autocast.lists",
    lesson="05_autocast",
    title="Ten operations, four lists",
    entry="my_list",
    difficulty=1,
    minutes=6,
    reference=reference,
    checks=(
        Check("matrix products and convolutions", 1, _of("linear", "conv2d", "einsum")),
        Check("exponentials, reductions and losses", 1, _of("exp", "softmax", "cross_entropy")),
        Check("several operands that must agree", 1, _of("addcmul")),
        Check("normalisation layers", 1, _of("layer_norm", "batch_norm"), hidden=True),
        Check("activations", 1, _of("relu"), hidden=True),
    ),
    mistakes=(
        Mistake("all allowed", lambda op: "allow", "this is plain FP16: every operation in the low-precision format."),
        Mistake(
            "all but products denied",
            lambda op: "allow" if LISTS[op] == "allow" else "deny",
            "this is what denying everything but the products gives. It is safe, and moves twice the bytes: relu is as "
            "good in FP16.",
        ),
        Mistake(
            "keeps einsum",
            _but(einsum="keep"),
            "this is what leaving einsum off the lists gives. It is a matrix product in other words, and gains as "
            "much.",
        ),
        Mistake(
            "denies einsum",
            _but(einsum="deny"),
            "this is what denying einsum gives. It is a matrix product in other words, and gains as much.",
        ),
        Mistake(
            "allows softmax",
            _but(softmax="allow"),
            "this is what allowing softmax gives: exponentials, summed, in FP16.",
        ),
        Mistake(
            "keeps softmax",
            _but(softmax="keep"),
            "this is what leaving softmax off the lists gives: after a linear layer its input is FP16, and so its sum.",
        ),
        Mistake(
            "keeps exp",
            _but(exp="keep"),
            "this is what leaving exp off the lists gives: beyond 11.09 it is inf in FP16.",
        ),
        Mistake(
            "keeps the loss",
            _but(cross_entropy="keep"),
            "this is what leaving the loss off the lists gives: a mean over many elements, in FP16.",
        ),
        Mistake(
            "keeps addcmul",
            _but(addcmul="keep"),
            "this is what leaving addcmul off the lists gives: its three operands may arrive in different dtypes.",
        ),
        Mistake(
            "allows addcmul",
            _but(addcmul="allow"),
            "this is what casting its operands to FP16 gives: an FP32 operand loses digits for no gain. Promote.",
        ),
        Mistake(
            "denies batch norm",
            _but(batch_norm="deny"),
            "this is what denying batch_norm gives. It is on no list: its kernel reads FP16, computes in FP32 with "
            "FP32 weights, and writes FP16.",
        ),
        Mistake(
            "keeps layer norm",
            _but(layer_norm="keep"),
            "this is what treating layer_norm as batch_norm gives. layer_norm stands on the FP32 list.",
        ),
        Mistake("denies relu", _but(relu="deny"), "this is what denying relu gives. It is exact in any format: keep."),
    ),
    withheld=(rule_for,),
)
