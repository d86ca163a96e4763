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

# %% [markdown] on_the_map="where rounding decides: routers, attention in 8 bits, and a cache with the wrong scale"
# # 11d · Choosing and attending
#
# **You will be able to** say where rounding decides instead of blurring, and choose a factor for
# attention in 8 bits.
#
# About 60 minutes in three parts. A teacher can choose among them: none needs another. Two
# exercises, 12 points. Builds on: rounding (lesson 02), the loss scale (lesson 06). You need two
# facts from these lessons:
#
# - BF16 has 8 significant bits, FP16 has 11, and the 8-bit format **E4M3** has 4. E4M3 ends at 448,
#   and its smallest number is $2^{-9}$.
# - A loss scale is a power of two. It moves small numbers into the range of a format.
#
# Everything is emulated, number by number, and exact to the bit. Results that took longer than some
# seconds were **recorded** (torch 2.13, CPU, seeds 0, 1 and 2). Each part also names published
# results that were *not* reproduced here.

# %% id="setup"
import math

import torch

from labkit.amp import round_saturating, round_to_blocks
from labkit.formats import BF16, E4M3, FP16, MXFP8
from labkit.grading import check
from labkit.train import single_digits
from labkit.widgets import RouterScores, predict
from labkit_lessons.lesson_11d_choosing_and_attending import blockwise_attention, trained_mixture

# %% [markdown]
# ## 1 · A router chooses
#
# Most values of a network may be a little wrong. The next layer adds them up, and small errors stay
# small. But some values *decide*.
#
# A **mixture of experts** has many small networks, the experts. A **router** gives each expert a
# score. A token (a piece of text) goes to the few experts with the largest scores, and to no other.
# Rounding changes a score by a little. But a token gets an expert or it does not.

# %% id="predict-changed"
predict("route.changed")

# %% [markdown]
# **Press *Next token that changes*.** Above are the exact scores of one token, below the rounded
# ones. Then choose FP16. Then choose *logits*: now the router compares the logits, without a
# sigmoid. At last drag the standard deviation of the logits to 0.1.

# %% id="touch-router" tags=["answer-route.changed", "claim-C68"]
RouterScores()

# %% [markdown] tags=["answer-route.changed"]
# **Rounded scores become equal.** The largest scores lie between 0.5 and 1. BF16 has 128 numbers
# there, FP16 has 1,024. Two different scores can become the same number. Then the lower number of
# an expert wins, and that says nothing about the token.
#
# How many tokens change depends on the setting:
#
# | rounded | logits with a standard deviation of 1 | of 0.1 |
# |---|---|---|
# | scores to BF16 | 14.3% | 50.4% |
# | scores to FP16 | 1.9% | 8.5% |
# | logits to BF16 | 3.9% | 4.4% |
# | logits to FP16 | 0.5% | 0.6% |
#
# (256 experts, 8 chosen; 4,000 random tokens, the mean of five seeds.) FP16 is better than BF16
# here, since it has three bits more. With small logits all scores are near 0.5, and a sigmoid hides
# their differences. The logits themselves keep them.

# %% [markdown]
# **Does a changed set make the model worse?** Here is a mixture of 64 experts that was trained on
# digits, with FP32 scores. Its scores are rounded afterwards.

# %% id="touch-trained" tags=["claim-C69"]
test = single_digits()
digits = test.test_inputs.float()
labels = test.test_targets
mixture = trained_mixture(seed=0)
with torch.no_grad():
    exact = mixture(digits)
    for format in (FP16, BF16, E4M3):
        rounded = mixture(digits, format)
        changed = (rounded.experts != exact.experts).any(dim=1)
        moved = (rounded.outputs - exact.outputs).abs().amax(dim=1)
        right = (rounded.outputs.argmax(dim=1) == labels).float().mean()
        share = changed.float().mean()
        print(f"{format.name:<5} {share:6.1%} of the digits get other experts;", end=" ")
        print(f"outputs move by {moved[~changed].max():.3f} at most where the set stays,", end=" ")
        print(f"by {moved.max():.1f} where it changes; accuracy {right:.3f}")

# %% [markdown]
# **A changed set is a mismatch, not an error.** In BF16 an output jumps by 2 and more where the set
# changes. Where the set stays, it moves by less than 0.1. But the accuracy is the same. The other
# expert is nearly as good: its score was nearly the same. Only E4M3, which changes every fourth
# set, costs a digit.
#
# The jump matters where two programs must agree. In reinforcement learning one program writes
# texts, and another one computes their gradients. If their routers round in different ways,
# gradients go to experts that did not write the text.
#
# So routers compute their scores in FP32, also where everything else is in BF16 or FP8.
#
# *Sources:* arXiv:2101.03961 (Switch Transformers, 2.4: the router in FP32), arXiv:2412.19437
# (DeepSeek-V3, 256 experts, 8 chosen), arXiv:2507.18071 (GSPO, 5.3: the experts of the sampler are
# used again in training). *Not reproduced here:* harm to a training by changed sets.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("route.sets")`: you get three
# hints, one by one, at no cost.*
#
# ### Exercise 1: two sets of experts  ●●○  12 min
#
# Return the experts that a router chooses by its exact scores, and those it chooses by rounded
# ones.
#
# - A score is rounded to `bits` significant bits, to nearest, ties to an even significand. The
#   hidden bit counts: BF16 has 8. The exponent has no limit.
# - A score may be any number, also 0 or below it (a logit). The exact scores are Python's floats,
#   as they come.
# - The experts with the largest scores are chosen, `chosen` of them. Of equal scores the lower
#   number is chosen.
# - Each of the two lists is sorted by number.


# %% id="exercise-route-sets" tags=["exercise-route.sets"]
def my_sets(scores, chosen, bits):
    """Return (experts by exact scores, experts by rounded scores), two lists of numbers from 0 on.

    Args:
        scores: List of floats, one for each expert.
        chosen: How many experts a token gets: 1 to len(scores).
        bits: Significant bits, 1 to 24.
    """

    ### BEGIN SOLUTION
    def rounded(x):
        significand, exponent = math.frexp(x)
        return math.ldexp(round(math.ldexp(significand, bits)), exponent - bits)

    def best(values):
        order = sorted(range(len(values)), key=lambda i: -values[i])
        return sorted(order[:chosen])

    return best(scores), best([rounded(x) for x in scores])
    ### END SOLUTION


check("route.sets", my_sets)

# %% [markdown]
# ## 2 · Attention has a loss scale of its own
#
# Attention gives each token a weighted mean of the values V of other tokens. The weights come from
# *scores* S. A fast kernel computes $P = e^{S - \max S}$ in each row, multiplies P by V, and
# divides by the sum of the row. So the largest element of each row of P is 1, and all others are
# smaller. FP8 kernels round P to E4M3.

# %% id="predict-lost"
predict("attend.lost")


# %% id="touch-lost" tags=["answer-attend.lost", "claim-C70"]
def attention_in_e4m3(tokens, factor, seed=0):
    """Return the share of P that becomes 0 in E4M3, and the relative error of the output."""
    numbers = torch.Generator().manual_seed(seed)
    scores = 2 * torch.randn(64, tokens, generator=numbers)
    values = torch.randn(tokens, 32, generator=numbers) + 0.5
    weights = torch.exp(scores - scores.amax(dim=1, keepdim=True))
    lost = (round_saturating(factor * weights, E4M3) == 0).float().mean().item()
    right = scores.double().softmax(dim=1) @ values.double()
    output = blockwise_attention(scores, values, weights_in=E4M3, factor=factor)
    return lost, ((output - right).norm() / right.norm()).item()


for tokens in (32, 512, 2048, 8192):
    for factor in (1.0, 256.0):
        lost, error = attention_in_e4m3(tokens, factor)
        print(f"{tokens:>5} tokens, P times {factor:>3.0f}: ", end="")
        print(f"{lost:6.1%} become 0; error {error:.4f}")

# %% [markdown] tags=["answer-attend.lost"]
# **The upper half of the format was empty.** P ends at 1, and E4M3 ends at 448. The factor $2^8$ =
# 256 uses this room, and the error is divided out with the sum of the row. It is a loss scale. But
# this one never has to be searched for: the largest element is always 1.
#
# **Many zeros are not much error.** In a row of 32 tokens a tenth of P becomes 0, and the output is
# as good as with the factor. What is lost is small, at most $2^{-10}$ of the largest weight. In a
# row of 8,192 tokens the small ones are so many that their sum counts.
#
# **Recorded:** the lab's `gpt`, after 300 steps, reads 32 characters. 12% of P becomes 0 in its
# first layer and 30% in the second one. The error of the output is 0.8% and 0.7%, with the factor
# and without it.

# %% [markdown]
# **Which of the four numbers needs FP32?** A fast kernel reads the row in blocks. It keeps the
# largest score so far, the sum of the weights, and the output so far. The weights P of the block
# are the fourth. Round one of them at a time:

# %% id="touch-online"
numbers = torch.Generator().manual_seed(0)
scores = 2 * torch.randn(64, 8192, generator=numbers)
values = torch.randn(8192, 32, generator=numbers) + 0.5
right = scores.double().softmax(dim=1) @ values.double()


def error_of(**formats):
    output = blockwise_attention(scores, values, **formats)
    return ((output - right).norm() / right.norm()).item()


print(f"{'all in FP32':<28} error {error_of():.0e}")
for number in ("maximum_in", "weights_in", "sum_in", "output_in"):
    print(f"{number.removesuffix('_in') + ' in BF16':<28} error {error_of(**{number: BF16}):.0e}")

# %% [markdown]
# **What is used once may be rounded; what is carried on may not.** The sum and the output are
# rounded 128 times, once for each block, and the errors add up. Each weight is rounded once. The
# maximum may be rounded as one likes: it is subtracted and multiplied back, so *any* number near
# the maximum serves.

# %% id="predict-future"
predict("attend.future")

# %% id="touch-future" tags=["answer-attend.future"]
numbers = torch.Generator().manual_seed(0)
values = torch.randn(64, 32, generator=numbers)
future = torch.ones(64, 64).triu(1).bool()
weights = torch.randn(64, 64, generator=numbers).masked_fill(future, -math.inf).softmax(dim=1)
louder = values.clone()
louder[20] *= 10
for name, block in {"32 tokens share a scale": (32, 1), "32 numbers of one token": (1, 32)}.items():
    before = weights @ round_to_blocks(values, MXFP8, block)
    after = weights @ round_to_blocks(louder, MXFP8, block)
    moved = (after - before)[:20].abs().max()
    print(f"{name}: outputs of tokens 0 to 19 move by {moved:.3f} at most")

# %% [markdown] tags=["answer-attend.future"]
# **A shared scale is a leak.** The mask is right, and still token 20 changes what tokens 0 to 19
# see: it makes the scale of its block larger. In training that is information from the future. When
# a model writes text, the future is not there yet, so it computes other numbers than in training.
# The cure: let blocks run along one token, never across tokens.
#
# *Sources:* arXiv:2407.08608 (FlashAttention-3, FP8), arXiv:2205.14135 (FlashAttention). *Not
# reproduced here:* the speed of attention in FP8.

# %% [markdown]
# ### Exercise 2: the factor of attention  ●●○  10 min
#
# Choose the factor for a row of scores, and count what is still lost.
#
# - Fast kernels use base 2, because it is cheaper. Here the scores are made for it:
#   $P = 2^{S - \max S}$.
# - The factor is the largest power of two that is not above the largest number of the format.
# - P times the factor becomes 0 if it is at most half of the smallest number of the format.
#   (Exactly half is a tie, and it goes to even, so to 0.)
# - A masked token has the score `-math.inf`. Its P is 0 anyway: it is not lost.


# %% id="exercise-attend-scale" tags=["exercise-attend.scale"]
def my_scale(scores, largest, smallest):
    """Return (base-2 logarithm of the factor, how many elements of the row become 0).

    Both are whole numbers.

    Args:
        scores: List of floats; -math.inf where a token is masked; at least one is not.
        largest: Largest number of the format.
        smallest: Smallest number above 0 of the format.
    """
    ### BEGIN SOLUTION
    top = max(scores)
    log2_factor = math.floor(math.log2(largest))
    zeros = 0
    for score in scores:
        if score > -math.inf and 2.0 ** (score - top + log2_factor) <= smallest / 2:
            zeros += 1
    return log2_factor, zeros
    ### END SOLUTION


check("attend.scale", my_scale)

# %% [markdown]
# ## 3 · A cache with the wrong scale
#
# A model that writes text keeps the keys and values of all earlier tokens, the **KV cache**. In FP8
# it needs half the memory. E4M3 needs a scale. Some programs choose it from the first tokens, and
# keep it.

# %% id="predict-cache"
predict("attend.cache")


# %% id="touch-cache" tags=["answer-attend.cache"]
def cached_keys(growth, calibrated_on, seed=0):
    """Return the share of the keys beyond the scale, and the relative error of all keys."""
    numbers = torch.Generator().manual_seed(seed)
    keys = torch.randn(4096, 64, generator=numbers)
    keys *= torch.exp(0.8 * torch.randn(64, generator=numbers))
    keys[500:] *= growth
    scale = keys[:calibrated_on].abs().max() / E4M3.max
    stored = scale * round_saturating(keys / scale, E4M3)
    cut = (keys.abs() > scale * E4M3.max).float().mean().item()
    return cut, ((stored - keys).norm() / keys.norm()).item()


for growth in (1, 2, 6):
    for tokens in (13, 4096):
        cut, error = cached_keys(growth, tokens)
        print(f"later keys times {growth}, scale from {tokens:>4} tokens: ", end="")
        print(f"{cut:5.1%} cut, error {error:.2f}")

# %% [markdown] tags=["answer-attend.cache"]
# **The first tokens are not like the others.** With a scale from 13 tokens, a few percent of the
# later keys are cut. They are the largest, so the error is large. A scale from all tokens costs
# nothing: the small keys lose almost no bits, because E4M3 is a *floating-point* format.
#
# You know this from lesson 11b. A delayed scale is chosen from past steps, and it is wrong when
# something new comes. The cure is the same: leave room above, or a scale for each block of tokens.
#
# These keys are made up: they show the mechanism. **Recorded:** the keys of the lab's `gpt` do not
# grow. With a scale from 13 characters at most 0.3% of its later keys are cut.
#
# *Not reproduced here:* a loss of quality of a large model. (vllm-project/vllm has options for this
# scale: `calculate_kv_scales`, and scales that come with the weights.)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C68 BF16 is good enough for everything that is not added up | false: of 256 experts, rounded scores give 14% of the tokens another set; FP16 1.9% | section 1 |
# | C69 a token that gets another expert gets a worse answer | half true: its outputs jump, the accuracy is the same | section 1 |
# | C70 what becomes zero in attention is lost | half true: a tenth of P may be 0 without harm in a short row; in a long row the factor divides the error by ten | section 2 |
#
# - Rounding *decides* where a value is compared: routers, the best of a list, a threshold.
# - P is at most 1, so a factor of $2^8$ in E4M3 costs nothing.
# - A scale that several tokens share carries information from one to the other.
#
# **Where you meet this.** `moe_router_dtype` in Megatron-LM; `softmax(..., dtype=torch.float)` of
# router logits in `transformers`; P in FP8 in FlashAttention-3; `kv_cache_dtype="fp8"` in vLLM.
