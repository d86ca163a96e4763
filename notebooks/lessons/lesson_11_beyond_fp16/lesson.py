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

# %% [markdown] on_the_map="what must stay in FP32 when you train in BF16, FP8 or FP4: weights, moments, scales, positions"
# # 11 · Beyond FP16
#
# **You will be able to** name the formats that people train in after FP16, the surprises that each one brings, and the
# values that must stay in FP32.
#
# About 145 minutes in six parts of 20 to 30 minutes. A teacher can choose among the parts: none needs another. Eight
# exercises, 39 points. Builds on: the effect of rounding on small updates (lesson 02), the loss scale (lesson 06),
# master weights (lesson 07). You need three facts from these lessons:
#
# - FP16 has 11 significant bits, and its largest number is 65504. **BF16** has the range of FP32, but only 8
#   significant bits.
# - An update is *swallowed* if it is smaller than half the distance between two numbers: the weight does not change.
# - A *recipe* says in which formats a network is trained. All recipes of this lesson are in `RECIPES`.
#
# Everything is emulated, number by number, and exact to the bit. So it is slow. Results that took longer than some
# seconds were **recorded** (torch 2.13, CPU, seeds 0, 1 and 2). Each part also names published results that were *not*
# reproduced here.

# %% id="setup"
import math
from functools import partial

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine, autocast, rotate, round_saturating, round_to_blocks
from labkit.formats import BF16, E2M1, E4M3, FP16, FP32, MXFP4, NVFP4, TF32, decode
from labkit.gemm import SPECS, emulate
from labkit.grading import check
from labkit.interop import round_tensor
from labkit.train import TASKS, Comparison, recorded, single_digits
from labkit.widgets import Workbench, predict

# %% [markdown]
# ## 1 · The optimizer that cannot forget
#
# *BF16 weights that never change, and an average of Adam that never falls.*
#
# A network has learned to read digits. Now the pictures are turned by 90 degrees. The network is frozen, and only *gains* are
# learned: each hidden number is multiplied by its gain. Each gain begins at exactly 1.0. (Fine-tuning methods with few parameters
# do this.)
#
# The gains are stored in BF16, without FP32 master weights. Adam's learning rate is 0.001.

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
# **In BF16 no gain moved.** Above 1.0 the numbers of BF16 are $2^{-7}$ apart, so half the distance is 0.0039. Below 1.0 it is
# 0.0020. Adam's step is about the learning rate, 0.001. So every update is swallowed, and more steps do not help. (The printed
# loss is that of one batch, so it is noisy. Look at the share of gains that moved.)
#
# Three cures work:
#
# - FP32 master weights;
# - *stochastic rounding*: a number is rounded up as often as the cut-off bits say;
# - *Kahan's* sum: the part that was cut off is stored, and added in the next step.
#
# | stored for each weight | bytes | moves? |
# |---|---|---|
# | BF16 alone | 2 | no |
# | BF16, stochastic rounding | 2 | yes |
# | BF16 and Kahan's rest in BF16 | 4 | yes |
# | BF16 and an FP32 master | 6 | yes |
#
# **Recorded**, BF16 without masters:
#
# | experiment | FP32 | BF16 |
# |---|---|---|
# | these gains, 800 steps: accuracy | 0.23 | 0.10 |
# | small GPT: do its norm weights change? | yes | no, all stay at 1.0; the loss of 2.7 is 0.016 worse |
# | a learned temperature that begins at 1: its end | 1.89 | exactly 1.000 |
# | weight decay of 1.0, which multiplies each weight by 1 - 0.001 | weights shrink | swallowed: equal to a decay of 0 |
#
# Adam's second moment has the same trouble. It is a running average of squared gradients. In each step Adam multiplies it by
# `beta2`, and adds a little. torch's default for `beta2` is 0.999; most large language models take 0.95.

# %% id="touch-ratchet"
def second_moments(beta2, format):
    """Return Adam's second moment after each of 3,000 steps; the batch of step 100 is bad."""
    moment, moments = torch.tensor(1e-4), []
    for step in range(1, 3001):
        squared = 3.0 if step == 100 else 1e-4
        moment = round_tensor(beta2 * moment + (1 - beta2) * squared, format)
        moments.append(moment.item())
    return moments


for beta2 in (0.999, 0.99, 0.95):
    for name, format in (("FP32", FP32), ("BF16", BF16)):
        moments = second_moments(beta2, format)
        print(f"beta2 {beta2:<5}  {name}  " + "  ".join(f"step {at}: {moments[at - 1]:.2e}" for at in (99, 100, 1000, 3000)))

# %% [markdown]
# **With beta2 = 0.999 it goes up, and never down.** 0.999 times a number of BF16 rounds to the same number. After one bad batch the
# steps of Adam stay too small. With beta2 = 0.99 the moment falls, and stops 47% too high. With 0.95 it stops 4% too high, and that
# does no harm. DeepSeek-V3 stores both moments of Adam in BF16, and its report finds no loss of quality. It uses 0.95.
#
# **Recorded** with beta2 = 0.999 (6,000 steps, then other data): the second moment is 32 times too large at the end.
#
# | second moment in | accuracy |
# |---|---|
# | FP32 | 0.75 |
# | BF16 | 0.61 |
# | BF16, stochastic rounding | 0.75 |
#
# *Sources:* arXiv:2010.06192, with both cures; arXiv:2412.19437, 3.3 (DeepSeek-V3's moments in BF16). *Not reproduced here:* people
# found published models with norm weights of exactly 1.0.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell as often as you
# like. Grading runs only the exercise's own cell, with the imports, functions, classes and constants of other cells
# that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("beyond.frozen")`: you get three hints, one by
# one, at no cost.*
#
# ### Exercise 1: find the frozen parameter  ●●○  8 min
#
# You get weights in BF16, and the updates that an optimizer adds to them, in FP32. A parameter is *frozen* if its sum,
# rounded to BF16, equals the weight in *every* element.


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
# *Two programs with the same weights disagree; FP16 makes the difference smaller than BF16.*
#
# In reinforcement learning a language model learns by trial: it writes texts, and each text gets a reward. Two programs share the
# work. A fast *sampler* writes, a *learner* trains. Both have the same weights. But they add in different orders, and round at
# different places.
#
# So they disagree a little about the probability of each token (a word or a part of a word).

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
# **BF16 differs eight times as much as FP16.** It has three significant bits fewer, and $2^3 = 8$. The
# log-probabilities of a text add up. So for long texts the ratio of the two probabilities moves away from 1, although
# the weights are equal.
#
# Does this harm the training? It depends on the method. **Recorded:** it does not harm the plain method (REINFORCE),
# even with a sampler in FP8. It harms a method that *clips* by that ratio: GSPO, with its published limits of 3e-4 and
# 4e-4.
#
# | learner / sampler | steps to a reward of 0.4 | texts that are clipped |
# |---|---|---|
# | FP32 or FP16 | 63 to 67 | 0% |
# | BF16 | 72 to 82 | 33% |
# | BF16 / FP8 | 110 to 135 | 49% |
# | BF16 / FP8, the learner computes old log-probabilities itself | 64 to 69 | 0% |
#
# *Sources:* arXiv:2510.26788 (back to FP16), arXiv:2507.18071 (GSPO). *Not reproduced here:* a training that collapses.
#
# *Try:* change `torch.tanh` into `torch.relu` in the cell above, and run it. The differences change. Is their ratio
# still 1 to 8?
#
# ### Exercise 2: which texts are clipped?  ●●○  8 min
#
# For each token of a text, take the learner's log-probability minus the sampler's. Take the mean over the text. The
# text's ratio is $e^{\text{mean}}$. A text is clipped if its ratio is *below* 1 - `low` or *above* 1 + `high`. The
# model learns nothing from a clipped text.


# %% id="exercise-beyond-clipped" tags=["exercise-beyond.clipped"]
def my_clipped(learner, sampler, low, high):
    """Return the indices of the clipped texts, as a list; 0 is the first text.

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
# *FP8 and FP4: the scale decides what one very large number does.*
#
# FP8 has two formats:
#
# - **E4M3** has 4 significant bits, and its largest number is 448.
# - **E5M2** has 3 significant bits, and its largest number is 57344.
#
# In this part each tensor has one scale. The tensor is multiplied by its scale and rounded to FP8, and the product is divided by the
# scale. With one scale for each tensor, weights and activations take E4M3, and gradients take E5M2. (With a scale for each block,
# gradients take E4M3 too: the lab's `MXFP8`, NVIDIA's, and DeepSeek-V3 do so.) In the lab only the operands of matrix products have
# 8 bits. (Other systems store more in FP8: DeepSeek-V3 the activations that it saves for the backward pass, Transformer Engine the
# weights, if you ask for it.)
#
# There are two ways to choose the scale of a tensor:
#
# - *Current* scaling reads the tensor's largest magnitude first. It has to read the tensor twice.
# - *Delayed* scaling takes the largest magnitude of the last 16 steps. A larger number *saturates*: it is cut to the largest number.
#   (16 is the lab's choice. Transformer Engine looks back 1,024 steps by default.)
#
# At step 50 there is one bad batch: its inputs are 100 times too large.

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
# **The delayed scale protects.** It cuts the outlier to the range of the last steps, and the training hardly changes.
# FP32 and current scaling use the bad batch as it is. **Recorded**, 300 steps, three seeds: accuracy 0.88 with delayed
# scales, 0.85 in FP32 and with current scales. Articles often say the reverse ("delayed scaling fails at outliers").
# They are right where the outlier is *correct* data.
#
# After the bad batch its large magnitude is still in the history, for 16 steps or for 1,024. So the scale is too small
# for a while, and small numbers lose bits. **Recorded**, three seeds: this does no harm here. With a history of 16 and
# with one of 1,024 the mean accuracy differs by 0.002.
#
# And without any scale? **Recorded:** *digits* learns as well as before. *segmentation_small* does not learn at all
# (Dice 0.00): its gradients are smaller than E5M2's smallest number. There a single loss scale is enough.
#
# Try it yourself: press *Start*. One run has FP8 operands with delayed scales, the other is FP32.

# %% id="touch-workbench"
Workbench("digits", "FP8 delayed", steps=60)

# %% [markdown]
# ### Exercise 3: a history of largest magnitudes  ●●○  8 min
#
# Write delayed scaling. The scale of a step is `top` divided by the largest magnitude of the `length` steps *before*
# it. If there is no step before it, or it is 0, the scale is 1.


# %% id="exercise-beyond-history" tags=["exercise-beyond.history"]
def my_scales(largest, length, top):
    """Return the scale of each step, as a list.

    largest  list of floats, 0 or above: the largest magnitude of the tensor in each step
    length   how many earlier steps count, 1 or more
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
# With 4 bits one scale for a whole tensor is not enough. Neighbouring numbers form a *block*, and each block has a
# scale of its own. **MXFP4** has blocks of 32, with scales that are powers of two. **NVFP4** has blocks of 16, with
# scales in E4M3. It also has one FP32 scale for the whole tensor, so that the scales of the blocks fit into E4M3. The
# elements of both are **E2M1**, 4 bits:

# %% id="touch-e2m1"
print("E2M1:", decode(np.arange(8), E2M1))
block = torch.tensor([[13.0, 7.5, -3.0, 0.25]])
print("a block:", block[0].tolist())
print("scale 2, rounded down, 13 saturates:", round_to_blocks(block, MXFP4)[0].tolist())
print("scale 4, rounded up, and 3 is worse:", round_to_blocks(block, MXFP4, scale_up=True)[0].tolist())

# %% [markdown]
# May the largest number of a block be cut? The OCP standard rounds the block's scale down, so it may. NVIDIA's recipe
# rounds the scale up, so it may not. **Recorded:** for MXFP8 it does not matter. For MXFP4 it matters, and in both
# directions:
#
# | three seeds | FP32 | scale rounded up | scale rounded down |
# |---|---|---|---|
# | MLP on digits, accuracy | 0.88 | 0.87 | **0.35 to 0.78** |
# | small GPT, loss | 2.41 | **2.91** | 2.50 |
#
# Neither way is safe. Papers disagree, so try both in your training. (There is a third size between a tensor and 32
# numbers. DeepSeek-V3 used FP8 blocks of 1 x 128 for activations and 128 x 128 for weights, with scales in FP32. That
# was not trained here.)
#
# ### Exercise 4: choose the scale of a block  ●○○  7 min
#
# The scale is $2^k$. Find the smallest $k$, from -127 on, at which no number saturates: no magnitude is above `top`
# $\cdot\, 2^k$.


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
# *A mean error does not show which numbers became zero.*
#
# One column of a tensor is 30 times larger than the others. In its blocks the small numbers become 0. A *Hadamard rotation* mixes 16
# numbers by sums and differences, so an outlier is spread over all of them. The matrix product stays the same. Is the rounding
# error smaller?

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
# **The error grows, and the zeros go.** One number that is large and exact makes the mean error small, whatever happens
# to its neighbours. A mean error does not show them. (`2688` in the cell is NVFP4's scale of the whole tensor: 448, the
# largest scale of a block, times 6, the largest element.)
#
# The recipe `NVFP4` has four switches here:
#
# - square blocks for weights;
# - stochastic rounding of gradients;
# - the rotation;
# - the last layer in FP32. (NVIDIA's recipe keeps about 16% of the linear layers in BF16, most of them at the end.)
#
# **Recorded:**
#
# | task | switch | result |
# |---|---|---|
# | four outputs are 30 times larger than the rest | last layer in FP32 | R2 of the other outputs: -0.58 without, 0.35 with it; FP32 0.45 |
# | small GPT | stochastic rounding | closes two thirds of the gap to FP32 |
# | both | rotation, square blocks | no difference beyond noise |
#
# Even the sums are cut. The H100 adds FP8 products with 13 bits behind the point. (The B200 keeps 25 bits there.) You
# can add the sums of short pieces in FP32 instead:

# %% id="touch-promotion"
numbers = torch.Generator().manual_seed(0)
a, b = (torch.relu(torch.randn(16, 4096, generator=numbers)).to(torch.float8_e4m3fn).float() for _ in range(2))
exact, h100 = a.double() @ b.double().T, SPECS["H100"].for_operands(E4M3)
for every in (4096, 512, 128):
    parts = [emulate(a[:, i : i + every], b[:, i : i + every].T, None, h100).double() for i in range(0, 4096, every)]
    relative = (sum(parts) - exact) / exact
    print(f"added to an FP32 sum every {every:>4}: error {relative.abs().mean():.4%}, mean {relative.mean():+.4%}")

# %% [markdown]
# **All of the error has one sign:** cutting goes towards zero. DeepSeek-V3's kernel therefore adds the sum to one in
# FP32 every 128 products. The H100 does not do this by itself. The B200 does not need it.
#
# *Sources:* arXiv:2209.05433 (FP8), NVIDIA's Transformer Engine (delayed and current scales), OCP Microscaling 1.0,
# arXiv:2506.08027 (MXFP8), arXiv:2509.25149 (NVFP4), arXiv:2412.19437 (blocks of 128, sums every 128), arXiv:2511.10909
# (bits of the sums). *Not reproduced here:* the need for rotation and square blocks; those runs had $10^{12}$ tokens.
#
# ### Exercise 5: round a block by chance  ●●●  12 min
#
# `GRID` has the numbers of E2M1. Take $|x|$ / scale, and cut it at 6. This size lies between a lower and an upper
# number of the grid. Go up if `random` is *below* (size - lower) / (upper - lower). A number of the grid stays. Then
# multiply by the scale, and restore the sign.

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
# A server answers many questions at once, in a batch. You send your question twice. The weights are the same, and
# nothing is random. Only the batch around your row is larger the second time.

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
# **The batch chooses the order of the sums.** The library chooses a kernel by the shape of the batch, and each kernel
# adds in an order of its own. FP32 rounds after each addition. (Your numbers may differ: they depend on the library of
# your processor. Two calls with the same shape give the same bits.)
#
# **Recorded:**
#
# - For other shapes, the bits differ in 74% to 97% of the results.
# - A trained `char_lstm` wrote 20 texts of 100 characters, alone and in a batch of 64. No character differs.
#
# Bits differ, tokens do not. Tokens differ in larger models and longer texts.
#
# *Source:* Thinking Machines Lab, "Defeating Nondeterminism in LLM Inference" (2025). *Not reproduced here:* one
# question, asked 1,000 times, got 80 different answers.
#
# ### Exercise 6: the same numbers in two orders  ●●○  7 min
#
# Add FP32 numbers in two orders:
#
# - one after another;
# - the first half one after another from 0, the rest one after another from 0, and then these two sums.
#
# Round to FP32 (`np.float32`) after *each* addition. The first half of 41 numbers has 20.


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
# *Neighbouring positions round to the same BF16 number, and autocast rounds them.*
#
# A transformer has to know the position of a token. *RoPE* turns each pair of numbers by an angle: the position times a speed. Only
# the angle *between* two tokens matters. Positions are whole numbers: 0, 1, 2, ... In the code of models they are called `position_ids`.

# %% id="predict-positions"
predict("beyond.positions")


# %% id="touch-positions"
def right_ones(start, ids=FP32, angles_in=FP32, rotation=FP32, by_product_in=FP32):
    """Return how often attention that looks for the token before finds it, at 32 positions from `start` on."""
    query, speeds = torch.randn(32, generator=torch.Generator().manual_seed(0)), 10000 ** (-torch.arange(32) / 32)

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
for name, formats in {
    "all FP32": {}, "rotation BF16": {"rotation": BF16}, "ids FP16": {"ids": FP16}, "ids BF16": {"ids": BF16},
    "angles BF16": {"angles_in": BF16}, "angles in autocast(BF16)": {"by_product_in": BF16},
}.items():  # fmt: skip
    print(f"{name:<26}" + "".join(f"{right_ones(start, **formats):7.2f}" for start in STARTS))

# %% [markdown]
# **Positions and angles need FP32.** FP16 counts to $2^{11}$ = 2,048, BF16 to $2^8$ = 256. Beyond that, neighbours get the same
# position. Angles in BF16 fail later: they are right up to 1,000. A rotation (cosine and sine) in BF16 is not exact either, but it
# does no harm here.
#
# **Autocast rounds FP32 positions, and no line of your code says so.** Most models compute all angles as one matrix product,
# `inv_freq @ position_ids`. Autocast casts the inputs of matrix products to BF16. So it rounds the positions, and the last row equals the
# row *ids BF16*. This broke real models in 2024 (Llama and Gemma in transformers) and in 2026 (Ideogram 4 in diffusers: all
# positions of an image became one). The cure: compute the angles where autocast is switched off, `autocast(enabled=False)`.
#
# **Recorded:** an attention layer has *learned* "the token before". How often it is right:
#
# | ids | result |
# |---|---|
# | FP32 | always |
# | FP16 | falls to 0.43 at position 2,100 |
# | BF16 | falls to 0.43 at position 300 |
#
# *Sources:* arXiv:2104.09864 (RoPE), arXiv:2411.13476 (BF16 breaks it in long texts), huggingface/transformers#29285,
# huggingface/diffusers#13920. *Not reproduced here:* harm by a BF16 rotation alone.
#
# ### Exercise 7: what must stay in FP32?  ●○○  6 min
#
# BF16 keeps 8 significant bits. Two facts follow. It counts to $2^8$, and no further. And what changes by *less* than
# $2^{-9}$ of itself in a step never changes.
#
# A part of a training has a name, a kind and a number:
#
# - Kind `"counts"`: the number is the largest whole number that the part holds.
# - Kind `"changes"`: the number is the fraction of itself by which the part changes in a step. (Adam's second moment
#   with beta2 = 0.999: 1 - 0.999.)


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
# Somebody has to find a loss scale. Is that necessary? *Unit scaling* computes the size that numbers have in a network
# that begins to learn. This size follows from the shapes of the layers.
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
# **With unit scaling the share does not change.** A weight of size $1/\sqrt{n}$ keeps the size of the numbers that it
# multiplies. So a gradient is of size $c/\sqrt{\text{width}}$, with one $c$ for the whole network. Multiply it by
# $\sqrt{\text{width}}/c$, rounded to a power of two. Then it is of size 1 at every width.
#
# **Recorded** (E4M3 everywhere, for gradients too; no loss scale; width 1,024; three seeds):
#
# | | accuracy |
# |---|---|
# | without unit scaling | 0.76, 0.89, 0.91 |
# | with unit scaling | 0.91, 0.94, 0.94 |
# | FP32 | 0.94 |
#
# With E5M2 for gradients there was no harm at all: the loss of gradients is visible in the histograms, and not in the
# training.
#
# `RECIPES["unit scaled"]` does this for any network. It computes the factors of weights and gradients from the layer's
# shape, and $c$ from the first backward pass. Both are powers of two. In the paper the factors are part of the network,
# and the weights are stored at size 1.
#
# *Source:* arXiv:2303.11257. *Not reproduced here:* large models.
#
# *Try:* give the network He's weights without the factor 2, `(1 / size) ** 0.5`. Does the share with unit scaling still
# not change?
#
# ### Exercise 8: factors that follow from the shape  ●○○  6 min
#
# Both factors are powers of two, $2^k$. The weight's $k$ is the whole number nearest to $\log_2 \sqrt{\text{fan\_in}}$.
# The gradient's is nearest to $\log_2 (\sqrt{\text{width}} / \text{size})$. No case lies exactly between two whole
# numbers.


# %% id="exercise-beyond-unit" tags=["exercise-beyond.unit"]
def my_unit_exponents(fan_in, width, size):
    """Return (k of the weight, k of the gradient), two whole numbers.

    fan_in  how many inputs the layer has
    width   how many outputs it has
    size    the c of the text above: one number for the whole network
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
# How bad is it on the whole? Four tasks of the lab were trained with each recipe and three seeds. The table shows means
# (accuracy; Dice for *segmentation_small*).

# %% id="touch-record"
ON_RECORD = ("digits", "char_lstm", "gpt", "segmentation_small")
print(f"{'':<16}" + "".join(f"{task:>20}" for task in ON_RECORD))
for recipe in ("FP32", "BF16 stochastic", "BF16 Kahan", "FP8 current", "FP8 delayed", "MXFP8", "NVFP4", "unit scaled"):
    runs = [[recorded(task, recipe, seed).metric for seed in range(3)] for task in ON_RECORD]
    print(f"{recipe:<16}" + "".join(f"{sum(metrics) / 3:20.3f}" for metrics in runs))

# %% [markdown]
# **With scales that fit, 8 bits are enough here, and 4 nearly.** In *digits*, *char_lstm* and *gpt* each recipe is *as
# good* as FP32 by the test of lesson 08 (its 90% interval lies inside the margin of 0.02). *segmentation_small* varies
# a lot from seed to seed. There three seeds show this only for "FP8 current". That is luck: its three differences
# happen to be nearly equal. These are small tasks. Problems that appear at $10^{12}$ tokens may not appear in 400
# steps.
#
# How many seeds does a verdict need? "BF16 Kahan" was trained with 24:

# %% id="touch-seeds"
for seeds in (3, 6, 12, 24):
    runs = [recorded("segmentation_small", recipe, seed) for recipe in ("FP32", "BF16 Kahan") for seed in range(seeds)]
    found = Comparison("segmentation_small", tuple(runs)).difference("BF16 Kahan")
    print(f"{seeds:>2} seeds   difference {found.mean:+.3f} ± {found.interval_90:.3f}   {found.verdict}")

# %% [markdown]
# **The interval shrinks with the root of the number of seeds.** Here the differences vary by 0.02 to 0.04. So an
# interval of ± 0.01 takes 12 to 50 seeds; three seeds give ± 0.05. For the other recipes of the last column more seeds
# are still to be run: `labkit compare segmentation_small --recipes FP32 MXFP8`.

# %% [markdown]
# ## Four cards
#
# **TF32** is FP32 rounded to 11 significant bits by a Tensor Core, where you allow it. `1024.5 * 1` is 1024. On GPUs
# from Ampere on, torch allows TF32 in convolutions by default, and in matrix products only if you switch it on. In the
# lab FP32 is FP32, and `RECIPES["TF32"]` is TF32 on any device. **Recorded:** least squares of degree 8 was as good in
# two of three seeds, and 28 times worse in the third.
#
# **The epsilon trap.** Adam divides by $\sqrt{v} + 10^{-8}$. If gradients are far below $10^{-8}$, only epsilon is left
# in this sum. **Recorded** (*digits*, loss times $10^{-8}$): accuracy 0.09; with an epsilon of $10^{-15}$ it is 0.88. A
# loss scale does not help, because the gradients are divided by it before the step.
#
# **Adam in 8 bits** (arXiv:2110.02861). **Recorded:** with evenly spaced codes the loss explodes within six steps, in
# blocks too, because 24% to 53% of the second moments become zero. With codes that are spaced like a floating-point
# format it trains as well as FP32.
#
# **Biased rounding in attention** (arXiv:2510.04212): where probabilities are exactly 1, all errors of BF16 have the
# same sign, so they add up over the steps. *Not reproduced here.*

# %% id="touch-cards"
print("TF32:   1024.5 becomes", round_tensor(torch.tensor([1024.5]), TF32).item())
for gradient in (1e-3, 1e-10):
    print(f"Adam:   gradient {gradient:.0e}, step {gradient / (gradient + 1e-8):.3f} of the learning rate")

# %% [markdown]
# ## What was settled
#
# - In BF16 without a master, a value does not change if its updates are below half an ulp. This happened to gains, to
#   weight decay, and to Adam's second moment with beta2 = 0.999.
# - FP16 has three more significant bits than BF16. They help where two programs must agree.
# - In FP8 and FP4 the scale decides: for a tensor or for a block, from this step or from earlier ones, rounded up or
#   down. A mean error does not show which is better.
# - Values that count, and values that change slowly, stay in FP32. So do positions and their angles, and autocast does
#   not know that.
#
# **Where you meet this.** Transformer Engine's `DelayedScaling`, `Float8CurrentScaling`, `MXFP8BlockScaling` and
# `NVFP4BlockScaling`; `torchao.float8` and `torchao.prototype.mx_formats`; stochastic rounding in `torchao`'s
# optimizers; `unit_scaling`; batch-invariant kernels in vLLM. You can read the recipes of this lesson in
# `labkit.amp.low_bit`.
