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

# %% [markdown] on_the_map="updates that do not change FP16 weights, and what it costs to remember them"
# # 07 · Master weights
#
# **You will be able to** say when FP16 weights stop learning. You write the step that every
# framework takes with master weights, and compute their cost.
#
# About 85 minutes. Builds on: lesson 02 (half an ulp), lesson 06 (scale, unscale, skip). Six
# exercises, 33 points.

# %% id="setup"
import time
from functools import partial

import torch
from torch import nn

from labkit.amp import RECIPES, Ema, Engine, no_decay_on_norms_and_biases
from labkit.grading import check
from labkit.instrument import swallowed
from labkit.train import TASKS, TrainingRun, one_thread, recorded
from labkit.widgets import LiveTraining, predict, race_figure

# %% [markdown]
# ## 1 · What stalls
#
# A classifier has learned upright digits. Now it is fine-tuned on digits turned by 90 degrees, with
# Adam and a small learning rate of 2e-5. Its weights are stored in FP16. Only *stored*: the
# optimizer computes each step in FP32, and then the new weight is rounded to FP16.

# %% id="predict-stall"
predict("master.stall")

# %% [markdown]
# These runs are recorded, 2,000 steps each. *No master* is the training just described. The others
# keep an FP32 copy of the weights.

# %% id="touch-record" tags=["claim-C41", "answer-master.stall"]
recipes = ["FP32", "FP16 static", "FP16 no master", "BF16", "BF16 no master"]
race_figure([recorded("fine_tuning", recipe, seed) for recipe in recipes for seed in (0, 1, 2)])

# %% [markdown] tags=["answer-master.stall"]
# The broad line is *FP32*, and the two with a master lie on it. Without a master there is no error,
# no NaN and no skipped step. And yet half of the learning is missing, and in BF16 nearly all of it.

# %% [markdown]
# Why? Count the updates of one step that did not change their weight. These updates are called
# *swallowed*:

# %% id="touch-swallowed"
for recipe in recipes:
    run = TrainingRun(TASKS["fine_tuning"], RECIPES[recipe], measure_every=0)
    weights = run.weights.master_weights
    before = [weight.detach().clone() for weight in weights]
    run.step()
    lost = swallowed(before, weights, [weight.grad for weight in weights])
    print(f"{recipe:<16}{lost:6.1%} of the updates swallowed")

# %% [markdown]
# An update of 2e-5 is below half an ulp for every weight from 0.0625 up (FP16), or from 0.0078 up
# (BF16). BF16 has more range and three significand bits fewer, so for *weights* it is the worse
# format. For a weight $w$ and an update $u$ in FP16 or BF16:
#
# $$w - u = w \quad\text{if}\quad u < \tfrac12\,\mathrm{ulp}(w)$$
#
# A larger learning rate makes the gap smaller. The networks of lesson 06 moved in large steps: they
# needed a loss scale rather than a master. *Underflow* (a gradient becomes zero) and *swallowed
# updates* (a weight does not change) are two different problems.

# %% [markdown]
# ## 2 · The FP32 copy remembers
#
# One weight of 1, ten updates of 0.0001. The next FP16 number above 1 is 0.00098 away.

# %% id="predict-ten"
predict("master.ten")

# %% [markdown]
# And when does the copy move first? Say it as a number: type it, or slide on the line.


# %% id="predict-first"
def updates_until_the_copy_moves():
    master = torch.tensor(1.0)
    updates = 0
    while master.half() == 1:
        master = master + 0.0001
        updates = updates + 1
    return updates


predict("master.first", updates_until_the_copy_moves)

# %% id="touch-ten" tags=["claim-C08", "claim-C42", "answer-master.ten", "answer-master.first"]
alone = torch.tensor(1.0).half()
master = torch.tensor(1.0)
for step in range(1, 11):
    alone = (alone.float() + 0.0001).half()
    master = master + 0.0001
    copied = master.half()
    print(f"step {step:>2}   FP16 alone {alone:.5f}   ", end="")
    print(f"master {master:.5f}   its FP16 copy {copied:.5f}")

# %% [markdown] tags=["answer-master.ten", "answer-master.first"]
# The copy does not move for four steps. Then it jumps by a whole ulp, because the master has added
# the updates up. Copying back loses up to half an ulp every time. But this loss does not add up:
# the *next* step starts from the master, not from the copy.

# %% [markdown]
# One step of training with master weights, then:
#
# 1. forward and backward in FP16, with the loss scaled;
# 2. gradients to FP32, divided by the scale, checked for inf and NaN;
# 3. the optimizer changes the FP32 master weights;
# 4. the masters are rounded into the FP16 model.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("master.step")`: you get
# three hints, one by one, at no cost.*
#
# ### Exercise 1: the master step  ●●○  10 min
#
# Train for as many steps as there are gradients, with SGD. Each gradient comes from a backward pass
# in FP16 and carries the scale. If one holds inf or NaN, its step is left out.


# %% id="exercise-master-step" tags=["exercise-master.step"]
def my_master_training(master, scaled_grads, scale, lr):
    """Return (the model weight in FP16, the master weight in FP32) after the last step.

    Args:
        master: FP32 [n], the weight before the first step; it stays as it is.
        scaled_grads: List of FP16 tensors [n], one for each step.
    """
    ### BEGIN SOLUTION
    for scaled in scaled_grads:
        grad = scaled.float() / scale
        if torch.isfinite(grad).all():
            master = master - lr * grad
    return master.half(), master
    ### END SOLUTION


check("master.step", my_master_training)

# %% [markdown] site="Press *Play*: a recorded training without master weights runs again. In the lab you train it yourself, and tick *master weights* after 300 steps. What was swallowed before stays swallowed, but from then on small updates are kept."
# Switch it off and on while a network trains. Press *Start*, wait for 300 steps, and tick *master
# weights*. What was swallowed before stays swallowed, but from now on small updates are kept.

# %% id="touch-live"
LiveTraining(TASKS["fine_tuning"], RECIPES["FP16 no master"], seed=0)

# %% [markdown]
# ## 3 · What it costs
#
# FP16 halves the weights. And a second copy of them in FP32? Count bytes for weights, masters, and
# Adam's *moments*: for each weight Adam remembers the mean of its gradients and the mean of their
# squares.

# %% id="predict-bill"
predict("master.bill")


# %% id="touch-bill" tags=["answer-master.bill"]
def engine_of(recipe):
    """Return a small network in training under a recipe, one step old."""
    layer = nn.Linear(1000, 1000, bias=False)
    engine = Engine(layer, partial(torch.optim.Adam, eps=1e-4), RECIPES[recipe])
    with engine.forward():
        loss = engine(torch.ones(4, 1000)).square().mean()
    engine.backward(loss)
    engine.step()
    return engine


print("bytes per parameter       weights   master  moments")
for recipe in ("FP32", "O1", "O2", "O3"):
    engine = engine_of(recipe)
    (model,), (master,) = engine.weights.model_weights, engine.weights.master_weights
    moments = sum(t.nbytes for t in engine.optimizer.state[master].values() if t.numel() > 1)
    own = 0 if master is model else master.nbytes
    print(f"{recipe:<24}{model.nbytes / 1e6:9.0f}{own / 1e6:9.0f}{moments / 1e6:9.0f}")

# %% [markdown] tags=["answer-master.bill"]
# Gradients come on top: as many bytes as the weights. With Adam that makes 16 bytes for each
# parameter in FP32 *and* in O2. So mixed precision saves nothing on parameters. It saves on
# activations, and in most networks these are the larger part. Only O3 halves everything, and
# section 1 showed the price.
#
# | bytes for each parameter | weight | gradient | master | moments | together |
# |---|---|---|---|---|---|
# | FP32 (and O1) | 4 | 4 | | 8 | 16 |
# | O2 | 2 | 2 | 4 | 8 | 16 |
# | O3 | 2 | 2 | | 4 | 8 |

# %% [markdown]
# ### Exercise 2: the memory bill  ●○○  6 min
#
# How many bytes do weights, gradients, master weights and the optimizer's moments take? Gradients
# have the model's format. The optimizer keeps its moments in the format of the weights that it
# changes: the masters if there are any.


# %% id="exercise-master-memory" tags=["exercise-master.memory"]
def my_bill(parameters, model_bits, master, moments):
    """Return the number of bytes.

    Args:
        parameters: The number of parameters of the model.
        model_bits: 16 or 32.
        master: Whether FP32 master weights are kept beside the model's.
        moments: Tensors of state for each weight: 0 for SGD, 1 with momentum, 2 for Adam.
    """
    ### BEGIN SOLUTION
    model = model_bits // 8
    stepped = 4 if master else model
    return parameters * (2 * model + (4 if master else 0) + moments * stepped)
    ### END SOLUTION


check("master.memory", my_bill)

# %% [markdown]
# ## 4 · Groups, and one flat tensor
#
# An optimizer can treat parameters differently, in *parameter groups*. Fine-tuning uses them:
# frozen layers, a smaller learning rate for early layers, no *weight decay* on biases and norms.
# (Weight decay makes each weight a little smaller in every step.) Masters must keep the groups
# apart, or one rate is used for all.


# %% id="touch-groups" tags=["claim-C44"]
def train_in_groups(groups):
    """Return a network after ten steps of weight decay alone, its first layer frozen."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    net[0].requires_grad_(False)
    adamw = partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)
    engine = Engine(net, adamw, RECIPES["O2"], groups=groups)
    for _ in range(10):
        with engine.forward():
            loss = engine(torch.ones(4, 8)).sum() * 0
        engine.backward(loss)
        engine.step()
        engine.zero_grad()
    return net


two_groups = partial(no_decay_on_norms_and_biases, weight_decay=0.5)
for name, groups in (("one group for all", None), ("no decay on norms and biases", two_groups)):
    net = train_in_groups(groups)
    of_norm = net[1].weight.mean()
    of_last = net[2].weight.abs().mean()
    print(f"{name:<30} mean weight of the norm {of_norm:.3f}   of the last layer {of_last:.3f}")

# %% [markdown]
# The gradients were zero, so only weight decay could move anything. In one group it made the norm's
# weights smaller, and that is unwanted. In two groups they stay 1. The last layer, which is meant
# to decay, ends the same.
#
# ### Exercise 3: parameter groups  ●○○  6 min
#
# Make the two groups that most recipes use: weight decay for everything with two dimensions or
# more, none for the rest (biases, the weights of normalisation layers, single numbers). Frozen
# parameters belong to neither.


# %% id="exercise-master-groups" tags=["exercise-master.groups"]
def my_groups(parameters):
    """Return {"decay": [names], "no decay": [names]}, each in the order given.

    Args:
        parameters: List of (name, shape, trainable).
    """
    ### BEGIN SOLUTION
    groups = {"decay": [], "no decay": []}
    for name, shape, trainable in parameters:
        if trainable:
            groups["decay" if len(shape) > 1 else "no decay"].append(name)
    return groups
    ### END SOLUTION


check("master.groups", my_groups)

# %% [markdown]
# A large network has hundreds of parameters, and a step works on each of them several times. Put
# the masters of a group one after another into a single tensor, and it is one long operation. Is
# that faster?
#
# torch has something similar built in. With `foreach=True` an optimizer handles many parameters
# with one call, and with `fused=True` it does the whole step in one kernel. The cell compares with
# both ways: one parameter at a time, and `foreach`.

# %% id="predict-flat"
predict("master.flat")


# %% id="touch-flat" tags=["claim-C43", "answer-master.flat"]
def seconds_per_step(parameters, elements, foreach, flat):
    """Return the time of one step of Adam on the masters, and of copying them back."""
    net = nn.ParameterList([nn.Parameter(torch.ones(elements)) for _ in range(parameters)])
    engine = Engine(net, partial(torch.optim.Adam, foreach=foreach), RECIPES["O2"], flat=flat)
    gradients = [torch.ones_like(weight) for weight in engine.weights.optimizer_weights]
    times = []
    with one_thread():
        for _ in range(15):
            # process_time counts this process only, whatever else the machine is doing
            began = time.process_time()
            engine.weights.step(gradients)
            times.append(time.process_time() - began)
    return sorted(times)[len(times) // 2]


print("flat is faster than                one at a time    foreach")
for size in ((400, 1_000), (40, 10_000), (4, 100_000)):
    ratios = []
    for foreach in (False, True):
        one_by_one = seconds_per_step(*size, foreach, flat=False)
        ratios.append(one_by_one / seconds_per_step(*size, foreach, flat=True))
    print(f"{size[0]:>4} parameters of {size[1]:>7,} {ratios[0]:18.1f}x {ratios[1]:9.1f}x")

# %% [markdown] tags=["answer-master.flat"]
# For many small parameters it is faster. The larger they are, the less there is to gain. `foreach`
# and `fused` do much of the same inside, so this matters less today than when apex and fastai v1
# offered a flat master. The price is more work to keep order, and you write that now.

# %% [markdown]
# ### Exercise 4: one flat master  ●●○  10 min
#
# `flat` holds the master weights of all layers, one after another, row by row. Take one step of SGD
# on it and cut the model's FP16 weights out of the result. Each weight has its gradient's shape.


# %% id="exercise-master-flat" tags=["exercise-master.flat"]
def my_flat_step(flat, scaled_grads, scale, lr):
    """Return (the flat FP32 master after the step, the list of FP16 model weights).

    Args:
        flat: FP32 [N]; it stays as it is.
        scaled_grads: List of FP16 tensors with N elements together.
    """
    ### BEGIN SOLUTION
    grad = torch.cat([g.float().reshape(-1) for g in scaled_grads]) / scale
    flat = flat - lr * grad
    parts = flat.split([g.numel() for g in scaled_grads])
    return flat, [part.reshape(g.shape).half() for part, g in zip(parts, scaled_grads, strict=True)]
    ### END SOLUTION


check("master.flat", my_flat_step)

# %% [markdown]
# ## 5 · What else must follow the master
#
# Many recipes test the network with a *moving average* of its weights (EMA). With a decay of 0.99
# each step moves the average a hundredth of the way to the newest weights. Which weights should it
# follow, and in which format is it kept?

# %% id="touch-ema" tags=["claim-C45"]
engine = Engine(nn.Linear(1, 1, bias=False), partial(torch.optim.SGD, lr=1.0), RECIPES["O2"])
with torch.no_grad():
    engine.model.weight.fill_(1.0)
engine.weights.adopt()  # the model's weight was set by hand: the master follows

ema = Ema(engine, decay=0.99)
in_fp16 = torch.ones(1, 1).half()
for _ in range(200):
    engine.weights.step([torch.full((1, 1), -(2.0**-13))])  # the weight grows by 2^-13 a step
    ema.update()
    in_fp16 = (0.99 * in_fp16.float() + 0.01 * engine.model.weight.float()).half()
master = engine.weights.master_weights[0]
average = ema.averages["weight"]
print(f"weight {master.item():.5f}   average of the master {average.item():.5f}", end="")
print(f"   average in FP16 {in_fp16.item():.5f}")

# %% [markdown]
# The average in FP16 never left 1: a hundredth of the distance is below half an ulp. (With the
# usual decay of 0.999 it is a thousandth, and worse.) The same is true of everything that changes
# slowly: averages, Adam's moments, the running statistics of batch norm. Keep them in FP32, and let
# them follow the master.
#
# ### Exercise 5: an average that follows the master  ●●○  8 min
#
# Keep an exponential moving average of the weights. It starts as the first weights, and every step
# moves it to `decay * average + (1 - decay) * weight`. A skipped step does not count.


# %% id="exercise-master-ema" tags=["exercise-master.ema"]
def my_ema(history, decay):
    """Return the FP32 average after the last step.

    Args:
        history: List of (master weight, FP32 [n]; whether the step was taken).
            The first is the weight before training.
    """
    ### BEGIN SOLUTION
    average = history[0][0]
    for master, stepped in history[1:]:
        if stepped:
            average = decay * average + (1 - decay) * master
    return average
    ### END SOLUTION


check("master.ema", my_ema)

# %% [markdown]
# ## 6 · Can it be done without a master?
#
# Lesson 02 had two cures for swallowed updates: rounding by chance, and Kahan's sum. Do they cure a
# network's weights, too? The task is that of section 1.

# %% id="predict-cures"
predict("master.cures")

# %% id="touch-cures" tags=["answer-master.cures"]
recipes = ["FP32", "FP16 no master", "FP16 stochastic", "FP16 Kahan"]
race_figure([recorded("fine_tuning", recipe, seed) for recipe in recipes for seed in (0, 1, 2)])

# %% [markdown] tags=["answer-master.cures"]
# Rounding by chance swallows nearly as many updates as before. But an update that comes through is
# a whole ulp, so on average the sum is right. Kahan's sum keeps the part that was cut off in a
# second FP16 number. That takes four bytes for each weight, two fewer than an FP16 copy and its
# FP32 master.

# %% [markdown]
# **And a model that comes in 16 bits?** Large models are stored in BF16.
# `from_pretrained(..., dtype=torch.bfloat16)` loads one in a line. Then you fine-tune it under
# autocast. Who has the FP32 masters?

# %% id="touch-loaded"
def share_moved(loaded_in, trained_in):
    """Return which share of the weights has changed after 20 steps of Adam under autocast."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64).to(loaded_in).to(trained_in)
    start = model.weight.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5)
    for _ in range(20):
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(torch.randn(32, 64)).float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (model.weight != start).float().mean().item()


in_bf16 = share_moved(torch.bfloat16, torch.bfloat16)
in_fp32 = share_moved(torch.bfloat16, torch.float32)
print(f"loaded in BF16, and trained so:     {in_bf16:4.0%} of the weights moved")
print(f"loaded in BF16, then model.float(): {in_fp32:4.0%}")

# %% [markdown]
# **There are none.** Autocast casts weights for a product; it does not keep a second copy. The
# optimizer steps what the model has. So cast the model to FP32 before the optimizer is made, or let
# the framework make masters: DeepSpeed and Megatron do, and FSDP2 does if the model was loaded in
# FP32. There is no error otherwise. The loss falls for a while, because the smallest weights move.

# %% [markdown]
# ## 7 · Adding up many small things
#
# *A sum of many gradients is a weight that gets many small updates.*
#
# A large batch often does not fit into memory. So it is cut into *micro-batches*, and their
# gradients are added up before the step (lesson 06). Workers add up their gradients in the same way
# (lesson 09b). In which format should the sum be stored?

# %% id="predict-micro"
predict("master.micro")


# %% id="touch-micro" tags=["claim-C65", "answer-master.micro"]
def in_turn(parts, dtype):
    """Add one after another; each sum is rounded to the dtype."""
    total = torch.zeros_like(parts[0], dtype=dtype)
    for part in parts:
        total = total + part.to(dtype)
    return total


def in_pairs(parts, dtype):
    """Add neighbours, then the neighbouring sums, until one is left; for 2, 4, 8, ... parts."""
    parts = [part.to(dtype) for part in parts]
    while len(parts) > 1:
        parts = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


numbers = torch.Generator().manual_seed(0)
# all micro-batches agree on the signal; the rest of each is noise
signal = 0.3 * torch.randn(4096, generator=numbers)
noise = [0.5 * torch.randn(4096, generator=numbers) for _ in range(2048)]
micro_batches = [(signal + part).bfloat16() for part in noise]
WAYS = {"BF16": (in_turn, torch.bfloat16), "FP16": (in_turn, torch.float16)}
WAYS |= {"FP32": (in_turn, torch.float32), "BF16 in pairs": (in_pairs, torch.bfloat16)}
print(f"{'micro-batches':<15}" + "".join(f"{name:>15}" for name in WAYS))
for count in (8, 64, 512, 2048):
    exact = torch.stack(micro_batches[:count]).double().sum(0)
    sums = [add(micro_batches[:count], dtype) for add, dtype in WAYS.values()]
    errors = [(total - exact).norm() / exact.norm() for total in sums]
    print(f"{count:<15}" + "".join(f"{error:15.2%}" for error in errors))

# %% [markdown] tags=["answer-master.micro"]
# **BF16 loses almost half of the sum.** All micro-batches have about the same size. After 256 of
# them the sum is 256 times as large as the next one, and that is half an ulp of BF16: the next one
# is swallowed. FP16 has 11 significant bits, so this begins at 2,048. FP32 has 24, and it begins at
# 16.8 million.
#
# So frameworks add up BF16 gradients in FP32: Megatron's `accumulate_allreduce_grads_in_fp32`,
# DeepSpeed's `grad_accum_dtype`, `reduce_dtype` in FSDP2. This takes four bytes for each weight
# instead of two.
#
# The order matters as much as the format. In pairs, both numbers of an addition have about the same
# size, so nothing is swallowed. A ring of workers adds in turn, and rounds at each worker. With 8
# workers in BF16 this costs 0.3%; with 512 workers it costs 4%.

# %% [markdown]
# *Sources:* NVIDIA/Megatron-LM#372 and #502, which ask why; deepspeedai/DeepSpeed#2768, where
# trainings diverged; pytorch/pytorch#106395, where a training was stable on 96 GPUs and unstable
# on 384. *Not reproduced here:* these trainings.
#
# ### Exercise 6: the smallest accumulator that is right  ●●○  8 min
#
# You add up `count` numbers of about the size `size`. A format is *right* if
#
# - no number is swallowed: `count` is at most $2^b$, where $b$ is its number of significant bits
#   (BF16 counts to 256 and loses the 257th);
# - `size` is at least its smallest normal number;
# - the sum, `count` times `size`, is at most its largest number.
#
# Return the first right format of `FORMATS`. The formats are in the order of their bytes, and of
# two with the same bytes the one with more bits comes first.

# %% id="accumulator-formats"
FORMATS = {  # name: (significant bits, smallest normal number, largest number)
    "FP16": (11, 2.0**-14, 65504.0),
    "BF16": (8, 2.0**-126, 3.3895313892515355e38),
    "FP32": (24, 2.0**-126, 3.4028234663852886e38),
}


# %% id="exercise-master-accumulator" tags=["exercise-master.accumulator"]
def my_accumulator(count, size):
    """Return the name of the first right format, or None if there is none.

    Args:
        count: Whole number, 1 or more.
        size: Float above 0.
    """
    ### BEGIN SOLUTION
    for name, (bits, smallest, largest) in FORMATS.items():
        if count <= 2**bits and size >= smallest and count * size <= largest:
            return name
    return None
    ### END SOLUTION


check("master.accumulator", my_accumulator)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C08 many small updates survive in the FP32 master and reach the FP16 weight in the end | true | section 2 |
# | C41 forward and backward in FP16, gradients to FP32, step on the master, copy back | true, with a scale and a check in between | sections 1, 2 |
# | C42 the copy back loses precision but the master does not | true | section 2 |
# | C43 one flat master makes the step faster | half true: for many small parameters; for large ones there is little to gain | section 4 |
# | C44 parameter groups survive | true if somebody keeps them apart | section 4 |
# | C45 an EMA of the weights must follow the master weights | true, and be kept in FP32 | section 5 |
# | C65 gradients may be added up in the format in which they were computed | half true: up to 256 of them in BF16, up to 2,048 in FP16 | section 7 |
#
# **Where you meet this.** `prep_param_lists(flat_master=...)` and `FP16_Optimizer` in the old apex
# (its mixed precision was removed in 2025), `to_fp16(flat_master=True)` in fastai v1, DeepSpeed's
# and Megatron's `fp32_groups_flat`, `multi_precision=True` in MXNet and Paddle. Under
# `torch.amp.autocast` (O1) the parameters themselves are FP32: they *are* the master, and the FP16
# copy is a cache. BF16 training at scale either keeps an FP32 master or rounds stochastically.
