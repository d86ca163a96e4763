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

# %% [markdown] on_the_map="one training in four dialects, an old script repaired, a graph with its casts decided once"
# # 09 · Frameworks
#
# **You will be able to** read mixed precision in four dialects: apex, torch.amp, OneFlow and
# fastai. You translate one into another, and repair an old script. You name the step at which two
# scalers differ, and say when it is better to cast by hand.
#
# About 90 minutes, best in two sittings (the second begins with section 5). Five exercises, 29
# points. Builds on: autocast (lesson 05) and loss scaling (lesson 06). You need three facts from
# these lessons:
#
# - *autocast* looks each operation up in a list, and casts its inputs to FP16 or to FP32.
# - The loss is multiplied by a *scale*. The gradients are divided by it before the step. A step
#   whose gradients hold inf or NaN is *skipped*, and the scale is halved.
# - The weights stay in FP32, or FP32 *master weights* are kept beside FP16 ones.

# %% id="setup"
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from labkit.amp import PRESETS, RECIPES, CastGraph, decide, explain, initial
from labkit.amp import autocast as lab_autocast
from labkit.formats import FP16
from labkit.frameworks import GradScaler, autocast, oneflow as flow
from labkit.frameworks.apex import amp
from labkit.frameworks.fastai.basics import SGD, Callback, CancelStepException, DataLoaders, Learner
from labkit.gemm import half_storage
from labkit.grading import check
from labkit.train import TASKS, TrainingRun
from labkit.widgets import CastPasses, ScalerPresets, predict

# %% [markdown]
# ## 1 · One training, four dialects
#
# A network of two layers, nine batches, and plain SGD. The loss of three batches is so large that
# FP16 overflows. The next cell has the code that all four share.


# %% id="shared"
LEARNING_RATE = 0.05


def small_network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))


numbers = torch.Generator().manual_seed(1)
BATCHES = [
    (torch.randn(8, 4, generator=numbers), factor * torch.randn(8, 3, generator=numbers))
    for factor in (30.0, 1.0, 1.0, 200.0, 200.0, 1.0, 1.0, 1.0, 1.0)
]


def loss_of(prediction, target):
    return 10 * nn.functional.mse_loss(prediction, target)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)


# %% [markdown]
# Each of the next four cells trains the network with the lab's own version of the framework. (apex
# removed its `amp` in 2025; fastai's needs a GPU; OneFlow is another library.) Only the import is
# the lab's. The calls are those of the original.

# %% id="dialect-apex" tags=["claim-C51"]
def in_apex():
    net = small_network()
    net, optimizer = amp.initialize(net, sgd(net), opt_level="O1", verbosity=0)
    for x, y in BATCHES:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        optimizer.step()
    scale = amp.state_dict()["loss_scaler0"]["loss_scale"]
    amp.initialize(net, enabled=False)  # torch's functions are its own again
    return net, scale


print("apex's scale at the end:", in_apex()[1])


# %% id="dialect-torch" tags=["claim-C52"]
def in_torch(enabled=True):
    net = small_network()
    scaler = GradScaler("cpu", enabled=enabled)
    optimizer = sgd(net)
    for x, y in BATCHES:
        optimizer.zero_grad()
        with autocast("cpu", torch.float16, enabled=enabled):
            loss = loss_of(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return net, scaler.get_scale()


plain = small_network()
optimizer = sgd(plain)
for x, y in BATCHES:
    optimizer.zero_grad()
    loss_of(plain(x), y).backward()
    optimizer.step()
switched_off = in_torch(enabled=False)[0]
print("torch's scale at the end:", in_torch()[1])
same = all(map(torch.equal, switched_off.parameters(), plain.parameters()))
print("enabled=False is plain FP32:", same)


# %% id="dialect-oneflow" tags=["claim-C53"]
class Training(flow.nn.Graph):
    def __init__(self):
        super().__init__()
        self.net = small_network()
        self.config.enable_amp(True)
        self.set_grad_scaler(flow.amp.GradScaler(2**16, 2.0, 0.5, 2000))
        self.add_optimizer(flow.optim.SGD(self.net.parameters(), lr=LEARNING_RATE))

    def build(self, x, y):
        loss = loss_of(self.net(x), y)
        loss.backward()
        return loss


def in_oneflow():
    graph = Training()
    for x, y in BATCHES:
        graph(x, y)
    return graph.net, graph.state_dict()["scale"][0]


print("OneFlow's scale at the end:", in_oneflow()[1])


# %% id="dialect-fastai" tags=["claim-C54"]
def in_fastai():
    loaders = DataLoaders(BATCHES, [])
    sgd = partial(SGD, mom=0.0)
    learn = Learner(loaders, small_network(), loss_of, sgd, lr=LEARNING_RATE).to_fp16()
    learn.fit(1)
    scale = learn.scaler.get_scale()
    learn.to_fp32()  # takes the callback away again
    return learn.model, scale


print("fastai's scale at the end:", in_fastai()[1])

# %% [markdown]
# All scales are the same. Are the weights the same?

# %% id="predict-same"
predict("frameworks.same")

# %% [markdown]
# Compare them, bit by bit.

# %% id="touch-same" tags=["answer-frameworks.same"]
dialects = {"apex": in_apex, "torch.amp": in_torch, "OneFlow": in_oneflow, "fastai": in_fastai}
first, _ = in_torch()
for name, train in dialects.items():
    net, scale = train()
    same = all(map(torch.equal, net.parameters(), first.parameters()))
    print(f"{name:<10} scale {scale:>7,.0f}   weights {'equal to the bit' if same else 'differ'}")

# %% [markdown] tags=["answer-frameworks.same"]
# **Four dialects, one training.** They differ in *who* does a thing, and *when* you see it:
#
# | moment | apex | torch.amp | OneFlow | fastai |
# |---|---|---|---|---|
# | cast operations | `initialize` patches torch | you open `autocast` | the graph, in `build` | callback, `before_batch` |
# | scale the loss | `scale_loss`, begin of block | `scaler.scale(loss)` | inside `loss.backward()` | callback, `before_backward` |
# | unscale, look for inf | `scale_loss`, end of block | `scaler.step`, or `unscale_` before | the graph, after `build` | callback, `before_step` |
# | clip | after the block | after `unscale_` | the graph, `clip_grad_max_norm` | between `unscale_` and the step |
# | step or skip | patched `optimizer.step()` | `scaler.step(optimizer)` | the graph | callback; it cancels the loop's step |
# | move the scale | end of block | `scaler.update()` | the graph | callback, `after_step` |
# | zero gradients | you | you | the graph | the loop |
#
# The more a framework does for you, the less you can forget, and the less you see.

# %% [markdown]
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("frameworks.translate")`: you
# get three hints, one by one, at no cost.*
#
# ### Exercise 1: translate apex to torch.amp  ●●○  10 min
#
# Here is a script for apex. It also clips its gradients.


# %% id="apex-script"
RATE = 0.125


def a_layer(weight):
    """Return a linear layer with this weight, and no bias."""
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    with torch.no_grad():
        layer.weight.copy_(weight)
    return layer


def apex_training(weight, batches, max_norm):
    layer = a_layer(weight)
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE)
    layer, optimizer = amp.initialize(layer, optimizer, opt_level="O1")
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(layer(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_norm)
        optimizer.step()
    return layer.weight.detach(), amp.state_dict()["loss_scaler0"]["loss_scale"]


# %% [markdown]
# Write the same training with `autocast("cpu", torch.float16)` and `GradScaler("cpu")`.


# %% id="exercise-frameworks-translate" tags=["exercise-frameworks.translate"]
def my_torch_training(weight, batches, max_norm):
    """Return (the weight, the scale) after a step of SGD for each batch, as `apex_training` does.

    Args:
        weight: FP32 tensor [outputs, inputs]; it stays as it is.
        batches: List of (x, y), FP32 tensors.
    """
    ### BEGIN SOLUTION
    layer = a_layer(weight)
    scaler = GradScaler("cpu")
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE)
    for x, y in batches:
        optimizer.zero_grad()
        with autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(layer(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(layer.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
    return layer.weight.detach(), scaler.get_scale()
    ### END SOLUTION


check("frameworks.translate", my_torch_training)

# %% [markdown]
# ## 2 · An old script
#
# Many scripts for apex are still in use. Some were never right. First, a call that only apex has:
# you can *register* functions of your own, or of torch, before `initialize`. Is that necessary?


# %% id="touch-register" tags=["claim-C29"]
def sigmoid_gives(register):
    if register:
        amp.register_float_function(torch, "sigmoid")
    net = amp.initialize(small_network(), opt_level="O1", verbosity=0)
    dtype = torch.sigmoid(torch.ones(1).half()).dtype
    amp.initialize(net, enabled=False)
    return dtype


for register in (False, True):
    how = "registered as float" if register else "not registered"
    print(f"sigmoid of FP16, {how}: {sigmoid_gives(register)}")

# %% [markdown]
# **It is not necessary.** A function that is not registered runs in the dtype of its inputs. You
# register a function when FP16 is not exact enough for it.
#
# ### Exercise 2: repair an old apex script  ●●○  10 min
#
# This script is for level O2: the model is FP16, and the optimizer steps FP32 *masters*. It has
# **three faults**. apex refuses the first. Run the cell, read the message, and repair that fault.
# The other two raise no error: the script runs, and learns nothing.


# %% id="touch-broken"
def broken_training(weight, batches, max_norm):
    model = a_layer(weight).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
    (master,) = amp.master_params(optimizer)
    return master.detach(), amp.state_dict()["loss_scaler0"]["loss_scale"]


try:
    broken_training(torch.ones(3, 4), [(torch.ones(2, 4), torch.zeros(2, 3))], 1.0)
except RuntimeError as refused:
    print(refused)


# %% id="exercise-frameworks-repair" tags=["exercise-frameworks.repair"]
def my_repaired_training(weight, batches, max_norm):
    """Return (the master weight, the scale) after a step of SGD for each batch, under level O2.

    Args:
        weight: FP32 tensor [outputs, inputs]; it stays as it is.
        batches: List of (x, y), FP32 tensors.
        max_norm: The largest norm of the gradient of the loss, not of the scaled loss.
    """
    ### BEGIN SOLUTION
    model = a_layer(weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    model, optimizer = amp.initialize(model, optimizer, opt_level="O2", verbosity=0)
    for x, y in batches:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        with amp.scale_loss(loss, optimizer) as scaled_loss:
            scaled_loss.backward()
        nn.utils.clip_grad_norm_(amp.master_params(optimizer), max_norm)
        optimizer.step()
    (master,) = amp.master_params(optimizer)
    return master.detach(), amp.state_dict()["loss_scaler0"]["loss_scale"]
    ### END SOLUTION


check("frameworks.repair", my_repaired_training)

# %% [markdown]
# ## 3 · Spot the difference
#
# In section 1 all scales were equal in the end. That is not always so. All frameworks move the
# scale by the same rule, but with different settings. You know four of them from lesson 06: the
# start, the interval, a *cap* and a *floor*. The fifth is *hysteresis*: the number of overflows
# until the scale is halved.

# %% id="predict-first"
predict("frameworks.first")


# %% [markdown]
# Here are 14 steps. All scalers start at 2^23 and grow after two clean steps. You see the exponent
# of the scale in each step; `x` marks a skipped step. For each framework the cell prints the first
# step at which its scale, or its decision, differs from torch's.


# %% id="touch-spot" tags=["answer-frameworks.first"]
LARGEST = [2.0**k for k in (-12, -12, -12, -12, -8, -12, -12, -7, -6, -12, -12, -12, -12, -12)]


def play(name):
    """Return (scale, skipped) for each step, by the rule of a framework."""
    config = replace(PRESETS[name], init_scale=2.0**23, growth_interval=2)
    state = initial(config)
    steps = []
    for gradient in LARGEST:
        decision = decide(state, state.scale * gradient >= 65520, config)
        steps.append((state.scale, decision.skip))
        state = decision.after
    return steps


torchs = play("torch")
for name in PRESETS:
    verdict = "as torch"
    print(f"{name:<10} ", end="")
    for number, (own, other) in enumerate(zip(play(name), torchs, strict=True), 1):
        scale, skip = own
        print(f"{torch.tensor(scale).log2():.0f}{'x' if skip else ' '}", end=" ")
        if own != other and verdict == "as torch":
            verdict = f"parts at step {number}"
    print(f" {verdict}")

# %% [markdown] tags=["answer-frameworks.first"]
# **Name the setting.** Look at the steps just before the one at which two frameworks differ:
#
# - After *growth*: a cap. apex and fastai 1 stop at 2^24, and torch goes on to 2^25. (fastai 2,
#   which you ran in section 1, uses torch's scaler, and has no cap.)
# - After an *overflow*: hysteresis. DeepSpeed and Megatron skip the step, and leave the scale as it
#   is. Only the second overflow halves it.
# - OneFlow has a floor of 1 and no cap before the end of FP32. These 14 steps reach neither of
#   them.

# %% [markdown]
# The same on a real training, with 400 steps. **Choose two frameworks**, and look for the first
# step at which they differ.

# %% id="touch-presets"
ScalerPresets()

# %% [markdown]
# ### Exercise 3: which steps are skipped?  ●●●  12 min
#
# You get the largest gradient of each step, and the settings of a scaler. Which steps does it skip?
# The rules:
#
# - A step overflows if `scale * gradient` is 65520 or more. It is skipped, and the count of clean
#   steps starts again.
# - The scale is halved from overflow number `hysteresis` on, counted since the scale last grew. It
#   never goes below `floor`.
# - After `growth_interval` clean steps in a row the scale doubles, up to `cap`. Then both counts
#   start again, also at the cap.
# - If `steps_at_floor` is True, the scaler does not look for inf while the scale is at `floor`:
#   such a step counts as clean.
# - After the scale was halved, or held at `floor` instead, the next `pause` clean steps do not
#   count. No framework has this knob.


# %% id="exercise-frameworks-skips" tags=["exercise-frameworks.skips"]
def my_skipped_steps(largest, config, pause):
    """Return the numbers of the skipped steps, counted from 1.

    Args:
        largest: List of floats: the largest magnitude among the gradients of each step; may be inf.
        config: Has init_scale, growth_interval, hysteresis, floor, cap and steps_at_floor.
        pause: Whole number, 0 or more.
    """
    ### BEGIN SOLUTION
    scale = config.init_scale
    clean = 0
    overflows = 0
    skipped = []
    for step, gradient in enumerate(largest, start=1):
        looks = not config.steps_at_floor or scale > config.floor
        if looks and scale * gradient >= 65520:
            skipped.append(step)
            clean = 0
            overflows += 1
            if overflows >= config.hysteresis:
                scale = max(scale / 2, config.floor)
                clean = -pause
        else:
            clean += 1
            if clean == config.growth_interval:
                scale = min(scale * 2, config.cap)
                clean = 0
                overflows = 0
    return skipped
    ### END SOLUTION

check("frameworks.skips", my_skipped_steps)

# %% [markdown]
# ## 4 · The loop that calls you
#
# In fastai you do not write the loop. You write *callbacks*: methods that the loop calls at its
# *events*. To scale a loss you have to know their order. So print it, for one batch.


# %% id="touch-events"
class Listening(Callback):
    """Note each event."""

    order = 60
    heard = ()

    def __call__(self, event):
        self.heard = (*self.heard, event)


loaders = DataLoaders(BATCHES[:1], [])
listening = Listening()
opt_func = partial(SGD, mom=0.0)
Learner(loaders, small_network(), loss_of, opt_func, lr=LEARNING_RATE, cbs=[listening]).fit(1)
begin, end = map(listening.heard.index, ("before_batch", "after_batch"))
print(" → ".join(listening.heard[begin : end + 1]))

# %% [markdown]
# Around each part x of the loop there are two events, `before_x` and `after_x`. A callback that
# replaces x raises a *cancel* exception, `CancelStepException` for the step. Then the loop leaves
# out x, and still calls `after_x`. It also calls it after a skipped step. So fastai's schedules of
# the learning rate count skipped steps too.
#
# The loop calls `backward()` of `learn.loss_grad`. (`learn.loss` is a copy that you can look at.)
#
# ### Exercise 4: write the callback  ●●●  12 min
#
# The model of this exercise opens autocast itself. The callback does the rest: scale the loss,
# unscale the gradients, clip them, step or skip, move the scale. Write a class with three methods,
# for three events. `self.opt` is the optimizer, `self.model` the model, and you set a value in the
# learner by `self.learn.loss_grad = ...`. A `GradScaler` does the scaling.


# %% id="callback-learner"
def a_learner(weight, batches, callback):
    """Return a fastai learner over a layer that computes in FP16, with this callback."""
    layer = a_layer(weight)
    layer.forward = autocast("cpu", torch.float16)(layer.forward)
    sgd = partial(SGD, mom=0.0)
    loaders = DataLoaders(batches, [])
    mse = nn.functional.mse_loss
    return Learner(loaders, layer, mse, sgd, lr=RATE, cbs=[callback])


# %% id="exercise-frameworks-callback" tags=["exercise-frameworks.callback"]
def my_fastai_training(weight, batches, max_norm):
    """Return (the weight, the scale) after `a_learner(weight, batches, your callback).fit(1)`.

    Args:
        weight: FP32 tensor [outputs, inputs]; it stays as it is.
        batches: List of (x, y), FP32 tensors.
    """
    ### BEGIN SOLUTION
    scaler = GradScaler("cpu")

    class Scaling(Callback):
        def before_backward(self):
            self.learn.loss_grad = scaler.scale(self.loss_grad)

        def before_step(self):
            scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)
            scaler.step(self.opt)
            raise CancelStepException

        def after_step(self):
            scaler.update()

    learn = a_learner(weight, batches, Scaling())
    learn.fit(1)
    return learn.model.weight.detach(), scaler.get_scale()
    ### END SOLUTION


check("frameworks.callback", my_fastai_training)

# %% [markdown]
# ## 5 · The graph, before and after
#
# *Second sitting.* autocast decides at each call. But a network does the same in every step. So
# OneFlow, and compilers, decide once, for a *graph*. That is the list of all operations, with the
# results that each one uses.
#
# How many casts does a graph need? Here is a transformer of two blocks, with nine linear layers.


# %% id="predict-casts"
def casts_of_a_transformer():
    run = TrainingRun(TASKS["gpt"], RECIPES["O1 graph"], measure_every=0)
    for _ in range(3):
        run.take_step()
    return len(explain(run.engine).casts)


predict("frameworks.casts", casts_of_a_transformer)

# %% [markdown]
# Now a smaller network, in which one weight is used twice. Five *passes* turn it into a graph with
# all casts in place:
#
# - **colour**: look up the list of each operation;
# - **propagate**: find the format of its result;
# - **insert**: put a cast wherever an input does not have the format that the operation needs;
# - **cancel**: remove casts that do nothing;
# - **hoist**: cast a weight only once, even if it is used several times.
#
# The widget opens behind the last pass. **Press Play** to watch all five. Which operation gets a
# cast for an input that is FP16 already?

# %% id="touch-passes"
CastPasses()

# %% [markdown]
# Now a graph of your own. Put in your own operations, and read the table: list, format, casts.


# %% id="touch-explain" tags=["claim-C24", "claim-C28", "answer-frameworks.casts"]
class MyScores(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(16, 16)

    def forward(self, x):
        h = torch.relu(self.project(x))
        scores = torch.einsum("ik,jk->ij", h, h)
        return (scores.softmax(-1) - scores.mean(-1, keepdim=True)).sum()


graph = CastGraph(MyScores(), FP16)
for _ in range(2):
    with half_storage("cpu"), lab_autocast(FP16):
        graph(torch.ones(8, 16))
print(explain(graph))

# %% [markdown] tags=["answer-frameworks.casts"]
# There is the allow list, the deny list, and a third group that keeps the format of its input:
# `relu` is in it, and `mean` too. `einsum` is a matrix product, so it runs in FP16.

# %% [markdown]
# ### Exercise 5: place the casts  ●●○  10 min
#
# Place the casts in a graph of six *nodes* (operations). Each has one of four rules:
#
# - `allow`: its inputs must be FP16, and FP16 comes out.
# - `deny`: its inputs must be FP32, and FP32 comes out.
# - `promote`: if one input is FP32, all must be; else all are FP16. That format comes out.
# - `keep`: no cast; the format of its first input comes out.
#
# A tensor that was cast to a format once is not cast to it again.


# %% id="exercise-frameworks-casts" tags=["exercise-frameworks.casts"]
def my_casts_placed(given, nodes):
    """Return [(tensor, format), ...]: which tensor is cast to which format, in order of need.

    Args:
        given: Dict: name of an input or a weight -> "FP32" or "FP16".
        nodes: List of (name, rule, names of its inputs), in order.
            The result of a node has the node's name.
    """
    ### BEGIN SOLUTION
    formats = dict(given)
    casts = []
    for name, rule, inputs in nodes:
        held = [formats[source] for source in inputs]
        if rule == "allow":
            wanted = "FP16"
        elif rule == "deny" or (rule == "promote" and "FP32" in held):
            wanted = "FP32"
        else:
            wanted = held[0]
        if rule != "keep":
            for source in inputs:
                if formats[source] != wanted and (source, wanted) not in casts:
                    casts.append((source, wanted))
        formats[name] = wanted
    return casts
    ### END SOLUTION


check("frameworks.casts", my_casts_placed)

# %% [markdown]
# ## 6 · The third way: no autocast
#
# There is a third way: you write the casts yourself, where you want them. A linear layer casts its
# weight to the dtype of its input. The input is cast once, before the first layer. nanochat, a
# well-known small trainer of language models, changed to this in 2026. Here it is for the network
# of section 1.


# %% id="touch-by-hand"
class CastingLinear(nn.Linear):
    """A linear layer with FP32 weights that computes in the dtype of its input."""

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))


def by_hand():
    torch.manual_seed(0)
    net = nn.Sequential(CastingLinear(4, 16), nn.Tanh(), CastingLinear(16, 3))
    scaler = GradScaler("cpu")
    optimizer = sgd(net)
    for x, y in BATCHES:
        optimizer.zero_grad()
        with half_storage("cpu"):  # a CPU adds up FP16 products as a GPU does
            loss = loss_of(net(x.half()).float(), y)  # in at the door, and out before the loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return net


same = all(map(torch.equal, by_hand().parameters(), first.parameters()))
print("by hand, the weights are", "equal to torch.amp's, to the bit" if same else "others")

# %% [markdown]
# There is no list, no state, and nothing is hidden: you read exactly what runs. And the price? If
# you forget a cast, nothing warns you.

# %% id="touch-forgotten"
h = torch.full((4, 512), 16.0).half()
print("mean of squares, forgotten in FP16:", (h * h).sum(-1).div(512)[0].item())
print("mean of squares, cast by hand:     ", (h.float() * h.float()).sum(-1).div(512)[0].item())
with lab_autocast(FP16):
    print("mean of squares, under autocast:   ", (h * h).sum(-1).div(512)[0].item())

# %% [markdown]
# 512 squares of 16 are 131,072, and FP16 ends at 65504. The lab's autocast follows the lists for a
# GPU, and they have sums on the deny list. torch's list for the *CPU* does not:
# `torch.autocast("cpu", torch.float16)` would give inf here, too.
#
# | | autocast | by hand |
# |---|---|---|
# | another person's model | runs as it is | has to be rewritten |
# | a new operation | is on a list, or keeps the dtype of its input | you decide |
# | each call | is looked up in the lists | is not looked up |
# | a weight that is used several times | is cast once: autocast keeps the cast | is cast in every call |
# | which operations run in FP16 | you have to look it up | you read it in the code |
#
# So: cast by hand if the model is yours, has few kinds of layers, and is well known. Use autocast
# everywhere else. With BF16 it is safer than with FP16, because sums of BF16 do not overflow.

# %% [markdown]
# ## 7 · What a compiler leaves out
#
# `torch.compile` makes a graph too, and joins neighbouring operations into one *kernel*: one pass
# through memory instead of three. Three FP16 operations, compiled on this lab's machine with its
# default compiler, *inductor*:

# %% id="predict-compiled"
predict("frameworks.compiled")

# %% [markdown]
# Inductor needs a C++ compiler and up to a minute. So the result was **recorded** (torch 2.13, CPU,
# g++). The next cell shows the reason, without a compiler.

# %% id="touch-rounded-once" tags=["answer-frameworks.compiled"]
a = torch.randn(100_000, generator=torch.Generator().manual_seed(0)).half()
each = (a * 1.1 + 0.3) * 0.7  # three operations, and FP16 after each
once = ((a.float() * 1.1 + 0.3) * 0.7).half()  # one kernel: FP32 inside, and FP16 at its end
exact = (a.double() * 1.1 + 0.3) * 0.7
print(f"different: {(each != once).float().mean():.0%}")
print(f"mean error, rounded after each: {(each.double() - exact).abs().mean():.2e}")
print(f"mean error, rounded once:       {(once.double() - exact).abs().mean():.2e}")

# %% [markdown] tags=["answer-frameworks.compiled"]
# **It leaves out the roundings in between.** Inside a kernel, numbers stay in FP32, and the casts
# to FP16 and back are *elided* (left out). That is more exact, and faster. But the result is
# different: a compiled network does not equal the same network before compiling, bit for bit.
# `torch._inductor.config.emulate_precision_casts = True` brings the roundings back.

# %% [markdown]
# It cannot leave out the rounding of a matrix product's inputs. (The casts themselves may run
# inside another kernel.) A graph that is only captured, not yet compiled, shows these casts:


# %% id="touch-captured"
def casts_captured(net, x):
    """Return how many casts are in the graph that torch.compile hands to a compiler."""
    from torch._dynamo.backends.common import aot_autograd

    found = []

    def count(graph, _):
        found.append(sum("_to_copy" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        torch.compile(net, backend=aot_autograd(fw_compiler=count))(x)
    return found


print("casts in the captured graph:", *casts_captured(small_network(), torch.ones(8, 4)))

# %% [markdown]
# There are five: the input, two weights and two biases. `torch.compile` recorded the casts of
# autocast at the first call. If you change autocast afterwards, it compiles again.

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C51 apex: `initialize` and `scale_loss` | true: two calls, equal to torch.amp to the bit | section 1 |
# | C53 OneFlow: `enable_amp` and `set_grad_scaler` on an `nn.Graph` | true: the graph does the rest, with the same bits | section 1 |
# | C54 fastai: `to_fp16()`, a callback around the same loop | true: the callback does it at six events; its loop knows no precision | sections 1, 4 |
# | C24 an allow list runs in FP16, a deny list in FP32 | half true, again in 09: `relu` and `mean` are on neither, in the graph too | section 5 |
# | C28 einsum does not gain from FP16 | false, again in 09: in the graph it is on the allow list | section 5 |
# | C29 functions off the lists must be registered before use | false, again in 09: apex runs an unregistered one in the dtype that comes | section 2 |
# | C52 torch.amp: `enabled=False` is a no-op | true, again in 09: nine steps equal plain FP32 to the bit | section 1 |
#
# **Where you meet this.** `torch.amp.autocast` and `torch.amp.GradScaler`; `apex.amp` in scripts
# from before 2025; `oneflow.nn.Graph`; fastai's `Learner.to_fp16`; you can read all four in
# `labkit.frameworks`. Lightning's `Precision` plugin, `Accelerator.backward` and DeepSpeed's engine
# do the same at events of their own.
