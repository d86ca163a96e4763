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

# %% [markdown] on_the_map="BF16 that cannot forget, FP8 and FP4 with their scales, positions that melt, a network without scales"
# # 11 · Beyond FP16
#
# **You will be able to** say what people train in after FP16, which of its surprises you have seen with your own eyes, and what has
# to stay in FP32.
#
# About 145 minutes in six parts of 20 to 30 minutes. Each part stands alone: a teacher chooses. Eight exercises, 39 points. Builds on:
# what rounding does to small updates (lesson 02), the loss scale (lesson 06), master weights (lesson 07). Three things from there are
# used here:
#
# - FP16 has 11 significant bits, and ends at 65504. **BF16** has the range of FP32, but only 8 significant bits.
# - An update below half the distance of two numbers is *swallowed*: the weight is the same number afterwards.
# - A *recipe* says in which format a network is trained. All recipes of this lesson are rows in `RECIPES`.
#
# Everything is emulated, number by number, and exact to the bit; so it is slow. What took longer than some seconds was **recorded**
# (torch 2.13, CPU, seeds 0, 1 and 2). Each part says what was *not* reproduced here.

# %% id="setup"
import math
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine, rotate, round_saturating, round_to_blocks
from labkit.formats import BF16, E2M1, E4M3, FP16, FP32, MXFP4, NVFP4, TF32, decode
from labkit.gemm import SPECS, emulate
from labkit.grading import check
from labkit.interop import round_tensor
from labkit.train import TASKS, Comparison, recorded, single_digits
from labkit.widgets import Workbench, predict

# %% [markdown]
# ## 1 · The optimizer that cannot forget
#
# A network has learned digits. Now the digits are turned by 90 degrees. The network stays frozen. Only *gains* are learned: each
# hidden number is multiplied by one, and each gain begins at exactly 1.0. (Fine-tuning methods with few parameters do this.)
#
# The gains are kept in BF16, without FP32 master weights. Adam's learning rate is 0.001.

# %% id="predict-gains"
predict("beyond.gains")


# %% id="gains"
class Gained(nn.Module):
    """A frozen network with a learned gain for each hidden number."""

    def __init__(self):
        super().__init__()
        self.net = TASKS["fine_tuning"].make_model().requires_grad_(False)
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(128)) for _ in range(4)])

    def forward(self, x):
        gains = iter(self.gains)
        for layer in self.net:
            x = layer(x) * next(gains) if isinstance(layer, nn.ReLU) else layer(x)
        return x


# %% id="touch-gains"
def learn_gains(recipe, steps=60):
    """Return the loss at the end, the share of gains that moved, and the smallest and largest gain."""
    torch.manual_seed(0)
    data = TASKS["fine_tuning"].make_data()
    engine = Engine(Gained(), partial(torch.optim.Adam, lr=1e-3), RECIPES[recipe])
    for _ in range(steps):
        rows = torch.randint(len(data.train_inputs), (64,))
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(data.train_inputs[rows]), data.train_targets[rows])
        engine.backward(loss)
        engine.step()
    gains = torch.cat([gain.detach().float() for gain in engine.model.gains])
    return loss.item(), (gains != 1).float().mean().item(), gains.min().item(), gains.max().item()


for recipe in ("FP32", "BF16 no master", "BF16 stochastic", "BF16 Kahan"):
    loss, moved, low, high = learn_gains(recipe)
    print(f"{recipe:<16} loss {loss:5.2f}   moved {moved:4.0%}   gains from {low:.3f} to {high:.3f}")

# %% [markdown]
# **Not one gain moved.** Above 1.0 the numbers of BF16 are $2^{-7}$ apart, so half the distance is 0.0039; below 1.0 it is 0.0020.
# Adam's step is about the learning rate, 0.001. So each update is swallowed, in each of the steps, for ever. Three cures work: FP32
# master weights, *stochastic rounding* (up as often as the cut-off digits say), and *Kahan's* sum (what was cut off is kept, and added
# the next time).
#
# | kept for each weight | bytes | moves? |
# |---|---|---|
# | BF16 alone | 2 | no |
# | BF16, stochastic rounding | 2 | yes |
# | BF16 and Kahan's rest in BF16 | 4 | yes |
# | BF16 and an FP32 master | 6 | yes |
#
# **Recorded**, 800 steps: accuracy 0.10 against 0.23 in FP32. In a small GPT no norm weight left 1.0 either; the sign is striking, the
# price small: 0.016 of a loss of 2.7. A learned temperature that begins at 1 ended at exactly 1.000 (FP32: 1.89). And weight decay multiplies each weight by 1 - 0.001: BF16 swallows that too, and a decay of 1.0
# gave the same digits as a decay of 0.
#
# Adam's second moment has the same trouble. In a step it becomes 0.999 times itself, plus a little:

# %% id="touch-ratchet"
for name, format in (("FP32", FP32), ("BF16", BF16)):
    moment, seen = torch.tensor(1e-4), []
    for step in range(1, 3001):
        squared = 3.0 if step == 100 else 1e-4  # one bad batch, at step 100
        moment = round_tensor(0.999 * moment + 0.001 * squared, format)
        seen.append(moment.item())
    print(f"{name}   " + "   ".join(f"step {at}: {seen[at - 1]:.2e}" for at in (99, 100, 1000, 2000, 3000)))

# %% [markdown]
# **It goes up, and never down.** 0.999 times a number of BF16 rounds to that number again. After one bad batch the steps of Adam stay
# too small, for ever. **Recorded** (6,000 steps, then other data): a second moment 32 times too large at the end; accuracy 0.61 in BF16 against 0.75 in FP32; with stochastic rounding
# 0.75.
#
# *Where it is told:* arXiv:2010.06192, with both cures. *Not reproduced here:* that published models were found with norm weights of
# exactly 1.0.
#
# *How exercises work.* Write your answer between the `def` line and the check, and run the cell as often as you like. At grading only
# the exercise's own cell runs, with the imports, functions, classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("beyond.frozen")`: three hints, one by one, at no cost.*
#
# ### Exercise 1: find the frozen parameter  ●●○  8 min
#
# Here are weights in BF16, and what an optimizer wants to add to them, in FP32. A parameter is *frozen* if the sum, rounded to BF16,
# is equal to the weight, in *every* element.


# %% id="exercise-beyond-frozen" tags=["exercise-beyond.frozen"]
def my_frozen(weights, updates):
    """Return the names of the frozen parameters, in the order of `weights`.

    weights  dict: name -> BF16 tensor, of any shape
    updates  dict: name -> FP32 tensor of the same shape; the names may come in another order
    """
    ### BEGIN SOLUTION
    frozen = []
    for name, weight in weights.items():
        after = (weight.float() + updates[name]).bfloat16()
        if after.equal(weight):
            frozen.append(name)
    return frozen
    ### END SOLUTION


check("beyond.frozen", my_frozen)

# %% [markdown]
# ## 2 · FP16 strikes back
#
# A language model is improved by trial: it writes texts, and each text gets a reward. Two programs share the work. A fast *sampler*
# writes, a *learner* trains. Both have the same weights. But they add up in another order, and round at other places.
#
# So they disagree a little about how probable each token (a word or a part of one) was.

# %% id="predict-mismatch"
predict("beyond.mismatch")


# %% id="touch-mismatch"
def log_probabilities(dtype, in_halves):
    """Return log-probabilities of 2,048 tokens, by six layers in which each operation is rounded to a dtype."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 64, generator=numbers).to(dtype)
    weights = [torch.randn(64, size, generator=numbers).div(8).to(dtype) for size in (64,) * 6 + (8,)]

    def product(a, b):
        pieces = (slice(0, 32), slice(32, 64)) if in_halves else (slice(0, 64),)
        return sum((a[:, part].float() @ b[part].float()).to(dtype) for part in pieces)

    for weight in weights[:-1]:
        x = x + torch.tanh(product(x, weight))
    return product(x, weights[-1]).float().log_softmax(-1)[:, 0]


for dtype in (torch.float32, torch.float16, torch.bfloat16):
    difference = log_probabilities(dtype, True) - log_probabilities(dtype, False)
    ratios = difference.view(-1, 32).sum(1).exp()
    token = difference.square().mean().sqrt()
    print(f"{dtype!s:<16} a token differs by {token:.1e}   a text of 32: ratio up to {ratios.max():.3f}")

# %% [markdown]
# **BF16 differs eight times as much as FP16.** It has three bits less, and $2^3 = 8$. The log-probabilities of a text add up, so for
# long texts the ratio of the two probabilities leaves 1, though the weights are equal.
#
# Does training care? It depends on the method. **Recorded:** the plain method (REINFORCE) does not, even with a sampler in FP8. A
# method that *clips* by that ratio does: GSPO, with its published limits of 3e-4 and 4e-4.
#
# | learner / sampler | steps to a reward of 0.4 | texts that are clipped |
# |---|---|---|
# | FP32 or FP16 | 63 to 67 | 0% |
# | BF16 | 72 to 82 | 33% |
# | BF16 / FP8 | 110 to 135 | 49% |
# | BF16 / FP8, the learner computes old log-probabilities itself | 64 to 69 | 0% |
#
# *Where it is told:* arXiv:2510.26788 (back to FP16), arXiv:2507.18071 (GSPO). *Not reproduced here:* a training that collapses.
#
# *Try:* change `torch.tanh` into `torch.relu` in the cell above, and run it. The differences change; do they still stand as 1 to 8?
#
# ### Exercise 2: which texts are clipped?  ●●○  8 min
#
# For each token of a text, take the learner's log-probability minus the sampler's. Take the mean over the text, and make a ratio of it:
# $e^{\text{mean}}$. A text is clipped if its ratio is *below* 1 - `low` or *above* 1 + `high`. A clipped text teaches nothing.


# %% id="exercise-beyond-clipped" tags=["exercise-beyond.clipped"]
def my_clipped(learner, sampler, low, high):
    """Return the places of the clipped texts, as a list: 0 is the first.

    learner, sampler  list of texts; a text is a list of log-probabilities, one for each token
    low, high         the two limits, as 0.0003 and 0.0004
    """
    ### BEGIN SOLUTION
    clipped = []
    for place, (mine, theirs) in enumerate(zip(learner, sampler, strict=True)):
        mean = sum(a - b for a, b in zip(mine, theirs, strict=True)) / len(mine)
        ratio = math.exp(mean)
        if ratio < 1 - low or ratio > 1 + high:
            clipped.append(place)
    return clipped
    ### END SOLUTION


check("beyond.clipped", my_clipped)

# %% [markdown]
# ## 3 · Nine lives of an outlier
#
# FP8 has two formats. **E4M3** has 4 significant bits and ends at 448; it is for weights and activations. **E5M2** has 3, ends at
# 57344, and is for gradients. Only the operands of matrix products are 8 bits wide. Each tensor has a scale of its own: it is
# multiplied by it, rounded, and the product is divided by it.
#
# - *Current* scaling reads the tensor's largest magnitude first. It has to read the tensor twice.
# - *Delayed* scaling takes the largest magnitude of the last 16 steps. What is larger *saturates*: it is cut to the largest number.
#
# At step 50 one bad batch comes: its inputs are 100 times too large.

# %% id="predict-outlier"
predict("beyond.outlier")


# %% id="touch-outlier"
def with_a_bad_batch(recipe, steps=70):
    """Return the losses of a training whose batch 50 is 100 times too large."""
    torch.manual_seed(0)
    data, losses = single_digits(), []
    layers = [part for size in (64, 128, 128, 128) for part in (nn.Linear(size, 128), nn.ReLU())]
    network = nn.Sequential(nn.Flatten(), *layers, nn.Linear(128, 10))
    engine = Engine(network, partial(torch.optim.Adam, lr=1e-3), RECIPES[recipe])
    for step in range(steps):
        rows = torch.randint(len(data.train_inputs), (64,))
        x = data.train_inputs[rows] * (100 if step == 50 else 1)
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(x), data.train_targets[rows])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


for recipe in ("FP32", "FP8 current", "FP8 delayed"):
    losses = with_a_bad_batch(recipe)
    before, bad, after, last = (losses[at] for at in (49, 50, 55, -1))
    print(f"{recipe:<12} loss {before:.2f}, bad batch {bad:5.2f}, then {after:.2f} and {last:.2f}")

# %% [markdown]
# **The delayed scale protects.** It cuts the outlier to the range of the last steps, and the training hardly notices. FP32 and current
# scaling believe the bad batch. **Recorded**, 300 steps, three seeds: accuracy 0.88 with delayed scales, 0.85 in FP32 and with current
# ones. The usual telling is the reverse ("delayed scaling fails at outliers"). For that, the outlier must be *right*.
#
# And without any scale? **Recorded:** *digits* learns as well. *segmentation_small* does not learn at all (Dice 0.00): its gradients
# are below E5M2's smallest number. One loss scale is enough there.
#
# Try it yourself: press *Start*. One run has FP8 operands with delayed scales, the other is FP32.

# %% id="touch-workbench"
Workbench("digits", "FP8 delayed", steps=60)

# %% [markdown]
# ### Exercise 3: a history of largest magnitudes  ●●○  8 min
#
# Delayed scaling, in numbers. The scale of a step is `top` divided by the largest magnitude of the `length` steps *before* it. Where
# there is none, or it is 0, the scale is 1.


# %% id="exercise-beyond-history" tags=["exercise-beyond.history"]
def my_scales(largest, length, top):
    """Return the scale of each step, as a list.

    largest  list of floats, 0 or above: the largest magnitude of the tensor in each step
    length   how many steps are looked back, 1 or more
    top      the format's largest number, as 448.0
    """
    ### BEGIN SOLUTION
    scales = []
    for step in range(len(largest)):
        before = largest[max(0, step - length) : step]
        scales.append(top / max(before) if any(before) else 1.0)
    return scales
    ### END SOLUTION


check("beyond.history", my_scales)

# %% [markdown]
# ### Blocks
#
# With 4 bits a scale for a whole tensor is not enough. Numbers that stand together share one: a *block*. **MXFP4** has blocks of 32
# and scales that are powers of two. **NVFP4** has blocks of 16 and scales in E4M3. Their elements are **E2M1**, 4 bits:

# %% id="touch-e2m1"
print("E2M1:", decode(np.arange(8), E2M1))
block = torch.tensor([[13.0, 7.5, -3.0, 0.25]])
print("a block:", block[0].tolist())
print("scale 2, rounded down, 13 saturates:", round_to_blocks(block, MXFP4)[0].tolist())
print("scale 4, rounded up, and 3 is worse:", round_to_blocks(block, MXFP4, scale_up=True)[0].tolist())

# %% [markdown]
# May the largest number saturate? OCP's text rounds the scale down, NVIDIA's recipe up. **Recorded:** for MXFP8 it does not matter.
# For MXFP4 it does, and not as you would think:
#
# | three seeds | FP32 | scale rounded up | scale rounded down |
# |---|---|---|---|
# | MLP on digits, accuracy | 0.88 | 0.87 | **0.35 to 0.78** |
# | small GPT, loss | 2.41 | **2.91** | 2.50 |
#
# Neither way is safe. Papers disagree; your run decides. (Between a tensor and 32 numbers there is a third size: DeepSeek-V3 trained with
# FP8 blocks of 1 x 128 for activations and 128 x 128 for weights, their scales in FP32. Not trained here.)
#
# ### Exercise 4: choose the scale of a block  ●○○  7 min
#
# The scale is $2^k$. Find the least $k$, from -127 on, at which no number saturates: no magnitude is above `top` $\cdot\, 2^k$.


# %% id="exercise-beyond-mx-scale" tags=["exercise-beyond.mx_scale"]
def my_exponent(block, top):
    """Return k, a whole number from -127 on.

    block  list of floats, FP32 numbers
    top    the largest number of an element: 6.0 in E2M1, 448.0 in E4M3
    """
    ### BEGIN SOLUTION
    largest = max(abs(x) for x in block)
    k = -127
    while largest > top * 2.0**k:
        k += 1
    return k
    ### END SOLUTION


check("beyond.mx_scale", my_exponent)

# %% [markdown]
# ### The metric that lies
#
# One column of a tensor is 30 times larger than the others. In its blocks the small numbers become 0. A *Hadamard rotation* mixes 16
# numbers by sums and differences; an outlier is spread over all of them. Afterwards the product is the same. Is rounding better?

# %% id="predict-rotated"
predict("beyond.rotated")

# %% id="touch-rotated"
x = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
x[:, 7] *= 30  # one column of 256 is loud
for name, tensor in (("as it is", x), ("rotated", rotate(x, -1))):
    scale = 2688 / tensor.abs().max()  # the largest number lands on 448 x 6
    rounded = round_to_blocks(tensor * scale, NVFP4) / scale
    error = ((rounded - tensor).square().mean() / tensor.square().mean()).sqrt()
    everywhere, beside = ((part == 0).float().mean() for part in (rounded, rounded[:, :16]))
    print(f"{name:<9} error {error:.3f}   zeros {everywhere:.0%}, in the outlier's block {beside:.0%}")

# %% [markdown]
# **The error grows, and the zeros go.** One number that is large and exact makes the mean error small, whatever happens beside it. A
# mean error says nothing of that.
#
# NVFP4's recipe has four switches: square blocks for weights, stochastic rounding of gradients, the rotation, and a last layer in FP32.
# **Recorded:** where four outputs are 30 times louder than the rest, the last layer decides (R2 of the others -0.58 without, 0.35
# with it; FP32 0.45). For the GPT, stochastic rounding closes two thirds of the gap. Rotation and square blocks could not be told from
# noise here.
#
# Even the sums are cut. The H100 adds FP8 products with 13 bits behind the point:

# %% id="touch-promotion"
numbers = torch.Generator().manual_seed(0)
a, b = (torch.relu(torch.randn(16, 4096, generator=numbers)).to(torch.float8_e4m3fn).float() for _ in range(2))
exact, h100 = a.double() @ b.double().T, SPECS["H100"].for_operands(E4M3)
for every in (4096, 512, 128):
    parts = [emulate(a[:, i : i + every], b[:, i : i + every].T, None, h100).double() for i in range(0, 4096, every)]
    relative = (sum(parts) - exact) / exact
    print(f"added to an FP32 sum every {every:>4}: error {relative.abs().mean():.4%}, mean {relative.mean():+.4%}")

# %% [markdown]
# **All of the error has one sign:** cutting goes towards zero. Every 128 products the sum is therefore added to one in FP32.
#
# *Where it is told:* arXiv:2209.05433 (FP8), NVIDIA's Transformer Engine (delayed and current scales), OCP Microscaling 1.0,
# arXiv:2506.08027 (MXFP8), arXiv:2509.25149 (NVFP4), arXiv:2412.19437 (blocks of 128, sums every 128). *Not reproduced here:* that
# rotation and square blocks are needed; their runs have $10^{12}$ tokens.
#
# ### Exercise 5: round a block by chance  ●●●  12 min
#
# The numbers of E2M1 are in `GRID`. Take $|x|$ / scale, and cut it at 6. It lies between a lower and an upper number of the grid. Go up
# where `random` is *below* the part of the way, (size - lower) / (upper - lower). A number of the grid stays. Then the scale and the sign
# come back.

# %% id="grid"
GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


# %% id="exercise-beyond-block" tags=["exercise-beyond.block"]
def my_block(block, scale, random):
    """Return the rounded numbers, as a list.

    block   list of floats
    scale   a power of two
    random  list of floats from 0 to below 1, one for each number of the block
    """
    ### BEGIN SOLUTION
    rounded = []
    for x, chance in zip(block, random, strict=True):
        size = min(abs(x) / scale, 6.0)
        lower = max(g for g in GRID if g <= size)
        upper = min(g for g in GRID if g >= size)
        goes_up = upper > lower and chance < (size - lower) / (upper - lower)
        rounded.append(math.copysign(scale * (upper if goes_up else lower), x))
    return rounded
    ### END SOLUTION


check("beyond.block", my_block)

# %% [markdown]
# ## 4 · Same row, another answer
#
# A server answers many questions at once, in a batch. You send yours twice. The weights are the same, nothing is drawn by chance. Only
# the batch around your row is larger the second time.

# %% id="predict-rows"
predict("beyond.rows")

# %% id="touch-rows"
numbers = torch.Generator().manual_seed(0)
rows, weights = torch.randn(256, 2048, generator=numbers), torch.randn(2048, 512, generator=numbers)
in_a_large_batch = torch.mm(rows, weights)[0]
for batch in (1, 2, 33, 256):
    alone = torch.mm(rows[:batch], weights)[0]
    differ, most = (alone != in_a_large_batch).float().mean(), (alone - in_a_large_batch).abs().max()
    print(f"batch of {batch:>3}: {differ:4.0%} of the results differ, by {most:.0e} at most;", end="")
    print(f" the largest result is {alone.abs().max():.0f}")

# %% [markdown]
# **The batch chooses the order of the sums.** A kernel is chosen by the shape of a batch, and each kernel adds in an order of its own.
# FP32 rounds after each addition. (Your numbers may differ: they are those of this processor's library. Called twice with one shape,
# all bits are equal.)
#
# **Recorded**, for other shapes: the bits differ in 74% to 97% of the results. And in a trained `char_lstm` no character differs in 20 texts of 100, alone or in a batch of 64. Bits differ, tokens do not:
# for that, models must be larger and texts longer.
#
# *Where it is told:* Thinking Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025). *Not reproduced here:* 80 different
# answers to one question in 1,000.
#
# ### Exercise 6: the same numbers in two orders  ●●○  7 min
#
# Add FP32 numbers one after another; and then the first half and the rest, each one after another from 0, and these two sums. Round to
# FP32 (`np.float32`) after *each* addition. The first half of 41 numbers has 20.


# %% id="exercise-beyond-orders" tags=["exercise-beyond.orders"]
def my_two_sums(numbers):
    """Return (the sum one after another, the sum of the two halves), as floats.

    numbers  list of floats that FP32 holds; an empty sum is 0
    """

    ### BEGIN SOLUTION
    def in_turn(part):
        total = np.float32(0)
        for x in part:
            total = np.float32(total + np.float32(x))
        return total

    half = len(numbers) // 2
    first, rest = in_turn(numbers[:half]), in_turn(numbers[half:])
    return float(in_turn(numbers)), float(np.float32(first + rest))
    ### END SOLUTION


check("beyond.orders", my_two_sums)

# %% [markdown]
# ## 5 · Positions that melt
#
# A transformer has to know where a token stands. *RoPE* turns each pair of numbers by an angle: the position times a speed. What counts
# is the angle *between* two tokens. Positions are whole numbers: 0, 1, 2, ...

# %% id="predict-positions"
predict("beyond.positions")


# %% id="touch-positions"
def right_ones(start, ids, rotation):
    """Return how often attention that looks for the token before finds it, at 32 positions from `start` on."""
    query, speeds = torch.randn(32, generator=torch.Generator().manual_seed(0)), 10000 ** (-torch.arange(32) / 32)

    def rotated(positions):
        angles = round_tensor(positions.float(), ids)[:, None] * speeds
        cos, sin = (round_tensor(part, rotation) for part in (angles.cos(), angles.sin()))
        return torch.cat([query * cos, query * sin], 1)

    places = torch.arange(start, start + 32)
    scores = rotated(places) @ rotated(places + 1).T
    return (scores.tril(-1)[1:].argmax(1) == torch.arange(31)).float().mean().item()


STARTS = (0, 200, 300, 1000, 2100, 5000, 9000)
print(f"{'positions from':<26}" + "".join(f"{start:>7}" for start in STARTS))
for name, ids, rotation in (
    ("ids FP32, rotation FP32", FP32, FP32), ("ids FP32, rotation BF16", FP32, BF16),
    ("ids FP16, rotation FP32", FP16, FP32), ("ids BF16, rotation FP32", BF16, FP32),
):  # fmt: skip
    print(f"{name:<26}" + "".join(f"{right_ones(start, ids, rotation):7.2f}" for start in STARTS))

# %% [markdown]
# **The ids are the disease, not the rotation.** FP16 counts to $2^{11}$ = 2,048, BF16 to $2^8$ = 256. Beyond that neighbours get one
# and the same position. A rotation in BF16 is not exact either, but it does no harm here.
#
# **Recorded:** an attention layer that had *learned* "the token before" is right in all cases with FP32 ids, and falls to 0.43 at position
# 2,100 (FP16 ids) and at 300 (BF16 ids).
#
# *Where it is told:* arXiv:2104.09864 (RoPE), arXiv:2411.13476 (BF16 breaks it in long texts). *Not reproduced here:* harm by a BF16
# rotation alone.
#
# ### Exercise 7: what must stay in FP32?  ●○○  6 min
#
# BF16 keeps 8 significant bits. Two facts follow. It counts to $2^8$, no further. And what changes by *less* than $2^{-9}$ of itself in
# a step never changes.
#
# A part of a training has a name, a kind and a number. Kind `"counts"`: the largest whole number that it holds. Kind `"changes"`: by
# which part of itself it changes in a step (Adam's second moment: 1 - 0.999).


# %% id="exercise-beyond-keep" tags=["exercise-beyond.keep"]
def my_fp32_parts(parts):
    """Return the names of the parts that must stay in FP32, in their order.

    parts  list of (name, "counts" or "changes", float)
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
# ## 6 · No scales at all
#
# A loss scale is a number that somebody has to find. Must it be? *Unit scaling* asks: what size do numbers *have to* have in a network
# that begins to learn? It follows from the shapes of its layers.
#
# Here is a network of five layers, at several widths. You see the activation gradients of its second layer.

# %% id="predict-width"
predict("beyond.width")


# %% id="touch-width"
def activation_gradients(width):
    """Return the gradients at the outputs of the five layers of a new network with He's initial weights."""
    torch.manual_seed(0)
    data = single_digits()
    x, outputs = (data.train_inputs[:64].flatten(1) - 0.31) / 0.38, []
    for size, wide in ((64, width), (width, width), (width, width), (width, width), (width, 10)):
        weight = torch.randn(wide, size, requires_grad=True)
        x = (torch.relu(x) if outputs else x) @ weight.T * (2 / size) ** 0.5
        x.retain_grad()
        outputs.append(x)
    F.cross_entropy(x, data.train_targets[:64]).backward()
    return [output.grad for output in outputs]


def zeros_in_e4m3(gradient):
    return ((round_saturating(gradient, E4M3) == 0) & (gradient != 0)).sum() / (gradient != 0).sum()


for width in (64, 128, 256, 512, 1024):
    gradients = activation_gradients(width)
    size_of_loss = gradients[-1].square().mean().sqrt() * math.sqrt(10)  # one number for the whole network
    unit = 2.0 ** round(math.log2(math.sqrt(width) / size_of_loss))  # the rest follows from the width
    plain, scaled = zeros_in_e4m3(gradients[1]), zeros_in_e4m3(unit * gradients[1])
    print(f"width {width:>4}   E4M3 makes zero: {plain:4.0%} {'#' * int(30 * plain):<26} unit scaled: {scaled:.0%}")

# %% [markdown]
# **The bars stand still.** A weight of size $1/\sqrt{n}$ keeps the size of what goes through it. So a gradient is of size
# $c/\sqrt{\text{width}}$, with one $c$ for the whole network. Multiply by $\sqrt{\text{width}}/c$, rounded to a power of two, and it is of size 1 at
# every width.
#
# **Recorded** (E4M3 everywhere, gradients too, no loss scale, width 1,024, three seeds): accuracy 0.76, 0.89, 0.91 without unit scaling,
# 0.91, 0.94, 0.94 with it; FP32 0.94. With E5M2 for gradients there was no harm at all: the histograms show it, the training does not.
#
# `RECIPES["unit scaled"]` does it for any network: the factor of a weight and of a gradient is read off the layer's shape, $c$ off the
# first backward pass, and both are powers of two. In the paper the factors are part of the network, and its weights are stored at size 1.
#
# *Where it is told:* arXiv:2303.11257. *Not reproduced here:* large models.
#
# *Try:* let the network have He's weights without the factor 2, `(1 / size) ** 0.5`. Do the bars of unit scaling still stand still?
#
# ### Exercise 8: factors that nobody has to search for  ●○○  6 min
#
# Both factors are powers of two, $2^k$. The weight's $k$ is the whole number nearest to $\log_2 \sqrt{\text{fan\_in}}$. The gradient's is nearest to
# $\log_2 (\sqrt{\text{width}} / \text{size})$. No number lies just between two.


# %% id="exercise-beyond-unit" tags=["exercise-beyond.unit"]
def my_unit_exponents(fan_in, width, size):
    """Return (k of the weight, k of the gradient), two whole numbers.

    fan_in  how many numbers come into the layer
    width   how many go out
    size    the c of above: one number for the whole network
    """
    ### BEGIN SOLUTION
    weight = round(math.log2(math.sqrt(fan_in)))
    gradient = round(math.log2(math.sqrt(width) / size))
    return weight, gradient
    ### END SOLUTION


check("beyond.unit", my_unit_exponents)

# %% [markdown]
# ## On record: four tasks, seven recipes
#
# After so many surprises: how bad is it, on the whole? Four tasks of the lab were trained under each recipe, with three seeds. The table
# shows means (accuracy; Dice for *segmentation_small*).

# %% id="touch-record"
ON_RECORD = ("digits", "char_lstm", "gpt", "segmentation_small")
print(f"{'':<16}" + "".join(f"{task:>20}" for task in ON_RECORD))
for recipe in ("FP32", "BF16 stochastic", "BF16 Kahan", "FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled"):
    runs = [[recorded(task, recipe, seed).metric for seed in range(3)] for task in ON_RECORD]
    print(f"{recipe:<16}" + "".join(f"{sum(metrics) / 3:20.3f}" for metrics in runs))

# %% [markdown]
# **With scales that fit, 8 bits are enough here, and 4 nearly.** In *digits*, *char_lstm* and *gpt* each recipe is *as good* as FP32 by the
# test of lesson 08 (its 90% interval lies inside the margin of 0.02). *segmentation_small* scatters so much from seed to seed that three
# seeds can tell this for "FP8 current" alone, and that is luck: its three differences happen to be nearly equal. These are small tasks:
# what breaks at $10^{12}$ tokens need not show in 400 steps.
#
# How many seeds does a verdict need? "BF16 Kahan" was trained with 24:

# %% id="touch-seeds"
for seeds in (3, 6, 12, 24):
    runs = [recorded("segmentation_small", recipe, seed) for recipe in ("FP32", "BF16 Kahan") for seed in range(seeds)]
    found = Comparison("segmentation_small", tuple(runs)).difference("BF16 Kahan")
    print(f"{seeds:>2} seeds   difference {found.mean:+.3f} ± {found.interval_90:.3f}   {found.verdict}")

# %% [markdown]
# **The interval shrinks with the root of the number.** Differences scatter by 0.02 to 0.04 here. An interval of ± 0.01 then takes 12 to 50
# seeds; three give ± 0.05. The other recipes of the last column still wait for theirs: `labkit race segmentation_small --recipes FP32 MXFP8`.

# %% [markdown]
# ## Four cards
#
# **TF32** is what a Tensor Core makes of FP32 where it is allowed: it keeps 11 significant bits. `1024.5 * 1` is 1024. From Ampere on,
# torch allows it in convolutions unless told otherwise. In the lab FP32 is FP32, and `RECIPES["TF32"]` is TF32 on any device.
# **Recorded:** least squares of degree 8 forgave it in two of three seeds, and was 28 times worse in the third.
#
# **The epsilon trap.** Adam divides by $\sqrt{v} + 10^{-8}$. If gradients are far below $10^{-8}$, epsilon is all that is left.
# **Recorded** (digits, loss times $10^{-8}$): accuracy 0.09, with an epsilon of $10^{-15}$ 0.88. A loss scale does not help: it is divided
# out before the step.
#
# **Adam in 8 bits** (arXiv:2110.02861). **Recorded:** with evenly spaced codes the loss explodes within six steps, in blocks too: 24% to 53% of the
# second moments become zero. With codes spaced like a floating-point format's it trains as FP32 does.
#
# **Biased rounding in attention** (arXiv:2510.04212): where probabilities are exactly 1, BF16's errors have one sign and add up over the steps.
# *Not reproduced here.*

# %% id="touch-cards"
print("TF32:   1024.5 becomes", round_tensor(torch.tensor([1024.5]), TF32).item())
for gradient in (1e-3, 1e-10):
    print(f"Adam:   gradient {gradient:.0e}, step {gradient / (gradient + 1e-8):.3f} of the learning rate")

# %% [markdown]
# ## What was settled
#
# - BF16 without a master forgets nothing and learns nothing where updates are below half an ulp: gains, decay, second moments.
# - FP16's three bits more are worth something where two programs must agree.
# - In FP8 and FP4 the scale is the recipe: of a tensor or of a block, of now or of before, up or down. A mean error does not tell which is
#   better.
# - What counts, and what changes slowly, stays in FP32.
#
# **Where you meet this.** Transformer Engine's `DelayedScaling`, `Float8CurrentScaling`, `MXFP8BlockScaling` and `NVFP4BlockScaling`;
# `torchao.float8` and `torchao.prototype.mx_formats`; stochastic rounding in `torchao`'s optimizers; `unit_scaling`; batch-invariant
# kernels in vLLM. `labkit.amp.scales` has the recipes of this lesson, to be read.
