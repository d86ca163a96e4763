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
# # 06 · Loss scaling
#
# **You will be able to** see which gradients FP16 loses, choose a loss scale that brings them back, and write the
# rule that every framework uses to choose it for you; then to tune that rule, to compare six frameworks' versions of it,
# and to find the faults in a broken one.
#
# About 140 minutes, in two sittings if you like (the second begins with section 7). Builds on: what FP16's bits mean (its
# smallest number is 2^-24 = 5.96e-8, its largest 65504) and what a backward pass is. Six exercises, 49 points.

# %% id="setup"
import torch

from labkit.amp import RECIPES, ScalerConfig, ScalerState, advance, initial, static
from labkit.formats import FP16
from labkit.grading import check
from labkit.instrument import fate, merge, shift, underflow, zeros_inside
from labkit.train import TASKS, TrainingRun, gradient_snapshot, one_thread, recorded, train
from labkit.widgets import BeatTheScaler, LiveTraining, ScalerPresets, ScalerTimeline, TrainingBar, UnderflowHistogram
from labkit.widgets import predict, race_figure

# %% [markdown]
# ## 1 · Where the gradients are
#
# A small network looks at canvases with scattered digits and says, for every pixel and each of the ten classes, whether
# that digit covers it. The loss is a mean over 24 canvases x 10 classes x 48 x 48 pixels.

# %% id="predict-lost"
predict("scaling.lost")

# %% [markdown]
# Now look. The bars are the gradients of one real backward pass in FP32, one bar per power of two. Behind them stands
# what FP16 can hold. **Drag the scale**, or focus it with Tab and use the arrow keys.

# %% id="touch-histogram" tags=["claim-C21"]
run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
UnderflowHistogram(gradient_snapshot(run, "activation gradients"))

# %% [markdown]
# **Why so small?** The loss is a mean, so every gradient at the output is
#
# $$\frac{\partial L}{\partial z} = \frac{\sigma(z) - y}{N}, \qquad N = 24 \cdot 10 \cdot 48 \cdot 48 = 552{,}960.$$
#
# An easy pixel has $\sigma(z) - y \approx 0.01$, which leaves 1.8e-8: below half of FP16's smallest subnormal, so it
# rounds to zero. The chain rule passes those zeros on to every layer below. Multiply the loss by $S$, and the chain rule
# multiplies *every* gradient by $S$: the whole histogram moves to the right, and nothing else changes.
#
# Is it always the activation gradients that suffer? Look at the weight gradients of the same step.

# %% id="touch-kinds" tags=["claim-C22", "claim-C33"]
for kind in ("activation gradients", "weight gradients"):
    everything = merge(gradient_snapshot(run, kind).layers.values())
    for log2_scale in (0, 3, 10):
        lost = fate(shift(everything, log2_scale), FP16).underflowed
        print(f"{kind:<21} scale 2^{log2_scale:<3} {lost:8.3%} underflow")

# %% [markdown]
# Here, yes: a weight gradient sums over all pixels that used the weight, an activation gradient belongs to one pixel.
# In a network without convolutions and without such a mean it can be the other way round.

# %% [markdown]
# ## 2 · A trap: counting zeros
#
# It is tempting to look for underflow where it happens, by counting zeros inside the FP16 backward pass.

# %% id="predict-trap"
predict("scaling.trap")


# %% id="touch-trap"
def weight_gradients(task):
    """Return the FP16 and the FP32 weight gradients of the same step: same weights, same batch."""
    run = TrainingRun(TASKS[task], RECIPES["FP16"])
    return run.gradients("weight gradients"), run.fp32_twin().gradients("weight gradients")


for name, task in (("A", "segmentation_small"), ("B", "digits")):
    in_fp16, in_fp32 = weight_gradients(task)
    print(f"{name} {task:<19} zeros in FP16 {zeros_inside(in_fp16):4.0%}   zeros in FP32 {zeros_inside(in_fp32):4.0%}")

# %% [markdown]
# B's zeros are zeros in FP32 as well. What was *lost* shows only beside the FP32 gradients of the same weights and the
# same batch, and further up than where we counted:

# %% id="touch-honest"
for name, task in (("A", "segmentation_small"), ("B", "digits")):
    run_16 = TrainingRun(TASKS[task], RECIPES["FP16"])
    lost = underflow(run_16.fp32_twin().gradients(), run_16.gradients())
    print(f"{name} {task:<19} {lost:6.1%} of the activation gradients are non-zero in FP32 and zero in FP16")

# %% [markdown]
# So every underflow number in this lab is counted against FP32. It costs a second backward pass, which is why the widgets
# measure it only every tenth step.

# %% [markdown]
# ## 3 · One step with a static scale
#
# Multiply the loss before the backward pass, divide the gradients before the optimizer's step. Where, exactly?

# %% id="predict-order"
predict("scaling.order")

# %% id="touch-order"
true_gradient = torch.tensor(2.0**-27)
arrived = (true_gradient * 2**10).half()  # FP16, scaled: 2^-17, safe
print("divide in FP16, then convert:", (arrived / 2**10).float().item())
print("convert to FP32, then divide:", (arrived.float() / 2**10).item(), "  (2^-27 =", 2.0**-27, ")")

# %% [markdown]
# The order is: scale, backward, **convert, unscale**, look for inf and NaN, step.
#
# *How exercises work.* Write your answer between the `def` line and the check, and run the cell as often as you like. At
# grading only the exercise's own cell runs, with the imports, functions, classes and constants of other cells that it uses.
#
# ### Exercise 1: one step with a static scale  ●○○  8 min
#
# `gradient_of(scale)` runs the backward pass of `scale * loss` and returns its gradient in FP16. Take one step of SGD with
# it. Two things decide whether it works: *where* you go back to FP32, and what you do when the gradient holds inf or NaN.


# %% id="exercise-scaling-static-step" tags=["exercise-scaling.static_step"]
def my_static_step(weight, gradient_of, scale, lr):
    """Return the FP32 weight after one step of SGD; unchanged if the gradient holds inf or NaN.

    weight       FP32 tensor [n]
    gradient_of  gradient_of(scale) is the FP16 gradient [n] of scale * loss
    scale, lr    numbers
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

# %% id="touch-window" tags=["claim-C34"]
run = TrainingRun(TASKS["segmentation"], RECIPES["FP16"], seed=0)
exact = run.fp32_twin().gradients()
for log2_scale in (0, 3, 7, 10, 16, 22, 28, 34, 40):
    scaled = run.gradients(scale=2.0**log2_scale)
    not_finite = sum(int((~torch.isfinite(g)).sum()) for g in scaled.values())
    print(f"scale 2^{log2_scale:<3} {underflow(exact, scaled):8.3%} lost   {not_finite:>9,} inf or NaN")

# %% [markdown]
# There is a window. Below it gradients underflow, above it they overflow, and *where* it lies depends on the network, the
# loss and the step. The popular 128 to 1024 do well in this one, though 128 stands at its edge (1.5% lost); another task
# has another window. (The last 0.012% are no underflow: FP16 rounded an activation to the other side of a ReLU, so one
# gradient went out and another came on.)
#
# The two ends differ in one important way. **Underflow is silent.** Overflow announces itself as inf or NaN. If nobody
# looks, one bad step is the end of the weights:

# %% id="touch-unchecked" tags=["claim-C36"]
from dataclasses import replace

for skip in (True, False):
    recipe = replace(RECIPES["FP16 static"], scaler=static(2.0**40, skip_on_inf=skip))
    run = TrainingRun(TASKS["segmentation_small"], recipe)
    run.step()
    healthy = all(torch.isfinite(w).all() for w in run.weights.model_weights)
    print(f"{'checked and skipped' if skip else 'nobody checks':<20} weights are {'finite' if healthy else 'ruined'}")

# %% [markdown]
# That asymmetry *is* the algorithm: start high, and let overflow say when it was too much. After an overflow, skip the
# step and multiply the scale by `backoff_factor`; after `growth_interval` clean steps in a row, try `growth_factor` times
# more.
#
# $$S \leftarrow \begin{cases} S \cdot \text{backoff} & \text{inf or NaN} \\ S \cdot \text{growth} & \text{after enough clean steps in a row} \\ S & \text{otherwise} \end{cases}$$

# %% id="touch-sawtooth" tags=["claim-C35"]
config = ScalerConfig(init_scale=2.0**16, growth_interval=4)
state = initial(config)
for step in range(1, 21):
    found_inf = state.scale > 2.0**15  # a network whose gradients overflow above 2^15
    after = advance(state, found_inf, config)
    print(
        f"{step:>2}  scale {state.scale:>7.0f}  {'inf: skip' if found_inf else 'clean':<9} tracker {after.growth_tracker}"
    )
    state = after

# %% [markdown]
# ### Exercise 2: the rule that moves the scale  ●●○  10 min
#
# `state` has `scale` and `growth_tracker` (clean steps in a row so far); `config` has `growth_factor`, `backoff_factor` and
# `growth_interval`. Inf or NaN backs off; the clean step that completes the interval grows. Either way the count starts
# again. Write it yourself, without calling `advance`.


# %% id="exercise-scaling-advance" tags=["exercise-scaling.advance"]
def my_advance(state, found_inf, config):
    """Return the ScalerState after a step whose gradients held inf or NaN (found_inf), or did not."""
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
# Your `advance` has four knobs. To try them, a scaler needs to know of each step only whether it overflows, and that follows
# from its largest gradient: at scale $S$ there is an inf where $S \cdot \max|g| \geq 65520$. So 2,000 steps of a real training
# were **recorded** once, and every scaler can be tried on them in a millisecond. (What a recording cannot show: a skipped
# step would have left slightly other weights behind.)

# %% id="predict-interval"
predict("scaling.interval")

# %% [markdown]
# The window is what you measured in section 4, step by step, here for the smaller `segmentation_small`: above it a step
# overflows and is skipped, below it more than 1% of its gradients are lost. You see the first 400 steps. **Drag the knobs**,
# one at a time; then start at 2^0, and find the interval that climbs fast enough.

# %% id="touch-timeline" tags=["claim-C34"]
ScalerTimeline(growth_interval=20)

# %% [markdown]
# The scale climbs until it overflows, steps back and tries again: once the top is reached, about one step in
# `growth_interval` is the price of *knowing* that it is the top. A longer interval skips less, and follows more slowly when
# the window moves. And it does move. As the network learns, most gradients shrink while the largest even grow: the lower edge
# rises from 2^5 to 2^18 within these 400 steps, so the static 2^10 that was right at the start is too low at the end.

# %% [markdown]
# ## 6 · Six frameworks, one training
#
# Every framework has this rule, and none has it quite alike: another start, another interval, a cap, a floor. And *hysteresis*
# (DeepSpeed, Megatron): after the scale has grown, the first overflow only skips its step, and the scale backs off from the
# second on, for a single bad batch is no reason to halve the scale for the next thousand steps.

# %% id="predict-shipped"
predict("scaling.shipped")

# %% [markdown]
# First with the same start and interval for all, so that only the rules differ: choose DeepSpeed and look through the lens at
# the steps that it skips beside torch. Then *as shipped*.

# %% id="touch-presets"
ScalerPresets()

# %% [markdown]
# Hysteresis costs one more skipped step at the top of each climb, and a batch that overflows alone costs no scale. A cap
# (apex, fastai) stays below most of the overflows, and cannot climb when the window does. As shipped, five of the six stand at
# 2^16 for their first thousand steps: these defaults are for trainings of many thousand steps, and in a short one
# `growth_interval` is yours to choose.

# %% [markdown]
# ## 7 · Live
#
# The same task with a coarser network, so that a step takes milliseconds. It starts in FP16 **without scaling**; the dark
# curve is FP32 from the same seed.

# %% id="predict-recover"
predict("scaling.recover")

# %% [markdown]
# Press *Start*. After about 100 steps, while it trains, switch scaling to *static*, later to *dynamic*. Drag the scale to
# both ends. Then *Reset*, and try it without master weights.

# %% id="touch-live"
LiveTraining(TASKS["segmentation_small"], RECIPES["FP16"], seed=0)

# %% [markdown]
# And the full-size task, three seeds of each recipe. These runs are **recorded**, not live: the title says where and when.
# You can make your own with `labkit race segmentation` in a terminal.

# %% id="touch-record" tags=["claim-C37"]
recipes = ["FP32", "FP16", "FP16 static", "FP16 dynamic", "FP16 static too high"]
records = [recorded("segmentation", recipe, seed) for recipe in recipes for seed in (0, 1, 2)]
for recipe in ("FP32", "FP16"):  # and a task that does not care, trained now, without scaling
    print(f"digits, {recipe}: accuracy {train(TASKS['digits'], RECIPES[recipe], measure_every=0).metric:.3f}")
race_figure(records)

# %% [markdown]
# Would you rather see it happen? This is the full-size task with a seed of your own. It takes about 15 seconds; the bar's
# `record` then holds the run.

# %% id="touch-own-run"
bar = TrainingBar(TASKS["segmentation"], RECIPES["FP16 dynamic"], seed=7)
bar

# %% [markdown]
# *Training diverges without scaling*, one often reads. Not here: it stalls. Nothing breaks and no NaN appears, the network
# only learns less, which is worse, because nobody is told. And on many tasks nothing happens at all: `digits`, above, is as
# good in FP16 without a scale as in FP32. Whether you need a scale is a question to your gradients.

# %% [markdown]
# ## 8 · Beat the scaler
#
# Now you are the scaler. Two networks with the same first weights see the same batches for a minute; one has your hand on its
# scale, the other a dynamic scaler (from 2^16, growing after 25 clean steps). So that the window does not stand still, the loss
# is multiplied by a weight that wanders over 28 powers of two, as when a term is faded in or a reward grows; the gradients are
# clipped to one norm, so that the optimizer notices nothing of it. FP16 does.
#
# A step is *useful* if it was taken and lost at most 1% of its gradients. You see your overflows, as every training does. What
# underflowed you see at the end, with the window. **Press Start, then ↑ and ↓.** (With *show the window* it is easy.)

# %% id="touch-game"
BeatTheScaler(seed=0)

# %% [markdown]
# The scaler is quick downwards, one power of two per skipped step, and slow upwards, one per 25 clean steps: when the window
# jumps up, it loses gradients for a hundred steps and nobody tells it. That is where you can win. Where the window only
# trembles you cannot: it never tires of probing. Compare the two losses, too: a few dozen bad steps hardly show in them,
# which is why nobody notices.

# %% [markdown]
# ## 9 · Clip at the right place
#
# Gradient clipping shortens the gradient when its norm is above `max_norm`, a number about the gradient of the *loss*. But
# after the backward pass you hold the gradient of the *scaled* loss.

# %% id="touch-clip" tags=["claim-C38"]
gradient = torch.tensor([0.3, 0.4])  # its norm is 0.5: with max_norm = 1 there is nothing to clip
scale, max_norm = 1024.0, 1.0
scaled = (gradient * scale).half()
too_early = scaled.float() * min(1.0, max_norm / float(scaled.float().norm())) / scale
in_time = (unscaled := scaled.float() / scale) * min(1.0, max_norm / float(unscaled.norm()))
print("clip, then unscale:", too_early, " norm", too_early.norm().item())
print("unscale, then clip:", in_time, " norm", in_time.norm().item())

# %% [markdown]
# Clipped too early, no gradient is ever longer than `max_norm` / 1024: this one is 512 times too short, a longer one up to
# 1024 times. Under SGD the network barely moves, a bug that looks like a bad learning rate. In torch the line that prevents
# it is `scaler.unscale_(optimizer)` before `clip_grad_norm_`.
#
# ### Exercise 3: clip at the right place  ●●○  12 min
#
# `max_norm` speaks about the gradient of the loss, all tensors together. What you are given still carries the scale, in
# FP16.


# %% id="exercise-scaling-clip" tags=["exercise-scaling.clip"]
def my_clip_step(scaled_grads, scale, max_norm):
    """Return the unscaled FP32 gradients, shortened together to a norm of at most max_norm; None on inf or NaN.

    scaled_grads  list of FP16 tensors
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
# `loop` is a training loop between two steps. A step is made of seven calls, and every wrong order does what it would really
# do. Call them in the right order: `loop.backward(batch)` once for each of `loop.batches` (it runs forward, multiplies the
# loss by the scale and *adds* to the gradient), and once each `zero_grad()`, `unscale()`, `clip()`, `step()`, `copy_back()`,
# `update()`. The last step's gradient is still there when you begin.


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
# ## 10 · Who looks, when, and how
#
# All this rests on one look at the gradients. Clipping was easy to misplace; so is everything else that works on gradients:
# clamping, normalising, adding noise, a penalty. Before the look, or after it?

# %% id="predict-hidden"
predict("scaling.hidden")


# %% id="touch-hidden" tags=["claim-C39"]
def weight_after(gradient, work, when):
    """Return a weight of 1 after a step whose gradient is worked on before or after the look for inf and NaN."""
    gradient = work(gradient) if when == "before" else gradient
    if not torch.isfinite(gradient).all():
        return "skipped"
    gradient = work(gradient) if when == "after" else gradient
    return f"{(1 - 0.1 * gradient).tolist()}"


clamp, normalise = lambda g: g.clamp(-1, 1), lambda g: g / g.norm()
overflowed, all_zero = torch.tensor([float("inf"), 0.5]), torch.zeros(2)
for name, work, gradient in (("normalise", normalise, all_zero), ("clamp", clamp, overflowed)):
    for when in ("before", "after"):
        print(f"{name:<10} {when:<7} the look: {weight_after(gradient, work, when)}")

# %% [markdown]
# *Whatever works on gradients belongs where inf and NaN are still looked for, else a bad step slips through*: half of it. What
# can **make** a NaN (0/0 in normalising) belongs before the look, so that the look sees it. What can **hide** an inf (clamping,
# `nan_to_num`) belongs after: before, the step is taken with a gradient that is wrong, and the scale never hears that it is
# too high. A norm does neither: it is inf if any gradient is. In torch the look is inside `unscale_`, before your code, so what
# makes NaN must be looked at once more.
#
# And how does one look? `isinf().any()` makes a whole tensor of booleans first. A sum is inf or NaN if any term is.

# %% id="predict-sum"
predict("scaling.sum")

# %% id="touch-sum" tags=["claim-C40"]
from timeit import repeat

bad = {
    "isinf().any()": lambda g: g.isinf().any(),
    "not isfinite().all()": lambda g: ~g.isfinite().all(),
    "sum()": lambda g: ~g.sum().isfinite(),
    "sum(dtype=float32)": lambda g: ~g.sum(dtype=torch.float32).isfinite(),
}
usual, with_nan = torch.randn(300_000).half(), torch.tensor([1.0, float("nan")]).half()
large = torch.full((300_000,), 2.0).half()  # every element is finite


def microseconds(test):
    with one_thread():
        return 1e6 * min(repeat(lambda: test(usual), number=3, repeat=9)) / 3


for name, test in bad.items():
    alarms = f"alarm at NaN: {bool(test(with_nan))!s:<6} at many finite ones: {bool(test(large))}"
    print(f"{name:<21} {microseconds(test):>6.0f} µs   {alarms}")

# %% [markdown]
# The sum is faster here, and one of its alarms is false: 300,000 gradients of 2 are all finite, and their sum in FP16 is not.
# A false alarm skips a good step and halves the scale for nothing. Sum in FP32, or ask each element. (`isinf().any()` does not
# even see NaN.) torch's own look is neither: one fused kernel that unscales and checks in the same pass.
#
# ### Exercise 5: unscale, and find inf  ●○○  8 min
#
# Between the backward pass and the optimizer's step two things happen: the scale is taken out, and somebody looks. Do both
# for a list of FP16 gradients. The step is bad if *any* element of *any* tensor is inf or NaN.


# %% id="exercise-scaling-unscale" tags=["exercise-scaling.unscale"]
def my_unscale(scaled_grads, scale):
    """Return (the unscaled gradients in FP32, found_inf).

    scaled_grads  list of FP16 tensors
    found_inf     True if any element is inf or NaN
    """
    ### BEGIN SOLUTION
    grads = [grad.float() / scale for grad in scaled_grads]
    found_inf = not all(bool(torch.isfinite(grad).all()) for grad in grads)
    return grads, found_inf
    ### END SOLUTION


check("scaling.unscale", my_unscale)

# %% [markdown]
# ### Exercise 6: repair a scaler  ●●●  12 min
#
# This scaler is short, looks right, and has **three faults**. Each of them has been shipped by somebody; two of them are in
# torch to this day. Run it, break it, then write the repaired one below. The lowest scale allowed is 1.


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
    """Return (scale, tracker, stepped); inf or NaN halves the scale, growth_interval clean steps in a row double it.

    grads  list of FP16 tensors
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
# | C34 static scales from 128 to 1024 are enough for many networks | half true: there is a window, and it moves | section 4 |
# | C35 dynamic: back off on inf, grow after enough clean steps | true | section 4 |
# | C36 a static scale that is too high ruins the weights when nobody checks | true: one step is enough | section 4 |
# | C37 without scaling training diverges or stalls | half true: it stalls here, and elsewhere nothing happens | section 7 |
# | C38 unscale before clipping | true | section 9 |
# | C39 what works on gradients belongs where inf and NaN are still looked for | half true: what makes NaN does, what hides inf does not | section 10 |
# | C40 testing the sum is faster than `isinf().any()` | half true: faster, but a sum in FP16 raises false alarms | section 10 |
#
# **Where you meet this.** `torch.amp.GradScaler` (`init_scale`, `growth_factor`, `backoff_factor`, `growth_interval`,
# `unscale_`), `apex.amp.scale_loss` (removed from apex in 2025), DeepSpeed's `DynamicLossScaler` (adds *hysteresis*), Megatron-LM's
# `DynamicGradScaler`, OneFlow's `GradScaler` for `nn.Graph`, the `MixedPrecision` callback of fastai v1
# (fastai v2 uses torch's scaler), Keras'
# `LossScaleOptimizer`. BF16 needs none of it: it has FP32's exponent range, and pays with three bits of precision.
