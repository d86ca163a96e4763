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

# %% [markdown]
# # 08 · Recipes
#
# **You will be able to** read O0 to O3 as four settings of the same knobs, choose a recipe for a task by evidence, and tell a
# difference from the scatter of seeds.
#
# About 110 minutes. Builds on: lessons 05 (autocast), 06 (scaling), 07 (master weights). Six exercises, 29 points.

# %% id="setup"
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from labkit.amp import RECIPES
from labkit.grading import check
from labkit.train import TASKS, Comparison, TrainingRun, place, recorded, train
from labkit.widgets import Workbench, predict, race_figure, recipe_table

# %% [markdown]
# ## 1 · Four settings of the same knobs
#
# You know every part by now: what operations read, where weights live, what happens to the loss. A **recipe** is one answer to
# each. In 2018 NVIDIA's apex gave four of them names, and the names stayed: O0, O1, O2, O3.

# %% id="predict-levels"
predict("recipes.levels")

# %% [markdown]
# Look at four things in a network with batch norm: a convolution's weight, a norm's weight, what the optimizer steps, and what
# comes out of the convolution.


# %% id="touch-levels" tags=["claim-C46"]
def probe(level):
    """Return the four dtypes after one training step under a recipe."""
    run, seen = TrainingRun(TASKS["digits_cnn"], RECIPES[level], measure_every=0), {}
    run.model.conv1.register_forward_hook(lambda _layer, _inputs, output: seen.update(output=output.dtype))
    run.step()
    weight, norm = run.model.conv1.weight.dtype, run.model.norm1.weight.dtype
    return weight, norm, run.weights.optimizer_weights[0].dtype, seen["output"]


print("    conv weight      norm weight      stepped          conv output")
for level in ("O0", "O1", "O2", "O3"):
    print(level, *(f"{str(dtype).removeprefix('torch.'):<16}" for dtype in probe(level)))

# %% [markdown]
# O1 never converts the model: each operation casts by its list, and the weights are their own masters. O2 converts all but the
# norms, and keeps FP32 masters *beside* the model. O3 keeps nothing back, its optimizer included. Loss scaling goes with O1 and
# O2, dynamic; O0 needs none, and O3 has none.
#
# ### Exercise 1: four settings of the same knobs  ●○○  6 min
#
# `master_weights` means FP32 copies beside a 16-bit model; where the weights are FP32 themselves, there are none.


# %% id="exercise-recipes-levels" tags=["exercise-recipes.levels"]
def my_knobs(level):
    """Return the knobs of "O0", "O1", "O2" or "O3" as a dict.

    model_bits          32 or 16
    casts_by_operation  True or False, as the other three: norms_in_fp32, master_weights, dynamic_scaling
    """
    ### BEGIN SOLUTION
    names = ("model_bits", "casts_by_operation", "norms_in_fp32", "master_weights", "dynamic_scaling")
    levels = {
        "O0": (32, False, True, False, False),
        "O1": (32, True, True, False, True),
        "O2": (16, False, True, True, True),
        "O3": (16, False, False, False, False),
    }
    return dict(zip(names, levels[level], strict=True))
    ### END SOLUTION


check("recipes.levels", my_knobs)

# %% [markdown]
# ### Exercise 2: which of the four is it?  ●●○  8 min
#
# Somebody hands you a script that trains "in mixed precision". You put four probes into it, as above. BF16 has no O-levels, and
# not every mixture of FP16 has a name.


# %% id="exercise-recipes-which" tags=["exercise-recipes.which"]
def my_level(weight, norm, stepped, output):
    """Return "O0", "O1", "O2", "O3" or "none of them" for four torch dtypes."""
    ### BEGIN SOLUTION
    if torch.bfloat16 in (weight, norm, stepped, output):
        return "none of them"
    rows = {(32, 32, 32, 32): "O0", (32, 32, 32, 16): "O1", (16, 32, 32, 16): "O2", (16, 16, 16, 16): "O3"}
    bits = tuple(32 if dtype == torch.float32 else 16 for dtype in (weight, norm, stepped, output))
    return rows.get(bits, "none of them")
    ### END SOLUTION


check("recipes.which", my_level)

# %% [markdown]
# ## 2 · The workbench
#
# Here is every knob, on a training that runs now. Beside yours stands FP32 from the same seed, the broad grey line. And a run
# can be **forked**: a second one leaves it after any step, with every digit it had, and sees the same batches from there on. So
# if the two part, it is your knob that parted them.

# %% id="predict-fork"
predict("recipes.fork")

# %% [markdown]
# Three things to try:
# 1. *Start*. At the end, fork at step 60 and press *Continue* without turning anything. Then fork again, and turn scaling *off*.
# 2. Choose the task *fine tuning*, and fork it with masters *forgotten*. Watch the share of swallowed updates, not the loss.
# 3. Choose the task *autoencoder* and recipe *O3*. Then fork after step 0 with another epsilon.

# %% id="touch-bench"
Workbench("segmentation_small", "FP16 static")

# %% [markdown]
# Knobs on the left are formats: a model is *built* in them, so turning one begins the run again (a fork begins again where it
# left). Those on the right are decisions of a single step, and may change on the way. Open *The same in plain torch*
# and turn the knobs: each one is a line or two.
#
# ### Exercise 3: the lines that a recipe adds  ●●○  8 min
#
# FP32 is `forward`, `backward`, `step`. Masters add `gradients to masters` and `masters to model`. Scaling adds `scale loss`,
# `unscale`, `look for inf` and `update scale`. Return them in the order in which they run.


# %% id="exercise-recipes-lines" tags=["exercise-recipes.lines"]
def my_lines(masters, scaling):
    """Return the lines of one training step, as a list of names; masters and scaling are True or False."""
    ### BEGIN SOLUTION
    lines = ["forward"] + ["scale loss"] * scaling + ["backward"] + ["gradients to masters"] * masters
    lines += ["unscale", "look for inf"] * scaling + ["step"]
    return lines + ["masters to model"] * masters + ["update scale"] * scaling
    ### END SOLUTION


check("recipes.lines", my_lines)

# %% [markdown]
# ## 3 · O3, and a number called epsilon
#
# Everything in FP16, no masters, no scaling. Does it work?

# %% id="predict-o3"
predict("recipes.o3")


# %% id="touch-o3" tags=["claim-C47"]
def six_losses(task, epsilon):
    """Train six steps in pure FP16 with another epsilon, where the optimizer has one."""
    run = TrainingRun(TASKS[task], RECIPES["O3"], measure_every=0)
    for group in run.engine.optimizer.param_groups:
        group["eps"] = epsilon
    return [run.step().loss for _ in range(6)]


for task, epsilon in (("digits", 1e-8), ("autoencoder", 1e-8), ("autoencoder", 1e-4)):
    optimizer = TASKS[task].make_optimizer.func.__name__
    print(f"{task:<12}{optimizer:<5} epsilon {epsilon:g}:", *(f"{loss:.4f}" for loss in six_losses(task, epsilon)))

# %% [markdown]
# With SGD nothing breaks. Adam divides by $\sqrt{v} + \epsilon$, and its own $\epsilon = 10^{-8}$ is **zero** in FP16. So is $v$,
# a thousandth of a squared gradient:
#
# $$10^{-8} < 2^{-25} \quad\text{and}\quad 0.001\,g^2 < 2^{-25} \;\text{ for }\; |g| < 0.0055$$
#
# The first step is g / 0 = inf; where the gradient is 0 too, it is 0 / 0 = NaN. O2's optimizer computes in FP32 and never meets
# this. *Very unstable*, then, is half true: it depends on the optimizer, and on one constant that nobody looks at.
#
# ### Exercise 4: an epsilon that FP16 can hold  ●●○  10 min
#
# Adam's first step in FP16: v is 0.001 times the squared gradient, rounded to FP16 once; epsilon is rounded to FP16 as well.
# `round_to(x, FP16)` rounds. A step whose denominator is not 0 is finite.

# %% id="exercise-recipes-epsilon" tags=["exercise-recipes.epsilon"]
from labkit.formats import FP16, round_to


def my_fate(gradient, epsilon):
    """Return what the first step makes of a weight: "finite", "inf" or "nan"."""
    ### BEGIN SOLUTION
    v, held = float(round_to(0.001 * gradient**2, FP16)), float(round_to(epsilon, FP16))
    if v != 0 or held != 0:
        return "finite"
    return "nan" if gradient == 0 else "inf"
    ### END SOLUTION


check("recipes.epsilon", my_fate)

# %% [markdown]
# ## 4 · Equivalent, not equal
#
# When a recipe works, how close does it come to FP32?

# %% id="predict-equal"
predict("recipes.equal")

# %% [markdown]
# Five seeds of each, **recorded**; the title says where and when.

# %% id="touch-equal" tags=["claim-C50"]
records = [recorded("digits", recipe, seed) for recipe in ("FP32", "O1", "O2", "BF16") for seed in range(5)]
for recipe in ("O1", "O2", "BF16"):
    pairs = [(a, b) for a in records for b in records if a.recipe == "FP32" and b.recipe == recipe and a.seed == b.seed]
    equal = sum(x.loss == y.loss for a, b in pairs for x, y in zip(a.steps, b.steps, strict=True))
    print(f"{recipe:<5} losses equal to FP32's bit for bit: {equal} of {sum(len(a.steps) for a, _ in pairs):,}")
print(Comparison("digits", tuple(records)))
race_figure(records)

# %% [markdown]
# Not one loss in a hundred is the same number, and nobody could tell the recipes apart by what they learned. That is the right
# question: *is the difference larger than what another seed does?* Runs of one seed share first weights and batches, so they
# are **pairs**. The lab calls a difference one only if its mean is beyond the range of FP32's own seeds **and** beyond the half
# width of its 95% interval:
#
# $$\left|\bar d\right| > \max\!\left(\text{range of FP32},\; t\,\frac{s_d}{\sqrt n}\right)$$
#
# ### Exercise 5: a difference, or only seeds?  ●●○  12 min
#
# $d$ is the other's metric minus FP32's, seed by seed; $s_d$ is the standard deviation with $n - 1$ below
# (`statistics.stdev`). A run that ended in NaN counts as metric 0.

# %% id="exercise-recipes-verdict" tags=["exercise-recipes.verdict"]
import math
import statistics


def my_verdict(fp32, other, t):
    """Return "worse", "better" or "as good".

    fp32, other  metrics, one for each seed, in the same order
    t            Student's t for as many pairs
    """
    ### BEGIN SOLUTION
    d = [(0.0 if math.isnan(b) else b) - a for a, b in zip(fp32, other, strict=True)]
    mean, width = statistics.mean(d), t * statistics.stdev(d) / math.sqrt(len(d))
    if abs(mean) <= max(max(fp32) - min(fp32), width):
        return "as good"
    return "worse" if mean < 0 else "better"
    ### END SOLUTION


check("recipes.verdict", my_verdict)

# %% [markdown]
# ## 5 · The table
#
# Every task of the lab under every recipe, by that verdict. Point at a cell to see its numbers.

# %% id="predict-table"
predict("recipes.table")

# %% id="touch-table" tags=["claim-C48", "claim-C49"]
recipes = ["O1", "O2", "FP16 static", "FP16", "FP16 no master", "O3", "BF16", "BF16 no master"]
recipe_table(TASKS, recipes)

# %% [markdown]
# Read it by columns. *O1* and *O2* keep what they promise. *FP16* without a scale fails on three tasks of eleven, and the last
# column (the share of activation gradients that underflow, mean over the run) is a warning and no verdict: *segmentation
# small* loses three quarters and ends as good; *gauss conv* loses a tenth, and with it 99% of its first weight gradients, all
# that its convolutions had to start from. Without masters it is fine-tuning that suffers; on *gauss conv* one seed of three died without them, and "as good" there means that
# three seeds do not tell. And `.half()` on everything, *O3*, is not a little worse: on digits it works, on small targets it
# learns nothing, and where Adam steps it breaks at once.
#
# **Fill it together.** Each of you takes one task or one recipe, or brings a task of your own:
# `labkit race fine_tuning --recipes FP32 O1 O3 --seeds 0 1 2 --folder our_runs --device cpu` in a terminal, everybody's files
# into one folder, and `recipe_table(TASKS, recipes, folder="our_runs")` shows what the class knows. Who finds a task that O2
# spoils? (Runs of a GPU are kept in a folder of its name: recipes are compared on one device.)

# %% [markdown]
# ## 6 · Walk the cliff
#
# Between *nothing happens* and *nothing is learned* there is an edge, and you can walk up to it. `small_targets` takes the mean
# of squared errors over a batch; each run takes a second.

# %% id="predict-cliff"
predict("recipes.cliff")


# %% id="touch-cliff"
def learned(recipe, batch_size):
    """Train the small regression; return R2 (1 is everything, 0 is nothing) and the share lost in the first step."""
    task = replace(TASKS["small_targets"], batch_size=batch_size)
    record = train(task, RECIPES[recipe], seed=0, measure_every=task.steps, device=place())  # your GPU, if you have one
    return record.metric, record.steps[0].underflow


print("mean over   FP32   FP16 without scaling")
for batch_size in (30, 300, 1000):
    (fp32, _), (fp16, lost) = learned("FP32", batch_size), learned("FP16", batch_size)
    print(
        f"{batch_size:>9}{fp32:>7.2f}{fp16:>7.2f}, {lost:.1%} of its activation gradients underflow in the first step"
    )

# %% [markdown]
# A mean over $N$ divides each gradient by $N$: ten times the batch moves the whole histogram 3.3 binades to the left. With 300,
# most gradients are lost from the first step on, **and nothing happens**: those that survive are the large ones, and they point
# the right way. A little further, and nothing is learned. So the share that is lost is a warning and no verdict.
#
# Depth does the same: each layer of these convolutions multiplies gradients by small weights.

# %% id="touch-depth"
for depth in (2, 3, 4, 5, 6, 7):
    deeper = replace(TASKS["gauss_conv"], make_model=partial(TASKS["gauss_conv"].make_model, depth=depth))
    first = TrainingRun(deeper, RECIPES["FP16"]).step()
    print(f"{depth} convolutions: {first.underflow:6.1%} of the activation gradients underflow at the first step")

# %% [markdown]
# The learning rate comes *after* the gradient, so it moves no gradient over this edge. It moves updates over the other one,
# half an ulp of their weight:

# %% id="touch-rate"
run = TrainingRun(TASKS["fine_tuning"], RECIPES["FP16 no master"])
for learning_rate in (2e-6, 2e-5, 2e-4, 2e-3):
    fork = run.fork()
    for group in fork.engine.optimizer.param_groups:
        group["lr"] = learning_rate
    print(f"learning rate {learning_rate:g}: {fork.step().swallowed:6.1%} of the updates swallowed without a master")

# %% [markdown]
# ## 7 · What is it worth?
#
# The bench counted what a run keeps between steps, and O2 keeps no less than FP32: 16-bit weights, and FP32 masters and moments
# beside them. What shrinks is what lives *inside* a step. Count what autograd saves for the backward pass, in plain torch:

# %% id="predict-memory"
predict("recipes.memory")


# %% id="touch-memory" tags=["claim-C11"]
def saved_bytes(net, inputs):
    """Return how many bytes autograd keeps for the backward pass, weights not counted."""
    kept = {}
    weights = {p.untyped_storage().data_ptr() for p in net.parameters()}

    def note(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = net(inputs)
    del output
    return sum(size for at, size in kept.items() if at not in weights)


net = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 10))
for batch_size in (128, 256):
    in_fp32 = saved_bytes(net.float(), torch.randn(batch_size, 256))
    in_fp16 = saved_bytes(net.half(), torch.randn(batch_size, 256).half())
    print(f"batch {batch_size}: {in_fp32:>9,} bytes in FP32, {in_fp16:>9,} in FP16")
parameters = sum(p.numel() for p in net.parameters())
print(f"weights, gradients and Adam: {16 * parameters:,} bytes in FP32, {(2 + 2 + 4 + 8) * parameters:,} in O2")

# %% [markdown]
# Twice the batch in the same bytes is true of activations, exactly. It is false of weights and optimizer state, and where those
# dominate (a large model, a small batch) mixed precision frees little. Half true.
#
# ### Exercise 6: the cheapest that passes  ●●○  10 min
#
# A recipe passes if its mean metric is at least FP32's mean minus FP32's range (largest minus smallest seed), and no run of it
# ended in NaN. Of those that pass, take the one with the fewest bytes; if none does, "FP32".


# %% id="exercise-recipes-cheapest" tags=["exercise-recipes.cheapest"]
def my_choice(fp32, candidates):
    """Return the name of the recipe to take.

    fp32        metrics, one for each seed
    candidates  list of (name, bytes, metrics)
    """
    ### BEGIN SOLUTION
    floor = statistics.mean(fp32) - (max(fp32) - min(fp32))
    passing = [
        (size, name)
        for name, size, metrics in candidates
        if not any(map(math.isnan, metrics)) and statistics.mean(metrics) >= floor
    ]
    return min(passing)[1] if passing else "FP32"
    ### END SOLUTION


check("recipes.cheapest", my_choice)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C11 the freed memory allows twice the batch or a larger model | half true: activations halve, weights and optimizer state do not | section 7 |
# | C46 O0 is FP32; O1 casts by list; O2 is FP16 except norms, with masters; O3 is pure FP16 | true, dtype by dtype | section 1 |
# | C47 O3 is very unstable, useful as a speed baseline | half true: with Adam it breaks at once, with SGD it may train like FP32 | section 3 |
# | C48 calling .half() on everything usually loses accuracy | half true: on some tasks nothing is lost, on others everything | section 5 |
# | C49 mixed precision reaches the accuracy of FP32 | true of O1 and O2 on the tasks recorded here | section 5 |
# | C50 do not expect bit-for-bit identical results, expect statistically equivalent ones | true | section 4 |
#
# **Where you meet this.** `apex.amp.initialize(opt_level="O2")` (its engine was deleted upstream in 2025; the names live on),
# DeepSpeed's `"fp16": {"enabled": true}` (O2 in all but name) and `"auto_cast"`, Lightning's `precision="16-mixed"` (O1) and
# `"16-true"` (O3), PaddlePaddle's `paddle.amp.auto_cast(level="O1")`, Megatron-LM's `--fp16` and `--bf16`, Hugging Face's
# `TrainingArguments(fp16=True)`.
