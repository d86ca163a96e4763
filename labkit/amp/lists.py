"""Which operation runs in which dtype, and why?

Idea: three lists and a default. A matrix product gains from FP16 and keeps its accuracy (FP32 accumulation): allow. An
exponential, a norm or a loss leaves FP16's range or sums many terms: deny, it runs in FP32. An operation of several
tensors needs one dtype: promote, the widest wins. Everything else keeps the dtype it is given.

Invariant: the names are those that the learner typed, and no name stands on two lists.

Source: torch's CUDA autocast policy, ATen/autocast_mode.h (the lists); the reasons are ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """What autocast does with an operation."""

    ALLOW = "allow"  # cast to the low-precision format
    DENY = "deny"  # cast to FP32
    SET_DTYPE = "set dtype"  # compute and return FP32, unless the call names a dtype
    PROMOTE = "promote"  # cast to what holds all operands
    BANNED = "banned"  # refused: its FP16 form is unsafe
    KEEP = "keep"  # runs in the dtype it is given


@dataclass(frozen=True)
class Entry:
    """One operation's rule and the reason, in a few words."""

    rule: Rule
    why: str


_REASONS: tuple[tuple[Rule, str, str], ...] = (
    (
        Rule.ALLOW,
        "matrix product: Tensor Cores, FP32 accumulation",
        "linear matmul rmatmul mm bmm mv addmm addmv addr addbmm baddbmm chain_matmul multi_dot linalg_multi_dot "
        "vecdot linalg_vecdot einsum scaled_dot_product_attention lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    ),
    (
        Rule.ALLOW,
        "convolution: a matrix product in disguise",
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d convolution _convolution",
    ),
    (Rule.ALLOW, "one product for each element, next to convolutions", "prelu"),
    (
        Rule.DENY,
        "its result outgrows FP16 for modest arguments, or loses what is small",
        "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow rpow softplus logsumexp",
    ),
    (
        Rule.DENY,
        "sums squares over many elements",
        "layer_norm native_layer_norm rms_norm group_norm norm frobenius_norm nuclear_norm cosine_similarity dist "
        "pdist cdist renorm",
    ),
    (
        Rule.DENY,
        "a loss: a logarithm or a mean over many elements",
        "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d cross_entropy hinge_embedding_loss kl_div l1_loss "
        "smooth_l1_loss huber_loss mse_loss margin_ranking_loss multilabel_margin_loss soft_margin_loss "
        "triplet_margin_loss multi_margin_loss binary_cross_entropy_with_logits",
    ),
    (Rule.DENY, "weights of neighbours are computed in FP32", "interpolate"),
    (
        Rule.SET_DTYPE,
        "sums or multiplies many elements",
        "prod softmax log_softmax cumprod cumsum vector_norm linalg_vector_norm matrix_norm linalg_matrix_norm sum",
    ),
    (
        Rule.PROMOTE,
        "several operands, one dtype needed",
        "addcdiv addcmul atan2 bilinear cross dot vdot grid_sample grid_sampler index_put tensordot scatter_add "
        "cat stack",
    ),
    (Rule.BANNED, "takes log(p) of an FP16 p: use the form with logits", "binary_cross_entropy"),
)

POLICY: dict[str, Entry] = {name: Entry(rule, why) for rule, why, names in _REASONS for name in names.split()}
_KEEP = Entry(Rule.KEEP, "safe in either dtype")


def rule_for(name: str) -> Entry:
    """Return the rule of an operation by the name that was called, such as "linear" or "__matmul__".

    >>> rule_for("__matmul__").rule, rule_for("softmax").rule, rule_for("relu").rule
    (<Rule.ALLOW: 'allow'>, <Rule.SET_DTYPE: 'set dtype'>, <Rule.KEEP: 'keep'>)
    """
    bare = name[2:-2] if name.startswith("__") and name.endswith("__") else name
    return POLICY.get(bare, _KEEP)
