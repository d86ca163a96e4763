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

# %% [markdown] on_the_map="three runs that fail for three reasons; you repair them at the least memory"
# # 12 · Project: three runs that fail
#
# **You will be able to** find out why a training in 16 bits fails, and repair it at the least
# memory.
#
# About 60 minutes. Builds on: lessons 06 (scaling), 07 (master weights), 08 (recipes). Three
# projects, 24 points.

# %% id="setup"
from dataclasses import replace

import torch

from labkit.amp import RECIPES, Recipe, WeightRounding, static
from labkit.clinic import find_pitfalls
from labkit.formats import BF16, FP16
from labkit.grading import check
from labkit.instrument import swallowed
from labkit.train import TrainingRun, gradient_snapshot, train
from labkit.widgets import LiveTraining, UnderflowHistogram, predict, quiz
from labkit_lessons.lesson_12_project import FAILING, PROJECT_TASKS, enter, show


def compare_with_fp32(name):
    """Train a project's task in FP32 and as it fails, and return the failing run's record."""
    task = PROJECT_TASKS[name]
    for recipe in (RECIPES["FP32"], FAILING[name]):
        record = train(task, recipe, seed=0)
        weights = sum(parameter.numel() for parameter in task.make_model().parameters())
        kept = sum(record.memory.values()) / weights
        metric = f"{record.metric_name} {record.metric:.3f}"
        print(f"{recipe.name:<16}{metric}   {kept:.0f} bytes a weight")
    return record


# %% [markdown]
# ## The rules
#
# Below, three tasks fail under three recipes, for three different reasons. For each you submit a
# `Recipe`. The check trains with your recipe and with FP32, on the same seeds. It has three
# conditions:
#
# 1. every loss is a finite number;
# 2. it computes in 16 bits, and its metric is below FP32's by no more than the spread of FP32's own
#    seeds;
# 3. between two steps, it stores no more bytes for each weight than the project allows: weights,
#    gradients, masters, moments.
#
# Grading uses other seeds. Each project begins with the failing run, and with one instrument to
# examine it. You may use all other instruments of this course as well.
#
# These are the parts of `Recipe("mine", ...)`:
#
# | part | what it may be | if you leave it out |
# |---|---|---|
# | `model` | the format of weights and activations: `FP32`, `FP16`, `BF16` | `FP32` |
# | `autocast` | `FP16`, `BF16`, ... for an FP32 model; or `None` | `None` |
# | `keep_norms` | `True` or `False`: normalisation layers stay in FP32 | **`True`** |
# | `master_weights` | `True` or `False`: FP32 weights survive between two steps | **`True`** |
# | `optimizer` | `FP32`, or the model's format: weights, gradients and moments inside a step | `FP32` |
# | `scaler` | `static(2.0**10)`; with `skip_on_inf=False` there is no check for inf; `RECIPES["O2"].scaler` is dynamic | no scaling |
# | `rounding` | without masters: `WeightRounding.NEAREST`, `.STOCHASTIC` or `.KAHAN` | `NEAREST` |
# | `gradient_format` | the format that autocast rounds gradients to, for example `E5M2` beside `autocast=E4M3` | that of `autocast` |
#
# So `Recipe("mine", model=FP16)` keeps FP32 masters, 4 bytes a weight, unless you write
# `master_weights=False`.
#
# If two parts contradict each other, an error gives the reason. Recipes with a name are in
# `RECIPES`; `replace(RECIPES["O2"], ...)` changes one.

# %% [markdown]
# ## 1 · Targets of five millionths
#
# A small network learns a smooth function of eight numbers by plain SGD. Its activation function is
# tanh. Its targets are five millionths large. Its last layer starts with all weights at zero, as is
# common for a regression.

# %% id="touch-targets"
record = compare_with_fp32("targets")

# %% id="predict-targets"
predict("project.targets")

# %% [markdown]
# Answer first. Then use the instruments:

# %% id="touch-targets-pitfalls"
find_pitfalls(record)

# %% id="touch-targets-gradients"
failing = TrainingRun(PROJECT_TASKS["targets"], FAILING["targets"])
UnderflowHistogram(gradient_snapshot(failing))

# %% [markdown]
# The text below the picture says that the gradients of four layers are zero in FP32 too. Do not
# count them as lost: the last layer starts at zero, so it passes nothing on in the first step. FP16
# loses gradients in the last layer.

# %% [markdown]
# *No idea how to begin? `from labkit.grading import hint`, then `hint("project.targets")`: you get
# three hints, one by one, at no cost.*
#
# ### Project 1: targets of five millionths  ●●○  12 min
#
# At most **4 bytes a weight**; FP32 with SGD keeps 8.


# %% id="exercise-project-targets" tags=["exercise-project.targets"]
def my_targets_recipe(seeds):
    """Return the Recipe for this task.

    Args:
        seeds: The runs that will be trained under it; one recipe should do for all.
    """
    ### BEGIN SOLUTION
    return Recipe("mine", model=FP16, master_weights=False, optimizer=FP16, scaler=static(2.0**10))
    ### END SOLUTION


check("project.targets", my_targets_recipe)

# %% [markdown]
# ## 2 · A sensor that drifts
#
# A layer was calibrated, and its weights are between 1 and 2. Then the right weights drifted by a
# tenth at most. Adam follows them, with a learning rate of 3e-4. The metric is the share of the
# drift that Adam has followed.

# %% id="touch-drift"
record = compare_with_fp32("drift")

# %% [markdown]
# Nothing is wrong with loss, gradients or scale. Look at the weights, before and after one step:

# %% id="touch-drift-updates"
run = TrainingRun(PROJECT_TASKS["drift"], FAILING["drift"])
weights = run.weights.master_weights
before = [weight.detach().clone() for weight in weights]
run.step()
lost = swallowed(before, weights, [weight.grad for weight in weights])
print(f"{lost:.1%} of the weights did not move")

# %% id="predict-drift"
predict("project.drift")

# %% id="touch-drift-pitfalls"
find_pitfalls(record)

# %% [markdown]
# ### Project 2: a sensor that drifts  ●●●  15 min
#
# At most **12 bytes a weight**; FP32 with Adam keeps 16.


# %% id="exercise-project-drift" tags=["exercise-project.drift"]
def my_drift_recipe(seeds):
    """Return the Recipe for this task.

    Args:
        seeds: The runs that will be trained under it; one recipe should do for all.
    """
    ### BEGIN SOLUTION
    return replace(RECIPES["FP16 no master"], name="mine", rounding=WeightRounding.STOCHASTIC)
    ### END SOLUTION


check("project.drift", my_drift_recipe)

# %% [markdown]
# ## 3 · Adam in sixteen bits
#
# Digits again, a small MLP, and O3: everything in FP16, the optimizer too. Few recipes store fewer
# bytes, and this one learns nothing.

# %% id="touch-digits"
record = compare_with_fp32("digits")

# %% [markdown]
# The first loss is a number, the second is not. Look at the optimizer. Adam divides the mean
# gradient by the root of the mean square, plus epsilon. How large is that square? Enter a number.

# %% id="predict-square"
predict("project.square", lambda: FP16.smallest_subnormal / (0.001 * 0.0001**2))

# %% [markdown]
# Here are the two parts of that divisor in a first step with a gradient of a ten-thousandth:

# %% id="touch-digits-epsilon" tags=["answer-project.square"]
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    gradient = torch.tensor(1e-4, dtype=dtype)
    epsilon = torch.tensor(1e-8, dtype=dtype)
    square = (0.001 * gradient) * gradient  # beta2 is 0.999
    print(f"{dtype!s:<16} squared {square.item():.3g}   epsilon {epsilon.item():.3g}")

# %% id="predict-digits"
predict("project.digits")

# %% [markdown]
# What do the instruments say? `find_pitfalls` sees losses and gradients, and guesses that the
# forward pass is wrong. It does not see the optimizer.

# %% id="touch-digits-pitfalls"
find_pitfalls(record)

# %% [markdown] site="In the lab you can watch it live, and turn the knobs of the recipe."
# You can watch it live: choose a recipe's knobs, and press *Start*.

# %% id="touch-digits-live"
LiveTraining(PROJECT_TASKS["digits"], FAILING["digits"], seed=0)

# %% [markdown]
# ### Project 3: Adam in sixteen bits  ●●○  12 min
#
# At most **8 bytes a weight**; FP32 with Adam keeps 16.


# %% id="exercise-project-digits" tags=["exercise-project.digits"]
def my_digits_recipe(seeds):
    """Return the Recipe for this task.

    Args:
        seeds: The runs that will be trained under it; one recipe should do for all.
    """
    ### BEGIN SOLUTION
    return Recipe("mine", model=BF16, master_weights=False, optimizer=BF16)
    ### END SOLUTION


check("project.digits", my_digits_recipe)

# %% [markdown]
# ## The leader board
#
# More points come first, and among equals fewer bytes. Write your name between the quotes and run
# the cell: it puts one file into the folder `leader_board` next to this notebook. Nothing leaves
# your machine. For one board of the whole class, copy everybody's files into one folder.

# %% id="leader-board"
my_name = ""

grades = [
    check("project.targets", my_targets_recipe),
    check("project.drift", my_drift_recipe),
    check("project.digits", my_digits_recipe),
]
if my_name:
    enter("leader_board", my_name, grades)
show("leader_board")

# %% [markdown]
# ## The ten questions again
#
# You may have answered them in lesson 00. Answer them once more. After each answer you see whether
# it is right, and the table at the end compares both times.

# %% id="quiz-after"
quiz("after")

# %% [markdown]
# ## What was settled
#
# - Three failures look alike: a metric far below FP32's. They have three causes: gradients below
#   FP16's range, updates below half an ulp, an epsilon that is zero.
# - Each has a cure that costs no memory. Master weights are the best known cure. They repair two of
#   the three, and need more memory both times.
# - The evidence came first: a histogram, a count of weights that did not move, one division by
#   hand.
#
# In real frameworks: `torch.amp.GradScaler` (1), stochastic rounding in `torchao`'s optimizers and
# on Trainium (2), `eps` of `torch.optim.Adam` in any script that calls `.half()` (3).
