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

# %% [markdown] on_the_map="gradients that FP16 loses, and how a scale brings them back"
# # 06 · Loss scaling
#
# **You will be able to** see which gradients FP16 loses, and choose a loss scale that brings them
# back. You write the rule by which every framework chooses the scale for you. Then you tune that
# rule, compare six frameworks' versions of it, and find the faults in a broken one.
#
# About 140 minutes, best in two sittings (the second begins with section 7). Six exercises, 50
# points. Builds on: what a backward pass is. You can take this lesson alone. You need three facts
# from the others:
#
# - FP16 holds numbers from 2^-24 = 5.96e-8 to 65504. Smaller results *underflow*: they become 0.
#   Larger ones *overflow*: they become inf.
# - Every training here keeps its weights in FP32 between two steps (the *master weights*). The
#   network computes with a copy of them in FP16. Lesson 07 says why.
# - A *recipe* is a name for all settings of a training. `FP32`: everything in 32 bits. `FP16`: FP16
#   without a loss scale. `FP16 static`: with a scale of 2^10 that never changes. `FP16 dynamic`:
#   with a scale that changes.

# %% id="setup"
import torch

from labkit.amp import RECIPES, ScalerConfig, ScalerState, advance, initial, static
from labkit.formats import FP16
from labkit.grading import check
from labkit.instrument import fate, merge, shift, underflow, zeros_inside
from labkit.train import TASKS, TrainingRun, gradient_snapshot, one_thread, place, recorded, train
from labkit.widgets import BeatTheScaler, LiveTraining, Playground, ScalerPresets, ScalerTimeline
from labkit.widgets import TrainingBar, UnderflowHistogram, pictures_figure, predict, race_figure
from labkit.widgets import recorded_trace, scale_map_figure

# %% [markdown]
# ## 1 · Where the gradients are
#
# A small network looks at pictures with scattered digits. For every pixel and each of the ten
# classes it says whether that digit covers the pixel. The loss is a mean over 24 pictures x 10
# classes x 48 x 48 pixels.
#
# The backward pass computes two kinds of gradients. *Activation gradients* belong to what the
# layers compute, and travel from the loss back to the first layer. *Weight gradients* belong to the
# weights, and are what the optimizer uses.

# %% id="predict-lost"
predict("scaling.lost")

# %% [markdown]
# Now look. The bars are the gradients of one real backward pass in FP32, one bar for each power of
# two. Behind them you see what FP16 can hold. The picture opens at a scale of 2^10. **Drag the
# scale**, or focus it with Tab and use the arrow keys: at 2^0 = 1 you see the gradients without
# scaling. (Gradients that are exactly zero in FP32 are left out. A ReLU makes many of them, in any
# format.)

# %% id="touch-histogram" tags=["claim-C21"]
run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
UnderflowHistogram(gradient_snapshot(run, "activation gradients"), log2_scale=10)

# %% [markdown] tags=["answer-scaling.lost"]
# **Why so small?** The loss is a mean over $N$ numbers, so every gradient at the output is
#
# $$\frac{\partial L}{\partial z} = \frac{\sigma(z) - y}{N}, \qquad N = 24 \cdot 10 \cdot 48 \cdot 48 = 552{,}960.$$
#
# Here $z$ is the network's output for one pixel and one class. The function $\sigma$ makes a
# probability of it: how sure the network is that the digit covers the pixel. The truth is $y$, 0
# or 1. For an easy pixel, which the network has almost right, $\sigma(z) - y$ is about 0.01.
# Divided by $N$ that is 1.8e-8, less than half of FP16's smallest number, so it rounds to zero. The
# chain rule passes these zeros on to every layer before.
#
# Now multiply the loss by $S$, the **loss scale**. By the chain rule *every* gradient is multiplied
# by $S$. The whole histogram moves to the right, and nothing else changes.

# %% [markdown]
# Is it always the activation gradients that suffer? Look at the weight gradients of the same step.

# %% id="touch-kinds" tags=["claim-C22", "claim-C33", "answer-scaling.lost"]
for kind in ("activation gradients", "weight gradients"):
    everything = merge(gradient_snapshot(run, kind).layers.values())
    for log2_scale in (0, 3, 10):
        lost = fate(shift(everything, log2_scale), FP16).underflowed
        print(f"{kind:<21} scale 2^{log2_scale:<3} {lost:8.3%} underflow")

# %% [markdown]
# Here, yes. A weight gradient is a sum over all pixels that used the weight. An activation gradient
# belongs to one pixel, so it is much smaller. In a network without convolutions and without such a
# mean it can be the other way round.

# %% [markdown]
# ## 2 · A trap: counting zeros
#
# You want to know how much underflows. It is tempting to count zeros inside the FP16 backward pass.

# %% id="predict-trap"
predict("scaling.trap")


# %% id="touch-trap" tags=["answer-scaling.trap"]
def weight_gradients(task):
    """Return the FP16 and the FP32 weight gradients of the same step: same weights, same batch."""
    run = TrainingRun(TASKS[task], RECIPES["FP16"])
    twin = run.fp32_twin()
    return run.next_gradients("weight gradients"), twin.next_gradients("weight gradients")


for name, task in (("A", "segmentation_small"), ("B", "digits")):
    in_fp16, in_fp32 = weight_gradients(task)
    zeros_16 = zeros_inside(in_fp16)
    zeros_32 = zeros_inside(in_fp32)
    print(f"{name} {task:<19} zeros in FP16 {zeros_16:4.0%}   zeros in FP32 {zeros_32:4.0%}")

# %% [markdown] tags=["answer-scaling.trap"]
# B's zeros are zeros in FP32 as well: nothing was lost there. To see what was *lost*, compare with
# the FP32 gradients of the same weights and the same batch. And look at the activation gradients,
# not only at the weight gradients:

# %% id="touch-honest" tags=["answer-scaling.trap"]
for name, task in (("A", "segmentation_small"), ("B", "digits")):
    run_16 = TrainingRun(TASKS[task], RECIPES["FP16"])
    lost = underflow(run_16.fp32_twin().next_gradients(), run_16.next_gradients())
    print(f"{name} {task:<19} {lost:6.1%} of the activation gradients ", end="")
    print("are non-zero in FP32 and zero in FP16")

# %% [markdown]
# So every underflow number in this lab is counted against FP32. That costs a second backward pass.
# So the widgets measure it only every tenth step.

# %% [markdown]
# ## 3 · One step with a static scale
#
# Multiply the loss before the backward pass. Divide the gradients before the optimizer's step: this
# is called *unscale*. Where exactly do you divide?

# %% id="predict-order"
predict("scaling.order")

# %% id="touch-order" tags=["answer-scaling.order"]
true_gradient = torch.tensor(2.0**-27)
arrived = (true_gradient * 2**10).half()  # FP16, scaled: 2^-17, safe
print("divide in FP16, then cast:", (arrived / 2**10).float().item())
print("cast to FP32, then divide:", (arrived.float() / 2**10).item(), "  (2^-27 =", 2.0**-27, ")")

# %% [markdown] tags=["answer-scaling.order"]
# The order is: scale, backward, **cast to FP32, unscale**, check for inf and NaN, step.

# %% [markdown]
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses. Do not change the arguments of your function:
# sort or overwrite a copy.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("scaling.static_step")`: you
# get three hints, one by one, at no cost.*
#
# ### Exercise 1: one step with a static scale  ●○○  8 min
#
# `gradient_of(scale)` runs the backward pass of `scale * loss` and returns its gradient in FP16.
# Take one step of SGD with it: weight minus `lr` times gradient. Two things decide whether it
# works: *where* you cast to FP32, and what you do when the gradient holds inf or NaN.


# %% id="exercise-scaling-static-step" tags=["exercise-scaling.static_step"]
def my_static_step(weight, gradient_of, scale, lr):
    """Return the FP32 weight after one step of SGD; unchanged if the gradient holds inf or NaN.

    Args:
        weight: FP32 tensor [n]; it stays as it is.
        gradient_of: gradient_of(scale) is the FP16 gradient [n] of scale * loss.
        scale: A number.
        lr: A number.
    """
    ### BEGIN SOLUTION
    gradient = gradient_of(scale).float() / scale
    if not torch.isfinite(gradient).all():
        return weight
    return weight - lr * gradient
    ### END SOLUTION


check("scaling.static_step", my_static_step)

# %% [markdown]
# ## 4 · How high is too high?

# %% id="predict-too-high"
predict("scaling.too_high")

# %% id="touch-window" tags=["claim-C34", "answer-scaling.too_high"]
run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
exact = run.fp32_twin().next_gradients()
for log2_scale in (0, 3, 7, 10, 16, 22, 28, 34, 40):
    scaled = run.next_gradients(scale=2.0**log2_scale)
    not_finite = sum(int((~torch.isfinite(g)).sum()) for g in scaled.values())
    lost = underflow(exact, scaled)
    print(f"scale 2^{log2_scale:<3} {lost:8.3%} lost   {not_finite:>9,} inf or NaN")

# %% [markdown] tags=["answer-scaling.too_high"]
# There is a **window** of scales that work. Below it gradients underflow, above it they overflow.
# *Where* it lies depends on the network, the loss and the step. The popular scales 128 to 1024 do
# well here, though 128 is at the lower edge: it loses 1.5%. Another task has another window. (The
# 0.012% that stay at every high scale are not underflow. FP16 rounded some inputs of a ReLU from
# just above zero to zero, or the other way round: one gradient became zero, and another one
# appeared.)
#
# The two ends differ in one important way. **Underflow is silent.** Overflow can be seen: there is
# an inf or a NaN. Without a check, one step with inf ruins the weights:

# %% id="touch-unchecked" tags=["claim-C36"]
from dataclasses import replace

for skip in (True, False):
    recipe = replace(RECIPES["FP16 static"], scaler=static(2.0**40, skip_on_inf=skip))
    run = TrainingRun(TASKS["segmentation_small"], recipe)
    run.step()
    finite = all(torch.isfinite(w).all() for w in run.weights.model_weights)
    name = "checked and skipped" if skip else "nobody checks"
    print(f"{name:<20} weights are {'finite' if finite else 'ruined'}")

# %% [markdown]
# All frameworks have a rule that uses this. The part that applies it is called the *scaler*. It
# starts with a high scale. An overflow says that the scale is too high: the scaler skips the step,
# and multiplies the scale by `backoff_factor` (0.5 in most of them). Nothing says that the scale is
# too low. So after `growth_interval` clean steps in a row (steps without inf or NaN), it tries a
# higher one, and multiplies by `growth_factor` (2 in most of them).
#
# $$S \leftarrow \begin{cases} S \cdot \text{backoff} & \text{inf or NaN} \\ S \cdot \text{growth} & \text{after enough clean steps in a row} \\ S & \text{otherwise} \end{cases}$$

# %% id="touch-sawtooth" tags=["claim-C35"]
config = ScalerConfig(init_scale=2.0**16, growth_interval=4)
state = initial(config)
for step in range(1, 21):
    found_inf = state.scale > 2.0**15  # a network whose gradients overflow above 2^15
    after = advance(state, found_inf, config)
    seen = "inf: skip" if found_inf else "clean"
    print(f"{step:>2}  scale {state.scale:>7.0f}  {seen:<9} tracker {after.growth_tracker}")
    state = after

# %% [markdown]
# ### Exercise 2: the rule that moves the scale  ●●○  10 min
#
# `state` has `scale` and `growth_tracker` (clean steps in a row so far); `config` has
# `growth_factor`, `backoff_factor` and `growth_interval`. Inf or NaN backs off; the clean step that
# completes the interval grows. Either way the count starts again. A factor may be 1: then the scale
# stays, and the count starts again. (The lab's own scaler refuses such a factor.)


# %% id="exercise-scaling-advance" tags=["exercise-scaling.advance"]
def my_advance(state, found_inf, config):
    """Return the ScalerState after a step; found_inf: whether its gradients held inf or NaN."""
    ### BEGIN SOLUTION
    if found_inf:
        return ScalerState(scale=state.scale * config.backoff_factor, growth_tracker=0)
    if state.growth_tracker + 1 >= config.growth_interval:
        return ScalerState(scale=state.scale * config.growth_factor, growth_tracker=0)
    return ScalerState(scale=state.scale, growth_tracker=state.growth_tracker + 1)
    ### END SOLUTION


check("scaling.advance", my_advance)

# %% [markdown]
# ## 5 · Four knobs
#
# Your `advance` has four knobs: the first scale, the two factors, and the interval. To try them, a
# scaler needs to know only one thing of each step: does it overflow? That follows from the step's
# largest gradient: at scale $S$ there is an inf where $S \cdot \max|g| \geq 65520$.
#
# So 2,000 steps of a real training were **recorded** once, and every scaler can be tried on them in
# a millisecond. (One thing a recording cannot show: after a skipped step the weights would be
# slightly different.)
#
# First, how wide is the window? Enter a number: type it, or slide on the line.

# %% id="predict-window"
trace = recorded_trace()
predict("scaling.window", lambda: 65520 / trace.largest[0] / 2 ** trace.keeps_from[0])

# %% id="predict-interval"
predict("scaling.interval")

# %% [markdown]
# You know the window from section 4. Here it is drawn step by step, for the smaller task
# `segmentation_small`. Above it a step overflows and is skipped. Below it more than 1% of its
# gradients are lost. You see the first 400 steps.
#
# **Drag the knobs**, one at a time. Then start at 2^0, and find the longest interval with which the
# scale still climbs into the window.

# %% id="touch-timeline" tags=["claim-C34"]
ScalerTimeline(growth_interval=20)

# %% [markdown] tags=["answer-scaling.interval"]
# The scale climbs until it overflows, goes down one power of two, and tries again. At the top,
# about one step in `growth_interval` is skipped. That is the price for *knowing* where the top is.
# A longer interval skips fewer steps, but it follows more slowly when the window moves.
#
# And the window does move. While the network learns, most gradients become smaller, and a few
# become larger. The lower edge of the window rises from 2^5 to about 2^18 within these 400 steps. A
# static scale of 2^10 is right at the start, and too low at the end.

# %% [markdown]
# ## 6 · Six frameworks, one training
#
# Every framework has this rule, and each has it a little differently: another start, another
# interval, a largest scale (*cap*) or a smallest one (*floor*). Two of them, DeepSpeed and
# Megatron, have *hysteresis* as well. After the scale has grown, the first overflow only skips its
# step. Only from the second one on the scale is lowered. The idea: a single bad batch should not
# halve the scale for the next thousand steps.
#
# Two names need an explanation. *apex* is NVIDIA's library; its mixed precision was removed
# in 2025. *fastai* is version 1 here: version 2 uses torch's scaler.

# %% id="predict-shipped"
predict("scaling.shipped")

# %% [markdown]
# First all six have the same start and the same interval, so that only the rules differ. Choose
# DeepSpeed. The lower picture is a lens: it enlarges 60 steps. Look for those that DeepSpeed skips
# and torch does not. Then choose *as shipped*.

# %% id="touch-presets"
ScalerPresets()

# %% [markdown] tags=["answer-scaling.shipped"]
# **What the rules do.** Hysteresis costs one more skipped step at the top of each climb. In return,
# a batch that overflows alone does not lower the scale. A cap (apex, fastai) keeps the scale below
# most overflows, but then it cannot follow when the window rises. As shipped, five of the six stay
# at 2^16 for their first thousand steps. These defaults are made for trainings of many thousand
# steps; in a short one, choose `growth_interval` yourself.
#
# As shipped, torch runs 1,651 of the 2,000 steps at a scale that loses gradients. Is that the
# interval's fault? Look at the window first. In which steps is there *no* scale that works, because
# the lower edge is above the upper edge?

# %% id="touch-no-window" tags=["claim-C34", "answer-scaling.shipped"]
intervals = {f"{n:,}": ScalerConfig(growth_interval=n) for n in (2000, 200, 50)}
scalers = ScalerPresets(presets=intervals)
scalers.alike = False  # each with its own interval, over all recorded steps
overflows_from = 65520 / torch.tensor(scalers.trace.largest)  # the upper edge, step by step
loses_below = 2.0 ** torch.tensor(scalers.trace.keeps_from)  # the lower edge
no_window = loses_below >= overflows_from
first = 1 + int(no_window.nonzero()[0])
print(f"{int(no_window.sum()):,} of {len(no_window):,} steps have no window; ", end="")
print(f"the first is step {first}\n")

print("growth_interval   skipped   steps that lose gradients", end="")
print("   no scale could help   a higher scale could")
for interval, replay in scalers.replays.items():
    lossy = torch.tensor(replay.lossy) == 1
    hopeless = int((lossy & no_window).sum())
    saved = int((lossy & ~no_window).sum())
    print(f"{interval:>15}{replay.skips:>10}{int(lossy.sum()):>28,}{hopeless:>22,}{saved:>23,}")

# %% [markdown] tags=["answer-scaling.shipped"]
# **The window closes.** In step 780 it is empty for the first time, and after step 970 it is empty
# in every step. The largest gradients are then more than 2^40 times as large as the smallest 1%,
# and FP16 has only 40 powers of two from its smallest number to its largest. No scaler can help
# there, only another format: BF16 has the exponents of FP32.
#
# So of torch's 1,651 steps that lose gradients 1,148 are not its fault. The other 503 are: a higher
# scale would have kept them, and the interval of 2,000 never tried one. With an interval of 50 only
# 41 of them remain, at the price of 27 skipped steps. Count what can be helped before you turn a
# knob.
#
# (A step that "loses gradients" here loses more than 1% of them. Section 6 of lesson 08 shows that
# this is a warning: a training can lose many gradients and still learn well.)

# %% [markdown]
# ## 7 · Live
#
# A small network paints a picture of 32 x 32 pixels. It reads where a pixel is, and answers how
# bright it is. A step takes milliseconds. The training starts in FP16 **without scaling**. The
# curve *FP32* has the same seed: the same first weights and the same batches.
#
# The picture is dark: its brightness is about 2^-14. So the last layer multiplies by 2^-14, the
# *unit* of the brightness. The error has this unit too. The chain rule multiplies it by the last
# layer's factor, so a gradient before the last layer holds the small number 2^-14 twice. For a
# pixel whose error is $e$ units,
#
# $$\frac{\partial L}{\partial z} = 2 \cdot (2^{-14} e) \cdot 2^{-14} = 2^{-27} e.$$
#
# Here $z$ is what the last layer multiplies, and $L$ the sum of the squared errors. In brackets is
# the error; the last factor is that of the layer.

# %% id="predict-recover"
predict("scaling.recover")

# %% [markdown] site="First draw what you expect. Press *Draw what you expect*, and drag a line across the losses: after some hundred steps, the scale is switched on. Where does the loss of FP16 go then? Now press *Play*: a recorded training runs again, FP16 without a scale beside FP32. While it plays, switch *Loss scaling* to *static*, and compare the curve with your line. In the lab you train it yourself."
# First **draw what you expect**. Press *Draw what you expect*, and drag a line across the losses
# (the words below the picture name the keys). After about 200 steps you will switch the scale on.
# Where does the loss of FP16 go then?
#
# Now press *Start*. The training draws over your line. On the right are the gradients, and below
# them the pictures that the networks paint. Then try this:
#
# 1. After about 200 steps, while it trains, switch scaling to *static*. Some hundred steps later,
#    switch it to *dynamic*.
# 2. Drag the handle under the bars to the left end, and wait there for some steps. Then drag it to
#    the right end.
# 3. Look at the colours around your scale, in the lower panel. They are a map. In the lower
#    coloured part, gradients are lost. In the upper one, they overflow.
# 4. Click on a curve to go back to that step, and try another setting.
# 5. Press *Reset*, and try it without master weights.

# %% id="touch-live"
LiveTraining(TASKS["painted_picture"], RECIPES["FP16"], seed=0, sketch=True)

# %% [markdown] tags=["answer-scaling.recover"]
# **Without a scale nothing is painted.** An error of less than 4 units gives a gradient below
# 2^-25, which FP16 rounds to zero. So not one weight moves. With a scale the gradients are back at
# once: within 40 steps the loss falls to less than half. At a scale of 1 they are zero again. At
# 2^30 the largest ones overflow, and every step is skipped.

# %% [markdown]
# What did the networks paint? Here are three runs of this seed, **recorded**.

# %% id="touch-pictures" tags=["answer-scaling.recover"]
recipes = ("FP32", "FP16", "FP16 static")
pictures_figure([recorded("painted_picture", recipe, 0) for recipe in recipes])

# %% [markdown]
# Was that one lucky seed? Here are five seeds of each recipe, recorded. *R2* is the share of the
# picture's variance that the network has learned: 1 is the whole picture, 0 is a page of one shade.

# %% id="touch-five-seeds" tags=["answer-scaling.recover"]
print("               R2 of five seeds                     largest share lost")
for recipe in ("FP32", "FP16", "FP16 static", "FP16 dynamic"):
    five = [recorded("painted_picture", recipe, seed) for seed in range(5)]
    lost = max(step.underflow or 0 for each in five for step in each.steps)
    print(f"{recipe:<14}", *(f"{each.metric:6.2f}" for each in five), f"{lost:18.1%}")

# %% [markdown] tags=["answer-scaling.recover"]
# The static scale of 2^10 loses up to 42% of the gradients in a step, and it does no harm: the
# large ones survive. Lesson 08 comes back to this.

# %% [markdown]
# **Which scale is safe, and when?** The exponents of the gradients, taken every ten steps, answer
# this for all scales at once. Here a dynamic scaler trains 400 steps, in a few seconds. Each column
# of the picture is a step, each row a scale.

# %% id="touch-map" tags=["answer-scaling.recover"]
watched = {"watch": ["activation gradients"], "watch_every": 10}
mapped = train("painted_picture", "FP16 dynamic", steps=400, **watched)
scale_map_figure(mapped)

# %% [markdown] tags=["answer-scaling.recover"]
# The band without colour is the window of section 4. The scaler starts inside it and climbs until a
# gradient overflows. There it stays, with a skipped step now and then. Below the window nothing
# would tell it that gradients are lost.

# %% [markdown]
# Next is the task of section 1 in full size, with three seeds of each recipe. These runs are
# **recorded** too: the title says where and when. You can make your own with
# `labkit compare segmentation` in a terminal, or on a GPU with `labkit compare segmentation_gpu`.
# *Dice* measures how well the pixels that were found overlap with the true ones: 1 is perfect, 0 is
# no overlap. `FP16 static too high` has a scale of 2^26.

# %% id="touch-record" tags=["claim-C37"]
recipes = ["FP32", "FP16", "FP16 static", "FP16 dynamic", "FP16 static too high"]
records = [recorded("segmentation", recipe, seed) for recipe in recipes for seed in (0, 1, 2)]
for recipe in ("FP32", "FP16"):  # and a task that does not care, trained now, without scaling
    own = train(TASKS["digits"], RECIPES[recipe], measure_every=0, device=place())
    print(f"digits, {recipe}: accuracy {own.metric:.3f}, on {own.device}")
race_figure(records)

# %% [markdown]
# Do you want to see it happen? This is the task of section 1 with a seed that you choose, on your
# GPU if you have one. It takes about 15 seconds; the bar's `record` then holds the run. At its end
# the lab times steps of FP32 and of FP16. On a CPU, FP16 products are emulated, so no speed can be
# gained.

# %% id="touch-own-run"
bar = TrainingBar(TASKS["segmentation"], RECIPES["FP16 dynamic"], seed=7)
bar

# %% [markdown] tags=["answer-scaling.recover"]
# Many texts say: *training diverges without scaling*, so the loss becomes larger and larger. It
# does not here. The picture and the segmentation both **stall**. There is no error and no NaN, but
# the network learns nothing. The picture's R2 is at most 0.05, where FP32 reaches 0.96. In all
# three recorded runs of the segmentation Dice is 0.000, where FP32 reaches 0.67. This is worse than
# a crash, because there is no message.

# %% [markdown]
# On many tasks nothing happens at all. `digits`, above, is as good in FP16 without a scale as in
# FP32. Whether you need a scale depends on your gradients.

# %% [markdown]
# Now try freely. Every step of this skips: the scale is too high. Drag the handle under the layers
# until steps happen, and find both edges of the window. Then choose other problems. All of it is
# computed in this page.

# %% id="touch-freely"
Playground("too_high")

# %% [markdown]
# ## 8 · Beat the scaler
#
# Now you are the scaler. Two networks with the same first weights see the same batches for a
# minute. You choose the scale of one. A dynamic scaler chooses the scale of the other (it starts at
# 2^16 and grows after 25 clean steps).
#
# To make it interesting, the window moves. The loss is multiplied by a factor, which changes from
# step to step within 28 powers of two. This happens in real trainings too, when a term of the loss
# is slowly switched on. Before the optimizer's step all gradients are shortened to the same length,
# so the optimizer sees no change. But the backward pass in FP16 does: the factor moves its
# gradients.
#
# A step is *useful* if it was taken and lost at most 1% of its gradients. You see your overflows,
# as in every training. You see the underflows at the end, with the window.

# %% [markdown] site="**Press Start, then ↑ and ↓.** (With *show the window* it is easy.) Here both of you meet gradients that were recorded. Nothing is trained, so there are no losses to compare."
# **Press Start, then ↑ and ↓.** (With *show the window* it is easy.)

# %% id="touch-game"
BeatTheScaler(seed=0)

# %% [markdown]
# The scaler is quick on the way down: one power of two for each skipped step. It is slow on the way
# up: one power of two for 25 clean steps. When the window jumps up, the scaler loses gradients for
# a hundred steps, and it cannot see that. There you can win. Where the window rests, there is
# little to win: only now and then the scaler tries a higher scale, and skips a step.
#
# Compare the two losses, too. A few dozen steps that lose gradients hardly change the loss. So
# people do not notice.

# %% [markdown]
# ## 9 · Clip at the right place
#
# Gradient clipping shortens the gradient when its norm is above `max_norm`. That number is about
# the gradient of the *loss*. But after the backward pass you have the gradient of the *scaled*
# loss.

# %% id="touch-clip" tags=["claim-C38"]
gradient = torch.tensor([0.3, 0.4])  # its norm is 0.5: with max_norm = 1 there is nothing to clip
scale, max_norm = 1024.0, 1.0
scaled = (gradient * scale).half()
too_early = scaled.float() * min(1.0, max_norm / float(scaled.float().norm())) / scale
unscaled = scaled.float() / scale
in_time = unscaled * min(1.0, max_norm / float(unscaled.norm()))
print("clip, then unscale:", too_early, " norm", too_early.norm().item())
print("unscale, then clip:", in_time, " norm", in_time.norm().item())

# %% [markdown]
# Clipped too early, no gradient can be longer than `max_norm` / 1024. This one is 512 times too
# short; a longer one can be up to 1024 times too short. With SGD the network then barely moves, and
# it looks like a bad learning rate. In torch one line prevents it: `scaler.unscale_(optimizer)`
# before `clip_grad_norm_`.
#
# ### Exercise 3: clip at the right place  ●●○  12 min
#
# `max_norm` is about the gradient of the loss, all tensors together. The gradients that you get
# still have the scale, in FP16.


# %% id="exercise-scaling-clip" tags=["exercise-scaling.clip"]
def my_clip_step(scaled_grads, scale, max_norm):
    """Return the unscaled FP32 gradients, shortened together to a norm of at most max_norm.

    Return None if a gradient holds inf or NaN.

    Args:
        scaled_grads: List of FP16 tensors of any shape, () and (0,) among them.
    """
    ### BEGIN SOLUTION
    grads = [grad.float() / scale for grad in scaled_grads]
    if not all(torch.isfinite(grad).all() for grad in grads):
        return None
    norm = torch.sqrt(sum((grad**2).sum() for grad in grads))
    factor = min(1.0, max_norm / (float(norm) + 1e-6))
    return [grad * factor for grad in grads]
    ### END SOLUTION


check("scaling.clip", my_clip_step)

# %% [markdown]
# ### Exercise 4: order the loop  ●●○  8 min
#
# `loop` is a training loop between two steps. A step is made of seven calls, and every wrong order
# has its real effect. Call them in the right order:
#
# - `loop.backward(batch)` once for each of `loop.batches`. It runs forward, multiplies the loss by
#   the scale and *adds* to the gradient.
# - each of these once: `zero_grad()`, `unscale()`, `clip()`, `step()`, `copy_back()` (it copies the
#   FP32 master weights into the FP16 model), `update()` (it moves the scale).
#
# The last step's gradient is still there when you begin.


# %% id="exercise-scaling-order" tags=["exercise-scaling.order"]
def my_training_step(loop):
    """Do one training step with the calls of `loop`, and return it."""
    ### BEGIN SOLUTION
    loop.zero_grad()
    for batch in loop.batches:
        loop.backward(batch)
    loop.unscale()
    loop.clip()
    loop.step()
    loop.copy_back()
    loop.update()
    ### END SOLUTION
    return loop


check("scaling.order", my_training_step)

# %% [markdown]
# ## 10 · The check for inf: when, and how
#
# Everything here depends on one check of the gradients for inf and NaN. It was easy to put clipping
# in the wrong place. The same is true of everything else that works on gradients: clamping,
# normalising, adding noise, a penalty. Does it belong before the check, or after it?

# %% id="predict-hidden"
predict("scaling.hidden")


# %% id="touch-hidden" tags=["claim-C39", "answer-scaling.hidden"]
def weight_after(gradient, work, when):
    """Return a weight of 1 after a step; `work` changes its gradient before or after the check."""
    gradient = work(gradient) if when == "before" else gradient
    if not torch.isfinite(gradient).all():
        return "skipped"
    gradient = work(gradient) if when == "after" else gradient
    return f"{(1 - 0.1 * gradient).tolist()}"


def clamp(gradient):
    return gradient.clamp(-1, 1)


def normalise(gradient):
    return gradient / gradient.norm()


overflowed = torch.tensor([float("inf"), 0.5])
all_zero = torch.zeros(2)
for name, work, gradient in (("normalise", normalise, all_zero), ("clamp", clamp, overflowed)):
    for when in ("before", "after"):
        print(f"{name:<10} {when:<7} the check: {weight_after(gradient, work, when)}")

# %% [markdown] tags=["answer-scaling.hidden"]
# People say: *code that changes gradients must run before the check for inf and NaN, or an inf gets
# through*. That is half true.
#
# | your code | for example | its place | why |
# |---|---|---|---|
# | can **make** a NaN | normalising: 0 / 0 | before the check | so that the check sees the NaN |
# | can **hide** an inf | `clamp`, `nan_to_num` | after the check | before it, inf becomes a finite number: a wrong step is taken, and the scale stays too high |
# | does neither | a norm: it is inf if any gradient is | anywhere | |
#
# In torch the check is inside `unscale_`, which comes before your code. So if your code can make a
# NaN, check once more.

# %% [markdown]
# And how is the check done? `isinf().any()` first makes a whole tensor of booleans. A sum needs
# only one number: it is inf or NaN if any of its terms is.

# %% id="predict-sum"
predict("scaling.sum")

# %% id="touch-sum" tags=["claim-C40", "answer-scaling.sum"]
from timeit import repeat

bad = {
    "isinf().any()": lambda g: g.isinf().any(),
    "not isfinite().all()": lambda g: ~g.isfinite().all(),
    "sum()": lambda g: ~g.sum().isfinite(),
    "sum(dtype=float32)": lambda g: ~g.sum(dtype=torch.float32).isfinite(),
}
usual = torch.randn(300_000).half()
with_nan = torch.tensor([1.0, float("nan")]).half()
large = torch.full((300_000,), 2.0).half()  # every element is finite


def microseconds(test):
    with one_thread():
        return 1e6 * min(repeat(lambda: test(usual), number=3, repeat=9)) / 3


for name, test in bad.items():
    alarms = f"alarm at NaN: {bool(test(with_nan))!s:<6} at many finite ones: {bool(test(large))}"
    print(f"{name:<21} {microseconds(test):>6.0f} µs   {alarms}")

# %% [markdown] tags=["answer-scaling.sum"]
# The sum is faster here, and one of its alarms is false. 300,000 gradients of 2 are all finite, and
# their sum in FP16 is not. A false alarm skips a clean step and halves the scale for nothing. So
# add up in FP32, or check each element. (`isinf().any()` does not even see NaN.) torch does
# neither: one kernel unscales and checks in the same pass.

# %% [markdown]
# ### Exercise 5: unscale, and find inf  ●○○  8 min
#
# Between the backward pass and the optimizer's step two things happen: the gradients are divided by
# the scale, and they are checked. Do both for a list of FP16 gradients. The step is bad if *any*
# element of *any* tensor is inf or NaN. Here it is bad too if an unscaled gradient is larger than
# `limit` in magnitude: some large trainings skip such steps.


# %% id="exercise-scaling-unscale" tags=["exercise-scaling.unscale"]
def my_unscale(scaled_grads, scale, limit):
    """Return (the unscaled gradients in FP32, found_inf).

    found_inf is True if any element is inf or NaN, or larger than the limit.

    Args:
        scaled_grads: List of FP16 tensors.
        limit: The largest magnitude of a good gradient, after unscaling; inf for none.
    """
    ### BEGIN SOLUTION
    grads = [grad.float() / scale for grad in scaled_grads]
    finite = all(bool(torch.isfinite(grad).all()) for grad in grads)
    found_inf = not finite or any(bool((grad.abs() > limit).any()) for grad in grads)
    return grads, found_inf
    ### END SOLUTION


check("scaling.unscale", my_unscale)

# %% [markdown]
# ### Exercise 6: repair a scaler  ●●●  12 min
#
# This scaler is short, looks right, and has **three faults**. All three have been in real
# frameworks; two of them are in torch to this day. Run it, break it, then write the repaired one
# below. The lowest scale allowed is 1; there is no highest.


# %% id="touch-faulty"
def faulty_step(scale, tracker, grads, growth_interval):
    """Return (scale, tracker, stepped) after a step with these scaled FP16 gradients."""
    total = sum(grad.sum() for grad in grads)
    if not torch.isfinite(total):
        return scale * 0.5, 0, False
    tracker = tracker + 1
    if tracker == growth_interval:
        return scale * 2.0, 0, True
    return scale, tracker, True


faulty_step(1024.0, 9, [torch.ones(3).half()], growth_interval=10)


# %% id="exercise-scaling-repair" tags=["exercise-scaling.repair"]
def my_repaired_step(scale, tracker, grads, growth_interval):
    """Return (scale, tracker, stepped) after a step.

    Inf or NaN halves the scale; growth_interval clean steps in a row double it.

    Args:
        grads: List of FP16 tensors.
    """
    ### BEGIN SOLUTION
    finite = all(bool(torch.isfinite(grad).all()) for grad in grads)
    if not finite:
        return max(scale * 0.5, 1.0), 0, False
    tracker = tracker + 1
    if tracker >= growth_interval:
        return scale * 2.0, 0, True
    return scale, tracker, True
    ### END SOLUTION


check("scaling.repair", my_repaired_step)

# %% [markdown]
# ## What was settled
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C21 many gradients of a real network are below what FP16 can hold | true, for this one | section 1 |
# | C22 activation gradients underflow first | half true: here about 80% against 2%; it depends on the network | section 1 |
# | C33 scale the loss, and by the chain rule every gradient is scaled | true: the histogram shifts | section 1 |
# | C34 static scales from 128 to 1024 are enough for many networks | half true: there is a window, it moves, and it can close | sections 4, 6 |
# | C35 dynamic: back off on inf, grow after enough clean steps | true | section 4 |
# | C36 a static scale that is too high ruins the weights without a check | true: one step is enough | section 4 |
# | C37 without scaling training diverges or stalls | half true: it stalls here, and elsewhere nothing happens | section 7 |
# | C38 unscale before clipping | true | section 9 |
# | C39 what works on gradients belongs where inf and NaN are still checked for | half true: code that makes NaN does, code that hides inf does not | section 10 |
# | C40 testing the sum is faster than `isinf().any()` | half true: faster, but a sum in FP16 raises false alarms | section 10 |
#
# **Where you meet this.** `torch.amp.GradScaler` (`init_scale`, `growth_factor`, `backoff_factor`,
# `growth_interval`, `unscale_`); `apex.amp.scale_loss` (removed from apex in 2025); DeepSpeed's
# `DynamicLossScaler` (adds *hysteresis*); Megatron-LM's `DynamicGradScaler`; OneFlow's `GradScaler`
# for `nn.Graph`; the `MixedPrecision` callback of fastai v1 (fastai v2 uses torch's scaler); Keras'
# `LossScaleOptimizer`. BF16 needs none of this. It has FP32's exponent range, but three significant
# bits fewer than FP16.
