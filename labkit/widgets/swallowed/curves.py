"""The weight while the same small update is subtracted from it again and again.

While the spacing of the format does not change, a rounded weight moves by the same amount in every
step. So `repeated` predicts all remaining steps at once, and one call of `round_to` checks them.
Where the prediction first fails, it starts again from the checked steps. The result equals that of
a loop over single steps, bit for bit, and takes a hundredth of the time.

Invariant: each weight is the one before minus the update, rounded once as its method says.

Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, 3.1; W. Kahan, CACM 8(1),
1965; Gupta et al., Deep Learning with Limited Numerical Precision, arXiv:1502.02551, 3.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from labkit.formats import BF16, FP16, FP32, Format, Rounding, round_to

# The weight before the first update and after each, [steps + 1].
Curve = NDArray[np.float64]

METHODS = ("FP32", "FP16", "BF16", "FP16 + Kahan", "FP16 + stochastic", "FP16 + FP32 master")
# Stochastic rounding reads the same random bits at every position of the sliders.
SEED = 20_181


def curves(weight: float, update: float, steps: int) -> dict[str, Curve]:
    """Return the weight before and after each step of w <- w - update, for each of `METHODS`.

    Weight and update are first rounded to the format of the method. The curve of "FP16 + FP32
    master" is the master weight rounded to FP16, with which a network would compute.

    >>> ends = {method: float(curve[-1]) for method, curve in curves(1.0, 2.0**-12, 1000).items()}
    >>> ends["FP32"], ends["FP16"], ends["FP16 + Kahan"], ends["FP16 + FP32 master"]
    (0.755859375, 1.0, 0.755859375, 0.755859375)
    """
    single = repeated(weight, update, steps, FP32)
    return {
        "FP32": single,
        "FP16": repeated(weight, update, steps, FP16),
        "BF16": repeated(weight, update, steps, BF16),
        "FP16 + Kahan": compensated(weight, update, steps),
        "FP16 + stochastic": stochastic(weight, update, steps),
        "FP16 + FP32 master": np.asarray(round_to(single, FP16), np.float64),
    }


def repeated(weight: float, update: float, steps: int, format: Format) -> Curve:
    """Subtract an update repeatedly in a format of at most 25 bits, rounding to nearest even.

    A difference is computed in float64 first. Since 53 bits are at least 2 * 25 + 2, rounding its
    result to the format gives the same value as rounding the exact difference once.

    >>> repeated(1.0, 2.0**-11, 3, FP16)
    array([1.        , 0.99951172, 0.99902344, 0.99853516])
    """
    minus = float(round_to(update, format))
    weights = np.empty(steps + 1)
    weights[0] = float(round_to(weight, format))
    done = 0
    while done < steps:
        now = weights[done]
        following = float(round_to(now - minus, format))
        if not np.isfinite(following):
            # An infinite weight stays, and has no stride.
            weights[done + 1 :] = following
            break
        predicted = now + (following - now) * np.arange(steps - done + 1)
        checked = round_to(predicted[:-1] - minus, format)
        failures = np.flatnonzero(checked != predicted[1:])
        # The first failure follows from a weight that is right, so its `checked` is right, too.
        right = int(failures[0]) + 1 if len(failures) else steps - done
        weights[done + 1 : done + right + 1] = checked[:right]
        done += right
    return weights


def compensated(weight: float, update: float, steps: int) -> Curve:
    """Subtract an update repeatedly in FP16 by Kahan's algorithm.

    The rounding error of each subtraction is compensated in the next one. numpy's float16 rounds
    each operation once, as `labkit.formats.sum_compensated` does, and is faster for single numbers.

    >>> compensated(1.0, 2.0**-13, 4)
    array([1.        , 1.        , 1.        , 0.99951172, 0.99951172])
    """
    total = np.float16(round_to(weight, FP16))
    minus = np.float16(round_to(update, FP16))
    lost = np.float16(0)
    weights = [total]
    with np.errstate(all="ignore"):
        for _ in range(steps):
            corrected = -minus - lost
            raised = total + corrected
            lost = (raised - total) - corrected
            total = raised
            weights.append(total)
    return np.array(weights, np.float64)


def stochastic(weight: float, update: float, steps: int) -> Curve:
    """Subtract an update repeatedly in FP16 with stochastic rounding.

    A rounding error is 0 on average.
    """
    now = round_to(np.float64(weight), FP16)
    minus = round_to(np.float64(update), FP16)
    weights = [now]
    for bits in random_bits(steps):
        now = round_to(now - minus, FP16, Rounding.STOCHASTIC, random_bits=bits)
        weights.append(now)
    return np.array(weights, np.float64)


@cache
def random_bits(steps: int) -> NDArray[np.int64]:
    """Return a random number below 2^32 for each step, [steps]."""
    return np.random.default_rng(SEED).integers(2**32, size=steps)


def moved(curve: Curve) -> int:
    """Return in how many steps the weight changed; one that stays inf or NaN does not.

    >>> moved(np.array([1.0, 1.0, 0.5, 0.5])), moved(np.array([1.0, -np.inf, -np.inf]))
    (1, 1)
    """
    before = curve[:-1]
    after = curve[1:]
    both_nan = np.isnan(before) & np.isnan(after)
    return int(np.count_nonzero((before != after) & ~both_nan))
