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

# %% [markdown] on_the_map="the gradients of a training, from the network to their bits; five networks, and your own"
# # 04 · Seeing gradients
#
# **You will be able to** say which gradients of a network FP16 cannot hold, at any scale and in any
# layer. You find the layer that made the first inf. You look into the training of your own model
# with three lines.
#
# About 90 minutes, best in two sittings (the second begins with section 5). Five exercises, 30
# points. Builds on: the bits of a number (lesson 01), and what a backward pass is. You need three
# facts:
#
# - FP16's smallest number is 2^-24 = 5.96e-8. A number that is not above half of it becomes 0: it
#   *underflows*. From 65520 on, a number becomes inf: it *overflows*.
# - A network passes *activations* forward, from layer to layer. The backward pass brings their
#   gradients (*activation gradients*) and those of the weights (*weight gradients*).
# - `FP32` and `FP16` are names of recipes. A *recipe* says in which format a network is trained.
#   Here `FP16` is used without any remedy.

# %% id="setup"
import math

import torch
from torch import nn

from labkit.amp import RECIPES
from labkit.formats import FP16
from labkit.grading import check
from labkit.instrument import exponent_histogram, fate, merge, shift, underflow, watch, zeros_inside
from labkit.train import TASKS, TrainingRun, bytes_held, recorded, single_digits
from labkit.widgets import GradientZoom, predict

# %% [markdown]
# ## 1 · How many?
#
# A small network looks at pictures of 32 x 32 pixels. For every pixel it says: disc, square, or
# ground. It is trained in FP32. At its first step, its activation gradients are computed once in
# FP32 and once in FP16, with the same weights and the same pictures.


# %% id="predict-lost"
def lost_at_first(task, kind="activation gradients"):
    """Return the share of gradients that only FP16 makes zero, at the first step."""
    in_fp16 = TrainingRun(TASKS[task], RECIPES["FP16"])
    return underflow(in_fp16.fp32_twin().next_gradients(kind), in_fp16.next_gradients(kind))


predict("gradients.lost", lambda: 100 * lost_at_first("unet"))

# %% [markdown]
# Does the share stay the same? The network learns, and its gradients change.

# %% id="predict-later"
predict("gradients.later")

# %% [markdown]
# Now look: here is a film of its FP32 gradients, from the first step to the fortieth. Each picture
# has a bar for each power of two. The colours behind the bars show how FP16 stores them: as zero,
# *subnormal* (with fewer bits), normal, or inf.
#
# **Slide the step.** Then look at the rows below: each is a layer. Which layers lose most?

# %% id="touch-film"
run = TrainingRun(TASKS["unet"], RECIPES["FP32"], measure_every=0)
film = {}
for step in range(41):
    if step % 8 == 0:
        film[step] = run.next_gradients()
    run.take_step()
GradientZoom(film)

# %% [markdown] tags=["answer-gradients.lost", "answer-gradients.later"]
# **Gradients are not lost evenly.** Some layers lose a tenth and more, others almost nothing. The
# lost share grows while the network learns: for a pixel that is already right, the gradient is
# small.

# %% [markdown]
# What you see is a *histogram* of exponents. The numbers from one power of two to the next are
# called a *binade*. Each is counted into the binade of its magnitude; zeros, inf and NaN are in
# none.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("gradients.binades")`: you
# get three hints, one by one, at no cost.*
#
# ### Exercise 1: count by powers of two  ●○○  9 min
#
# Count numbers into bins of `width` binades. The binade with exponent $e$ holds all $x$ with
# $2^e \le |x| < 2^{e+1}$. Bin $n$ holds the binades from $n \cdot$ `width` up to the next bin; $n$
# may be negative. With a width of 1 each binade is a bin. `math.frexp(x)` may help.


# %% id="exercise-gradients-binades" tags=["exercise-gradients.binades"]
def my_binades(values, width):
    """Return a dict: number of a bin -> how many of the values lie in its binades.

    Leave out bins without values.

    Args:
        values: List of FP32 numbers, as floats; zeros, infinities and NaN are in no binade.
        width: How many binades make a bin, 1 or more.
    """
    ### BEGIN SOLUTION
    counts = {}
    for x in values:
        if x != 0 and math.isfinite(x):
            number = (math.frexp(x)[1] - 1) // width
            counts[number] = counts.get(number, 0) + 1
    return counts
    ### END SOLUTION


check("gradients.binades", my_binades)

# %% [markdown]
# ## 2 · From the network to a bit
#
# One slider leads from this network to one bit. Before you move it:

# %% id="predict-bits"
predict("gradients.bits")

# %% [markdown]
# **Slide *Zoom*** from *network* over *layer* and *tensor* to *gradient*: you see the sixteen bits
# of one number in FP16. (A click, or Enter, zooms in. Esc zooms out.) In the tensor, choose another
# cell with a click or the arrow keys. Then press **× 2** a few times, and watch the bits.

# %% id="touch-zoom"
GradientZoom({0: film[0], 40: film[40]})

# %% [markdown] tags=["answer-gradients.bits"]
# **Multiplying a normal number by two changes only its exponent.** Its significand keeps all its
# bits. So the whole histogram moves to the right by one binade, and nothing else changes. A
# *subnormal* number, below 2^-14, gains: FP16 stores fewer of its bits, and each doubling brings
# back one of them.
#
# $$x = \pm\, 2^{e} \times 1.f \quad\Rightarrow\quad 2x = \pm\, 2^{e+1} \times 1.f$$

# %% [markdown]
# ## 3 · What would another scale lose?
#
# Suppose all gradients were larger by a factor $2^k$. What would FP16 lose *then*? You do not need
# a second training to answer this. Multiplying by $2^k$ moves every bar $k$ places to the right. So
# count again, with the bars moved.


# %% id="predict-scale"
def lost_at_scale(gradients, log2_scale):
    """Return the share of FP32 gradients that, times 2^log2_scale, FP16 would make zero."""
    counted = merge(exponent_histogram(gradient) for gradient in gradients.values())
    return fate(shift(counted, log2_scale), FP16).underflowed


def smallest_scale():
    """Return the smallest power of two at which less than 0.1% of the gradients are lost."""
    scale = 0
    while lost_at_scale(film[40], scale) >= 0.001:
        scale += 1
    return 2**scale


predict("gradients.scale", smallest_scale)


# %% id="touch-scale" tags=["claim-C21", "answer-gradients.scale"]
for step in (0, 40):
    shares = "   ".join(f"2^{k}: {lost_at_scale(film[step], k):7.3%}" for k in (0, 4, 8, 12, 16))
    print(f"step {step:>2}   lost at scale {shares}")

# %% [markdown]
# Lesson 06 shows how to make all gradients larger without changing the result of the training. Here
# it is enough that they could be.
#
# ### Exercise 2: what would another scale lose?  ●●○  8 min
#
# You get counts, as your `my_binades` returns them for a width of 1. FP16's smallest number is
# 2^-24. A binade is lost if it lies below 2^-25 after the scale: all its numbers are then below
# half of that. The binade that begins at 2^-25 is not lost. Write it for any format, whose smallest
# number is 2^smallest.


# %% id="exercise-gradients-fate" tags=["exercise-gradients.fate"]
def my_lost_share(counts, log2_scale, smallest):
    """Return the share of the numbers (0 to 1) that is lost if all are multiplied by 2^log2_scale.

    The share of no numbers is 0.0.

    Args:
        counts: Dict: exponent of a binade -> how many numbers lie in it.
        log2_scale: Whole number, may be negative.
        smallest: Exponent of the format's smallest number, -24 in FP16.
    """
    ### BEGIN SOLUTION
    total = sum(counts.values())
    lost = sum(n for exponent, n in counts.items() if exponent + log2_scale < smallest - 1)
    return lost / total if total else 0.0
    ### END SOLUTION


check("gradients.fate", my_lost_share)

# %% [markdown]
# ### Exercise 3: which scales lose nothing?  ●●●  12 min
#
# Two gradients decide it: the smallest and the largest magnitude. At a scale $2^k$ the smallest
# must stay *above* 2^-25 (at 2^-25 itself it becomes 0), and the largest must stay below 65520. Try
# every whole k from -40 to 60.


# %% id="exercise-gradients-window" tags=["exercise-gradients.window"]
def my_window(smallest, largest):
    """Return (lowest k, highest k) for which neither is lost at scale 2^k; None if there is no k.

    k goes from -40 to 60.

    Args:
        smallest: FP32 number above 0, as a float: the smallest magnitude of the gradients.
        largest: The largest magnitude, as `smallest`.
    """
    ### BEGIN SOLUTION
    good = [k for k in range(-40, 61) if smallest * 2.0**k > 2.0**-25 and largest * 2.0**k < 65520]
    return (good[0], good[-1]) if good else None
    ### END SOLUTION


check("gradients.window", my_window)

# %% [markdown]
# ## 4 · A count that misleads
#
# *The share of zeros does not show what FP16 lost.*
#
# You have no FP32 gradients to compare with, only an FP16 training. It is tempting to count the
# zeros in it.

# %% id="predict-zeros"
predict("gradients.zeros")

# %% id="touch-zeros" tags=["answer-gradients.zeros"]
for task in ("segmentation", "digits"):
    run = TrainingRun(TASKS[task], RECIPES["FP16"])
    zeros = zeros_inside(run.next_gradients("weight gradients"))
    lost = lost_at_first(task)
    record = recorded(task, "FP16", 0)
    name = f"{task}, trained in FP16:"
    print(f"{name:<31} {zeros:4.0%} zeros   {lost:4.0%} lost   ", end="")
    print(f"in the end {record.metric_name} {record.metric:.2f}")

# %% [markdown] tags=["answer-gradients.zeros"]
# **Counting zeros in FP16 does not show what was lost.** In *digits* the border of each picture is
# black, so the weights there have no gradient, in any format. In *segmentation* most activation
# gradients became zero. But a weight gradient is a sum over many pixels, so it is almost never
# zero. It is only wrong.

# %% [markdown]
# You need a comparison: the same weights and the same batch, in FP32 and in FP16. *Lost* is what is
# non-zero there and zero here.
#
# ### Exercise 4: lost, or zero all along?  ●●○  8 min
#
# Count over all tensors together, element by element. Gradients of FP32 up to `noise` in magnitude
# count as zero, for they are rounding errors of FP32. A `noise` of 0 leaves all in.


# %% id="exercise-gradients-lost" tags=["exercise-gradients.lost"]
def my_lost(in_fp32, in_fp16, noise):
    """Return the share (float, 0 to 1) of gradients above the noise in FP32 that is zero in FP16.

    The share is 0.0 if no gradient is above the noise.

    Args:
        in_fp32: List of tensors of any shape, one for each layer.
        in_fp16: The same in FP16, in the same order.
        noise: Magnitude in FP32, 0.0 or more, up to which a gradient counts as zero.
    """
    ### BEGIN SOLUTION
    alive = lost = 0
    for exact, half in zip(in_fp32, in_fp16, strict=True):
        above = exact.abs() > noise
        alive += int(above.sum())
        lost += int((above & (half == 0)).sum())
    return lost / alive if alive else 0.0
    ### END SOLUTION


check("gradients.lost", my_lost)

# %% [markdown]
# ## 5 · The other end
#
# *Second sitting.* So far numbers were too small. Here is a network of eight layers whose weights
# are too large: every layer makes its activations four to five times larger. It computes in FP16.
# What do you see at the end?

# %% id="predict-overflow"
predict("gradients.overflow")

# %% id="touch-overflow" tags=["claim-C23", "answer-gradients.overflow"]
torch.manual_seed(0)
layers = [nn.Linear(64, 64) for _ in range(8)]
activations = torch.randn(8, 64).half() * 60
passed = []
with torch.no_grad():
    for number, layer in enumerate(layers):
        activations = activations @ (8 * layer.weight).half().T
        passed.append((f"layer {number}", activations))
    passed.append(("loss", activations.square().mean()))
for name, tensor in passed:
    kind = ""
    if tensor.isnan().any():
        kind = "NaN"
    elif tensor.isinf().any():
        kind = "inf"
    largest = tensor.nan_to_num(0, 0, 0).abs().max().item()
    print(f"{name:<8} largest finite magnitude {largest:>8,.0f}   {kind}")

# %% [markdown] tags=["answer-gradients.overflow"]
# **First inf, then NaN.** A product is too large and becomes inf. One layer later inf meets inf
# with the opposite sign in a sum, and `inf - inf` is NaN. From there on everything is NaN, the loss
# too. You *notice* the NaN. Its cause is the first inf, and the layer before it shows how near it
# was.

# %% [markdown]
# ### Exercise 5: who was first?  ●●○  10 min
#
# You get the tensors of a forward pass, in the order in which they were computed.


# %% id="exercise-gradients-culprit" tags=["exercise-gradients.culprit"]
def my_culprit(tensors):
    """Return (name, before) of the first tensor with an inf or NaN; None if all are finite.

    `before` is the largest magnitude of the tensor before it, a float; 0.0 if it is the first.

    Args:
        tensors: List of (name, FP16 tensor of any shape, never empty); a layer that runs twice
            is listed twice.
    """
    ### BEGIN SOLUTION
    before = 0.0
    for name, tensor in tensors:
        if not torch.isfinite(tensor).all():
            return name, before
        before = float(tensor.abs().max())
    return None
    ### END SOLUTION


check("gradients.culprit", my_culprit)

# %% [markdown]
# ## 6 · Five networks
#
# A fact about one network may be false for the next. Here are five:
#
# - a classifier of three linear layers,
# - a classifier of convolutions,
# - a network that marks pixels,
# - an LSTM (it reads a text letter by letter),
# - a small transformer.
#
# You compute the table now. Each row takes a second.
#
# - *Lost*: the share of activation gradients, and of weight gradients, that FP16 loses at the first
#   step.
# - *Swallowed*: the share of the weights that a step does not move, if they are stored in FP16
#   (lesson 02).
# - *Weights*: their bytes in FP16, as a share of those in FP32.
# - *Kept*: all bytes that stay from step to step, in mixed precision (weights in FP16 with an FP32
#   copy), as a share of those in FP32.

# %% id="predict-networks"
predict("gradients.networks")


# %% id="touch-networks" tags=["claim-C07", "claim-C09", "claim-C11", "claim-C22", "answer-gradients.networks"]
def kept_after_a_step(task, recipe):
    run = TrainingRun(TASKS[task], RECIPES[recipe], measure_every=0)
    run.take_step()
    return bytes_held(run.engine)


print(f"{'':<20}{'lost: activations':>19}{'weights':>9}{'swallowed':>11}{'weights':>9}{'kept':>7}")
for task in ("digits", "digits_cnn", "segmentation_small", "char_lstm", "gpt"):
    lost = [lost_at_first(task, kind) for kind in ("activation gradients", "weight gradients")]
    swallowed = TrainingRun(TASKS[task], RECIPES["FP16 no master"]).step().swallowed
    fp32 = kept_after_a_step(task, "FP32")
    mixed = kept_after_a_step(task, "O2")
    weights = mixed["weights"] / fp32["weights"]
    kept = sum(mixed.values()) / sum(fp32.values())
    print(f"{task:<20}{lost[0]:>19.2%}{lost[1]:>9.2%}{swallowed:>11.2%}{weights:>9.2f}{kept:>7.2f}")

# %% [markdown] tags=["answer-gradients.networks"]
# Read it by columns.
#
# - Many gradients are lost in one network of five, about one percent in another, next to none in
#   the rest. It depends on the loss: *segmentation_small* takes a mean over half a million numbers.
# - Where much is lost, activation gradients are lost first. In an autoencoder, which is not here,
#   it is the other way round: try `lost_at_first("autoencoder", "weight gradients")`.
# - Updates are swallowed where they are small compared with the weights. Here that is the
#   classifier with its plain SGD.
# - Weights take half the bytes (a little more where some layers stay in FP32). What is *kept* does
#   not shrink at all.

# %% [markdown]
# ## 7 · What halves, and what does not
#
# Many texts say: *mixed precision halves the memory*. Count by category. The lab counts the bytes
# that stay from step to step. A hook of torch counts the bytes that autograd saves for the backward
# pass, for three linear layers of plain torch.

# %% id="predict-memory"
predict("gradients.memory")


# %% id="touch-memory" tags=["claim-C10", "answer-gradients.memory"]
def saved_for_backward(dtype):
    """Return the bytes that autograd saves in a forward pass, without the weights."""
    hidden = (nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh())
    net = nn.Sequential(*hidden, nn.Linear(512, 10)).to(dtype)
    own = {p.untyped_storage().data_ptr() for p in net.parameters()}
    saved = {}

    def note(tensor):
        storage = tensor.untyped_storage()
        saved[storage.data_ptr()] = (tensor, storage.nbytes())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        net(torch.randn(256, 64, dtype=dtype))
    return sum(size for at, (_, size) in saved.items() if at not in own)


fp32 = kept_after_a_step("gpt", "FP32")
mixed = kept_after_a_step("gpt", "O2")
fp32["saved for backward"] = saved_for_backward(torch.float32)
mixed["saved for backward"] = saved_for_backward(torch.float16)
for category, size in fp32.items():
    ratio = f"{mixed[category] / size:.2f}" if size else "new"
    print(f"{category:<19}{size:>12,} bytes in FP32 ", end="")
    print(f"{mixed[category]:>12,} in mixed precision   {ratio}")

# %% [markdown] tags=["answer-gradients.memory"]
# **Half true.** Weights, gradients and the tensors saved for the backward pass halve. The
# optimizer's state stays as it was, and the FP32 copy of the weights is *new*. Together, these
# bytes are as many as before. So memory shrinks where activations are the larger part: large
# batches, large pictures, long texts.

# %% [markdown]
# ## 8 · Your own model
#
# Everything you saw works on any model, in any loop, also with `torch.amp`. Three lines: import
# `watch`, open a block around the training, ask for the report. It changes no value of the
# training. Put your own model and data here.

# %% id="touch-own"
torch.manual_seed(0)
data = single_digits()
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
with watch(model, every=50) as watched:
    for _ in range(101):
        rows = torch.randint(len(data.train_inputs), (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.train_inputs[rows]), data.train_targets[rows])
        (1e-4 * loss).backward()  # a term that somebody has weighted with a ten-thousandth
        optimizer.step()
watched.report()

# %% [markdown]
# Read the report from the top. First comes the verdict. This network runs in FP32, so the report
# says what FP16 *would* lose, and which scales would prevent it. Then come the scale in use beside
# its window, the loss layer by layer, and the histograms. `watched.report().save()` writes all of
# it into a folder, as one page that you can send to somebody. Then remove the `1e-4 *`, and
# compare.

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C10 training in FP16 halves the memory | half true: weights, gradients and saved activations halve; FP32 copies are added, moments stay | section 7 |
# | C23 activations or the loss can overflow, and NaN follows | true: first inf, a layer later NaN | section 5 |
# | C07 an update smaller than half the spacing at the weight is lost | true, again in 04: in one of five networks, a quarter of all | section 6 |
# | C09 a tensor in FP16 takes half the bytes of FP32 | true, again in 04: the weights of five networks | section 6 |
# | C11 the freed memory allows twice the batch or a larger model | half true, again in 04: the bytes that stay between steps do not shrink | sections 6, 7 |
# | C21 many gradients of a real network are below what FP16 can hold | true, again in 04, for some: it grows in training | sections 1, 3 |
# | C22 activation gradients underflow first | half true, again in 04: where much is lost; not in an autoencoder | section 6 |
#
# **Where you meet this.** `torch.nn.Module.register_full_backward_hook` and `Tensor.register_hook`,
# which such instruments use. `wandb.watch`, which shows *scaled* gradients under `torch.amp`; the
# `DebugUnderflowOverflow` of Hugging Face's Transformers, which names the first inf of a forward
# pass. `torch.autograd.graph.saved_tensors_hooks` and `torch.cuda.memory_summary` for memory;
# TransformerEngine's statistics of its own layers.
