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

# %% [markdown] on_the_map="a Tensor Core's sum, bit by bit, on seven generations; which layers gain from FP16"
# # 03 · Tensor Cores
#
# **You will be able to** add up a block as a Tensor Core does, bit by bit. You can say which
# accumulator a long sum needs. You can predict whether a layer gains from FP16, before you time it.
#
# About 105 minutes. Builds on: lesson 02 (one addition, swallowed updates). Six exercises, 34
# points. No GPU is needed: the arithmetic of seven generations is emulated to the bit. Speed is
# measured on your machine. Published measurements of real GPUs name their source.

# %% id="setup"
import math
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional as F

from labkit.formats import BF16, FP16, FP32
from labkit.bench import (
    ConvCase,
    ElementwiseCase,
    GemmCase,
    device_report,
    formats_on,
    gains,
    intensity,
    linear_gemms,
    measure,
    roofline,
    run_cases,
)
from labkit.gemm import SEQUENTIAL_FP16, SEQUENTIAL_FP32, SPECS, accumulate, emulate
from labkit.grading import check
from labkit.widgets import GpuRun, MmaBlock, gains_figure, generations_figure, predict
from labkit.widgets import roofline_figure, sum_errors, sum_errors_figure, sweep_figure

# %% [markdown]
# ## 1 · One instruction
#
# Almost all the work of a network is one operation: a product of two matrices, added to a third.
#
# $$D = A \cdot B + C \qquad D_{ij} = C_{ij} + \sum_k A_{ik} \, B_{kj}$$
#
# A *Tensor Core* is the part of an NVIDIA GPU that does this for a small piece of the matrices, a
# *tile*, in one instruction. On Volta, the first GPU that had them, a tile is 4 x 4 x 4.

# %% id="predict-product"
predict("tensor.product")

# %% [markdown]
# **One tile, by hand.** Row 1 of A meets column 2 of B, and C is where the sum begins. Change a
# number, or `i` and `j`, and run it again.

# %% id="touch-tile"
A = torch.tensor([[1, 2, 0, 1], [0, 1, 3, 0.5], [2, 0, 1, 1], [1, 1, 1, 1]]).half()
B = torch.tensor([[1, 0, 2, 1], [0, 1, 1, 0], [2, 1, 0.5, 0], [4, 0, 2, 1]]).half()
C = torch.full((4, 4), 10.0)  # FP32
D = emulate(A, B, C, SPECS["V100"])

i, j = 1, 2
products = " + ".join(f"{a:g}*{b:g}" for a, b in zip(A[i], B[:, j], strict=True))
print(f"D[{i},{j}] = {C[i, j]:g} + {products} = {D[i, j]:g}\n")
print(D)
m = A.shape[0]
n = B.shape[1]
k = A.shape[1]
print(f"\n{m} x {n} x {k} = {m * n * k} products, each added up: one instruction")

# %% [markdown]
# People say: "Multiply in FP16, add in FP32". Check both halves of this sentence:


# %% id="touch-halves" tags=["claim-C19", "answer-tensor.product"]
def tensor_core(a, b, c, gpu):
    """One element of D: c + a[0]*b[0] + a[1]*b[1] + ..., C and D in FP32."""
    A = torch.tensor([a]).half()
    B = torch.tensor([b]).half().T
    C = torch.tensor([[c]])
    return emulate(A, B, C, SPECS[gpu]).item()


print(f"{'one product':<24}{'FP16':>12}{'Tensor Core':>14}{'exactly':>14}")
with np.errstate(over="ignore"):
    for x in (300.0, 1 + 2.0**-10):
        print(f"{f'{x:.6g} * {x:.6g}':<24}{np.float16(x) * np.float16(x):>12.8g}", end="")
        print(f"{tensor_core([x], [x], 0.0, 'V100'):>14.8g}{x * x:>14.8g}")

in_fp32 = np.float32(1)
for _ in range(15):
    in_fp32 += np.float32(1.5 * 2**-24)
sums = {"FP32": in_fp32}
for gpu in ("V100", "A100", "H100"):
    sums[gpu] = tensor_core([2.0**-12] * 15, [1.5 * 2.0**-12] * 15, 1.0, gpu)
sums["exactly"] = 1 + 22.5 * 2**-24
print("\n15 products of 1.5 * 2^-24, added to 1: what comes on top, in units of 2^-24")
print(f"{'':<16}" + "".join(f"{name:>9}" for name in sums))
print(f"{'':<16}" + "".join(f"{(value - 1) * 2**24:>9g}" for value in sums.values()))

# %% [markdown] tags=["answer-tensor.product"]
# **The products are better than FP16, the additions worse than FP32.** A product of two numbers of
# 11 bits has 22 bits, and all of them enter the sum. So does its exponent, even where FP16 has no
# such exponent: 300 * 300 is 90,000, not inf.
#
# But a Tensor Core does not add as a processor's FP32 unit does. How it adds differs from
# generation to generation; you can watch it in section 3. First: why does the format of a sum
# matter?

# %% [markdown]
# ## 2 · What adds up

# %% id="predict-ones"
predict("tensor.ones")

# %% id="touch-ones" tags=["answer-tensor.ones"]
adders = {
    "FP16, one by one": SEQUENTIAL_FP16,
    "V100, C and D in FP16": replace(SPECS["V100"], result=FP16),
    "A100, C and D in FP16": replace(SPECS["A100"], result=FP16),
    "H100, C and D in FP16": replace(SPECS["H100"], result=FP16),
    "FP32, one by one": SEQUENTIAL_FP32,
    "V100, C and D in FP32": SPECS["V100"],
}
ones = torch.ones(1, 40_000).half()
print(f"{'ones':<24}{4096:>8,}{40_000:>10,}")
for name, adder in adders.items():
    short = accumulate(ones[:, :4096], ones[:, :4096].T, accumulator=adder).item()
    long = accumulate(ones, ones.T, accumulator=adder).item()
    print(f"{name:<24}{short:>8,.0f}{long:>10,.0f}")

# %% [markdown] tags=["answer-tensor.ones"]
# **An accumulator does not overflow first. It stops counting.** The *accumulator* is where the sum
# is kept. Added one by one, an FP16 accumulator stops at 2048: its numbers are 2 apart there, and 1
# is half of that.
#
# A Tensor Core adds a whole block before it rounds: 4 ones on a V100, 8 on an A100, 16 on an H100.
# So with an FP16 accumulator it counts 4, 8 or 16 times as far, and then it stops as well. With C
# and D in FP32 a V100 counts to 16.8 million, an A100 to 33.6 and an H100 to 67.1.

# %% [markdown]
# *No idea how to begin? `from labkit.grading import hint`, then `hint("tensor.standstill")`: you
# get three hints, one by one, at no cost.*
#
# ### Exercise 1: where an FP16 accumulator stops  ●●○  8 min
#
# Add the product `a * b` to `total` again and again. The product is exact (a Python float holds
# it). The sum is rounded to `np.float16` once, after each addition. Count the additions that
# changed something. (If the sum overflows, it stays at inf.)


# %% id="exercise-tensor-standstill" tags=["exercise-tensor.standstill"]
def my_standstill(a, b):
    """Return (count, total): where adding a*b again and again stands still.

    `count` is how many products a*b are counted before one changes nothing. `total` is the sum
    that stands still, as a float.
    """
    ### BEGIN SOLUTION
    k = 0
    total = np.float16(0)
    while True:
        longer = np.float16(float(total) + a * b)
        if longer == total:
            return k, float(total)
        k = k + 1
        total = longer
    ### END SOLUTION


check("tensor.standstill", my_standstill)

# %% [markdown]
# ## 3 · Inside a block

# %% id="predict-same"
predict("tensor.same")

# %% [markdown]
# You see one element of D and one block of its sum, bit by bit. **Move the slider** until the last
# bit is cut off, then choose another GPU. `large, small, minus large` shows where bits are cut off.
# With `ones` you can find where each generation stops counting. `random` is the everyday case.

# %% id="touch-block"
MmaBlock("1 and small terms", "V100")

# %% id="touch-generations" tags=["claim-C18", "answer-tensor.same"]
sums = {
    "1 + 16 * 2^-24": ([2.0**-12] * 16, [2.0**-12] * 16, 1.0),
    "1 + 16 * 2^-25": ([2.0**-12] * 16, [2.0**-13] * 16, 1.0),
    "2^16 + 2^-9 - 2^16": ([2.0**8, 2.0**-4, -(2.0**8)], [2.0**8, 2.0**-5, 2.0**8], 0.0),
}
print(f"{'D - C, times 2^24':<22}{'exactly':>10}" + "".join(f"{gpu:>10}" for gpu in SPECS))
for name, (a, b, c) in sums.items():
    exact = sum(x * y for x, y in zip(a, b, strict=True))
    found = [tensor_core(a, b, c, gpu) - c for gpu in SPECS]
    print(f"{name:<22}" + "".join(f"{2**24 * value:>10,.0f}" for value in (exact, *found)))

# %% [markdown] tags=["answer-tensor.same"]
# **Align, cut, add, cut.** This is what a Tensor Core does with a block:
#
# 1. **Align.** All products of the block, and C, are shifted to the largest exponent among them.
# 2. **Cut.** Bits behind the last of 23 (V100), 24 (A100) or 25 (H100) places are cut off, never
#    rounded.
# 3. **Add.** The remaining bits are added exactly.
# 4. **Cut.** The sum is cut to FP32 (or rounded to nearest, if D is FP16). Then D is the C of the
#    next block.
#
# In a formula, with $F$ places, terms $t$ and their exponents $e_t$:
#
# $$D = \text{cut}\Big(\sum_t \text{cut}_F\big(t \cdot 2^{-E}\big)\Big) \cdot 2^{E}, \qquad E = \max_t e_t$$
#
# So small terms are cut off next to a large one, *even if there are many of them*. A sum of
# positive numbers is never too large. Over a long sum these errors add up. How much does it matter?
# Enter a number.


# %% id="predict-errors"
def times_larger():
    """Return the error of an FP16 accumulator, as a multiple of a V100's."""
    errors = sum_errors([8192]).errors
    return errors["FP16, one by one"][0] / errors["V100"][0]


predict("tensor.errors", times_larger)

# %% [markdown]
# The inputs are the same, and every generation has a different answer:

# %% id="touch-errors" tags=["answer-tensor.errors"]
sum_errors_figure()

# %% [markdown] tags=["answer-tensor.errors"]
# Cutting always errs in the same direction, so errors add up with the number of blocks: K / 4, K /
# 8 or K / 16. Rounding to nearest errs in both directions. Even so, a V100's sum of 8,192 products
# is a thousand times better than an FP16 accumulator's. It is off by less than 2^-11, and that is
# how much a single FP16 operand may be off. (cuBLAS does not document the order in which it adds
# the blocks.)

# %% [markdown]
# ### Exercise 2: one block of a Tensor Core  ●●●  15 min
#
# Terms are the products and C.
#
# - The exponent of a number is `math.frexp(x)[1] - 1`. That of a product is the *sum* of its
#   operands' exponents.
# - A term of 0 has no exponent: leave it out when you look for the largest. If all terms are 0, so
#   is the sum.
# - One unit is 2^(largest exponent - fraction_bits). `math.trunc` cuts to whole units.
# - Last, cut the sum: `n.bit_length()` says how many bits a whole number has, and the result keeps
#   `result_bits`, 24 in FP32. Other accumulators keep fewer or more.


# %% id="exercise-tensor-block" tags=["exercise-tensor.block"]
def my_block(a, b, c, fraction_bits, result_bits):
    """Return c + a[0]*b[0] + a[1]*b[1] + ... as a Tensor Core adds one block.

    Args:
        a: List of floats.
        b: List of floats, as long as `a`.
    """

    ### BEGIN SOLUTION
    def exponent(x):
        return math.frexp(x)[1] - 1

    terms = [(x * y, exponent(x) + exponent(y)) for x, y in zip(a, b, strict=True)]
    terms.append((c, exponent(c)))
    largest = max((e for value, e in terms if value), default=0)
    unit = 2.0 ** (largest - fraction_bits)
    total = sum(math.trunc(value / unit) for value, _ in terms)
    spare = max(0, total.bit_length() - result_bits)
    return math.trunc(total / 2**spare) * 2**spare * unit
    ### END SOLUTION


check("tensor.block", my_block)

# %% [markdown]
# ## 4 · Three products for a layer

# %% id="predict-backward"
predict("tensor.backward")

# %% id="touch-backward" tags=["claim-C20", "answer-tensor.backward"]
x = torch.randint(-4, 5, (64, 300)).float().requires_grad_()
# torch stores a weight as [outputs, inputs]
weight = torch.randint(-4, 5, (10, 300)).float().requires_grad_()
grad_y = torch.randint(-4, 5, (64, 10)).float()
F.linear(x, weight).backward(grad_y)
print("dX = dY W:  ", torch.equal(x.grad, grad_y @ weight))
print("dW = dY^T X:", torch.equal(weight.grad, grad_y.T @ x))

print(f"\n{'':<24}{'m':>6}{'n':>6}{'k':>6}{'FLOP':>12}")
for case in linear_gemms(batch=64, inputs=300, outputs=10):
    print(f"{case.about:<24}{case.m:>6}{case.n:>6}{case.k:>6}{case.flops:>12,}")

# %% [markdown] tags=["answer-tensor.backward"]
# **Each of the three sizes is summed over once.** Forward sums over the inputs, dX over the
# outputs, dW over the batch. So the length of the sums, and with it the error, is different in
# each. And a size that is slow on a Tensor Core is in all three.
#
# $$Y = X W^\top \qquad dX = dY \, W \qquad dW = dY^\top X$$

# %% [markdown]
# ### Exercise 3: the backward products  ●●○  8 min


# %% id="exercise-tensor-backward" tags=["exercise-tensor.backward"]
def my_backward(x, weight, grad_y):
    """Return (grad_x, grad_weight, [(m, n, k) of the first product, (m, n, k) of the second]).

    x is [batch, inputs], weight [outputs, inputs], grad_y [batch, outputs].
    A product is m by n and sums over k.
    """
    ### BEGIN SOLUTION
    batch, inputs = x.shape
    outputs = len(weight)
    return grad_y @ weight, grad_y.T @ x, [(batch, inputs, outputs), (outputs, inputs, batch)]
    ### END SOLUTION


check("tensor.backward", my_backward)

# %% [markdown]
# ## 5 · What is the limit?

# %% id="predict-bound"
predict("tensor.bound")

# %% [markdown]
# A device has two limits: how fast it reads and writes (*bandwidth*), and how fast it multiplies.
# Both are measured on your machine now. A *FLOP* is one multiplication or addition; the *intensity*
# of a layer is how many FLOP it does for each byte that it moves. **Put your own layers** into the
# list.

# %% id="touch-roofline" tags=["answer-tensor.bound"]
print(device_report(), "\n")
ceilings = measure("ceilings", rounds=3, seconds=15)
roof = roofline(ceilings.runs)
narrow = FP16 if ceilings.kind == "cuda" else BF16  # what this machine can be fast at
layers = {}
for n in (1, 4, 16, 512):
    layers[f"linear 1024 to 4096, batch {n}"] = lambda f, n=n: GemmCase(n, 4096, 1024, f, "NT")
layers["conv 3x3, 64 channels"] = lambda f: ConvCase(8, 64, 56, 56, 64, 3, f)
layers["activation (hardswish)"] = lambda f: ElementwiseCase("hardswish", 2**22, f)

print(f"{'FLOP a byte, and limit':<32}{'FP32':>18}{narrow.name:>20}")
for name, layer in layers.items():
    told = (f"{intensity(layer(f)):.3g}, {roof.bound(layer(f))}" for f in (FP32, narrow))
    print(f"{name:<32}" + "".join(f"{text:>19}" for text in told))
print(f"{'ridge, where the limits meet':<32}{roof.ridge(FP32):>10.3g}{roof.ridge(narrow):>20.3g}")

# %% [markdown]
# **Choose a card.** No GPU was measured for this lab yet. So the left half of each figure shows
# what *others published* about the card of your choice. A hexagon is one number with its source and
# date (they are in `data/published.csv`). A dotted line is the promise of the data sheet. Once a
# GPU is on record here, it takes their place.

# %% id="touch-roofline-figure" tags=["answer-tensor.bound"]
card = "A100"  # or one of these: P100, GTX 1080 Ti, T4, RTX 3090, V100, RTX 4090, H100
roofline_figure(here=[ceilings, measure("layers", rounds=2, seconds=8)], card=card)

# %% [markdown] tags=["answer-tensor.bound"]
# **Under the slope only bytes count. Under the flat roof only multipliers count.** This picture is
# called a *roofline*.
#
# - On the slope (little intensity) half the bytes give twice the speed, with or without Tensor
#   Cores.
# - On the flat part Tensor Cores lift the roof. The *ridge*, where slope and roof meet, moves to
#   the right. A layer that was limited by its multiplications in FP32 may be limited by memory in
#   FP16.
# - A small batch, an activation, a norm, an optimizer's step are always on the slope.
#
# $$\text{intensity} = \frac{2 \, m \, n \, k}{\text{bytes} \cdot (mk + kn + mn)} \qquad \text{speed} \le \min(\text{peak}, \ \text{intensity} \cdot \text{bandwidth})$$

# %% id="touch-bandwidth" tags=["claim-C15"]
sweep_figure("bandwidth", measure("bandwidth", rounds=3, seconds=8), card=card)

# %% [markdown]
# ### Exercise 4: what limits a layer  ●○○  6 min
#
# `ridge` is in FLOP for each byte. At the ridge itself, say "compute".


# %% id="exercise-tensor-intensity" tags=["exercise-tensor.intensity"]
def my_layer(batch, inputs, outputs, bytes_each, ridge):
    """Return (FLOPs, bytes read and written, "bandwidth" or "compute") of y = x @ weight.T.

    The layer has no bias.
    """
    ### BEGIN SOLUTION
    flops = 2 * batch * inputs * outputs
    moved = bytes_each * (batch * inputs + inputs * outputs + batch * outputs)
    return flops, moved, "bandwidth" if flops / moved < ridge else "compute"
    ### END SOLUTION


check("tensor.intensity", my_layer)

# %% [markdown]
# ## 6 · How much faster?
#
# "2x", "4x", "8x", "10x": each number is right somewhere. The makers' data sheets promise, at the
# most, in TFLOP/s:
#
# | | FP64 | FP32 | FP16 | FP16 over FP32 |
# |---|---|---|---|---|
# | P100 (Pascal, no Tensor Cores) | 5.3 | 10.6 | 21.2 | 2x |
# | V100 (Volta) | 7.8 | 15.7 | 125 | 8x: the "8x in theory" |
# | A100 (Ampere) | 9.7 | 19.5 (TF32: 156) | 312 | 16x, but 2x over TF32 |
# | H100 SXM (Hopper) | 34 | 67 (TF32: 495) | 989 | 15x, but 2x over TF32 |
#
# (Without sparsity; other Pascal cards, such as the P40, multiply in FP16 at 1/64 of their FP32
# speed.) These are roofs. What a product of *some size* reaches has to be measured. On a CPU with
# AVX512-BF16 you can see a speed-up in low precision without any GPU:

# %% id="touch-speed" tags=["claim-C17"]
here = device_report()
sizes = (64, 256, 1024) if here.kind == "cpu" else (256, 2048, 8192)
formats = formats_on(here)
cases = [GemmCase(n, n, n, f, "NT") for n in sizes for f in formats]
runs = {(run.case.m, run.case.format): run for run in run_cases(cases, here.kind, rounds=3)}
print(f"{here.name}: times as fast as FP32")
print(f"{'m = n = k':<12}" + "".join(f"{f.name:>8}" for f in formats))
for n in sizes:
    print(f"{n:<12,}", end="")
    for f in formats:
        gain = runs[n, FP32].seconds / runs[n, f].seconds if (n, f) in runs else math.nan
        print(f"{gain:>8.2f}", end="")
    print()

# %% id="touch-size"
sweep_figure("size", card=card)

# %% [markdown]
# And what would a card gain in whole trainings? Others timed hundreds of them in FP16 (mixed
# precision) and in FP32. On an A100 and later cards, FP32 products may run in TF32, where it is
# allowed. That is faster by itself, so the table says what FP16 was compared with.

# %% id="touch-gains" tags=["claim-C12", "claim-C13"]
print(f"{'published: times as fast in FP16':<52}{'slowest':>9}{'middle':>9}{'fastest':>9}")
for name in ("V100", "T4", "RTX 3090", "A100", "RTX 4090", "H100"):
    for what in ("product", "training"):
        for wide, ratios in gains(what, name).items():
            about = f"{name}, {what} ({len(ratios)}), over {wide}"
            print(f"{about:<52}{ratios[0]:>9.2f}{np.median(ratios):>9.2f}{ratios[-1]:>9.2f}")
gains_figure(card)

# %% [markdown]
# **One number does not exist.** In the middle a V100 trains 2.9 times as fast as in FP32, and it
# varies between 0.97 and 5.8 times. An A100 trains 1.7 times as fast as in TF32. Work that waits
# for data or for memory gains nothing. Products are 3 times as fast on the GeForce cards and 13
# times on an A100. So "4x" fits the one, "10x" the other, and "8x" is the promise of V100's data
# sheet.
#
# **Newer cards gain less.** Four trainings were timed on a card of each generation, in one
# benchmark. What is a new card waiting for?

# %% id="touch-gain-by-card"
generations_figure()

# %% [markdown]
# ResNet-50 gained 2.26 times on a V100 and 1.04 times on a B200. Two causes fit this:
#
# - On the A100 and later cards, "FP32" may already run in TF32 on Tensor Cores. The source does not
#   say.
# - The faster the products, the larger the part of a step that is *not* a product: batch norm,
#   data, memory. A card that waits for images gains nothing from FP16.
#
# On some cards 16 bits are *slower*. A GTX 1660 Ti takes 8.6 times as long in FP16 as in FP32. An
# RTX 2080 Ti emulates BF16, and takes 1.8 times as long in it. `labkit check` says what was
# published of your card.

# %% [markdown]
# **Is there a GPU in your machine?** Then measure it: in three minutes it makes the measurements of
# these figures, and trains some of the lab's tasks in FP32 and in FP16. The results are stored. Run
# the cells above and below again, and they show your GPU. Without a GPU the button says what you
# can do.

# %% id="touch-my-gpu"
GpuRun()

# %% [markdown]
# **What counts is hardware that multiplies the format.** A CPU without FP16 arithmetic is *slower*
# in FP16 than in FP32. Where it has BF16 instructions, BF16 is 2 to 3 times as fast in large
# products, and slower in small ones.
#
# A whole training step gains less than its products. Everything on the slope gains 2x at most, and
# the parts that stay in FP32 gain nothing. So "2x to train" needs a GPU, a network of large
# products, and a measurement. The button makes it in short, `make gpu` in full.
#
# And the sizes? Tensor Cores are fed 16 bytes at a time: 8 numbers of FP16 or BF16. A row that does
# not begin at a multiple of 16 bytes has to be fetched in smaller pieces.

# %% id="touch-alignment" tags=["claim-C16"]
sweep_figure("alignment", card=card)

# %% [markdown]
# The CPU on the right loses a quarter at most (FP16, rows of 511 numbers). A GPU loses more. For an
# H100, a layer of 10,922 units was published as 1.45 times as fast with 10,912 or 10,944 units.
# (These are multiples of 32 and 64; newer cards like 64.) The cure costs little: 1,001 classes
# become 1,008, which is 0.7% more work.
#
# ### Exercise 5: multiples of 8  ●●○  8 min
#
# Add zeros at the end (this is called *padding*), in the tensors' own dtype. Multiply as a Tensor
# Core does: FP16 in, FP32 inside, FP16 out: `(x.float() @ weight.float().T).half()`.


# %% id="exercise-tensor-padding" tags=["exercise-tensor.padding"]
def my_padded_linear(x, weight):
    """Return (x padded, weight padded, y), all FP16.

    All sizes of the padded tensors are multiples of 8; y has its own size.
    x is [n, inputs], weight [outputs, inputs], y [n, outputs].
    """
    ### BEGIN SOLUTION
    n, inputs = x.shape
    outputs = len(weight)
    more_n, more_inputs, more_outputs = (-size % 8 for size in (n, inputs, outputs))
    wide = F.pad(x, (0, more_inputs, 0, more_n))
    tall = F.pad(weight, (0, more_inputs, 0, more_outputs))
    y = (wide.float() @ tall.float().T).half()
    return wide, tall, y[:n, :outputs]
    ### END SOLUTION


check("tensor.padding", my_padded_linear)

# %% [markdown]
# ## 7 · FP32 out of BF16
#
# *Three small numbers are one large one.*
#
# Tensor Cores multiply 16-bit numbers, many times faster than FP32. Can they multiply FP32
# matrices?
#
# An FP32 number has 24 significant bits, a BF16 number has 8. So an FP32 number is exactly the sum
# of three BF16 numbers: its first 8 bits, the next 8, and the last 8. Call them `high`, `middle`
# and `low`. A product of two sums has nine parts:
#
# | | high | middle | low |
# |---|---|---|---|
# | **high** | 1 | $2^{-8}$ | $2^{-16}$ |
# | **middle** | $2^{-8}$ | $2^{-16}$ | $2^{-24}$ |
# | **low** | $2^{-16}$ | $2^{-24}$ | $2^{-32}$ |
#
# The table shows the size of each part.

# %% id="predict-split"
predict("tensor.split")


# %% id="touch-split" tags=["claim-C67", "answer-tensor.split"]
def bf16_parts(x):
    """Return three FP32 tensors that hold BF16 numbers; their sum is x."""
    parts = []
    for _ in range(3):
        parts.append(x.bfloat16().float())
        x = x - parts[-1]
    return parts


# 0 is the high part, 1 the middle, 2 the low one
PAIRS = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0), (1, 2), (2, 1), (2, 2))
numbers = torch.Generator().manual_seed(0)
a = torch.randn(64, 512, generator=numbers)
b = torch.randn(512, 64, generator=numbers)
exact = a.double() @ b.double()
of_a = bf16_parts(a)
of_b = bf16_parts(b)
for count in (1, 3, 6, 9):
    total = sum(of_a[i] @ of_b[j] for i, j in reversed(PAIRS[:count]))  # the small ones first
    print(f"{count} products of BF16: error {(total - exact).abs().max() / exact.abs().max():.1e}")
print(f"FP32 itself:         error {(a @ b - exact).abs().max() / exact.abs().max():.1e}")

# %% [markdown] tags=["answer-tensor.split"]
# **Six products are as good as FP32.** The other three are about $2^{-24}$ or smaller, as small as
# FP32's own rounding. Three products have about 16 bits. The products themselves are exact, and the
# sums are FP32, as in section 1.
#
# | products | bits, about | where |
# |---|---|---|
# | 1 | 8 | `torch.set_float32_matmul_precision("medium")` |
# | 3 | 16 | `"high"` allows it, or TF32 with 11 bits |
# | 9 | 24 | cuBLAS on a B200, `CUBLAS_COMPUTE_32F_EMULATED_16BFX9` |
#
# NVIDIA takes nine, because the result is then almost that of FP32 for any input. On a GB200 this
# was published as 1.4 times as fast as FP32. In the same way FP64 is made out of INT8 or FP8: this
# is the *Ozaki scheme*.
#
# *Sources:* the documentation of `torch.set_float32_matmul_precision`; pytorch/pytorch#195301
# (GB200); NVIDIA/cutlass#2293; arXiv:2508.00441 and arXiv:2504.08009 (Ozaki). *Not reproduced
# here:* the speed.

# %% [markdown]
# Which of these does *your* torch use? From torch 2.9 on each backend has a switch of its own. The
# old switches still work, but do not mix both kinds.
#
# | old | new | allows |
# |---|---|---|
# | `torch.backends.cuda.matmul.allow_tf32 = True` | `torch.backends.cuda.matmul.fp32_precision = "tf32"` | TF32 in matrix products |
# | `torch.backends.cudnn.allow_tf32 = True` (the default) | `torch.backends.cudnn.conv.fp32_precision = "tf32"` | TF32 in convolutions |
# | - | `torch.backends.mkldnn.matmul.fp32_precision = "bf16"` | BF16 in products on a CPU |
#
# `"ieee"` in place of these names means plain FP32.
#
# ### Exercise 6: FP32 with BF16 hands  ●●○  10 min
#
# Split both matrices into three parts each. Round to BF16, subtract, and round the rest. Then add
# up the products in the order of `PAIRS`: the first one, the first three, or the first six.
# Multiply and add in FP32. The last bits may differ. Some numbers are so small that BF16 rounds
# their third part to 0.


# %% id="exercise-tensor-split" tags=["exercise-tensor.split"]
def my_product(a, b, products):
    """Return a @ b in FP32, from products of BF16 parts.

    Args:
        a: FP32 tensor [m, k].
        b: FP32 tensor [k, n].
        products: 1, 3 or 6.
    """

    ### BEGIN SOLUTION
    def parts(x):
        found = []
        for _ in range(3):
            found.append(x.bfloat16().float())
            x = x - found[-1]
        return found

    first = parts(a)
    second = parts(b)
    pairs = ((0, 0), (0, 1), (1, 0), (1, 1), (0, 2), (2, 0))[:products]
    return sum(first[i] @ second[j] for i, j in reversed(pairs))
    ### END SOLUTION


check("tensor.split", my_product)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C12 FP16 is about twice as fast to train (1.5x to 3x) | half true, as others published: 2.9 times FP32 in the middle on a V100 (0.97 to 5.8), 1.7 times TF32 on an A100 | section 6 |
# | C13 about 10x FP64 and 4x FP32 in products; 8x in theory | half true, as others published: 3 times FP32 on GeForce cards, up to 8 on a V100, 13 on an A100; 8 is V100's data sheet | section 6 |
# | C15 FP16 moves half the bytes, so bandwidth-bound work gains as well | true: FP16 copies and activations are about twice as fast, on a CPU too | section 5 |
# | C16 multiples of 8 run best | true, as others published: sizes that are none cost an H100 a third of its speed; 64 is the better multiple there | section 6 |
# | C17 only GPUs with Tensor Cores gain | half true: an AMD EPYC, a CPU with BF16 instructions, gains in BF16 products, and any device in bytes | section 6 |
# | C18 a Tensor Core computes D = A·B + C | half true: of terms that were cut, so 1 + 16 · 2^-25 is 1 on a V100 and an A100 | section 3 |
# | C19 multiply in FP16, add in FP32 | half true: products are exact, additions are coarser than FP32's | section 1 |
# | C20 the backward pass of a linear layer is two more products | true, to the bit; with torch's W[outputs, inputs], dX = dY W | section 4 |
# | C67 a matrix product on 16-bit numbers cannot have FP32's accuracy | false: six products of BF16 parts have it | section 7 |
#
# C12, C13 and C16 are settled by published measurements; the button above repeats them on your own
# GPU. C14 (inference) is settled in lesson 05.
#
# **Where you meet this.** `mma.sync`, `wgmma` and `tcgen05.mma` in NVIDIA's PTX, `nvcuda::wmma` in
# CUDA C++; `CUBLAS_COMPUTE_32F` and `CUBLAS_COMPUTE_16F`, which choose the accumulator;
# `torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction`, `allow_fp16_accumulation` and
# `torch.set_float32_matmul_precision`; `torch.utils.flop_counter.FlopCounterMode`; "tensor pipe
# utilisation" in Nsight Compute. DeepSeek-V3 adds FP8 blocks up outside the Tensor Core every 128
# products, because inside only 14 bits are kept.
