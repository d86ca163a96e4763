"""The weight while the same small update is subtracted from it again and again.

Idea: repeat one rounded subtraction. In between two changes of spacing a rounded weight moves by
the same amount every time. So many steps are guessed at once, and one call of `round_to` checks all
of them; where the check fails, the guess starts again from the step that is right. The result is
that of the plain loop, bit for bit, in a hundredth of its time.

Invariant: each weight is the one before minus the update, rounded once as its method says.

Source: Micikevicius et al., Mixed Precision Training, arXiv:1710.03740, 3.1; W. Kahan, CACM 8(1),
1965; Gupta et al., Deep Learning with Limited Numerical Precision, arXiv:1502.02551, 3.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from labkit.formats import BF16, FP16, FP32, Format, Rounding, round_to

# [steps + 1], the weight before the first update and after each
Curve = NDArray[np.float64]

METHODS = ("FP32", "FP16", "BF16", "FP16 + Kahan", "FP16 + stochastic", "FP16 + FP32 master")
# Stochastic rounding reads the same random bits at every position of the sliders.
SEED = 20_181


def curves(weight: float, update: float, steps: int) -> dict[str, Curve]:
    """Return the weight after each step of w <- w - update, by each method, in their order.

    Weight and update are rounded to the format of the method first; a master copy is shown as the
    FP16 weight that a network would compute with.

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

    A difference is taken in float64 first; its 53 bits are at least 2 * 25 + 2, so that rounding
    twice rounds once.

    >>> repeated(1.0, 2.0**-11, 3, FP16)
    array([1.        , 0.99951172, 0.99902344, 0.99853516])
    """
    first, minus = (float(round_to(value, format)) for value in (weight, update))
    found = np.empty(steps + 1)
    found[0] = first
    done = 0
    while done < steps:
        now = found[done]
        stride = float(round_to(now - minus, format)) - now
        guess = now + stride * np.arange(steps - done + 1)
        true = round_to(guess[:-1] - minus, format)
        wrong = np.flatnonzero(true != guess[1:])
        # where the guess first fails, `true` is still right
        right = int(wrong[0]) + 1 if len(wrong) else steps - done
        found[done + 1 : done + right + 1] = true[:right]
        done += right
    return found


def compensated(weight: float, update: float, steps: int) -> Curve:
    """Subtract an update repeatedly in FP16 by Kahan's algorithm.

    What each subtraction loses is added to the next.

    numpy's float16 rounds each operation once, as `labkit.formats.sum_compensated` does, and is
    quick for one number.

    >>> compensated(1.0, 2.0**-13, 4)
    array([1.        , 1.        , 1.        , 0.99951172, 0.99951172])
    """
    total = np.float16(round_to(weight, FP16))
    minus = np.float16(round_to(update, FP16))
    lost = np.float16(0)
    found = [total]
    with np.errstate(all="ignore"):
        for _ in range(steps):
            corrected = -minus - lost
            raised = total + corrected
            lost = (raised - total) - corrected
            total = raised
            found.append(total)
    return np.array(found, np.float64)


def stochastic(weight: float, update: float, steps: int) -> Curve:
    """Subtract an update repeatedly in FP16, rounding at random, so that the mean is right."""
    now, minus = (round_to(np.float64(value), FP16) for value in (weight, update))
    found = [now]
    for bits in random_bits(steps):
        now = round_to(now - minus, FP16, Rounding.STOCHASTIC, random_bits=bits)
        found.append(now)
    return np.array(found, np.float64)


@cache
def random_bits(steps: int) -> NDArray[np.int64]:
    """Return the random bits of each step."""
    return np.random.default_rng(SEED).integers(2**32, size=steps)


def moved(curve: Curve) -> int:
    """Return in how many steps the weight changed.

    >>> moved(np.array([1.0, 1.0, 0.5, 0.5]))
    1
    """
    return int(np.count_nonzero(np.diff(curve)))
