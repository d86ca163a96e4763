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
from labkit.testing.operations import Array, Operation, Places, dimension_of, operand, values_of

FUNCTION = 4.0  # relative error of a function, in unit roundoffs
REACHED = 3.0  # of these, by right kernels
OTHER_EPS = (1e-3, 1e-5, 1e-6, 1e-8, 1e-12)  # that libraries use
BLOCK = 16  # terms of the smallest block of an online softmax


def softmax(x: Array, dim: int = -1) -> Operation:
    """Return the softmax of x along a dimension; -inf is a masked place.

    Raises:
        TypeError: x holds no floats, or FP64.
        ValueError: x has no such dimension.

    >>> softmax(np.zeros((1, 4), np.float32)).value.tolist()
    [[0.25, 0.25, 0.25, 0.25]]
    """
    values, format = operand(x, "x")
    dim = dimension_of(dim, values.ndim, dim)
    # a number is a row of one
    shape = values.shape
    values = np.atleast_1d(values)
    rows = np.moveaxis(values, dim, -1)
    terms = rows.shape[-1]
    moved = rows.shape
    with np.errstate(invalid="ignore", over="ignore"):
        largest = rows.max(-1, keepdims=True, initial=-np.inf)
        below = np.where(rows == -np.inf, -np.inf, rows - largest)
        below = np.where((rows == -np.inf).all(-1, keepdims=True), np.nan, below)
        parts = np.exp(below)
        total = parts.sum(-1, keepdims=True)
        value = parts / total
    far = np.where(np.isfinite(below), np.abs(below), 0.0)

    def error(how: Arithmetic) -> Floats:
        u = how.unit
        least = _least(how)
        with np.errstate(over="ignore", invalid="ignore"):
            own = np.expm1(np.minimum(u * FUNCTION * (1.01 + far), 50.0))
            wrong = (parts * own).sum(-1, keepdims=True) / total + terms * least / total
            steps = max(0, terms - 1) + 6 * math.ceil(terms / BLOCK)
            sums = (1 + wrong) * (1 + growth_of(steps, u)) - 1
            room = np.where(sums < 1, 1 - sums, np.nan)
            relative = (1 + own) * (1 + FUNCTION * u) / room - 1 + (terms + far + 8) * 2.0**-52
            bound = np.where(
                np.isnan(room) | (terms > how.format.max),
                np.inf,
                parts / total * relative + 4 * least,
            )
        return np.moveaxis(bound, -1, dim).reshape(shape)

    def replay(how: Arithmetic, places: Places) -> Floats:
        at = _rows_of(places, values.shape, moved, dim)
        rounded = orders.rounding_of(how)
        of_rows = rounded(np.exp(rounded(below.reshape(-1, terms)[at // max(terms, 1)].T)))
        own = of_rows[at % max(terms, 1), np.arange(len(at))]
        found = [own / total for total in orders.sums(np.asarray(of_rows, np.float64), None, how)]
        return _other_functions(np.stack(found), how)

    def others(places: Places) -> dict[str, Floats]:
        at = _rows_of(places, values.shape, moved, dim)
        row = at // terms
        column = at % terms
        of_rows = parts.reshape(-1, terms)[row]
        own = below.reshape(-1, terms)[row, column]
        exponentials = of_rows[np.arange(len(at)), column]
        sums = of_rows.sum(1)
        with np.errstate(all="ignore"):
            twos = np.exp2(below.reshape(-1, terms)[row]).sum(1)
            return {
                "powers of 2 in place of e": np.exp2(own) / twos,
                "the first term of the sum is missing": exponentials / (sums - of_rows[:, 0]),
                "the last term of the sum is missing": exponentials / (sums - of_rows[:, -1]),
            }

    name = f"softmax {list(shape)}"
    value = np.moveaxis(value, -1, dim)
    return Operation(
        name,
        np.ascontiguousarray(value).reshape(shape),
        terms,
        (format,),
        error,
        replay,
        others=others,
    )


def layer_norm(
    x: Array, weight: Array | None = None, bias: Array | None = None, eps: float = 1e-5
) -> Operation:
    """Return the layer norm of x over its last dimension.

    >>> layer_norm(np.float32([[-1.0, 1.0]]), eps=0.0).value.tolist()
    [[-1.0, 1.0]]
    """
    values, format = _normed(x, eps)
    w, b = _affine(weight, "weight", values, 1.0), _affine(bias, "bias", values, 0.0)
    terms = values.shape[-1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        centre = values.mean(-1, keepdims=True)
        off = values - centre
        variance = (off * off).mean(-1, keepdims=True)
        rstd = 1 / np.sqrt(variance + eps)
        value = off * rstd * w + b

    def error(how: Arithmetic) -> Floats:
        u = how.unit
        growth = growth_of(terms + 4, how.unit)
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            size = np.abs(values).sum(-1, keepdims=True)
            of_mean = sum_error(how, terms, size, extra=2, gain=float(terms)) / terms
            of_off = of_mean + u * (np.abs(off) + of_mean)
            squares = (values * values).mean(-1, keepdims=True)
            of_variance = (2 * np.abs(off) * of_off + of_off**2).mean(-1, keepdims=True) * (
                1 + growth
            )
            of_variance += (
                growth * variance + 4 * growth * np.sqrt(squares * variance) + terms * _least(how)
            )
            of_variance = np.where(squares * terms > how.format.max, np.inf, of_variance)
            rho = _rstd_error(of_variance + 2 * u * (variance + eps), variance + eps, u)
            scaled = rstd * np.abs(w) * (1 + rho)
            near = (of_off * scaled + np.abs(off) * rstd * np.abs(w) * rho) * (1 + 4 * u)
            bound = near + 4 * u * (
                (np.abs(values) + np.abs(centre) + of_mean) * scaled + np.abs(b) + np.abs(value)
            )
            return np.where(np.isnan(bound), np.inf, bound + 4 * _least(how) * (1 + scaled))

    def replay(how: Arithmetic, places: Places) -> Floats:
        row = places // terms
        column = places % terms
        rows = values.reshape(-1, terms)[row].T
        r = orders.rounding_of(how)
        own = rows[column, np.arange(len(places))]
        found: list[Floats] = []
        for name, total in zip(orders.ORDERS, orders.sums(rows, None, how), strict=False):
            away = np.asarray(r(rows - np.asarray(r(total / terms), np.float64)), np.float64)
            of_square = next(orders.sums(away, away, how, only=name)) / terms
            of_row = np.asarray(r(1 / np.sqrt(of_square + eps)), np.float64)
            if len(found) % 2:  # x * scale + shift
                scale = r(of_row * w[column])
                mean = r(total / terms)
                shift = r(b[column] - np.asarray(r(mean * scale), np.float64))
                found.append(np.asarray(r(own * scale) + shift, np.float64))
            else:
                off = away[column, np.arange(len(places))]
                found.append(np.asarray(r(r(off * of_row) * w[column]), np.float64) + b[column])
        return _other_functions(np.stack(found), how)

    def others(places: Places) -> dict[str, Floats]:
        row = places // terms
        column = places % terms
        own, of_row = off.reshape(-1)[places], variance.reshape(-1)[row]
        with np.errstate(all="ignore"):
            roots = {"the variance is divided by n - 1": of_row * terms / (terms - 1) + eps}
            return _other_roots(own, of_row, eps, w[column], b[column], roots)

    def noisy(how: Arithmetic, places: Places) -> dict[str, Floats]:
        row = places // terms
        column = places % terms
        rows = values.reshape(-1, terms)[row].T
        r = orders.rounding_of(how)
        own = off.reshape(-1)[places]
        found = []
        with np.errstate(all="ignore"):
            sums = zip(orders.sums(rows, None, how), orders.sums(rows, rows, how), strict=False)
            for total, squares in sums:
                mean = np.asarray(r(total / terms), np.float64)
                square = np.asarray(r(mean * mean), np.float64)
                of_row = np.asarray(r(np.asarray(r(squares / terms), np.float64) - square))
                found.append(own / np.sqrt(of_row + eps) * w[column] + b[column])
        name = "the variance is the mean of squares minus the square of the mean"
        return {name: np.stack(found)}

    return Operation(
        f"layer_norm {list(values.shape)}",
        value,
        terms,
        (format,),
        error,
        replay,
        others=others,
        noisy=noisy,
    )


def rms_norm(x: Array, weight: Array | None = None, eps: float = 1e-6) -> Operation:
    """Return x / sqrt(mean(x^2) + eps) * weight over the last dimension.

    >>> rms_norm(np.float32([[2.0, 2.0]]), eps=0.0).value.tolist()
    [[1.0, 1.0]]
    """
    values, format = _normed(x, eps)
    w = _affine(weight, "weight", values, 1.0)
    terms = values.shape[-1]
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        squares = (values * values).mean(-1, keepdims=True)
        value = values / np.sqrt(squares + eps) * w

    def error(how: Arithmetic) -> Floats:
        u = how.unit
        with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
            of_squares = sum_error(how, terms, squares * terms, extra=3, gain=float(terms)) / terms
            rho = _rstd_error(of_squares + 2 * u * (squares + eps), squares + eps, u)
            bound = np.abs(value) * ((1 + rho) * (1 + 4 * u) - 1 + 2.0**-48) + 4 * _least(how) * (
                1 + np.abs(w)
            )
            return np.where(np.isnan(bound), np.inf, bound)

    def replay(how: Arithmetic, places: Places) -> Floats:
        row = places // terms
        column = places % terms
        rows = values.reshape(-1, terms)[row].T
        r = orders.rounding_of(how)
        own = rows[column, np.arange(len(places))]
        found = []
        for total in orders.sums(rows, rows, how):
            scaled = r(own * np.asarray(r(1 / np.sqrt(total / terms + eps)), np.float64))
            found.append(np.asarray(scaled, np.float64) * w[column])
        return _other_functions(np.stack(found), how)

    def others(places: Places) -> dict[str, Floats]:
        row = places // terms
        column = places % terms
        own, of_row = values.reshape(-1)[places], squares.reshape(-1)[row]
        with np.errstate(all="ignore"):
            centred = of_row - values.mean(-1).reshape(-1)[row] ** 2 + eps
            roots = {"the variance in place of the mean of squares": centred}
            return _other_roots(own, of_row, eps, w[column], np.zeros(()), roots)

    return Operation(
        f"rms_norm {list(values.shape)}", value, terms, (format,), error, replay, others=others
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


def _rows_of(places: Places, shape: tuple[int, ...], moved: tuple[int, ...], dim: int) -> Places:
    """Return the places in an array whose dimension `dim` was moved to the end."""
    index = list(np.unravel_index(places, shape))
    index.append(index.pop(dim % len(shape)))
    return np.ravel_multi_index(tuple(index), moved)
