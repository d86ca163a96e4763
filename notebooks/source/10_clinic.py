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

# %% [markdown] on_the_map="failing trainings that people bring: find the cause, and repair it at one place"
# # 10 · The clinic
#
# **You will be able to** find out why a training in 16 bits fails, from its picture, an instrument and its code; and to repair
# it at one place, instead of giving up 16 bits everywhere.
#
# About 45 minutes. Three exercises, 9 points. Builds on: autocast (lesson 05), loss scaling (lesson 06), master weights (lesson
# 07). Each consultation takes about ten minutes and stands alone: run the first cell, and then begin with any of them.

# %% id="setup"
import torch
from torch import nn
from torch.nn import functional as F

from labkit.clinic import CONSULTATIONS, look
from labkit.grading import check
from labkit.widgets import predict, treatment_figure

# %% [markdown]
# ## How a consultation goes
#
# Somebody brings a training that fails. You get its code, a function of `model` and `batches`. It trains the model, and returns
# the losses and a *diagnosis*. As it comes, the diagnosis is `None`: nobody knows.
#
# 1. **Look.** `look` runs the training, and a picture shows how it went.
# 2. **Examine.** A cell holds an instrument to this training. Change it, and look elsewhere.
# 3. **Commit** to a cause. Then you read the answer.
# 4. **Treat.** Copy the training into the cell of the exercise, and repair it. It is run on other batches, and four things are asked:
#    it learns; the rest is computed in 16 bits as before; every example and every step is still there; and the diagnosis fits.
#
# A diagnosis has two parts: *where*, in a word from a list, and *how much*, a number. `return losses, ("log", 0.5)` gives one. It is right
# or wrong as a whole.
#
# *Stuck? `from labkit.grading import hint`, then `hint("clinic.clip")`: three hints, one by one, at no cost.*

# %% [markdown]
# ## 1 · Nothing is learned, and nothing is said
#
# *"I added gradient clipping, as in the paper. Since then the loss stays where it begins. No error, no NaN, and the loss scale is
# fine. Without mixed precision the same script learns."*


# %% id="patient-clip"
def clip_as_it_came(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


seen = look("clip", clip_as_it_came)
treatment_figure(seen)

# %% [markdown]
# **Examine.** `norms` has the length of all gradients together, as the optimizer got them, in each step.

# %% id="touch-clip" tags=["claim-C38"]
for step in range(0, 40, 8):
    print(f"step {step:>2}   scale {seen.scales[step]:>7,.0f}   norm of the gradients {seen.norms[step]:.3g}")

# %% id="predict-clip"
predict("clinic.clip")

# %% [markdown]
# ### Exercise 1: nothing is learned, and nothing is said  ●●○  8 min
#
# *Where* is one of `"autocast"`, `"backward"`, `"clip_grad_norm_"`, `"scaler.step"`, `"learning rate"`: at which part is the fault? *How
# much* is the largest norm that the optimizer's gradients can have, as it came.


# %% id="exercise-clinic-clip" tags=["exercise-clinic.clip"]
def my_clip_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    model    FP32, takes inputs [64, 1, 8, 8]; it is trained in place
    batches  list of (inputs, targets)
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("clip_grad_norm_", 2**-16)
    ### END SOLUTION


check("clinic.clip", my_clip_training)

# %% [markdown]
# ## 2 · NaN, from one batch on
#
# *"Attention over eight tokens. Some texts are shorter, so I mask what is padding. And I mask a second time, as the library did,
# because two masks cannot hurt. All is well for some steps. Then the loss is NaN and stays NaN, at a batch that looks like all the others."*


# %% id="patient-mask"
LOWEST = torch.finfo(torch.float16).min  # -65504


def mask_as_it_came(model, batches):
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for inputs, targets, padding in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            query, key, value = model["mix"](model["embed"](inputs)).chunk(3, dim=2)
            scores = query @ key.mT / 32**0.5
            mask = padding[:, None].half() * LOWEST
            scores = scores + mask + mask
            loss = F.cross_entropy(model["head"]((scores.softmax(-1) @ value).mean(1)), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, None


treatment_figure(look("mask", mask_as_it_came))

# %% [markdown]
# **Examine.** Does the batch really look like all the others? And what does a softmax make of a row that was masked once, and twice?

# %% id="touch-mask" tags=["claim-C55"]
shortest = [int((~padding).sum(1).min()) for _, _, padding in CONSULTATIONS["mask"].batches(40, seed=0)]
print("tokens of the shortest text, batch by batch:", *shortest)
row = torch.tensor([1.0, 2.0]).half()
for times in (1, 2):
    masked = row + times * torch.full((2,), LOWEST).half()
    print(f"a row masked {times}x: {masked.tolist()}   its softmax: {masked.softmax(-1).tolist()}")

# %% id="predict-mask"
predict("clinic.mask")

# %% [markdown]
# ### Exercise 2: NaN, from one batch on  ●●○  8 min
#
# *Where* is one of `"embed"`, `"mix"`, `"scores"`, `"softmax"`, `"head"`, `"loss"`: whose result is the first that holds NaN? *How much* is
# the number of the batch in which it happens, counted from 0, when `look` runs it.


# %% id="exercise-clinic-mask" tags=["exercise-clinic.mask"]
def my_mask_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    model    a dictionary of three layers in FP32, "embed", "mix" and "head"; they are trained in place
    batches  list of (inputs [64, 8, 8], targets, padding [64, 8]); where padding is True there is no token
    """
    ### BEGIN SOLUTION
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for inputs, targets, padding in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            query, key, value = model["mix"](model["embed"](inputs)).chunk(3, dim=2)
            scores = query @ key.mT / 32**0.5
            scores = scores.masked_fill(padding[:, None], LOWEST)
            loss = F.cross_entropy(model["head"]((scores.softmax(-1) @ value).mean(1)), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, ("softmax", 11)
    ### END SOLUTION


check("clinic.mask", my_mask_training)

# %% [markdown]
# ## 3 · The loss is NaN, though autocast is off around it
#
# *"My loss has logarithms, so I compute it in FP32: I switch autocast off around it. The loss reads NaN from the first step. The strange thing:
# the model learns, for a while. Then more and more steps are skipped."*


# %% id="patient-region"
def region_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
            with torch.autocast("cpu", enabled=False):
                chance = outputs.softmax(1)
                wanted = F.one_hot(targets, 10).to(chance.dtype)
                loss = (wanted * ((wanted + 1e-8).log() - (chance + 1e-8).log())).sum(1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


treatment_figure(look("region", region_as_it_came))

# %% [markdown]
# **Examine.** What does the region get, and what becomes of its numbers?

# %% id="touch-region"
with torch.autocast("cpu", torch.float16):
    outputs = nn.Linear(4, 4)(torch.ones(1, 4))
    with torch.autocast("cpu", enabled=False):
        chance = outputs.softmax(1)
        print("softmax gives", chance.dtype, "   a chance of 0, plus 1e-8:", (0 * chance + 1e-8)[0, 0].item())

# %% id="predict-region"
predict("clinic.region")

# %% [markdown]
# ### Exercise 3: the loss is NaN, though autocast is off around it  ●●○  8 min
#
# *Where* is one of `"model"`, `"softmax"`, `"log"`, `"backward"`, `"scaler.update"`: whose result is the first that is not finite? *How much*
# is what 1e-8 is in the format in which it is added.


# %% id="exercise-clinic-region" tags=["exercise-clinic.region"]
def my_region_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    model    FP32, takes inputs [64, 1, 8, 8]; it is trained in place
    batches  list of (inputs, targets)
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler, losses = torch.amp.GradScaler("cpu"), []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = model(inputs)
            with torch.autocast("cpu", enabled=False):
                chance = outputs.float().softmax(1)
                wanted = F.one_hot(targets, 10).to(chance.dtype)
                loss = (wanted * ((wanted + 1e-8).log() - (chance + 1e-8).log())).sum(1).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("log", 0.0)
    ### END SOLUTION


check("clinic.region", my_region_training)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C38 unscale before clipping | true, again in 10: clipped before, the gradients are 65,536 times too short, and SGD stands still | consultation 1 |
# | C55 constants such as epsilon and INF must fit FP16 | true: 1e-8 is 0, and two masks of -65504 are -inf | consultations 2, 3 |
#
# **Where you meet this.** `labkit explain "the words of an error"` finds the patient that an error belongs to, and
# `labkit diagnose train.py` looks for the same faults in a script of your own.
