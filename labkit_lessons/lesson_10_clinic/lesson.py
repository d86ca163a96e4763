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
# **You will be able to** find out why a training in 16 bits fails. You use its picture, an
# instrument and its code. You repair it at one place, and keep 16 bits everywhere else.
#
# About 110 minutes, in as many sittings as you like. Ten exercises, 30 points. Builds on: autocast
# (lesson 05), loss scaling (lesson 06), master weights (lesson 07). Each consultation takes about
# ten minutes, and none needs another. Run the first cell, and then begin with any of them.

# %% id="setup"
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from labkit.faults import FAULTS, run
from labkit.frameworks.torch_amp import autocast as gpu_lists
from labkit.grading import check
from labkit.widgets import FaultWall, predict, treatment_figure
from labkit_lessons.lesson_10_clinic import CONSULTATIONS, look

# %% [markdown]
# ## How a consultation goes
#
# A person brings a training that fails. You get its code, a function of `model` and `batches`. It
# trains the model, and returns the losses and a *diagnosis*. At first the diagnosis is `None`:
# unknown.
#
# 1. **Look.** `look` runs the training, and a picture shows how it went.
# 2. **Examine.** The next cell measures this training. Change the cell to measure something else.
# 3. **Choose** a cause. Then you can read the answer.
# 4. **Treat.** The cell of the exercise begins with the training. Repair it there, and delete the
#    line that raises.
#
# The check runs your training on other batches. It must fulfil four conditions:
#
# - It learns.
# - All other parts are computed in 16 bits as before.
# - It uses every example and takes every step.
# - The diagnosis is right.
#
# So keep the format of 16 bits, the loss scale, the optimizer and its learning rate, and return the
# losses as they are. The check computes each loss and each step again from your model's weights,
# and names any that differ.
#
# A diagnosis has two parts: *where*, in a word from a list, and *how much*, a number.
# `return losses, ("log", 0.5)` gives one. It is right or wrong as a whole.
#
# *Stuck? `from labkit.grading import hint`, then `hint("clinic.clip")`: you get three hints, one by
# one, at no cost.*

# %% [markdown]
# ## 1 · Nothing is learned, without an error
#
# *"I added gradient clipping, as in the paper. Since then the loss does not fall. There is no error
# and no NaN, and the loss scale is fine. Without mixed precision the same script learns."*


# %% id="patient-clip"
def clip_as_it_came(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
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
# **Examine.** `norms` has one number for each step: the length of all gradients together, as the
# optimizer gets them.

# %% id="touch-clip" tags=["claim-C38"]
for step in range(0, 40, 8):
    scale = seen.scales[step]
    norm = seen.norms[step]
    print(f"step {step:>2}   scale {scale:>7,.0f}   norm of the gradients {norm:.3g}")

# %% id="predict-clip"
predict("clinic.clip")

# %% [markdown]
# ### Exercise 1: nothing is learned, without an error  ●●○  8 min
#
# *Where* is one of `"autocast"`, `"backward"`, `"clip_grad_norm_"`, `"scaler.step"`,
# `"learning rate"`: which part has the fault? *How much* is a number: the largest norm that the
# optimizer's gradients can have before the repair.


# %% id="exercise-clinic-clip" tags=["exercise-clinic.clip"] starter="clip_as_it_came"
def my_clip_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: FP32, takes inputs [64, 1, 8, 8]; it is trained in place.
        batches: List of (inputs, targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
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
# ## 2 · Attempting to unscale FP16 gradients
#
# *"I load the model in FP16 to save memory, and train it with autocast and a GradScaler, as the
# tutorial says. The first step ends with an error. There are a hundred threads about it, and each
# one gives different advice."*


# %% id="patient-unscale"
def unscale_as_it_came(model, batches):
    model.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


print(look("unscale", unscale_as_it_came).error)

# %% [markdown]
# **Examine.** A gradient has the dtype of its weight. What would happen to an FP16 weight without
# this error? Each update below is smaller than the one before.

# %% id="touch-unscale" tags=["claim-C30"]
for dtype in (torch.float32, torch.float16):
    layer = nn.Linear(4, 4).to(dtype)
    with torch.autocast("cpu", torch.float16):
        layer(torch.ones(1, 4)).sum().backward()
    of_gradients = layer.weight.grad.dtype
    print(f"weights in {dtype}: autocast computes in FP16, gradients come in {of_gradients}")
weight = torch.tensor(0.125).half()
for k in range(11, 17):
    print(f"0.125 + 2^-{k} = {(weight + 2.0**-k).item():.6f} in FP16")

# %% id="predict-unscale"
predict("clinic.unscale")

# %% [markdown]
# ### Exercise 2: attempting to unscale FP16 gradients  ●○○  8 min
#
# *Where* is one of `"inputs"`, `"weights"`, `"loss"`, `"gradients"`, `"scale"`: what is FP16 and
# should not be? *How much* is a number: the largest update that does not change an FP16 weight of
# 0.125.


# %% id="exercise-clinic-unscale" tags=["exercise-clinic.unscale"] starter="unscale_as_it_came"
def my_unscale_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: FP32, takes inputs [64, 1, 8, 8]; it is trained in place.
        batches: List of (inputs, targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("weights", 2**-14)
    ### END SOLUTION


check("clinic.unscale", my_unscale_training)

# %% [markdown]
# ## 3 · The loss is NaN, though autocast is off around it
#
# *"My loss has logarithms, so I compute it in FP32: I switch autocast off around it. The loss is
# NaN from the first step. Strangely, the model learns for a while. Then more and more steps are
# skipped."*


# %% id="patient-region"
def region_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
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
# **Examine.** What does the region get, and what happens to its numbers?

# %% id="touch-region"
with torch.autocast("cpu", torch.float16):
    outputs = nn.Linear(4, 4)(torch.ones(1, 4))
    with torch.autocast("cpu", enabled=False):
        chance = outputs.softmax(1)
        no_chance = 0 * chance + 1e-8
        print("softmax gives", chance.dtype, end="    ")
        print("a chance of 0, plus 1e-8:", no_chance[0, 0].item())

# %% id="predict-region"
predict("clinic.region")

# %% [markdown]
# ### Exercise 3: the loss is NaN, though autocast is off around it  ●●○  8 min
#
# *Where* is one of `"model"`, `"softmax"`, `"log"`, `"backward"`, `"scaler.update"`: which one has
# the first result that is not finite? *How much* is a number: the value of 1e-8 in the format in
# which it is added.


# %% id="exercise-clinic-region" tags=["exercise-clinic.region"] starter="region_as_it_came"
def my_region_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: FP32, takes inputs [64, 1, 8, 8]; it is trained in place.
        batches: List of (inputs, targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
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
# ## 4 · It learns, and stops too early
#
# *"The learning rate falls linearly to 0. With mixed precision the model ends far worse than
# without. There is a warning about the order of two calls, but the order is right."*


# %% id="patient-schedule"
def schedule_as_it_came(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=40)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        losses.append(loss.item())
    return losses, None


warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
seen = look("schedule", schedule_as_it_came)
treatment_figure(seen)

# %% [markdown]
# **Examine.** `rates` has the learning rate of each step that was *taken*.

# %% id="touch-schedule"
print(f"{len(seen.losses)} steps, {seen.steps} of them taken; the schedule has 40")
print("learning rates of the steps that were taken:", *(f"{rate:.2f}" for rate in seen.rates[:20]))

# %% id="predict-schedule"
predict("clinic.schedule")

# %% [markdown]
# ### Exercise 4: it learns, and stops too early  ●●○  8 min
#
# *Where* is one of `"autocast"`, `"backward"`, `"scaler.step"`, `"scaler.update"`,
# `"schedule.step"`: which call does something wrong? *How much* is the number of skipped steps.


# %% id="exercise-clinic-schedule" tags=["exercise-clinic.schedule"] starter="schedule_as_it_came"
def my_schedule_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: FP32, takes inputs [64, 1, 8, 8]; it is trained in place.
        batches: List of (inputs, targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=40)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() >= before:
            schedule.step()
        losses.append(loss.item())
    return losses, ("schedule.step", 21)
    ### END SOLUTION


check("clinic.schedule", my_schedule_training)

# %% [markdown]
# ## 5 · The backward pass ends with two dtypes
#
# *"I wrote my own `autograd.Function`. In FP32 it works, and I checked its gradients. Under
# autocast the forward pass works too. The backward pass ends with an error in a line that I wrote,
# and I never cast anything."*


# %% id="patient-function"
class Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight, grad.t() @ x


def function_as_it_came(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = Project.apply(model["body"](inputs), model["last"].weight)
            loss = F.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, None


print(look("function", function_as_it_came).error)

# %% [markdown]
# **Examine.** Which dtypes does `forward` get, and which does `backward` get? Is autocast on in
# each of them?


# %% id="touch-function"
class Listening(Project):
    @staticmethod
    def forward(ctx, x, weight):
        print("forward:  x", x.dtype, " weight", weight.dtype, end="  ")
        print("autocast is on:", torch.is_autocast_enabled("cpu"))
        return Project.forward(ctx, x, weight)

    @staticmethod
    def backward(ctx, grad):
        print("backward: grad", grad.dtype, " autocast is on:", torch.is_autocast_enabled("cpu"))
        return grad.float(), None


x = torch.ones(2, 4)
weight = torch.ones(4, 4, requires_grad=True)
with torch.autocast("cpu", torch.float16):
    y = Listening.apply(F.linear(x, weight), weight)
y.sum().backward()

# %% id="predict-function"
predict("clinic.function")

# %% [markdown]
# ### Exercise 5: the backward pass ends with two dtypes  ●●○  8 min
#
# Here you also write the class, inside the function, and give it a new name. Two decorators help:
# `torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)` and
# `torch.amp.custom_bwd(device_type="cpu")`. Everything except this class stays in FP16.
#
# *Where* is one of `"forward"`, `"backward"`, `"loss"`, `"optimizer.step"`: which of them fails?
# The second part is a name instead of a number: which of `"grad"`, `"x"` and `"weight"` is FP32 in
# that line.


# %% id="exercise-clinic-function" tags=["exercise-clinic.function"] starter="function_as_it_came"
def my_function_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: A dictionary of two modules in FP32, "body" and "last"; they are trained in place.
        batches: List of (inputs, targets).
    """

    ### BEGIN SOLUTION
    class Decided(Project):
        forward = staticmethod(
            torch.amp.custom_fwd(Project.forward, device_type="cpu", cast_inputs=torch.float32)
        )
        backward = staticmethod(torch.amp.custom_bwd(Project.backward, device_type="cpu"))

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            outputs = Decided.apply(model["body"](inputs), model["last"].weight)
            loss = F.cross_entropy(outputs, targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, ("backward", "weight")
    ### END SOLUTION


check("clinic.function", my_function_training)

# %% [markdown]
# ## 6 · NaN, from one batch on
#
# *"Attention over eight tokens. Some texts are shorter, so I mask the padding. I mask a second
# time, as the library did, because two masks cannot hurt. All is well for some steps. Then the loss
# becomes NaN and stays NaN, at a batch that looks like all the others."*


# %% id="patient-mask"
LOWEST = torch.finfo(torch.float16).min  # -65504


def mask_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
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
# **Examine.** Does the batch really look like all the others? And what is the softmax of a row that
# was masked once, and of one that was masked twice?

# %% id="touch-mask" tags=["claim-C55"]
batches = CONSULTATIONS["mask"].batches(40, seed=0)
shortest = [int((~padding).sum(1).min()) for _, _, padding in batches]
print("tokens of the shortest text, batch by batch:", *shortest)
row = torch.tensor([1.0, 2.0]).half()
for times in (1, 2):
    masked = row + times * torch.full((2,), LOWEST).half()
    print(f"a row masked {times}x: {masked.tolist()}   its softmax: {masked.softmax(-1).tolist()}")

# %% id="predict-mask"
predict("clinic.mask")

# %% [markdown]
# ### Exercise 6: NaN, from one batch on  ●●○  8 min
#
# *Where* is one of `"embed"`, `"mix"`, `"scores"`, `"softmax"`, `"head"`, `"loss"`: which one has
# the first result with NaN? *How much* is the number of the batch in which it happens when `look`
# runs it, counted from 0.


# %% id="exercise-clinic-mask" tags=["exercise-clinic.mask"] starter="mask_as_it_came"
def my_mask_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: A dictionary of three FP32 layers, "embed", "mix" and "head"; train them in place.
        batches: List of (inputs [64, 8, 8], targets, padding [64, 8]).
            Where padding is True, a text has no token.
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
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
# ## 7 · A little worse than it should be
#
# *"We trained everything in BF16: no scaler, no NaN, and the loss is only a little worse than in
# FP32. Then a reader looked into the published weights. All gains of our norms are exactly 1.0."*
#
# Here is a network of one norm and one layer. Its score is the share of gains that are no longer 1.


# %% id="patient-gains"
def gains_as_it_came(model, batches):
    model.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model.linear(model.norm(inputs.flatten(1).bfloat16()))
        loss = F.cross_entropy(outputs.float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, None


seen = look("gains", gains_as_it_came)
treatment_figure(seen)

# %% [markdown]
# **Examine.** `still` names the parameters that never moved. One step of Adam has about the size of
# the learning rate. How does it change a weight of 1, of 0.1, of 0?

# %% id="touch-gains"
print("never moved:", *seen.still)
for start in (1.0, 0.1, 0.0):
    weight = nn.Parameter(torch.tensor(start).bfloat16())
    weight.grad = torch.ones_like(weight)
    torch.optim.Adam([weight], lr=1e-3).step()
    print(f"a BF16 weight of {start}: after one step {weight.item():.6f}")

# %% id="predict-gains"
predict("clinic.gains")

# %% [markdown]
# ### Exercise 7: a little worse than it should be  ●●○  8 min
#
# The layer stays in BF16, and the learning rate at 0.001. The norm may be FP32; or you keep FP32
# masters of all.
#
# *Where* is one of `"norm.weight"`, `"norm.bias"`, `"linear.weight"`, `"linear.bias"`. *How much*
# is a number: the smallest update that could move a BF16 weight of 1 upwards, which is half the
# distance to the next number.


# %% id="exercise-clinic-gains" tags=["exercise-clinic.gains"] starter="gains_as_it_came"
def my_gains_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: model.norm and model.linear, in FP32; they are trained in place.
        batches: List of (inputs [64, 1, 8, 8], targets); flatten(1) makes vectors of them.
    """
    ### BEGIN SOLUTION
    model.linear.bfloat16()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        outputs = model.linear(model.norm(inputs.flatten(1)).bfloat16())
        loss = F.cross_entropy(outputs.float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, ("norm.weight", 2**-8)
    ### END SOLUTION


check("clinic.gains", my_gains_training)

# %% [markdown]
# ## 8 · NaN in eval(), and only there
#
# *"Training is healthy. The loss falls; one step was skipped, which is normal. Then I call
# `model.eval()`, and every output is NaN. After `model.train()` the outputs are fine again."*


# %% id="patient-eval"
def eval_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


treatment_figure(look("eval", eval_as_it_came))

# %% [markdown]
# **Examine.** A model's `state_dict` has everything that it stores. And what was the largest number
# in each batch?

# %% id="touch-eval" tags=["claim-C31"]
torch.manual_seed(0)
model = CONSULTATIONS["eval"].model()
given = CONSULTATIONS["eval"].batches(30, seed=0)
eval_as_it_came(model, given)
for name, tensor in model.state_dict().items():
    print(f"{name:<26}{tensor.dtype!s:<15} finite: {bool(tensor.isfinite().all())}")
print("largest input of each batch:", *(f"{inputs.max().item():.0f}" for inputs, _ in given))

# %% id="predict-eval"
predict("clinic.eval")

# %% [markdown]
# ### Exercise 8: NaN in eval(), and only there  ●●○  8 min
#
# A pixel lies between 0 and 1. One picture is broken. The other 63 of its batch are good, and the
# model must learn from them.
#
# *Where* is one of `"weights"`, `"gradients"`, `"statistics"`, `"loss"`, `"scale"`: what stays inf
# or NaN? *How much* is the step in which this begins when `look` runs it, counted from 0.


# %% id="exercise-clinic-eval" tags=["exercise-clinic.eval"] starter="eval_as_it_came"
def my_eval_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: A convolution, batch norm and a layer, in FP32; it is trained in place.
        batches: List of (inputs [64, 1, 8, 8], targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs.clamp(0, 1)), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("statistics", 11)
    ### END SOLUTION


check("clinic.eval", my_eval_training)

# %% [markdown]
# ## 9 · A penalty that outweighs the loss
#
# *"I add a penalty on the gradient with respect to the inputs, so that the model is smooth. In FP32
# it works. With a scaler the model learns nothing, for every weight of the penalty that I tried."*


# %% id="patient-penalty"
def penalty_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        inputs = inputs.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (gradient,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        penalty = gradient.flatten(1).norm(dim=1).square().mean()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


treatment_figure(look("penalty", penalty_as_it_came))

# %% [markdown]
# **Examine.** The cell computes the penalty of one batch with three scales. What does it depend on,
# and how?

# %% id="touch-penalty"
torch.manual_seed(0)
model = CONSULTATIONS["penalty"].model()
inputs, targets = CONSULTATIONS["penalty"].batches(1, seed=0)[0]
inputs = inputs.clone().requires_grad_()
for scale in (1.0, 2.0**8, 2.0**16):
    loss = F.cross_entropy(model(inputs), targets)
    (gradient,) = torch.autograd.grad(scale * loss, inputs)
    penalty = gradient.flatten(1).norm(dim=1).square().mean()
    print(f"scale {scale:>7,.0f}   loss {loss.item():.3f}   penalty {penalty.item():.3g}")

# %% id="predict-penalty"
predict("clinic.penalty")

# %% [markdown]
# ### Exercise 9: a penalty that outweighs the loss  ●●●  8 min
#
# Keep the penalty, with its intended size.
#
# *Where* is one of `"autocast"`, `"loss"`, `"penalty"`, `"scaler.step"`, `"learning rate"`: which
# one has a wrong value? *How much* is the factor by which it is wrong, in the first step.


# %% id="exercise-clinic-penalty" tags=["exercise-clinic.penalty"] starter="penalty_as_it_came"
def my_penalty_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: FP32, takes inputs [64, 1, 8, 8]; it is trained in place.
        batches: List of (inputs, targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        inputs = inputs.clone().requires_grad_()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(inputs), targets)
        (gradient,) = torch.autograd.grad(scaler.scale(loss), inputs, create_graph=True)
        gradient = gradient / scaler.get_scale()
        penalty = gradient.flatten(1).norm(dim=1).square().mean()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("penalty", 2.0**32)
    ### END SOLUTION


check("clinic.penalty", my_penalty_training)

# %% [markdown]
# ## 10 · It learns in FP32, and hardly in FP16
#
# *"My normalisation has three lines: square, sum, root. It has no matrix product, so I left it
# outside autocast. In FP32 the model learns in forty steps. With autocast around its two layers it
# does not. The loss has no inf and no NaN, and no step is skipped."*


# %% id="patient-overflow"
def overflow_as_it_came(model, batches):
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            features = model["body"](255 * inputs.flatten(1)).relu()
        length = (features * features).sum(1, keepdim=True).sqrt()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model["head"](12 * features / length), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, None


treatment_figure(look("overflow", overflow_as_it_came))

# %% [markdown]
# **Examine.** Go through its lines, for one batch and one step. What is the largest number after
# each line?

# %% id="touch-overflow" tags=["claim-C56"]
torch.manual_seed(0)
model = CONSULTATIONS["overflow"].model()
inputs, _ = CONSULTATIONS["overflow"].batches(1, seed=0)[0]
with torch.no_grad():
    with torch.autocast("cpu", torch.float16):
        features = model["body"](255 * inputs.flatten(1)).relu()
    total = (features * features).sum(1, keepdim=True)
    root = total.sqrt()
    lines = {"body, relu": features, "sum": total, "sqrt": root, "divided": 12 * features / root}
for name, tensor in lines.items():
    print(f"{name:<11}{tensor.dtype!s:<15} largest {tensor.max().item():>8.1f}")

# %% id="predict-overflow"
predict("clinic.overflow")

# %% id="touch-overflow-inside" tags=["answer-clinic.overflow"]
for where, region in {"the CPU's lists": torch.autocast, "a GPU's lists": gpu_lists}.items():
    with region("cpu", torch.float16):
        print(f"the same sum inside of autocast, {where}: {(features * features).sum(1).dtype}")

# %% [markdown] tags=["answer-clinic.overflow"]
# Outside autocast nothing is cast, and `features` came out of it as FP16. So the sum overflows on a
# CPU and on a GPU. *Inside* autocast it depends on the device: the sum is on the deny list for a
# GPU, and not on that for a CPU (lesson 05). But the squares are FP16 there too, before they are
# added up.

# %% [markdown]
# ### Exercise 10: it learns in FP32, and hardly in FP16  ●●○  8 min
#
# *Where* is one of `"body"`, `"relu"`, `"sum"`, `"sqrt"`, `"head"`: which one has the first result
# that does not fit into FP16? *How much* is a number: the length of a vector (the root of that sum)
# from which on it happens.


# %% id="exercise-clinic-overflow" tags=["exercise-clinic.overflow"] starter="overflow_as_it_came"
def my_overflow_training(model, batches):
    """Train the model, and return (losses, diagnosis).

    Args:
        model: A dictionary of two layers in FP32, "body" and "head"; they are trained in place.
        batches: List of (inputs [64, 1, 8, 8], targets).
    """
    ### BEGIN SOLUTION
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler("cpu")
    losses = []
    for inputs, targets in batches:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            features = model["body"](255 * inputs.flatten(1)).relu()
        features = features.float()
        length = (features * features).sum(1, keepdim=True).sqrt()
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model["head"](12 * features / length), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses, ("sum", 256.0)
    ### END SOLUTION


check("clinic.overflow", my_overflow_training)

# %% [markdown]
# ## The wall: all other known faults
#
# Here are all the other faults, as cards. The front shows what the person saw, the back shows the
# cause. **Guess before you turn a card.** Then run it, broken and cured. Type an error message into
# the box to find the card of that error.

# %% id="touch-wall"
treated = ["clip_before_unscale", "half_weights_unscaled", "switched_off_but_half"]
treated += ["schedule_counts_skips", "function_without_custom_fwd", "row_all_masked"]
treated += ["gains_in_bf16", "nan_only_in_eval", "penalty_from_scaled", "forward_overflow"]
FaultWall(without=tuple(treated))

# %% [markdown]
# Some of them test the claims of tutorials. The cell runs each one, broken and cured, and prints
# its score, or the error that ended it.

# %% id="touch-claims" tags=["claim-C39", "claim-C57", "claim-C58", "claim-C59", "claim-C60", "claim-C61"]
for name in (
    "clip_with_inf",
    "mse_underflows",
    "denominator_underflows",
    "layer_made_in_forward",
    "gradcheck_in_fp32",
    "zeros_of_another_dtype",
    "inference_tensors",
):
    for cured in (False, True):
        outcome = run(FAULTS[name], cured)
        said = outcome.error.partition("\n")[0][:80] or f"score {outcome.score:.2f}"
        print(f"{name:<23}{'cured' if cured else 'broken':<8}{said}")

# %% [markdown]
# The last one is not a fault. `zero_grad(set_to_none=True)`, torch's default, deletes the gradients
# instead of writing zeros into them. Here a layer is used only in the first of five steps.


# %% id="touch-none" tags=["claim-C62"]
def after_five_steps(set_to_none):
    layer = nn.Parameter(torch.ones(1000))
    other = nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.Adam([layer, other], lr=0.01)
    for step in range(5):
        optimizer.zero_grad(set_to_none=set_to_none)
        held = sum(p.grad.numel() * 4 for p in (layer, other) if p.grad is not None)
        (other.sum() + (layer.sum() if step == 0 else 0)).backward()
        optimizer.step()
    return held, layer[0].item()


for set_to_none in (True, False):
    held, weight = after_five_steps(set_to_none)
    print(f"set_to_none={set_to_none!s:<6} {held:>5} bytes of gradients ", end="")
    print(f"during the forward pass, its weights are {weight:.3f}")

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C30 casting by hand inside autocast, or `.half()`, defeats it | half true, again in 10: listed operations still run in FP16; but the weights are FP16, too | consultation 2 |
# | C31 batch norm stays in FP32 | half true, again in 10: its statistics are FP32, but its input is FP16 and may be inf | consultation 8 |
# | C38 unscale before clipping | true, again in 10: clipped before, gradients are 65,536 times too short, and SGD learns nothing | consultation 1 |
# | C39 work on gradients belongs where inf and NaN are still looked for | half true, again in 10: clipping by a norm of inf makes all gradients NaN | the wall |
# | C55 constants such as epsilon and INF must fit FP16 | true: 1e-8 is 0, and -65504 twice is -inf | consultations 3, 6 |
# | C56 sums overflow easily | true: 64 squares of numbers that fit well; inside of autocast a GPU computes the sum in FP32 | consultation 10 |
# | C57 the mean of an MSE and a denominator can underflow | true: a loss of exactly 0, and a division by 0 | the wall |
# | C58 custom layers are made in `__init__` | true: a layer that is made in `forward` is in no optimizer, so it is not trained | the wall |
# | C59 gradcheck needs FP64 | true: in FP32 it rejects a correct gradient | the wall |
# | C60 `torch.zeros(shape).to(x.device)` has the wrong dtype | true: FP32 meets BF16 weights, and torch raises an error | the wall |
# | C61 `inference_mode` also drops version tracking | true: you cannot train on its outputs; after `no_grad` you can | the wall |
# | C62 `zero_grad(set_to_none=True)` helps a little | half true: the gradients use no memory in the forward pass; but Adam leaves weights where they are that zeros would still move | the wall |
#
# **Where you meet this.** `labkit explain "the words of an error"` finds the fault that causes an
# error. `labkit diagnose train.py` looks for the same faults in your own script.
