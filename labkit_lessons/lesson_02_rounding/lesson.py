# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown] on_the_map="one addition step by step, updates that do not change a weight, and two cures"
# # 02 · Rounding
#
# **You will be able to** say what any addition gives in FP16. You find the updates that do not
# change a weight. You apply two cures: rounding by chance, and Kahan's sum.
#
# About 60 minutes. Builds on: lesson 01 (ulp, subnormal numbers, codes in order). Five exercises,
# 30 points.

# %% id="setup"
import math

import numpy as np
import torch

from labkit.formats import FP16, Rounding, add, decode, fused_multiply_add, multiply, round_to
from labkit.formats import sum_compensated, sum_sequential, ulp
from labkit.grading import check
from labkit.widgets import AdditionPlayer, NumberLine, SwallowedUpdates, predict

# %% [markdown]
# ## 1 · To the nearest
#
# Almost no real number is an FP16 number, so almost every result is rounded to one of its two
# neighbours. To which?

# %% id="predict-tie"
predict("rounding.tie")

# %% [markdown]
# **Drag the number** between two neighbours, and watch where each rounding mode takes it. It opens
# at 2052.6. The modes differ most half-way between the two neighbours: put it on 2049, on 2051, and
# on -2049.

# %% id="touch-modes-line"
NumberLine(FP16, x=2052.6, scale="linear", window=(2040, 2060))

# %% id="touch-modes" tags=["answer-rounding.tie"]
modes = [mode for mode in Rounding if mode is not Rounding.STOCHASTIC]
numbers = [2049.0, 2051.0, 2048.2, -2049.0, -2048.2]
print(f"{'':<16}", *(f"{x:>8}" for x in numbers))
for mode in modes:
    print(f"{mode.name:<16}", *(f"{x:>8.0f}" for x in round_to(numbers, FP16, mode)))

# %% [markdown]
# Why does the rule for ties look so strange? Take many ties and look at the mean error, in ulps:

# %% id="touch-drift" tags=["answer-rounding.tie"]
ties = decode(np.random.default_rng(0).integers(0x3C00, 0x4000, size=10_000), FP16) + 2.0**-11
for mode in modes:
    print(f"{mode.name:<16} {np.mean(round_to(ties, FP16, mode) - ties) / 2**-10:+.3f}")

# %% [markdown] tags=["answer-rounding.tie"]
# **Round to nearest, ties to even** is the default of processors. The result is the nearest number.
# A *tie* lies exactly half-way: then it is the neighbour whose last significand bit is 0. So ties
# go up as often as down, and long sums do not drift.
#
# Near the upper end the rule works as if 65536 were a number, and calls it infinity. That is why
# 65520, half-way from 65504, is the first to overflow. (Inside a Tensor Core things are simpler,
# and less exact: lesson 03.)

# %% [markdown]
# *No idea how to begin? `from labkit.grading import hint`, then `hint("rounding.nearest_even")`:
# you get three hints, one by one, at no cost.*
#
# ### Exercise 1: round to a format  ●●○  10 min
#
# Divide by the ulp, round to a whole number, multiply back; Python's `round` takes ties to the even
# one already. Then take care of both ends. Below 2^emin the ulp stays the same. At the upper end,
# round as if there were none: a result beyond `largest` is infinity. FP16 has 10 significand bits,
# `emin` is -14 and `largest` is 65504. E4M3 of FP8 has 3, -6 and 448.


# %% id="exercise-rounding-nearest-even" tags=["exercise-rounding.nearest_even"]
def my_round(x, significand_bits, emin, largest):
    """Return the number of the format nearest to the Python float x, ties to even.

    Where x overflows it is +-inf. my_round(65519.0, 10, -14, 65504.0) is 65504.0.
    """
    ### BEGIN SOLUTION
    if math.isinf(x):
        return x
    exponent = math.floor(math.log2(abs(x))) if x else emin
    spacing = 2.0 ** (max(exponent, emin) - significand_bits)
    rounded = round(x / spacing) * spacing
    return rounded if abs(rounded) <= largest else math.copysign(math.inf, x)
    ### END SOLUTION


check("rounding.nearest_even", my_round)

# %% [markdown]
# ## 2 · One addition

# %% id="predict-whole"
predict("rounding.whole")

# %% [markdown]
# Here is an addition as it is done on paper, and in hardware. **Play it**, step by step: first 1 +
# 0.0001, then 2048 + 1, then two numbers that you choose.
#
# Watch the bits that fall off on the right when the smaller number is moved under the larger one.
# Hardware does not keep all of them. It keeps three. The **guard** bit is the first one behind the
# last place, and the **round** bit is the second. The **sticky** bit is 1 if *any* bit behind these
# two is 1. That is enough to round correctly:
#
# | guard | round, sticky | what was cut off | the result |
# |---|---|---|---|
# | 0 | any | less than half of the last place | down |
# | 1 | one of them is 1 | more than half | up |
# | 1 | both 0 | exactly half: a tie | to the even one |

# %% id="touch-addition"
AdditionPlayer(1.0, 0.0001)

# %% [markdown] tags=["answer-rounding.whole"]
# **Added exactly, rounded once.** The smaller number is shifted until both have the same power of
# two. The bits that do not fit into eleven places decide the rounding, and are then gone. So the
# error of one addition is never more than half an ulp *of the result*.
#
# That does no harm once. But the order of a sum begins to matter. Textbooks write this with two
# signs: RN(x) is x *rounded to the nearest* number, and fl(a + b) is the *floating-point* sum, what
# the machine gives.
#
# $$\text{fl}(a + b) = \text{RN}(a + b), \qquad \text{fl}(\text{fl}(a + b) + c) \neq \text{fl}(a + \text{fl}(b + c))$$
#
# The second part says: in general (a + b) + c and a + (b + c) are two different numbers.

# %% id="touch-order" tags=["answer-rounding.whole"]
big = np.float16(2048)
one = np.float16(1)
print("(2048 + 1) + 1 =", int((big + one) + one))
print("2048 + (1 + 1) =", int(big + (one + one)))
print("1 + 1 + ... + 1, 3,000 times =", int(sum_sequential(np.ones(3000), FP16).value))

# %% [markdown]
# And a longer sum? Enter the number that you expect: type it, or slide on the line.


# %% id="predict-thousandth"
def thousandths(dtype):
    """Return the sum of ten thousand times 0.001, one after another, each rounded to this dtype."""
    return float(np.add.accumulate(np.full(10_000, 0.001, dtype=dtype))[-1])


predict("rounding.thousandth", lambda: thousandths(np.float16))

# %% id="touch-thousandth" tags=["answer-rounding.thousandth"]
print("FP16", thousandths(np.float16), "  FP32", thousandths(np.float32))

# %% [markdown]
# **One rounding or two?** A product that is added is often rounded twice: after the multiplication,
# and after the addition. Hardware has one instruction for both, a **fused multiply-add**. It keeps
# the whole product, and rounds once. Here x times x is $1 + 2^{-5} + 2^{-12}$, and FP16 has no bit
# for the last part if the first is 1. Then $1 + 2^{-5}$ is taken away:

# %% id="touch-fused"
x = 1 + 2.0**-6
most = 1 + 2.0**-5
rounded_twice = add(multiply(x, x, FP16).value, -most, FP16).value
rounded_once = fused_multiply_add(x, x, -most, FP16).value
print("multiply, round, subtract, round:", float(rounded_twice))
print("fused: subtract, then round once:", float(rounded_once), "= 2^-12")

# %% [markdown]
# ## 3 · Swallowed updates
#
# Training is such a sum: a weight, and thousands of small updates. If a weight is the same number
# after an update, the update was *swallowed*.

# %% id="predict-swallowed"
predict("rounding.swallowed")

# %% [markdown]
# **Slide the weight and the update.** It opens with a larger update, 2^-10. Make it smaller: when
# does the FP16 line stop moving? Which lines follow the exact one, and what do they cost?

# %% id="touch-swallowed"
SwallowedUpdates(weight=1.0, update=2**-10)

# %% id="touch-half" tags=["claim-C07", "answer-rounding.swallowed"]
shares = np.array([0.6, 0.5, 0.4, 0.2])
print(f"{'weight':<13}", *(f"{f'- {share} ulp':>10}" for share in shares))
for weight in (1.5, 1.5 + 2**-10, 1.0):
    after = round_to(weight - shares * ulp(weight, FP16), FP16)
    print(f"{weight:<13}", *(f"{'swallowed' if w == weight else 'moves':>10}" for w in after))

# %% [markdown] tags=["answer-rounding.swallowed"]
# **Half an ulp decides.** Below it the update is swallowed, above it the weight moves by a whole
# ulp. At exactly half, the tie goes to the even one: a weight whose last bit is 0 stays, one whose
# last bit is 1 moves.
#
# A power of two is a special case. A *binade* is the range from one power of two to the next, and
# below a power of two the numbers are half as far apart. So downwards anything above a quarter of
# its own ulp is enough.

# %% [markdown]
# ### Exercise 2: the smallest update that moves a weight  ●●○  8 min
#
# Find it by trying: `np.arange(1, 0x7800, dtype=np.uint16).view(np.float16)` is every FP16 number
# from 2^-24 to 32752, in order. The weight is positive and below 2048; here the update is *added*.


# %% id="exercise-rounding-smallest-update" tags=["exercise-rounding.smallest_update"]
def my_smallest_update(weight):
    """Return the smallest FP16 number above 0 that changes the weight when added to it in FP16.

    The weight is an np.float16.
    """
    ### BEGIN SOLUTION
    updates = np.arange(1, 0x7800, dtype=np.uint16).view(np.float16)
    return updates[weight + updates != weight][0]
    ### END SOLUTION


check("rounding.smallest_update", my_smallest_update)

# %% [markdown]
# Try your function on a few weights in a new cell, and print `weight / my_smallest_update(weight)`.
# What do you see?

# %% id="predict-rule"
predict("rounding.rule")

# %% id="touch-rule" tags=["answer-rounding.rule"]
codes = np.random.default_rng(1).integers(0x2C00, 0x6800, size=10_000)  # weights from 2^-4 to 2^11
weights = decode(codes, FP16)
for ratio in (1000, 2000, 2500, 3000, 3500, 4100, 10_000):
    lost = np.mean(round_to(weights + weights / ratio, FP16) == weights)
    print(f"weight / update = {ratio:<6,}  {lost:6.1%} of the weights do not move")

# %% [markdown] tags=["answer-rounding.rule"]
# A learning rate of 0.001 and a gradient a tenth of the weight is a ratio of 10,000: in FP16 that
# weight never moves. Lesson 07 keeps a copy of the weights in FP32, the *master weights*. There are
# two other cures, and both need only FP16.

# %% [markdown]
# ## 4 · Two cures
#
# The first cure lets chance decide, with the right probability.

# %% id="predict-stochastic"
predict("rounding.stochastic")

# %% id="touch-stochastic" tags=["answer-rounding.stochastic"]
bits = np.random.default_rng(0).integers(2**32, size=10_000)
drawn = round_to(np.full(10_000, 1 + 2**-12), FP16, Rounding.STOCHASTIC, random_bits=bits)
went_up = np.mean(drawn > 1)
above_1 = drawn.mean() - 1
print(f"went up: {went_up:.1%}   mean: 1 + {above_1:.3g}   2^-12 = {2**-12:.3g}")

# %% [markdown] tags=["answer-rounding.stochastic"]
# **Wrong each time, right in the mean.** A number that is a quarter of the way up goes up one time
# in four. So an update of a quarter ulp moves the weight every fourth time, and on average the
# weight is where it should be. The price is noise, and random numbers.
#
# $$P(\text{up}) = \frac{x - \text{lower}}{\text{spacing}}$$
#
# Here *lower* is the neighbour below x, and *spacing* the distance of the two neighbours.

# %% [markdown]
# ### Exercise 3: round by chance  ●●○  6 min
#
# The random number is an argument, from 0 up to but not including 1, so your answer is exact. Up is
# towards +inf, for negative numbers too.


# %% id="exercise-rounding-stochastic" tags=["exercise-rounding.stochastic"]
def my_stochastic(x, spacing, random):
    """Return x rounded to a multiple of spacing.

    Round up if random is less than x's part of the way up, else down.
    """
    ### BEGIN SOLUTION
    lower = math.floor(x / spacing) * spacing
    return lower + spacing if random < (x - lower) / spacing else lower
    ### END SOLUTION


check("rounding.stochastic", my_stochastic)

# %% [markdown]
# The second cure remembers. After `t = total + y` we can compute the error of the addition. The
# computation is exact in FP16, as long as `total` is the larger number. `t - total` is the part
# that was added, and `y` should have been added. **Kahan's sum** subtracts the difference from the
# next number.

# %% id="touch-kahan"
total = np.float16(1)
y = np.float16(0.0004)
t = total + y
print("arrived:", t - total, "  meant:", y, "  difference:", (t - total) - y)

values = np.concatenate([[1.0], np.full(500, round_to(0.0004, FP16))])
print(f"\n1 + 500 x 0.0004 should be {values.sum():.6f}, in FP16 {round_to(values.sum(), FP16)}")
print("one after another:", sum_sequential(values, FP16).value)
print("Kahan:            ", sum_compensated(values, FP16).value)

# %% [markdown]
# ### Exercise 4: Kahan's sum  ●●○  6 min
#
# Two variables, `total` and `lost`; four lines in the loop. Your sum goes on where an earlier one
# ended, as an optimizer does at each step: it gets both. Every operation on two `np.float16` rounds
# to FP16, so you need no extra rounding.


# %% id="exercise-rounding-kahan" tags=["exercise-rounding.kahan"]
def my_kahan(values, total, lost):
    """Return the total after adding an array of np.float16 in order, as Kahan does it.

    Args:
        total: np.float16: the total so far, 0 at the start.
        lost: np.float16: arrived minus meant of the last addition, 0 at the start.
    """
    ### BEGIN SOLUTION
    for x in values:
        y = x - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total
    ### END SOLUTION


check("rounding.kahan", my_kahan)

# %% [markdown]
# ## 5 · Constants are rounded too

# %% id="predict-epsilon"
predict("rounding.epsilon")

# %% id="touch-epsilon" tags=["answer-rounding.epsilon"]
for constant in (1e-5, 1e-6, 1e-7, 1e-8, -1e4, -1e9):
    print(f"{constant:>8g} becomes {float(round_to(constant, FP16)):.4g}")
x = torch.zeros(2, dtype=torch.float16)
print("\nFP16:", x / (x.norm() + 1e-8))
print("FP32:", x.float() / (x.float().norm() + 1e-8))

# %% [markdown] tags=["answer-rounding.epsilon"]
# **An epsilon is rounded like any number.** In FP16 1e-8 is 0, and -1e9, which is often used to
# mask attention, is -inf. A larger epsilon hides the NaN, but it changes the answer wherever the
# numbers are small.
#
# The squares in a norm are worse: 0.0001 squared is already 0, and 300 squared is infinite. So such
# a line is computed in FP32 and rounded once, at its end.

# %% [markdown]
# ### Exercise 5: repair the epsilon  ●●○  6 min
#
# RMSNorm, as it was first published: `x / ((x * x).mean().sqrt() + 1e-8)`. Written like that, with
# FP16 inputs, it is wrong in three ways. Keep the formula and the 1e-8; return FP16 again.


# %% id="exercise-rounding-epsilon" tags=["exercise-rounding.epsilon"]
def my_normalise(x):
    """Return x / (root of the mean square + 1e-8) of an FP16 tensor [n], as FP16 [n]."""
    ### BEGIN SOLUTION
    wide = x.float()
    return (wide / (wide.pow(2).mean().sqrt() + 1e-8)).half()
    ### END SOLUTION


check("rounding.epsilon", my_normalise)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C07 an update smaller than half the spacing at the weight is lost | true; at exactly half the last bit decides, and below a power of two the spacing is half as wide | section 3 |
#
# And on the way: sums depend on their order, 2048 + 1 = 2048, and ties go to the even one. C06 of
# lesson 01, 1 + 0.0001 = 1, means that a weight does not learn.
#
# **Where you meet this.** `fesetround` in C, `__float2half_rn` and its variants `_rz`, `_ru`, `_rd`
# in CUDA, `math.fsum` and `np.sum` (adds in pairs). RMSNorm and softmax, which frameworks compute
# in FP32. Stochastic rounding in torchao's low-bit optimizers (`bf16_stochastic_round`) and on AWS
# Trainium. Kahan's sum in torchdistX's `AnyPrecisionAdamW` (`use_kahan_summation`). The `eps` of
# Adam, layer norm and cosine similarity.
