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

# %% [markdown] on_the_map="the order of sums, positions that round to their neighbours, and five short cards"
# # 11c · Order and positions
#
# **You will be able to** say why the same question gets other bits in a larger batch, and which
# values must stay in FP32.
#
# About 50 minutes in two parts and five short cards. A teacher can choose among them: none needs
# another. Two exercises, 10 points. Builds on: sums in FP16 (lesson 02), autocast (lesson 05). You
# need two facts from these lessons:
#
# - FP16 has 11 significant bits, and its largest number is 65504. **BF16** has the range of FP32,
#   but only 8 significant bits.
# - *Autocast* casts the inputs of matrix products to a 16-bit format.
#
# Formats are emulated, number by number, and exact to the bit. So it is slow. Products of torch
# itself are those of your processor. Results that took longer than some seconds were **recorded**
# (torch 2.13, CPU, seeds 0, 1 and 2). Each part also names published results that were *not*
# reproduced here.

# %% id="setup"
import numpy as np
import torch

from labkit.amp import autocast
from labkit.formats import BF16, FP16, FP32, TF32
from labkit.grading import check
from labkit.interop import round_tensor
from labkit.widgets import NumberLine, predict

# %% [markdown]
# ## 1 · Same row, another answer
#
# A server answers many questions at once, in a batch. You send your question twice. The weights are
# the same, and nothing is random. Only the batch around your row is larger the second time.

# %% id="predict-rows"
predict("beyond.rows")

# %% id="touch-rows" tags=["answer-beyond.rows"]
numbers = torch.Generator().manual_seed(0)
rows = torch.randn(256, 2048, generator=numbers)
weights = torch.randn(2048, 512, generator=numbers)
in_a_large_batch = torch.mm(rows, weights)[0]
for batch in (1, 2, 33, 256):
    alone = torch.mm(rows[:batch], weights)[0]
    differ = (alone != in_a_large_batch).float().mean()
    most = (alone - in_a_large_batch).abs().max()
    print(f"batch of {batch:>3}: {differ:4.0%} of the results differ, ", end="")
    print(f"by {most:.0e} at most; the largest result is {alone.abs().max():.0f}")

# %% [markdown] tags=["answer-beyond.rows"]
# **The batch chooses the order of the sums.** The library chooses a kernel by the shape of the
# batch, and each kernel adds in an order of its own. FP32 rounds after each addition. (Your numbers
# may differ: they depend on the library of your processor. Two calls with the same shape give the
# same bits.)
#
# **Recorded:**
#
# - For other shapes, the bits differ in 74% to 97% of the results.
# - A trained `char_lstm` wrote 20 texts of 100 characters, alone and in a batch of 64. No character
#   differs.
#
# Bits differ, tokens do not. Tokens differ in larger models and longer texts.

# %% [markdown]
# **Can a result be the same for every batch?** Yes, if the order of the sum does not depend on the
# batch. Cut each sum into pieces of a fixed length, and add them in a fixed order:

# %% id="touch-invariant"
def fixed_order(rows, weights, piece=256):
    """Return rows @ weights; each row is computed by itself, from pieces of fixed length."""
    results = []
    for row in rows:
        total = torch.zeros(weights.shape[1])
        for start in range(0, len(row), piece):
            total = total + row[None, start : start + piece].mm(weights[start : start + piece])[0]
        results.append(total)
    return torch.stack(results)


in_a_large_batch = fixed_order(rows, weights)[0]
alone = [fixed_order(rows[:batch], weights)[0] for batch in (1, 2, 33, 256)]
print("bits that differ:", [(result != in_a_large_batch).sum().item() for result in alone])

# %% [markdown]
# No bit differs. The price is speed: the library can no longer choose the best kernel for each
# shape. vLLM has such kernels as a switch.
#
# *Source:* Thinking Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025). *Not
# reproduced here:* one question, asked 1,000 times, got 80 different answers.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("beyond.orders")`: you get
# three hints, one by one, at no cost.*
#
# ### Exercise 1: the same numbers in two orders  ●●○  7 min
#
# Add FP32 numbers in two orders:
#
# - one after another;
# - the first half one after another from 0, the rest one after another from 0, and then these two
#   sums.
#
# Round to FP32 (`np.float32`) after *each* addition. The first half of 41 numbers has 20.


# %% id="exercise-beyond-orders" tags=["exercise-beyond.orders"]
def my_two_sums(numbers):
    """Return (the sum one after another, the sum of the two halves), as floats.

    Args:
        numbers: List of floats that FP32 holds; an empty sum is 0.
    """

    ### BEGIN SOLUTION
    def in_turn(part):
        total = np.float32(0)
        for x in part:
            total = np.float32(total + np.float32(x))
        return total

    half = len(numbers) // 2
    first = in_turn(numbers[:half])
    rest = in_turn(numbers[half:])
    return float(in_turn(numbers)), float(np.float32(first + rest))
    ### END SOLUTION


check("beyond.orders", my_two_sums)

# %% [markdown]
# ## 2 · Positions that melt
#
# *Neighbouring positions round to the same BF16 number, and autocast rounds them.*
#
# A transformer has to know the position of a token. *RoPE* turns each pair of numbers by an angle:
# the position times a speed. Only the angle *between* two tokens matters. Positions are whole
# numbers: 0, 1, 2, ... In the code of models they are called `position_ids`.

# %% id="predict-positions"
predict("beyond.positions")

# %% [markdown]
# **Drag the number** to 257, and then to 259. Each mark is a number of BF16. The shaded interval
# holds all numbers that round to the same mark.

# %% id="touch-line"
NumberLine(BF16, 257.0, scale="linear", window=(250.0, 266.0))


# %% id="touch-positions" tags=["answer-beyond.positions"]
def right_ones(start, ids=FP32, angles_in=FP32, rotation=FP32, by_product_in=FP32):
    """Return how often attention finds the token before, at 32 positions from `start` on."""
    query = torch.randn(32, generator=torch.Generator().manual_seed(0))
    speeds = 10000 ** (-torch.arange(32) / 32)

    def rotated(positions):
        with autocast(by_product_in):  # the angles are a matrix product, as in most models
            angles = round_tensor(positions.float(), ids)[:, None] @ speeds[None]
        angles = round_tensor(angles.float(), angles_in)
        cos, sin = (round_tensor(part, rotation) for part in (angles.cos(), angles.sin()))
        return torch.cat([query * cos, query * sin], 1)

    places = torch.arange(start, start + 32)
    scores = rotated(places) @ rotated(places + 1).T
    return (scores.tril(-1)[1:].argmax(1) == torch.arange(31)).float().mean().item()


STARTS = (0, 200, 300, 1000, 2100, 5000, 9000)
print(f"{'positions from':<26}" + "".join(f"{start:>7}" for start in STARTS))
WAYS = {
    "all FP32": {},
    "rotation BF16": {"rotation": BF16},
    "ids FP16": {"ids": FP16},
    "ids BF16": {"ids": BF16},
    "angles BF16": {"angles_in": BF16},
    "angles in autocast(BF16)": {"by_product_in": BF16},
}
for name, formats in WAYS.items():
    print(f"{name:<26}" + "".join(f"{right_ones(start, **formats):7.2f}" for start in STARTS))

# %% [markdown] tags=["answer-beyond.positions"]
# **Positions and angles need FP32.** FP16 counts to $2^{11}$ = 2,048, BF16 to $2^8$ = 256. Beyond
# that, neighbours get the same position. Angles in BF16 fail later: they are right up to 1,000. A
# rotation (cosine and sine) in BF16 is not exact either, but it does no harm here.
#
# **Autocast rounds FP32 positions, and no line of your code says so.** Most models compute all
# angles as one matrix product, `inv_freq @ position_ids`. Autocast casts the inputs of matrix
# products to BF16. So it rounds the positions, and the last row equals the row *ids BF16*. This
# broke real models in 2024 (Llama and Gemma in transformers) and in 2026 (Ideogram 4 in diffusers:
# all positions of an image became one). The cure: compute the angles where autocast is switched
# off, `autocast(enabled=False)`.
#
# **Recorded:** an attention layer has *learned* "the token before". How often it is right:
#
# | ids | result |
# |---|---|
# | FP32 | always |
# | FP16 | falls to 0.43 at position 2,100 |
# | BF16 | falls to 0.43 at position 300 |

# %% [markdown]
# *Sources:* arXiv:2104.09864 (RoPE), arXiv:2411.13476 (BF16 breaks it in long texts),
# huggingface/transformers#29285, huggingface/diffusers#13920. *Not reproduced here:* harm by a BF16
# rotation alone.
#
# ### Exercise 2: what must stay in FP32?  ●○○  6 min
#
# BF16 keeps 8 significant bits. Two facts follow. It counts to $2^8$, and no further. And what
# changes by *less* than $2^{-9}$ of itself in a step never changes.
#
# A part of a training has a name, a kind and a number:
#
# - Kind `"counts"`: the number is the largest whole number that the part holds.
# - Kind `"changes"`: the number is the fraction of itself by which the part changes in a step.
#   (Adam's second moment with beta2 = 0.999: 1 - 0.999.)


# %% id="exercise-beyond-keep" tags=["exercise-beyond.keep"]
def my_fp32_parts(parts):
    """Return the names of the parts that must stay in FP32, in their order.

    Args:
        parts: List of (name, "counts" or "changes", float).
    """
    ### BEGIN SOLUTION
    kept = []
    for name, kind, number in parts:
        if (kind == "counts" and number > 2**8) or (kind == "changes" and number < 2.0**-9):
            kept.append(name)
    return kept
    ### END SOLUTION


check("beyond.keep", my_fp32_parts)

# %% [markdown]
# ## Five cards
#
# **TF32** is FP32 rounded to 11 significant bits by a Tensor Core, where you allow it. `1024.5 * 1`
# is 1024. On GPUs from Ampere on, torch allows TF32 in convolutions by default, and in matrix
# products only if you switch it on. In the lab FP32 is FP32, and `RECIPES["TF32"]` is TF32 on any
# device. **Recorded:** least squares of degree 8 was as good in two of three seeds, and 28 times
# worse in the third.
#
# **The epsilon trap.** Adam divides by $\sqrt{v} + 10^{-8}$. If gradients are far below $10^{-8}$,
# only epsilon is left in this sum. **Recorded** (*digits*, loss times $10^{-8}$): accuracy 0.09;
# with an epsilon of $10^{-15}$ it is 0.88. A loss scale does not help, because the gradients are
# divided by it before the step.

# %% id="touch-cards"
print("TF32:   1024.5 becomes", round_tensor(torch.tensor([1024.5]), TF32).item())
for size in (1e-3, 1e-10):
    step = size / (size + 1e-8)
    print(f"Adam:   gradient {size:.0e}, step {step:.3f} of the learning rate")

# %% [markdown]
# **Adam in 8 bits** (arXiv:2110.02861). **Recorded:** with evenly spaced codes the loss explodes
# within six steps, in blocks too, because 24% to 53% of the second moments become zero. With codes
# that are spaced like a floating-point format it trains as well as FP32.
#
# **Biased rounding in attention** (arXiv:2510.04212): where probabilities are exactly 1, all errors
# of BF16 have the same sign, so they add up over the steps. *Not reproduced here.*
#
# **Muon in FP16.** The optimizer Muon divides a matrix of gradients by its norm. Then five steps of
# matrix products make all its singular values nearly equal. The numbers of these steps are small
# enough for FP16. The norm is not: it adds up *squares*, and the square of 1e-5 is 0 in FP16.
# DiffSinger and DeepSpeed compute this norm in FP32 first. *Sources:* openvpi/DiffSinger#301,
# deepspeedai/DeepSpeed#8533.


# %% id="touch-muon"
def five_steps(x):
    """Return a matrix of norm 1 with nearly equal singular values (numbers: Muon, K. Jordan)."""
    for _ in range(5):
        square = x @ x.T
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return x


def singular_values(gradient, dtype, norm_in):
    """Return as text the smallest and the largest singular value after Muon in a dtype."""
    x = gradient.to(dtype)
    norm = x.to(norm_in).square().sum().sqrt()
    x = five_steps((x / norm).to(dtype))
    if not x.isfinite().all():
        return "NaN"
    values = torch.linalg.svdvals(x.float())
    return f"{values.min():.2f} to {values.max():.2f}"


gradient = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
DTYPES = (
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float32),
    (torch.float16, torch.float16),
)
for size in (1e-3, 1e-5):
    for dtype, norm_in in DTYPES:
        values = singular_values(size * gradient, dtype, norm_in)
        print(f"gradients of {size:.0e}   {dtype!s:<15}  norm in {norm_in!s:<15}  ", end="")
        print(f"singular values {values}")

# %% [markdown]
# **And its epsilon has a size.** Muon's result should not depend on the size of the gradient: it
# divides by the norm. But most implementations divide by `norm + 1e-7`, so that they never divide
# by 0. For gradients whose norm is far below $10^{-7}$ that is a division by nearly the same number
# each time. So the step gets smaller with the gradients. A loss scale does not help here either:
# gradients are divided by it first.

# %% id="touch-muon-epsilon"
def length_of_step(gradient, epsilon):
    """Return the norm of Muon's step, in FP32."""
    return five_steps(gradient / (gradient.norm() + epsilon)).norm().item()


unit = gradient / gradient.norm()
for norm in (1.0, 1e-6, 1e-8, 1e-10, 1e-12):
    usual, tiny = (length_of_step(norm * unit, epsilon) for epsilon in (1e-7, 1e-30))
    print(f"gradients with a norm of {norm:.0e}: ", end="")
    print(f"step {usual:5.2f} with 1e-7, {tiny:5.2f} with 1e-30")

# %% [markdown]
# ## What was settled
#
# - The shape of a batch chooses the order of a sum, so the last bits depend on the neighbours in
#   the batch.
# - Values that count, and values that change slowly, stay in FP32. So do positions and their
#   angles, and autocast does not know that.
#
# **Where you meet this.** Batch-invariant kernels in vLLM; `position_ids` and `inv_freq` in
# `transformers`; TF32 in torch's convolutions; 8-bit optimizers in `bitsandbytes`.
