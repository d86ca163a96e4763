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
# # 00 · Start here
#
# This is a lab for **mixed-precision training**. A network is trained with numbers of 16 bits
# wherever that is safe, and of 32 bits elsewhere. The most common format of 16 bits is FP16. It
# ends at 65504, and it has no number between zero and 2^-24. Smaller results become zero.
#
# **Press Shift+Enter twice.** It runs the next cell, which takes some seconds the first time. Then
# **drag the loss scale to the right**, and see the gradients of a network come back.

# %% id="touch-warm-up"
from labkit.amp import RECIPES
from labkit.train import TASKS, TrainingRun, gradient_snapshot
from labkit.widgets import Playground, UnderflowHistogram, predict, quiz

gradients = gradient_snapshot(TrainingRun(TASKS["segmentation_small"], RECIPES["FP16"]))
UnderflowHistogram(gradients, log2_scale=0)

# %% [markdown]
# You see real data: the gradients of a network just before its first step. Each bar counts the
# gradients between one power of two and the next. Those in the zone on the left become zero in
# FP16. A scale of 1,024 = 2^10 moves every bar ten places to the right, and changes only the
# exponent of each gradient.
#
# Next is a whole training, which runs in this page: a network is to paint a dark face, in FP16.
# Does the face appear? Run the cell, make a guess and press **Start**. Beside it you see its twin
# in FP32, which starts from the same weights and sees the same pixels. Then drag the handle under
# the layers to the right, and go on.

# %% id="touch-playground"
Playground()

# %% [markdown]
# In this lab you will
#
# - touch the bits of a number,
# - see gradients become zero because they are too small for FP16,
# - bring them back with a loss scale,
# - and compare trainings in FP16 with the same trainings in FP32.
#
# Everything you see is computed here, on your machine, or it says where and when it was recorded.
# The [glossary](glossary.ipynb) explains technical words; each lesson links to it where a word is
# new.
#
# **No slider above, or a red line?** The [check of your machine](#Check-your-machine) at the end of
# this lesson says what to do.
#
# ## How a lesson goes
#
# Every lesson repeats the same four parts: *touch*, as you just did, *predict*, *explain* and
# *exercise*. Run **one cell at a time**. Answer each question before you run the next cell: that
# cell shows the answer. (After *Run All* the questions are still open.)
#
# ### Predict
# You choose an answer *before* you see the result. A wrong guess costs nothing, and it is the part
# you will remember. Try one.
#
# **Without a mouse:** Shift+Enter runs the cell and goes to the next one. Press Up, then Tab: the
# focus is on the first choice. Space chooses it, the arrow keys choose another one, and Enter
# commits. Esc goes back to the cell, and Shift+Enter works in both. This is the way into every
# widget, so into the slider above, too. If JupyterLab shows buttons in the corner of the cell,
# press Tab once more, and never Enter on these buttons: the first one duplicates the cell.

# %% id="predict-warm-up"
predict("start.warm_up")

# %% [markdown]
# ### Explain
# A few sentences and at most one formula, after you have seen it. What answers a prediction is
# folded until you have committed to yours:

# %% [markdown] tags=["answer-start.warm_up"]
# FP16 has as many numbers between 1/2 and 1 as between 1/4 and 1/2, and so on towards zero. The
# last one above zero is 2^-24. Lesson 01 shows why.

# %% [markdown]
# ### Exercise: where a format ends  ●○○  3 min
# You write a few lines, and the cell answers at once. It says what passed and what failed, and
# shows the first input that failed. Here is one to warm up. Run it as it is, read the answer, then
# repair it.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("start.smallest")`: you get
# three hints, one by one, at no cost.*

# %% id="exercise-start-smallest" tags=["exercise-start.smallest"]
from labkit.grading import check


def my_smallest(exponent_bits, significand_bits):
    """Return the smallest positive number of a format with these bits of exponent and significand.

    It is 2^(1 - bias - significand_bits), where the bias is 2^(exponent_bits - 1) - 1.
    """
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    return 2.0 ** (1 - bias - significand_bits)
    ### END SOLUTION


check("start.smallest", my_smallest)

# %% [markdown]
# ## The map
#
# | | lesson | minutes | you will see |
# |---|---|---|---|
# | **00** | Start here | 10 | you are here |
# | 11 | Beyond FP16 | | *to come*: BF16, FP8 and smaller formats |
#
# The minutes are for a first reading, with all exercises. A lesson that is marked *to come* is not
# part of the lab yet.
#
# ## Ten questions, before you begin
#
# They take about five minutes, and you may leave them out. They are not graded, and *I do not know*
# is a good answer today. At the end of the course, lesson 12 asks the same ten questions again.
# Then you see what you have learned.

# %% id="quiz-before"
quiz("before")

# %% [markdown]
# ## How far you are
#
# Come back to this cell at any time: it counts the exercises of all lessons, and names the next
# one.

# %% id="progress" tags=["lab-only"]
from labkit.grading import progress

progress()

# %% [markdown]
# **Where your answers are stored.** The file `labkit-answers.jsonl` next to this notebook stores
# your predictions and your answers to the ten questions. It also stores each answer that you
# checked with `check(...)`: its text, its points and the time. If that folder is read-only, the
# file is in `.labkit/` in your home folder. It stays on your machine. A crash loses no checked
# answer: in a terminal, `labkit restore` lists them, and `labkit restore --write` puts them back
# into empty cells. Delete the file to answer everything again. Start JupyterLab with
# `LABKIT_ANSWERS=off` to store nothing.
#
# ## Check your machine
#
# Each line says what it found, and a red line says what to do.

# %% id="doctor" tags=["lab-only"]
from labkit.machine import check_machine

check_machine()

# %% [markdown]
# The next cell tests whether widgets work in your browser:

# %% id="pulse" tags=["lab-only"]
from labkit.widgets import pulse

pulse()

# %% [markdown]
# ## When a cell is red
#
# - **`NotImplementedError: your code goes here`** is not a fault: an exercise is waiting for you.
# - **`NameError`**: an earlier cell has not run. *Run > Run All Above Selected Cell*.
# - **`ModuleNotFoundError: labkit`**: the notebook runs with another Python. *Kernel > Change
#   Kernel*, or close JupyterLab and start it with `make lab`.
# - **`Saved with the notebook`** stands below a widget: you have opened the notebook again, and its
#   Python has ended. The picture is as you left it. *Run > Run All Cells* creates the widget again.
#   Your text and your predictions stay.
# - **`This widget was not saved with the notebook`**, or
#   **`Error displaying widget: model not found`**: the widget is lost, for instance with a kernel
#   that ended before you saved. *Run > Run All Cells* creates it again. Your text stays.
# - **A widget is a line of text**: the pulse cell above says what to do.
# - **Everything hangs**: the square button stops the cell, and between cells it pauses a live
#   training; *Kernel > Restart Kernel* starts afresh. Your text stays.
# - In a terminal, `labkit check` says the same as the check above, without a browser.
