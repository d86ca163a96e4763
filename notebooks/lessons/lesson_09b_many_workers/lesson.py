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
# **You will be able to** say what each of several processes does when one of them overflows, make them agree, and choose in
# which format they add up their gradients.
#
# About 45 minutes. Three exercises, 16 points. Builds on: loss scaling (lesson 06) and master weights (lesson 07). Two things
# from there are used here:
#
# - A step whose gradients hold inf or NaN is *skipped*, and the scale is halved.
# - FP16 ends at 65,504. Below about 6e-8 it holds nothing.

# %% id="setup"
import torch

from labkit.bench import ring_table
from labkit.grading import check
from labkit.widgets import Workers, memory_bars, predict

# %% [markdown]
# ## 1 · Four processes
#
# One machine is not enough for a large model. So several processes train it together, each with a GPU and a batch of its own.
# Four words are used for that:
#
# - The processes are *ranks*, with numbers from 0 on. Their number is the *world size*. A program, `torchrun`, starts them.
# - After backward, the gradients are added up over all ranks. The sum is divided by the world size. This is an *all-reduce*.
# - With **DDP** (distributed data parallel) each rank holds all weights.
# - With **FSDP2** (fully sharded data parallel) each rank holds a *part* of each weight, some of its rows. It gets the gradients
#   of its part, and steps its part.
#
# The next cell starts four real processes on this machine. They train a layer of 64 outputs, in FP16 with FP32 masters. Each
# rank holds 16 rows. **In steps 3, 4 and 5 one target is far too large, and row 40 of the gradient overflows.**
#
# Press *Train*. The first time it takes a while, since each process has to import torch. *Stop* ends all four.

# %% id="touch-workers"
workers = Workers()
workers

# %% [markdown]
# Read the table. Rank 2 holds rows 32 to 47, so only rank 2 has seen inf (*inf here*). And all four have skipped: after
# backward they *agreed on found_inf*. Each sends one number, 1 for inf and 0 for none. The largest of them is what all go by.
#
# Nobody sends the scale. Each rank moves its own, by the same rule, from the same answer. So the scales stay equal.
#
# ## 2 · When nobody asks

# %% id="predict-alone"
predict("workers.alone")

# %% [markdown]
# **Try it.** Here are the same four processes. Take the tick from *the ranks agree on found_inf*, and press *Train*. Look at
# row 3 of the table, then at the losses.

# %% id="touch-alone"
workers

# %% [markdown]
# The ranks have parted. No error, no warning. From step 6 on all ranks step, and yet the loss soon grows: above 1,000 in the end,
# where it was 38 before.

# %% id="predict-after"
predict("workers.after")

# %% [markdown]
# That was after one overflow. Here there are three, and rank 2's scale falls to 2^11. The cell does the sum again.

# %% id="touch-lengths"
scales = torch.tensor([2.0**14, 2.0**14, 2.0**11, 2.0**14])
print("the mean of the scales is 2^11 times", scales.mean().item() / 2**11)
print("how long each rank's step is:", (scales.mean() / scales).tolist())

# %% [markdown]
# Rank 2 takes steps that are 6.25 times too long, in 16 of 64 rows. The others take steps that are too short. This is why a
# scaler for many ranks has to agree. In torch it is `ShardedGradScaler`. (FSDP2's parameters are a tensor type of torch's
# own, `DTensor`, which agrees by itself. Older code, and parts that you cut yourself, do not.)
#
# With DDP there is less to lose: inf goes into the sum, so it arrives at all ranks. Choose *all weights (DDP)* above, without
# agreement, and train: the ranks stay together.
#
# *How exercises work.* Write your answer between the `def` line and the check, and run the cell as often as you like.
# `from labkit.grading import hint`, then `hint("workers.agree")`, gives three hints, one by one, at no cost.
#
# ### Exercise 1: agree on found_inf  ●●○  7 min
#
# You play all ranks. Each holds a part of the weights and the scaled FP16 gradients of that part. Take one step of SGD
# (`part - lr * gradient`, in FP32), all ranks or none. After inf or NaN the scale is half of what it was. Not allowed: the
# lab's own `unscale`.


# %% id="exercise-workers-agree" tags=["exercise-workers.agree"]
def my_agreed_step(parts, gradients, scale, lr):
    """Return (the parts after the step, the scale after it).

    parts      list of FP32 tensors, one for each rank, of any shape; they stay as they are
    gradients  list of FP16 tensors of the same shapes, multiplied by `scale`
    """
    ### BEGIN SOLUTION
    found_inf = any(not torch.isfinite(gradient).all() for gradient in gradients)
    if found_inf:
        return list(parts), scale / 2
    return [part - lr * (gradient.float() / scale) for part, gradient in zip(parts, gradients, strict=True)], scale
    ### END SOLUTION


check("workers.agree", my_agreed_step)

# %% [markdown]
# ## 3 · Add up in FP16?
#
# What do the ranks send? Mostly gradients. In FP16 they are half as many bytes as in FP32. But sums grow.

# %% id="predict-sum"
predict("workers.sum")

# %% [markdown]
# **Try it.** Set the tick again, and choose in turn: gradients are added up in *FP32*, in *FP16, divided before*, in *FP16,
# divided after*. Compare which steps are skipped, and how much a rank sends in a step.

# %% id="touch-reduce"
workers

# %% [markdown]
# Added up in FP16 and divided after, step 1 overflows too: each rank's gradient fits, the sum of four does not. The scale has
# to come down, and small gradients come nearer to FP16's end. Divided before, nothing is skipped but steps 3, 4 and 5.
#
# Why not divide by all four before? Then small gradients *underflow* before they are added. With 1,024 ranks ten binades are
# lost. So one divides by a power of two near the square root before, and by the rest after. (FSDP2 does so. With four ranks:
# by 2 and by 2.)
#
# ### Exercise 2: divide before and after  ●●○  6 min
#
# Take the mean over the ranks, all of it in FP16: divide each gradient by `before`, add them up in order, and divide the sum so
# that the mean comes out.


# %% id="exercise-workers-predivide" tags=["exercise-workers.predivide"]
def my_mean_in_fp16(gradients, before):
    """Return the mean [n] of the gradients, in FP16.

    gradients  list of FP16 tensors [n], one for each rank; they stay as they are; inf and NaN are added like numbers
    before     what each is divided by before the sum; it divides the number of ranks
    """
    ### BEGIN SOLUTION
    total = gradients[0] / before
    for gradient in gradients[1:]:
        total = total + gradient / before
    return total / (len(gradients) / before)
    ### END SOLUTION


check("workers.predivide", my_mean_in_fp16)

# %% [markdown]
# **Does it pay?** That depends on what joins the ranks. In a *ring* of n ranks each one sends 2(n-1) messages of 1/n of the
# gradients. So the time is
#
# $$2(n-1)\,\alpha + \frac{2(n-1)}{n}\,\frac{\text{bytes}}{\beta}$$
#
# with α the time that a message takes to arrive, and β the bytes a second. FP16 halves the bytes, and leaves α. The next cell
# computes it with published figures: first for a small network, then for one of 100 million weights.

# %% id="touch-ring"
for weights, ranks in ((10_000, 8), (100_000_000, 8), (100_000_000, 512)):
    print(f"{weights:,} weights, {ranks} ranks")
    print(ring_table(weights, ranks), "\n")

# %% [markdown]
# For a small network the messages' number counts, and FP16 gains little. For a large one it is nearly twice as fast. With 512 ranks
# the messages count again. Whether you notice is another question: on NVLink 2 ms beside a step of 100 ms are nothing, and on
# slow Ethernet half a second is much. BF16 halves the bytes too and cannot overflow here, but its sums have three digits fewer.
#
# Those times are computed, and what is sent during backward is hidden. The bytes can be counted. This table was recorded: what one
# rank wrote to its connections in a step, for a network of 525,312 weights.
#
# | ranks | each holds | added up in FP32 | in FP16 or BF16 | a ring of DDP sends | time of a step |
# |---|---|---|---|---|---|
# | 2 | all (DDP) | 2,053 KiB | 1,027 KiB | 2,052 or 1,026 KiB | 1.6 to 1.7 |
# | 2 | a part (FSDP2) | 2,566 KiB | 1,540 KiB | | 1.8 to 1.9 |
# | 4 | all (DDP) | 3,080 KiB | 1,541 KiB | 3,078 or 1,539 KiB | 2.1 to 2.7 |
# | 4 | a part (FSDP2) | 3,850 KiB | 2,311 KiB | | 2.8 to 3.0 |
#
# The ring was right to a part in a thousand. FSDP2 also sends the FP16 weights, since each rank puts the whole together before it
# computes. The time is a multiple of one process's, with as many rows for each rank. No format was faster here: four processes
# shared two cores, and bytes inside one machine cost little. (2026-11-22, torch 2.13.0, gloo, an x86_64 CPU with 2 cores that had
# other work, too. `tests/benchmarks/bench_distributed.py` does it again.)
#
# ## 4 · Who holds which master?
#
# An FP32 master, its gradient and its momentum take more memory than the FP16 weight. With DDP each rank holds all of that. With
# FSDP2 it holds a fourth. **Train once each way above**, then run the next cell.

# %% id="touch-memory"
memory_bars(workers)

# %% [markdown]
# The 64 rows are shared evenly. What if there are five rows and four ranks? Each part is as long as the first one, until the
# rows are used up: 2, 2, 1 and 0. The last rank holds nothing of this weight, and takes part in every all-reduce all the same.
#
# ### Exercise 3: who holds which master?  ●●○  6 min
#
# Name each rank's rows. The first rank holds `rows / world`, rounded up. Not allowed: `torch.chunk` and `torch.tensor_split`.


# %% id="exercise-workers-parts" tags=["exercise-workers.parts"]
def my_rows(rows, world):
    """Return [(first row, row after the last), ...], one for each rank; both are `rows` where it holds none.

    rows   how many rows the weight has
    world  how many ranks there are
    """
    ### BEGIN SOLUTION
    each = -(-rows // world)
    return [(min(rank * each, rows), min(rank * each + each, rows)) for rank in range(world)]
    ### END SOLUTION


check("workers.parts", my_rows)

# %% [markdown]
# ## 5 · When one is gone
#
# A rank may end: its machine fails, or somebody needs it. The others wait for its next message. With a broken connection they
# get an error at once. Where nothing comes at all, they get it after a *timeout*. Then all are started again, from the last
# checkpoint. It has to be whole, whoever ended when. The lab writes it into a folder that gets its name last.
#
# This is a training of your own, for as many ranks as you like. It is not run here:
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
# - One rank's inf is everybody's: all step, or none does.
# - Ranks that do not agree part without an error, and each then takes steps of another length.
# - The scale is not sent. Equal answers keep it equal.
# - FP16 halves what is sent. Its sum has to be divided in part before, or it overflows.
# - With sharding a rank holds its part of weights, masters and momentum.
#
# **Where you meet this.** `torch.distributed.fsdp.fully_shard` and `ShardedGradScaler`; DDP's `register_comm_hook` and
# `no_sync`; DeepSpeed's ZeRO and Megatron's optimizer, which both take the largest found_inf of all ranks;
# `set_gradient_divide_factor`; `torch.distributed.checkpoint`.
