"""Autocast policy: the dtype of each operation, with the reason.

Idea: a table and a default. A matrix product gains from FP16 and keeps its accuracy (FP32
accumulation): allow. An exponential, a norm or a loss exceeds FP16's range or sums many terms:
deny, it runs in FP32. An operation of several tensors needs one dtype: promote to the widest. All
other operations keep the dtype of their inputs.

Invariant: the names are those of the calls in the learner's code, and no name is on two lists.

Source: torch's CUDA autocast policy, ATen/autocast_mode.h (the lists); the reasons are ours.
Additional names are aliases (`special_expm1`, `lstm`), call a listed operation inside (`square`
calls `pow`), have no half kernel (`inverse`), or few (`fft_fft`), as on torch's list for CPUs.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import Enum


class Rule(Enum):
    """What autocast does with an operation."""

    # cast to the low-precision format
    ALLOW = "allow"
    # cast to FP32
    DENY = "deny"
    # compute and return FP32, unless the call passes a dtype
    SET_DTYPE = "set dtype"
    # as SET_DTYPE, for calls without a dtype argument; torch distinguishes them, autocast here does
    # not need to
    APPEND_DTYPE = "append dtype"
    # cast to the dtype that holds all operands
    PROMOTE = "promote"
    # raise an error: the FP16 form is unsafe
    BANNED = "banned"
    # run in the dtype of its inputs
    KEEP = "keep"


@dataclass(frozen=True)
class Entry:
    """The rule of an operation, and a short reason."""

    rule: Rule
    why: str


# Operations on torch's CPU list of FP32 operations, or without a half kernel on any device. torch's
# CUDA lists lack them, so there most of them fail in FP16; a few, such as matrix_power, run in it.
_NO_HALF_KERNEL = (
    "linalg_cholesky linalg_cholesky_ex linalg_cond linalg_det linalg_eig linalg_eigh "
    "linalg_eigvals linalg_eigvalsh linalg_householder_product linalg_inv linalg_inv_ex "
    "linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu "
    "linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve linalg_matrix_exp linalg_matrix_power "
    "linalg_matrix_rank linalg_pinv linalg_qr linalg_slogdet linalg_solve linalg_solve_ex "
    "linalg_solve_triangular linalg_svd linalg_svdvals linalg_tensorinv linalg_tensorsolve "
    "cholesky cholesky_inverse cholesky_solve det geqrf inverse logdet lstsq lu lu_solve lu_unpack "
    "matrix_exp matrix_power orgqr ormqr pinverse qr slogdet svd triangular_solve ctc_loss "
    "histogram histogramdd nanquantile polar quantile stft istft special_airy_ai special_bessel_j0 "
    "special_bessel_j1 special_bessel_y0 special_bessel_y1 special_erfcx special_log_ndtr "
    "special_modified_bessel_i0 special_modified_bessel_i1 special_modified_bessel_k0 "
    "special_modified_bessel_k1 special_ndtri special_scaled_modified_bessel_k0 "
    "special_scaled_modified_bessel_k1 special_spherical_bessel_j0 special_zeta linalg_vander "
    "special_hermite_polynomial_h special_hermite_polynomial_he special_laguerre_polynomial_l "
    "special_legendre_polynomial_p "
) + " ".join(
    f"special_{shifted}chebyshev_polynomial_{kind}"
    for shifted in ("", "shifted_")
    for kind in "tuvw"
)
# Fourier transforms, whose FP16 kernels on CUDA take only sizes that are powers of two.
_FOURIER = " ".join(
    f"fft_{inverse}{kind}fft{n}"
    for inverse in ("", "i")
    for kind in ("", "h", "r")
    for n in ("", "2", "n")
)
NO_HALF_KERNEL = frozenset(_NO_HALF_KERNEL.split())
# CUDA has FP16 kernels of these operations. Most of them return complex FP16 numbers, which no
# matrix product takes.
FEW_HALF_KERNELS = frozenset(("view_as_complex", *_FOURIER.split()))

_REASONS: tuple[tuple[Rule, str, str], ...] = (
    (
        Rule.ALLOW,
        "matrix product: Tensor Cores, FP32 accumulation",
        "linear matmul rmatmul linalg_matmul mm bmm mv addmm addmv addr addbmm baddbmm "
        "chain_matmul multi_dot linalg_multi_dot vecdot linalg_vecdot einsum",
    ),
    (
        Rule.ALLOW,
        "attention: two matrix products; its softmax is FP32 inside the kernel",
        "scaled_dot_product_attention _scaled_dot_product_flash_attention",
    ),
    (
        Rule.ALLOW,
        "recurrent: two matrix products for each step",
        "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell "
        "_thnn_fused_lstm_cell _thnn_fused_gru_cell",
    ),
    (
        Rule.ALLOW,
        "convolution: a matrix product in disguise",
        "conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d conv_transpose3d "
        "convolution _convolution cudnn_convolution cudnn_convolution_transpose",
    ),
    (Rule.ALLOW, "one product for each element, next to convolutions", "prelu"),
    (
        Rule.DENY,
        "its result outgrows FP16 for modest arguments, or loses what is small",
        "acos arccos asin arcsin cosh erfinv special_erfinv exp expm1 special_expm1 log log10 log2 "
        "log1p special_log1p reciprocal rdiv rtruediv rsqrt sinh tan pow rpow square ldexp "
        "softplus logsumexp special_logsumexp mvlgamma special_multigammaln",
    ),
    (
        Rule.DENY,
        "sums squares over many elements",
        "layer_norm native_layer_norm rms_norm group_norm frobenius_norm nuclear_norm "
        "cosine_similarity pairwise_distance dist pdist cdist renorm",
    ),
    (
        Rule.DENY,
        "a loss: a logarithm or a mean over many elements",
        "poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d nll_loss_nd cross_entropy "
        "cross_entropy_loss hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss "
        "margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss "
        "multi_margin_loss binary_cross_entropy_with_logits",
    ),
    (
        Rule.DENY,
        "weights of neighbours are computed in FP32",
        "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "_upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d _upsample_bicubic2d_aa",
    ),
    (Rule.DENY, "in FP32 on torch's list for CPUs, or without a half kernel", _NO_HALF_KERNEL),
    (Rule.DENY, "half kernels on a GPU alone, for powers of two", _FOURIER),
    (Rule.DENY, "no matrix product takes complex FP16 numbers", "view_as_complex"),
    (
        Rule.DENY,
        "a running sum or a sum over many elements",
        "trapz trapezoid cumulative_trapezoid sum_to_size",
    ),
    (
        Rule.SET_DTYPE,
        "sums or multiplies many elements",
        "prod softmax special_softmax _safe_softmax log_softmax special_log_softmax cumprod cumsum "
        "vector_norm linalg_vector_norm matrix_norm linalg_matrix_norm linalg_norm sum",
    ),
    (Rule.APPEND_DTYPE, "sums squares over many elements", "norm"),
    (
        Rule.PROMOTE,
        "several operands, one dtype needed",
        "addcdiv addcmul atan2 arctan2 bilinear cross dot vdot grid_sample grid_sampler index_put "
        "tensordot scatter_add cat concat concatenate stack",
    ),
    (
        Rule.BANNED,
        "takes log(p) of an FP16 p; use torch.nn.functional.binary_cross_entropy_with_logits",
        "binary_cross_entropy",
    ),
)

POLICY: dict[str, Entry] = {
    name: Entry(rule, why) for rule, why, names in _REASONS for name in names.split()
}
_KEEP = Entry(Rule.KEEP, "safe in either dtype")


class Lists:
    """The policy, overridden by registrations, of which the last one takes precedence.

    All threads read the same table. It is replaced as a whole and never modified, so readers need
    no lock.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered: tuple[tuple[object, str, Entry], ...] = ()
        # number of changes
        self.edition = 0
        self.table = _with_operators(POLICY)
        self.names = frozenset(self.table)

    def put(self, token: object, name: str, entry: Entry) -> None:
        """Register `entry` for `name` until `take` is called with the same token."""
        with self._lock:
            self._replace((*self._registered, (token, name, entry)))

    def take(self, token: object) -> None:
        """Remove the registration with this token; earlier and later ones stay."""
        with self._lock:
            self._replace(tuple(row for row in self._registered if row[0] is not token))

    def _replace(self, registered: tuple[tuple[object, str, Entry], ...]) -> None:
        self._registered = registered
        self.table = _with_operators({**POLICY, **{name: entry for _, name, entry in registered}})
        self.names = frozenset(self.table)
        self.edition += 1


def _with_operators(entries: dict[str, Entry]) -> dict[str, Entry]:
    """Add the names of operators: `__matmul__` has the rule of `matmul`."""
    operators = {f"__{name}__": entry for name, entry in entries.items()}
    return {**operators, **entries}


LISTS = Lists()


def registered_rules() -> dict[str, str]:
    """Return the names whose rule differs from the policy's, each with its rule."""
    changed: dict[str, str] = {}
    for name, entry in LISTS.table.items():
        if name.startswith("__"):
            continue
        if name not in POLICY or POLICY[name].rule is not entry.rule:
            changed[name] = entry.rule.value
    return changed


def rule_for(name: str) -> Entry:
    """Return an operation's rule by its name, such as "linear", "__matmul__" or "mm.default".

    >>> rule_for("__matmul__").rule, rule_for("softmax").rule, rule_for("relu").rule
    (<Rule.ALLOW: 'allow'>, <Rule.SET_DTYPE: 'set dtype'>, <Rule.KEEP: 'keep'>)
    """
    if "." in name:
        name = name.partition(".")[0]
    return LISTS.table.get(name, _KEEP)
