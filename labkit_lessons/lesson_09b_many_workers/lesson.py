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

# %% [markdown] on_the_map="four real processes, one of which overflows: what each does, and how they agree"
# # 09b · Many workers, one decision
#
# **You will be able to** explain what each of several processes does when one of them overflows.
# You make them agree, and choose the format in which they add their gradients.
#
# About 50 minutes. Three exercises, 16 points. Builds on: loss scaling (lesson 06) and master
# weights (lesson 07). You need two facts from these lessons:
#
# - A step whose gradients hold inf or NaN is *skipped*, and the scale is halved.
# - FP16 ends at 65,504. It has no numbers between 0 and about 6e-8.

# %% id="setup"
import torch
from ipywidgets import IntSlider, interact

from labkit.bench import ring_table
from labkit.grading import check
from labkit.widgets import Workers, memory_bars, predict

# %% [markdown]
# ## 1 · Four processes
#
# One machine is not enough for a large model. So several processes train it together, each with a
# GPU and a batch of its own. You need four terms:
#
# - The processes are *ranks*, counted from 0. The *world size* is the number of ranks. A program,
#   `torchrun`, starts them.
# - After backward, the gradients are added up over all ranks. The sum is divided by the world size.
#   This is an *all-reduce*.
# - With **DDP** (distributed data parallel) each rank holds all weights.
# - With **FSDP2** (fully sharded data parallel) each rank holds a *part* of each weight, some of
#   its rows. It gets the gradients of its part, and steps its part.
#
# The next cell starts four real processes on this machine. They train a layer of 64 outputs, in
# FP16 with FP32 masters. Each rank holds 16 rows. **In steps 3, 4 and 5 one target is far too
# large, and row 40 of the gradient overflows.**
#
# Each rank has a lane, and each step a column. A recorded training is drawn faintly. Press *Train*
# for your own. The first time it takes a while, because each process has to import torch. *Stop*
# ends all four.

# %% id="touch-workers"
workers = Workers()
workers

# %% [markdown]
# Read column 3. Rank 2 holds rows 32 to 47, so only rank 2 has seen inf (*inf here*). But all four
# have skipped: after backward they *agreed on found_inf*. Each sends one number, 1 for inf and 0
# for no inf. All take the largest of these numbers.
#
# No rank sends its scale. Each rank moves its own scale, by the same rule, from the same answer. So
# the scales stay equal.
#
# ## 2 · When the ranks do not agree

# %% id="predict-alone"
predict("workers.alone")

# %% [markdown] site="In the lab you remove the tick at *the ranks agree on found_inf* and press *Train*. Here you see the recorded training, in which they agree."
# **Try it.** Here are the same four processes. Remove the tick at *the ranks agree on found_inf*,
# and press *Train*. Look at column 3, then at the losses.

# %% id="touch-alone"
workers

# %% [markdown] tags=["answer-workers.alone"]
# The ranks now have different scales. There was no error and no warning. From step 6 on all ranks
# step, but the loss soon grows. In the end it is above 1,000; with agreement it was 38.

# %% id="predict-after"
predict("workers.after")

# %% [markdown]
# That was after one overflow. Here there are three, and rank 2's scale falls to 2^11. The next cell
# computes the lengths again.

# %% id="touch-lengths" tags=["answer-workers.after"]
scales = torch.tensor([2.0**14, 2.0**14, 2.0**11, 2.0**14])
print("the mean of the scales is 2^11 times", scales.mean().item() / 2**11)
print("how long each rank's step is:", (scales.mean() / scales).tolist())

# %% [markdown] tags=["answer-workers.after"]
# Rank 2 takes steps that are 6.25 times too long, in 16 of 64 rows. The others take steps that are
# too short. So a scaler for many ranks has to agree. torch's is `ShardedGradScaler`. (The
# parameters of FSDP2 have their own tensor type, `DTensor`, which agrees automatically. Older code
# does not, nor do parts that you cut yourself.)
#
# With DDP the danger is smaller: inf goes into the sum, so all ranks get it. Choose *all weights
# (DDP)* above, without agreement, and train: the scales stay equal.

# %% [markdown]
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. `from labkit.grading import hint`, then `hint("workers.agree")`, gives you
# three hints, one by one, at no cost.
#
# ### Exercise 1: agree on found_inf  ●●○  7 min
#
# Your function does the work of all ranks. Each rank holds a part of the weights and the scaled
# FP16 gradients of that part. Take one step of SGD (`part - lr * gradient`, in FP32), all ranks or
# none. After inf or NaN the scale is halved.


# %% id="exercise-workers-agree" tags=["exercise-workers.agree"]
def my_agreed_step(parts, gradients, scale, lr):
    """Return (the parts after the step, the scale after it).

    Args:
        parts: List of FP32 tensors, one for each rank, of any shape; they stay as they are.
        gradients: List of FP16 tensors of the same shapes, multiplied by `scale`.
    """
    ### BEGIN SOLUTION
    found_inf = any(not torch.isfinite(gradient).all() for gradient in gradients)
    if found_inf:
        return list(parts), scale / 2
    updated = []
    for part, gradient in zip(parts, gradients, strict=True):
        updated.append(part - lr * (gradient.float() / scale))
    return updated, scale
    ### END SOLUTION


check("workers.agree", my_agreed_step)

# %% [markdown]
# ## 3 · Add up in FP16?
#
# Ranks send mostly gradients. In FP16 these have half as many bytes as in FP32. But a sum is larger
# than its terms.

# %% id="predict-sum"
predict("workers.sum")

# %% [markdown] site="In the lab you choose in which format gradients are added up: *FP32*, *FP16, divided before* or *FP16, divided after*. Here you see the recorded training."
# **Try it.** Set the tick again. Choose one after another: gradients are added up in *FP32*, in
# *FP16, divided before*, in *FP16, divided after*. Compare which steps are skipped, and how much a
# rank sends in a step.

# %% id="touch-reduce"
workers

# %% [markdown] tags=["answer-workers.sum"]
# If you add in FP16 and divide afterwards, step 1 overflows as well. Each gradient fits into FP16;
# the sum of four does not. The scale has to fall, and small gradients come nearer to FP16's lower
# end. If you divide before, only steps 3, 4 and 5 are skipped.
#
# Why not divide by the whole number of ranks before? Then small gradients *underflow* before they
# are added. With 1,024 ranks ten binades are lost. So divide by a power of two near the square root
# before, and by the rest after. (FSDP2 does so for FP16. With four ranks it divides by 2 and by 2.
# For FP32 and BF16 it takes the plain average.)

# %% [markdown]
# In FSDP2 a *policy* says which numbers are cast, and to what: `MixedPrecisionPolicy`.
#
# | field | casts | if it is left out |
# |---|---|---|
# | `param_dtype` | the weights that a module computes with, and its inputs | weights keep their dtype |
# | `reduce_dtype` | gradients, before they are added up over the ranks | `param_dtype` |
# | `output_dtype` | what a module returns | no cast |
# | `cast_forward_inputs` | whether inputs are cast to `param_dtype` | they are |
#
# Buffers, such as the averages of batch norm, are not cast. The optimizer steps the sharded weights
# in their own dtype: they are the master weights. With `param_dtype=torch.bfloat16`, set
# `reduce_dtype=torch.float32`: lesson 07 shows what a long sum in BF16 loses. *Source:* the
# documentation of `MixedPrecisionPolicy` in torch 2.13.
#
# **More ranks, more roundings.** A ring adds in turn, and rounds at each rank. How wrong is the
# sum?


# %% id="touch-reduce-ranks"
def sum_of_ranks(ranks, dtype):
    """Return the relative error of a sum over ranks that is rounded to a dtype at each of them."""
    numbers = torch.Generator().manual_seed(0)
    # all ranks agree on the common part; the rest of each gradient is noise
    common = 0.3 * torch.randn(2000, generator=numbers)
    gradients = [1e-3 * (common + torch.randn(2000, generator=numbers)) for _ in range(ranks)]
    total = torch.zeros(2000, dtype=dtype)
    for gradient in gradients:
        total = total + gradient.to(dtype)
    exact = torch.stack(gradients).double().sum(0)
    return ((total - exact).norm() / exact.norm()).item()


def errors(log2_ranks):
    ranks = 2**log2_ranks
    fp32 = sum_of_ranks(ranks, torch.float32)
    fp16 = sum_of_ranks(ranks, torch.float16)
    bf16 = sum_of_ranks(ranks, torch.bfloat16)
    print(f"{ranks:>5} ranks: error {fp32:.5%} in FP32, {fp16:6.2%} in FP16, {bf16:6.2%} in BF16")


for log2_ranks in (3, 6, 8, 10):
    errors(log2_ranks)

# %% [markdown] site="In the lab a slider sets the number of ranks."
# Set the number of ranks; 5 is 2^5 = 32 of them:

# %% id="touch-ranks" tags=["lab-only"]
_ = interact(errors, log2_ranks=IntSlider(5, 1, 11, description="ranks, log2"))

# %% [markdown]
# **FP16 is better than BF16 by a factor of about eight, until it overflows.** It has three bits
# more. With 1,024 ranks BF16 loses more than 8% of the sum: its terms are swallowed, as in
# lesson 07.
#
# ### Exercise 2: divide before and after  ●●○  6 min
#
# Compute the mean over the ranks, with all steps in FP16. Divide each gradient by `before`, and add
# them up in order. Then divide the sum so that the result is the mean.


# %% id="exercise-workers-predivide" tags=["exercise-workers.predivide"]
def my_mean_in_fp16(gradients, before):
    """Return the mean [n] of the gradients, in FP16.

    Args:
        gradients: List of FP16 tensors [n], one for each rank; do not change them.
            Inf and NaN are added like numbers.
        before: The divisor of each before the sum; it divides the number of ranks.
    """
    ### BEGIN SOLUTION
    total = gradients[0] / before
    for gradient in gradients[1:]:
        total = total + gradient / before
    return total / (len(gradients) / before)
    ### END SOLUTION


check("workers.predivide", my_mean_in_fp16)

# %% [markdown]
# **Is FP16 faster?** That depends on the connection between the ranks. In a *ring* of n ranks each
# one sends 2(n-1) messages of 1/n of the gradients. So the time is
#
# $$2(n-1)\,\alpha + \frac{2(n-1)}{n}\,\frac{\text{bytes}}{\beta}$$
#
# where α is the time that a message takes to arrive, and β the bytes per second. FP16 halves the
# bytes, and does not change α. The next cell computes the time with published figures: first for a
# small network, then for one of 100 million weights.

# %% id="touch-ring"
for weights, ranks in ((10_000, 8), (100_000_000, 8), (100_000_000, 512)):
    print(f"{weights:,} weights, {ranks} ranks")
    print(ring_table(weights, ranks), "\n")

# %% [markdown]
# For a small network the number of messages decides, and FP16 gains little. For a large one FP16 is
# nearly twice as fast. With 512 ranks the number of messages matters again. Is it a large part of a
# step? On NVLink 2 ms are little beside a step of 100 ms. On slow Ethernet half a second is much.
# BF16 halves the bytes too, and cannot overflow here. But its sums have three significant bits
# fewer.
#
# Those times are computed. In practice much is sent during backward, so you do not see that time.
# But the bytes can be counted. This table was recorded, for a network of 525,312 weights. It shows
# the bytes that one rank wrote to its connections in a step:
#
# | ranks | each holds | added up in FP32 | in FP16 or BF16 | a ring of DDP sends | time of a step |
# |---|---|---|---|---|---|
# | 2 | all (DDP) | 2,053 KiB | 1,027 KiB | 2,052 or 1,026 KiB | 1.6 to 1.7 |
# | 2 | a part (FSDP2) | 2,566 KiB | 1,540 KiB | | 1.8 to 1.9 |
# | 4 | all (DDP) | 3,080 KiB | 1,541 KiB | 3,078 or 1,539 KiB | 2.1 to 2.7 |
# | 4 | a part (FSDP2) | 3,850 KiB | 2,311 KiB | | 2.8 to 3.0 |
#
# The formula of the ring was right to one part in a thousand. FSDP2 also sends the FP16 weights,
# because each rank needs all of them to compute. The time is a multiple of the time of one process
# with as many rows. No format was faster here: four processes shared two cores, and sending bytes
# inside one machine costs little. (2026-11-22, torch 2.13.0, gloo, an x86_64 CPU with 2 cores that
# had other work, too. `tests/benchmarks/bench_distributed.py` measures it again.)
#
# ## 4 · Which rank holds which master?
#
# An FP32 master, its gradient and its momentum take more memory than the FP16 weight. With DDP each
# rank holds all of them. With FSDP2 on four ranks it holds a fourth. **Train once each way above**,
# then run the next cell.

# %% id="touch-memory"
memory_bars(workers)

# %% [markdown]
# The 64 rows are shared evenly. What if there are five rows and four ranks? Each part is as long as
# the first one, until the rows are used up: 2, 2, 1 and 0. The last rank holds nothing of this
# weight, but it still takes part in every all-reduce.
#
# ### Exercise 3: which rank holds which master?  ●●○  6 min
#
# Name each rank's rows. The first rank holds `rows / world`, rounded up to a multiple of `block`.
# With a block of 1 this is torch's rule; kernels that work on blocks of rows want larger ones.


# %% id="exercise-workers-parts" tags=["exercise-workers.parts"]
def my_rows(rows, world, block):
    """Return [(first row, row after the last), ...], one for each rank.

    Both are `rows` for a rank that holds none.

    Args:
        rows: How many rows the weight has.
        world: How many ranks there are.
        block: How many rows belong together; the last part may be shorter.
    """
    ### BEGIN SOLUTION
    each = -(-rows // (world * block)) * block
    return [(min(rank * each, rows), min(rank * each + each, rows)) for rank in range(world)]
    ### END SOLUTION


check("workers.parts", my_rows)

# %% [markdown]
# ## 5 · When a rank ends early
#
# A rank may end early: its machine fails, or another job needs it. The others wait for its next
# message. With a broken connection they get an error at once. Without any message they get it after
# a *timeout*. Then all ranks are started again, from the last checkpoint. It has to be complete,
# even if a rank ended while it was written. So the lab writes it into a folder, and gives the
# folder its name last.
#
# This is a training for your own model, with any number of ranks. It does not run here:
#
# ```python
# # train.py, started by: torchrun --standalone --nproc-per-node 4 train.py
# from labkit.amp import RECIPES
# from labkit.amp.distributed.checkpoint import latest, load, save
# from labkit.amp.distributed.engine import DistributedEngine
# from labkit.amp.distributed.group import start_group, while_all_have
#
# device = start_group("cuda")  # a GPU for each rank; "cpu" needs none
# engine = DistributedEngine(model, make_optimizer, RECIPES["O2"], sharded=True, device=device)
# if path := latest("run"):
#     load(path, engine)  # by another number of ranks, too
# for inputs, targets in while_all_have(batches, device):  # the rank with the fewest batches ends the epoch of all
#     engine.zero_grad()
#     with engine.forward():
#         loss = loss_function(engine(inputs), targets)
#     engine.backward(loss)
#     engine.clip(1.0)  # the length of all parts together
#     engine.step()  # all ranks or none
#     save("run", engine)
# ```
#
# ## What was settled
#
# - An inf on one rank counts for all ranks: all of them step, or none does.
# - Ranks that do not agree get different scales, without an error. Then each takes steps of another
#   length.
# - The scale is not sent. Equal answers keep it equal.
# - FP16 halves the bytes that are sent. Divide partly before the sum, or the sum overflows.
# - With sharding a rank holds its part of weights, masters and momentum.
#
# **Where you meet this.** `torch.distributed.fsdp.fully_shard` and `ShardedGradScaler`; DDP's
# `register_comm_hook` and `no_sync`; DeepSpeed's ZeRO and Megatron's optimizer, which both take the
# largest found_inf of all ranks; `set_gradient_divide_factor`; `torch.distributed.checkpoint`.
