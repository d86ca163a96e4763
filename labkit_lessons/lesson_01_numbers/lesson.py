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

# %% [markdown] on_the_map="the sixteen bits of a number, both ends of FP16, and how far its numbers are apart"
# # 01 · Numbers
#
# **You will be able to** read the sixteen bits of an FP16 number. You can say where FP16 ends, and
# how far its numbers are apart. You know which of the usual sentences about it are true.
#
# About 60 minutes. Builds on: binary numbers, and a little Python. Five exercises, 26 points.

# %% id="setup"
import math

import numpy as np
import torch

from labkit.formats import BF16, FP16, FP32, classify, decode, encode, field_bits, round_to
from labkit.grading import check
from labkit.widgets import BitExplorer, NumberLine, predict

# %% [markdown]
# ## 1 · Sixteen bits
#
# A floating-point number has three parts: a sign, a power of two, and a significand. 1.5 is
# $+1 \times 2^0 \times 1.5$, and -6 is $-1 \times 2^2 \times 1.5$. Each part has its own bits, in
# this order: **S**ign, **E**xponent, signi**f**icand. Compare three formats: FP32 has 32 bits, FP16
# and BF16 have 16.

# %% id="predict-exponent-bits"
predict("numbers.exponent_bits")

# %% id="touch-fields" tags=["claim-C01", "answer-numbers.exponent_bits"]
for row in (FP32, FP16, BF16):
    bits = field_bits(encode(1.5, row), row)
    print(f"{row.name:<5} 1 + {row.exponent_bits} + {row.significand_bits:<3}  1.5 is {bits}")

# %% [markdown]
# Now try it yourself. **Click bits**, or type a number. Which bit turns 1 into 1.5? Which one turns
# 1 into 0.5? Which one makes it infinite?

# %% id="touch-bits"
BitExplorer(FP16, value=1.0)

# %% [markdown] tags=["answer-numbers.exponent_bits"]
# **How to read it.** Take the three fields as whole numbers $S$ (0 or 1), $E$ (0 to 31) and $F$ (0
# to 1023).
#
# - The **exponent** is stored 15 too large. This 15 is called the *bias*. With it $E$ needs no
#   sign: $E = 15$ means $2^0$, $E = 14$ means $2^{-1}$.
# - The **significand** is written in binary. $1.F$ means: 1, the point, then the ten bits of $F$.
#   So $F$ = `1000000000` gives 1.1000000000 in binary, which is 1 + 1/2 = 1.5.
# - The 1 before the point is **not stored**. It is always there, except where $E = 0$: then it is
#   a 0.
# - The last exponent field, $E = 31$, is kept for infinity and for NaN, "not a number".
#
# $$\text{value} = \begin{cases} (-1)^S \cdot 2^{E - 15} \cdot 1.F & 1 \le E \le 30 \quad \text{normal} \\
# (-1)^S \cdot 2^{-14} \cdot 0.F & E = 0 \quad \text{zero and subnormal} \\
# \pm\infty \text{ if } F = 0, \text{ else NaN} & E = 31 \end{cases}$$
#
# An example: `0 10000 1000000000` is $S = 0$, $E = 16$ and $1.F = 1.5$, so the value is
# $2^1 \times 1.5 = 3$.

# %% [markdown]
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses. Do not change the arguments of your function:
# sort or overwrite a copy.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("numbers.decode")`: you get
# three hints, one by one, at no cost.*
#
# ### Exercise 1: the bits of a number, read by hand  ●●○  12 min
#
# `code` is an integer, 0x3C00 for example. Cut it into its three fields: `>>` shifts right, and `&`
# keeps the bits that both numbers have. Then follow the three lines above; $1.F$ is `1 + F / 1024`.
# Infinity is `math.inf`, NaN is `math.nan`.
#
# FP16 has 5 exponent bits, 10 significand bits and a bias of 15. Write your function for any of
# these three. In all these formats the smallest exponent is `1 - bias`, and the last exponent field
# is kept for infinity and NaN. (Formats with a bias of their own exist: Tesla's Dojo computes in
# one.)


# %% id="exercise-numbers-decode" tags=["exercise-numbers.decode"]
def my_decode(code, exponent_bits, significand_bits, bias):
    """Return the value of a code as a Python float: my_decode(0x3C00, 5, 10, 15) is 1.0."""
    ### BEGIN SOLUTION
    sign = code >> (exponent_bits + significand_bits)
    exponent = (code >> significand_bits) & (2**exponent_bits - 1)
    significand = code & (2**significand_bits - 1)
    steps = 2**significand_bits
    direction = -1.0 if sign else 1.0
    if exponent == 2**exponent_bits - 1:
        return math.nan if significand else direction * math.inf
    if exponent == 0:
        return direction * 2.0 ** (1 - bias) * (significand / steps)
    return direction * 2.0 ** (exponent - bias) * (1 + significand / steps)
    ### END SOLUTION


check("numbers.decode", my_decode)

# %% [markdown]
# ## 2 · Both ends

# %% id="predict-overflow"
predict("numbers.overflow")

# %% id="touch-overflow" tags=["claim-C02", "claim-C03", "claim-C05", "answer-numbers.overflow"]
for x in (32768, 65504, 65510, 65519.99, 65520, 1_000_000):
    print(f"{x:>12,} becomes {round_to(x, FP16):>8,.0f}")
print(f"\nFP16: exponents {FP16.emin} to {FP16.emax}, ", end="")
print(f"largest number {FP16.max:,.0f} = 2^15 x {FP16.max / 2**15}")
print(f"FP32: exponents {FP32.emin} to {FP32.emax}, largest number {FP32.max:.3g}")

# %% [markdown] tags=["answer-numbers.overflow"]
# The largest number is not 2^15 but almost 2^16: all bits behind the point are ones, 2^15 x
# 1.1111111111 in binary. And what happens at the other end?

# %% id="predict-underflow"
predict("numbers.underflow")

# %% id="touch-underflow" tags=["claim-C04", "answer-numbers.underflow"]
for x in (7e-5, 3e-5, 1e-6, 2e-7, 8e-8, 3e-8, 2.9e-8):
    rounded = float(round_to(x, FP16))
    kind = classify(encode(rounded, FP16), FP16)
    print(f"{x:8.2g} becomes {rounded:9.3g}   {kind!s:<10} {abs(rounded - x) / x:7.2%} off")

# %% [markdown] tags=["answer-numbers.underflow"]
# **Below 6.1e-5 numbers do not become zero at once.** There the exponent field is 0, and the hidden
# 1 is gone. These numbers are called *subnormal*. They go down to zero in 1,024 equal steps of
# 2^-24 = 5.96e-8.
#
# So *precision* is lost first. A number just above 6.1e-5 has eleven significant bits. Below, it
# has ten, then nine, in the end one. A number becomes zero only where zero is the nearest: below
# 2.98e-8, which is half of the smallest step. Very small gradients end there: lesson 06 comes back
# to this.

# %% [markdown]
# ## 3 · How far apart

# %% id="predict-between"
predict("numbers.between")

# %% [markdown]
# **Drag the number**, and zoom: from the subnormal numbers to 65504. Compare the linear view with
# the logarithmic one.

# %% id="touch-line"
NumberLine(FP16)

# %% [markdown]
# There are only 65,536 codes, so we may just count them all:

# %% id="touch-count" tags=["claim-C06", "answer-numbers.between"]
every = decode(np.arange(65536), FP16)
for k in (-20, -14, -1, 0, 10, 15):
    inside = every[(2.0**k <= every) & (every < 2.0 ** (k + 1))]
    apart = inside[1] - inside[0]
    print(f"from 2^{k:<3} up to 2^{k + 1:<3} {len(inside):>6,} numbers, {apart:.3g} apart")

print("\nfrom 1 on:", *np.sort(every[(every >= 1) & (every < 1.004)]))
print("1 + 0.0001 =", np.float16(1) + np.float16(0.0001))

# %% [markdown] tags=["answer-numbers.between"]
# In the linear view small numbers are close together. In the logarithmic view every power of two
# has equally many.

# %% [markdown]
# The distance between neighbours is called **ulp**, *unit in the last place*. It depends only on
# the power of two below the number, and it doubles with each. In FP16 the numbers above 1 are
# 2^-10 = 0.00098 apart, so adding 0.0001 does not reach the next one.
#
# $$\text{ulp}(x) = 2^{\max(e, \, -14) - 10}, \qquad 2^e \le |x| < 2^{e+1}$$
#
# The $\max$ is for subnormal numbers: they are all 2^-24 apart, however small they are.
#
# So how exact is FP16? Say it as a number: type it, or slide on the line.

# %% id="predict-tenth"
predict("numbers.tenth", lambda: 100 * abs(round_to(0.1, FP16) / 0.1 - 1))

# %% id="touch-tenth" tags=["answer-numbers.tenth"]
for format in (FP32, FP16):
    near = float(round_to(0.1, format))
    print(f"0.1 in {format.name} is {near:.12f}, off by {abs(near / 0.1 - 1):.2g} of its size")

# %% [markdown] tags=["answer-numbers.tenth"]
# In the normal range half an ulp is never more than 2^-11 = 0.049% of a number. Numbers of all
# sizes are equally exact.
#
# | x | power of two below it | ulp(x) |
# |---|---|---|
# | 1.5 | 2^0 | 2^-10 = 0.00098 |
# | 1000 | 2^9 = 512 | 2^-1 = 0.5 |
# | 3e-5 (subnormal) | 2^-16 | 2^-24, not 2^-26 |

# %% [markdown]
# ### Exercise 2: how far apart?  ●○○  6 min
#
# `x` is a number of a format, as a Python float. FP16 has 10 significand bits, and its smallest
# exponent `emin` is -14; other formats have others. Take care below 2^emin: the first line of the
# count above is from there.


# %% id="exercise-numbers-ulp" tags=["exercise-numbers.ulp"]
def my_ulp(x, significand_bits, emin):
    """Return the distance between a format's numbers at x; at 0 it is that of the smallest ones.

    my_ulp(1.5, 10, -14) is 2**-10.
    """
    ### BEGIN SOLUTION
    exponent = math.floor(math.log2(abs(x))) if x else emin
    return 2.0 ** (max(exponent, emin) - significand_bits)
    ### END SOLUTION


check("numbers.ulp", my_ulp)

# %% [markdown]
# ### Exercise 3: the first whole number that is missing  ●○○  5 min
#
# From some power of two on the ulp is 2, and odd numbers are missing. Which whole number above 0 is
# the first that a format like FP16 (5, 10) does not hold? All formats here are built as FP16 is:
# bias 2^(exponent_bits - 1) - 1, and the last exponent field is kept for infinity and NaN. Compute
# it: in some formats, such as FP64 (11, 52), a loop that counts up takes years.


# %% id="exercise-numbers-first-gap" tags=["exercise-numbers.first_gap"]
def my_first_gap(exponent_bits, significand_bits):
    """Return the smallest whole number above 0 that the format does not have."""
    ### BEGIN SOLUTION
    first_odd = 2 ** (significand_bits + 1) + 1
    beyond_the_end = 2 ** (2 ** (exponent_bits - 1))
    return min(first_odd, beyond_the_end)
    ### END SOLUTION


check("numbers.first_gap", my_first_gap)

# %% [markdown]
# ## 4 · Neighbours

# %% id="predict-next-code"
predict("numbers.next_code")

# %% id="touch-next-code" tags=["answer-numbers.next_code"]
for code in (0x0000, 0x03FF, 0x3BFF, 0x7BFF, 0x7C00, 0x8000, 0xBC00):
    value, after = decode([code, code + 1], FP16)
    bits = field_bits(code + 1)
    print(f"0x{code:04X} is {value:<12.6g} 0x{code + 1:04X} is {after:<12.6g} {bits}")

# %% [markdown] tags=["answer-numbers.next_code"]
# **The codes are in order.** Add 1 to a code, and you have the code of the next larger number. This
# works from one power of two into the next, from subnormal to normal numbers, and from the largest
# number to infinity. This is the reason why the exponent comes before the significand, and why it
# has a bias. Two positive numbers can be compared like two integers.
#
# Only the sign is an exception. Codes of negative numbers count *away* from zero. And zero has two
# codes, +0 and -0, which are equal.

# %% [markdown]
# ### Exercise 4: the numbers above  ●●○  10 min
#
# Your function takes a code and returns a code, as hardware does. It goes up by `steps` numbers,
# one or more. There may be billions of steps, so add instead of counting. Be careful around zero
# and at both infinities: +0 and -0 are one number. FP16 has 5 exponent bits and 10 significand
# bits; write it for any format that is built like it.


# %% id="exercise-numbers-next-up" tags=["exercise-numbers.next_up"]
def my_next_up(code, exponent_bits, significand_bits, steps):
    """Return the code of the number that is `steps` numbers above.

    my_next_up(0x3C00, 5, 10, 1) is 0x3C01. +inf stays +inf. Steps from below that end at zero give
    -0, which is 0x8000 in FP16. No code is NaN.
    """
    ### BEGIN SOLUTION
    sign = 1 << (exponent_bits + significand_bits)
    infinity = sign - 2**significand_bits
    place = sign - code if code >= sign else code
    place = min(place + steps, infinity)
    if place < 0 or (place == 0 and code > sign):
        return sign - place
    return place
    ### END SOLUTION


check("numbers.next_up", my_next_up)

# %% [markdown]
# ## 5 · What it saves

# %% id="predict-bytes"
predict("numbers.bytes")

# %% id="touch-bytes" tags=["claim-C09", "answer-numbers.bytes"]
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    tensor = torch.randn(1000, 1000).to(dtype)
    print(f"{dtype!s:<15} {tensor.untyped_storage().nbytes():>10,} bytes")

# %% [markdown] tags=["answer-numbers.bytes"]
# For one tensor it is exactly half. Does *training* take half the memory? That is another question.
# Training also keeps gradients, the optimizer's state, and often a copy of the weights in FP32. Not
# all of these are FP16: see lesson 07.

# %% [markdown]
# ### Exercise 5: bytes of a tensor  ●○○  3 min
#
# Formats of 6 and 4 bits exist too. Count as if elements were stored without gaps; the last byte
# counts as a whole one.


# %% id="exercise-numbers-bytes" tags=["exercise-numbers.bytes"]
def my_bytes(shape, bits):
    """Return how many bytes a tensor of this shape takes, at this many bits an element.

    my_bytes((3, 5), 16) is 30.
    """
    ### BEGIN SOLUTION
    return math.ceil(math.prod(shape) * bits / 8)
    ### END SOLUTION


check("numbers.bytes", my_bytes)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C01 FP16 is 1 + 5 + 10 bits, FP32 1 + 8 + 23 | true | section 1 |
# | C02 exponents run from -14 to 15, the range from 2^-14 to 2^15 | half true: the exponents do; the largest number is 65504, almost 2^16 | section 2 |
# | C03 a value above 65504 overflows to inf | half true: up to 65520 it rounds to 65504 | section 2 |
# | C04 FP16 underflows to zero below 6e-5 | false: subnormal numbers go on to 6e-8; only below 3e-8 a number rounds to zero | section 2 |
# | C05 FP32 reaches about 3.4e38 | true | section 2 |
# | C06 between 1 and 2 the numbers are 2^-10 apart, so 1 + 0.0001 = 1 | true | section 3 |
# | C09 an FP16 tensor takes half the bytes of an FP32 one | true, of one tensor | section 5 |
#
# **Where you meet this.** `torch.finfo(torch.float16)` and `np.finfo(np.float16)` (`max`, `eps`,
# `tiny`; numpy has `smallest_subnormal` too), `np.spacing`, `np.nextafter`,
# `tensor.element_size()`. Other places: the format `e` of Python's `struct`, `_Float16` in C,
# `std::float16_t` in C++23, `__half` in CUDA, the dtypes `F16` and `BF16` of safetensors files.
