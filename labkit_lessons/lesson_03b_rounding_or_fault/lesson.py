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

# %% [markdown] on_the_map="six kernels that all differ from the exact product, and the one that has a fault"
# # 03b · Rounding or a fault?
#
# **You will be able to** say whether a difference between two results is rounding. You derive the
# largest error that rounding can make, and use it instead of a guessed tolerance.
#
# About 40 minutes. One exercise, 7 points. Builds on: rounding (lesson 02) and accumulators (lesson
# 03).

# %% id="setup"
import math

import numpy as np
import torch

from labkit.gemm import SEQUENTIAL_FP16, accumulate
from labkit.grading import check
from labkit.testing import arithmetic, compare, matmul
from labkit.widgets import predict
from labkit_lessons.lesson_03b_rounding_or_fault import SIX, six_operands

# %% [markdown]
# ## 1 · Six kernels
#
# A *kernel* is a function that runs on a device, here a product of two matrices. Six people wrote
# one. All six take FP16 operands, add in FP32, and store FP16. They differ in the order of the
# additions: one by one, backwards, in slices, in blocks, along a tree, and as an H100 does. Five
# are right. **One has a fault.**
#
# How would you test them? Most tests compute the exact result and look at the largest difference.

# %% id="touch-differences" tags=["claim-C66"]
A, B = six_operands()  # A is 60 x 1001, B is 1001 x 256
product = matmul(A, B)
nearest = torch.from_numpy(product.value.astype(np.float16))  # the exact product, rounded once
results = {name: kernel(A, B) for name, kernel in SIX.items()}

print(f"{'kernel':<10}{'largest difference':>20}{'elements that differ':>24}{'torch.allclose':>16}")
for name, got in results.items():
    off = (got.double() - nearest.double()).abs()
    close = "passes" if torch.allclose(got, nearest, rtol=1e-3, atol=0.05) else "fails"
    print(f"{name:<10}{off.max():>20.4g}{int((off > 0).sum()):>24,}{close:>16}")

# %% id="predict-six"
predict("kernels.six")

# %% [markdown] tags=["answer-kernels.six"]
# **Two right kernels differ, and a wrong one may differ less.** Another order of the additions is
# another sum of roundings. Near the middle between two FP16 numbers, that decides which of the two
# is stored. In a row of large numbers, these are 2 apart.
#
# So one tolerance for a whole matrix is wrong twice. It is too tight for the large elements, and
# too loose for the small ones.

# %% [markdown]
# ## 2 · How wrong can a right sum be?
#
# Every addition rounds to nearest: it is off by half an ulp at most. So its relative error is at
# most $u = 2^{-p}$, the *unit roundoff*. Here $p$ is the precision of the accumulator: 24 bits in
# FP32, 11 in FP16. A Tensor Core cuts bits off instead, block by block. It has a bound of the same
# kind, with other numbers.
#
# Take a sum of $K$ products. In any order a product passes through $K - 1$ additions at most. So it
# is off by a factor of $(1 + u)^{K-1}$ at most, and all together by
#
# $$e = \big((1 + u)^{K-1} - 1\big) \, S, \qquad S = \sum_k |a_k \, b_k|$$
#
# Note $S$. It is a sum of *magnitudes*, not the magnitude of the sum. Where terms cancel, the sum
# is small and $S$ is not.

# %% id="predict-bound"
predict("kernels.bound")

# %% [markdown]
# **Change K, or the accumulator** ("FP16", "H100"). The bound holds for every order. The orders
# that you see are real ones: one by one, backwards, in slices, in lanes, along a tree.

# %% id="touch-bound" tags=["answer-kernels.bound"]
K, accumulator = 1024, "FP32"
a = torch.randn(32, K).half()
b = torch.randn(K, 32).half()
some = matmul(a, b)
how = arithmetic(accumulator, some.formats)
bound = some.error(how)
found = some.replay(how, np.arange(some.value.size)) - some.value.reshape(-1)

print(f"K = {K}, accumulator {how.name}: error before the result is stored")
print(f"{'e, the bound':<40}{np.median(bound):>12.3g}")
for n, errors in enumerate(found, 1):
    print(f"{f'order {n}, the largest of {errors.size} errors':<40}{np.abs(errors).max():>12.3g}")

# %% [markdown] tags=["answer-kernels.bound"]
# **The bound is never exceeded, and seldom reached.** Roundings go up and down, so most of them
# cancel: relative to $S$, an error grows like $\sqrt{K}$ at most, the bound like $K$. That is why a
# test looks at both. Above the bound a difference is *proved* to be a fault. Below it, but far
# beyond what any order reaches, it is very likely one.

# %% [markdown]
# ## 3 · The last rounding
#
# At the end the sum is rounded once more, to the format of the output. Rounding keeps order: a
# larger number never becomes the smaller one. So what is stored lies between two numbers of that
# format:
#
# $$\text{round}(s - e) \;\le\; \text{stored} \;\le\; \text{round}(s + e)$$
#
# Here $s$ is the exact sum. Often both ends are the same number, and then only one result is right.
#
# ### Exercise 1: what rounding allows  ●●○  15 min
#
# The products of two FP16 numbers are exact in Python, and so is their sum by `math.fsum`. Round
# the ends with `np.float16`; they may be subnormal, or inf after an overflow. An empty sum is 0.
# `precision` may be any number of bits, also one that no accumulator has.


# %% id="exercise-kernels-allowed" tags=["exercise-kernels.allowed"]
def my_allowed(a, b, precision):
    """Return the (lowest, highest) FP16 result of adding a[k] * b[k] with `precision` bits.

    Both results are floats.
    """
    ### BEGIN SOLUTION
    products = [x * y for x, y in zip(a, b, strict=True)]
    exact = math.fsum(products)
    size = math.fsum(map(abs, products))
    error = ((1 + 2.0**-precision) ** max(0, len(products) - 1) - 1) * size
    return float(np.float16(exact - error)), float(np.float16(exact + error))
    ### END SOLUTION


check("kernels.allowed", my_allowed)

# %% [markdown]
# ## 4 · The wrong one
#
# `compare` does this for each element, for any operation it knows: products, convolutions, sums,
# softmax, layer norm. It also tries several orders, and says what would explain a difference that
# rounding does not.

# %% id="touch-verdicts"
for name, got in results.items():
    verdict = compare(got, product, accumulator="H100" if name == "F" else "FP32")
    print(f"{name}: {verdict.kind}")

# %% [markdown]
# Here is the proof: the element, its bits, and how many times the bound it is off. **Try other
# kernels and an FP16 accumulator**, or plant a fault of your own.

# %% id="touch-proof"
print(compare(results["D"], product), "\n")

in_fp16 = accumulate(A[40:], B, accumulator=SEQUENTIAL_FP16).half()
print(compare(in_fp16, matmul(A[40:], B)))

# %% [markdown]
# Kernel D works on 16 rows at a time, and 60 is not a multiple of 16. In the last block its mask
# ends one product too early. The rows there are small, so a missing product is a small number. But
# in these rows the bound is far smaller.
#
# **In a test of your own**, one line replaces the guess:
#
# ```python
# from labkit.testing import assert_explained
# assert_explained(got, a, b, accumulator="H100")
# ```
#
# And `labkit tolerance "matmul K=4096 bf16 accumulate=fp32"` in a terminal prints the bound with
# its derivation.
#
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C66 of two kernels, the one that is nearer to the exact result is the right one | false: five right kernels are off by 0.5 to 2, the one with a fault by 0.016 | section 1 |
#
# **Where you meet this.** `torch.testing.assert_close` and its `rtol` and `atol`; "bitwise" and
# "batch invariant" in serving engines; Higham's *Accuracy and Stability of Numerical Algorithms*,
# chapters 3 and 4. Conformance vectors for your own FP8 and FP4 kernels: `labkit vectors`.
