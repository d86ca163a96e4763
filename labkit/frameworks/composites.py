"""Functions that torch composes in C++ from operations on autocast's lists, written in Python.

CUDA's autocast casts at each of the operations inside; a Python mode sees only the whole call. For
most functions the result is the same. Of those that differ:

- `cross_entropy` calls `log_softmax` with the dtype of the logits. Autocast respects a dtype that
  is named, so FP16 logits get an FP16 `log_softmax`, although torch's documentation lists
  `cross_entropy` among the operations that run in FP32. The loss is FP32, made of log-probabilities
  that were rounded to FP16. `labkit.amp.autocast` keeps FP32.
- `pairwise_distance` subtracts in the dtype of its inputs, and takes the norm of the difference in
  FP32.
- `cov`, `corrcoef`, `matrix_power`, `pinv` and `affine_grid` end in a matrix product, which is
  half.
- `inner` ends in `tensordot`, which promotes operands of two dtypes.
- `trapezoid` ends in `sum` and `cumulative_trapezoid` in `cumsum`, which run in FP32.

Invariant: each function returns the dtypes and, on a GPU, the bits of torch's autocast("cuda"), but
for `pinv`. The gradient of a higher `matrix_power` may differ in FP16's last bit: torch adds its
terms in another order.

Source: ATen/native, torch 2.13: LossNLL.cpp, Distance.cpp, BinaryOps.cpp, UnaryOps.cpp,
Correlation.cpp, LinearAlgebra.cpp, AffineGridGenerator.cpp, Integration.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from labkit.modes import body_of

# torch's at::Reduction
_NONE = 0
_MEAN = 1
_SUM = 2
# Any, since the stubs of torch have strings for reductions, which are numbers in C++
_nn: Any = torch._C._nn


def cross_entropy_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """Return the cross entropy of logits and classes, or probabilities if the shapes are equal."""
    dim = 0 if input.dim() == 1 else 1
    soft = input.shape == target.shape
    invalid_target = soft and (not target.is_floating_point() or ignore_index >= 0)
    if label_smoothing > 1 or invalid_target:
        # torch raises its own errors for these arguments
        with torch._C.DisableTorchFunction():
            return _nn.cross_entropy_loss(
                input, target, weight, reduction, ignore_index, label_smoothing
            )
    log_probabilities = torch.log_softmax(input, dim, dtype=input.dtype)
    classes = input.shape[dim]
    per_class = None
    if weight is not None:
        shape = [1] * input.dim()
        shape[dim] = -1
        per_class = weight.view(shape)
    if soft:
        if label_smoothing > 0:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        terms = log_probabilities * target
        if per_class is not None:
            terms = terms * per_class
        if reduction == _NONE:
            return -terms.sum(dim)
        if reduction == _SUM:
            return -terms.sum()
        examples = math.prod(input.shape) // classes if classes else 0
        return -terms.sum() / examples
    nll = _nn.nll_loss_nd(log_probabilities, target, weight, reduction, ignore_index)
    # torch ignores a negative one, and NaN
    if not label_smoothing > 0:
        return nll
    # label smoothing adds the mean over all classes, except for ignored targets
    ignored = target == ignore_index
    weighted = log_probabilities if per_class is None else log_probabilities * per_class
    smooth = (-weighted.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == _MEAN:
        if weight is None:
            total = (~ignored).sum()
        else:
            counted = target.masked_select(~ignored).flatten()
            total = weight.gather(0, counted).sum()
        smooth = smooth.sum() / total
    elif reduction == _SUM:
        smooth = smooth.sum()
    return (1 - label_smoothing) * nll + smooth * (label_smoothing / classes)


def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """Return the norm of the differences of two batches of vectors."""
    distance: Tensor = torch.norm(
        x1 - x2 + eps, p, dim=max(x1.dim(), x2.dim()) - 1, keepdim=keepdim
    )
    return distance


def ldexp(input: Tensor, other: Tensor) -> Tensor:
    """Return `input * 2 ** other`."""
    return input * torch.pow(2.0, other)


def mvlgamma(input: Tensor, p: int) -> Tensor:
    """Return the logarithm of the multivariate gamma function of dimension p."""
    if p < 1:
        # torch raises its own error
        with torch._C.DisableTorchFunction():
            return torch.mvlgamma(input, p)
    dtype = input.dtype if input.is_floating_point() else torch.get_default_dtype()
    halves = torch.arange(-p / 2 + 0.5, 0.5, 0.5, dtype=dtype, device=input.device)
    return (halves + input.unsqueeze(-1)).lgamma().sum(-1).add(p * (p - 1) * math.log(math.pi) / 4)


def cov(
    input: Tensor,
    *,
    correction: int = 1,
    fweights: Tensor | None = None,
    aweights: Tensor | None = None,
) -> Tensor:
    """Return the covariance matrix of variables, which are the rows of `input`."""
    # torch raises its own errors for wrong arguments, and warns of too few observations
    with torch._C.DisableTorchFunction():
        own = torch.cov(input, correction=correction, fweights=fweights, aweights=aweights)
    if not input.is_floating_point() or input.dim() > 2:
        return own
    variables = input.reshape(1, -1) if input.dim() < 2 else input
    weights = fweights
    if aweights is not None:
        weights = aweights if weights is None else weights * aweights
    weighted = variables if weights is None else variables * weights
    total: Tensor = torch.tensor(variables.size(1)) if weights is None else weights.sum()
    if weights is None or aweights is None or correction == 0:
        norm = total - correction
    else:
        norm = total - correction * (weights * aweights).sum() / total
    centred = variables - (weighted.sum(1) / total).unsqueeze(1)
    if norm.item() <= 0:
        norm = torch.zeros_like(norm)
    other = centred if weights is None else centred * weights
    product = torch.mm(centred, other.t())
    return torch.true_divide(product, norm.to(product.device)).squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """Return the matrix of correlation coefficients of variables, which are the rows of `input`."""
    if input.is_complex():
        with torch._C.DisableTorchFunction():
            return torch.corrcoef(input)
    matrix = cov(input)
    if matrix.dim() == 0:
        return matrix / matrix
    deviation = matrix.diag().sqrt()
    matrix = matrix / deviation.view(-1, 1)
    matrix = matrix / deviation.view(1, -1)
    return matrix.clip(-1, 1)


def matrix_power(input: Tensor, n: int) -> Tensor:
    """Return the n-th power of square matrices, by repeated squaring."""
    is_square = input.dim() >= 2 and input.size(-1) == input.size(-2)
    # torch raises its own errors
    if not is_square or not input.is_floating_point() or n in (-1, 0, 1):
        with torch._C.DisableTorchFunction():
            whole: Tensor = torch.linalg.matrix_power(input, n)
            return whole
    if n < 0:
        return matrix_power(torch.linalg.inv(input), -n)
    if n == 3:
        return _product(_product(input, input), input)
    # invariant: result * square^n is the power, with an absent result for the identity
    square = input
    result: Tensor | None = None
    while n:
        if n % 2:
            result = square if result is None else _product(result, square)
        n //= 2
        if n:
            square = _product(square, square)
    assert result is not None
    return result


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return products of square matrices, by the operations that torch's matmul calls.

    Batches go to bmm as views. Autocast does not cache the casts of views, so their gradients are
    added in FP32.
    """
    if a.dim() == 2:
        return torch.mm(a, b)
    # as torch's matmul does: expand to the shape of the batch, then flatten it
    flat_a = a.expand(a.shape).flatten(0, -3)
    flat_b = b.expand(b.shape).flatten(0, -3)
    return torch.bmm(flat_a, flat_b).view(a.shape)


def pinv(input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return the pseudoinverse of matrices [..., m, n], with torch's own gradient.

    torch ends in a product of half matrices; here the FP32 result is rounded once.
    """
    with torch._C.DisableTorchFunction():
        inverse: Tensor = torch.linalg.pinv(input, *args, **kwargs)
    if not inverse.is_floating_point():
        return inverse
    one = torch.eye(inverse.size(-1), dtype=inverse.dtype, device=inverse.device)
    rounded: Tensor = torch.matmul(inverse, one)
    return rounded


def inner(input: Tensor, other: Tensor) -> Any:
    """Return the sums of products over the last dimension of both operands."""
    if input.dim() == 0 or other.dim() == 0:
        return input * other
    if input.size(-1) != other.size(-1):
        raise RuntimeError(
            "inner() the last dimension must match on both input tensors but got shapes "
            f"{list(input.shape)} and {list(other.shape)}"
        )
    return torch.tensordot(input, other, [[-1], [-1]])


def affine_grid(theta: Tensor, size: Any, align_corners: bool) -> Tensor:
    """Return the sampling grid of affine maps `theta` [n, 2, 3] or [n, 3, 4]."""
    rows = theta.size(1)
    identity = torch.eye(rows, rows + 1, dtype=theta.dtype, device=theta.device)
    with torch._C.DisableTorchFunction():
        # the grid of the identity map has the coordinates themselves
        places = torch.affine_grid_generator(
            identity.expand(theta.size(0), -1, -1), size, align_corners
        )
    # homogeneous coordinates
    points = torch.cat([places, torch.ones_like(places[..., :1])], -1)
    flat = points.flatten(1, -2)
    return torch.bmm(flat, theta.transpose(1, 2)).view(places.shape)


def trapezoid(y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1) -> Any:
    """Return integrals along a dimension by the trapezoidal rule."""
    if _is_refused(y, x, dim):
        with torch._C.DisableTorchFunction():
            return torch.trapezoid(y, x, dim=dim) if x is not None else torch.trapezoid(y, dim=dim)
    if y.size(dim) == 0:
        return y.sum(dim).to(y.dtype)
    if x is None:
        ends = (y.select(dim, 0) + y.select(dim, -1)) * 0.5
        return (y.sum(dim) - ends) * dx
    return (_heights(y, dim) * _widths(y, x, dim)).sum(dim) / 2.0


def cumulative_trapezoid(
    y: Tensor, x: Tensor | None = None, *, dx: float = 1.0, dim: int = -1
) -> Any:
    """Return running integrals along a dimension by the trapezoidal rule."""
    if y.size(dim) == 0 or _is_refused(y, x, dim):
        with torch._C.DisableTorchFunction():
            if x is not None:
                return torch.cumulative_trapezoid(y, x, dim=dim)
            return torch.cumulative_trapezoid(y, dim=dim)
    if x is None:
        return (dx / 2.0 * _heights(y, dim)).cumsum(dim)
    return (_heights(y, dim) * _widths(y, x, dim)).cumsum(dim) / 2.0


def _is_refused(y: Tensor, x: Tensor | None, dim: int) -> bool:
    """Return whether torch raises an error for an integrand and the row of its coordinates."""
    is_short = x is not None and x.dim() == 1 and x.size(0) != y.size(dim)
    return is_short or y.dtype is torch.bool or (x is not None and x.dtype is torch.bool)


def _heights(y: Tensor, dim: int) -> Tensor:
    count = y.size(dim) - 1
    return y.narrow(dim, 0, count) + y.narrow(dim, 1, count)


def _widths(y: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return the distances between neighbours in x.

    Args:
        y: the values of the integrand.
        x: their coordinates, in the shape of y, of its last dimensions, or one row for all of y.
        dim: the dimension of the integral.
    """
    # torch counts a negative one from the end of y
    dim = dim % y.dim()
    if x.dim() == 1:
        shape = [1] * y.dim()
        shape[dim] = x.size(0)
        x = x.view(shape)
    elif x.dim() < y.dim():
        x = x.view([1] * (y.dim() - x.dim()) + list(x.shape))
    count = x.size(dim) - 1
    return x.narrow(dim, 1, count) - x.narrow(dim, 0, count)


def _cross_entropy(*args: Any, **kwargs: Any) -> Any:
    return body_of(F.cross_entropy)(*args, **kwargs)


def _affine_grid(*args: Any, **kwargs: Any) -> Any:
    return body_of(F.affine_grid)(*args, **kwargs)


# name of torch's function -> the function in Python
COMPOSITES: dict[str, Callable[..., Any]] = {
    "cross_entropy": _cross_entropy,
    "cross_entropy_loss": cross_entropy_loss,
    "pairwise_distance": pairwise_distance,
    "ldexp": ldexp,
    "mvlgamma": mvlgamma,
    "special_multigammaln": mvlgamma,
    "cov": cov,
    "corrcoef": corrcoef,
    "matrix_power": matrix_power,
    "linalg_matrix_power": matrix_power,
    "linalg_pinv": pinv,
    "inner": inner,
    "affine_grid": _affine_grid,
    "affine_grid_generator": affine_grid,
    "trapezoid": trapezoid,
    "trapz": trapezoid,
    "cumulative_trapezoid": cumulative_trapezoid,
}
