"""Softmax, layer norm and RMS norm: exact values and error bounds.

Each is a sum, some functions and a few products; u is the unit roundoff of the arithmetic.
Functions (exp, reciprocal square root, division) have a relative error of 4 u, as CUDA's fast ones
document. The exponential of d has another 4 u |d|, for the subtraction, the change of base and
`__expf`.

- softmax, exp(x - m) / sum exp(x - m): in any order, also online, where each block of 16 terms or
  more may scale the sum again (6 u).
- layer norm, (x - mean) / sqrt(var + eps) * w + b, also as x * (rstd w) + (b - mean rstd w). The
  variance is that of deviations, or Welford's, whose relative error is K u rms(x) / sigma (here
  times 4, for merged blocks). The mean of squares minus the square of the mean has another error,
  which a large mean shows.
- RMS norm, x / sqrt(mean(x^2) + eps) * w.

Where the error of the variance may reach var + eps, the bound is infinite: such an element cannot
be judged.

Source: CUDA C++ Programming Guide, mathematical functions; Chan, Golub and LeVeque 1983
    (variances).
"""

from __future__ import annotations

import math

import numpy as np

from labkit.formats import BF16, FP16, FP32, Format, round_to
from labkit.formats.arguments import require_kind
from labkit.testing import orders
from labkit.testing.bound import Arithmetic, Floats, growth_of, sum_error
from labkit.testing.operation import Array, Operation, Places, dimension_of, operand, values_of

# The relative error of a function, in unit roundoffs.
FUNCTION = 4.0
# How many of these right kernels reach.
REACHED = 3.0
# Other epsilons that libraries use.
OTHER_EPS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)
# Terms of the smallest block of an online softmax.
BLOCK = 16


def softmax(x: Array, dim: int = -1) -> Operation:
    """Return the softmax of x along a dimension; -inf is a masked place.

    Raises:
        TypeError: x holds no floats, or FP64.
        ValueError: `dim` is out of range.

    >>> softmax(np.zeros((1, 4), np.float32)).value.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    values, format = operand(x, "x")
    dim = dimension_of(dim, values.ndim, dim)
    # a number is a row of one
    rows = _Softmax(np.atleast_1d(values), dim)
    return Operation(
        f"softmax {list(values.shape)}",
        rows.in_place(rows.value).reshape(values.shape),
        rows.terms,
        (format,),
        lambda how: rows.in_place(rows.error(how)).reshape(values.shape),
        rows.replay,
        others=rows.others,
    )


class _Softmax:
    """The softmax along a dimension, computed with this dimension last.

    Attributes:
        exponents: x - max(x) [..., terms].
        parts: their exponentials.
        total: sums of the exponentials [..., 1].
        value: the softmax.
    """

    def __init__(self, values: Floats, dim: int) -> None:
        self.dim = dim
        self.shape = values.shape
        rows = np.moveaxis(values, dim, -1)
        self.terms = rows.shape[-1]
        with np.errstate(invalid="ignore", over="ignore"):
            masked = rows == -np.inf
            exponents = rows - rows.max(-1, keepdims=True, initial=-np.inf)
            exponents = np.where(masked, -np.inf, exponents)
            # a row of masked places has no softmax
            self.exponents = np.where(masked.all(-1, keepdims=True), np.nan, exponents)
            self.parts = np.exp(self.exponents)
            self.total = self.parts.sum(-1, keepdims=True)
            self.value = self.parts / self.total

    def in_place(self, values: Floats) -> Floats:
        """Return values with the dimension where it is in x."""
        return np.ascontiguousarray(np.moveaxis(values, -1, self.dim))

    def error(self, how: Arithmetic) -> Floats:
        u = how.unit
        least = _least(how)
        distance = np.where(np.isfinite(self.exponents), np.abs(self.exponents), 0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            # relative errors of the exponentials, and of their sum
            of_parts = np.expm1(np.minimum(u * FUNCTION * (1.01 + distance), 50.0))
            of_terms = (self.parts * of_parts).sum(-1, keepdims=True) / self.total
            of_terms = of_terms + self.terms * least / self.total
            steps = max(0, self.terms - 1) + 6 * math.ceil(self.terms / BLOCK)
            of_total = (1 + of_terms) * (1 + growth_of(steps, u)) - 1
            # the sum may be too small by this factor; if it may be 0, nothing is known
            remaining = np.where(of_total < 1, 1 - of_total, np.nan)
            of_quotient = (1 + of_parts) * (1 + FUNCTION * u) / remaining - 1
            of_quotient = of_quotient + (self.terms + distance + 8) * 2.0**-52
            bound = self.value * of_quotient + 4 * least
            unknown = np.isnan(remaining) | (self.terms > how.format.max)
            return np.where(unknown, np.inf, bound)

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        row, column = self._rows_of(places)
        rounded = orders.rounding_of(how)
        parts = rounded(np.exp(rounded(self.exponents.reshape(-1, self.terms)[row].T)))
        numerators = parts[column, np.arange(len(row))]
        totals = orders.sums(np.asarray(parts, np.float64), None, how)
        return _other_functions(np.stack([numerators / total for total in totals]), how)

    def others(self, places: Places) -> dict[str, Floats]:
        row, column = self._rows_of(places)
        exponents = self.exponents.reshape(-1, self.terms)[row]
        parts = self.parts.reshape(-1, self.terms)[row]
        here = np.arange(len(row)), column
        totals = parts.sum(1)
        with np.errstate(all="ignore"):
            return {
                "powers of 2 in place of e": np.exp2(exponents[here]) / np.exp2(exponents).sum(1),
                "the first term of the sum is missing": parts[here] / (totals - parts[:, 0]),
                "the last term of the sum is missing": parts[here] / (totals - parts[:, -1]),
            }

    def _rows_of(self, places: Places) -> tuple[Places, Places]:
        """Return row and column of places in the flattened result."""
        index = list(np.unravel_index(places, self.shape))
        column = index.pop(self.dim)
        rest = self.shape[: self.dim] + self.shape[self.dim + 1 :]
        row = np.ravel_multi_index(index, rest) if rest else np.zeros_like(column)
        return row, column


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Operation:
    """Return the layer norm of x over its last dimension.

    >>> layer_norm(np.float32([[-1.0, 1.0]]), eps=0.0).value.tolist()
    [[-1.0, 1.0]]
    """
    values, format = _normed(x, eps)
    norm = _LayerNorm(
        values,
        _affine(weight, "weight", values, 1.0),
        _affine(bias, "bias", values, 0.0),
        eps,
    )
    return Operation(
        f"layer_norm {list(values.shape)}",
        norm.value,
        norm.terms,
        (format,),
        norm.error,
        norm.replay,
        others=norm.others,
        noisy=norm.noisy,
    )


class _LayerNorm:
    """A layer norm over the last dimension.

    Attributes:
        values: x [..., terms].
        mean: means of the rows [..., 1].
        deviations: x - mean.
        variance: variances of the rows [..., 1].
        rstd: 1 / sqrt(variance + eps).
        value: the layer norm.
    """

    def __init__(self, values: Floats, weight: Floats, bias: Floats, eps: float) -> None:
        self.values = values
        self.weight = weight
        self.bias = bias
        self.eps = eps
        self.terms = values.shape[-1]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self.mean = values.mean(-1, keepdims=True)
            self.deviations = values - self.mean
            self.variance = (self.deviations * self.deviations).mean(-1, keepdims=True)
            self.rstd = 1 / np.sqrt(self.variance + eps)
            self.value = self.deviations * self.rstd * weight + bias

    def error(self, how: Arithmetic) -> Floats:
        u = how.unit
        least = _least(how)
        weight = np.abs(self.weight)
        deviations = np.abs(self.deviations)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            magnitudes = np.abs(self.values)
            size = magnitudes.sum(-1, keepdims=True)
            of_mean = sum_error(how, self.terms, size, extra=2, gain=float(self.terms))
            of_mean = of_mean / self.terms
            of_deviations = of_mean + u * (deviations + of_mean)
            of_rstd = self._rstd_error(how, of_deviations)
            factor = self.rstd * weight * (1 + of_rstd)
            # as the deviation times rstd times the weight
            bound = of_deviations * factor + deviations * self.rstd * weight * of_rstd
            bound = bound * (1 + 4 * u)
            # as x * (rstd * weight) + (bias - mean * rstd * weight), each part is rounded
            parts = (magnitudes + np.abs(self.mean) + of_mean) * factor
            bound = bound + 4 * u * (parts + np.abs(self.bias) + np.abs(self.value))
            return np.where(np.isnan(bound), np.inf, bound + 4 * least * (1 + factor))

    def _rstd_error(self, how: Arithmetic, of_deviations: Floats) -> Floats:
        """Return the relative error of 1 / sqrt(variance + eps).

        Args:
            how: the arithmetic.
            of_deviations: errors of x - mean.
        """
        u = how.unit
        growth = growth_of(self.terms + 4, u)
        squares = (self.values * self.values).mean(-1, keepdims=True)
        of_squares = 2 * np.abs(self.deviations) * of_deviations + of_deviations**2
        of_variance = of_squares.mean(-1, keepdims=True) * (1 + growth)
        # Welford's method has the error K u rms(x) sigma, here times 4 for merged blocks
        of_variance += (
            growth * self.variance
            + 4 * growth * np.sqrt(squares * self.variance)
            + self.terms * _least(how)
        )
        overflows = squares * self.terms > how.format.max
        of_variance = np.where(overflows, np.inf, of_variance)
        shifted = self.variance + self.eps
        return _rstd_error(of_variance + 2 * u * shifted, shifted, u)

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        row = places // self.terms
        column = places % self.terms
        rows = self.values.reshape(-1, self.terms)[row].T
        rounded = orders.rounding_of(how)
        here = column, np.arange(len(places))
        weight = self.weight[column]
        bias = self.bias[column]
        found: list[Floats] = []
        names = orders.names_of_orders(self.terms)
        for name, total in zip(names, orders.sums(rows, None, how), strict=False):
            mean = rounded(total / self.terms)
            deviations = np.asarray(rounded(rows - np.asarray(mean, np.float64)), np.float64)
            squares = next(orders.sums(deviations, deviations, how, only=name)) / self.terms
            rstd = np.asarray(rounded(1 / np.sqrt(squares + self.eps)), np.float64)
            if len(found) % 2:
                # x * scale + shift
                scale = rounded(rstd * weight)
                shift = rounded(bias - np.asarray(rounded(mean * scale), np.float64))
                found.append(np.asarray(rounded(rows[here] * scale) + shift, np.float64))
            else:
                normed = rounded(rounded(deviations[here] * rstd) * weight)
                found.append(np.asarray(normed, np.float64) + bias)
        return _other_functions(np.stack(found), how)

    def others(self, places: Places) -> dict[str, Floats]:
        row = places // self.terms
        column = places % self.terms
        variance = self.variance.reshape(-1)[row]
        with np.errstate(all="ignore"):
            unbiased = variance * self.terms / (self.terms - 1) + self.eps
            return _other_roots(
                self.deviations.reshape(-1)[places],
                variance,
                self.eps,
                self.weight[column],
                self.bias[column],
                {"the variance is divided by n - 1": unbiased},
            )

    def noisy(self, how: Arithmetic, places: Places) -> dict[str, Floats]:
        row = places // self.terms
        column = places % self.terms
        rows = self.values.reshape(-1, self.terms)[row].T
        deviations = self.deviations.reshape(-1)[places]
        rounded = orders.rounding_of(how)
        found = []
        with np.errstate(all="ignore"):
            totals = orders.sums(rows, None, how)
            totals_of_squares = orders.sums(rows, rows, how)
            for total, squares in zip(totals, totals_of_squares, strict=False):
                mean = np.asarray(rounded(total / self.terms), np.float64)
                square_of_mean = np.asarray(rounded(mean * mean), np.float64)
                mean_of_squares = np.asarray(rounded(squares / self.terms), np.float64)
                variance = np.asarray(rounded(mean_of_squares - square_of_mean))
                normed = deviations / np.sqrt(variance + self.eps)
                found.append(normed * self.weight[column] + self.bias[column])
        name = "the variance is the mean of squares minus the square of the mean"
        return {name: np.stack(found)}


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Operation:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    >>> rms_norm(np.float32([[2.0, 2.0]]), eps=0.0).value.tolist()
    [[1.0, 1.0]]
    """
    values, format = _normed(x, eps)
    norm = _RmsNorm(values, _affine(weight, "weight", values, 1.0), eps)
    return Operation(
        f"rms_norm {list(values.shape)}",
        norm.value,
        norm.terms,
        (format,),
        norm.error,
        norm.replay,
        others=norm.others,
    )


class _RmsNorm:
    """An RMS norm over the last dimension.

    Attributes:
        values: x [..., terms].
        squares: means of the squares of the rows [..., 1].
        value: the RMS norm.
    """

    def __init__(self, values: Floats, weight: Floats, eps: float) -> None:
        self.values = values
        self.weight = weight
        self.eps = eps
        self.terms = values.shape[-1]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            self.squares = (values * values).mean(-1, keepdims=True)
            self.value = values / np.sqrt(self.squares + eps) * weight

    def error(self, how: Arithmetic) -> Floats:
        u = how.unit
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            sums = self.squares * self.terms
            of_squares = sum_error(how, self.terms, sums, extra=3, gain=float(self.terms))
            of_squares = of_squares / self.terms
            shifted = self.squares + self.eps
            of_root = _rstd_error(of_squares + 2 * u * shifted, shifted, u)
            relative = (1 + of_root) * (1 + 4 * u) - 1 + 2.0**-48
            bound = np.abs(self.value) * relative
            bound = bound + 4 * _least(how) * (1 + np.abs(self.weight))
            return np.where(np.isnan(bound), np.inf, bound)

    def replay(self, how: Arithmetic, places: Places) -> Floats:
        row = places // self.terms
        column = places % self.terms
        rows = self.values.reshape(-1, self.terms)[row].T
        rounded = orders.rounding_of(how)
        numerators = rows[column, np.arange(len(places))]
        found = []
        for total in orders.sums(rows, rows, how):
            root = np.asarray(rounded(1 / np.sqrt(total / self.terms + self.eps)), np.float64)
            normed = np.asarray(rounded(numerators * root), np.float64)
            found.append(normed * self.weight[column])
        return _other_functions(np.stack(found), how)

    def others(self, places: Places) -> dict[str, Floats]:
        row = places // self.terms
        column = places % self.terms
        squares = self.squares.reshape(-1)[row]
        with np.errstate(all="ignore"):
            means = self.values.mean(-1).reshape(-1)[row]
            return _other_roots(
                self.values.reshape(-1)[places],
                squares,
                self.eps,
                self.weight[column],
                np.zeros(()),
                {"the variance in place of the mean of squares": squares - means**2 + self.eps},
            )


def _normed(x: Array, eps: float) -> tuple[Floats, Format]:
    """Return the operand of a norm over its last dimension, and its format."""
    require_kind(eps, float, "eps")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps: expected a number from 0 on, got {eps}")
    values, format = operand(x, "x")
    if not values.ndim or not values.shape[-1]:
        raise ValueError(
            f"expected x[..., K] with a number or more to normalize, got {list(values.shape)}"
        )
    return values, format


def _other_roots(
    x: Floats, squares: Floats, eps: float, w: Floats, b: Floats, more: dict[str, Floats]
) -> dict[str, Floats]:
    """Return variants of x / sqrt(squares + eps) * w + b.

    They have another root, lack w or b, or round on the way.

    Args:
        x: numerators.
        squares: arguments of the root, without eps.
        eps: number that is to be added.
        w: weights.
        b: biases.
        more: other arguments of the root, with eps, by name.
    """
    roots = {"eps is missing": squares} | more
    roots |= {
        f"eps is {each:g} instead of {eps:g}": squares + each for each in OTHER_EPS if each != eps
    }
    found = {name: x / np.sqrt(each) * w + b for name, each in roots.items()}
    found["eps is added outside of the root"] = x / (np.sqrt(squares) + eps) * w + b
    normed = x / np.sqrt(squares + eps)
    found["the weight is missing"] = normed + b
    found["1 is added to the weight"] = normed * (1 + w) + b
    found["the bias is missing"] = normed * w
    for format in (FP16, BF16):
        narrow = np.asarray(round_to(normed, format), np.float64)
        found[f"the values are rounded to {format.name} before the weight"] = narrow * w + b
    return found


def _other_functions(replays: Floats, how: Arithmetic) -> Floats:
    """Return replays, and those of devices whose functions are a little larger or smaller."""
    return np.concatenate([replays * (1 + units * how.unit) for units in (0.0, REACHED, -REACHED)])


def _least(how: Arithmetic) -> float:
    """Return the largest error by underflow: fast functions flush FP32's subnormals."""
    return FP32.smallest_normal if how.format == FP32 else how.format.smallest_subnormal


def _rstd_error(error: Floats, value: Floats, u: float) -> Floats:
    """Return the relative error of 1 / sqrt(value), whose argument is wrong by `error`."""
    left = 1 - error / value
    return np.where(
        left > 0, 1 / np.sqrt(np.where(left > 0, left, 1.0)) * (1 + FUNCTION * u) - 1, np.inf
    )


def _affine(array: Array | None, name: str, x: Floats, default: float) -> Floats:
    if array is None:
        return np.full(x.shape[-1], default)
    values, _ = values_of(array, name)
    if values.shape != x.shape[-1:]:
        raise ValueError(f"expected {name} of shape {list(x.shape[-1:])}, got {list(values.shape)}")
    return values
