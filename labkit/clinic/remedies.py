"""Remedies for inf and NaN, by the operation, its dtype, autocast, a scaler, and FP32's result.

Idea: "compute in FP32" repairs what FP32 holds. Whether it does is tried: the operation is repeated
on the same numbers in FP32. Where it gives inf or NaN there too, its input is outside of the
operation's domain, and the remedy names the domain. Inside autocast `.float()` alone is cast back
by a product, so that remedy closes the region as well.

Invariant: no remedy asks for what the script does already.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._pytree import tree_map_only

from labkit.gemm.half_storage import HALVES

# operations that autocast casts to FP16, by their names below autocast
PRODUCTS = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addmv",
        "mv",
        "dot",
        "convolution",
        "linear",
        "matmul",
        "einsum",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
    )
)
AT_ZERO = "add an epsilon that this dtype holds, or clamp(min=eps),"
# operation -> the numbers for which it is defined, and the repair
DOMAINS: dict[str, str] = {
    "log": (
        f"log needs numbers above 0: {AT_ZERO} before it, or use log_softmax, logsigmoid or a "
        "loss on logits."
    ),
    "log2": f"log2 needs numbers above 0: {AT_ZERO} before it.",
    "log10": f"log10 needs numbers above 0: {AT_ZERO} before it.",
    "log1p": "log1p needs numbers above -1: clamp its input before it.",
    "sqrt": (
        "sqrt needs numbers of 0 or more: clamp(min=0) before it, and find out why they "
        "became negative."
    ),
    "rsqrt": f"rsqrt needs numbers above 0: {AT_ZERO} inside it.",
    "reciprocal": f"The divisor is 0: {AT_ZERO} before the division.",
    "div": (
        f"The divisor is 0: {AT_ZERO} before the division, or leave out the rows that are "
        "masked whole."
    ),
    "pow": (
        "A power of 0 with a negative exponent, or of a negative number with a fraction: "
        "clamp its base before it."
    ),
    "acos": "acos needs numbers from -1 to 1: clamp(-1 + 1e-6, 1 - 1e-6) in FP32 before it.",
    "asin": "asin needs numbers from -1 to 1: clamp(-1 + 1e-6, 1 - 1e-6) in FP32 before it.",
    "atanh": "atanh needs numbers between -1 and 1: clamp(-1 + 1e-6, 1 - 1e-6) in FP32 before it.",
    "acosh": "acosh needs numbers of 1 or more: clamp(min=1 + 1e-6) before it.",
    "logit": "logit needs numbers between 0 and 1: torch.logit(x, eps=1e-6).",
    "exp": (
        "exp of 89 or more is inf in FP32 as well: use softmax, log_softmax or logsumexp, "
        "or clamp its input."
    ),
    "expm1": "expm1 of 89 or more is inf in FP32 as well: clamp its input.",
    "_softmax": (
        "A row is masked whole: keep one entry of each row, or set such rows to 0 after the "
        "softmax."
    ),
    "_safe_softmax": "A row is masked whole: set such rows to 0 after the softmax.",
    "_log_softmax": "A row is masked whole: keep one entry of each row.",
}
# Node of the backward pass -> why its derivative is not finite, and the repair in the forward pass.
# Norms, distances, standard deviations and atan2 are not here: torch takes 0 for their derivative
# at 0.
DERIVATIVES: dict[str, str] = {
    "sqrt": (
        "The derivative of sqrt at 0 is infinite: write sqrt(x + eps), with eps inside the root."
    ),
    "rsqrt": (
        "The derivative of rsqrt at 0 is infinite: write rsqrt(x + eps), with eps inside the root."
    ),
    "pow": "The derivative of a power below 1 at 0 is infinite: add eps to its base.",
    "hypot": "The derivative of hypot(0, 0) is 0/0: add eps to one of its arguments.",
    "log": f"The derivative of log at 0 is infinite: {AT_ZERO} before it.",
    "log2": f"The derivative of log2 at 0 is infinite: {AT_ZERO} before it.",
    "xlogy": f"The derivative of xlogy at 0 is infinite: {AT_ZERO} before it.",
    "div": "The derivative of a division by 0 is infinite: add an epsilon to the divisor.",
    "reciprocal": "The derivative of 1/x at 0 is infinite: add an epsilon to x.",
    "acos": "The derivative of acos at -1 and 1 is infinite: clamp(-1 + 1e-6, 1 - 1e-6) before it.",
    "asin": "The derivative of asin at -1 and 1 is infinite: clamp(-1 + 1e-6, 1 - 1e-6) before it.",
    "acosh": "The derivative of acosh at 1 is infinite: clamp(min=1 + 1e-6) before it.",
    "atanh": (
        "The derivative of atanh at -1 and 1 is infinite: clamp(-1 + 1e-6, 1 - 1e-6) before it."
    ),
    "logit": "The derivative of logit at 0 and 1 is infinite: torch.logit(x, eps=1e-6).",
    "linalg_svd": (
        "The derivative of an SVD with equal singular values is 0/0: add a small random matrix."
    ),
    "linalg_eigh": (
        "The derivative of eigenvectors with equal eigenvalues is 0/0: add a small random "
        "diagonal matrix."
    ),
}


@dataclass(frozen=True)
class Seen:
    """An operation that gave the first inf or NaN of a pass.

    Attributes:
        op: its name, without an underscore at the end.
        dtype: the dtype of its result.
        in_autocast: whether a region of autocast was open and on.
        scaled: whether the loss is scaled.
        finite_in_fp32: whether the same operation on the same numbers is finite in FP32; None: it
            could not be repeated.
    """

    op: str
    dtype: torch.dtype
    in_autocast: bool
    scaled: bool
    finite_in_fp32: bool | None


def in_forward(seen: Seen) -> str:
    """Return what to do about an inf or NaN in the forward pass."""
    domain = DOMAINS.get(seen.op)
    if seen.dtype not in HALVES:
        if domain is not None:
            return domain
        return "Check what enters this line: it is FP32 already, so no format repairs it."
    if seen.finite_in_fp32 is False and domain is not None:
        # a masked row is one in every format, whatever was rounded before
        if "softmax" in seen.op:
            return domain
        return (
            f"{domain} The numbers were rounded to {_name(seen.dtype)} before: cast them "
            "by .float() where they are computed, so that 1e-8 is not 0, and 0.9999 is "
            "not 1."
        )
    if seen.op in PRODUCTS and seen.in_autocast:
        return (
            "Make the operands smaller before the product (q * scale before q @ k); or "
            "compute it in FP32: `with torch.autocast(device_type, enabled=False):` and "
            ".float() on both operands, since autocast casts .float() alone back."
        )
    if seen.op in PRODUCTS:
        return (
            "Compute this product in FP32, with .float() on both operands; or make them "
            "smaller before it."
        )
    if seen.op in ("exp", "expm1", "exp2"):
        return "Use torch.softmax, log_softmax or logsumexp, in FP32: `.float()` before this line."
    return "Compute this place in FP32: `.float()` on what enters this line."


def of_derivative(seen: Seen, node: str) -> str:
    """Return what to do about an inf or NaN in the backward pass, in the derivative of `node`."""
    if seen.dtype not in HALVES:
        if node in DERIVATIVES:
            return DERIVATIVES[node]
        return (
            "It is FP32 already, so no format repairs it: find the operation whose "
            "derivative is infinite there, with torch.autograd.set_detect_anomaly(True)."
        )
    if node in DERIVATIVES and seen.finite_in_fp32 is False:
        return f"{DERIVATIVES[node]} An epsilon of 1e-8 is 0 in FP16: compute it in FP32."
    if seen.scaled:
        return (
            "Compute this place in FP32, so that its gradient is FP32, too: .float() "
            f"before `{node}`, and autocast(enabled=False) around it if it is a product. "
            "Or begin with a smaller scale."
        )
    return "Scale the loss (GradScaler), which skips such steps; or compute this place in FP32."


def finite_in_fp32(func: OpOverload, args: Any, kwargs: Any) -> bool | None:
    """Return whether an operation is finite on the same inputs in FP32.

    It is None if the operation works in place, has no FP32 kernel, or returns no numbers.
    """
    if func._schema.is_mutable:
        return None
    wide_args, wide_kwargs = tree_map_only(Tensor, _wide, (args, kwargs))
    wide_kwargs = {
        name: torch.float32 if value in HALVES else value for name, value in wide_kwargs.items()
    }
    try:
        with torch.no_grad():
            results = func(*wide_args, **wide_kwargs)
    except (RuntimeError, TypeError, NotImplementedError):
        return None
    listed = results if isinstance(results, tuple | list) else [results]
    tensors = [t for t in listed if isinstance(t, Tensor) and t.is_floating_point()]
    if not tensors:
        return None
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in HALVES else tensor


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
