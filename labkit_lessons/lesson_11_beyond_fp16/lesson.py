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

# %% [markdown] on_the_map="BF16: weights and averages that do not change, two programs that disagree, a model that FP16 cannot run"
# # 11 · Beyond FP16: BF16
#
# **You will be able to** say what BF16 loses that FP16 keeps, and the reverse. You find weights
# that never change, texts that two programs judge differently, and the layer at which FP16 fails.
#
# About 60 minutes in three parts; none needs another. Three exercises, 15 points. Builds on: the
# effect of rounding on small updates (lesson 02), master weights (lesson 07). You need three facts
# from these lessons:
#
# - FP16 has 11 significant bits, and its largest number is 65504. **BF16** has the range of FP32,
#   but only 8 significant bits.
# - An update is *swallowed* if it is smaller than half the distance between two numbers: the weight
#   does not change.
# - A *recipe* says in which formats a network is trained. All recipes of this lesson are in
#   `RECIPES`.
#
# Everything is emulated, number by number, and exact to the bit. So it is slow. Results that took
# longer than some seconds were **recorded** (torch 2.13, CPU, seeds 0, 1 and 2). Each part also
# names published results that were *not* reproduced here.

# %% id="setup"
import copy
import math
from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from labkit.amp import RECIPES, Engine
from labkit.formats import BF16, FP32
from labkit.grading import check
from labkit.interop import round_tensor
from labkit.train import TASKS
from labkit.widgets import SwallowedUpdates, predict

# %% [markdown]
# ## 1 · The optimizer that cannot forget
#
# *BF16 weights that never change, and an average of Adam that never falls.*
#
# A network has learned to read digits. Now the pictures are turned by 90 degrees. The network is
# frozen, and only *gains* are learned: each hidden number is multiplied by its gain. Each gain
# begins at exactly 1.0. (Fine-tuning methods with few parameters do this.)
#
# The gains are stored in BF16, without FP32 master weights. Adam's learning rate is 0.001.

# %% id="predict-gains"
predict("beyond.gains")


# %% id="gains"
class Gained(nn.Module):
    """A frozen network with a learned gain for each hidden number."""

    def __init__(self):
        super().__init__()
        self.net = TASKS["fine_tuning"].make_model().requires_grad_(False)
        self.gains = nn.ParameterList([nn.Parameter(torch.ones(128)) for _ in range(4)])

    def forward(self, x):
        gains = iter(self.gains)
        for layer in self.net:
            x = layer(x) * next(gains) if isinstance(layer, nn.ReLU) else layer(x)
        return x


# %% id="touch-gains" tags=["answer-beyond.gains"]
def learn_gains(recipe, steps=60):
    """Return the last loss, the share of gains that moved, and the smallest and largest gain."""
    torch.manual_seed(0)
    data = TASKS["fine_tuning"].make_data()
    engine = Engine(Gained(), partial(torch.optim.Adam, lr=1e-3), RECIPES[recipe])
    for _ in range(steps):
        rows = torch.randint(len(data.train_inputs), (64,))
        engine.zero_grad()
        with engine.forward():
            loss = F.cross_entropy(engine(data.train_inputs[rows]), data.train_targets[rows])
        engine.backward(loss)
        engine.step()
    gains = torch.cat([gain.detach().float() for gain in engine.model.gains])
    return loss.item(), (gains != 1).float().mean().item(), gains.min().item(), gains.max().item()


for recipe in ("FP32", "BF16 no master", "BF16 stochastic", "BF16 Kahan"):
    loss, moved, low, high = learn_gains(recipe)
    print(f"{recipe:<16} loss {loss:5.2f}   moved {moved:4.0%}   ", end="")
    print(f"gains from {low:.3f} to {high:.3f}")

# %% [markdown] tags=["answer-beyond.gains"]
# **In BF16 no gain moved.** Above 1.0 the numbers of BF16 are $2^{-7}$ apart, so half the distance
# is 0.0039. Below 1.0 it is 0.0020. Adam's step is about the learning rate, 0.001. So every update
# is swallowed, and more steps do not help. (The printed loss is that of one batch, so it is noisy.
# Look at the share of gains that moved.)

# %% [markdown]
# **See it.** A weight of 1.0 gets the same update 1,000 times. It opens at an update of $2^{-10}$,
# about Adam's 0.001. Which curves lie on the exact one? Make the update larger until BF16 moves as
# well.

# %% id="touch-swallowed"
SwallowedUpdates(weight=1.0, update=2**-10)

# %% [markdown]
# Three cures work:
#
# - FP32 master weights;
# - *stochastic rounding*: a number is rounded up as often as the cut-off bits say;
# - *Kahan's* sum: the part that was cut off is stored, and added in the next step.
#
# | stored for each weight | bytes | moves? |
# |---|---|---|
# | BF16 alone | 2 | no |
# | BF16, stochastic rounding | 2 | yes |
# | BF16 and Kahan's rest in BF16 | 4 | yes |
# | BF16 and an FP32 master | 6 | yes |
#
# **Recorded**, BF16 without masters:
#
# | experiment | FP32 | BF16 |
# |---|---|---|
# | these gains, 800 steps: accuracy | 0.23 | 0.10 |
# | small GPT: do its norm weights change? | yes | no, all stay at 1.0; the loss of 2.7 is 0.016 worse |
# | a learned temperature that begins at 1: its end | 1.89 | exactly 1.000 |
# | weight decay of 1.0, which multiplies each weight by 1 - 0.001 | weights shrink | swallowed: equal to a decay of 0 |
#
# Adam's second moment has the same trouble. It is a running average of squared gradients. In each
# step Adam multiplies it by `beta2`, and adds a little. torch's default for `beta2` is 0.999; most
# large language models take 0.95.

# %% id="touch-ratchet"
def second_moments(beta2, format):
    """Return Adam's second moment after each of 3,000 steps; the batch of step 100 is bad."""
    moment = torch.tensor(1e-4)
    moments = []
    for step in range(1, 3001):
        squared = 3.0 if step == 100 else 1e-4
        moment = round_tensor(beta2 * moment + (1 - beta2) * squared, format)
        moments.append(moment.item())
    return moments


for beta2 in (0.999, 0.99, 0.95):
    for name, format in (("FP32", FP32), ("BF16", BF16)):
        moments = second_moments(beta2, format)
        shown = [f"step {at}: {moments[at - 1]:.2e}" for at in (99, 100, 1000, 3000)]
        print(f"beta2 {beta2:<5}  {name}  " + "  ".join(shown))

# %% [markdown]
# **With beta2 = 0.999 it goes up, and never down.** 0.999 times a number of BF16 rounds to the same
# number. After one bad batch the steps of Adam stay too small. With beta2 = 0.99 the moment falls,
# and stops 47% too high. With 0.95 it stops 4% too high, and that does no harm. DeepSeek-V3 stores
# both moments of Adam in BF16, and its report finds no loss of quality. It uses 0.95.
#
# **Recorded** with beta2 = 0.999 (6,000 steps, then other data): the second moment is 32 times too
# large at the end.
#
# | second moment in | accuracy |
# |---|---|
# | FP32 | 0.75 |
# | BF16 | 0.61 |
# | BF16, stochastic rounding | 0.75 |
#
# *Sources:* arXiv:2010.06192, with both cures; arXiv:2412.19437, 3.3 (DeepSeek-V3's moments in
# BF16). *Not reproduced here:* people found published models with norm weights of exactly 1.0.
#
# *How exercises work.* Write your answer between the `def` line and the check. You can run the cell
# as often as you like. Grading runs only the exercise's own cell, with the imports, functions,
# classes and constants of other cells that it uses.
#
# *No idea how to begin? `from labkit.grading import hint`, then `hint("beyond.frozen")`: you get
# three hints, one by one, at no cost.*
#
# ### Exercise 1: find the frozen parameter  ●●○  8 min
#
# You get weights in BF16, and the updates that an optimizer adds to them, in FP32. A parameter is
# *frozen* if its sum, rounded to BF16, equals the weight in *every* element.


# %% id="exercise-beyond-frozen" tags=["exercise-beyond.frozen"]
def my_frozen(weights, updates):
    """Return the names of the frozen parameters, in the order of `weights`.

    Args:
        weights: Dict: name -> BF16 tensor, of any shape.
        updates: Dict: name -> FP32 tensor of the same shape; the names may come in another order.
    """
    ### BEGIN SOLUTION
    frozen = []
    for name, weight in weights.items():
        after = (weight.float() + updates[name]).bfloat16()
        if after.equal(weight):
            frozen.append(name)
    return frozen
    ### END SOLUTION


check("beyond.frozen", my_frozen)

# %% [markdown]
# ## 2 · FP16 strikes back
#
# *Two programs with the same weights disagree; FP16 makes the difference smaller than BF16.*
#
# In reinforcement learning a language model learns by trial: it writes texts, and each text gets a
# reward. Two programs share the work. A fast *sampler* writes, a *learner* trains. Both have the
# same weights. But they add in different orders, and round at different places.
#
# So they disagree a little about the probability of each token (a word or a part of a word).

# %% id="predict-mismatch"
predict("beyond.mismatch")


# %% id="touch-mismatch" tags=["answer-beyond.mismatch"]
def log_probabilities(dtype, in_halves):
    """Return log-probabilities of 2,048 tokens; six layers round each operation to a dtype."""
    numbers = torch.Generator().manual_seed(0)
    x = torch.randn(2048, 64, generator=numbers).to(dtype)
    sizes = (64, 64, 64, 64, 64, 64, 8)
    weights = [torch.randn(64, size, generator=numbers).div(8).to(dtype) for size in sizes]

    def product(a, b):
        pieces = (slice(0, 32), slice(32, 64)) if in_halves else (slice(0, 64),)
        return sum((a[:, part].float() @ b[part].float()).to(dtype) for part in pieces)

    for weight in weights[:-1]:
        x = x + torch.tanh(product(x, weight))
    return product(x, weights[-1]).float().log_softmax(-1)[:, 0]


for dtype in (torch.float32, torch.float16, torch.bfloat16):
    difference = log_probabilities(dtype, True) - log_probabilities(dtype, False)
    ratios = difference.view(-1, 32).sum(1).exp()
    token = difference.square().mean().sqrt()
    print(f"{dtype!s:<16} a token differs by {token:.1e}   ", end="")
    print(f"a text of 32: ratio up to {ratios.max():.3f}")

# %% [markdown] tags=["answer-beyond.mismatch"]
# **BF16 differs eight times as much as FP16.** It has three significant bits fewer, and $2^3 = 8$.
# The log-probabilities of a text add up. So for long texts the ratio of the two probabilities moves
# away from 1, although the weights are equal.
#
# Does this harm the training? It depends on the method. **Recorded:** it does not harm the plain
# method (REINFORCE), even with a sampler in FP8. It harms a method that *clips* by that ratio:
# GSPO, with its published limits of 3e-4 and 4e-4.
#
# | learner / sampler | steps to a reward of 0.4 | texts that are clipped |
# |---|---|---|
# | FP32 or FP16 | 63 to 67 | 0% |
# | BF16 | 72 to 82 | 33% |
# | BF16 / FP8 | 110 to 135 | 49% |
# | BF16 / FP8, the learner computes old log-probabilities itself | 64 to 69 | 0% |
#
# *Sources:* arXiv:2510.26788 (back to FP16), arXiv:2507.18071 (GSPO). *Not reproduced here:* a
# training that collapses.

# %% [markdown]
# *Try:* change `torch.tanh` into `torch.relu` in the cell above, and run it. The differences
# change. Is their ratio still 1 to 8?
#
# ### Exercise 2: which texts are clipped?  ●●○  8 min
#
# For each token of a text, take the learner's log-probability minus the sampler's. Take the mean
# over the text. The text's ratio is $e^{\text{mean}}$. A text is clipped if its ratio is *below*
# 1 - `low` or *above* 1 + `high`. The model learns nothing from a clipped text.


# %% id="exercise-beyond-clipped" tags=["exercise-beyond.clipped"]
def my_clipped(learner, sampler, low, high):
    """Return the indices of the clipped texts, as a list; 0 is the first text.

    Args:
        learner: List of texts; a text is a list of log-probabilities, one for each token.
        sampler: The same texts, as the sampler rates them.
        low: The lower limit, as 0.0003.
        high: The upper limit, as 0.0004.
    """
    ### BEGIN SOLUTION
    clipped = []
    for place, (mine, theirs) in enumerate(zip(learner, sampler, strict=True)):
        mean = sum(a - b for a, b in zip(mine, theirs, strict=True)) / len(mine)
        ratio = math.exp(mean)
        if ratio < 1 - low or ratio > 1 + high:
            clipped.append(place)
    return clipped
    ### END SOLUTION


check("beyond.clipped", my_clipped)

# %% [markdown]
# ## 3 · Born in BF16
#
# *A model that was trained in BF16 can hold numbers that FP16 cannot.*
#
# A T4 or a V100 computes in FP16, and not in BF16. But most language models of today were trained
# in BF16. Their activations may be larger than 65504, and no one noticed: BF16 goes up to
# $3.4 \cdot 10^{38}$.
#
# Here is a small language model. It reads eight characters and guesses the next one. Its two blocks
# are *gated*, as in most models: `down(silu(gate(x)) * up(x))`. It is trained in BF16. Then one
# *outlier channel* is planted: a row of `up` times $2^{13}$, and the same column of `down` divided
# by $2^{13}$. Large models get such channels by themselves.

# %% id="predict-born"
predict("beyond.born")


# %% id="born"
class GatedBlock(nn.Module):
    """A block whose hidden numbers are products; `rescue` is the way to keep them finite."""

    rescue = ""

    def __init__(self, width=128):
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate, self.up, self.down = (nn.Linear(width, width, bias=False) for _ in range(3))

    def forward(self, x):
        y = self.norm(x)
        if self.rescue == "FP32 island":
            hidden = F.silu(self.gate(y)).float() * self.up(y).float()
            return x + F.linear(hidden, self.down.weight.float()).to(x.dtype)
        hidden = F.silu(self.gate(y)) * self.up(y)
        return x + self.down(hidden.clamp(-65504, 65504) if self.rescue == "clamp" else hidden)


# guesses the next character from eight
class NextCharacter(nn.Module):
    def __init__(self, kinds):
        super().__init__()
        self.embedding = nn.Embedding(kinds, 16)
        self.norm = nn.RMSNorm(128)
        self.blocks = nn.Sequential(GatedBlock(), GatedBlock())
        self.head = nn.Linear(128, kinds, bias=False)

    def forward(self, characters):
        return self.head(self.norm(self.blocks(self.embedding(characters).flatten(1))))


# %% id="born-training"
def born_in_bf16(steps=100, channel=123, power=13):
    """Return an FP32 model that was trained in BF16 and has an outlier channel, and its data.

    The data are texts of eight characters, and the character after each.
    """
    torch.manual_seed(0)
    data = TASKS["gpt"].make_data()
    engine = Engine(NextCharacter(68), partial(torch.optim.Adam, lr=3e-3), RECIPES["BF16"])
    for _ in range(steps):
        rows = torch.randint(len(data.train_inputs), (64,))
        engine.zero_grad()
        with engine.forward():
            outputs = engine(data.train_inputs[rows, -8:])
            loss = F.cross_entropy(outputs, data.train_targets[rows, -1])
        engine.backward(loss)
        engine.step()
    model = engine.model.float()
    with torch.no_grad():
        model.blocks[0].up.weight[channel] *= 2.0**power
        model.blocks[0].down.weight[:, channel] /= 2.0**power
    return model, data.test_inputs[:256, -8:], data.test_targets[:256, -1]


model, characters, following = born_in_bf16()


# %% id="touch-born" tags=["claim-C64", "answer-beyond.born"]
def largest_outputs(model, characters):
    """Return the largest magnitude of each layer's output, by the layer's name, in order."""
    largest = {}
    names = {layer: name for name, layer in model.named_modules()}

    def note(layer, inputs, output):
        largest[names[layer]] = output.abs().max().item()

    for name, layer in model.named_modules():
        if name and not list(layer.children()):
            layer.register_forward_hook(note)
    with torch.no_grad():
        model(characters)
    return largest


dtypes = (torch.float32, torch.bfloat16, torch.float16)
columns = [largest_outputs(copy.deepcopy(model).to(dtype), characters) for dtype in dtypes]
print(f"{'layer':<15}{'FP32':>10}{'BF16':>10}{'FP16':>10}")
for name in columns[0]:
    print(f"{name:<15}" + "".join(f"{column[name]:10.1f}" for column in columns))

# %% [markdown] tags=["answer-beyond.born"]
# **One product is infinite.** Find the first `inf` in the column FP16. The outputs of `gate` and
# `up` are finite. Their product is above 100,000, so FP16 makes it infinite, and `down` gets it.
# The next norm divides infinity by infinity. From there on everything is NaN.

# %% [markdown]
# There are four rescues:
#
# - *Clamp*: cut the hidden numbers at 65504. They are finite, and wrong.
# - *An island of FP32*: compute the product and `down` in FP32. `down` needs its weights in FP32.
# - *Move a power of two*: divide the row of `up` by $2^k$, and multiply the column of `down` by
#   $2^k$. Only exponents change, so FP32 gives the same bits as before. (A row of `gate` cannot be
#   divided: `silu` is not linear.)
# - *Refuse*: run the model in BF16 or FP32, on a card that has them.


# %% id="touch-rescues"
def moved(model, power, channel=123):
    """Return a copy of the model with a power of two moved from `up` to `down`."""
    model = copy.deepcopy(model)
    with torch.no_grad():
        model.blocks[0].up.weight[channel] /= 2.0**power
        model.blocks[0].down.weight[:, channel] *= 2.0**power
    return model


with torch.no_grad():
    exact = model(characters)
    same = torch.equal(moved(model, 1)(characters), exact)
    print("FP32 after moving a power of two: the same bits" if same else "FP32 has other bits")
    for name, dtype, power in (
        ("BF16", torch.bfloat16, 0), ("FP16", torch.float16, 0), ("FP16, clamp", torch.float16, 0),
        ("FP16, FP32 island", torch.float16, 0), ("FP16, 2^1 moved", torch.float16, 1),
    ):
        rescued = moved(model, power).to(dtype)
        for block in rescued.blocks:
            block.rescue = name.split(", ")[-1]
        result = rescued(characters).float()
        loss = F.cross_entropy(result, following)
        error = (result - exact).abs().max()
        print(f"{name:<18} loss {loss:.4f}   an output differs from FP32's by up to {error:.4f}")

# %% [markdown]
# **The power of two costs nothing.** It is as exact as the island, and needs no memory and no other
# kernel. The island's `down` takes twice its bytes. BF16 is less exact than FP16, here as
# everywhere, because it has three bits fewer. *Try:* move $2^3$. Does the error change?
#
# When must you refuse? If `x` itself, the sum that runs through all blocks, is above 65504. Every
# block reads it, so no row and column inside a block can take its factor.
#
# | model | what overflowed in FP16 | repair |
# |---|---|---|
# | T5 | the last product of a block, `wo`: 66,246 | transformers keeps `wo` in FP32 |
# | Gemma 4, text | the product before `down_proj` in layer 0 | the product and `down_proj` in FP32 |
# | Gemma 4, pictures | features times the root of the width | this product in FP32 |
#
# *Sources:* huggingface/transformers#5651, #20683 and #46277, unslothai/unsloth-zoo#600. *Not
# reproduced here:* these models.
#
# ### Exercise 3: move powers of two  ●●○  10 min
#
# For each hidden number you get its largest magnitude. Its $k$ is the smallest whole number, from 0
# on, at which this magnitude divided by $2^k$ is at most `limit`. Divide its row of `up` by $2^k$,
# and multiply its column of `down` by $2^k$.


# %% id="exercise-beyond-rescue" tags=["exercise-beyond.rescue"]
def my_rescue(up, down, largest, limit):
    """Return (up, down) with the powers of two moved; the arguments stay as they are.

    Args:
        up: FP32 tensor [hidden, inputs]: one row for each hidden number.
        down: FP32 tensor [outputs, hidden]: one column for each hidden number.
        largest: List of floats: the largest magnitude of each hidden number.
        limit: The largest number of the format, as 65504.0.
    """
    ### BEGIN SOLUTION
    up = up.clone()
    down = down.clone()
    for channel, size in enumerate(largest):
        k = 0
        while size / 2**k > limit:
            k += 1
        up[channel] /= 2**k
        down[:, channel] *= 2**k
    return up, down
    ### END SOLUTION


check("beyond.rescue", my_rescue)

# %% [markdown]
# ## What was settled
#
# - In BF16 without a master, a value does not change if its updates are below half an ulp. This
#   happened to gains, to weight decay, and to Adam's second moment with beta2 = 0.999.
# - FP16 has three more significant bits than BF16. They help where two programs must agree.
# - A model that was trained in BF16 may need its range. Then a power of two, moved from one layer
#   to the next, is exact.
#
# | claim | verdict | where you saw it |
# |---|---|---|
# | C64 a model that was trained in BF16 runs in FP16: both have 16 bits | false: numbers above 65504 become infinite | part 3 |
#
# **Where you meet this.** Stochastic rounding in `torchao`'s optimizers; BF16 moments in
# DeepSeek-V3; the option `dtype="float16"` of samplers in reinforcement learning. Lesson 11b goes
# on to 8 and 4 bits, and lesson 11c to the order of sums and to positions.
